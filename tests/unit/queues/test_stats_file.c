/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics files as files: made whole under their name, kept or taken away at the end, never
 * taken from a living writer; and the reader tells living, stale, dead and ended writers apart.
 */
#include "tests/unit/queues/stats_kit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static void file_is_made_whole_and_taken_away(void **state)
{
	struct epf_stats *st, *again = NULL;
	struct epf_stats_opts opts = opts_of(dir, "one");
	struct epf_stats_reader *r;
	struct stat sb;
	char path[128];

	umask(077);
	st = make(dir, "one");
	snprintf(path, sizeof(path), "%s/one.stats", dir);
	assert_string_equal(epf_stats_path(st), path);
	assert_int_equal(stat(path, &sb), 0);
	assert_int_equal(sb.st_mode & 07777, 0640);
	r = open_path(path);
	assert_int_equal(epf_stats_reader_alive(r, 0, 0), EPF_STATS_ALIVE);
	assert_int_equal(epf_stats_reader_info(r)->pid, (uint64_t)getpid());
	assert_false(epf_stats_reader_replaced(r));

	/* A living writer's file is not taken from it. */
	assert_int_equal(epf_stats_create(&opts, &again, why, sizeof(why)), -EBUSY);
	assert_non_null(strstr(why, "another instance name"));

	/* Kept as final snapshot, then replaced by the next start. */
	epf_stats_destroy(st, EPF_STATS_KEEP);
	refresh(r);
	assert_int_equal(epf_stats_reader_alive(r, 0, 0), EPF_STATS_ENDED);
	assert_false(epf_stats_reader_replaced(r));
	st = make(dir, "one");
	assert_true(epf_stats_reader_replaced(r));
	refresh(r);
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
	assert_int_equal(stat(path, &sb), -1);
}

static void a_replaced_file_is_left_alone(void **state)
{
	struct epf_stats *st = make(dir, "one");
	char path[128];

	snprintf(path, sizeof(path), "%s/one.stats", dir);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/dev/null", path), 0); /* somebody else's now */
	epf_stats_destroy(st, 0);
	assert_int_equal(unlink(path), 0);
}

