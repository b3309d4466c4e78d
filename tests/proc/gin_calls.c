/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the plug-in's one-sided interface, as one (gin_calls.h). */
#include "tests/proc/gin_calls.h"

#include "tools/nccl/handle.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

time_t now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec;
}

void quit(const struct rank *r, const char *why)
{
	fprintf(stderr, "rank %u: %s\n", r->me, why);
	_exit(1);
}

/* Counts from the last progress. */
void pause_for(time_t *last, const struct rank *r, bool moved)
{
	if (moved)
		*last = now_s();
	else if (now_s() - *last > HANG_S)
		quit(r, "no progress");
	else
		usleep(20);
}

static void log_line(int level, unsigned long subsystems, const char *file, int line,
		     const char *format, ...)
{
	(void)level;
	(void)subsystems;
	(void)file;
	(void)line;
	(void)format;
}

void meet(struct rank *r, unsigned where)
{
	time_t last = now_s();

	__atomic_add_fetch(&r->board->arrived[where], 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&r->board->arrived[where], __ATOMIC_ACQUIRE) < r->g->ranks)
		pause_for(&last, r, false);
}

/* ---- the tables, as one ---- */

bool has_get(const struct rank *r)
{
	return r->g->version >= 13;
}

uint64_t signal_value(const struct rank *r, unsigned from, unsigned c)
{
	if (r->g->version == GPI)
		return gpi_signal(r, c, from);
	return __atomic_load_n(&r->signals[from * CONTEXTS + c], __ATOMIC_ACQUIRE);
}

/* The ranks will meet at a port of this rank, which listens on all addresses: nobody may take it at any of them before. */
static void check_port(const struct rank *r)
{
	struct epf_nccl_handle h;
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || epf_nccl_handle_read(r->board->handle[r->me], EPF_NCCL_HANDLE_GROUP, &h))
		quit(r, "no socket, or no handle");
	at.sin_port = htons(epf_net_port(&h.address));
	if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0)
		quit(r, "the port where the ranks meet can be taken by others");
	close(fd);
}

int open_group(struct rank *r)
{
	void *handles[RANKS], *listener;
	uint8_t all[RANKS][EPF_NCCL_HANDLE_BYTES];
	int n = 0, me = (int)r->me, ranks = (int)r->g->ranks, rc;

	/* What is in front of connect is the same in all tables, but for the properties. */
	rc = V13(r)->init(&r->context, 7, log_line);
	if (!rc)
		rc = V13(r)->devices(&n);
	if (!rc)
		rc = r->g->version == GPI
			     ? G14(r)->listen(r->context, 0, r->board->handle[r->me], &listener)
			     : V13(r)->listen(r->context, 0, r->board->handle[r->me], &listener);
	if (rc || n != 1)
		return -1;
	check_port(r);
	meet(r, 0);
	memcpy(all, r->board->handle, sizeof(all));
	for (unsigned i = 0; i < r->g->ranks; i++)
		handles[i] = all[i];
	switch (r->g->version) {
	case 11:
		rc = V11(r)->connect(r->context, handles, ranks, me, listener, &r->coll);
		break;
	case 12:
		rc = V12(r)->connect(r->context, handles, ranks, me, (int)r->g->contexts, 256,
				     listener, &r->coll);
		break;
	case 13:
		rc = V13(r)->connect(r->context, handles, ranks, me, listener, &r->coll);
		break;
	case GPI:
		rc = G14(r)->connect(r->context, handles, ranks, me, listener, &r->coll);
		break;
	default:
		rc = V14(r)->connect(r->context, handles, ranks, me, listener, &r->coll);
	}
	n = r->g->version < 13     ? V12(r)->close_listen(listener)
	    : r->g->version == GPI ? G14(r)->close_listen(listener)
				   : V13(r)->close_listen(listener);
	return rc ? rc : n;
}

int open_contexts(struct rank *r)
{
	struct epf_nccl_gin_config_v13 c13 = { .contexts = (int)r->g->contexts };
	struct epf_nccl_rma_config_v14 c14 = { .contexts = (int)r->g->contexts };

	if (r->g->version == GPI)
		return gpi_open(r);
	if (r->g->version == 13)
		return V13(r)->create_context(r->coll, &c13, &r->ctx, NULL);
	return r->g->version == 14 ? V14(r)->create_context(r->coll, &c14, &r->ctx) : 0;
}

