/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits for what: reads the statistics files of one or several instances and makes of their waits one graph, the causes first. An
 * instance that has exited is left out unless it is named or asked for; only who waits for one of its ranks learns that it has ended. For `ep-fabric why` and ep-top's waiting screen, which only print. It touches nobody: files, and /proc/PID/stat of
 * processes that they name. It must never trust a number of a file beyond what the reader has checked, nor print.
 *
 * A wait *follows* from what keeps the one that it waits for: a rank that waits for a signal of rank 2 follows from rank 2's own wait, or from
 * rank 2's process being stopped. What follows from nothing is a cause. One thread at a time.
 */
#ifndef EPF_TOOLS_WAITS_WAITS_H
#define EPF_TOOLS_WAITS_WAITS_H

#include "queues/epf_stats_read.h"

#include <stdbool.h>
#include <stdint.h>

#define WAITS_NONE UINT32_MAX /* a rank, ring, index that is not known or does not apply */

/* Shorter waits are the ordinary course of things. */
#define WAITS_LEAST_NS (UINT64_C(500) * 1000 * 1000)

/* Who waits. */
enum waits_who {
	WAITS_RANK = 0, /* a thread of a rank, asleep in the library */
	WAITS_RING = 1, /* the oldest command of a ring */
	WAITS_LANE = 2, /* a lane of an engine */
	WAITS_PEER = 3, /* commands that an engine has set aside for a rank, or arrivals from it */
	WAITS_FACT = 4, /* nobody: a cause that is seen by itself */
};

/* Why: below 16 enum epf_stats_wait, as the engine says it; these are concluded here. */
enum waits_reason {
	WAITS_R_STOPPED = 16,        /* the rank's process is stopped (SIGSTOP, a debugger) */
	WAITS_R_ENDED = 17,          /* the rank's process has ended */
	WAITS_R_ENGINE_STOPPED = 18, /* the process of the engine is stopped */
	WAITS_R_ENGINE_ENDED = 19,   /* it has ended: these are final snapshot */
	WAITS_R_ENGINE_STALE = 20,   /* it runs and gives no sign of life */
	WAITS_R_LINK_DOWN = 21,      /* a link of a NIC is down */
	WAITS_R_BUSY = 22,           /* the rank runs its own code: neither waits here nor pushes */
	WAITS_R_UNSEEN =
		23, /* the rank is served by an instance that was not read: another machine's */
	WAITS_R_CYCLE = 24, /* ranks wait for each other */
	WAITS_R_LOST = 25,  /* the rank is lost */
	/* What the NIC knows of the connection to a node: WAITS_R_PATH + enum epf_stats_path, from LOSSY on. */
	WAITS_R_PATH = 24,
	WAITS_R_PATH_LOSSY = WAITS_R_PATH + EPF_STATS_PATH_LOSSY,
	WAITS_R_PATH_FULL = WAITS_R_PATH + EPF_STATS_PATH_FULL,
	WAITS_R_PATH_SILENT = WAITS_R_PATH + EPF_STATS_PATH_SILENT,
	WAITS_R_PATH_NO_ANSWER = WAITS_R_PATH + EPF_STATS_PATH_NO_ANSWER,
	WAITS_R_PATH_REFUSED = WAITS_R_PATH + EPF_STATS_PATH_REFUSED,
	WAITS_R_PATH_NO_ROUTE = WAITS_R_PATH + EPF_STATS_PATH_NO_ROUTE,
	WAITS_R_PATH_UNCONNECTED = WAITS_R_PATH + EPF_STATS_PATH_UNCONNECTED,
	WAITS_REASONS
};

struct waits_instance {
	char *path;
	struct epf_stats_reader *reader; /* NULL: could not be read, error says why */
	char error[256];
	char name[EPF_STATS_NAME_BYTES];
	uint64_t pid, pid_space;
	enum epf_stats_alive alive;
	char process;          /* state letter, 0: not known */
	bool named;            /* given by name: shown also when it has exited */
	bool left_out;         /* has exited, and nobody asked for it */
	uint64_t heartbeat_ns; /* 0: none yet */
	uint32_t links, links_up;
	uint64_t link_since_ns;
	uint32_t changing; /* blocks left out of this reading */
};

