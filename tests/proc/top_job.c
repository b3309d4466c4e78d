/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job on two daemons for the test of ep-top (test_top.py), which sends one command per line on stdin and reads one line for each from
 * stdout. Ranks first send a known number of puts, then wait for commands: endless traffic, a stopped rank, a cut link.
 *
 *   ready DIR       printed first, when all ranks have sent their puts: the statistics directory
 *   go              ranks play rounds until the end
 *   stop N, cont N  SIGSTOP, SIGCONT to rank N
 *   down, up        the links of daemon node0
 *   halt, resume    SIGSTOP, SIGCONT to daemon node1
 *   flood, ebb      before go: rank 0 starts, ends sending to rank 2 without pause
 *   kill            SIGKILL to daemon node1
 *   end             ends ranks and daemons, the job's status is the exit status; the end of stdin kills all
 */
#include "tests/proc/svc_job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	WORLD = 4,
	PUTS = 100,
	PUT_BYTES = 1024,
	FLOOD_BYTES = 64,
	WAIT_MS = 60000,
	WORD_GO = 0,
	WORD_KILLED = 1,
	WORD_FLOOD = 2
};

static const char *const settings[] = { "emu-retry-timeout=120s", "emu-stall-timeout=120s",
					"peer-timeout=120s", "service-grace=100ms", NULL };

static struct daemons daemons;
static struct job job;

/* Puts to every other rank, flushed: each is one command and PUT_BYTES bytes; the flush is one more. */
static void body(struct job_rank *r)
{
	job_rank_enter(r);
	for (unsigned i = 0; i < PUTS; i++)
		for (uint32_t peer = 0; peer < r->world; peer++)
			if (peer != r->me)
				JOB_CHECK(r, epf_put(r->ring, peer, 0, 0, 1, 0, PUT_BYTES, 0) == 0);
	JOB_CHECK(r, epf_flush(r->ring, 0, (uint64_t)WAIT_MS * 1000000) == 0);
	job_set(&r->report->rounds, 1);
	while (!job_get(&r->page->words[WORD_GO]) && !job_get(&r->page->end)) {
		while (r->me == 0 && job_get(&r->page->words[WORD_FLOOD]))
			JOB_CHECK(r, epf_put(r->ring, 2, 0, 0, 1, 0, FLOOD_BYTES, 0) == 0);
		usleep(2000);
	}
	while (!job_get(&r->page->end)) {
		int rc = job_rank_round(r, (uint64_t)120000 * 1000000);

		if (job_get(&r->page->words[WORD_KILLED]))
			break;
		JOB_CHECK(r, rc == 0);
		usleep(1000);
	}
	/* A rank in a round waits for all others: the last ones leave without a farewell. */
	_exit(0);
}

static void answer(const char *text)
{
	printf("%s\n", text);
	fflush(stdout);
}

static int cut(bool up)
{
	const char *argv[] = { "link", up ? "--up" : "--down", "--instance", "node0", NULL };

	return daemons_command(&daemons, argv, NULL);
}

/* Returns false on "end". */
static bool execute(const char *line)
{
	unsigned rank = 0;
	char word[16] = "";

	if (sscanf(line, "%15s %u", word, &rank) < 1 || rank >= WORLD)
		return true;
	if (!strcmp(word, "go"))
		job_set(&job.page->words[WORD_GO], 1);
	else if (!strcmp(word, "stop"))
		kill(job.pid[rank], SIGSTOP);
	else if (!strcmp(word, "cont"))
		kill(job.pid[rank], SIGCONT);
	else if (!strcmp(word, "down") || !strcmp(word, "up"))
		cut(!strcmp(word, "up"));
	else if (!strcmp(word, "halt"))
		kill(daemons.pid[1], SIGSTOP);
	else if (!strcmp(word, "resume"))
		kill(daemons.pid[1], SIGCONT);
	else if (!strcmp(word, "flood") || !strcmp(word, "ebb"))
		job_set(&job.page->words[WORD_FLOOD], !strcmp(word, "flood"));
	else if (!strcmp(word, "kill")) {
		job_set(&job.page->words[WORD_KILLED], 1);
		daemons_kill(&daemons, 1);
	} else
		return strcmp(word, "end") != 0;
	answer(word);
	return true;
}

int main(void)
{
	struct job_plan plan = { .name = "top-job",
				 .world = WORLD,
				 .tag = 5,
				 .daemons = &daemons,
				 .body = body,
				 .alarm_s = 600 };
	char line[256];
	int bad = 1;

	if (daemons_start(&daemons, 2, settings))
		return 1;
	if (job_fork(&job, &plan) == 0 && job_reach(&job, 1, WAIT_MS) == 0) {
		snprintf(line, sizeof(line), "ready %s ranks %d puts %d bytes %d", daemons.dir,
			 WORLD, PUTS * (WORLD - 1), PUT_BYTES);
		answer(line);
		while (fgets(line, sizeof(line), stdin) && execute(line))
			;
		job_set(&job.page->end, 1);
		bad = 0;
	}
	job_end(&job);
	bad += daemons_stop(&daemons) != 0;
	return bad ? 1 : 0;
}
