/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects of an endpoint, shared by the files of this folder. Locks, outermost first: ep->serving (the endpoint's thread holds it unless it sleeps; who polls tries it),
 * ep->lock (tables, lists, states of everything but transfers), ep->run.lock (the queue of transfers), ep->events.lock, a connection's note_lock, a stream's own. But for
 * the first, none is held over a wait, a copy or a callback.
 */
#ifndef EPF_FABRIC_P2P_P2P_PRIV_H
#define EPF_FABRIC_P2P_P2P_PRIV_H

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/p2p/codec.h"
#include "fabric/p2p/epf_p2p.h"
#include "fabric/p2p/shared.h"
#include "fabric/p2p/stream.h"
#include "queues/epf_stats.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

enum {
	P2P_CHUNK = 256 * 1024, /* most bytes copied in one go: bounds withdrawals, polls, turns */
	P2P_CHUNK_BLOCKS = 128,
	P2P_INLINE = 64 * 1024, /* transfers that the posting thread copies itself */
	P2P_PRIORITIES = 3,
	P2P_BUCKETS = 64,  /* of a connection's imports */
	P2P_SETTINGS = 64, /* most settings of an endpoint */
	P2P_RINGS = 8, /* most rings of a connection over NICs, but for that of urgent transfers */
	P2P_LATER = 1, /* returned by a copy that a GPU completes later */
	P2P_GPU_CHUNK = 256 << 20, /* as P2P_CHUNK, for copies by a GPU */
	P2P_GPU_BLOCKS = 512,
	P2P_PACK_CHUNK = 2 << 20, /* as P2P_CHUNK, for chunks that a GPU compresses */
};

/* Numbers for users: generation << 24 | index; an index is used again, a number is not. */
struct slots {
	void **object;
	uint64_t *number;
	uint32_t size, used, max, next_free;
	uint64_t generation;
	const char *what; /* plural, for messages */
};

int epf_p2p_slot_add(struct slots *t, void *object, uint64_t *number);
void *epf_p2p_slot_get(const struct slots *t, uint64_t number);
void epf_p2p_slot_remove(struct slots *t, uint64_t number);
void epf_p2p_slots_free(struct slots *t);

/* Memory of epf_p2p_alloc(). */
struct block_memory {
	struct block_memory *next;
	uint8_t *addr;
	uint64_t bytes;
	int fd;
};

/* The number of memory in the job of a connection over NICs. */
struct engine_key {
	struct engine_key *next;
	uint64_t conn; /* conn.id */
	uint32_t region;
	uint32_t opened; /* imports of the peer that it answers and that are not released */
};

struct epf_copy_handle;
struct epoll_event;

struct region {
	uint64_t number;
	uint32_t refs;
	uint32_t users; /* posted transfers that use it [W2] */
	uint32_t gone;  /* deregistered: no transfer may begin [W1] */
	uint8_t *addr;
	uint64_t bytes;
	int device;              /* EPF_P2P_HOST or a GPU */
	enum epf_p2p_float type; /* of its values */
	struct epf_p2p *ep;
	struct epf_copy_handle
		*handle; /* names GPU memory to peers of this machine; NULL: cannot be shared */
	void *pinned;    /* host memory registered with the GPU's driver; under gpu.lock */
	bool pin_tried;
	struct block_memory *memory; /* NULL: from elsewhere */
	struct export *exports;
	struct engine_key *keys; /* as a source or destination of own transfers */
};

struct export
{
	struct export *next, *prev; /* all of the endpoint */
	struct export *of_region;   /* next of its region */
	struct export_key key;
	struct region *region;
	uint64_t conn;           /* 0: every peer */
	uint64_t expires_ns;     /* UINT64_MAX: never */
	struct engine_key *keys; /* for peers that have imported it over NICs */
	enum export_state state;
	uint32_t pins; /* calls that wait for peers to let go of it */
};

struct gpu_map;

struct import {
	struct import *next; /* of the bucket */
	uint64_t number;
	uint32_t refs;   /* of imports, users and transfers */
	uint32_t opened; /* calls of epf_p2p_import() not yet released */
	struct conn *conn;
	struct export_key key;
	enum memory_kind kind;
	uint8_t *mapped; /* FILE: its first byte here */
	void *map_base;
	uint64_t map_bytes;
	uint32_t engine_region, engine_tag; /* its number over NICs, and which use of it */
	/* GPU memory of another process, under gpu.lock: */
	int device;
	struct epf_copy_handle *handle; /* NULL: of this process */
	struct gpu_map *maps;
	void *pinned; /* as in a region */
	bool pin_tried;
};

/* A question to a peer. */
struct request {
	struct request *next;
	uint64_t number, begun_ns;
	int done; /* 1 */
	int file; /* descriptor or -1 */
	uint32_t engine_tag;
	struct msg_imported answer;
};

enum conn_state { CONN_OPEN = 0, CONN_LOST = 1, CONN_CLOSED = 2 };

struct engine_path;
struct pack;

/* State behind a connection's statistics. The endpoint's thread writes all of it except the four atomic times. */
struct conn_stats {
	struct epf_stats_block *block; /* NULL: the file has no room */
	uint64_t marks, last_marks;    /* a sum that changes with any progress */
	uint64_t moved_ns, since_ns, left;
	enum epf_stats_conn_wait kind;
	/* When a call began to wait for the peer, and when it last polled; atomic. */
	uint64_t noting, noting_seen, releasing, releasing_seen;
};

struct conn {
	struct conn *next; /* all of the endpoint */
	struct epf_p2p *ep;
	uint64_t number;
	uint64_t id; /* never 0, never used again */
	uint32_t refs;
	uint32_t state; /* enum conn_state; atomic: copies look at it */
	bool is_local;
	bool is_passive;   /* the peer made it */
	bool was_accepted; /* a call has returned it */
	bool is_dead;      /* its process has ended; atomic */
	bool is_reaped;    /* the thread has let go of its stream */
	bool is_proven;    /* in the handshake: the peer has proven the key */
	int error;         /* -errno and why it ended */
	char why[160];
	struct metadata peer;
	char label[160]; /* "peer NAME (pid 3 on HOST)" for messages */
	struct stream stream;
	bool is_watched; /* by the endpoint's epoll */
	/* Of one machine: */
	pid_t pid;
	int pidfd;
	uint64_t seen_ns; /* last time the process was seen alive */
	struct segment *segment;
	struct half *mine, *theirs;
	const struct export_table *table; /* the peer's */
	struct bell *bell;                /* the peer's */
	uint32_t bell_index;              /* ours in the peer's bell */
	uint32_t own_index;               /* the peer's in our bell */
	pthread_mutex_t note_lock;        /* of notifications that leave */
	pthread_mutex_t take_lock;        /* of those that arrive */
	uint64_t note_head;               /* our copy: the segment is not trusted */
	uint64_t note_tail;
	/* Over NICs: */
	struct engine_path *engine;
	enum codec_strategy compress; /* agreed in the handshake */
	bool packs_gpu, packs_fp8;    /* agreed too: GPU memory, values of one byte */
	struct pack *pack;            /* NULL: none */
	int (*pack_open)(struct conn *c);
	void (*pack_free)(struct conn *c);
	const struct export
		*chunk; /* a compressed chunk of the peer is copied to or from it; under ep->lock */
	void (*engine_stop)(struct conn *c);
	void (*import_end)(struct conn *c, const struct export_key *key);
	bool reuses_numbers; /* agreed in the handshake */
	bool is_left;        /* its engine was asked to end */
	struct import *imports[P2P_BUCKETS];
	struct request *requests;
	uint64_t bytes_read, bytes_written, transfers, failed, under_way; /* atomic */
	uint64_t packed_from, packed_to; /* of compressed chunks, before and after; atomic */
	struct conn_stats stats;
};

/* Where an incoming connection is in its handshake. */
struct guest {
	struct guest *next;
	struct stream stream;
	uint64_t deadline_ns;
	struct msg_hello theirs, ours;
	bool has_hello;
	pid_t pid;
};

/* Commands of one ring. */
struct ticket {
	uint64_t first, end;
};

struct gpu_lane;
struct epf_coder;
struct free_coder;

struct vector {
	struct region *region;
	struct import *import;
	uint32_t first, count;   /* of the transfer's blocks */
	enum epf_p2p_float type; /* of the region, when the transfer was prepared */
	/* With GPU memory on either side, between processes of one machine: */
	struct gpu_lane *lane; /* NULL: the CPU copies */
	uint64_t there;        /* address of the import's first byte for the lane */
	bool is_staged;        /* through memory of this process: the peer's cannot be mapped */
	bool by_kernel;        /* the lane's kernels can access both sides */
};

/*
 * IDLE or DONE -> RUNNING (post) -> FINISHING (the last that copied) -> DONE, or -> NOTING (the peer has no room for the notification)
 * -> PUSHING (somebody tries) -> NOTING or DONE.
 */
enum xfer_state {
	XFER_IDLE = 0,
	XFER_RUNNING = 1,
	XFER_FINISHING = 2,
	XFER_NOTING = 3,
	XFER_PUSHING = 4,
	XFER_DRAINING = 6, /* over NICs: all is pushed, not all retired */
	XFER_DONE = 5,
};

struct epf_p2p_xfer {
	struct epf_p2p *ep;
	struct conn *conn;
	struct epf_p2p_xfer *next, *prev;    /* in the run queue, while is_queued */
	struct epf_p2p_xfer *after, *before; /* all of the endpoint */
	bool is_queued;
	uint32_t pins;    /* the endpoint's threads that use it, under run.lock */
	uint32_t flights; /* chunks that a GPU is copying, under run.lock */
	bool is_orphan;   /* freed by its owner while a GPU was copying: the last flight frees it */
	bool has_gpu;
	enum epf_p2p_op op;
	enum epf_p2p_priority priority;
	uint32_t state;  /* enum xfer_state; atomic */
	int32_t status;  /* 0 or -errno; the first failure wins; atomic */
	uint32_t active; /* threads that copy or are about to; atomic */
	uint32_t posts;  /* how often it was posted; atomic */
	uint32_t ends;   /* the last post that somebody ends or has ended; atomic */
	uint64_t cursor; /* block << 32 | chunk of it: the next to be claimed; atomic */
	uint64_t left;   /* bytes not yet copied; atomic */
	uint64_t bytes;
	uint64_t limit_ns, deadline_ns;
	bool wants_event;
	void *user;
	char *note;
	uint32_t note_bytes, note_room;
	bool has_note;
	/* Over NICs: a bit for each ring that has commands of this transfer, and which commands. */
	uint32_t rings;
	struct ticket ticket[P2P_RINGS + 1];
	bool may_pack;  /* its chunks may be compressed */
	bool packs_gpu; /* by GPUs, between their memory; then longer chunks */

	uint32_t n_blocks, n_vectors;
	struct vector *vectors;
	struct epf_p2p_block *blocks;
};

struct event {
	struct event *next;
	struct epf_p2p_event e;
};

struct epf_p2p {
	struct epf_conf conf;
	struct epf_auth auth; /* of the shared key; has_secret false: none */
	struct epf_auth own;  /* of this endpoint's key */
	struct metadata meta;
	uint8_t probe_token[16];
	char *settings[P2P_SETTINGS + 1];

	pthread_mutex_t lock;
	pthread_cond_t changed; /* connections, requests, states */
	bool is_closing;
	uint32_t calls;     /* that may wait and are under way; atomic */
	bool has_engines;   /* connections over NICs were made; atomic */
	unsigned pack_from; /* where a round of polls begins; endpoint's thread only */
	bool has_new;       /* connections that the thread does not watch yet */
	struct slots conns, regions, imports;
	struct conn *all;
	struct export *exports;
	struct export *export_at[P2P_EXPORTS];
	uint64_t next_expiry_ns; /* of any export */
	uint32_t export_next;
	uint32_t n_exports;
	struct export_table *table;
	int table_fd;
	struct bell *bell;
	int bell_fd;
	struct conn *by_bell[P2P_LOCAL_CONNS];
	uint32_t next_bell;
	struct block_memory *memory;
	struct guest *guests;
	uint32_t n_guests;
	uint64_t next_request, next_id;

	pthread_t thread;
	bool has_thread;
	pthread_mutex_t serving; /* of who serves connections */
	int epoll, kick, listen_tcp, listen_unix;
	uint32_t stop, sleeping;    /* atomic */
	bool naps;                  /* its thread sleeps 10 ms at most; atomic */
	uint64_t polls, last_polls; /* of events: atomic; who polls needs no wakeup */

	struct {
		pthread_mutex_t lock;
		pthread_cond_t idle; /* a transfer has ended, or lost a pin */
		struct epf_p2p_xfer *first[P2P_PRIORITIES];
		uint32_t queued[P2P_PRIORITIES]; /* atomic to readers */
		struct epf_p2p_xfer *all;
		uint32_t waiters;
		uint32_t active; /* posted and not ended; atomic */
		uint64_t next_check_ns;
		bool is_stalled; /* the thread found only transfers that wait for room */
	} run;

	struct {
		struct epf_stats *file; /* NULL: none */
		struct epf_stats_block *block;
		uint64_t next_ns, period_ns;
		uint64_t connected, lost; /* under ep->lock */
	} stats;

	struct {
		pthread_mutex_t lock;   /* of lanes and maps; before a lane's own */
		struct gpu_lane *lanes; /* grows at its head until the endpoint is closed */
		/* The first coder that was opened, for as long as the endpoint lives; NULL: GPU memory is not compressed. Atomic. */
		struct epf_coder *coder;
		bool coder_tried;          /* atomic */
		struct free_coder *coders; /* none is under way */
		uint32_t coding;           /* threads with one that is; atomic */
	} gpu;

	struct {
		pthread_mutex_t lock;
		pthread_cond_t arrived;
		struct event *first, *last;
		uint32_t count;    /* atomic to readers */
		uint32_t notes;    /* of them; written under the lock */
		uint32_t sleepers; /* threads in epf_p2p_wait_event(); atomic */
		int fd;            /* -1: nobody has asked */
		bool fd_is_set;
		void (*fn)(void *arg, const struct epf_p2p_event *event);
		void *arg;
		bool in_fn;
	} events;
};

/*
 * The files, lowest first; each calls only files above it in this list. slots, wire and stream have no object of an endpoint.
 */

/* common.c */
uint64_t epf_p2p_deadline(const struct epf_p2p *ep, uint64_t timeout_ns);
void epf_p2p_kick(struct epf_p2p *ep);
/* Around calls that wait: closing ends them, and frees nothing before they have left. */
void epf_p2p_enter(struct epf_p2p *ep);
void epf_p2p_leave(struct epf_p2p *ep);
void epf_p2p_unix_name(const uint8_t id[16], struct sockaddr_un *a, socklen_t *len);
int epf_p2p_new_memfd(const char *name, uint64_t bytes, int *out);

/* memory.c */
void epf_p2p_meta_show(const struct metadata *m, struct epf_p2p_peer *out);

/* events.c */
void epf_p2p_append(struct epf_p2p *ep, struct event *ev); /* which becomes the queue's */
struct event *epf_p2p_pop(struct epf_p2p *ep); /* the oldest or NULL; events.lock held */
void epf_p2p_event(struct epf_p2p *ep, const struct epf_p2p_event *e,
		   const void *data); /* copies data */
void epf_p2p_dispatch(struct epf_p2p *ep);

/* objects.c */
void epf_p2p_keys_free(struct engine_key *keys);
void epf_p2p_region_put(struct region *r);
void epf_p2p_import_put(struct import *i);
struct conn *epf_p2p_conn_get(struct epf_p2p *ep, uint64_t number); /* NULL with the error set */
void epf_p2p_conn_ref(struct conn *c);
void epf_p2p_conn_put(struct conn *c);
/* A connection is over: what uses it fails soon after. Without ep->lock. Only the first call counts. */
void epf_p2p_conn_end(struct conn *c, enum conn_state state, const char *why);
int epf_p2p_conn_error(const struct conn *c); /* sets the error that its end was */
bool epf_p2p_conn_is_alive(struct conn *c);   /* ends it if the process is gone */

/* notes.c */
int epf_p2p_note_push(struct conn *c, const void *note, uint32_t bytes);    /* -EAGAIN: no room */
int epf_p2p_note_arrived(struct conn *c, const void *note, uint32_t bytes); /* over NICs */
void epf_p2p_drain(struct epf_p2p *ep);
bool epf_p2p_is_pending(const struct epf_p2p *ep);
/* poll.c. Serves the connections that have sent something. ep->serving held. */
void epf_p2p_serve_conns(struct epf_p2p *ep, const struct epoll_event *ev, int n);

/* copy.c. Returns 0, P2P_LATER or -errno. */
int epf_p2p_copy(struct epf_p2p_xfer *x, const struct vector *v, const struct epf_p2p_block *b,
		 uint32_t n, uint64_t skip, uint64_t bytes);

/* prepare.c */
void epf_p2p_xfer_destroy(struct epf_p2p_xfer *x);

/* run.c */
void epf_p2p_begin(struct epf_p2p_xfer *x);   /* what epf_p2p_post() has set up is under way */
bool epf_p2p_step(struct epf_p2p_xfer *x);    /* copies one chunk; false: there is none */
void epf_p2p_gpu_poll(struct epf_p2p *ep);    /* ends flights whose copies are complete */
void epf_p2p_try_end(struct epf_p2p_xfer *x); /* of one that waits for room or for the NIC */
void epf_p2p_xfer_fail(struct epf_p2p_xfer *x, int status);
void epf_p2p_enqueue(struct epf_p2p_xfer *x);
void epf_p2p_dequeue(struct epf_p2p_xfer *x); /* run.lock held */
bool epf_p2p_has_work(struct epf_p2p *ep);
unsigned epf_p2p_run_some(struct epf_p2p *ep); /* one chunk of the queue; 0: nothing to do */
void epf_p2p_fail_conn(struct conn *c, int status);
void epf_p2p_check_deadlines(struct epf_p2p *ep, uint64_t now, uint64_t *next);

/* xfer.c */
void epf_p2p_xfers_free(struct epf_p2p *ep);

/* region.c, import.c */
void epf_p2p_export_expire(struct epf_p2p *ep, uint64_t now, uint64_t *next);
void epf_p2p_regions_free(struct epf_p2p *ep);
void epf_p2p_answer_import(struct conn *c, const struct msg_import *m);
void epf_p2p_take_answer(struct conn *c, const struct msg_imported *m, int file);

/* The memory of an export, of a GPU or the host, for a compressed chunk of a peer, kept from withdrawal until it is unpinned. -EKEYREVOKED, -EKEYEXPIRED, -EACCES */
int epf_p2p_export_pin(struct conn *c, uint32_t slot, uint64_t generation, unsigned right,
		       bool is_gpu, struct export **out);
void epf_p2p_export_unpin(struct conn *c);

/*
 * codec.c, planes.c, gain.c: without objects. pack_copy.c, pack_gpu.c, pack_ring.c, pack.c, pack_peer.c, pack_poll.c: compressed chunks (pack_priv.h,
 * engine.h).
 */

/*
 * pack_gpu.c. Opens the endpoint's first coder of GPU memory where it compresses and this process has a GPU, on that GPU (-1: the current one): connections that
 * are made from then on know of it. Does nothing if that was tried. The other closes all, once no connection is left.
 */
void epf_p2p_coder_find(struct epf_p2p *ep, int device);
void epf_p2p_coders_close(struct epf_p2p *ep);

/* share.c, handshake.c */
int epf_p2p_conn_make(struct epf_p2p *ep, const struct metadata *peer, bool is_local,
		      bool is_passive, struct conn **out);
void epf_p2p_conn_discard(struct conn *c); /* before anybody else knows it */
int epf_p2p_conn_share(struct conn *c, int segment_fd, int table_fd, int bell_fd, pid_t pid);
int epf_p2p_bell_index(struct epf_p2p *ep, struct conn *c); /* ep->lock held */
void epf_p2p_conn_publish(struct conn *c, bool passive);    /* ep->lock held */
int epf_p2p_can_copy(pid_t pid,
		     const struct probe *probe); /* 1: the kernel lets this process read that one */
void epf_p2p_tune(int fd);
/* How this endpoint would compress, and what two agree on. */
enum codec_strategy epf_p2p_strategy(const struct epf_p2p *ep);
enum codec_strategy epf_p2p_agree(const struct msg_hello *a, const struct msg_hello *b);
void epf_p2p_conn_agree(struct conn *c, const struct msg_hello *a, const struct msg_hello *b);
void epf_p2p_hello_make(const struct epf_p2p *ep, bool is_local, struct msg_hello *out);
/* The key of a connection. acceptor: metadata of who accepts; NULL: this endpoint. */
void epf_p2p_session(struct epf_p2p *ep, const struct metadata *acceptor,
		     const struct msg_hello *first, const struct msg_hello *second,
		     uint8_t key[EPF_AUTH_KEY_BYTES]);

/* guests.c */
void epf_p2p_guest_new(struct epf_p2p *ep, int listener);
void epf_p2p_guests_serve(struct epf_p2p *ep);
void epf_p2p_guest_free(struct epf_p2p *ep, struct guest *g);

/* stats.c; all but epf_p2p_stats_waits() on the endpoint's thread, or before it starts and after it ends */
void epf_p2p_stats_open(struct epf_p2p *ep);
void epf_p2p_stats_tick(struct epf_p2p *ep, uint64_t now, uint64_t *next);
void epf_p2p_stats_remove(struct conn *c);
void epf_p2p_stats_close(struct epf_p2p *ep);
/* A call that waits for a peer reports here each time it polls. Any thread. */
void epf_p2p_stats_waits(uint64_t *since, uint64_t *seen);

/* control.c, thread.c */
int epf_p2p_control(struct conn *c); /* takes what has arrived on its stream */
void *epf_p2p_thread(void *arg);

#endif
