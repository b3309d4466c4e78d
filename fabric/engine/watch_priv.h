/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the watch: watch_round.c (set-up, rounds), watch_shelf.c (blocks), watch_sample.c (one sample), watch_wait.c (wait reasons).
 */
#ifndef EPF_FABRIC_ENGINE_WATCH_PRIV_H
#define EPF_FABRIC_ENGINE_WATCH_PRIV_H

#include "fabric/engine/watch.h"

#include <stdbool.h>

enum {
	WATCH_SEARCHES =
		16, /* of a lane or stream, in one look: the rest is found in the next ones */
	WATCH_GAP_STREAMS = 8192, /* receiving streams looked at for a gap, in one look */
	WATCH_SILENT_TICKS = 2,
	WATCH_MISSES =
		10, /* looks in which a rank that waits may be awake: a busy machine lets it lie */
};

/* Blocks of one class for objects 0 .. n_objects - 1; those that wait may take another's. */
struct shelf {
	unsigned class_index;
	uint32_t room, n_objects;
	uint32_t most;                  /* room, or fewer while the file has no more blocks */
	uint32_t shown;                 /* objects with a block */
	struct epf_stats_block **block; /* [room] */
	uint32_t *owner;                /* [room] object, EPF_NONE: none */
	uint8_t *waits;                 /* [room] its owner waits */
	uint32_t *slot;                 /* [n_objects] EPF_NONE: none */
};

/* An object's progress, and since when it has made none. */
struct track {
	uint64_t a, b, c;
	uint64_t since_ns;
	uint8_t wait; /* enum epf_stats_wait, as last seen */
};

/* What an object waits for. */
struct wait {
	unsigned reason;             /* enum epf_stats_wait */
	uint32_t rank, stream, lane; /* EPF_NONE: not known */
};

struct ring_track {
	struct track t;
	struct wait found; /* where its oldest command is: searched once a stall */
	uint8_t is_full;
};

/* What a rank wished for in its wakeup (queues/epf_wakeup.h). */
struct condition {
	uint32_t what, index;
	uint64_t least;
	uint64_t seen;   /* by the kernel */
	uint32_t kernel; /* 1: a kernel waits, no thread does */
};

struct rank_track {
	struct track t;
	struct condition condition; /* the last one seen */
	uint64_t pushed;            /* slots of all its rings seen: it is active when that moves */
	uint64_t active_ns;
	uint8_t missed; /* looks in which no thread of it slept */
};

struct lane_track {
	struct track t;
	uint64_t posted, completed, bytes;
	uint32_t last_posted, last_tail;
};

struct peer_track {
	uint32_t last, current; /* what its streams have deferred at their heads, mixed */
	uint32_t look;          /* number of the look in which it had something deferred */
	uint32_t next;          /* list of those of this look */
	uint32_t stream, deferred;
	uint64_t since_ns;
	uint32_t last_applied, last_stalls[EPF_STALLS]; /* as the core has it, modulo 2^32 */
	uint64_t cmds, bytes_sent, signals_sent, signals_applied;
	uint64_t stalls[EPF_STALLS];
};

/* A stream whose arrivals wait for one that is missing; one is followed at a time. */
struct gap {
	uint32_t node, handle, base;
	uint64_t since_ns; /* 0: none */
};

struct epf_watch {
	struct epf_watch_config cfg;
	struct epf_stats_block *job, *recorder;
	struct shelf ranks, rings, lanes, peers;
	struct rank_track *rank;
	struct ring_track **ring; /* [EPF_MAX_RINGS] */
	struct lane_track *lane;
	struct peer_track **peer; /* [world] NULL: nothing to keep yet */
	struct gap gap;
	uint32_t gap_node, gap_handle; /* where the search for one goes on */
	uint32_t look;                 /* number of this look */
	uint32_t searches;             /* left in this look */
	uint32_t waits, waits_hidden;  /* of this look */
	uint64_t next_ns;
	uint64_t signal_wait_ns; /* the longest wait of a local rank for a signal, in this look */
};

/* Returns true if the object has not moved since the last sample. Records the new values. */
bool watch_is_still(struct track *t, uint64_t a, uint64_t b, uint64_t c, uint64_t now_ns);

/* Enters a wait into the row of a block, NULL where it has none, and into the flight recorder when it is new. */
void watch_enter(struct epf_core *core, struct epf_stats_block *block, uint32_t stat, uint8_t *last,
		 unsigned reason, uint64_t since_ns, uint32_t id, uint32_t rank);

/* A state row that keeps the time of its last change. */
void watch_state(struct epf_stats_block *block, uint32_t stat, uint32_t state, uint64_t now_ns);

/* Memory for n objects and at most `most` blocks of a class: 0, or -ENOMEM with epf_last_error(); and its end, with all its blocks. */
int watch_shelf_make(struct shelf *s, unsigned class_index, uint32_t most, uint32_t n);
void watch_shelf_free(struct epf_stats *stats, struct shelf *s);
/* The block of an object, made where there is room; NULL: it is not shown. labels: as the class has them. */
struct epf_stats_block *watch_shelf_get(struct epf_stats *stats, struct shelf *s, uint32_t object,
					bool waits, const struct epf_stats_label *labels,
					unsigned n_labels);
/* Frees a slot and its block. */
void watch_shelf_drop(struct epf_stats *stats, struct shelf *s, uint32_t slot);

/*
 * What was sent since the last look, by peer and by lane: the core counts by stream, in one addition a command. A stream that changed its lane
 * meanwhile counts for the new one. Taking the counts away is all that the watch ever does to the core; nobody else reads them.
 */
void watch_take_counts(struct epf_core *core);
/* One look at local rank i, ring i, lane i; at all peers. */
void watch_look_rank(struct epf_core *core, uint32_t i, uint64_t now);
void watch_look_ring(struct epf_core *core, uint32_t i, uint64_t now);
void watch_look_lane(struct epf_core *core, uint32_t i, uint64_t now);
void watch_look_peers(struct epf_core *core, uint64_t now);

/* Sets a gauge; EPF_NONE: unknown. */
void watch_gauge(struct epf_stats_block *block, uint32_t stat, uint32_t value);

/* What a thread of the rank sleeps for; false: none sleeps. */
bool watch_rank_condition(const struct epf_rank_state *rank, struct condition *condition);
/* Whether that is missing, and who should bring it; reason NONE: it is there. *value: where it stands, else as it was. */
struct wait watch_rank_wait(const struct epf_core *core, const struct epf_rank_state *rank,
			    const struct condition *condition, uint64_t *value);
/* Returns what the oldest command of a stalled ring waits for. */
struct wait watch_ring_wait(struct epf_core *core, const struct epf_ring_state *ring,
			    struct ring_track *t, uint32_t occupancy);
/* The same of a lane and of a stream with deferred commands. */
unsigned watch_lane_wait(const struct epf_core *core, const struct epf_lane *lane);
/* Returns the first deferred command of a stream, or a counted signal that one of its groups holds; EPF_NONE if it has neither. */
uint32_t watch_head(const struct epf_core *core, const struct epf_stream *s);
unsigned watch_stream_wait(const struct epf_core *core, const struct epf_stream *s);
/* Returns the slots pushed and not dequeued. */
uint32_t watch_occupancy(const struct epf_ring_state *ring);
/* Goes on looking for streams with a gap, or whether the one that is followed is still there. */
void watch_gaps(struct epf_core *core, uint64_t now_ns);

#endif
