/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Daemons, jobs and limits for the C programs of the rxe guest; see rig.h.
 */
#include "tests/rxe/rig.h"
#include "fabric/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { BOOT_S = 60, REACH_MS = 60000, NOTIFIED_MS = 40000, ROUNDS_BESIDE = 5 };

struct rig rig;

const char *const rig_patience[] = { "service-timeout=60s", NULL };

static void print_logs(void)
{
	for (unsigned i = 0; i < rig.daemons.n; i++) {
		char *log = daemons_log(&rig.daemons, i);
		size_t len = log ? strlen(log) : 0;

		fprintf(stderr, "end of node%u's log:\n%s\n", i,
			log ? log + (len > 2500 ? len - 2500 : 0) : "(none)");
		free(log);
	}
}

static void print_ranks(const char *name, const struct job *job)
{
	for (unsigned i = 0; job->page && i < job->plan.world; i++) {
		const struct job_report *rep = &job->page->rank[i];

		fprintf(stderr,
			"%s: rank %u in step %s, %llu rounds, told %lld, saw lost %#llx: %s%s\n",
			name, i, job_step_name[job_get(&rep->step) % JOB_STEPS],
			(unsigned long long)job_get(&rep->rounds), (long long)rep->rc,
			(unsigned long long)rep->counter[RIG_C_LOST], rep->text, rep->failure);
	}
}

void rig_die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	print_ranks("job", &rig.job);
	print_ranks("beside", &rig.beside);
	print_logs();
	job_end(&rig.job);
	job_end(&rig.beside);
	daemons_stop(&rig.daemons);
	exit(1);
}

bool rig_is_verbs(void)
{
	return strcmp(rig.nic, "verbs") == 0;
}

static void set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void set(const char *fmt, ...)
{
	va_list ap;

	RIG_CHECK(rig.n_settings < RIG_SETTINGS);
	va_start(ap, fmt);
	vsnprintf(rig.text[rig.n_settings], sizeof(rig.text[0]), fmt, ap);
	va_end(ap);
	rig.settings[rig.n_settings] = rig.text[rig.n_settings];
	rig.settings[++rig.n_settings] = NULL;
}