static void a_forked_child_does_not_close_it(void **state)
{
	struct epf_stats *st = make(dir, "one");
	struct epf_stats_reader *r = open_path(epf_stats_path(st));
	pid_t pid = fork();

	if (pid == 0) {
		epf_stats_destroy(st, 0);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	refresh(r);
	assert_int_equal(epf_stats_reader_alive(r, 0, 0), EPF_STATS_ALIVE);
	assert_false(epf_stats_reader_replaced(r));
	epf_stats_reader_close(r);
	epf_stats_destroy(st, 0);
}

/* In a child that is not root, as directory rights mean nothing to root. */
static int create_where_it_may_not(void)
{
	struct epf_stats_opts opts = opts_of(dir, "one");
	struct epf_stats *st = NULL;

	if (getuid() == 0 && setuid(65534))
		return 77;
	if (epf_stats_create(&opts, &st, why, sizeof(why)) != -EACCES || st || !strstr(why, dir))
		return 1;
	opts.dir = NULL;
	if (epf_stats_create(&opts, &st, why, sizeof(why)))
		return 2;
	epf_stats_destroy(st, 0);
	return 0;
}

static void a_directory_that_cannot_be_written(void **state)
{
	struct epf_stats_opts opts = opts_of("/nonexistent", "one");
	struct epf_stats *st = NULL;
	int status;
	pid_t pid;

	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -ENOENT);
	opts.dir = "/dev/null";
	assert_int_equal(epf_stats_create(&opts, &st, why, sizeof(why)), -ENOTDIR);
	assert_int_equal(chmod(dir, 0555), 0);
	pid = fork();
	if (pid == 0)
		_exit(create_where_it_may_not());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(chmod(dir, 0700), 0);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		print_message("cannot become another user: read-only directory not tried\n");
	else
		assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_directory_of_others_is_not_used(void **state)
{
	char sub[80], link[80];

	snprintf(sub, sizeof(sub), "%s/sub", dir);
	snprintf(link, sizeof(link), "%s/link", dir);
	umask(0);
	assert_int_equal(epf_stats_make_dir(sub, why, sizeof(why)), 0);
	assert_int_equal(epf_stats_make_dir(sub, why, sizeof(why)), 0);
	assert_int_equal(chmod(sub, 0777), 0);
	assert_int_equal(epf_stats_make_dir(sub, why, sizeof(why)), -EPERM);
	assert_non_null(strstr(why, "mode 777"));
	assert_int_equal(symlink(sub, link), 0);
	assert_int_equal(epf_stats_make_dir(link, why, sizeof(why)), -ENOTDIR);
	assert_int_equal(unlink(link), 0);
	assert_int_equal(rmdir(sub), 0);
	snprintf(sub, sizeof(sub), "%s/none/sub", dir);
	assert_int_equal(epf_stats_make_dir(sub, NULL, 0), -ENOENT);
	if (getuid() != 0)
		return;
	assert_int_equal(chown(dir, 65534, (gid_t)-1), 0);
	assert_int_equal(epf_stats_make_dir(dir, why, sizeof(why)), -EPERM);
	assert_non_null(strstr(why, "uid 65534"));
	assert_int_equal(chown(dir, 0, (gid_t)-1), 0);
}

/* Writes one number, says so on fd and waits for its end; never returns into the test. */
static void mortal_writer(int fd)
{
	static const struct epf_stats_label labels[] = { { NULL, 0 }, { NULL, 4 } };
	struct epf_stats_opts opts = opts_of(dir, "mortal");
	struct epf_stats_block *b;
	struct epf_stats *st;

	if (epf_stats_create(&opts, &st, NULL, 0) ||
	    epf_stats_add_block(st, EPF_STATS_PEER, labels, 2, &b))
		_exit(1);
	epf_stat_add(b, EPF_STAT_PEER_CMDS, 42);
	epf_stats_beat(st, 1000);
	if (write(fd, "x", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

static void a_killed_writer_leaves_last_words(void **state)
{
	struct epf_stats_reader *r;
	struct epf_stats *st;
	char path[128], byte;
	int up[2];
	pid_t pid;

	assert_int_equal(pipe(up), 0);
	pid = fork();
	if (pid == 0)
		mortal_writer(up[1]);
	close(up[1]);
	assert_int_equal(read(up[0], &byte, 1), 1); /* 0 where the child gave up */
	snprintf(path, sizeof(path), "%s/mortal.stats", dir);
	r = open_path(path);
	assert_int_equal(epf_stats_reader_alive(r, 2000, 0), EPF_STATS_ALIVE);
	assert_int_equal(epf_stats_reader_alive(r, 2000, 1000), EPF_STATS_ALIVE);
	assert_int_equal(epf_stats_reader_alive(r, 2001, 1000), EPF_STATS_STALE);
	assert_int_equal(kill(pid, SIGKILL), 0);
	while (epf_stats_reader_alive(r, 0, 0) == EPF_STATS_ALIVE) /* until it is a zombie */
		usleep(1000);
	assert_int_equal(epf_stats_reader_alive(r, 0, 0), EPF_STATS_DEAD);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(epf_stats_reader_alive(r, 0, 0), EPF_STATS_DEAD);
	refresh(r);
	assert_int_equal(value_of(r, 0, "cmds").number, 42);
	epf_stats_reader_close(r);
	close(up[0]);

	st = make(dir, "mortal"); /* the next start */
	epf_stats_destroy(st, 0);
}

/* The header of a living writer with one field changed. */
static enum epf_stats_alive alive_with(const struct epf_stats *st, size_t at, uint64_t flip)
{
	enum epf_stats_alive alive;
	struct epf_stats_reader *r = NULL;
	uint64_t *copy;
	const void *base;
	size_t bytes;

	base = epf_stats_memory(st, &bytes);
	copy = malloc(bytes);
	assert_non_null(copy);
	memcpy(copy, base, bytes);
	copy[at / 8] ^= flip;
	assert_int_equal(epf_stats_reader_memory(copy, bytes, &r, why, sizeof(why)), 0);
	alive = epf_stats_reader_alive(r, 0, 0);
	epf_stats_reader_close(r);
	free(copy);
	return alive;
}

static void a_pid_alone_proves_nothing(void **state)
{
	const size_t writer = offsetof(struct epf_stats_header, writer);
	struct epf_stats *st = make(NULL, "t");

	assert_int_equal(alive_with(st, writer, 0), EPF_STATS_ALIVE);
	assert_int_equal(alive_with(st, writer + offsetof(struct epf_stats_proc, start_ticks), 1),
			 EPF_STATS_DEAD);
	assert_int_equal(alive_with(st, writer + offsetof(struct epf_stats_proc, pid_space), 1),
			 EPF_STATS_UNKNOWN);
	assert_int_equal(alive_with(st, writer + offsetof(struct epf_stats_proc, boot_id), 1),
			 EPF_STATS_DEAD);
	assert_int_equal(alive_with(st, writer, (uint64_t)1 << 40), EPF_STATS_UNKNOWN);
	assert_int_equal(alive_with(st, writer, (uint64_t)getpid() ^ 0x7ffffffe), EPF_STATS_DEAD);
	epf_stats_destroy(st, 0);
}

/* A file whose writer has ended, so many hours after its last sign of life. */
static void leave_dead(const char *name, unsigned hours, uint64_t now_ns)
{
	const uint64_t age = hours * UINT64_C(3600000000000);
	uint64_t created = now_ns - age - 1000000000u;
	char path[128];
	pid_t pid = fork();
	int fd;

	if (pid == 0) {
		struct epf_stats *st = make(dir, name);
		struct epf_stats_reader *r = open_path(epf_stats_path(st));

		epf_stats_beat(st, epf_stats_reader_info(r)->created_monotonic_ns + 1000000000u);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	snprintf(path, sizeof(path), "%s/%s.stats", dir, name);
	fd = open(path, O_WRONLY);
	assert_int_equal(
		pwrite(fd, &created, 8, offsetof(struct epf_stats_header, created_realtime_ns)), 8);
	close(fd);
}

static bool is_there(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

static void take_away(const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	assert_int_equal(unlink(path), 0);
}

static uint64_t realtime(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void files_of_the_dead_go_after_a_day(void **state)
{
	struct epf_stats *st = make(dir, "living");
	const uint64_t now = realtime();
	char path[128];

	leave_dead("young", 23, now);
	leave_dead("old", 25, now);
	snprintf(path, sizeof(path), "%s/none.stats", dir);
	fclose(fopen(path, "w"));
	assert_int_equal(epf_stats_sweep(dir, now), 1);
	assert_false(is_there("old.stats"));
	assert_true(is_there("young.stats"));
	/* The living is spared, whatever its age, and what is no statistics file. */
	assert_int_equal(epf_stats_sweep(dir, now + 3 * EPF_STATS_DEAD_NS), 1);
	assert_false(is_there("young.stats"));
	assert_true(is_there("living.stats"));
	assert_true(is_there("none.stats"));
	/* Whoever makes files does it once a second. */
	leave_dead("old", 25, now);
	for (int i = 0; i < 60000 && is_there("old.stats"); i++) {
		epf_stats_destroy(make(dir, "new"), 0);
		usleep(1000);
	}
	assert_false(is_there("old.stats"));
	assert_int_equal(epf_stats_sweep("/nonexistent", now), 0);
	take_away("none.stats");
	epf_stats_destroy(st, 0);
}

static void the_oldest_of_many_go(void **state)
{
	enum { MORE = 3 };

	const uint64_t now = realtime();
	unsigned n = EPF_STATS_DEAD_FILES + MORE;
	char name[32];

	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "d%u", i);
		leave_dead(name, 0, now - i * UINT64_C(1000000000));
	}
	epf_stats_sweep(dir, now);
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "d%u.stats", i);
		assert_int_equal(is_there(name), i < EPF_STATS_DEAD_FILES);
		if (is_there(name))
			take_away(name);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_DIR(file_is_made_whole_and_taken_away),
		IN_DIR(a_replaced_file_is_left_alone),
		IN_DIR(a_forked_child_does_not_close_it),
		IN_DIR(a_directory_that_cannot_be_written),
		IN_DIR(a_directory_of_others_is_not_used),
		IN_DIR(a_killed_writer_leaves_last_words),
		cmocka_unit_test(a_pid_alone_proves_nothing),
		IN_DIR(files_of_the_dead_go_after_a_day),
		IN_DIR(the_oldest_of_many_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
