/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep-fabric why reads of endpoints (tools/waits/endpoints.h): a peer that is stopped is named, with what this endpoint waits for, and
 * nothing is reported once it goes on. A wait must show, however long that takes; no test asks how soon.
 */
#include "fabric/gpu/copy.h"
#include "fabric/p2p/codec.h"
#include "tests/unit/p2p/p2p_kit.h"
#include "tools/waits/endpoints.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static char dir[64], dir_setting[96];

static void begin(struct both *b, enum target_memory from, const char *name, const char *more)
{
	char setting[192];

	snprintf(setting, sizeof(setting), "%s %s", dir_setting, more);
	both_begin(b, from, from, "the-waiter", name, setting);
}

/* Waits until a wait of that kind for that peer is reported. Returns what is reported of it. */
static struct endpoint_wait look_for(const char *peer, unsigned kind)
{
	struct endpoint_wait found = { .kind = EPF_STATS_CONN_NONE };
	struct timespec nap = { 0, 20 * 1000 * 1000 };

	while (found.kind == EPF_STATS_CONN_NONE) {
		struct waits *w = waits_new();
		struct endpoints *e;

		assert_true(waits_add_dir(w, dir) >= 0);
		/* longer than between two looks of the writer: it must know since when nothing moved */
		assert_int_equal(waits_refresh(w, epf_now_ns(), 300 * 1000 * 1000), 0);
		e = endpoints_read(w);
		for (uint32_t i = 0; i < e->n; i++)
			if (!strcmp(e->wait[i].peer, peer) && e->wait[i].kind == kind)
				found = e->wait[i];
		endpoints_free(e);
		waits_free(w);
		nanosleep(&nap, NULL);
	}
	return found;
}

/* Waits until no endpoint waits for anything. */
static void look_for_none(void)
{
	struct timespec nap = { 0, 20 * 1000 * 1000 };
	uint32_t n = 1;

	while (n) {
		struct waits *w = waits_new();
		struct endpoints *e;

		assert_true(waits_add_dir(w, dir) >= 0);
		assert_int_equal(waits_refresh(w, epf_now_ns(), 1), 0);
		e = endpoints_read(w);
		n = e->n;
		assert_int_equal(e->endpoints, 2);
		endpoints_free(e);
		waits_free(w);
		nanosleep(&nap, NULL);
	}
}

static void must_name(const struct endpoint_wait *w, const struct both *p)
{
	char text[512], cont[64];

	assert_string_equal(w->endpoint, "the-waiter");
	assert_int_equal(w->pid, p->t.pid);
	assert_int_equal(w->own_pid, getpid());
	assert_int_equal(w->process, 'T');
	snprintf(cont, sizeof(cont), "kill -CONT %d lets it go on", (int)p->t.pid);
	assert_non_null(strstr(endpoint_sentence(w, text, sizeof(text)), cont));
	assert_non_null(strstr(text, w->peer));
}

static void *import_again(void *arg)
{
	struct both *p = arg;
	uint64_t import;

	return (void *)(intptr_t)epf_p2p_import(p->ep, p->conn, p->t.key, 100 * SECOND, &import);
}

static void test_answer(void **state)
{
	struct endpoint_wait found;
	pthread_t thread;
	struct both p;
	void *rc;

	(void)state;
	begin(&p, T_MMAP, "sleeper", "");
	target_stop(&p.t);
	assert_int_equal(pthread_create(&thread, NULL, import_again, &p), 0);
	found = look_for("sleeper", EPF_STATS_CONN_ANSWER);
	must_name(&found, &p);
	kill(p.t.pid, SIGCONT);
	pthread_join(thread, &rc);
	assert_null(rc);
	look_for_none();
	both_end(&p);
}

static void test_notes(void **state)
{
	static char note[EPF_P2P_NOTE_BYTES];
	struct endpoint_wait found;
	struct epf_p2p_xfer *x;
	struct both p;

	(void)state;
	begin(&p, T_MMAP, "deaf", "");
	assert_ok(epf_p2p_prepare(p.ep, p.conn, EPF_P2P_OP_WRITE, NULL, 0, NULL, &x));
	target_stop(&p.t);
	while (epf_p2p_notify(p.ep, p.conn, note, sizeof(note), 100 * MILLISECOND) == 0)
		;
	assert_ok(epf_p2p_post(x, note, sizeof(note)));
	found = look_for("deaf", EPF_STATS_CONN_NOTE);
	must_name(&found, &p);
	assert_int_equal(found.under_way, 1);
	kill(p.t.pid, SIGCONT);
	assert_ok(epf_p2p_wait(x, 0));
	look_for_none();
	epf_p2p_xfer_free(x);
	both_end(&p);
}

