/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a job find each other: every rank opens a bootstrap, hands in a blob of bytes
 * and gets the blobs of all ranks back, and meets the others at barriers. The library, the tools
 * and the tests call this; it knows nothing of NICs, regions or lanes: blobs are bytes to it.
 * Two back-ends answer to the same calls: TCP with a rendezvous server, and one inside a process.
 * Nothing here is for the hot path, ends the process, or waits without a deadline.
 *
 * Every rank of a job must make the same calls (allgather, barrier) in the same order. When one
 * rank dies, closes early, or does not arrive in time, the job's bootstrap is over: every call of
 * every rank then fails with the same cause, which names the rank. A failed bootstrap stays failed.
 *
 * A handle is used by one thread at a time; different handles are independent.
 * All int functions return 0 or -errno with the line in epf_last_error() (fabric/base/err.h).
 */
#ifndef EPF_BOOTSTRAP_BOOT_H
#define EPF_BOOTSTRAP_BOOT_H

#include "fabric/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPF_BOOT_WORLD_MAX       4096u       /* ranks of one job */
#define EPF_BOOT_BLOB_MAX        (16u << 20) /* bytes one rank hands into one allgather */
#define EPF_BOOT_GATHER_MAX      (1u << 30)  /* bytes all ranks together hand into one allgather */
#define EPF_BOOT_TIMEOUT_NS      60000000000ull /* default of timeout_ns */
#define EPF_BOOT_NAME_MAX        128u           /* bytes of a job or node name */
#define EPF_BOOT_NOTICE_FIRST_NS 3000000000ull  /* default of notice_first_ns */
#define EPF_BOOT_NOTICE_AGAIN_NS 10000000000ull /* default of notice_again_ns */
#define EPF_BOOT_KEY_BYTES       32u            /* of epf_boot_job_key() */
#define EPF_BOOT_ADDRESS_MAX     320u           /* room for a printed address with its 0 */

struct epf_boot;
struct epf_boot_group;
struct epf_boot_server;

/* What one rank handed in. @data is aligned to 16 bytes, also when @len is 0. */
struct epf_blob {
	const void *data;
	size_t len;
};

/* Options of epf_boot_tcp_open(). Zero everything, set size, then what you need. */
struct epf_boot_opts {
	size_t size; /* sizeof(struct epf_boot_opts) */
	uint32_t rank;
	uint32_t world;
	const char *rendezvous; /* "host:port", "1.2.3.4:port" or "[v6%scope]:port" */
	const char *job;        /* name of the job; NULL means "" */
	const void *secret;     /* the job's secret, or NULL */
	size_t secret_len;      /* bytes of it */
	const char
		*secret_file; /* file with the secret, or NULL; see epf_auth_load() for the rest */
	const char *ifname;   /* interface choice, NCCL_SOCKET_IFNAME syntax; NULL: that variable */
	uint64_t timeout_ns;  /* of every wait; 0 means EPF_BOOT_TIMEOUT_NS */
	bool is_root;         /* host the rendezvous server in a thread of this process */
	const char *node;     /* name of the node for messages; NULL: the host name */
	int (*why)(
		void *arg); /* what may end the opening itself: as epf_boot_interrupt(), or NULL */
	void *why_arg;
	/* Whoever is waited for is logged after the first time, then again after each second one; 0: the defaults. */
	uint64_t notice_first_ns, notice_again_ns;
};

/**
 * epf_boot_tcp_open() - meet the rendezvous server and prove to each other who we are.
 *
 * Returns when the server has accepted this rank, not when all ranks are there: that is what the
 * first allgather or barrier waits for. A server that does not run yet is waited for. Exactly one
 * rank of a job sets is_root (by custom rank 0), or none when a server runs on its own
 * (ep-fabric bootstrap serve).
 * Without any secret only loopback addresses are accepted, on both ends. Resolving a name may take
 * as long as the system's resolver wants; everything else ends by the deadline.
 */
int epf_boot_tcp_open(const struct epf_boot_opts *opts, struct epf_boot **out);

/**
 * epf_boot_allgather() - hand in @len bytes and get what every rank handed in.
 * @mine: may be NULL when @len is 0. Lengths may differ between ranks.
 * @all: set to world entries, in rank order; free them with epf_boot_free_blobs().
 *
 * The data is read-only and may be shared with other ranks of this process. A rank that waits
 * longer than the timeout fails the exchange for all, and the error names who is missing.
 */
