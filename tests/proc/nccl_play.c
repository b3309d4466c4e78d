/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl_play.h. The calls and their order are those of NCCL's network transport; the ranks exchange handles through shared memory. */
#include "tests/proc/nccl_play.h"

#include "tools/nccl/abi.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 8, COMMS = 4, HANG_S = 120, BASE_TAG = 100 };

/* What NCCL's own bootstrap carries. */
struct board {
	uint8_t handle[COMMS][PLAY_CHANNELS][PLAY_RANKS][PLAY_RANKS][EPF_NCCL_HANDLE_BYTES];
	uint32_t have[COMMS][PLAY_CHANNELS][PLAY_RANKS][PLAY_RANKS]; /* how often it was written */
	uint32_t killed_pid;
	uint32_t named; /* lines of NCCL's log that name that process */
};

/* One direction between two ranks, at one of them. */
struct side {
	unsigned from, to, channel;
	void *comm, *listener;
	uint8_t handle[EPF_NCCL_HANDLE_BYTES];
	void *buffer;  /* NCCL's address of it */
	uint8_t *seen; /* where its bytes are */
	void *mr;
	uint64_t next
		[PLAY_PARTS]; /* send: messages begun, of each part; receive: requests posted, [0] */
	uint64_t over[PLAY_PARTS];
	void *request[STEPS][PLAY_PARTS];
};

struct rank {
	const struct play *p;
	struct board *board;
	unsigned me, comm, round;
	const struct epf_nccl_net_v10 *v10;
	const struct epf_nccl_net_v12 *net; /* 11 is the same but for the properties */
	void *context;
	struct side *side;
	unsigned sides;
	uint64_t progress_s;
};

static _Thread_local const char *doing = "";
static struct board *shared; /* for the log, which is told of no rank */

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 27;
	x *= UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static uint64_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec;
}

static void say(const struct rank *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static void say(const struct rank *r, const char *format, ...)
{
	char text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "rank %u: %s\n", r->me, text);
}

static void quit(const struct rank *r, const char *why)
{
	say(r, "%s", why);
	_exit(1);
}

/* The call that fails: with a killed rank it is what is waited for. */
static int failed(const struct rank *r, const char *call, int rc)
{
	if (rc && r->p->killed < 0)
		say(r, "%s returned %d", call, rc);
	return rc;
}

static void keep_alive(struct rank *r, bool progressed)
{
	if (progressed) {
		r->progress_s = now_s();
		return;
	}
	if (now_s() - r->progress_s > HANG_S) {
		say(r, "no progress in %s", doing);
		_exit(3);
	}
	usleep(50);
}

static void ncclish_log(int level, unsigned long subsystems, const char *file, int line,
			const char *format, ...)
{
	char text[700];
	va_list args;

	(void)subsystems;
	(void)file;
	(void)line;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (level <= EPF_NCCL_LOG_WARN) {
		char name[32];

		fprintf(stderr, "NCCL WARN %s\n", text);
		snprintf(name, sizeof(name), "process %u on host",
			 __atomic_load_n(&shared->killed_pid, __ATOMIC_RELAXED));
		if (strstr(text, name))
			__atomic_add_fetch(&shared->named, 1, __ATOMIC_RELAXED);
	}
	if (strchr(text, '\n'))
		_exit(4); /* one line */
}

static int load(struct rank *r)
{
	char name[32];
	void *table;

	snprintf(name, sizeof(name), "ncclNetPlugin_v%u", r->p->version);
	table = play_table(r->p->plugin, name);
	if (r->p->version == 10)
		r->v10 = table;
	else
		r->net = table;
	return table ? 0 : -1;
}

/* What is the same in both. */
#define CALL(r, function, ...) \
 ((r)->v10 ? (r)->v10->function(__VA_ARGS__) : (r)->net->function(__VA_ARGS__))

static int start(struct rank *r)
{
	struct epf_nccl_config config = { .traffic_class = -1 };
	struct epf_nccl_properties_v12 p = { 0 };
	int n = 0, rc;

	rc = r->v10 ? r->v10->init(ncclish_log, NULL)
		    : r->net->init(&r->context, 17, &config, ncclish_log, NULL);
	if (!rc)
		rc = CALL(r, devices, &n);
	if (rc || n < 1)
		return -1;
	/* The head is the same in all versions, and the newest is the longest. */
	rc = r->v10 ? r->v10->get_properties(0, (void *)&p) : r->net->get_properties(0, &p);
	return rc || strcmp(p.name, "epf") != 0 || p.max_recvs < (int)r->p->parts ||
	       !(p.ptr_support & PLAY_KIND);
}

