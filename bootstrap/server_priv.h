/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the rendezvous server, for its three files:
 *   server.c       start and stop, the listening socket, the thread's loop, time limits
 *   server_conn.c  one connection: bytes in and out, the handshake, refusals
 *   server_job.c   the job: who is there, rounds, results, failure
 * All state belongs to the server's thread, except what is marked atomic or is under the lock.
 * The thread never blocks on a connection: everything is non-blocking and has a deadline.
 */
#ifndef EPF_BOOTSTRAP_SERVER_PRIV_H
#define EPF_BOOTSTRAP_SERVER_PRIV_H

#include "bootstrap/auth.h"
#include "bootstrap/boot_priv.h"
#include "bootstrap/net.h"
#include "bootstrap/wire.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

enum srv_conn_state {
	SRV_HELLO,   /* a stranger: HELLO is expected */
	SRV_JOIN,    /* has HELLO right; JOIN under the session key is expected */
	SRV_MEMBER,  /* a rank of the job */
	SRV_CLOSING, /* refused: what is in @out goes out, what comes in is thrown away */
	SRV_DEAD,    /* closed, freed at the end of the loop's turn */
};

struct srv_conn {
	TAILQ_ENTRY(srv_conn) link; /* of the list for its state */
	int fd;
	enum srv_conn_state state;
	bool want_write; /* epoll watches for room to write */
	uint64_t deadline_ns;
	struct epf_wire_session session;
	char address[80];

	uint8_t *in, *out;
	size_t in_len, in_cap;
	size_t out_at, out_len, out_cap;

	/* Members. */
	bool seated; /* in srv->seat, also after its connection has ended */
	uint32_t rank;
	uint64_t timeout_ns;
	char node[EPF_WIRE_NAME_MAX + 1];
	bool left;                   /* said farewell */
	struct epf_wire_leave leave; /* and why */
	bool arrived;                /* at the round that is being filled */
	bool started;                /* part of its blob is here */
	uint8_t *blob;
	size_t blob_len, blob_got;
	bool receiving; /* of the last allgather's result, @result_sent bytes are sent */
	size_t result_sent;
};

TAILQ_HEAD(srv_list, srv_conn);

/* The result of the last allgather, sent in parts of EPF_WIRE_PART_BYTES to everybody. */
struct srv_result {
	uint8_t *stream;
	size_t bytes;
	uint8_t (*digest)
		[EPF_AUTH_HASH_BYTES]; /* one for each part, made by the first who sends it */
	bool *digest_known;
	uint64_t round;
	uint32_t receivers;
};

/* Rows: S(name of a field of struct epf_boot_server_stats) */
#define EPF_SRV_STATS(S) \
 S(accepted)             \
 S(joined)               \
 S(refused_malformed)    \
 S(refused_proof)        \
 S(refused_join)         \
 S(dropped_duplicates)   \
 S(silent)               \
 S(evicted)              \
 S(rounds)               \
 S(received_bytes)       \
 S(sent_bytes)

struct srv_stats {
#define S(name) _Atomic uint64_t name;
	EPF_SRV_STATS(S)
#undef S
};

struct epf_boot_server;

/* What connections call of the job above them (server_job.c). */
struct srv_conn_calls {
	/* A proven client's JOIN: lets it in or refuses it. */
	void (*join)(struct epf_boot_server *srv, struct srv_conn *c,
		     const struct epf_wire_msg *msg);
	/* A member's message. Returns a verdict other than OK if the connection cannot go on. */
	enum epf_wire_verdict (*message)(struct epf_boot_server *srv, struct srv_conn *c,
					 const struct epf_wire_msg *msg);
	/* Queues the next part of the result for a member that receives. */
	void (*pump)(struct epf_boot_server *srv, struct srv_conn *c);
	/* A member's connection ended; why: part of a sentence. */
	void (*lost)(struct epf_boot_server *srv, struct srv_conn *c, const char *why);
};

