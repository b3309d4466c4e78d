/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the service daemon, shared by the files of this folder and their tests. One thread, the control
 * thread, owns everything here. An engine core belongs to its scheduler's thread once its job is connected and is then reached by
 * epf_core_call() alone.
 *
 *   user     what a uid has in use, against the limits         session  a connection
 *   member   a rank's memory: signals, regions, rings; lives   job      one engine core on one NIC, its local ranks' seats
 *            longer than its session, until the engine lets go
 *
 * Files, top down: daemon.c (life, loop), session.c (connections), request.c (dispatch), attach.c and join.c (joining), end.c (leaving),
 * job.c (engines), handover.c, gpu.c, region.c, ring.c, member.c (a rank's memory), core_call.c, operate.c (operator), status.c (JSON),
 * place.c (directory, lock, socket), unmap.c and memory.c (memfds), user.c (limits).
 */
#ifndef EPF_FABRIC_SERVICE_SERVICE_PRIV_H
#define EPF_FABRIC_SERVICE_SERVICE_PRIV_H

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/engine/scheduler.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/device_mem.h"
#include "fabric/protocol/channel.h"
#include "fabric/protocol/seal.h"
#include "fabric/service/service.h"

#include <jansson.h>
#include <pthread.h>
#include <sys/types.h>

enum {
	SVC_REASONS = 1000,      /* reason numbers are below this */
	SVC_JOBS_MAX = 1024,     /* of one daemon: room in the statistics file */
	SVC_STATS_TIMES = 4,     /* blocks of a kind in the daemon's file, in stats-blocks */
	SVC_RECORDERS = 16,      /* jobs of one daemon with a flight recorder */
	SVC_SCHEDULERS_MAX = 64, /* as the setting service-cores allows */
	SVC_SLICE_BYTES =
		8 << 20,      /* of a client's memory that is looked at in one turn of the loop */
	SVC_MS = 1000 * 1000, /* ns */
};

/* What a limit counts. */
enum svc_use {
	SVC_CLIENTS,
	SVC_JOBS,
	SVC_RINGS,
	SVC_REGIONS,
	SVC_BYTES,
	SVC_ENGINE,
	SVC_SIGNALS,
	SVC_USES
};

struct svc_user {
	struct svc_user *next;
	uid_t uid;
	uint32_t refs; /* sessions, members and jobs that point here */
	uint64_t used[SVC_USES];
};

enum svc_region_state {
	SVC_REGION_LIVE = 1,
	SVC_REGION_WITHDRAWING = 2,
	SVC_REGION_GONE = 3 /* unmapped; the number is not used again */
};

struct svc_region {
	void *addr;                    /* mapped here, with the pages around it */
	struct epf_copy_mem *gpu;      /* or GPU memory, which is not */
	struct epf_device_mem *device; /* or GPU memory that an RDMA device reaches by a dma-buf */
	uint64_t bytes;
	uint64_t file_bytes; /* of the memfd it is part of */
	uint32_t access;
	uint32_t state;
};

enum svc_ring_state { SVC_RING_FREE = 0, SVC_RING_OPEN = 1, SVC_RING_CLOSING = 2 };

struct svc_ring {
	struct epf_ring_shm *shm;
	uint64_t bytes;
	uint64_t start;
	uint32_t log2;
	uint32_t weight;
	uint32_t core_id; /* in the engine, after the attach */
	uint32_t state;
};

/* A rank's memory. */
struct svc_member {
	struct svc_user *user;
	struct svc_job *job; /* NULL before the attach */
	struct epf_signal *signals;
	struct epf_wakeup *wakeup;
	size_t signal_bytes; /* of the mapping, wakeup included */
	uint32_t n_signals;
	uint32_t local; /* index in the engine */
	struct svc_region *regions;
	uint32_t n_regions;
	struct svc_ring *rings;
	uint32_t n_rings;
	uint32_t closing; /* rings the engine has not let go of yet */
	bool rejoining;   /* to be announced at CONNECT */
	bool handed;      /* the engine knows it */
	bool pushes;      /* kernels of it push commands, which cannot wake the engine */
};

enum svc_state {
	SVC_STRANGER,
	SVC_OPERATOR,
	SVC_GREETED,
	SVC_ATTACHED,
	SVC_WORLD,
	SVC_CONNECTED,
	SVC_LEAVING
};

/* A region whose memory is looked at, slice by slice, before it is mapped. */
struct svc_filling {
	int fd; /* -1: none */
	uint64_t offset, bytes, done;
	uint32_t access;
	struct epf_svc_head head; /* of the request */
};

struct svc_session {
	struct svc_session *prev, *next; /* in order of arrival */
	int fd;
	enum svc_state state;
	bool ending;     /* close it when its output is written */
	bool dead;       /* in the graveyard */
	uint32_t events; /* epoll */
	unsigned minor;
	uid_t uid;
	pid_t pid;
	uint64_t deadline_ns;  /* 0: none */
	struct svc_user *user; /* NULL before HELLO */
	struct svc_member *member;
	struct svc_filling filling;
	struct epf_svc_input in;
	struct epf_svc_output out;
	char program[EPF_SVC_NAME];
};

enum svc_seat_state {
	SVC_SEAT_HERE = 1,
	SVC_SEAT_DRAINING = 2, /* the rank has gone, its memory is still in use */
	SVC_SEAT_EMPTY = 3
};

/* The place of a local rank in a job; its index is that in the engine. */
struct svc_seat {
	struct svc_member *member;
	uint32_t rank;
	uint32_t state;
	uint32_t cause; /* why it has gone: reason number, 0: left in order */
	uint32_t epoch; /* how often it rejoined */
	pid_t pid;
};

enum svc_job_state {
	SVC_JOB_JOINING = 0,
	SVC_JOB_WORLD = 1,     /* the engine knows the nodes */
	SVC_JOB_CONNECTED = 2, /* runs on a scheduler */
	SVC_JOB_BROKEN = 3,    /* a rank went before it was connected: the engine is gone */
	SVC_JOB_ENDING = 4     /* its last rank has gone */
};

struct svc_job {
	struct svc_job *next;
	struct epf_svc *svc;
	struct svc_user *user;
	uint32_t number; /* counted over the life of the daemon */
	enum svc_job_state state;
	char name[EPF_SVC_JOB_NAME];
	uint8_t id[EPF_SVC_ID];
	uint64_t run; /* the first bytes of id, for the statistics */
	uint8_t key[EPF_SVC_KEY];
	uint8_t nonce[EPF_SVC_ID];
	uint32_t world, weight;
	char broken[256]; /* BROKEN: why */
	uint32_t broken_reason;
	/* Engine. */
	const char *nic_kind;
	char route[EPF_SVC_NAME]; /* as the first rank said (proto.h: struct epf_svc_attach) */
	const struct epf_nic_ops *ops;
	struct epf_nic *nic;
	struct epf_core *core;
	uint64_t engine_bytes;       /* counted for its user: SVC_ENGINE */
	uint64_t nic_bytes;          /* the same, of the NIC's own memory */
	struct epf_stats *own_stats; /* NULL: the blocks are in the daemon's file */
	struct epf_stats_block *block, *nic_block;
	struct epf_scheduler *scheduler;
	uint32_t scheduler_number;
	struct epf_peers_shm *peers;
	struct epf_wakeup *kick;
	int peers_fd, kick_fd;
	size_t peers_bytes, kick_bytes;
	/* Ranks. */
	struct svc_seat *seats; /* [world] at most */
	uint32_t n_seats, n_here;
	bool awake;     /* kernels of a rank here push commands: the core was told not to sleep */
	uint8_t *table; /* of WORLD */
	uint32_t *node_of;
	uint64_t *tokens;
	uint32_t n_nodes, node;
	struct epf_seal_session seal;
	uint32_t round;      /* exchanges done */
	uint32_t reconnects; /* attempts begun; as many at every node */
	/* Timers of the end. */
	uint64_t started_ns;
	uint64_t next_ns;  /* when svc_jobs_step looks again, 0: nothing to do */
	uint64_t wait_ns;  /* between looks: grows while nothing happens */
	uint64_t grace_ns; /* end of the grace, or of the goodbye */
	bool said_bye;
};

struct svc_unmap; /* unmap.c */

/* Memory that is being let go of beside the control thread. */
struct svc_unmaps {
	pthread_t thread;
	pthread_mutex_t lock; /* of todo, done, stop */
	pthread_cond_t more;
	struct svc_unmap *todo, *done;
	bool started, stop;
	uint32_t pending; /* the control thread's: handed over and not collected */
};

struct svc_refusal {
	uint64_t count, notified;
	uint64_t notified_ns;
};

struct epf_svc {
	const struct epf_conf *conf;
	char version[EPF_SVC_NAME];
	char instance[EPF_SVC_NAME];
	char place
		[64]; /* instance and the first half of the node's id: unlike any other node's, whatever its name */
	char dir[4096]; /* runtime directory */
	char socket[108];
	char lock[4200];
	int lock_fd, listen_fd, epoll_fd, stop_fd, spare_fd;
	int notify_fd;        /* the service manager's socket, connected; -1: none */
	uint64_t watchdog_ns; /* it wants to hear of us in this time; 0: does not */
	uint8_t node_id[EPF_SVC_ID];
	struct epf_auth auth;
	struct epf_stats *stats;
	struct epf_scheduler *schedulers[SVC_SCHEDULERS_MAX];
	uint32_t scheduler_jobs[SVC_SCHEDULERS_MAX];
	uint32_t n_schedulers;
	int32_t memory_node; /* NUMA node for the memory of engines; -1: any */
	struct svc_user *users;
	struct svc_session *first, *last, *graveyard;
	uint32_t n_clients, n_strangers, n_filling;
	struct svc_unmaps unmaps;
	struct svc_job *jobs;
	uint32_t n_jobs;
	uint32_t jobs_begun, ranks_lost;
	bool draining, stopping, ending;
	uint32_t stops; /* epf_svc_stop() calls handled */
	uint64_t started_ns, drain_until_ns, next_beat_ns, beat_ns;
	struct svc_refusal refusals[SVC_REASONS];   /* of requests and connections */
	uint64_t commands_refused[EPF_CMD_REASONS]; /* by engines that have ended */
};

/* ---- place.c ---- */
/* Directory, lock and listening socket; errors leave nothing behind that svc_place_leave() does not remove. */
int svc_place_take(struct epf_svc *s);
void svc_place_leave(struct epf_svc *s);

/* ---- notify.c ---- */
/* Connects to the service manager, if the environment names one. */
void svc_notify_open(struct epf_svc *s);
void svc_notify_close(struct epf_svc *s);
/* Reports our state to the service manager, and that we are alive. first: that clients can connect. */
void svc_notify_beat(struct epf_svc *s, bool first);
/* A period of signs of life that its watchdog is content with, at most period_ns. */
uint64_t svc_notify_period(const struct epf_svc *s, uint64_t period_ns);

/* ---- session.c ---- */
void svc_accept(struct epf_svc *s);
/* The socket has something, or room. */
void svc_session_event(struct epf_svc *s, struct svc_session *c, uint32_t events);
/* One slice of each region that is being looked at. */
void svc_sessions_fill(struct epf_svc *s);
/* Closes who is late. */
void svc_sessions_deadlines(struct epf_svc *s, uint64_t now);
/* why: for the log; NULL: nothing to say. Its rank, if it has one, has died unless it has left before. */
void svc_session_close(struct epf_svc *s, struct svc_session *c, const char *why);
void svc_sessions_bury(struct epf_svc *s);

/* ---- request.c ---- */
union svc_message {
	struct epf_svc_hello hello;
	struct epf_svc_signals signals;
	struct epf_svc_region region;
	struct epf_svc_region_close region_close;
	struct epf_svc_ring ring;
	struct epf_svc_ring_close ring_close;
	struct epf_svc_attach attach;
	struct epf_svc_world world;
	struct epf_svc_connect connect;
	struct epf_svc_reconnect reconnect;
	struct epf_svc_mask mask;
	struct epf_svc_awake awake;
	struct epf_svc_counter counter;
	struct epf_svc_status status;
	struct epf_svc_drain drain;
	struct epf_svc_link link;
	struct epf_svc_gpu_region gpu_region;
};

/* What a handler fills on success. */
struct svc_answer {
	union {
		struct epf_svc_hello_reply hello;
		struct epf_svc_signals_reply signals;
		struct epf_svc_region_reply region;
		struct epf_svc_region_close_reply region_close;
		struct epf_svc_ring_reply ring;
		struct epf_svc_attach_reply attach;
		struct epf_svc_world_reply world;
		struct epf_svc_describe_reply describe;
		struct epf_svc_reconnect_reply reconnect;
		struct epf_svc_counter_reply counter;
		struct epf_svc_status_reply status;
		struct epf_svc_drain_reply drain;
		struct epf_svc_link_reply link;
	};

	void *owned; /* freed after the answer is encoded */
	int fds[EPF_SVC_FDS_MAX];
	unsigned n_fds;
	bool later; /* no answer now: svc_request_finish() gives it */
};

/* A handler of one kind of request: fills *a and returns 0, or returns -errno with epf_last_error() set. */
typedef int svc_handler(struct epf_svc *s, struct svc_session *c, const union svc_message *m,
			struct svc_answer *a);

/* The complete message in c->in. */
void svc_request(struct epf_svc *s, struct svc_session *c);
/* Ends a request whose answer came later: REGION. rc: 0, or its error is this thread's last one. */
void svc_request_finish(struct epf_svc *s, struct svc_session *c, const struct epf_svc_head *head,
			int rc, const void *reply);
/* Counts this thread's last error and logs the first of a kind in a second. */
void svc_refused(struct epf_svc *s, const struct svc_session *c, const char *what);

/* ---- user.c ---- */
struct svc_user *svc_user_get(struct epf_svc *s, uid_t uid); /* NULL: no memory */
void svc_user_put(struct epf_svc *s, struct svc_user *user);
/* Adds to what the user has in use, or -ENOSPC with the setting's name and value. */
int svc_user_take(struct epf_svc *s, struct svc_user *user, enum svc_use use, uint64_t n);
void svc_user_give(struct svc_user *user, enum svc_use use, uint64_t n);
const char *svc_use_setting(enum svc_use use);
uint64_t svc_use_limit(const struct epf_svc *s, enum svc_use use);

/* ---- memory.c ---- */
/* Rounds up to whole pages. */
static inline uint64_t svc_pages(uint64_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

/*
 * Memory to share with a client: a memfd of that size, allocated, mapped and sealed. read_only: nobody who gets the descriptor can map it for
 * writing.
 */
int svc_memory_make(const char *name, size_t bytes, bool read_only, void **addr, int *fd);
/* Whether a client's descriptor may be used at all; nothing is touched. */
int svc_memory_check(int fd, uint64_t offset, uint64_t bytes);
/* Allocates [offset, offset + bytes) of it: holes and lack of memory are found now. */
int svc_memory_fill(int fd, uint64_t offset, uint64_t bytes);
/* Returns true if all pages of a region must be allocated at its registration. */
bool svc_memory_must_fill(const struct epf_conf *conf);
int svc_memory_map(int fd, uint64_t offset, uint64_t bytes, void **addr);
void svc_memory_unmap(void *addr, uint64_t bytes);

/* Frees what gpu.c keeps of a dma-buf. Accepts NULL. */
void svc_device_free(struct epf_device_mem *mem);

/* ---- unmap.c ---- */
int svc_unmap_start(struct epf_svc *s);
/* Waits until all is let go of. Accepts one that was not started. */
void svc_unmap_stop(struct epf_svc *s);
/* Unmaps a region and gives it back to its user, at once or when a thread has done it. */
void svc_unmap_region(struct epf_svc *s, struct svc_user *user, void *addr, uint64_t bytes,
		      uint64_t file_bytes);
/* Closes a client's memfd, which may be the last descriptor of it. */
void svc_unmap_close(struct epf_svc *s, int fd);
/* Unmaps what has been released meanwhile. */
void svc_unmap_collect(struct epf_svc *s);

/* ---- member.c ---- */
/* Returns the session's member, made if it has none yet; NULL with epf_last_error() set: no memory. */
struct svc_member *svc_member_get(struct epf_svc *s, struct svc_session *c);
svc_handler svc_member_signals;

/* ---- region.c ---- */
svc_handler svc_member_region;
/* gpu.c */
svc_handler svc_member_gpu_region;
/* Bytes of a dma-buf; -EINVAL: the descriptor is none. Tests put a fake in its place: where there is no GPU there is no dma-buf. */
extern int (*svc_dmabuf_bytes)(int fd, uint64_t *bytes);
/* For it: whether the client may have one more region; what a region counts against the limits, charged and released; and its entry. */
int svc_member_may_register(struct epf_svc *s, struct svc_session *c, uint32_t access,
			    struct svc_member **out);
int svc_member_take(struct epf_svc *s, struct svc_member *m, uint64_t bytes);
void svc_member_give(struct svc_member *m, uint64_t bytes);
int svc_member_add(struct svc_member *m, const struct svc_region *region);
svc_handler svc_member_region_close;
/* The next slice of c->filling: 1 when the region is registered and *region set, 0 to go on, or an error. */
int svc_member_fill(struct epf_svc *s, struct svc_session *c, uint32_t *region);
void svc_member_stop_filling(struct epf_svc *s, struct svc_session *c);

struct svc_region_args {
	struct svc_member *m;
	struct svc_region *r;
	uint32_t number; /* what the engine calls it */
};

/* On the engine's thread: registers the region; arg: struct svc_region_args. */
int svc_region_add(struct epf_core *core, void *arg);
void svc_region_free(struct epf_svc *s, struct svc_member *m, struct svc_region *r);

/* ---- ring.c ---- */
svc_handler svc_member_ring;
svc_handler svc_member_ring_close;
/* Unmaps rings the engine has let go of; 1 when some are left. */
int svc_member_sweep(struct svc_member *m);

struct svc_ring_args {
	struct svc_member *m;
	struct svc_ring *r;
};

/* On the engine's thread: opens the ring; arg: struct svc_ring_args. */
int svc_ring_add(struct epf_core *core, void *arg);
void svc_ring_unmap(struct svc_member *m, struct svc_ring *r);

/* ---- handover.c ---- */
/* Hands signals, regions and rings to the job's engine; directly or, when it runs, on its thread. */
int svc_member_hand_over(struct svc_member *m, struct svc_job *job, uint32_t rank, pid_t pid);
void svc_member_destroy(struct epf_svc *s, struct svc_member *m);

/* ---- job_state.c ---- */
/* 0, or why the job cannot be used. */
int svc_job_check(const struct svc_job *job);
struct svc_seat *svc_job_seat(struct svc_job *job, uint32_t rank);
const char *svc_job_name(const struct svc_job *job);
/* Makes svc_jobs_step() visit the job within a millisecond. */
void svc_job_look(struct svc_job *job);

/* ---- job.c ---- */
/* Opens the job's NIC (job->ops, job->nic) with the daemon's settings, but the job's own weight, which decides the lanes' traffic class. */
int svc_job_open_nic(const struct epf_svc *s, struct svc_job *job, uint64_t (*now)(void *));
/* A new job with its engine, in the list; the client's user pays. */
int svc_job_create(struct epf_svc *s, struct svc_session *c, const struct epf_svc_attach *m,
		   struct svc_job **out);
/* Puts a connected job on the scheduler that has least to do. */
int svc_job_start(struct epf_svc *s, struct svc_job *job);
/* Takes it off its scheduler and frees all, its members too. */
void svc_job_destroy(struct epf_svc *s, struct svc_job *job);
/* Closes the engine of a job that cannot be joined any more; its ranks learn of it with their next request. */
void svc_job_break(struct svc_job *job, unsigned reason, const char *why);
/* Before the engine grows by peers: it stops where its user's limit is. */
void svc_job_limit_engine(struct epf_svc *s, struct svc_job *job);
/* After it grew, or failed to (rc): counts what it has now; the user's limit where that was in its way, else rc. */
int svc_job_count_engine(struct epf_svc *s, struct svc_job *job, int rc);
/* ---- attach.c ---- */
svc_handler svc_join_attach;

/* ---- join.c ---- */
svc_handler svc_join_world;
svc_handler svc_join_connect;
svc_handler svc_join_describe;
svc_handler svc_join_update;
svc_handler svc_join_reconnect;

/* ---- end.c ---- */
/* The session's rank has gone: cause 0 it left, else a reason number. The member is the job's, or freed. */
void svc_rank_gone(struct epf_svc *s, struct svc_session *c, unsigned cause);
/* Looks after ranks that drain, rings that close and jobs that end. */
void svc_jobs_step(struct epf_svc *s, uint64_t now);
/* When svc_jobs_step has to run next; UINT64_MAX: not by itself. */
uint64_t svc_jobs_next(const struct epf_svc *s);

/* ---- operate.c ---- */
svc_handler svc_operate_mask, svc_operate_awake, svc_operate_counter, svc_operate_drain,
	svc_operate_link;
/* Keeps the job's core awake exactly while kernels of a rank here push commands: after one has said so, and after one has gone. */
void svc_job_keep_awake(struct svc_job *job);

/* ---- status.c ---- */
svc_handler svc_status;
json_t *svc_status_json(const struct epf_svc *s);

#endif
