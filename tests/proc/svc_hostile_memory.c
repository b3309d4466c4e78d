/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hostile clients, part 2: wrong descriptors, wrong lengths, and memory that is punched, withdrawn, or dies with its process under traffic
 * of its job.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "tests/proc/svc_hostile.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { PAGES = 16, PAGE = 4096, FDS_MOST = 10 };

/* ---- descriptors ---- */

struct offer {
	struct epf_svc_region region;
	int fds[FDS_MOST];
	unsigned n_fds;         /* sent */
	unsigned announced_fds; /* in the header */
};

/* Sends one REGION on a separate connection. Returns true if it was refused: by an answer with a reason, or by closing. */
static bool refused(const struct hostile *h, const struct offer *o, const char *what)
{
	struct epf_svc_head head = { .type = EPF_SVC_REGION,
				     .fds = (uint16_t)o->announced_fds,
				     .seq = 1 };
	struct epf_svc_signals signals = { .count = 16 };
	struct epf_svc_signals_reply reply;
	uint8_t *body = NULL;
	size_t len = 0;
	struct raw c;
	int rc;

	HOSTILE_CHECK(raw_connect(&c, h->path[0], 0) == 0);
	HOSTILE_CHECK(raw_call(&c, EPF_SVC_SIGNALS, &signals, NULL, 0, &reply) == 0);
	HOSTILE_CHECK(epf_svc_encode(EPF_SVC_REGION, false, c.minor, &o->region, &body, &len) == 0);
	head.bytes = (uint32_t)len;
	rc = raw_frame(&c, &head, body, len, o->fds, o->n_fds);
	if (!rc)
		rc = raw_recv(&c, o->announced_fds > o->n_fds ? 2000 : RAW_TIMEOUT_MS);
	/* Too few descriptors: the daemon may not answer before its deadline for a message, or close. */
	if (rc == 0 && c.head.status == 0)
		fprintf(stderr, "%s: was accepted\n", what);
	else if (rc == 0 && (!c.head.reason || !c.text[0]))
		fprintf(stderr, "%s: refused with %d without a reason\n", what, c.head.status);
	else if (rc != 0 && rc != -ECONNRESET && rc != -EPIPE)
		fprintf(stderr, "%s: no answer: %d\n", what, rc);
	else
		what = NULL;
	free(body);
	raw_close(&c);
	return !what;
}

static void offer_one(const struct hostile *h, int fd, uint64_t offset, uint64_t bytes,
		      const char *what, unsigned *bad)
{
	struct offer o = { .region = { .offset = offset, .bytes = bytes, .access = 3 },
			   .fds = { fd },
			   .n_fds = 1,
			   .announced_fds = 1 };

	if (fd < 0) {
		fprintf(stderr, "%s: cannot be made here: %s\n", what, strerror(errno));
		*bad += 1;
		return;
	}
	*bad += !refused(h, &o, what);
}

