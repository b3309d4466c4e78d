/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rank process's side of spawn.h: who am I, how do I reach the others, how do I tell the
 * parent. Must not write to stdout: that is the parent's.
 */
#include "bench/common/bench.h"
#include "bench/common/spawn.h"

#include "bootstrap/boot.h"
#include "fabric/base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static int parent_fd = -1;

void bench_child_send(uint32_t kind, uint32_t a, uint32_t b, const void *bytes, size_t n)
{
	char buf[sizeof(struct bench_message) + BENCH_MSG_MAX];
	struct bench_message head = { .kind = kind, .bytes = (uint32_t)n, .a = a, .b = b };
	size_t len = sizeof(head) + n;
	size_t done = 0;

	if (parent_fd < 0 || n > BENCH_MSG_MAX)
		return;
	memcpy(buf, &head, sizeof(head));
	if (n)
		memcpy(buf + sizeof(head), bytes, n);
	while (done < len) {
		ssize_t w = write(parent_fd, buf + done, len - done);

		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			return; /* the parent is gone, and this process with it */
		done += (size_t)w;
	}
}

static void tell_parent(const char *line)
{
	bench_child_send(BENCH_MSG_ERROR, 0, 0, line, strlen(line));
}

static int env_number(const char *name, uint32_t *out)
{
	const char *text = getenv(name);
	uint64_t v;

	if (!text) {
		bench_complain("%s is not set: this subcommand is started by ep-bench only", name);
		return -EINVAL;
	}
	if (bench_uint(name, text, 0, UINT32_MAX, &v))
		return -EINVAL;
	*out = (uint32_t)v;
	return 0;
}

uint32_t bench_child_job(void)
{
	const char *text = getenv("EP_BENCH_JOB");

	return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

int bench_child_share(void)
{
	uint32_t fd;

	return getenv("EP_BENCH_SHARE_FD") && !env_number("EP_BENCH_SHARE_FD", &fd) ? (int)fd : -1;
}

int bench_child_start(uint32_t *rank, uint32_t *ranks, uint64_t timeout_ns, struct epf_boot **boot)
{
	struct epf_boot_opts opts = { .size = sizeof(opts), .timeout_ns = timeout_ns };
	uint32_t fd;
	int err;

	if (env_number("EP_BENCH_FD", &fd) || env_number("EPF_RANK", rank) ||
	    env_number("EPF_WORLD_SIZE", ranks))
		return -EINVAL;
	parent_fd = (int)fd;
	bench_complain_to(tell_parent);
	(void)signal(SIGPIPE, SIG_IGN);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	opts.rank = *rank;
	opts.world = *ranks;
	opts.rendezvous = getenv("EPF_RENDEZVOUS");
	opts.job = "ep-bench";
	err = epf_boot_tcp_open(&opts, boot);
	if (err)
		bench_complain("%s", epf_last_error());
	return err;
}
