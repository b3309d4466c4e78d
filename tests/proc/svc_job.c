/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes of a job (svc_job.h); svc_round.c has what a rank does. The rendezvous server has a separate process, so that the test
 * never forks beside a thread (gcc 12's sanitizer does not survive that).
 */
#include "tests/proc/svc_job.h"
#include "fabric/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

const char *const job_step_name[JOB_STEPS] = { "forked",   "start",   "register", "join",
					       "dispatch", "combine", "close",    "ended" };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SLOWER = 5 };
#elif defined(__has_feature)
# if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SLOWER = 5 };
# else
enum { SLOWER = 1 };
# endif
#else
enum { SLOWER = 1 };
#endif

unsigned job_ms(unsigned ms)
{
	const char *s = getenv("LIMIT_TIMES"); /* tests/stages.sh: how much slower the machine is */
	int times = s ? atoi(s) : 1;

	return ms * SLOWER * (times > 1 ? (unsigned)times : 1);
}

uint64_t job_wait_ns(void)
{
	return (uint64_t)job_ms(JOB_WAIT_MS) * 1000000;
}

bool job_long(void)
{
	const char *s = getenv("EPF_TEST_LONG");

	return s && *s && strcmp(s, "0") != 0;
}

uint64_t job_seed(uint64_t def)
{
	const char *s = getenv("EPF_SEED");

	return s && *s ? strtoull(s, NULL, 0) : def;
}

uint64_t job_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void job_set(uint64_t *word, uint64_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

uint64_t job_get(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

void job_count(uint64_t *word)
{
	__atomic_fetch_add(word, 1, __ATOMIC_ACQ_REL);
}

int job_await(const uint64_t *word, uint64_t at_least, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;

	while (job_get(word) < at_least) {
		if (epf_now_ns() > deadline)
			return -1;
		usleep(200);
	}
	return 0;
}

static pid_t fork_child(void)
{
	pid_t parent = getpid(), pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
	}
	return pid;
}

static void serve(const struct job *job)
{
	struct epf_boot_server_opts o = { .size = sizeof(o),
					  .world = job->plan.world,
					  .listen = job->plan.listen ? job->plan.listen
								     : "127.0.0.1:0",
					  .job = job->plan.name,
					  .timeout_ns = job->plan.boot_timeout_ns };
	struct epf_boot_server *server;

	if (epf_boot_server_start(&o, &server)) {
		fprintf(stderr, "job %s: %s\n", job->plan.name, epf_last_error());
		_exit(1);
	}
	snprintf(job->page->rendezvous, sizeof(job->page->rendezvous), "%s",
		 epf_boot_server_address(server));
	job_set(&job->page->open, 1);
	for (;;)
		pause();
}

pid_t job_fork_rank(struct job *job, uint32_t rank, void (*body)(struct job_rank *r))
{
	struct job_rank r = { .page = job->page,
			      .report = &job->page->rank[rank],
			      .plan = &job->plan,
			      .me = rank,
			      .world = job->plan.world };
	pid_t pid = fork_child();

	if (pid != 0) {
		if (pid > 0)
			job->pid[rank] = pid;
		return pid;
	}
	alarm(job_ms(job->plan.alarm_s ? job->plan.alarm_s : 120));
	if (job_await(&job->page->open, 1, job_ms(60000)))
		_exit(1);
	body(&r);
	job_set(&r.report->step, JOB_ENDED);
	fflush(NULL);
	_exit(0);
}

int job_fork(struct job *job, const struct job_plan *plan)
{
	memset(job, 0, sizeof(*job));
	job->plan = *plan;
	if (!plan->boot_timeout_ns)
		job->plan.boot_timeout_ns = job_wait_ns();
	for (uint32_t i = 0; plan->daemons && i < plan->world; i++)
		job->plan.client[i] =
			daemons_client(plan->daemons, i * plan->daemons->n / plan->world);
	job->page = mmap(NULL, sizeof(*job->page), PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (job->page == MAP_FAILED) {
		job->page = NULL;
		return -1;
	}
	if (plan->rendezvous) {
		snprintf(job->page->rendezvous, sizeof(job->page->rendezvous), "%s",
			 plan->rendezvous);
		job_set(&job->page->open, 1);
	} else {
		job->server = fork_child();
		if (job->server == 0)
			serve(job);
	}
	for (uint32_t i = 0; job->server >= 0 && i < plan->world; i++)
		if ((!plan->local || plan->local >> i & 1) &&
		    job_fork_rank(job, i, plan->body) < 0) {
			perror("job: fork");
			job_end(job);
			return -1;
		}
	return job->server >= 0 ? 0 : -1;
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = { .si_pid = 0 };

	return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

int job_reach(struct job *job, uint64_t rounds, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;

	for (;;) {
		uint32_t living = 0, there = 0;

		for (uint32_t i = 0; i < job->plan.world; i++) {
			if (!job->pid[i])
				continue;
			if (has_ended(job->pid[i]))
				return -1;
			living++;
			there += job_get(&job->page->rank[i].rounds) >= rounds;
		}
		if (there == living)
			return 0;
		if (epf_now_ns() > deadline) {
			fprintf(stderr, "job %s: %u of %u ranks played %llu rounds in %u ms\n",
				job->plan.name, there, living, (unsigned long long)rounds,
				timeout_ms);
			return -1;
		}
		usleep(500);
	}
}

int job_more(struct job *job, uint64_t rounds)
{
	return job_reach(job, job_get(&job->page->rank[0].rounds) + rounds, job_ms(JOB_WAIT_MS));
}

int job_wait(struct job *job, uint32_t killed, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;
	int bad = 0;

	for (uint32_t i = 0; i < job->plan.world; i++) {
		int status = -1;

		if (!job->pid[i])
			continue;
		while (!has_ended(job->pid[i]) && epf_now_ns() < deadline)
			usleep(500);
		if (!has_ended(job->pid[i])) {
			fprintf(stderr, "job %s: rank %u hangs in step %s\n", job->plan.name, i,
				job_step_name[job_get(&job->page->rank[i].step) % JOB_STEPS]);
			kill(job->pid[i], SIGKILL);
			bad += (killed >> i & 1) != 0; /* counted below otherwise */
		}
		waitpid(job->pid[i], &status, 0);
		job->pid[i] = 0;
		if (killed >> i & 1)
			continue;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "job %s: rank %u ended with %s %d in step %s\n",
				job->plan.name, i, WIFSIGNALED(status) ? "signal" : "status",
				WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
				job_step_name[job_get(&job->page->rank[i].step) % JOB_STEPS]);
			bad++;
		}
	}
	return bad;
}

int job_finish(struct job *job)
{
	job_set(&job->page->end, 1);
	return job_wait(job, 0, job_ms(JOB_WAIT_MS));
}

int job_run(const struct job_plan *plan)
{
	struct job job;
	int bad;

	if (job_fork(&job, plan))
		return -1;
	bad = job_finish(&job);
	job_end(&job);
	return bad;
}

void job_kill(struct job *job, uint32_t rank)
{
	kill(job->pid[rank], SIGKILL);
	waitpid(job->pid[rank], NULL, 0);
	job->pid[rank] = 0;
}

void job_end(struct job *job)
{
	for (uint32_t i = 0; i < JOB_RANKS_MAX; i++)
		if (job->pid[i] > 0)
			job_kill(job, i);
	if (job->server > 0) {
		kill(job->server, SIGKILL);
		waitpid(job->server, NULL, 0);
	}
	if (job->page)
		munmap(job->page, sizeof(*job->page));
	memset(job, 0, sizeof(*job));
}

static unsigned count_fds(pid_t pid, FILE *list)
{
	char path[64], name[320], what[256];
	unsigned n = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		ssize_t len;

		if (e->d_name[0] == '.')
			continue;
		n++;
		if (!list)
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, e->d_name);
		len = readlink(name, what, sizeof(what) - 1);
		what[len < 0 ? 0 : len] = 0;
		fprintf(list, "  %s: %s\n", e->d_name, what);
	}
	if (d)
		closedir(d);
	return n;
}

