/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening an ofi NIC: which providers and domains are taken, the memory registration modes, failures of each call, and a machine without libfabric.
 */
#include "tests/unit/nic/ofi/ofi_kit.h"

#include <dlfcn.h>
#include <errno.h>
#include <rdma/fi_domain.h>
#include <signal.h>
#include <stdio.h>

static bool hide_library;

void *__real_dlopen(const char *file, int flags);
void *__wrap_dlopen(const char *file, int flags);

void *__wrap_dlopen(const char *file, int flags)
{
	return __real_dlopen(hide_library ? "libnowhere.so.1" : file, flags);
}

/* Several offers, none asked for by name. */
static void offers(const char *first, const char *second)
{
	fake_ofi.infos[0].provider = "tcp;ofi_rxm";
	fake_ofi.infos[0].domain = "lo";
	fake_ofi.infos[1].provider = first;
	fake_ofi.infos[1].domain = "x0";
	fake_ofi.infos[2].provider = second;
	fake_ofi.infos[2].domain = "y0";
	kit.opts.provider = NULL;
}

static void open_fails(int reason, const char *text)
{
	struct epf_nic *nic = NULL;

	assert_true(epf_ofi_open(&fake_ofi_lib, &kit.opts, kit_now, NULL, &nic) < 0);
	assert_null(nic);
	assert_int_equal(epf_last_reason(), reason);
	if (!strstr(epf_last_error(), text))
		fail_msg("'%s' says nothing of '%s'", epf_last_error(), text);
}

/* Provider's name as messages have it. */
static void expect_provider(const char *name)
{
	uint64_t token;

	kit_open_end(&kit.a);
	fake_ofi.fail_open = "av";
	assert_int_equal(kit.a.nic->ops->lane_create(kit.a.nic, 1, 8, &token), 0);
	assert_true(kit_connect(&kit.a, &kit.a) < 0);
	if (!strstr(epf_last_error(), name))
		fail_msg("'%s' says nothing of '%s'", epf_last_error(), name);
	fake_ofi.fail_open = NULL;
}

static void cxi_by_default(void **state)
{
	offers("cxi", "efa");
	expect_provider("cxi x0");
}

static void efa_by_default(void **state)
{
	offers("shm", "efa");
	expect_provider("efa y0");
}

/* A provider that authenticates nobody is used when it is named, and only then. */
static void never_tcp_by_default(void **state)
{
	offers("shm", "sockets");
	open_fails(EPF_R_OFI_PROVIDER, "libfabric 1.99 offers tcp;ofi_rxm, shm, sockets");
	assert_non_null(strstr(epf_last_error(), "ofi-provider"));
	kit.opts.provider = "tcp";
	expect_provider("tcp;ofi_rxm lo");
}

static void unknown_provider(void **state)
{
	kit.opts.provider = "opx";
	open_fails(EPF_R_OFI_PROVIDER, "opx");
}

static void several_domains(char *const *devices, size_t count, unsigned links)
{
	struct epf_nic_caps caps;
	char *list[4];

	for (unsigned i = 0; i < 4; i++) {
		static const char *const names[] = { "cxi0", "cxi1", "cxi1", "cxi2" };

		fake_ofi.infos[i].provider = "cxi";
		fake_ofi.infos[i].domain = names[i];
	}
	kit.opts.provider = NULL;
	for (size_t i = 0; i < count; i++)
		list[i] = devices[i];
	kit.opts.devices = (struct epf_conf_list){ .item = list, .count = (uint32_t)count };
	kit_open_end(&kit.a);
	kit.a.nic->ops->describe(kit.a.nic, &caps);
	assert_int_equal(caps.links, links);
	assert_int_equal(caps.ordered, 0);
}

static void one_domain_by_default(void **state)
{
	several_domains(NULL, 0, 1);
}

static void domains_by_prefix(void **state)
{
	several_domains((char *[]){ "cxi" }, 1, 3);
}

static void domains_without_one(void **state)
{
	several_domains((char *[]){ "^cxi1" }, 1, 2);
}

static void as_many_as_asked_for(void **state)
{
	kit.opts.count = 2;
	several_domains((char *[]){ "cxi" }, 1, 2);
}