int epf_boot_allgather(struct epf_boot *boot, const void *mine, size_t len, struct epf_blob **all);

/* epf_boot_barrier() - return when every rank has called it. */
int epf_boot_barrier(struct epf_boot *boot);

/**
 * epf_boot_interrupt() - what else may end this rank's waits.
 * @why: asked with @arg on the waiting thread, at least every 20 ms while a call waits for others: 0, or the error (with epf_fail()) that the call
 * then ends with. NULL: nothing.
 *
 * The rendezvous is over for this rank when it was interrupted: later calls repeat that error, and the others hear of it when the
 * handle is closed (inside a process: at once).
 */
void epf_boot_interrupt(struct epf_boot *boot, int (*why)(void *arg), void *arg);

/**
 * epf_boot_check() - without waiting: whether the job's bootstrap still stands.
 *
 * Return: 0, or the error that ended it, for callers that wait for something else meanwhile.
 */
int epf_boot_check(struct epf_boot *boot);

/**
 * epf_boot_job_key() - a key that shows that its owner knows the job's secret.
 * @label: what the key is for, by custom the job's name; other labels give unrelated keys.
 *
 * The same for all ranks of a job and for every run with the same secret; nothing is sent. Without a
 * secret, and inside a process, anybody can make it: it then proves nothing. Works also after the
 * bootstrap failed.
 */
int epf_boot_job_key(struct epf_boot *boot, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES]);

/**
 * epf_boot_route() - how the others reach this rank's host.
 * @host: set to its address on the way to the rendezvous, without a port; empty when that does not say.
 * @is_secret: set to whether the job has a secret, so that a job key is worth anything.
 */
int epf_boot_route(struct epf_boot *boot, char host[EPF_BOOT_ADDRESS_MAX], bool *is_secret);

/* epf_boot_free_blobs() - give an allgather's result back; NULL is fine. */
void epf_boot_free_blobs(struct epf_blob *all);

uint32_t epf_boot_rank(const struct epf_boot *boot);
uint32_t epf_boot_world(const struct epf_boot *boot);

/**
 * epf_boot_blame() - what the farewell is to say: this rank ends because @rank was lost.
 * @reason: why that rank was lost.
 *
 * Those who wait for this rank, or will, then learn that @rank is the cause.
 */
void epf_boot_blame(struct epf_boot *boot, uint32_t rank, enum epf_reason reason);

/**
 * epf_boot_close() - say farewell and free the handle; NULL is fine.
 *
 * On the root it also ends the server, after everything that was sent has arrived (at most 10 s);
 * exchanges of ranks that still wait then fail. Wait at a barrier first where that is not wanted.
 */
void epf_boot_close(struct epf_boot *boot);

/**
 * epf_boot_local_create() - a rendezvous for @world ranks inside this process.
 *
 * Ranks may be threads (blocking calls), or all be driven by one thread (post and collect).
 */
int epf_boot_local_create(uint32_t world, struct epf_boot_group **out);

/* epf_boot_local_timeout() - deadline of the blocking calls; EPF_BOOT_TIMEOUT_NS when not called. */
void epf_boot_local_timeout(struct epf_boot_group *group, uint64_t timeout_ns);

/* epf_boot_local_open() - the handle of one rank; each rank can be opened once. */
int epf_boot_local_open(struct epf_boot_group *group, uint32_t rank, struct epf_boot **out);

/* epf_boot_local_destroy() - NULL is fine. Handles that are still open keep what they need. */
void epf_boot_local_destroy(struct epf_boot_group *group);

/**
 * epf_boot_local_post() - the first half of an allgather: hand in, do not wait.
 *
 * The bytes are copied. -EBUSY when the last post was not collected yet; -EOPNOTSUPP on TCP.
 */
int epf_boot_local_post(struct epf_boot *boot, const void *mine, size_t len);

/**
 * epf_boot_local_collect() - the second half: the blobs, or -EAGAIN while a rank has not posted.
 *
 * -EAGAIN leaves no error text. The blobs of all ranks of a group are one shared block.
 */
