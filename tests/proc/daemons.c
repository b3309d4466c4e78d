/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts, kills and queries service daemons (daemons.h). Each is a separate process that dies with the caller and reports over a pipe that
 * it is ready.
 */
#include "tests/proc/daemons.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READY_TIMEOUT_MS = 30000, STOP_TIMEOUT_MS = 20000, ARGS_MAX = DAEMONS_SETTINGS_MAX + 16 };

/* Finds tools/ep-fabric in the nearest folder above this program. */
static int find_program(char *path, size_t size)
{
	const char *given = getenv("FABRIC_PROGRAM");
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (given && *given)
		return snprintf(path, size, "%s", given) < (int)size ? 0 : -1;
	self[n > 0 ? n : 0] = 0;
	while ((slash = strrchr(self, '/')) != NULL) {
		*slash = 0;
		if (snprintf(path, size, "%s/tools/ep-fabric", self) < (int)size &&
		    access(path, X_OK) == 0)
			return 0;
	}
	fprintf(stderr, "daemons: no ep-fabric program: set FABRIC_PROGRAM\n");
	return -1;
}

static void run_program(char *const *argv)
{
	char path[4096];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (find_program(path, sizeof(path)) == 0)
		execv(path, argv);
	fprintf(stderr, "daemons: cannot run %s: %s\n", path, strerror(errno));
	_exit(127);
}

