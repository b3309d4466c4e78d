/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric report`: one JSON object for a bug report: versions, settings with their origins, what the doctor finds, NICs, daemons, statistics of all
 * instances, and what waits for what. Called by the main program of ep-fabric. Each part is the JSON of another command, run in a
 * separate process, so that a part that fails, or never ends, is one line of the report. Secrets are in none of them.
 */
#include "tools/cli/tools.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXIT_USAGE 2

enum { OPT_DEAD = 256, PART_SECONDS = 20, PART_BYTES = 64 << 20, WORDS_BYTES = 512 };

/* In the order of the report; the last ones know --dead. */
static const char *const parts[] = { "version", "config", "doctor", "nics",
				     "status",  "stats",  "why",    NULL };

enum { FIRST_WITH_DEAD = 4 };

struct request {
	const char *output;
	bool dead;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct request *req = state->input;

	if (key != 'o' && key != OPT_DEAD)
		return ARGP_ERR_UNKNOWN;
	if (key == 'o')
		req->output = arg;
	else
		req->dead = true;
	return 0;
}

/* In the new process. */
static _Noreturn void become(const char *part, bool dead, int out, int err)
{
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	alarm(PART_SECONDS); /* the default action ends it */
	execl("/proc/self/exe", "ep-fabric", part, "--json", dead ? "--dead" : NULL, (char *)NULL);
	_exit(127);
}

static char *slurp(FILE *f, size_t *len)
{
	char *text;
	long n;

	fseek(f, 0, SEEK_END);
	n = ftell(f);
	rewind(f);
	if (n < 0 || n > PART_BYTES)
		return NULL;
	text = malloc((size_t)n + 1);
	*len = text ? fread(text, 1, (size_t)n, f) : 0;
	if (text)
		text[*len] = '\0';
	return text;
}

/* What a command said when it gave no JSON. */
static json_t *complaint(const char *part, int status, FILE *err)
{
	char words[WORDS_BYTES] = "";
	size_t len = 0;
	char *said = slurp(err, &len);

	if (WIFSIGNALED(status))
		snprintf(words, sizeof(words), "ended by signal %d (%s)", WTERMSIG(status),
			 strsignal(WTERMSIG(status)));
	else
		snprintf(words, sizeof(words), "exit status %d: %.400s", WEXITSTATUS(status),
			 said ? said : "");
	words[strcspn(words, "\n")] = '\0';
	free(said);
	return json_pack("{s:s, s:s}", "part", part, "error", words);
}

static json_t *run(const char *part, bool dead)
{
	FILE *out = tmpfile(), *err = tmpfile();
	json_t *top = NULL;
	int status = 0;
	pid_t pid = -1;

	if (out && err) {
		fflush(NULL);
		pid = fork();
		if (pid == 0)
			become(part, dead, fileno(out), fileno(err));
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid) {
		size_t len = 0;
		char *text = slurp(out, &len);

		/* Commands that find something wrong end with 1 and have said what. */
		top = text && len ? json_loadb(text, len, 0, NULL) : NULL;
		free(text);
	}
	if (!top)
		top = pid > 0 ? complaint(part, status, err)
			      : json_pack("{s:s, s:s}", "part", part, "error", strerror(errno));
	if (out)
		fclose(out);
	if (err)
		fclose(err);
	return top;
}

static json_t *collect(bool dead)
{
	char when[32] = "";
	struct utsname u = { 0 };
	time_t now = time(NULL);
	struct tm utc;
	json_t *top;

	if (gmtime_r(&now, &utc))
		strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &utc);
	(void)uname(&u);
	top = json_pack("{s:s, s:s, s:s, s:s, s:s}", "schema", "epf.report/1", "time", when, "host",
			u.nodename, "kernel", u.release, "machine", u.machine);
	for (unsigned i = 0; top && parts[i]; i++)
		if (json_object_set_new(top, parts[i],
					run(parts[i], dead && i >= FIRST_WITH_DEAD))) {
			json_decref(top);
			top = NULL;
		}
	return top;
}

static int write_to(const char *path, const json_t *top)
{
	/* It describes the machine: for its owner to read and to pass on. */
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : STDOUT_FILENO;
	FILE *f = fd < 0 ? NULL : path ? fdopen(fd, "w") : stdout;
	int rc = !f || json_dumpf(top, f, JSON_INDENT(1)) || fputc('\n', f) == EOF || fflush(f);

	if (rc)
		fprintf(stderr, "ep-fabric report: %s: %s\n", path ? path : "standard output",
			strerror(errno));
	if (f && path && fclose(f) && !rc)
		rc = 1;
	return rc;
}

int epf_tool_report(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "output", 'o', "FILE", 0,
		  "Write there, readable by its owner only, instead of to standard output", 0 },
		{ "dead", OPT_DEAD, NULL, 0,
		  "Include instances that have exited: their final snapshot", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Gather what a bug report needs into one JSON object, schema epf.report/1: versions, settings with "
		       "their origins, what the doctor finds, NICs, daemons, the statistics of all instances, and "
		       "what waits for what. Settings come from the environment and the configuration files, as for any "
		       "command. It holds no secrets, but names of hosts, users, jobs and devices.",
	};
	struct request req = { 0 };
	json_t *top;
	int rc;

	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, &req);
	top = collect(req.dead);
	if (!top) {
		fprintf(stderr, "ep-fabric report: out of memory\n");
		return EXIT_FAILURE;
	}
	rc = write_to(req.output, top);
	json_decref(top);
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