/* Descriptors of the wrong kind. */
static void kinds(const struct hostile *h, unsigned *bad)
{
	char name[] = "/tmp/epf-test-hostile-XXXXXX", self[64];
	int file = mkstemp(name), pipes[2], pair[2], good = raw_memfd(PAGES * PAGE, F_SEAL_SHRINK);
	int fd[16], n = 0;

	HOSTILE_CHECK(file >= 0 && unlink(name) == 0 && ftruncate(file, PAGES * PAGE) == 0);
	HOSTILE_CHECK(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	snprintf(self, sizeof(self), "/proc/self/fd/%d", good);
	offer_one(h, file, 0, PAGES * PAGE, "a regular file", bad);
	offer_one(h, pipes[0], 0, PAGE, "a pipe's reading end", bad);
	offer_one(h, pipes[1], 0, PAGE, "a pipe's writing end", bad);
	offer_one(h, pair[0], 0, PAGE, "a socket", bad);
	offer_one(h, fd[n++] = open("/dev/null", O_RDWR), 0, PAGE, "/dev/null", bad);
	offer_one(h, fd[n++] = open("/dev/zero", O_RDWR), 0, PAGE, "/dev/zero", bad);
	offer_one(h, fd[n++] = open("/tmp", O_RDONLY | O_DIRECTORY), 0, PAGE, "a directory", bad);
	offer_one(h, fd[n++] = open("/proc/self/maps", O_RDONLY), 0, PAGE, "a file of /proc", bad);
	offer_one(h, fd[n++] = eventfd(0, EFD_CLOEXEC), 0, PAGE, "an eventfd", bad);
	offer_one(h, fd[n++] = open(self, O_RDONLY), 0, PAGE, "a memfd opened for reading", bad);
	offer_one(h, fd[n++] = open(self, O_PATH), 0, PAGE, "a memfd opened as a path", bad);
	offer_one(h, fd[n++] = raw_memfd(PAGES * PAGE, 0), 0, PAGE, "an unsealed memfd", bad);
	offer_one(h, fd[n++] = raw_memfd(PAGES * PAGE, F_SEAL_GROW), 0, PAGE,
		  "a memfd sealed against growing only", bad);
	offer_one(h, fd[n++] = raw_memfd(PAGES * PAGE, F_SEAL_SHRINK | F_SEAL_WRITE), 0, PAGE,
		  "a memfd sealed against writing", bad);
	while (n)
		close(fd[--n]);
	close(file);
	close(good);
	for (int i = 0; i < 2; i++) {
		close(pipes[i]);
		close(pair[i]);
	}
}

/* Wrong numbers of descriptors, sent and announced. */
static void numbers(const struct hostile *h, unsigned *bad)
{
	static const struct {
		unsigned sent, announced;
		const char *what;
	} how[] = { { 0, 0, "no descriptor" },
		    { 2, 2, "two descriptors" },
		    { 4, 4, "four descriptors" },
		    { 0, 1, "one announced, none sent" },
		    { 1, 0, "none announced, one sent" },
		    { 1, 2, "two announced, one sent" },
		    { 3, 1, "one announced, three sent" },
		    { 10, 1, "one announced, ten sent" },
		    { 1, 65535, "65535 announced, one sent" } };

	int fd = raw_memfd(PAGES * PAGE, F_SEAL_SHRINK);

	for (unsigned i = 0; i < sizeof(how) / sizeof(how[0]); i++) {
		struct offer o = { .region = { .bytes = PAGE, .access = 3 },
				   .n_fds = how[i].sent,
				   .announced_fds = how[i].announced };

		for (unsigned k = 0; k < FDS_MOST; k++)
			o.fds[k] = fd;
		*bad += !refused(h, &o, how[i].what);
	}
	close(fd);
}

void hostile_descriptors(const struct hostile *h)
{
	int fd = raw_memfd(PAGES * PAGE, F_SEAL_SHRINK);
	int huge = raw_memfd((size_t)1 << 40, F_SEAL_SHRINK);
	int empty = raw_memfd(0, F_SEAL_SHRINK);
	unsigned bad = 0;

	kinds(h, &bad);
	numbers(h, &bad);
	offer_one(h, fd, 0, (PAGES + 1) * PAGE, "a memfd shorter than said", &bad);
	offer_one(h, fd, 0, 0, "no bytes", &bad);
	offer_one(h, fd, 0, UINT64_MAX, "all bytes there are", &bad);
	offer_one(h, fd, PAGES * PAGE, PAGE, "an offset at the end", &bad);
	offer_one(h, fd, UINT64_MAX - PAGE + 1, 2 * PAGE, "an offset that wraps", &bad);
	offer_one(h, fd, UINT64_C(1) << 63, PAGE, "a negative offset", &bad);
	offer_one(h, fd, PAGES * PAGE - 100, 101, "one byte past the end from inside a page", &bad);
	offer_one(h, huge, 0, UINT64_C(1) << 40, "more than user-bytes", &bad);
	offer_one(h, empty, 0, PAGE, "an empty memfd", &bad);
	close(fd);
	close(huge);
	close(empty);
	HOSTILE_CHECK(bad == 0);
}

/* ---- memory that changes under traffic ---- */

/* Pushes as much as fits of PUTs both ways and GETs. */
static void traffic(struct raw_rank *r, uint64_t *random, unsigned commands)
{
	struct epf_ring_producer *p = &r->ring[0].producer;

	while (commands-- && epf_ring_room(p, 2) >= 2) {
		uint64_t x = job_random(random);
		struct epf_op op = { .op = x & 1 ? EPF_OP_PUT_SIGNAL : EPF_OP_GET,
				     .rank = x >> 1 & 1,
				     .add = 1,
				     .length = 4096,
				     .local_offset = (x >> 8 & 7) * 4096,
				     .remote_offset = (x >> 16 & 7) * 4096 };

		if (op.op == EPF_OP_PUT_SIGNAL)
			op.signal = x >> 24 & 15;
		epf_ring_push(p, epf_op_pack_narrow(&op));
	}
	raw_rank_kick(r);
}

void hostile_punch(const struct hostile *h)
{
	uint64_t random = h->seed ^ 0x9a, end = epf_now_ns() + h->count * 1000000, holes = 0;
	struct raw_rank r[2];
	uint64_t retired;

	hostile_job(h, r, "hostile-punch", 1);
	/* The seal prevents shrinking. */
	HOSTILE_CHECK(ftruncate(r[0].mem_fd[0], 0) == -1 && errno == EPERM);
	while (epf_now_ns() < end) {
		uint64_t x = job_random(&random);
		struct raw_rank *one = &r[x & 1];
		off_t at = (off_t)((x >> 1) % PAGES * PAGE);

		traffic(&r[0], &random, 16);
		traffic(&r[1], &random, 16);
		if (x & 2)
			HOSTILE_CHECK(fallocate(one->mem_fd[0],
						FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at,
						PAGE) == 0);
		else
			HOSTILE_CHECK(madvise(one->mem[0] + at, PAGE, MADV_REMOVE) == 0);
		holes++;
	}
	retired = r[0].ring[0].producer.pushed;
	HOSTILE_CHECK(raw_rank_retired(&r[0], 0, retired, job_ms(60000)) == 0);
	HOSTILE_CHECK(r[0].ring[0].shm->done.failed == 0);
	printf("# hostile: %llu holes punched under %llu commands\n", (unsigned long long)holes,
	       (unsigned long long)retired);
	hostile_end(r, false);
}

/* ---- dying and withdrawing ---- */

static void traffic_for(struct raw_rank r[2], uint64_t *random, uint64_t ns)
{
	uint64_t end = epf_now_ns() + ns;

	while (epf_now_ns() < end) {
		traffic(&r[0], random, 64);
		traffic(&r[1], random, 64);
		sched_yield();
	}
}

void hostile_dies(const struct hostile *h)
{
	uint64_t random = h->seed ^ 0xdead;

	for (uint64_t i = 0; i < h->count; i++) {
		pid_t pid;
		int status = 0;

		fflush(NULL);
		pid = fork();
		HOSTILE_CHECK(pid >= 0);
		if (pid == 0) {
			struct hostile mine = *h;
			struct raw_rank r[2];

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			mine.seed += 1000 + i;
			hostile_job(&mine, r, "hostile-dies", 1);
			traffic_for(r, &random, 5000000 + job_random(&random) % 20000000);
			if (i % 2 == 0)
				kill(getpid(), SIGKILL);
			/* One rank's connection ends, the other's goes on. */
			close(r[i / 2 % 2].c.fd);
			r[i / 2 % 2].c.fd = -1;
			traffic_for(r, &random, 20000000);
			_exit(0);
		}
		HOSTILE_CHECK(waitpid(pid, &status, 0) == pid);
		HOSTILE_CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL && i % 2 == 0
						  : WEXITSTATUS(status) == 0 && i % 2 == 1);
	}
	printf("# hostile: %llu clients died under traffic\n", (unsigned long long)h->count);
}

