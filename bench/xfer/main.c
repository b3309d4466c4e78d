/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench xfer: rate and latency of point-to-point transfers between two processes of this host: blocks of one size, apart and shuffled
 * like the pages of a KV cache, or one after the other; memory as NumPy has it, from epf_p2p_alloc() or of GPUs. Verifies every byte. Prints the load of
 * the machine, and for host memory a memcpy of the same blocks within one process for comparison. bench/nixl/xfer.py measures the same by NIXL's
 * agents, beside its UCX back end.
 */
#include "bench/common/bench.h"
#include "bench/common/json.h"
#include "bench/xfer/many.h"
#include "bench/xfer/meet.h"
#include "bench/xfer/memory.h"
#include "bench/xfer/values.h"
#include "fabric/base/clock.h"
#include "fabric/client/epf.h"
#include "fabric/p2p/epf_p2p.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	O_BYTES = 256,
	O_BLOCKS,
	O_GAP,
	O_ORDER,
	O_READ,
	O_MAPPED,
	O_NIC,
	O_REPEAT,
	O_NOTE,
	O_THREADS,
	O_JSON,
	O_TARGET,
	O_PEER,
	O_COMPRESS,
	O_GPU,
	O_GPU_BACKEND,
	O_CONNECTIONS,
	SETTINGS_MAX = 6,
};

struct opts {
	uint64_t bytes, blocks, gap, repeat, threads;
	uint64_t connections; /* of a target: what each costs; 0: transfers are measured */
	uint64_t port;        /* where to be the target; 0: not the target side of two hosts */
	bool in_order, read, mapped, note, json;
	char nic[64], peer[128], compress[32];
	int gpu, peer_gpu; /* EPF_P2P_HOST: host memory */
	const char *gpu_backend;
};

static const struct argp_option options[] = {
	{ "bytes", O_BYTES, "N", 0, "bytes of a block (4096)", 0 },
	{ "blocks", O_BLOCKS, "N", 0, "blocks of a transfer (16000)", 0 },
	{ "gap", O_GAP, "N", 0, "bytes between blocks (128)", 0 },
	{ "in-order", O_ORDER, NULL, 0,
	  "blocks in the order of their addresses instead of shuffled", 0 },
	{ "read", O_READ, NULL, 0, "read instead of write", 0 },
	{ "mapped", O_MAPPED, NULL, 0, "memory of epf_p2p_alloc() instead of NumPy's kind", 0 },
	{ "nic", O_NIC, "NAME", 0, "over this NIC, as between hosts", 0 },
	{ "note", O_NOTE, NULL, 0,
	  "with a notification, which the peer answers: half of the round trip", 0 },
	{ "threads", O_THREADS, "N", 0, "threads, each of which transfers its part (1)", 0 },
	{ "repeat", O_REPEAT, "N", 0, "how often; the median and the best are printed (9)", 0 },
	{ "target", O_TARGET, "PORT", 0,
	  "be the target of an initiator on another host, which connects to this TCP port", 0 },
	{ "peer", O_PEER, "HOST:PORT", 0,
	  "be the initiator, with the target there; both sides need the same other options", 0 },
	{ "compress", O_COMPRESS, "HOW", 0,
	  "values of bf16, compressed over a NIC where that saves time: none, split or full", 0 },
	{ "gpu", O_GPU, "N[:M]", 0, "memory of GPU N, and of the peer's GPU M (N)", 0 },
	{ "gpu-backend", O_GPU_BACKEND, "NAME", 0,
	  "driver of the GPU: auto, cuda, hip or fake (auto)", 0 },
	{ "connections", O_CONNECTIONS, "N", 0,
	  "so many endpoints connect to a target: how long that takes, and what the target has and uses for each",
	  0 },
	{ "json", O_JSON, NULL, 0, "print one JSON object", 0 },
	{ 0 },
};