/* Over a NIC: the engine of a stopped peer takes and acknowledges nothing. */
static void test_nic(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);
	struct epf_p2p_xfer_options o = { .size = sizeof(o), .deadline_ns = 100 * SECOND };
	struct endpoint_wait found;
	struct epf_p2p_xfer *x[64];
	struct both p;

	(void)state;
	begin(&p, T_MMAP, "far-sleeper", "nic=tcp p2p-local=no peer-timeout=60s");
	target_stop(&p.t);
	for (unsigned i = 0; i < 64; i++) {
		assert_ok(epf_p2p_prepare(p.ep, p.conn, EPF_P2P_OP_READ,
					  &(struct epf_p2p_vector){ p.region, p.import, &block, 1 },
					  1, &o, &x[i]));
		assert_ok(epf_p2p_post(x[i], NULL, 0));
	}
	found = look_for("far-sleeper", EPF_STATS_CONN_NIC);
	must_name(&found, &p);
	kill(p.t.pid, SIGCONT);
	for (unsigned i = 0; i < 64; i++) {
		(void)epf_p2p_wait(x[i], 100 * SECOND);
		epf_p2p_xfer_free(x[i]);
	}
	look_for_none();
	both_end(&p);
}

/* A GPU that does not end its copies holds up this endpoint's transfer, and the withdrawal of its peer. */
static void test_gpu(void **state)
{
	struct epf_p2p_block block = epf_p2p_block(0, 0, TARGET_BYTES);
	struct endpoint_wait found;
	struct epf_p2p_xfer *x;
	struct both p;
	int32_t rc;

	(void)state;
	begin(&p, T_GPU, "withdrawer", "gpu-backend=fake");
	epf_copy_fake_hold(2);
	assert_ok(epf_p2p_prepare(p.ep, p.conn, EPF_P2P_OP_WRITE,
				  &(struct epf_p2p_vector){ p.region, p.import, &block, 1 }, 1,
				  NULL, &x));
	assert_ok(epf_p2p_post(x, NULL, 0));
	found = look_for("withdrawer", EPF_STATS_CONN_GPU);
	assert_string_equal(found.endpoint, "the-waiter");
	assert_int_equal(found.bytes_left, TARGET_BYTES);
	target_tell(&p.t, T_WITHDRAW);
	found = look_for("the-waiter", EPF_STATS_CONN_RELEASE);
	assert_string_equal(found.endpoint, "withdrawer");
	assert_int_equal(found.pid, getpid());
	epf_copy_fake_hold(0);
	assert_int_equal(target_answer(&p.t, &rc, sizeof(rc)), sizeof(rc));
	assert_int_equal(rc, 0);
	(void)epf_p2p_wait(x, 0);
	epf_p2p_xfer_free(x);
	look_for_none();
	both_end(&p);
}

/* What compression saved is in the statistics. */
static void test_compress(void **state)
{
	struct endpoints *e;
	struct both p;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it sees no order through another process, whose thread expands here */
#endif
	if (!epf_p2p_codec_exists())
		skip();
	begin(&p, T_MMAP, "far-packer", "p2p-local=no nic=emu p2p-compress=split");
	memset(p.bytes, 0x3f, TARGET_BYTES);
	assert_ok(epf_p2p_set_float(p.ep, p.region, EPF_P2P_FP32));
	assert_ok(epf_p2p_write(p.ep, p.conn, p.region, 0, p.import, 0, TARGET_BYTES, 0));
	for (bool is_there = false; !is_there;) {
		struct waits *w = waits_new();

		assert_true(waits_add_dir(w, dir) >= 0);
		assert_int_equal(waits_refresh(w, epf_now_ns(), 1), 0);
		e = endpoints_read(w);
		is_there =
			e->packed_from && e->compressing == 2; /* the first window is compressed */
		if (is_there) {
			assert_int_equal(e->packed_from, TARGET_BYTES);
			assert_true(e->packed_to > 0 && e->packed_to < TARGET_BYTES);
			assert_int_equal(e->compress_off, 0);
		}
		endpoints_free(e);
		waits_free(w);
		usleep(5000);
	}
	both_end(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answer),   cmocka_unit_test(test_notes),
		cmocka_unit_test(test_nic),      cmocka_unit_test(test_gpu),
		cmocka_unit_test(test_compress),
	};
	int failed;

	snprintf(dir, sizeof(dir), "/tmp/epf-p2p-why-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	snprintf(dir_setting, sizeof(dir_setting), "stats-dir=%s", dir);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	(void)rmdir(dir); /* endpoints that were closed have left nothing */
	return failed;
}