void hostile_withdraws(const struct hostile *h)
{
	uint64_t random = h->seed ^ 0x3d, failed = 0;

	for (uint64_t i = 0; i < h->count; i++) {
		struct epf_svc_region_close m = { .region = 0 };
		struct epf_svc_region_close_reply reply = { 0 };
		uint64_t deadline = epf_now_ns() + (uint64_t)job_ms(60000) * 1000000;
		struct hostile mine = *h;
		struct raw_rank r[2];

		mine.seed += 5000 + i;
		hostile_job(&mine, r, "hostile-withdraws", 1);
		traffic_for(r, &random, 5000000);
		while (!reply.done) {
			HOSTILE_CHECK(epf_now_ns() < deadline);
			HOSTILE_CHECK(raw_call(&r[i & 1].c, EPF_SVC_REGION_CLOSE, &m, NULL, 0,
					       &reply) == 0);
			traffic(&r[0], &random, 64);
			traffic(&r[1], &random, 64);
		}
		for (unsigned k = 0; k < 2; k++) {
			HOSTILE_CHECK(raw_rank_retired(&r[k], 0, r[k].ring[0].producer.pushed,
						       job_ms(60000)) == 0);
			failed += r[k].ring[0].shm->done.failed;
		}
		HOSTILE_CHECK(failed > 0); /* later commands to it were refused */
		hostile_end(r, true);
	}
	printf("# hostile: %llu regions withdrawn under traffic, %llu commands refused or failed\n",
	       (unsigned long long)h->count, (unsigned long long)failed);
}
