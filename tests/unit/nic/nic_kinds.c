/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of NIC that the conformance suite runs over, and how each is opened: see nic_rig.h. */
#include "fabric/nic/tcp/opts.h"
#include "tests/unit/nic/nic_rig.h"

#ifdef EPF_WITH_OFI
# include "fabric/nic/ofi/lib.h"
# include "fabric/nic/ofi/opts.h"
# include "tests/unit/nic/ofi/fake_ofi.h"
#endif
#ifdef EPF_WITH_VERBS
# include "fabric/nic/rdma/lib.h"
# include "fabric/nic/verbs/opts.h"
# include "tests/unit/nic/efa/fake_efa.h"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int open_emu(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		    struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 1;
	return epf_emu_open(&opts, now, arg, out);
}

static int open_emu_unordered(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			      void *arg, struct epf_nic **out)
{
	struct epf_emu_opts opts = *tune;

	opts.ordered = 0;
	return epf_emu_open(&opts, now, arg, out);
}

/* Two NICs as one: lanes with even numbers go by the first. */
static int open_rails(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		      struct epf_nic **out)
{
	struct epf_nic *child[2];
	int rc = open_emu(tune, end, now, arg, &child[0]);

	if (rc)
		return rc;
	rc = open_emu(tune, end, now, arg, &child[1]);
	if (!rc)
		rc = epf_nic_rails_open(child, 2, out);
	return rc;
}

static int open_null(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		     struct epf_nic **out)
{
	return epf_nic_find("null")->open(NULL, now, arg, out);
}

/* Over loopback sockets, on the real clock but for its limits of time, which are on the rig's. */
static int open_tcp(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		    struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	epf_tcp_opts_defaults(&opts);
	opts.gpu = tune->gpu;
	opts.rnr_timeout_ns = tune->rnr_timeout_ns;
	return epf_tcp_open(&opts, now, arg, out);
}

#ifdef EPF_WITH_OFI
/* Providers of libfabric, on the real clock. */
static int open_ofi(const char *provider, int remote_data, uint64_t (*now)(void *), void *arg,
		    struct epf_nic **out)
{
	const struct epf_ofi_lib *lib;
	struct epf_ofi_opts opts;
	int rc = epf_ofi_lib(&lib);

	if (rc)
		return rc;
	epf_ofi_opts_defaults(&opts);
	opts.provider = provider;
	opts.remote_data = remote_data;
	return epf_ofi_open(lib, &opts, now, arg, out);
}

/* A fake libfabric, on the rig's clock. */
static int open_ofi_fake(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			 void *arg, struct epf_nic **out)
{
	struct epf_ofi_opts opts;

	if (end == 0)
		fake_ofi_reset();
	epf_ofi_opts_defaults(&opts);
	opts.provider = "fake";
	return epf_ofi_open(&fake_ofi_lib, &opts, now, arg, out);
}

static int open_ofi_tcp(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			void *arg, struct epf_nic **out)
{
	return open_ofi("tcp", 1, now, arg, out);
}

static int open_ofi_messages(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			     void *arg, struct epf_nic **out)
{
	return open_ofi("tcp", 0, now, arg, out);
}

static int open_ofi_shm(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			void *arg, struct epf_nic **out)
{
	return open_ofi("shm", 1, now, arg, out);
}
#endif

static int open_tcp_encrypted(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			      void *arg, struct epf_nic **out)
{
	struct epf_tcp_opts opts;

	epf_tcp_opts_defaults(&opts);
	opts.rnr_timeout_ns = tune->rnr_timeout_ns;
	opts.gpu = tune->gpu;
	opts.encrypts = true;
	return epf_tcp_open(&opts, now, arg, out);
}

#ifdef EPF_WITH_VERBS
/* Device `end` of EPF_TEST_VERBS_DEVICES, or the only one. */
static char *device_of(int end, char *buf, size_t size)
{
	const char *list = getenv("EPF_TEST_VERBS_DEVICES");
	const char *comma = strchr(list, ',');

	if (end && comma)
		list = comma + 1;
	snprintf(buf, size, "%s", list);
	buf[strcspn(buf, ",")] = '\0';
	return buf;
}

static int open_device(const struct epf_emu_opts *tune, int end, struct epf_verbs_opts *opts,
		       uint64_t (*now)(void *), void *arg, struct epf_nic **out)
{
	const struct epf_verbs_lib *lib;
	char name[64], *item = name;

	assert_int_equal(epf_verbs_lib(&lib), 0);
	device_of(end, name, sizeof(name));
	opts->devices = (struct epf_conf_list){ .item = &item, .count = 1 };
	opts->rnr_timer = 27; /* 123 ms, six times */
	return epf_verbs_open(lib, opts, now, arg, out);
}

static int open_verbs(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *), void *arg,
		      struct epf_nic **out)
{
	struct epf_verbs_opts opts;

	epf_verbs_opts_defaults(&opts);
	return open_device(tune, end, &opts, now, arg, out);
}

/* The other way to post, and nothing inline. */
static int open_verbs_lists(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			    void *arg, struct epf_nic **out)
{
	struct epf_verbs_opts opts;

	epf_verbs_opts_defaults(&opts);
	opts.lists = 1;
	opts.inline_bytes = 0;
	return open_device(tune, end, &opts, now, arg, out);
}

