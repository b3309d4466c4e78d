/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bare pipeline from one GPU to another over one socket, the yardstick for large puts of GPU memory over nic=tcp: copies from the GPU to pinned memory and from pinned memory to
 * the GPU, both overlapped with the socket by two buffers. No fabric. Usage: gpupipe PORT BACKEND DEVICE BYTES COUNT [HOST]; BACKEND: auto, cuda, hip or fake; with
 * HOST it sends COUNT pieces of BYTES and prints GB/s, without it receives them. Both ends compare the last piece. Exit status 77: no GPU. For tests/gpu/hosts.sh.
 */
#include "bench/hosts/sock.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"

#include <sched.h>
#include <sys/mman.h>

enum { BUFFERS = 2, BYTES_MOST = 64 << 20 };

struct pipe {
	const struct epf_copy_ops *ops;
	struct epf_copy_queue *queue;
	uint8_t *buffer[BUFFERS]; /* pinned */
	uint64_t gpu, bytes;
	int fd;
};

static int fail(const char *what)
{
	fprintf(stderr, "gpupipe: %s\n", what);
	return EXIT_FAILURE;
}

static int await(struct pipe *p, uint64_t value)
{
	uint64_t reached;

	while ((reached = p->ops->reached(p->queue)) < value)
		sched_yield();
	return reached == UINT64_MAX ? -1 : 0;
}

/* Copy number i, from 1, between the GPU and its buffer. */
static int submit(struct pipe *p, uint64_t i, bool to_gpu)
{
	uint64_t host = (uint64_t)(uintptr_t)p->buffer[i % BUFFERS];
	struct epf_copy_span s = { .dst = to_gpu ? p->gpu : host,
				   .src = to_gpu ? host : p->gpu,
				   .bytes = p->bytes,
				   .host = 1 };

	return p->ops->submit(p->queue, &s, 1, i);
}

static int send_all(struct pipe *p, uint64_t count)
{
	if (submit(p, 1, false))
		return -1;
	for (uint64_t i = 1; i <= count; i++) {
		if (await(p, i) || (i < count && submit(p, i + 1, false)) ||
		    sock_move(p->fd, p->buffer[i % BUFFERS], p->bytes, true, 0))
			return -1;
	}
	return 0;
}

static int receive_all(struct pipe *p, uint64_t count)
{
	for (uint64_t i = 1; i <= count; i++) {
		/* The previous copy from this buffer is complete. */
		if ((i > BUFFERS && await(p, i - BUFFERS)) ||
		    sock_move(p->fd, p->buffer[i % BUFFERS], p->bytes, false, 0) ||
		    submit(p, i, true))
			return -1;
	}
	return await(p, count);
}

static uint8_t byte_at(uint64_t i)
{
	return (uint8_t)(i * 7 + (i >> 8));
}

static int check(struct pipe *p)
{
	if (p->ops->copy(p->buffer[0], (const void *)(uintptr_t)p->gpu, p->bytes))
		return -1;
	for (uint64_t i = 0; i < p->bytes; i++)
		if (p->buffer[0][i] != byte_at(i))
			return -1;
	return 0;
}

static int open_pipe(struct pipe *p, const char *backend, int device, bool sends)
{
	void *memory;

	if (epf_copy_ops_find(backend, &p->ops) || p->ops->load() ||
	    p->ops->mem_alloc(device, p->bytes, &memory) ||
	    p->ops->queue_open(device, EPF_COPY_ENGINES, &p->queue))
		return -1;
	p->gpu = (uint64_t)(uintptr_t)memory;
	for (int b = 0; b < BUFFERS; b++) {
		p->buffer[b] = mmap(NULL, p->bytes, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		if (p->buffer[b] == MAP_FAILED || p->ops->host_register(p->buffer[b], p->bytes))
			return -1;
	}
	for (uint64_t i = 0; sends && i < p->bytes; i++)
		p->buffer[0][i] = byte_at(i);
	return sends ? p->ops->copy(memory, p->buffer[0], p->bytes) : 0;
}

int main(int argc, char **argv)
{
	const char *host = argc == 7 ? argv[6] : NULL;
	struct pipe p = { .bytes = argc >= 6 ? strtoull(argv[4], NULL, 10) : 0 };
	uint64_t count = argc >= 6 ? strtoull(argv[5], NULL, 10) : 0, begin;
	uint8_t last = 0;

	if (argc < 6 || argc > 7 || !p.bytes || p.bytes > BYTES_MOST || !count) {
		fprintf(stderr, "usage: gpupipe PORT BACKEND DEVICE BYTES COUNT [HOST]\n");
		return 2;
	}
	if (open_pipe(&p, argv[2], atoi(argv[3]), host != NULL)) {
		fprintf(stderr, "gpupipe: %s\n", epf_last_error());
		return 77;
	}
	p.fd = sock_meet(host, argv[1]);
	if (p.fd < 0)
		return fail(host ? host : "listening");
	begin = sock_now_ns();
	if (host ? send_all(&p, count) : receive_all(&p, count))
		return fail("a copy, or the other end");
	/* The receiver reports when the last piece is in its GPU. */
	if (sock_move(p.fd, &last, 1, !host, 0))
		return fail("the other end");
	if (host)
		printf("%.3f\n", (double)p.bytes * (double)count / (double)(sock_now_ns() - begin));
	if (check(&p))
		return fail("the bytes are wrong");
	p.ops->queue_close(p.queue);
	close(p.fd);
	return 0;
}