int reg(struct rank *r, void *data, size_t bytes, void **mr)
{
	void *gin = NULL;
	int rc;

	if (r->g->version == GPI)
		return G14(r)->reg_mr_sym(
			r->coll, data, bytes, PLAY_KIND, 0, mr,
			(void **)(mr == &r->window_mr ? &r->window_number : &r->source_number));
	if (r->g->version == 14)
		return V14(r)->reg_mr_sym(r->coll, data, bytes, PLAY_KIND, 0, mr);
	rc = r->g->version == 13 ? V13(r)->reg_mr_sym(r->coll, data, bytes, PLAY_KIND, 0, mr, &gin)
				 : V12(r)->reg_mr_sym(r->coll, data, bytes, PLAY_KIND, 0, mr, &gin);
	return rc ? rc : gin != *mr;
}

int put(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to, void **q)
{
	switch (r->g->version) {
	case 11:
		return V11(r)->iput(r->coll, src, r->source_mr, bytes, dst, r->window_mr, to, q);
	case 12:
		return V12(r)->iput(r->coll, src, r->source_mr, bytes, dst, r->window_mr, to, c, q);
	case 13:
		return V13(r)->iput(r->ctx, c, src, r->source_mr, bytes, dst, r->window_mr, to, q);
	case GPI:
		return gpi_put(r, c, src, bytes, dst, to, 0, 0, q);
	default:
		return V14(r)->iput(r->ctx, c, src, r->source_mr, bytes, dst, r->window_mr, to, q);
	}
}

/* Without bytes it is a signal alone, as NCCL makes it. */
int put_signal(struct rank *r, int c, uint64_t src, size_t bytes, uint64_t dst, unsigned to,
	       uint64_t at, uint64_t add, void **q)
{
	void *s = bytes ? r->source_mr : NULL, *d = bytes ? r->window_mr : NULL;
	uint32_t op = add == 1 ? EPF_NCCL_SIGNAL_INC : EPF_NCCL_SIGNAL_ADD;

	switch (r->g->version) {
	case 11:
		return V11(r)->iput_signal(r->coll, src, s, bytes, dst, d, to, at, r->signals_mr,
					   add, op, q);
	case 12:
		return V12(r)->iput_signal(r->coll, src, s, bytes, dst, d, to, at, r->signals_mr,
					   add, op, c, q);
	case 13:
		return V13(r)->iput_signal(r->ctx, c, src, s, bytes, dst, d, to, at, r->signals_mr,
					   add, op, q);
	case GPI: /* each context has its own */
		return gpi_put(r, c, src, bytes, dst, to, (unsigned)(at / 8 / CONTEXTS), add, q);
	default:
		return V14(r)->iput_signal(r->ctx, c, src, s, bytes, dst, d, to, at, r->signals_mr,
					   add, op, true, q);
	}
}

int get(struct rank *r, int c, uint64_t remote, size_t bytes, uint64_t local, unsigned to, void **q)
{
	switch (r->g->version) {
	case 13:
		return V13(r)->iget(r->ctx, c, remote, r->window_mr, bytes, local, r->source_mr, to,
				    q);
	case GPI:
		return gpi_get(r, c, remote, bytes, local, to, q);
	default:
		return V14(r)->iget(r->ctx, c, remote, r->window_mr, bytes, local, r->source_mr, to,
				    q);
	}
}

int flush(struct rank *r, int c, unsigned to, void **q)
{
	switch (r->g->version) {
	case 13:
		return V13(r)->iflush(r->ctx, c, r->window_mr, to, q);
	case GPI:
		return gpi_flush(r, c, to, q);
	default:
		return V14(r)->iflush(r->ctx, c, r->window_mr, to, q);
	}
}

int test(struct rank *r, void *request, int *done)
{
	switch (r->g->version) {
	case GPI:
		return gpi_test(r, request, done);
	case 11:
		return V11(r)->test(r->coll, request, done);
	case 12:
		return V12(r)->test(r->coll, request, done);
	case 13:
		return V13(r)->test(r->coll, request, done);
	default:
		return V14(r)->test(r->coll, request, done);
	}
}