static bool is_pair(const struct play *p, unsigned from, unsigned to)
{
	return p->all ? from != to || p->ranks == 1 : to == (from + 1) % p->ranks;
}

static void make_sides(struct rank *r)
{
	const struct play *p = r->p;

	r->side = calloc((size_t)2 * p->ranks * p->channels, sizeof(*r->side));
	for (unsigned c = 0; c < p->channels; c++)
		for (unsigned o = 0; o < p->ranks; o++) {
			if (is_pair(p, o, r->me))
				r->side[r->sides++] =
					(struct side){ .from = o, .to = r->me, .channel = c };
			if (is_pair(p, r->me, o))
				r->side[r->sides++] =
					(struct side){ .from = r->me, .to = o, .channel = c };
		}
}

/* A rank that sends to itself has two sides of the same direction: the one with a listener receives. */
static bool is_recv(const struct rank *r, const struct side *s)
{
	return s->listener || (s->to == r->me && s->from != r->me);
}

static int listen_all(struct rank *r)
{
	bool self_listens = false;

	doing = "listen";
	for (unsigned i = 0; i < r->sides; i++) {
		struct side *s = &r->side[i];
		uint8_t *at = r->board->handle[r->comm][s->channel][s->from][s->to];
		int rc;

		if (s->from == s->to)
			self_listens = !self_listens;
		if (s->to != r->me || (s->from == s->to && !self_listens))
			continue;
		rc = r->v10 ? r->v10->listen(0, s->handle, &s->listener)
			    : r->net->listen(r->context, 0, s->handle, &s->listener);
		if (failed(r, "listen", rc))
			return rc;
		memcpy(at, s->handle, sizeof(s->handle));
		__atomic_add_fetch(&r->board->have[r->comm][s->channel][s->from][s->to], 1,
				   __ATOMIC_RELEASE);
	}
	return 0;
}

static int connect_one(struct rank *r, struct side *s)
{
	struct epf_nccl_config config = { .traffic_class = -1 };
	uint32_t *have = &r->board->have[r->comm][s->channel][s->from][s->to];

	if (__atomic_load_n(have, __ATOMIC_ACQUIRE) <= r->round)
		return 0;
	/* NCCL gives its own copy, the same one each time. */
	memcpy(s->handle, r->board->handle[r->comm][s->channel][s->from][s->to], sizeof(s->handle));
	return r->v10 ? r->v10->connect(0, &config, s->handle, &s->comm, NULL)
		      : r->net->connect(r->context, 0, s->handle, &s->comm, NULL);
}

/* Polls both kinds in turn, as NCCL's service thread does. */
static int connect_all(struct rank *r)
{
	unsigned left = r->sides;

	doing = "connect and accept";
	while (left) {
		unsigned before = left;

		for (unsigned i = 0; i < r->sides; i++) {
			struct side *s = &r->side[i];
			int rc;

			if (s->comm)
				continue;
			rc = is_recv(r, s) ? CALL(r, accept, s->listener, &s->comm, NULL)
					   : connect_one(r, s);
			if (failed(r, is_recv(r, s) ? "accept" : "connect", rc))
				return rc;
			left -= s->comm != NULL;
		}
		keep_alive(r, left < before);
	}
	return 0;
}

static size_t slot_bytes(const struct play *p)
{
	return ((size_t)p->most_bytes + 63) & ~(size_t)63;
}

/* Slot of message k: how far from the start of the buffer. */
static size_t slot_at(const struct play *p, uint64_t k, unsigned part)
{
	return (k % STEPS * p->parts + part) * slot_bytes(p);
}

static uint8_t *slot_of(const struct play *p, const struct side *s, uint64_t k, unsigned part)
{
	return s->seen + slot_at(p, k, part);
}

static void *address_of(const struct play *p, const struct side *s, uint64_t k, unsigned part)
{
	return (uint8_t *)s->buffer + slot_at(p, k, part);
}

static int register_all(struct rank *r)
{
	size_t bytes = slot_bytes(r->p) * STEPS * r->p->parts;

	doing = "regMr";
	for (unsigned i = 0; i < r->sides; i++) {
		struct side *s = &r->side[i];
		void *twice;
		int rc;

		if (play_memory(bytes, &s->buffer, &s->seen))
			return -1;
		rc = CALL(r, reg_mr, s->comm, s->buffer, bytes, PLAY_KIND, &s->mr);
		if (!rc)
			rc = CALL(r, reg_mr, s->comm, s->buffer, bytes, PLAY_KIND, &twice);
		if (!rc)
			rc = CALL(r, dereg_mr, s->comm, twice);
		if (failed(r, "regMr", rc))
			return rc;
	}
	return 0;
}