static void become_daemon(const struct daemons *d, unsigned i, int ready)
{
	int log = open(d->log[i], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	char fd[16], name[16];
	char *argv[ARGS_MAX] = {
		"ep-fabric", "run",           "--instance",   name,          "--ready-fd",
		fd,          "--runtime-dir", (char *)d->dir, "--stats-dir", (char *)d->dir
	};
	int n = 10;

	snprintf(fd, sizeof(fd), "%d", ready);
	snprintf(name, sizeof(name), "node%u", i);
	for (unsigned o = 0; o < d->n_options; o++)
		if (d->option_of[o] < 0 || d->option_of[o] == (int)i)
			argv[n++] = (char *)d->option[o];
	argv[n] = NULL;
	if (log >= 0)
		dup2(log, STDERR_FILENO);
	fcntl(ready, F_SETFD, 0);
	setenv("EPF_LOG", "info", 1); /* tests search the log file */
	run_program(argv);
}

static void print_log(const struct daemons *d, unsigned i)
{
	char *text = daemons_log(d, i);

	fprintf(stderr, "daemons: log of node%u:\n%s", i, text ? text : "(none)\n");
	free(text);
}

void daemons_print_logs(const struct daemons *d)
{
	for (unsigned i = 0; i < d->n; i++)
		print_log(d, i);
}

int daemons_restart(struct daemons *d, unsigned i)
{
	struct pollfd p = { .events = POLLIN };
	int pipes[2];
	char byte;

	if (pipe2(pipes, O_CLOEXEC)) {
		fprintf(stderr, "daemons: no pipe: %s\n", strerror(errno));
		return -1;
	}
	fflush(NULL);
	d->pid[i] = fork();
	if (d->pid[i] == 0)
		become_daemon(d, i, pipes[1]);
	close(pipes[1]);
	p.fd = pipes[0];
	if (d->pid[i] > 0 && poll(&p, 1, READY_TIMEOUT_MS) == 1 && read(pipes[0], &byte, 1) == 1) {
		close(pipes[0]);
		return 0;
	}
	close(pipes[0]);
	fprintf(stderr, "daemons: node%u did not become ready\n", i);
	daemons_kill(d, i);
	print_log(d, i);
	return -1;
}

/* Adds "name=value", or "N:name=value" for daemon N. Returns 0 or -1. */
static int add_option(struct daemons *d, const char *setting)
{
	char *end;
	unsigned long node = strtoul(setting, &end, 10);
	int alone = end != setting && *end == ':';

	if (d->n_options == DAEMONS_SETTINGS_MAX ||
	    snprintf(d->option[d->n_options], sizeof(d->option[0]), "--%s",
		     alone ? end + 1 : setting) >= (int)sizeof(d->option[0])) {
		fprintf(stderr, "daemons: too many or too long settings: %s\n", setting);
		return -1;
	}
	d->option_of[d->n_options++] = alone ? (int)node : -1;
	return 0;
}

int daemons_start(struct daemons *d, unsigned n, const char *const *settings)
{
	const char *tmp = getenv("TMPDIR");

	memset(d, 0, sizeof(*d));
	if (n > DAEMONS_MAX ||
	    snprintf(d->dir, sizeof(d->dir), "%s/epf-daemons-XXXXXX", tmp && *tmp ? tmp : "/tmp") >=
		    (int)sizeof(d->dir) ||
	    !mkdtemp(d->dir)) {
		fprintf(stderr, "daemons: no directory for %u\n", n);
		return -1;
	}
	for (const char *const *s = settings; s && *s; s++)
		if (add_option(d, *s)) {
			daemons_stop(d);
			return -1;
		}
	for (unsigned i = 0; i < n; i++) {
		snprintf(d->socket[i], sizeof(d->socket[i]), "%s/node%u.sock", d->dir, i);
		snprintf(d->log[i], sizeof(d->log[i]), "%s/node%u.log", d->dir, i);
		snprintf(d->client[i][0], sizeof(d->client[i][0]), "service=%s", d->socket[i]);
		snprintf(d->client[i][1], sizeof(d->client[i][1]), "stats-dir=%s", d->dir);
		d->client_list[i][0] = d->client[i][0];
		d->client_list[i][1] = d->client[i][1];
		d->n = i + 1;
		if (daemons_restart(d, i)) {
			daemons_stop(d);
			return -1;
		}
	}
	return 0;
}

void daemons_kill(struct daemons *d, unsigned i)
{
	if (d->pid[i] <= 0)
		return;
	kill(d->pid[i], SIGKILL);
	waitpid(d->pid[i], NULL, 0);
	d->pid[i] = 0;
}

int daemons_end(struct daemons *d, unsigned i, int signo, unsigned timeout_ms)
{
	int status = 0;

	if (d->pid[i] <= 0)
		return -1;
	if (signo)
		kill(d->pid[i], signo);
	for (unsigned waited = 0;; waited += 5) {
		if (waitpid(d->pid[i], &status, WNOHANG) == d->pid[i]) {
			d->pid[i] = 0;
			return status;
		}
		if (waited >= timeout_ms)
			return -1;
		usleep(5000);
	}
}

static void remove_dir(const char *path)
{
	DIR *d = opendir(path);

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(path);
}

int daemons_stop(struct daemons *d)
{
	int bad = 0;

	for (unsigned i = 0; i < d->n; i++)
		if (d->pid[i] > 0)
			kill(d->pid[i], SIGTERM);
	for (unsigned i = 0; i < d->n; i++) {
		int status;

		if (d->pid[i] <= 0)
			continue;
		status = daemons_end(d, i, 0, STOP_TIMEOUT_MS);
		if (status != 0) {
			fprintf(stderr, "daemons: node%u ended with wait status %d\n", i, status);
			print_log(d, i);
			bad++;
		}
		daemons_kill(d, i);
	}
	remove_dir(d->dir);
	return bad;
}

const char *const *daemons_client(const struct daemons *d, unsigned i)
{
	return d->client_list[i];
}

const char *daemons_socket(const struct daemons *d, unsigned i)
{
	return d->socket[i];
}

/* Reads a descriptor to its end. Returns the text, malloced. */
static char *read_all(int fd)
{
	size_t room = 4096, n = 0;
	char *text = malloc(room);
	ssize_t got = 1;

	while (text && got > 0) {
		if (n + 1 == room) {
			char *more = realloc(text, room *= 2);

			if (!more)
				break;
			text = more;
		}
		got = read(fd, text + n, room - n - 1);
		if (got > 0)
			n += (size_t)got;
	}
	if (text)
		text[n] = 0;
	return text;
}

char *daemons_log(const struct daemons *d, unsigned i)
{
	int fd = open(d->log[i], O_RDONLY | O_CLOEXEC);
	char *text;

	if (fd < 0)
		return NULL;
	text = read_all(fd);
	close(fd);
	return text;
}

/* option: the option that names the directory, or NULL. */
static int command(const char *dir, const char *option, const char *const *argv, char **out)
{
	char *args[ARGS_MAX] = { "ep-fabric" };
	int pipes[2], status = -1, n = 1;
	char *text;
	pid_t pid;

	while (argv[n - 1] && n < ARGS_MAX - 3) {
		args[n] = (char *)argv[n - 1];
		n++;
	}
	if (option) {
		args[n++] = (char *)option;
		args[n++] = (char *)dir;
	}
	if (pipe2(pipes, O_CLOEXEC))
		return -1;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		dup2(pipes[1], STDOUT_FILENO);
		dup2(pipes[1], STDERR_FILENO);
		run_program(args);
	}
	close(pipes[1]);
	text = read_all(pipes[0]);
	close(pipes[0]);
	if (pid > 0)
		waitpid(pid, &status, 0);
	if (out)
		*out = text;
	else
		free(text);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int daemons_command(const struct daemons *d, const char *const *argv, char **out)
{
	return command(d->dir, "--runtime-dir", argv, out);
}

int daemons_reader(const struct daemons *d, const char *const *argv, char **out)
{
	return command(d ? d->dir : NULL, d ? "--stats-dir" : NULL, argv, out);
}

char *daemons_status(const struct daemons *d, unsigned i)
{
	char name[16];
	const char *argv[] = { "status", "--json", "--instance", name, NULL };
	char *text = NULL;

	snprintf(name, sizeof(name), "node%u", i);
	if (daemons_command(d, argv, &text) == 0)
		return text;
	free(text);
	return NULL;
}