static void no_such_domain(void **state)
{
	char *item = "ib0";

	kit.opts.devices = (struct epf_conf_list){ .item = &item, .count = 1 };
	open_fails(EPF_R_OFI_PROVIDER, "nic-device 'ib0'");
}

/* Loopback is taken when there is nothing else. */
static void loopback_last(void **state)
{
	fake_ofi.infos[0].domain = "lo";
	fake_ofi.infos[1].provider = "fake";
	fake_ofi.infos[1].domain = "eth0";
	expect_provider("fake eth0");
}

/* cxi says that it has remote CQ data, and has it for keys of 64 bits only. */
static void cxi_sends_messages(void **state)
{
	fake_ofi.infos[0].provider = "cxi";
	kit.opts.provider = "cxi";
	fake_ofi.mr_mode = FI_MR_ENDPOINT | FI_MR_ALLOCATED;
	kit_open();
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 8), 1);
	assert_int_equal(kit_run(&kit.b, EPF_WC_RECV_IMM, EPF_S_OK), 1);
	assert_int_equal(fake_ofi.data_writes, 0);
	assert_int_equal(fake_ofi.messages, 1);
}

/* All work with registrations of this kind. */
static void works_with(int mr_mode)
{
	uint8_t bytes[16] = "given along";
	struct epf_wr wr;

	fake_ofi.mr_mode = mr_mode;
	kit_open();
	assert_int_equal(kit_post(1, EPF_WR_WRITE_IMM, 64), 1);
	assert_int_equal(kit_post(2, EPF_WR_SEND, 64), 1);
	assert_int_equal(kit_post(3, EPF_WR_READ, 64), 1);
	wr = kit_write(4, EPF_WR_WRITE, sizeof(bytes));
	wr.flags = EPF_WR_INLINE;
	wr.laddr = (uint64_t)(uintptr_t)bytes;
	wr.lkey = 0;
	assert_int_equal(kit.a.nic->ops->post(kit.a.nic, 0, &wr, 1), 1);
	assert_int_equal(kit_run(&kit.a, EPF_WC_SENT, EPF_S_OK), 4);
	assert_memory_equal(kit.b.mem, bytes, sizeof(bytes));
}

static void offsets(void **state)
{
	works_with(0);
	assert_int_equal(kit.b.mr.raddr, 0);
}

static void virtual_addresses(void **state)
{
	works_with(FI_MR_VIRT_ADDR);
	assert_int_equal(kit.b.mr.raddr, (uintptr_t)kit.b.mem);
}

static void local_registrations(void **state)
{
	works_with(FI_MR_LOCAL | FI_MR_VIRT_ADDR);
}

static void registrations_of_an_endpoint(void **state)
{
	works_with(FI_MR_ENDPOINT | FI_MR_LOCAL);
	assert_true(fake_ofi.bound >= 2);
}

/* Keys that the NIC chooses are asked for first, and are not what a stranger expects. */
static void random_keys(void **state)
{
	struct epf_nic_mr one, two;

	kit_open();
	assert_int_equal(fake_ofi.prov_key_asked, 0);
	assert_int_equal(
		kit.a.nic->ops->region_register(kit.a.nic, kit.a.mem, 64, EPF_MR_REMOTE_READ, &one),
		0);
	assert_int_equal(
		kit.a.nic->ops->region_register(kit.a.nic, kit.a.mem, 64, EPF_MR_REMOTE_READ, &two),
		0);
	assert_true(one.rkey > 1000 || two.rkey > 1000);
	assert_true(two.rkey - one.rkey > 1000);
	assert_int_not_equal(one.lkey, two.lkey);
}

static void narrow_provider_keys(void **state)
{
	fake_ofi.mr_mode = FI_MR_PROV_KEY;
	works_with(FI_MR_PROV_KEY | FI_MR_VIRT_ADDR);
	assert_int_equal(fake_ofi.prov_key_asked, 2);
}