/* ---- messages: what and how long follows from who sends which ---- */

static uint64_t key_of(const struct rank *r, const struct side *s, uint64_t k, unsigned part)
{
	uint64_t x = r->p->seed * 31 + r->comm;

	x = mix(x * 64 + s->from * PLAY_RANKS + s->to);
	return mix(x + ((uint64_t)s->channel << 32) + k * PLAY_PARTS + part);
}

static uint32_t length_of(const struct rank *r, const struct side *s, uint64_t k, unsigned part)
{
	uint64_t key = key_of(r, s, k, part);

	if (key % 7 == 0)
		return 0;
	if (key % 5 == 0)
		return r->p->most_bytes;
	return (uint32_t)(mix(key) % (r->p->most_bytes + 1));
}

static void fill(uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		memcpy(at + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

static bool is_right(const uint8_t *at, uint32_t bytes, uint64_t key)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = mix(key + i);

		if (memcmp(at + i, &v, bytes - i < 8 ? bytes - i : 8) != 0)
			return false;
	}
	return true;
}

/* Parts are sent in an order that changes: the receiver's tags sort them. */
static int step_send(struct rank *r, struct side *s, bool *moved)
{
	const struct play *p = r->p;

	for (unsigned n = 0; n < p->parts; n++) {
		unsigned part = (unsigned)((n + mix(s->next[0] + s->channel)) % p->parts);
		uint64_t k = s->next[part];
		int done, rc;

		if (s->over[part] < s->next[part]) {
			void **request = &s->request[s->over[part] % STEPS][part];
			int bytes = -1;

			rc = CALL(r, test, *request, &done, &bytes);
			if (rc)
				return failed(r, "test of a send", rc);
			if (done) {
				if (bytes != (int)length_of(r, s, s->over[part], part))
					quit(r, "a send of the wrong length");
				memset(slot_of(p, s, s->over[part], part), 0xee, 8);
				s->over[part]++;
				*moved = true;
			}
		}
		if (k < p->messages && k < s->over[part] + STEPS) {
			uint32_t bytes = length_of(r, s, k, part);
			uint8_t *at = slot_of(p, s, k, part);
			void *request = NULL;

			fill(at, bytes, key_of(r, s, k, part));
			rc = CALL(r, isend, s->comm, address_of(p, s, k, part), bytes,
				  BASE_TAG + (int)part, s->mr, NULL, &request);
			if (rc)
				return failed(r, "isend", rc);
			if (request) {
				s->request[k % STEPS][part] = request;
				s->next[part]++;
				*moved = true;
			}
		}
	}
	return 0;
}

static int post(struct rank *r, struct side *s)
{
	const struct play *p = r->p;
	void *data[PLAY_PARTS], *mrs[PLAY_PARTS], *profiles[PLAY_PARTS] = { NULL };
	size_t bytes[PLAY_PARTS];
	int tags[PLAY_PARTS];
	/* NCCL's hint that it does not need to know when this is over (LL protocols). */
	void *request = p->parts == 1 && s->channel % 2 ? (void *)1 : NULL;
	int rc;

	for (unsigned i = 0; i < p->parts; i++) {
		data[i] = address_of(p, s, s->next[0], i);
		memset(slot_of(p, s, s->next[0], i), 0xdd, p->most_bytes);
		mrs[i] = s->mr;
		bytes[i] = p->most_bytes;
		tags[i] = BASE_TAG + (int)i;
	}
	rc = CALL(r, irecv, s->comm, (int)p->parts, data, bytes, tags, mrs, profiles, &request);
	if (rc)
		return failed(r, "irecv", rc);
	if (request) {
		s->request[s->next[0] % STEPS][0] = request;
		s->next[0]++;
	}
	return 0;
}

static int step_recv(struct rank *r, struct side *s, bool *moved)
{
	const struct play *p = r->p;
	int bytes[PLAY_PARTS] = { 0 }, done, rc;
	uint64_t k = s->over[0], posted = s->next[0];

	if (s->next[0] < p->messages && s->next[0] < s->over[0] + STEPS) {
		rc = post(r, s);
		if (rc)
			return rc;
		*moved |= s->next[0] > posted;
	}
	if (k == s->next[0])
		return 0;
	rc = CALL(r, test, s->request[k % STEPS][0], &done, bytes);
	if (rc)
		return failed(r, "test of a receive", rc);
	if (!done)
		return 0;
	for (unsigned i = 0; i < p->parts; i++) {
		uint32_t want = length_of(r, s, k, i);
		void *data = address_of(p, s, k, i), *request = NULL;
		int n = (int)want;

		if (bytes[i] != (int)want)
			quit(r, "a message of the wrong length");
		rc = CALL(r, iflush, s->comm, 1, &data, &n, &s->mr, &request);
		if (rc || request)
			quit(r, "iflush");
		if (!is_right(slot_of(p, s, k, i), want, key_of(r, s, k, i)))
			quit(r, "wrong bytes");
	}
	s->over[0]++;
	*moved = true;
	return 0;
}