static int parse_gpus(const char *arg, struct opts *o)
{
	char end;
	int n = sscanf(arg, "%d:%d%c", &o->gpu, &o->peer_gpu, &end);

	if (n == 1 && !strchr(arg, ':'))
		o->peer_gpu = o->gpu;
	if (n == (strchr(arg, ':') ? 2 : 1) && o->gpu >= 0 && o->peer_gpu >= 0)
		return 0;
	bench_complain("--gpu %s: expected the number of a GPU, or N:M of two", arg);
	return EINVAL;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct opts *o = state->input;
	int err = 0;

	switch (key) {
	case O_BYTES:
		err = bench_uint("--bytes", arg, 1, 1ull << 31, &o->bytes);
		break;
	case O_BLOCKS:
		err = bench_uint("--blocks", arg, 1, 1 << 24, &o->blocks);
		break;
	case O_GAP:
		err = bench_uint("--gap", arg, 0, 1 << 20, &o->gap);
		break;
	case O_REPEAT:
		err = bench_uint("--repeat", arg, 1, 1000, &o->repeat);
		break;
	case O_THREADS:
		err = bench_uint("--threads", arg, 1, 64, &o->threads);
		break;
	case O_CONNECTIONS:
		err = bench_uint("--connections", arg, 1, 4000, &o->connections);
		break;
	case O_ORDER:
		o->in_order = true;
		break;
	case O_READ:
		o->read = true;
		break;
	case O_MAPPED:
		o->mapped = true;
		break;
	case O_NOTE:
		o->note = true;
		break;
	case O_JSON:
		o->json = true;
		break;
	case O_TARGET:
		err = bench_uint("--target", arg, 1, 65535, &o->port);
		break;
	case O_PEER:
		err = !strchr(arg, ':') || strlen(arg) >= sizeof(o->peer);
		snprintf(o->peer, sizeof(o->peer), "%s", arg);
		if (err)
			bench_complain("--peer %s: expected HOST:PORT", arg);
		break;
	case O_COMPRESS:
		snprintf(o->compress, sizeof(o->compress), "p2p-compress=%.18s", arg);
		break;
	case O_GPU:
		err = parse_gpus(arg, o);
		break;
	case O_GPU_BACKEND:
		o->gpu_backend = arg;
		break;
	case O_NIC:
		snprintf(o->nic, sizeof(o->nic), "nic=%.59s", arg);
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	return err ? EINVAL : 0;
}

static uint64_t span(const struct opts *o)
{
	return o->blocks * (o->bytes + o->gap);
}

static int open_endpoint(const struct opts *o, const char *name, struct epf_p2p **ep)
{
	const char *settings[SETTINGS_MAX] = { NULL };
	struct epf_p2p_options p;
	char gpu[64];
	int n = 0;

	if (o->nic[0]) {
		settings[n++] = o->nic;
		settings[n++] = "p2p-local=no";
	}
	if (o->compress[0])
		settings[n++] = o->compress;
	snprintf(gpu, sizeof(gpu), "gpu-backend=%.40s", o->gpu_backend);
	if (o->gpu >= 0)
		settings[n++] = gpu;
	epf_p2p_options_init(&p);
	p.name = name;
	p.settings = settings;
	return bench_check(epf_p2p_open(&p, ep));
}

/* Memory with the values of initiator or target, which is `which`. */
static int get_memory(const struct opts *o, struct epf_p2p *ep, int which, struct xfer_memory *m)
{
	int rc;

	m->bytes = span(o);
	m->device = which == 1 ? o->peer_gpu : o->gpu;
	rc = xfer_memory_make(m, ep, o->mapped, o->gpu_backend);
	if (rc)
		return rc;
	xfer_fill(m->host, m->bytes, which, o->compress[0]);
	return xfer_memory_set(m);
}

/* Answers notifications until the other side closes the socket. */
static void answer(struct epf_p2p *ep, int fd)
{
	struct epf_p2p_event e;

	while (epf_p2p_wait_event(ep, 60000000000ull) == 0)
		if (epf_p2p_events(ep, &e, 1) == 1) {
			bool is_note = e.kind == EPF_P2P_NOTE, is_lost = e.kind == EPF_P2P_LOST;

			epf_p2p_event_free(&e);
			if (is_lost)
				break;
			if (is_note)
				(void)epf_p2p_notify(ep, e.conn, "a", 1, 0);
		}
	(void)fd;
}

/* The peer: memory with its own values, told by a byte to answer, or to say how many bytes of the blocks are not the initiator's. */
static int target(const struct opts *o, int fd)
{
	struct xfer_hello h = { 0 };
	struct epf_p2p *ep;
	uint64_t region, wrong = 0;
	struct xfer_memory m;
	char command;
	int n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (open_endpoint(o, "target", &ep) || get_memory(o, ep, 1, &m) ||
	    bench_check(epf_p2p_register(ep, m.at, m.bytes, m.device, &region)) ||
	    bench_check(epf_p2p_export(ep, region, 0, span(o), EPF_P2P_READ | EPF_P2P_WRITE, 0, 0,
				       h.key)))
		return 1;
	n = epf_p2p_metadata(ep, h.metadata, sizeof(h.metadata));
	h.metadata_bytes = (uint32_t)n;
	if (n < 0 || !xfer_put(fd, &h, sizeof(h)))
		return 1;
	while (xfer_get(fd, &command, 1)) {
		if (command == 'n') {
			answer(ep, fd);
			break;
		}
		if (command == 'p') {
			struct xfer_cost cost;

			xfer_cost_now(&cost);
			if (!xfer_put(fd, &cost, sizeof(cost)))
				return 1;
			continue;
		}
		if (xfer_memory_see(&m))
			return 1;
		for (uint64_t i = 0; i < o->blocks; i++)
			wrong += xfer_wrong(m.host, i * (o->bytes + o->gap), o->bytes, 2,
					    o->compress[0]);
		if (!xfer_put(fd, &wrong, sizeof(wrong)))
			return 1;
	}
	epf_p2p_close(ep);
	xfer_memory_free(&m);
	return 0;
}

static struct epf_p2p_block *make_blocks(const struct opts *o)
{
	struct epf_p2p_block *b = calloc(o->blocks, sizeof(*b));
	uint64_t seed = 99;

	for (uint64_t i = 0; b && i < o->blocks; i++)
		b[i] = epf_p2p_block(i * (o->bytes + o->gap), i * (o->bytes + o->gap),
				     (uint32_t)o->bytes);
	for (uint64_t i = o->blocks - 1; b && !o->in_order && i > 0; i--) {
		uint64_t j = (seed = seed * 6364136223846793005ull + 1442695040888963407ull,
			      (seed >> 33) % (i + 1));
		struct epf_p2p_block t = b[i];

		b[i] = b[j];
		b[j] = t;
	}
	return b;
}

struct worker {
	struct epf_p2p_xfer *x;
	pthread_barrier_t *start;
	uint64_t end_ns, wait_ns;
	bool note;
	int rc;
};

static void *work(void *arg)
{
	struct worker *w = arg;

	pthread_barrier_wait(w->start);
	w->rc = epf_p2p_post(w->x, w->note ? "n" : NULL, w->note);
	if (!w->rc)
		w->rc = epf_p2p_wait(w->x, 0);
	w->end_ns = epf_now_ns();
	return NULL;
}

/* One timed round of all threads, ns; 0 after a complaint. */
static double run_round(struct epf_p2p *ep, const struct opts *o, struct epf_p2p_xfer **x)
{
	struct worker w[64];
	pthread_t thread[64];
	pthread_barrier_t start;
	uint64_t begin, last = 0;
	struct epf_p2p_event e;
	int rc = 0;

	pthread_barrier_init(&start, NULL, (unsigned)o->threads);
	for (uint64_t i = 0; i < o->threads; i++)
		w[i] = (struct worker){ .x = x[i], .start = &start, .note = o->note && i == 0 };
	begin = epf_now_ns();
	for (uint64_t i = 1; i < o->threads; i++)
		rc |= pthread_create(&thread[i], NULL, work, &w[i]);
	if (rc) {
		bench_complain("xfer: no threads");
		exit(BENCH_WRONG);
	}
	work(&w[0]);
	for (uint64_t i = 1; i < o->threads; i++)
		pthread_join(thread[i], NULL);
	for (uint64_t i = 0; i < o->threads; i++) {
		rc = rc ? rc : w[i].rc;
		last = w[i].end_ns > last ? w[i].end_ns : last;
	}
	pthread_barrier_destroy(&start);
	if (bench_check(rc))
		return 0;
	for (bool got = !o->note; !got;) {
		if (bench_check(epf_p2p_wait_event(ep, 0)))
			return 0;
		if (epf_p2p_events(ep, &e, 1) == 1) {
			got = e.kind == EPF_P2P_NOTE;
			epf_p2p_event_free(&e);
		}
		last = epf_now_ns();
	}
	return (double)(last - begin) / (o->note ? 2 : 1);
}

static double copy_here(const struct opts *o, const struct epf_p2p_block *b, const uint8_t *from,
			uint8_t *to)
{
	uint64_t begin = epf_now_ns();

	for (uint64_t i = 0; i < o->blocks; i++)
		memcpy(to + (b[i].lo & 0xffffffffffffull), from + (b[i].lo & 0xffffffffffffull),
		       o->bytes);
	return (double)(epf_now_ns() - begin);
}

struct result {
	double ns[1000], copy_ns[1000], post_ns;
	double median, best, copy_median;
	uint64_t wrong;
	struct epf_p2p_peer peer;
};

static void print(const struct opts *o, const struct result *r)
{
	double bytes = (double)(o->bytes * o->blocks), load[1] = { 0 };
	char memory[48];

	(void)getloadavg(load, 1);
	if (o->json) {
		json_t *j = json_pack(
			"{s:I, s:I, s:s, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
			"compressed_from_bytes", (json_int_t)r->peer.packed_from,
			"compressed_to_bytes", (json_int_t)r->peer.packed_to, "bench", "xfer",
			"bytes", (json_int_t)o->bytes, "blocks", (json_int_t)o->blocks, "op",
			o->read ? "read" : "write", "median_us", r->median / 1e3, "best_us",
			r->best / 1e3, "bytes_per_second", bytes / r->median * 1e9,
			"best_bytes_per_second", bytes / r->best * 1e9, "prepare_ns_per_block",
			r->post_ns, "load", load[0], "wrong", (json_int_t)r->wrong);

		bench_print_json(j);
		return;
	}
	if (o->gpu >= 0)
		snprintf(memory, sizeof(memory), "GPUs %d and %d", o->gpu, o->peer_gpu);
	printf("# ep-bench xfer: %s, %" PRIu64 " blocks of %" PRIu64 " bytes, %" PRIu64
	       " apart, %s, memory of %s, %s, %" PRIu64 " threads, load %.2f\n",
	       o->read ? "read" : "write", o->blocks, o->bytes, o->gap,
	       o->in_order ? "in order" : "shuffled",
	       o->gpu >= 0 ? memory
	       : o->mapped ? "epf_p2p_alloc"
			   : "NumPy's kind",
	       o->nic[0] ? o->nic : "local", o->threads, load[0]);
	printf("#%13s %13s %13s %13s %18s %14s\n", "median_us", "best_us", "GB/s", "best GB/s",
	       "prepare_ns/block", "memcpy GB/s");
	printf(" %13.2f %13.2f %13.3f %13.3f %18.1f ", r->median / 1e3, r->best / 1e3,
	       bytes / r->median, bytes / r->best, r->post_ns);
	if (o->gpu >= 0)
		printf("%14s\n", "-");
	else
		printf("%14.3f\n", bytes / r->copy_median);
	if (o->compress[0])
		printf("# compressed: %" PRIu64 " of %.0f bytes, to %" PRIu64 "\n",
		       r->peer.packed_from, bytes * (double)(o->repeat + 1), r->peer.packed_to);
	printf("# wrong: %" PRIu64 "\n", r->wrong);
}

static int prepare(struct epf_p2p *ep, const struct opts *o, uint64_t conn, uint64_t region,
		   uint64_t import, const struct epf_p2p_block *b, struct epf_p2p_xfer **x,
		   double *ns)
{
	uint64_t begin = epf_now_ns();
	int rc = 0;

	for (uint64_t i = 0; i < o->threads && !rc; i++) {
		uint64_t first = o->blocks * i / o->threads, end = o->blocks * (i + 1) / o->threads;
		struct epf_p2p_vector v = { region, import, b + first, end - first };

		rc = bench_check(epf_p2p_prepare(ep, conn,
						 o->read ? EPF_P2P_OP_READ : EPF_P2P_OP_WRITE, &v,
						 1, NULL, &x[i]));
	}
	*ns = (double)(epf_now_ns() - begin) / (double)o->blocks;
	return rc;
}

static void check_read(const struct opts *o, const uint8_t *mine, struct result *r)
{
	for (uint64_t i = 0; i < o->blocks; i++)
		r->wrong += xfer_wrong(mine, i * (o->bytes + o->gap), o->bytes, 1, o->compress[0]);
}

static int initiate(const struct opts *o, int fd, struct result *r)
{
	struct epf_p2p_block *b = make_blocks(o);
	struct epf_p2p_xfer *x[64];
	uint64_t conn, region, import;
	struct epf_p2p *ep;
	struct xfer_memory mine;
	uint8_t *other = NULL;
	struct xfer_hello h;

	r->peer.size = sizeof(r->peer);

	if (!b || open_endpoint(o, "initiator", &ep) || get_memory(o, ep, 2, &mine) ||
	    !xfer_get(fd, &h, sizeof(h)))
		return -EIO;
	if (bench_check(epf_p2p_connect(ep, h.metadata, h.metadata_bytes, 0, &conn)) ||
	    bench_check(epf_p2p_register(ep, mine.at, mine.bytes, mine.device, &region)) ||
	    bench_check(epf_p2p_set_float(ep, region,
					  o->compress[0] ? EPF_P2P_BF16 : EPF_P2P_NO_FLOAT)) ||
	    bench_check(epf_p2p_import(ep, conn, h.key, 0, &import)) ||
	    prepare(ep, o, conn, region, import, b, x, &r->post_ns))
		return -EIO;
	if (o->note && !xfer_put(fd, "n", 1))
		return -EIO;
	if (!mine.gpu) {
		other = xfer_as_numpy(span(o));
		if (!other)
			return -ENOMEM;
		memset(other, 1, span(o));
	}
	for (uint64_t i = 0; i < o->repeat + 1; i++) { /* the first touches the pages */
		double copy = other ? copy_here(o, b, mine.host, other) : 0;
		double ns = run_round(ep, o, x);

		if (ns <= 0) {
			free(other);
			return -EIO;
		}
		if (i) {
			r->copy_ns[i - 1] = copy;
			r->ns[i - 1] = ns;
		}
	}
	free(other);
	if (o->read && xfer_memory_see(&mine))
		return -EIO;
	if (o->read)
		check_read(o, mine.host, r);
	else if (!o->note && (!xfer_put(fd, "c", 1) || !xfer_get(fd, &r->wrong, sizeof(r->wrong))))
		return -EIO;
	if (bench_check(epf_p2p_peer(ep, conn, &r->peer)))
		return -EIO;
	r->median = bench_median(r->ns, o->repeat);
	r->best = r->ns[0];
	r->copy_median = bench_median(r->copy_ns, o->repeat);
	for (uint64_t i = 0; i < o->threads; i++)
		epf_p2p_xfer_free(x[i]);
	epf_p2p_close(ep);
	xfer_memory_free(&mine);
	free(b);
	return 0;
}

static int open_one(const void *arg, const char *name, struct epf_p2p **ep)
{
	return open_endpoint(arg, name, ep);
}

static int connect_many(const struct opts *o, int fd, struct result *r)
{
	struct xfer_many m = { .open = open_one,
			       .arg = o,
			       .connections = o->connections,
			       .bytes = o->bytes,
			       .stride = o->bytes + o->gap,
			       .value = 2,
			       .json = o->json };

	return xfer_many(&m, fd, &r->wrong);
}

/* Runs one of two sides that are on different hosts. */
static int one_side(const struct opts *o, struct result *r)
{
	int fd = o->port ? xfer_listen(o->port) : xfer_dial(o->peer), err;

	if (fd < 0)
		return BENCH_WRONG;
	err = o->port          ? target(o, fd)
	      : o->connections ? connect_many(o, fd, r)
			       : initiate(o, fd, r);
	close(fd);
	if (err)
		return BENCH_WRONG;
	if (!o->port && !o->connections)
		print(o, r);
	return r->wrong ? BENCH_WRONG : BENCH_OK;
}

int bench_xfer(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "Point-to-point transfers between two processes of this host."
	};
	struct opts o = { .bytes = 4096,
			  .blocks = 16000,
			  .gap = 128,
			  .repeat = 9,
			  .threads = 1,
			  .gpu = EPF_P2P_HOST,
			  .peer_gpu = EPF_P2P_HOST,
			  .gpu_backend = "auto" };
	static struct result r;
	int fd[2], status = 0, err;
	pid_t pid;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return BENCH_USAGE;
	if (o.connections) /* a block for each, whatever else was asked for */
		o.blocks = o.connections;
	if (o.threads > o.blocks) {
		bench_complain("--threads is at most the number of blocks");
		return BENCH_USAGE;
	}
	if (o.connections && (o.read || o.note || o.compress[0] || o.gpu >= 0 || o.threads > 1)) {
		bench_complain(
			"--connections writes host memory once over each: leave out the other options");
		return BENCH_USAGE;
	}
	if (o.mapped && o.gpu >= 0) {
		bench_complain("--mapped is host memory: leave out --gpu, or it");
		return BENCH_USAGE;
	}
	if (o.port || o.peer[0])
		return one_side(&o, &r);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
		return BENCH_WRONG;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		close(fd[0]);
		_exit(target(&o, fd[1]));
	}
	close(fd[1]);
	err = pid < 0         ? -errno
	      : o.connections ? connect_many(&o, fd[0], &r)
			      : initiate(&o, fd[0], &r);
	close(fd[0]);
	if (err && pid > 0)
		kill(pid, SIGKILL);
	if (pid > 0)
		waitpid(pid, &status, 0);
	if (err || status)
		return BENCH_WRONG;
	if (!o.connections)
		print(&o, &r);
	return r.wrong ? BENCH_WRONG : BENCH_OK;
}
