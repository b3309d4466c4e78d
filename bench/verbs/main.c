/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench rawverbs: the rate of a bare verbs post loop of RDMA writes between two processes, with the letters, the head and the
 * table of perftest's ib_write_bw: the yardstick between that program and the fabric. Server and client like there.
 */
#include "bench/common/bench.h"
#include "bench/common/meet.h"
#include "bench/verbs/rawverbs.h"
#include "bootstrap/boot.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SIZE_MAX_BYTES (8u << 20)
#define SALT           0x5b

enum { O_OLD = 256, O_TIMEOUT };

struct opts {
	struct rawverbs_opts raw;
	const char *host;
	uint64_t tcp_port;
	uint64_t size;
	uint64_t iterations; /* 0: not given */
	uint64_t duration_s;
	uint64_t timeout_s;
	bool all;
};

/* What the server takes from the client. */
struct plan {
	uint64_t magic;
	uint64_t qps;
	uint64_t size; /* 0: all of them */
};

#define PLAN_MAGIC UINT64_C(0x3162766177617265)

static const struct argp_option options[] = {
	{ "ib-dev", 'd', "DEV", 0, "RDMA device (the first with an active port)", 0 },
	{ "ib-port", 'i', "PORT", 0, "port of the device (the first that is active)", 0 },
	{ "gid-index", 'x', "INDEX", 0, "GID (a routable one of RoCE v2 first)", 0 },
	{ "mtu", 'm', "BYTES", 0, "path MTU, 256 to 4096 (the port's)", 0 },
	{ "port", 'p', "PORT", 0, "TCP port to meet at (18515)", 0 },
	{ "size", 's', "BYTES", 0, "bytes of a write (65536)", 0 },
	{ "all", 'a', NULL, 0, "all sizes 2, 4, ... 8388608", 0 },
	{ "iters", 'n', "N", 0, "writes of a size (5000)", 0 },
	{ "duration", 'D', "S", 0, "seconds for a size, instead of a number of writes", 0 },
	{ "qp", 'q', "N", 0, "queue pairs (1)", 0 },
	{ "tx-depth", 't', "N", 0, "writes outstanding on a queue pair (128)", 0 },
	{ "post_list", 'l', "N", 0, "writes of one post (1)", 0 },
	{ "cq-mod", 'Q', "N", 0, "one completion every so many writes (that of -l)", 0 },
	{ "inline_size", 'I', "BYTES", 0, "writes of up to so many bytes go inline (0)", 0 },
	{ "qp-timeout", 'u', "N", 0, "retransmission timeout 4.096 us * 2^N (14)", 0 },
	{ "sl", 'S', "N", 0, "service level (0)", 0 },
	{ "CPU-freq", 'F', NULL, 0, "nothing: accepted because ib_write_bw has it", 0 },
	{ "use_old_post_send", O_OLD, NULL, 0,
	  "ibv_post_send lists even where there are ibv_wr_ functions", 0 },
	{ "timeout-s", O_TIMEOUT, "S", 0, "deadline for the other end (300)", 0 },
	{ 0 },
};