/* One job, of all instances together. */
struct waits_job {
	char name[EPF_STATS_LABEL_BYTES];
	uint64_t id; /* 0: not known */
	uint32_t world, nodes;
	uint32_t ranks;  /* of it that were read here */
	uint64_t waits;  /* that its engines count */
	uint64_t hidden; /* of those, not in any block: the files had no room */
	uint64_t lanes_hidden;
	uint32_t entries; /* below */
	uint32_t causes;
};

struct waits_rank {
	uint32_t job, instance, rank;
	uint64_t pid;
	char process;   /* state letter of its process; 0: not known */
	unsigned state; /* enum epf_stats_peer_state */
	uint64_t active_ns;
};

/* A lane, and what its NIC says about its connection. */
struct waits_lane {
	uint32_t job, instance, lane;
	uint32_t peer; /* lowest rank of the node */
	unsigned path; /* enum epf_stats_path */
	uint64_t since_ns, retransmits, rtt_us, unsent_bytes;
};

struct waits_entry {
	enum waits_who who;
	unsigned reason; /* enum epf_stats_wait or waits_reason */
	bool is_cause;
	uint32_t job, instance;
	uint32_t rank; /* who waits or is meant; of lanes and peers WAITS_NONE */
	uint32_t peer; /* the peer it waits for */
	uint32_t stream, lane, ring;
	bool kernel;                   /* of a rank: a kernel of its GPU waits, not a thread */
	uint64_t signal, value, least; /* of a rank's wait; signal: or the ring's number */
	uint64_t deferred;
	uint32_t occupancy, slots; /* of a ring */
	uint64_t since_ns; /* CLOCK_MONOTONIC; of a cause of its oldest consequence; 0: not known */
	uint64_t age_ns;
	uint32_t follows;      /* entry, WAITS_NONE: none */
	uint32_t consequences; /* of a cause: entries that follow from it in the end */
};

struct waits {
	struct waits_instance *instance;
	uint32_t n_instances;
	struct waits_job *job;
	uint32_t n_jobs;
	struct waits_rank *rank;
	uint32_t n_ranks;
	struct waits_lane *lane;
	uint32_t n_lanes;
	struct waits_entry *entry; /* `follows` is an index here */
	uint32_t n_entries;
	uint32_t
		*order; /* [n_entries] causes with most consequences first, then the oldest waits */
	uint32_t n_left_out; /* instances */
	bool with_dead;      /* set by the caller: instances that have exited, too */
	uint64_t now_ns, least_ns;
	uint32_t room[5]; /* the lists' */
	bool no_memory;
};

/* An empty model; NULL without memory. */
struct waits *waits_new(void);
void waits_free(struct waits *w);

/* Adds a file; one that cannot be read becomes an instance with an error. 0 or -ENOMEM. A file is added once. */
int waits_add_file(struct waits *w, const char *path, bool named);
/* Adds all files of a statistics directory that are not there yet: their number, 0 where there is no directory, or -errno. */
int waits_add_dir(struct waits *w, const char *dir);

/* Adds what a command line names, a name with a slash as a file, any other as an instance of dir; all of dir where n is 0. 0 or -errno. */
int waits_add_names(struct waits *w, const char *dir, char *const *names, int n);

/*
 * Reads all instances again (what was replaced or could not be read is opened again) and makes the graph, of waits that last least_ns at
 * least. now_ns: CLOCK_MONOTONIC. 0 or -ENOMEM.
 */
int waits_refresh(struct waits *w, uint64_t now_ns, uint64_t least_ns);

/* One word for a reason ("signal-missing"), for who waits ("rank") and for a writer ("stale"); never NULL. Stable: JSON has them. */
const char *waits_reason_word(unsigned reason);
const char *waits_who_word(enum waits_who who);
const char *waits_alive_word(enum epf_stats_alive alive);
/* One sentence about an entry, without a full stop. Returns text. */
const char *waits_sentence(const struct waits *w, const struct waits_entry *e, char *text,
			   size_t bytes);

/* What to say where no instance is to be seen: that nobody lives, and how many have exited. Returns text. */
const char *waits_nobody(uint32_t left_out, char *text, size_t bytes);
/* The lane that a fact about a connection (WAITS_R_PATH) was seen on, the worst; NULL: none. */
const struct waits_lane *waits_lane(const struct waits *w, const struct waits_entry *e);
/* A rank of a job; NULL: none of the instances has it. */
const struct waits_rank *waits_rank(const struct waits *w, uint32_t job, uint32_t rank);

#endif