/* The daemons' secret: any file of a private place. */
static void make_secret(void)
{
	const char *tmp = getenv("TMPDIR"), text[] = "secret of the daemons of the rxe guest";
	int fd;

	snprintf(rig.secret, sizeof(rig.secret), "%s/rig-secret.%d", tmp && *tmp ? tmp : "/tmp",
		 getpid());
	fd = open(rig.secret, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	RIG_CHECK(fd >= 0 && write(fd, text, sizeof(text) - 1) == sizeof(text) - 1);
	close(fd);
}

void rig_start(unsigned n, const char *const *devices, const char *const *more)
{
	const char *nic = getenv("RXE_NIC");

	setvbuf(stdout, NULL, _IOLBF, 0);
	rig.nic = nic && *nic ? nic : "verbs";
	make_secret();
	set("nic=%s", rig.nic);
	set("fabric-secret-file=%s", rig.secret);
	set("service-grace=100ms");
	set("emu-retry-timeout=500ms");
	for (unsigned i = 0; i < n && rig_is_verbs(); i++)
		set("%u:nic-device=%s", i, devices[i]);
	for (; more && *more; more++)
		set("%s", *more);
	for (char *all = getenv("RXE_SETTINGS"), *one = all ? strtok(all, " ") : NULL; one;
	     one = strtok(NULL, " "))
		set("%s", one);
	if (daemons_start(&rig.daemons, n, rig.settings)) {
		unlink(rig.secret);
		exit(1);
	}
}

void rig_job(struct job *job, const char *name, const unsigned *nodes,
	     void (*body)(struct job_rank *r))
{
	struct job_plan plan = { .name = name,
				 .settings = rig_patience,
				 .world = RIG_WORLD,
				 .tag = (uint64_t)name[0],
				 .body = body,
				 .boot_timeout_ns = BOOT_S * UINT64_C(1000000000),
				 .alarm_s = rig.alarm_s ? rig.alarm_s : RIG_ALARM_S };

	job_end(job);
	for (unsigned i = 0; i < RIG_WORLD; i++)
		plan.client[i] = daemons_client(&rig.daemons, nodes[i]);
	RIG_CHECK(job_fork(job, &plan) == 0);
	RIG_CHECK(job_reach(job, 5, REACH_MS) == 0);
}

static void mask_lost(struct job_rank *r)
{
	for (uint32_t p = 0; p < r->world; p++) {
		if (p == r->me || epf_peer_state(r->ep, p) != -ECONNRESET)
			continue;
		r->report->counter[RIG_C_LOST] |= UINT64_C(1) << p;
		RIG_CHECK(epf_peer_mask(r->ep, p) == 0);
		r->masked[p] = true;
	}
}

void rig_play_until_told(struct job_rank *r)
{
	int rc;

	while ((rc = job_rank_round(r, UINT64_C(30000000000))) == 0)
		;
	mask_lost(r);
	job_rank_told(r, rc);
	while (job_get(&r->page->words[RIG_MASK]) && !job_get(&r->page->words[RIG_ALL_TOLD]) &&
	       (rc == 0 || rc == -ECONNRESET || rc == -EIO || rc == -ETIMEDOUT)) {
		rc = job_rank_round(r, UINT64_C(50000000));
		if (rc == 0)
			job_set(&r->report->counter[RIG_C_AFTER],
				r->report->counter[RIG_C_AFTER] + 1);
		else if (rc != -ETIMEDOUT)
			mask_lost(r);
	}
	JOB_CHECK(r, job_await(&r->page->words[RIG_ALL_TOLD], 1, NOTIFIED_MS) == 0);
}

void rig_until_told(struct job_rank *r)
{
	JOB_CHECK(r, job_rank_open(r) == 0);
	JOB_CHECK(r, job_rank_join(r) == 0);
	rig_play_until_told(r);
	epf_close(r->ep);
	epf_boot_close(r->boot);
}

void rig_told(const struct job *job, unsigned rank, uint64_t since_ns, unsigned lost,
	      const char *const *words)
{
	const struct job_report *rep = &job->page->rank[rank];
	bool named = !words;
	uint64_t after;

	RIG_CHECK(job_await(&rep->notified_ns, 1, NOTIFIED_MS) == 0);
	after = rep->notified_ns > since_ns ? rep->notified_ns - since_ns : 0;
	printf("rank %u got %lld after %.0f ms, saw lost %#llx: %s%s\n", rank, (long long)rep->rc,
	       (double)after / 1e6, (unsigned long long)rep->counter[RIG_C_LOST], rep->text,
	       rep->failure);
	for (const char *const *w = words; w && *w; w++)
		named |= strstr(rep->text, *w) != NULL;
	RIG_CHECK(named);
	RIG_CHECK(rep->rc == -ECONNRESET || rep->rc == -EIO);
	RIG_CHECK(rep->counter[RIG_C_LOST] == lost);
}

void rig_end_told(struct job *job, unsigned killed)
{
	job_set(&job->page->words[RIG_ALL_TOLD], 1);
	RIG_CHECK(job_wait(job, killed, REACH_MS) == 0);
	job_end(job);
}

void rig_beside_goes_on(void)
{
	struct job *b = &rig.beside;

	RIG_CHECK(job_reach(b, job_get(&b->page->rank[0].rounds) + ROUNDS_BESIDE, REACH_MS) == 0);
}

void rig_beside_ends(void)
{
	struct job *b = &rig.beside;

	job_set(&b->page->end, 1);
	RIG_CHECK(job_wait(b, 0, REACH_MS) == 0);
	for (unsigned i = 0; i < RIG_WORLD; i++) {
		const struct job_report *rep = &b->page->rank[i];

		RIG_CHECK(rep->counter[JOB_LANE_ERRORS] == 0);
		RIG_CHECK(rep->counter[JOB_ARRIVALS_REFUSED] == 0);
	}
	printf("# result: the job beside: %llu rounds, 0 wrong, 0 lane errors\n",
	       (unsigned long long)b->page->rank[0].rounds);
	job_end(b);
}

void rig_say(const char *fmt, ...)
{
	size_t len = strlen(rig.said);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(rig.said + len, sizeof(rig.said) - len, fmt, ap);
	va_end(ap);
}

void rig_next_job(const unsigned *nodes)
{
	struct job *next = &rig.job;

	rig_job(next, "next", nodes, job_play);
	job_set(&next->page->end, 1);
	RIG_CHECK(job_wait(next, 0, REACH_MS) == 0);
	job_end(next);
}

void rig_stop(void)
{
	int bad = daemons_stop(&rig.daemons);

	unlink(rig.secret);
	rig.daemons.n = 0;
	RIG_CHECK(bad == 0);
}

void rig_shell(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	fflush(NULL);
	if (system(line) != 0)
		rig_die("failed: %s", line);
}

void rig_link(char pair, bool up)
{
	const char *devices = getenv("RXE_DEVICES"); /* devices.sh */

	RIG_CHECK(devices != NULL);
	rig_shell(". %s && rxe_%s %c", devices, up ? "up" : "down", pair);
}
