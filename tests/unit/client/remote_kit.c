/* SPDX-License-Identifier: Apache-2.0 */
/* See remote_kit.h. */
#include "tests/unit/client/remote_kit.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *patience = PATIENT;
char dir[64], socket_setting[128];

int pair_rank_open(struct epf **ep)
{
	const char *const settings[] = {
		socket_setting,         patience, "signals=16", "ring-slots=64", "job=remote",
		"bootstrap-timeout=2s", NULL
	};
	struct epf_options o;

	epf_options_init(&o);
	o.settings = settings;
	return epf_open(&o, ep);
}

int pair_rank_set_up(struct pair *p, int i)
{
	int rc = pair_rank_open(&p->ep[i]);

	if (!rc)
		rc = epf_memory_alloc(p->ep[i], BYTES, &p->mem[i]);
	if (!rc)
		rc = epf_region_register(p->ep[i], p->mem[i], BYTES, EPF_REMOTE_WRITE,
					 &p->region[i]);
	if (!rc)
		rc = epf_ring_open(p->ep[i], NULL, &p->ring[i]);
	return rc;
}

static int join_pair(struct pair *p)
{
	int rc = 0, left = RANKS;

	for (int i = 0; i < RANKS && !rc; i++)
		rc = epf_join_post(p->ep[i], p->boot[i]);
	for (int turns = 0; !rc && left; turns++) {
		left = RANKS;
		for (int i = 0; i < RANKS && (!rc || rc == -EAGAIN); i++) {
			rc = epf_join_finish(p->ep[i]);
			left -= !rc;
		}
		rc = rc == -EAGAIN ? 0 : rc;
		assert_true(turns < 100);
	}
	return rc;
}

int pair_set_up(struct pair *p, const struct fake_plan *plan)
{
	int rc = 0;

	memset(p, 0, sizeof(*p));
	p->daemon = fake_svc_start(dir, "fake", plan);
	assert_true(p->daemon > 0);
	assert_return_code(epf_boot_local_create(RANKS, &p->group), 0);
	for (int i = 0; i < RANKS; i++)
		assert_return_code(epf_boot_local_open(p->group, (uint32_t)i, &p->boot[i]), 0);
	for (int i = 0; i < RANKS && !rc; i++)
		rc = pair_rank_set_up(p, i);
	return rc ? rc : join_pair(p);
}

void pair_tear_down(struct pair *p)
{
	for (int i = 0; i < RANKS; i++)
		epf_close(p->ep[i]);
	for (int i = 0; i < RANKS; i++)
		epf_boot_close(p->boot[i]);
	epf_boot_local_destroy(p->group);
	fake_svc_kill(p->daemon);
}

uint64_t ask(struct epf *ep, const char *what)
{
	uint64_t value = 0;

	assert_return_code(epf_counter(ep, what, &value), 0);
	return value;
}

void says(const char *text)
{
	if (!strstr(epf_last_error(), text))
		fail_msg("\"%s\" does not say \"%s\"", epf_last_error(), text);
}

void pair_serves_a_job(void)
{
	struct pair p;
	void *stray = malloc(64);
	uint64_t value;
	uint32_t region;

	assert_return_code(pair_set_up(&p, NULL), 0);
	assert_string_equal(epf_mode(p.ep[0]), "service:fake");
	assert_int_equal(p.region[0], 0);
	assert_int_equal(epf_nodes(p.ep[0]), 2);
	assert_int_equal(epf_node_of(p.ep[0], 1), 1);
	assert_int_equal(epf_node_of(p.ep[0], 2), UINT32_MAX);
	assert_int_equal(epf_peer_state(p.ep[0], 1), 1);
	assert_int_equal(epf_peer_epoch(p.ep[0], 1), 0);
	assert_string_equal(epf_stats_file(p.ep[0]), "");
	/* A command goes into the daemon's memory as it is. */
	assert_return_code(epf_put(p.ring[0], 1, 0, 0, 0, 0, 16, 0), 0);
	assert_int_equal(ask(p.ep[0], "slots"), 1);
	assert_int_equal(epf_counter(p.ep[0], "no_such", &value), -ENOENT);
	/* A signal of the daemon ends a wait. */
	ask(p.ep[0], "poke");
	assert_return_code(epf_signal_wait(p.ep[0], 0, 1, 0), 0);
	assert_int_equal(epf_signal_wait(p.ep[0], 0, 2, 30000000), -ETIMEDOUT);
	/* Only memory that can be shared is registered. */
	assert_int_equal(epf_region_register(p.ep[0], stray, 64, 0, &region), -EINVAL);
	assert_int_equal(epf_last_reason(), EPF_R_SVC_MEMORY);
	assert_int_equal(epf_region_register(p.ep[0], p.mem[0], BYTES + 1, 0, &region), -EINVAL);
	assert_return_code(epf_region_register(p.ep[0], (char *)p.mem[0] + 4096, 4096, 0, &region),
			   0);
	assert_int_equal(region, 1);
	assert_return_code(epf_region_withdraw(p.ep[0], 1, 0), 0);
	assert_true(epf_region_withdraw(p.ep[0], 1, 0) < 0);
	assert_true(epf_region_withdraw(p.ep[0], 2, 0) < 0);
	assert_int_equal(epf_rejoin(p.ep[0]), -EALREADY);
	free(stray);
	pair_tear_down(&p);
}

int pair_make_dir(void **state)
{
	snprintf(dir, sizeof(dir), "/tmp/epf-remote-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(socket_setting, sizeof(socket_setting), "service=%s/fake.sock", dir);
	return 0;
}

int pair_remove_dir(void **state)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/fake.sock", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/fake.lock", dir);
	unlink(path);
	return rmdir(dir);
}