int epf_boot_local_collect(struct epf_boot *boot, struct epf_blob **all);

/* A job of two that have a connection already. */
struct epf_boot_pair {
	uint32_t rank;                   /* 0 or 1 */
	uint8_t key[EPF_BOOT_KEY_BYTES]; /* that both have, and nobody else */
	const char
		*route; /* this host's address on the way to the other, as text; NULL: not known */
	/*
	 * Gives the other the bytes and takes its own, malloced, in the order of the calls. Returns 0, or -errno with epf_last_error() set: then
	 * the bootstrap is over.
	 */
	int (*exchange)(void *arg, const void *mine, size_t len, void **theirs, size_t *their_len);
	void *arg;
};

/* epf_boot_pair_open() - the bootstrap of one of the two. @opts is copied. */
int epf_boot_pair_open(const struct epf_boot_pair *opts, struct epf_boot **out);

/* Options of epf_boot_server_start(). Zero everything, set size, then what you need. */
struct epf_boot_server_opts {
	size_t size;
	uint32_t world;
	const char *listen; /* address as for rendezvous; port 0 takes a free one */
	bool any_address;   /* @listen is how clients see us: listen on all addresses of its port */
	const char *job;    /* NULL: the job of the first rank that proves the secret */
	const void *secret;
	size_t secret_len;
	const char *secret_file;
	const char *ifname;
	uint64_t timeout_ns;   /* for ranks that name none; 0 means EPF_BOOT_TIMEOUT_NS */
	uint64_t handshake_ns; /* time for a stranger to prove itself; 0 means 10 s */
	uint32_t pending_max;  /* connections not proven yet; 0 means world + 64 */
	uint64_t notice_first_ns, notice_again_ns; /* as in struct epf_boot_opts */
};

/* What a server has seen; every number only grows. */
struct epf_boot_server_stats {
	uint64_t accepted;          /* TCP connections */
	uint64_t joined;            /* ranks that proved the secret and were let in */
	uint64_t refused_malformed; /* bytes that were no message, or one that may not be there */
	uint64_t refused_proof;     /* wrong secret, tampering, replay from another connection */
	uint64_t
		refused_join; /* proven, but wrong version, job, world, or a rank whose seat is occupied */
	uint64_t dropped_duplicates; /* messages received twice on one connection, ignored */
	uint64_t silent;             /* strangers that ran out of time */
	uint64_t evicted;            /* oldest strangers that made room for new ones */
	uint64_t rounds;             /* exchanges completed */
	uint64_t received_bytes;
	uint64_t sent_bytes;
};

/**
 * epf_boot_server_start() - serve one job in a new thread.
 *
 * One thread, epoll, no thread per client. Refuses to listen beyond loopback without a secret.
 */
int epf_boot_server_start(const struct epf_boot_server_opts *opts, struct epf_boot_server **out);

/* epf_boot_server_address() - "address:port" it listens at; port is filled in when 0 was asked. */
const char *epf_boot_server_address(const struct epf_boot_server *srv);

/* epf_boot_server_port() - the TCP port it listens at. */
uint16_t epf_boot_server_port(const struct epf_boot_server *srv);

/*
 * epf_boot_server_reached() - the address of this host at which the first rank of another host came, without a port. 0, or -ENOENT: none has come. Any time, from any thread.
 */
struct epf_net_addr;
int epf_boot_server_reached(struct epf_boot_server *srv, struct epf_net_addr *out);

/* epf_boot_server_stats() - a copy of the counters, any time from any thread. */
void epf_boot_server_stats(const struct epf_boot_server *srv, struct epf_boot_server_stats *out);

/**
 * epf_boot_server_wait() - wait until every rank has left, or the job's bootstrap failed.
 * @timeout_ns: 0 looks once; UINT64_MAX waits as long as it takes.
 *
 * Return: 0 all left; -ETIME (no error text) still serving; else why the job failed.
 */
int epf_boot_server_wait(struct epf_boot_server *srv, uint64_t timeout_ns);

/* epf_boot_server_stop() - tell the ranks, let sent bytes arrive, end the thread, free. NULL is fine. */
void epf_boot_server_stop(struct epf_boot_server *srv);

#ifdef __cplusplus
}
#endif

#endif