static void wide_provider_keys(void **state)
{
	struct epf_nic_mr mr = { .rkey = 7 };
	struct epf_nic *nic;

	fake_ofi.mr_mode = FI_MR_PROV_KEY;
	fake_ofi.wide_keys = true;
	assert_int_equal(epf_ofi_open(&fake_ofi_lib, &kit.opts, kit_now, NULL, &nic), 0);
	assert_true(nic->ops->region_register(nic, kit.a.mem, 64, EPF_MR_REMOTE_READ, &mr) < 0);
	assert_int_equal(epf_last_reason(), EPF_R_OFI_UNFIT);
	assert_int_equal(mr.rkey, 7);
	nic->ops->close(nic);
}

/* A provider that needs more than the NIC can give is none. */
static void unfit_provider(void **state)
{
	fake_ofi.mr_mode = FI_MR_RMA_EVENT;
	open_fails(EPF_R_OFI_PROVIDER, "fake");
	fake_ofi.mr_mode = 0;
	fake_ofi.mode = FI_MSG_PREFIX;
	open_fails(EPF_R_OFI_PROVIDER, "fake");
}

/* Each call may fail: one line that names it, and nothing stays open. */
static void failing_calls(void **state)
{
	static const char *const calls[] = { "fabric", "domain", "cq", "endpoint", "enable" };

	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		fake_ofi.fail_open = calls[i];
		open_fails(EPF_R_OFI_CALL, calls[i]);
		assert_non_null(strstr(epf_last_error(), "a made-up reason"));
		assert_int_equal(fake_ofi.live, 0);
	}
	fake_ofi.fail_open = "mr";
	fake_ofi.mr_mode = FI_MR_LOCAL;
	open_fails(EPF_R_OFI_CALL, "fi_mr_reg");
	assert_int_equal(fake_ofi.live, 0);
}

static void on_signal(int signo)
{
}

/* Libraries behind providers set handlers of their own; the program's stay. Then the same without a library, in a process of its own that has never had one. */
static void signals_stay(void **state)
{
	struct sigaction mine = { .sa_handler = on_signal }, now, before;
	const struct epf_ofi_lib *lib;

	assert_int_equal(sigaction(SIGTERM, &mine, NULL), 0);
	assert_int_equal(sigaction(SIGSEGV, NULL, &before), 0);
	if (epf_ofi_lib(&lib)) {
		print_message("%s\n", epf_last_error());
		skip();
	}
	assert_int_equal(sigaction(SIGTERM, NULL, &now), 0);
	assert_ptr_equal(now.sa_handler, on_signal);
	assert_int_equal(sigaction(SIGSEGV, NULL, &now), 0);
	assert_ptr_equal(now.sa_handler, before.sa_handler);
	assert_true(FI_MAJOR(lib->version()) >= 1);
}

static int no_library(void)
{
	const struct epf_ofi_lib *lib = NULL;

	hide_library = true;
	if (epf_ofi_lib(&lib) != -ENOENT || lib || epf_last_reason() != EPF_R_OFI_LIBRARY ||
	    !strstr(epf_last_error(), "libnowhere.so.1") ||
	    !strstr(epf_last_error(), "install libfabric1"))
		return 1;
	printf("# without the library: %s\n", epf_last_error());
	return 0;
}

static void without_the_library(void **state)
{
	char command[512];

	snprintf(command, sizeof(command), "'%s' --no-library", program_invocation_name);
	assert_int_equal(system(command), 0);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, kit_setup, kit_teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		CASE(cxi_by_default),
		CASE(efa_by_default),
		CASE(never_tcp_by_default),
		CASE(unknown_provider),
		CASE(one_domain_by_default),
		CASE(domains_by_prefix),
		CASE(domains_without_one),
		CASE(as_many_as_asked_for),
		CASE(no_such_domain),
		CASE(loopback_last),
		CASE(cxi_sends_messages),
		CASE(offsets),
		CASE(virtual_addresses),
		CASE(local_registrations),
		CASE(registrations_of_an_endpoint),
		CASE(random_keys),
		CASE(narrow_provider_keys),
		CASE(wide_provider_keys),
		CASE(unfit_provider),
		CASE(failing_calls),
		CASE(signals_stay),
		CASE(without_the_library),
	};

	if (argc > 1 && strcmp(argv[1], "--no-library") == 0)
		return no_library();
	return cmocka_run_group_tests_name("ofi_open", tests, NULL, NULL);
}