static bool is_over(const struct rank *r, const struct side *s)
{
	unsigned n = is_recv(r, s) ? 1 : r->p->parts;

	for (unsigned i = 0; i < n; i++) {
		if (s->over[i] < r->p->messages)
			return false;
	}
	return true;
}

static void *progress(void *arg)
{
	struct rank *r = arg;
	unsigned left = r->sides;

	doing = "messages";
	r->progress_s = now_s();
	while (left) {
		bool moved = false;

		left = 0;
		for (unsigned i = 0; i < r->sides; i++) {
			struct side *s = &r->side[i];
			int rc = is_recv(r, s) ? step_recv(r, s, &moved) : step_send(r, s, &moved);

			if (rc)
				return (void *)(intptr_t)rc;
			left += !is_over(r, s);
			if (r->p->killed == (int)r->me && s->over[0] == r->p->messages / 2)
				raise(SIGKILL);
		}
		keep_alive(r, moved);
	}
	return NULL;
}

static void close_all(struct rank *r)
{
	for (unsigned i = 0; i < r->sides; i++) {
		struct side *s = &r->side[i];

		if (s->mr)
			CALL(r, dereg_mr, s->comm, s->mr);
		if (s->comm && is_recv(r, s))
			CALL(r, close_recv, s->comm);
		else if (s->comm)
			CALL(r, close_send, s->comm);
		if (s->listener)
			CALL(r, close_listen, s->listener);
		if (s->buffer)
			play_memory_free(s->buffer, slot_bytes(r->p) * STEPS * r->p->parts);
	}
	free(r->side);
	if (r->net)
		r->net->finalize(r->context);
}

static void *communicate(void *arg)
{
	struct rank *r = arg;
	pthread_t thread;
	void *result = NULL;
	int rc;

	r->progress_s = now_s();
	make_sides(r);
	rc = start(r);
	if (!rc)
		rc = listen_all(r);
	if (!rc)
		rc = connect_all(r);
	if (!rc)
		rc = register_all(r);
	if (!rc && pthread_create(&thread, NULL, progress, r) == 0) {
		pthread_join(thread, &result);
		rc = (int)(intptr_t)result;
	}
	close_all(r);
	return (void *)(intptr_t)rc;
}

static int run_round(const struct play *p, struct board *board, unsigned me, unsigned round)
{
	struct rank ranks[COMMS];
	pthread_t thread[COMMS];
	int rc = 0;

	for (unsigned c = 0; c < p->comms; c++) {
		ranks[c] = (struct rank){
			.p = p, .board = board, .me = me, .comm = c, .round = round
		};
		if (load(&ranks[c]))
			return 1;
		if (pthread_create(&thread[c], NULL, communicate, &ranks[c]))
			return 1;
	}
	for (unsigned c = 0; c < p->comms; c++) {
		void *result;

		pthread_join(thread[c], &result);
		rc |= (int)(intptr_t)result;
	}
	return rc;
}

static int rank_main(const struct play *p, struct board *board, unsigned me)
{
	int rc = 0;

	shared = board;
	if (p->killed == (int)me)
		__atomic_store_n(&board->killed_pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
	for (unsigned i = 0; p->env && p->env[i]; i++)
		putenv((char *)(uintptr_t)p->env[i]);
	for (unsigned round = 0; !rc && round <= p->again; round++)
		rc = run_round(p, board, me, round);
	if (rc)
		return p->killed >= 0 ? PLAY_ERROR_SEEN : 1;
	return 0;
}

int play_run(const struct play *p, int status[PLAY_RANKS], unsigned *named)
{
	struct board *board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid[PLAY_RANKS];
	int rc = 0;

	if (board == MAP_FAILED)
		return -1;
	for (unsigned r = 0; r < p->ranks; r++) {
		pid[r] = fork();
		if (pid[r] == 0)
			exit(rank_main(p, board, r));
		if (pid[r] < 0)
			rc = -1;
	}
	for (unsigned r = 0; r < p->ranks; r++) {
		int s = 0;

		if (pid[r] < 0 || waitpid(pid[r], &s, 0) != pid[r])
			continue;
		status[r] = WIFEXITED(s) ? WEXITSTATUS(s) : 256 + WTERMSIG(s);
	}
	if (named)
		*named = board->named;
	munmap(board, sizeof(*board));
	return rc;
}
