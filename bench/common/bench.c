/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small helpers of all subcommands: options, medians, CPUs, memory. Never measures anything itself.
 */
#include "bench/common/bench.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void (*complaints)(const char *line);

void bench_complain_to(void (*sink)(const char *line))
{
	complaints = sink;
}

int bench_check(int err)
{
	if (err)
		bench_complain("%s", epf_last_error());
	return err;
}

void bench_complain(const char *fmt, ...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (complaints)
		complaints(line);
	else
		fprintf(stderr, "ep-bench: %s\n", line);
}

int bench_uint(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 0);
	if (end == text || *end || errno || strchr(text, '-') || v < min || v > max) {
		bench_complain("%s is %s, must be a number from %llu to %llu", option, text,
			       (unsigned long long)min, (unsigned long long)max);
		return -EINVAL;
	}
	*out = v;
	return 0;
}

int bench_probability(const char *option, const char *text, double *out)
{
	char *end;
	double v;

	errno = 0;
	v = strtod(text, &end);
	if (end == text || *end || errno || !(v >= 0.0 && v <= 1.0)) {
		bench_complain("%s is %s, must be a probability from 0 to 1", option, text);
		return -EINVAL;
	}
	*out = v;
	return 0;
}

int bench_word(const char *option, const char *text, const char *const *words)
{
	char list[256] = "";
	size_t n = 0;

	for (int i = 0; words[i]; i++) {
		if (!strcmp(words[i], text))
			return i;
		n += (size_t)snprintf(list + n, n < sizeof(list) ? sizeof(list) - n : 0, "%s%s",
				      i ? ", " : "", words[i]);
	}
	bench_complain("%s is %s, must be one of: %s", option, text, list);
	return -EINVAL;
}

/* The NAME=VALUE of a setting; node: the number before it, -1 without one. */
static const char *setting_of(const char *text, int64_t *node)
{
	char *end;
	unsigned long n;

	*node = -1;
	if (*text < '0' || *text > '9')
		return text;
	n = strtoul(text, &end, 10);
	if (*end != ':')
		return text;
	*node = n > UINT32_MAX ? UINT32_MAX : (int64_t)n;
	return end + 1;
}

int bench_setting_check(const char *text)
{
	int64_t node;
	const char *setting = setting_of(text, &node);

	if (*setting >= 'a' && *setting <= 'z' && strchr(setting, '='))
		return 0;
	bench_complain("--set is %s, must be NAME=VALUE, or NODE:NAME=VALUE for one node", text);
	return -EINVAL;
}

int bench_setting_add(const char **list, uint32_t *n, uint32_t most, const char *text)
{
	if (bench_setting_check(text))
		return -EINVAL;
	if (*n >= most) {
		bench_complain("--set is given more than %u times", most);
		return -EINVAL;
	}
	list[(*n)++] = text;
	return 0;
}

int bench_settings_check(const char *const *settings, uint64_t nodes)
{
	for (; settings && *settings; settings++) {
		int64_t node;

		(void)setting_of(*settings, &node);
		if (node < 0 || (uint64_t)node < nodes)
			continue;
		bench_complain("--set is %s, its node must be from 0 to %llu", *settings,
			       (unsigned long long)nodes - 1);
		return -EINVAL;
	}
	return 0;
}

uint32_t bench_settings_of(const char *const *settings, uint32_t node, const char **out)
{
	uint32_t n = 0;

	for (; settings && *settings; settings++) {
		int64_t of;
		const char *setting = setting_of(*settings, &of);

		if (of < 0 || of == node)
			out[n++] = setting;
	}
	return n;
}

int bench_settings_refuse(const char *const *settings, const char *setting, const char *why)
{
	for (; settings && *settings; settings++) {
		int64_t of;

		if (strcmp(setting_of(*settings, &of), setting) != 0)
			continue;
		bench_complain("--set is %s, %s", *settings, why);
		return -EINVAL;
	}
	return 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a;
	double y = *(const double *)b;

	return (x > y) - (x < y);
}

uint64_t bench_rank_limit_ns(uint64_t timeout_s)
{
	return timeout_s * 750000000u;
}