static unsigned count_mappings(pid_t pid, FILE *list)
{
	char path[64], line[512];
	unsigned n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, "/memfd:"))
			continue;
		n++;
		if (list)
			fprintf(list, "  %s", line);
	}
	if (f)
		fclose(f);
	return n;
}

struct proc_holds proc_look(pid_t pid)
{
	return (struct proc_holds){ .fds = count_fds(pid, NULL),
				    .mappings = count_mappings(pid, NULL) };
}

int proc_settle(pid_t pid, struct proc_holds base, unsigned timeout_ms)
{
	uint64_t deadline = epf_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct proc_holds now;

	for (;;) {
		now = proc_look(pid);
		if (now.fds <= base.fds && now.mappings <= base.mappings)
			return 0;
		if (epf_now_ns() > deadline)
			break;
		usleep(2000);
	}
	fprintf(stderr,
		"process %d holds %u descriptors, %u before, and maps %u memfds, %u before\n",
		(int)pid, now.fds, base.fds, now.mappings, base.mappings);
	count_fds(pid, stderr);
	count_mappings(pid, stderr);
	return -1;
}

unsigned proc_files(const char *dir, const char *word, char *names, size_t size)
{
	size_t at = 0;
	unsigned n = 0;
	DIR *d = opendir(dir);

	if (names)
		names[0] = 0;
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
		if (e->d_name[0] == '.' || (word && !strstr(e->d_name, word)))
			continue;
		n++;
		if (names && at < size)
			at += (size_t)snprintf(names + at, size - at, "%s ", e->d_name);
	}
	if (d)
		closedir(d);
	return n;
}