static int parse_raw(int key, const char *arg, struct rawverbs_opts *o)
{
	switch (key) {
	case 'd':
		if (strlen(arg) >= sizeof(o->device)) {
			bench_complain("-d is longer than %zu bytes", sizeof(o->device) - 1);
			return EINVAL;
		}
		snprintf(o->device, sizeof(o->device), "%s", arg);
		return 0;
	case 'i':
		return bench_uint("-i", arg, 1, 255, &o->port);
	case 'x':
		return bench_uint("-x", arg, 0, 255, &o->gid_index);
	case 'm':
		return bench_uint("-m", arg, 256, 4096, &o->mtu);
	case 'q':
		return bench_uint("-q", arg, 1, RAWVERBS_QPS_MAX, &o->qps);
	case 't':
		return bench_uint("-t", arg, 1, 16384, &o->depth);
	case 'l':
		return bench_uint("-l", arg, 1, 1024, &o->list);
	case 'Q':
		return bench_uint("-Q", arg, 1, 16384, &o->moderation);
	case 'I':
		return bench_uint("-I", arg, 0, 912, &o->inline_bytes);
	case 'u':
		return bench_uint("-u", arg, 1, 31, &o->timeout);
	case 'S':
		return bench_uint("-S", arg, 0, 15, &o->service_level);
	case O_OLD:
		o->lists = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;
	int rc;

	switch (key) {
	case 'p':
		return bench_uint("-p", arg, 1, 65535, &o->tcp_port) ? EINVAL : 0;
	case 's':
		return bench_uint("-s", arg, 1, SIZE_MAX_BYTES, &o->size) ? EINVAL : 0;
	case 'n':
		return bench_uint("-n", arg, 5, 100000000, &o->iterations) ? EINVAL : 0;
	case 'D':
		return bench_uint("-D", arg, 1, 3600, &o->duration_s) ? EINVAL : 0;
	case O_TIMEOUT:
		return bench_uint("--timeout-s", arg, 1, 86400, &o->timeout_s) ? EINVAL : 0;
	case 'a':
		o->all = true;
		return 0;
	case 'F':
		return 0;
	case ARGP_KEY_ARG:
		if (o->host) {
			bench_complain("%s is one host too many", arg);
			return EINVAL;
		}
		o->host = arg;
		return 0;
	default:
		rc = parse_raw(key, arg, &o->raw);
		return rc == ARGP_ERR_UNKNOWN ? rc : rc ? EINVAL : 0;
	}
}

static void head(const struct opts *o, const struct rawverbs *r)
{
	printf("---------------------------------------------------------------------------------------\n");
	printf("                    RDMA_Write %sBW Test, ep-bench rawverbs\n",
	       o->raw.list > 1 ? "Post List " : "");
	printf(" Device          : %s\n", rawverbs_text(r));
	printf(" Number of qps   : %" PRIu64 "\t\tTransport type : IB\n", o->raw.qps);
	printf(" Connection type : RC\t\tUsing SRQ      : OFF\n");
	printf(" ibv_wr* API     : %s\n", rawverbs_has_wr(r) ? "ON" : "OFF");
	printf(" TX depth        : %" PRIu64 "\n", o->raw.depth);
	if (o->raw.list > 1)
		printf(" Post List       : %" PRIu64 "\n", o->raw.list);
	printf(" CQ Moderation   : %" PRIu64 "\n",
	       o->raw.moderation ? o->raw.moderation : o->raw.list);
	printf(" Max inline data : %" PRIu64 "[B]\n", o->raw.inline_bytes);
	printf("---------------------------------------------------------------------------------------\n");
	printf(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n");
	fflush(stdout);
}

static unsigned all_sizes(const struct opts *o, uint64_t sizes[32])
{
	unsigned n = 0;

	if (!o->all)
		sizes[n++] = o->size;
	for (uint64_t s = 2; o->all && s <= SIZE_MAX_BYTES; s *= 2)
		sizes[n++] = s;
	return n;
}

static uint8_t pattern(uint64_t i, unsigned number)
{
	return (uint8_t)(i * 37 + (i >> 8) + number * 11 + SALT);
}

/* The client's half of one size. */
static int measure(const struct opts *o, struct rawverbs *r, uint64_t bytes)
{
	struct rawverbs_result res;
	uint64_t n = o->iterations ? o->iterations : 5000;
	char peak[32];
	double rate;
	int rc = rawverbs_write(r, 0, SIZE_MAX_BYTES, bytes, o->duration_s ? 0 : n,
				(double)o->duration_s, &res);

	if (rc) {
		bench_complain("%s", rawverbs_error(r));
		return rc;
	}
	rate = (double)res.writes / res.seconds;
	printf(" %-7" PRIu64 "    %-10" PRIu64 "       %-7s            %-7.2f\t\t     %-7.6f\n",
	       bytes, res.writes,
	       bench_figure(res.peak_per_second * (double)bytes / 1048576.0, peak),
	       rate * (double)bytes / 1048576.0, rate / 1e6);
	fflush(stdout);
	return 0;
}

/* One size after the other, each between two meetings; the server looks at what came. */
static int all_of_them(const struct opts *o, struct epf_boot *boot, struct rawverbs *r,
		       uint8_t *memory, uint64_t *wrong)
{
	uint64_t sizes[32], mine[2] = { 0 }, theirs[2];
	unsigned n = all_sizes(o, sizes);
	int rc = 0;

	for (unsigned i = 0; i < n && !rc; i++) {
		for (uint64_t b = 0; b < sizes[i] && o->host; b++)
			memory[b] = pattern(b, i);
		mine[0] = sizes[i];
		rc = bench_meet_swap(boot, mine, theirs, sizeof(mine));
		if (!rc && o->host)
			rc = measure(o, r, sizes[i]);
		if (!rc)
			rc = bench_meet_swap(boot, mine, theirs, sizeof(mine));
		for (uint64_t b = 0; b < theirs[0] && !rc && !o->host; b++)
			mine[1] += memory[SIZE_MAX_BYTES + b] != pattern(b, i);
	}
	if (!rc)
		rc = bench_meet_swap(boot, mine, theirs, sizeof(mine));
	*wrong = o->host ? theirs[1] : mine[1];
	return rc;
}

static int agree(struct opts *o, struct epf_boot *boot)
{
	struct plan mine = { .magic = PLAN_MAGIC, .qps = o->raw.qps, .size = o->all ? 0 : o->size };
	struct plan theirs;
	int rc = bench_meet_swap(boot, &mine, &theirs, sizeof(mine));

	if (rc || o->host)
		return rc;
	if (theirs.magic != PLAN_MAGIC || theirs.qps < 1 || theirs.qps > RAWVERBS_QPS_MAX ||
	    theirs.size > SIZE_MAX_BYTES) {
		bench_complain("the client is of another release, or no ep-bench rawverbs");
		return -EPROTO;
	}
	o->raw.qps = theirs.qps;
	o->all = theirs.size == 0;
	o->size = theirs.size;
	return 0;
}

static int run(struct opts *o, struct epf_boot *boot, uint8_t *memory, uint64_t *wrong)
{
	struct rawverbs_address mine, theirs;
	struct rawverbs *r = NULL;
	int rc = agree(o, boot);

	if (!rc)
		rc = rawverbs_open(&o->raw, memory, 2ull * SIZE_MAX_BYTES, &r);
	if (rc)
		return rc;
	rawverbs_address(r, &mine);
	rc = bench_meet_swap(boot, &mine, &theirs, sizeof(mine));
	if (!rc)
		rc = rawverbs_connect(r, &theirs);
	if (!rc && o->host)
		head(o, r);
	if (!rc)
		rc = all_of_them(o, boot, r, memory, wrong);
	rawverbs_close(r);
	return rc;
}

int bench_rawverbs(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[HOST]",
		.doc = "Rate of a bare loop of RDMA writes; the letters of ib_write_bw. Without HOST: waits for a client "
		       "and takes sizes and -q from it; beyond loopback both need EPF_SECRET or EPF_SECRET_FILE.",
	};
	struct opts o = { .tcp_port = BENCH_MEET_PORT, .size = 65536, .timeout_s = 300 };
	struct epf_boot *boot = NULL;
	uint64_t wrong = 0;
	uint8_t *memory;
	int rc;

	rawverbs_defaults(&o.raw);
	if (argp_parse(&argp, argc, argv, 0, NULL, &o) || rawverbs_check(&o.raw))
		return BENCH_USAGE;
	if (o.duration_s && o.iterations) {
		bench_complain("-D is given, must not be together with -n");
		return BENCH_USAGE;
	}
	memory = mmap(NULL, 2ull * SIZE_MAX_BYTES, PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		bench_complain("no memory for two times %u bytes", SIZE_MAX_BYTES);
		return BENCH_WRONG;
	}
	/* Before it waits for a client in vain. */
	if (!o.host && rawverbs_probe(&o.raw)) {
		munmap(memory, 2ull * SIZE_MAX_BYTES);
		return BENCH_WRONG;
	}
	if (!o.host)
		printf("# waiting for a client at port %" PRIu64 "\n", o.tcp_port);
	fflush(stdout);
	rc = bench_meet(o.host, o.tcp_port, o.timeout_s * 1000000000ull, &boot);
	if (!rc)
		rc = run(&o, boot, memory, &wrong);
	epf_boot_close(boot);
	munmap(memory, 2ull * SIZE_MAX_BYTES);
	if (rc)
		return BENCH_WRONG;
	printf("# wrong: %" PRIu64 "\n", wrong);
	return wrong ? BENCH_WRONG : BENCH_OK;
}
