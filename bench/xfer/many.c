/* SPDX-License-Identifier: Apache-2.0 */
/* ep-bench xfer --connections (many.h). */
#include "bench/xfer/many.h"

#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/xfer/meet.h"
#include "bench/xfer/values.h"
#include "fabric/base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SETTLE_S = 1, IDLE_S = 5 };

static uint64_t entries(const char *path)
{
	DIR *d = opendir(path);
	uint64_t n = 0;

	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

void xfer_cost_now(struct xfer_cost *out)
{
	FILE *f = fopen("/proc/self/status", "r");
	struct timespec cpu;
	char line[256];

	memset(out, 0, sizeof(*out));
	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "VmRSS:", 6) == 0)
			out->rss_kib = strtoull(line + 6, NULL, 10);
	if (f)
		fclose(f);
	out->threads = entries("/proc/self/task");
	out->files = entries("/proc/self/fd");
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
	out->cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
	out->clock_ns = epf_now_ns();
}

static bool ask(int fd, struct xfer_cost *out)
{
	return xfer_put(fd, "p", 1) && xfer_get(fd, out, sizeof(*out));
}

/* One endpoint: its connection, and a write of its block. Returns ns until it was written, 0 after a complaint. */
static double connect_one(const struct xfer_many *m, const struct xfer_hello *h, uint64_t i,
			  uint8_t *memory, struct epf_p2p **ep)
{
	uint64_t begin, conn, region, import;
	char name[32];

	snprintf(name, sizeof(name), "initiator%llu", (unsigned long long)i);
	if (m->open(m->arg, name, ep) ||
	    bench_check(epf_p2p_register(*ep, memory, m->bytes, EPF_P2P_HOST, &region)))
		return 0;
	begin = epf_now_ns();
	if (bench_check(epf_p2p_connect(*ep, h->metadata, h->metadata_bytes, 0, &conn)) ||
	    bench_check(epf_p2p_import(*ep, conn, h->key, 0, &import)) ||
	    bench_check(epf_p2p_write(*ep, conn, region, 0, import, i * m->stride, m->bytes, 0)))
		return 0;
	return (double)(epf_now_ns() - begin);
}

static void rest(unsigned seconds)
{
	struct timespec t = { .tv_sec = seconds };

	nanosleep(&t, NULL);
}

static double each(uint64_t before, uint64_t after, const struct xfer_many *m)
{
	return after > before ? (double)(after - before) / (double)m->connections : 0;
}

static void print(const struct xfer_many *m, double *ns, const struct xfer_cost c[3],
		  uint64_t wrong)
{
	double total = 0, median, percent, load[1] = { 0 };

	for (uint64_t i = 0; i < m->connections; i++)
		total += ns[i];
	median = bench_median(ns, m->connections);
	percent = 100.0 * (double)(c[2].cpu_ns - c[1].cpu_ns) /
		  (double)(c[2].clock_ns - c[1].clock_ns);
	(void)getloadavg(load, 1);
	if (m->json) {
		bench_print_json(json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
					   "bench", "xfer-connections", "connections",
					   (json_int_t)m->connections, "total_ms", total / 1e6,
					   "median_ms", median / 1e6, "rss_kib_each",
					   each(c[0].rss_kib, c[1].rss_kib, m), "threads_each",
					   each(c[0].threads, c[1].threads, m), "files_each",
					   each(c[0].files, c[1].files, m), "idle_cpu_percent",
					   percent, "load", load[0], "wrong", (json_int_t)wrong));
		return;
	}
	printf("# ep-bench xfer: %llu connections of a target, load %.2f; at the target for each:\n",
	       (unsigned long long)m->connections, load[0]);
	printf("#%12s %12s %10s %10s %10s %24s\n", "total_ms", "median_ms", "KiB", "threads",
	       "files", "idle CPU of all, percent");
	printf(" %12.1f %12.3f %10.0f %10.1f %10.1f %24.2f\n", total / 1e6, median / 1e6,
	       each(c[0].rss_kib, c[1].rss_kib, m), each(c[0].threads, c[1].threads, m),
	       each(c[0].files, c[1].files, m), percent);
	printf("# wrong: %llu\n", (unsigned long long)wrong);
}

int xfer_many(const struct xfer_many *m, int fd, uint64_t *wrong)
{
	struct epf_p2p **ep = calloc(m->connections, sizeof(*ep));
	double *ns = calloc(m->connections, sizeof(*ns));
	uint8_t *memory = malloc(m->bytes);
	struct xfer_cost cost[3];
	struct xfer_hello h;
	int rc = ep && ns && memory ? 0 : -ENOMEM;

	if (!rc && (!xfer_get(fd, &h, sizeof(h)) || !ask(fd, &cost[0])))
		rc = -EIO;
	if (!rc)
		xfer_fill(memory, m->bytes, m->value, false);
	for (uint64_t i = 0; i < m->connections && !rc; i++) {
		ns[i] = connect_one(m, &h, i, memory, &ep[i]);
		rc = ns[i] > 0 ? 0 : -EIO;
	}
	rest(rc ? 0 : SETTLE_S);
	if (!rc && !ask(fd, &cost[1]))
		rc = -EIO;
	rest(rc ? 0 : IDLE_S);
	if (!rc &&
	    (!ask(fd, &cost[2]) || !xfer_put(fd, "c", 1) || !xfer_get(fd, wrong, sizeof(*wrong))))
		rc = -EIO;
	if (!rc)
		print(m, ns, cost, *wrong);
	else
		bench_complain(
			"--connections: not finished: %s; if nothing else was said, look at the target's output",
			strerror(-rc));
	for (uint64_t i = 0; ep && i < m->connections; i++)
		if (ep[i])
			epf_p2p_close(ep[i]);
	free(memory);
	free(ns);
	free(ep);
	return rc;
}