static int open_verbs_unordered(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
				void *arg, struct epf_nic **out)
{
	struct epf_verbs_opts opts;

	epf_verbs_opts_defaults(&opts);
	opts.ordered = 0;
	return open_device(tune, end, &opts, now, arg, out);
}

/* Two adapters that see each other, on the rig's clock (fake_efa.h). */
static int open_efa(const struct epf_emu_opts *tune, int end, int unsolicited,
		    uint64_t (*now)(void *), void *arg, struct epf_nic **out)
{
	struct epf_efa_opts opts;
	const char *seed = getenv("EPF_TEST_SEED");

	if (end == 0) {
		fake_efa_reset();
		fake_efa.n_devices = 2;
		fake_efa.seed = seed ? strtoull(seed, NULL, 0) : 1;
		fake_efa.delay_ns = 20000;
		fake_efa.rnr_timeout_ns = tune->rnr_timeout_ns;
		fake_efa.retry_timeout_ns = tune->retry_timeout_ns;
		fake_efa.now = now;
		fake_efa.now_arg = arg;
	}
	epf_efa_opts_defaults(&opts);
	opts.devices =
		(struct epf_conf_list){ .item = &(char *){ end ? "efa1" : "efa0" }, .count = 1 };
	opts.unsolicited = unsolicited;
	opts.inline_bytes = unsolicited ? 80 : 32;
	return epf_efa_open(&fake_efa_lib, &opts, now, arg, out);
}

static int open_efa_posted(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
			   void *arg, struct epf_nic **out)
{
	return open_efa(tune, end, 0, now, arg, out);
}

static int open_efa_unsolicited(const struct epf_emu_opts *tune, int end, uint64_t (*now)(void *),
				void *arg, struct epf_nic **out)
{
	return open_efa(tune, end, 1, now, arg, out);
}
#endif

static const struct nic_kind kinds[] = {
	{ "emu ordered", 1, 1, 0, 0, 0, 0, 0, open_emu },
	{ "emu unordered", 0, 1, 0, 0, 0, 0, 0, open_emu_unordered },
	{ "emu ordered, GPU to GPU", 1, 1, 0, 0, 0, 0, 3, open_emu },
	{ "emu unordered, GPU to GPU", 0, 1, 0, 0, 0, 0, 3, open_emu_unordered },
	{ "emu ordered, GPU to host", 1, 1, 0, 0, 0, 0, 1, open_emu },
	{ "emu ordered, host to GPU", 1, 1, 0, 0, 0, 0, 2, open_emu },
	{ "emu unordered, host to GPU", 0, 1, 0, 0, 0, 0, 2, open_emu_unordered },
	{ "rails over emu", 1, 1, 0, 1, 0, 0, 0, open_rails },
	{ "null", 1, 0, 0, 0, 0, 0, 0, open_null },
	{ "tcp", 1, 1, 1, 1, 0, 0, 0, open_tcp },
#ifdef EPF_WITH_OFI
	{ "ofi fake", 0, 1, 0, 1, 1, 1, 0, open_ofi_fake, NIC_REFUSAL_NAMED, 1 },
	{ "ofi tcp", 0, 1, 1, 1, 1, 1, 0, open_ofi_tcp, NIC_REFUSAL_LOST, 0, 1 },
	{ "ofi tcp, messages", 0, 1, 1, 1, 1, 1, 0, open_ofi_messages, NIC_REFUSAL_LOST },
	{ "ofi shm", 0, 1, 1, 1, 1, 1, 0, open_ofi_shm, NIC_REFUSAL_SILENT },
#endif
	{ "tcp encrypted", 1, 1, 1, 1, 0, 0, 0, open_tcp_encrypted },
	{ "tcp, GPU to GPU", 1, 1, 1, 1, 0, 0, 3, open_tcp },
	{ "tcp, GPU to host", 1, 1, 1, 1, 0, 0, 1, open_tcp },
	{ "tcp, host to GPU", 1, 1, 1, 1, 0, 0, 2, open_tcp },
	{ "tcp encrypted, GPU to GPU", 1, 1, 1, 1, 0, 0, 3, open_tcp_encrypted },
#ifdef EPF_WITH_VERBS
	{ "efa", 0, 1, 0, 1, 1, 0, 0, open_efa_posted, .next_event = fake_efa_next },
	{ "efa unsolicited", 0, 1, 0, 1, 1, 1, 0, open_efa_unsolicited,
	  .next_event = fake_efa_next },
	{ "verbs", 1, 1, 1, 1, 0, 0, 0, open_verbs },
	{ "verbs lists", 1, 1, 1, 1, 0, 0, 0, open_verbs_lists },
	{ "verbs unordered", 0, 1, 1, 1, 0, 0, 0, open_verbs_unordered },
#endif
};

enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

const struct nic_kind *nic_rig_kinds(size_t *count)
{
	static struct nic_kind chosen[KINDS];
	const char *only = getenv("EPF_TEST_NIC");
	const char *devices = getenv("EPF_TEST_VERBS_DEVICES");

	*count = 0;
	for (size_t i = 0; i < KINDS; i++)
		if (((devices && *devices) || strncmp(kinds[i].name, "verbs", 5) != 0) &&
		    (!only || strncmp(kinds[i].name, only, strlen(only)) == 0))
			chosen[(*count)++] = kinds[i];
	return chosen;
}