struct epf_boot_server {
	const struct srv_conn_calls *job_calls;
	struct epf_auth auth;
	uint32_t world;
	bool job_known;
	char job[EPF_WIRE_NAME_MAX + 1];
	uint64_t timeout_ns;
	uint64_t handshake_ns;
	uint32_t pending_max;
	struct epf_net_addr bound;
	char address[EPF_BOOT_ADDRESS_MAX]; /* where it listens, printed */
	char where[EPF_BOOT_ADDRESS_MAX];   /* as clients know it, for messages */
	int listen_fd, epoll_fd, wake_fd;
	uint64_t accept_again_ns; /* listening is paused until then; 0: not paused */
	struct srv_stats stats;

	struct srv_list strangers, members, closing, dead; /* the first and third: oldest first */
	uint32_t strangers_count, closing_count;

	struct epf_boot_notice notice; /* of the ranks that have not come */
	struct srv_conn **seat;        /* by rank; NULL: has not come */
	uint32_t joined, left;
	uint64_t round;
	uint32_t arrived;
	enum epf_boot_kind kind; /* of this round, once somebody began */
	uint32_t kind_rank;
	uint64_t round_deadline_ns; /* UINT64_MAX: nobody waits */
	uint64_t round_timeout_ns;  /* the timeout it stems from */
	size_t gather_bytes;
	struct srv_result result;
	struct epf_wire_note failure; /* reason 0: none */
	uint64_t end_ns;              /* when a failed or stopped server gives up sending */

	pthread_t thread;
	_Atomic bool stop;
	pthread_mutex_t lock; /* of the three below */
	struct epf_net_addr reached; /* len 0: by no other host yet */
	pthread_cond_t ended_cond;
	bool ended;
};

#define srv_count(srv, name, n) \
 atomic_fetch_add_explicit(&(srv)->stats.name, (uint64_t)(n), memory_order_relaxed)

/* server_conn.c */

/* srv_conn_new() - take an accepted socket in as a stranger. */
int srv_conn_new(struct epf_boot_server *srv, int fd, const struct epf_net_addr *from);
/* srv_conn_event() - the socket is readable, writable or broken. */
void srv_conn_event(struct epf_boot_server *srv, struct srv_conn *c, uint32_t events);
/* srv_conn_send() - queue a frame and try to send; errors show up as a dead connection. */
void srv_conn_send(struct epf_boot_server *srv, struct srv_conn *c, enum epf_wire_type type,
		   const void *payload, size_t len, const uint8_t *digest);
/* srv_conn_refuse() - tell a proven client why it is not let in, and close. */
void srv_conn_refuse(struct epf_boot_server *srv, struct srv_conn *c, enum epf_reason reason,
		     const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* srv_conn_set_state() - move it to the list of its new state. */
void srv_conn_set_state(struct epf_boot_server *srv, struct srv_conn *c, enum srv_conn_state state);
/* srv_conn_close() - close the socket; the memory goes with srv_conn_reap(). */
void srv_conn_close(struct epf_boot_server *srv, struct srv_conn *c);
/* srv_conn_reap() - free the dead connections. */
void srv_conn_reap(struct epf_boot_server *srv);
/* srv_conn_is_drained() - whether all that was sent has arrived in the other system. */
bool srv_conn_is_drained(const struct srv_conn *c);

/* server_job.c */

extern const struct srv_conn_calls srv_job_calls;
/* srv_job_fail() - end the job's bootstrap and tell all members. */
void srv_job_fail(struct epf_boot_server *srv, enum epf_reason reason, uint32_t rank,
		  const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* srv_job_timeout() - a rank has waited too long: name who is missing. */
void srv_job_timeout(struct epf_boot_server *srv);
/* srv_job_notice() - say who has not come, when it is time; returns when to look again. */
uint64_t srv_job_notice(struct epf_boot_server *srv);
/* srv_job_free() - everything the job holds. */
void srv_job_free(struct epf_boot_server *srv);

#endif