double bench_median(double *v, size_t n)
{
	if (!n)
		return 0;
	qsort(v, n, sizeof(*v), compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double bench_percentile(const double *sorted, uint64_t n, unsigned per_mille)
{
	uint64_t rank = (n * per_mille + 999) / 1000;

	return n - rank < BENCH_BEYOND ? NAN : sorted[rank - 1];
}

const char *bench_figure(double v, char text[32])
{
	snprintf(text, 32, isnan(v) ? "n/a" : "%.2f", v);
	return text;
}

void bench_peak_start(struct bench_peak *p, uint64_t least, uint64_t now_ns)
{
	*p = (struct bench_peak){ .least = least, .ns = now_ns, .per_second = NAN };
}

void bench_peak_note(struct bench_peak *p, uint64_t count, uint64_t before_ns, uint64_t now_ns)
{
	double rate;

	if (count - p->count < p->least || now_ns - p->ns < BENCH_WINDOW_NS)
		return;
	rate = (double)(count - p->count) / ((double)(now_ns - p->ns) / 1e9);
	p->per_second = p->per_second > rate ? p->per_second : rate;
	p->count = count;
	p->ns = before_ns;
}

double bench_peak_end(const struct bench_peak *p, double average_per_second)
{
	return p->per_second < average_per_second ? average_per_second : p->per_second;
}

/* The CPUs the process started with: pinning a thread must not change the answer. */
static const cpu_set_t *all_cpus(void)
{
	static cpu_set_t all;
	static bool known;

	if (!known && sched_getaffinity(0, sizeof(all), &all)) {
		CPU_ZERO(&all);
		CPU_SET(0, &all);
	}
	known = true;
	return &all;
}

unsigned bench_cpus(void)
{
	return (unsigned)CPU_COUNT(all_cpus());
}

int bench_cpu_number(unsigned n)
{
	const cpu_set_t *all = all_cpus();

	for (int c = 0; c < CPU_SETSIZE; c++)
		if (CPU_ISSET((size_t)c, all) && n-- == 0)
			return c;
	return -1;
}

uint64_t bench_thread_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void bench_pin(unsigned n)
{
	int cpu = bench_cpu_number(n);
	cpu_set_t one;

	if (cpu < 0)
		return;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	(void)sched_setaffinity(0, sizeof(one), &one);
}

/* The number after `key` in a file of lines; 0: not found. */
static uint64_t number_line(const char *path, const char *key)
{
	FILE *f = fopen(path, "re");
	char line[256];
	unsigned long long n = 0;

	while (f && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key))) {
			n = strtoull(line + strlen(key), NULL, 10);
			break;
		}
	if (f)
		fclose(f);
	return n;
}

static uint64_t number_file(const char *path)
{
	FILE *f = fopen(path, "re");
	char text[64] = "";
	uint64_t v = UINT64_MAX;

	if (f && fgets(text, sizeof(text), f) && text[0] >= '0' && text[0] <= '9')
		v = strtoull(text, NULL, 10);
	if (f)
		fclose(f);
	return v;
}

uint64_t bench_memory_available(void)
{
	uint64_t machine = number_line("/proc/meminfo", "MemAvailable:") << 10;
	uint64_t limit = number_file("/sys/fs/cgroup/memory.max");
	uint64_t used = number_file("/sys/fs/cgroup/memory.current");
	uint64_t cached;

	if (limit == UINT64_MAX || used == UINT64_MAX)
		return machine;
	/* Cached files count as used and are released when memory is asked for. */
	cached = number_line("/sys/fs/cgroup/memory.stat", "inactive_file ");
	used = used > cached ? used - cached : 0;
	limit = limit > used ? limit - used : 0;
	return limit < machine ? limit : machine;
}

int bench_find_program(const char *name, const char *option, const char *given, char *path,
		       size_t bytes)
{
	static const char *const places[] = { "../tools/", "" };
	char self[4096];
	ssize_t n;
	char *slash;

	if (given) {
		if ((size_t)snprintf(path, bytes, "%s", given) < bytes && !access(path, X_OK))
			return 0;
		bench_complain("%s %s cannot be run: %s", option, given, strerror(errno));
		return -ENOENT;
	}
	n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[n > 0 ? n : 0] = 0;
	slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		if ((size_t)snprintf(path, bytes, "%s/%s%s", self, places[i], name) < bytes &&
		    !access(path, X_OK))
			return 0;
	bench_complain("there is no %s beside %s/ep-bench: build or install it, or name it with %s",
		       name, self, option);
	return -ENOENT;
}

int bench_private_dir(char *dir, size_t bytes)
{
	const char *const places[] = { getenv("TMPDIR"), "/tmp", "/dev/shm" };

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		if (!places[i] || !*places[i] || strlen(places[i]) + 32 > bytes)
			continue;
		snprintf(dir, bytes, "%s/ep-bench-XXXXXX", places[i]);
		if (mkdtemp(dir))
			return 0;
	}
	bench_complain("no directory can be made in TMPDIR, /tmp or /dev/shm: %s", strerror(errno));
	return -EACCES;
}
