/* SPDX-License-Identifier: Apache-2.0 */
/* See nccl_play.h. The calls and their order are those of NCCL's network transport; the ranks exchange handles through shared memory. */
#include "tests/proc/nccl_play_priv.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

_Thread_local const char *play_doing = "";
static struct board *shared; /* for the log, which is told of no rank */

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

void play_quit(const struct rank *r, const char *why)
{
	say(r, "%s", why);
	_exit(1);
}

int play_failed(const struct rank *r, const char *call, int rc)
{
	if (rc && r->p->killed < 0)
		say(r, "%s returned %d", call, rc);
	return rc;
}

void play_keep_alive(struct rank *r, bool progressed)
{
	if (progressed) {
		r->progress_s = now_s();
		return;
	}
	if (now_s() - r->progress_s > HANG_S) {
		say(r, "no progress in %s", play_doing);
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

static int listen_all(struct rank *r)
{
	bool self_listens = false;

	play_doing = "listen";
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
		if (play_failed(r, "listen", rc))
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

	play_doing = "connect and accept";
	while (left) {
		unsigned before = left;

		for (unsigned i = 0; i < r->sides; i++) {
			struct side *s = &r->side[i];
			int rc;

			if (s->comm)
				continue;
			rc = is_recv(r, s) ? CALL(r, accept, s->listener, &s->comm, NULL)
					   : connect_one(r, s);
			if (play_failed(r, is_recv(r, s) ? "accept" : "connect", rc))
				return rc;
			left -= s->comm != NULL;
		}
		play_keep_alive(r, left < before);
	}
	return 0;
}

static int register_all(struct rank *r)
{
	size_t bytes = slot_bytes(r->p) * STEPS * r->p->parts;

	play_doing = "regMr";
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
		if (play_failed(r, "regMr", rc))
			return rc;
	}
	return 0;
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
	if (!rc && pthread_create(&thread, NULL, play_messages, r) == 0) {
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
	play_device(me);
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
