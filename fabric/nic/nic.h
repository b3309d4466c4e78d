/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between an engine core and a NIC: a table of operations, a work request, a completion.
 *
 * Called by the engine core (fabric/engine/step_hot.c posts and reaps; the rest is slow path) and by the
 * conformance suite (tools/prove/check.h), which every NIC must pass. One thread uses a NIC at a
 * time: there are no locks here. Operations marked HOT never allocate, lock, log or make a system call; those of a NIC
 * over sockets (tcp) make system calls in post and reap, since the kernel moves the bytes, and none that waits;
 * a library below a NIC (ofi) does as its provider does.
 *
 * Words follow the InfiniBand verbs: work request, completion, immediate data, memory region keys
 * (InfiniBand Architecture Specification vol. 1, chapters 9 to 11; ibv_post_send(3), ibv_poll_cq(3)).
 */
#ifndef EPF_FABRIC_NIC_NIC_H
#define EPF_FABRIC_NIC_NIC_H

#include <stddef.h>
#include <stdint.h>

struct epf_wakeup;
struct epf_conf;
struct epf_copy_mem;
struct epf_device_mem;
struct epf_nic;

/* What a work request does. */
enum epf_wr_op {
	EPF_WR_WRITE = 1, /* RDMA write: no event at the target */
	EPF_WR_WRITE_IMM =
		2, /* RDMA write with immediate: consumes a posted receive, raises EPF_WC_RECV_IMM */
	EPF_WR_SEND =
		3, /* message of at most EPF_NIC_MSG_BYTES: consumes a receive, raises EPF_WC_RECV */
	EPF_WR_READ = 4, /* RDMA read into local memory */
};

enum {
	/* flags: the payload at laddr, at most EPF_NIC_MSG_BYTES, is copied by post(); lkey is ignored */
	EPF_WR_INLINE = 1,
	/* for the core only: the payload lies in a slot of its lane (engine/nodes.h) */
	EPF_WR_SLOT = 2,
	EPF_NIC_MSG_BYTES = 128,  /* longest EPF_WR_SEND */
	EPF_NIC_ADDR_BYTES = 512, /* longest NIC address (see epf_nic_ops.address) */
	EPF_NIC_LINKS = 8,        /* most links, and most devices of one NIC (nic/rails/nic.c) */
};

/*
 * A work request: 48 bytes, owned by the lane's ring in the core; post() copies what it needs.
 * After a post the core keeps it unchanged until its completion (failover replays from it).
 */
struct epf_wr {
	uint64_t laddr; /* local virtual address (source; for READ the destination) */
	uint64_t raddr; /* remote address, in the units the target's region_register returned */
	uint32_t lkey;
	uint32_t rkey;
	uint32_t len; /* bytes, 0 allowed for WRITE_IMM; at most caps.max_msg_bytes */
	uint32_t imm; /* immediate data of WRITE_IMM, host byte order */
	uint32_t id;  /* returned in epf_wc.id */
	uint8_t op;   /* enum epf_wr_op */
	uint8_t flags;
	uint16_t reserved;
	uint64_t core; /* the core's own: never read by a NIC */
};

_Static_assert(sizeof(struct epf_wr) == 48, "a work request is 48 bytes");

/* Outcome of a work request. Stable numbers: they appear in error records and in docs/errors.md. */
enum epf_status {
	EPF_S_OK = 0,
	EPF_S_FLUSHED = 1,        /* the lane was fenced before the outcome was known */
	EPF_S_RETRY_EXCEEDED = 2, /* the peer's NIC did not answer in time */
	EPF_S_RNR_EXCEEDED = 3,   /* the peer had no receive posted for too long */
	EPF_S_REMOTE_ACCESS = 4,  /* the target refused key or range */
	EPF_S_LOCAL = 5,          /* local key or range is wrong */
	EPF_S_REFUSED = 6,        /* the command check refused it (never reached a NIC) */
	EPF_S_PEER_DOWN = 7,      /* the peer is DOWN: retired at once */
	EPF_S_REVOKED = 8,        /* the region was withdrawn */
	EPF_S_ABORTED = 9,        /* the ring was aborted */
	EPF_S_LINK_DOWN = 10,     /* the own port is down, or its device is gone */
};

/* What a completion reports. */
enum epf_wc_op {
	EPF_WC_SENT =
		1, /* work request id of this lane (ordered NIC: and all earlier ones) is complete */
	EPF_WC_RECV_IMM =
		2, /* a write with immediate has landed: imm; len, or 0 where the device does not say */
	EPF_WC_RECV = 3, /* a message has landed: msg, len */
	EPF_WC_LANE_DOWN =
		4, /* the lane's peer is gone (see epf_nic_ops.watch): lane and status only */
};

/*
 * A completion. SENT with EPF_S_OK means: the remote memory has been written (WRITE, WRITE_IMM, SEND
 * accepted by the target NIC and its arrival event queued) or the local memory has (READ). A SENT with
 * any other status moves the lane to error: later work requests of the lane complete as EPF_S_FLUSHED.
 * RECV events on one lane: an event for work request k whose SENT completion the sender reaped before
 * it posted work request m is always reaped before the event for m.
 * LANE_DOWN comes once for a lane that was READY when its peer was found dead, with EPF_S_RETRY_EXCEEDED, or its own port down,
 * with EPF_S_LINK_DOWN, after the events of what had arrived on it and after the SENT of all that was outstanding (the first as
 * EPF_S_RETRY_EXCEEDED, the rest as EPF_S_FLUSHED); the lane is in error then. A lane that is fenced or destroyed before gives none.
 */
struct epf_wc {
	const void *msg; /* RECV only: valid until the next reap() of this NIC */
	uint32_t id;     /* SENT: epf_wr.id */
	uint32_t imm;
	uint32_t len;
	uint16_t lane;  /* local lane number given to lane_create */
	uint8_t op;     /* enum epf_wc_op */
	uint8_t status; /* enum epf_status */
};

/* What a NIC can do; filled by describe(). */
struct epf_nic_caps {
	const char *name; /* "emu", "null" ... static string */
	int ordered;      /* 1: work requests of one lane take effect and complete in order (RC) */
	uint32_t max_msg_bytes; /* longest WRITE or READ: the core cuts longer transfers */
	uint32_t max_lanes;
	uint32_t links; /* ports of the NIC that can go up and down by themselves, at least 1 */
	uint32_t
		keys; /* keys of a region: lane L goes by keys[L % keys]; 0 or 1: one key for all lanes */
	uint32_t lane_depth; /* most work requests posted and not completed per lane */
	uint32_t
		receives; /* most receives posted on the NIC at a time (one shared receive queue) */
	uint32_t
		lane_receives; /* most receives of one lane, where lanes do not share a queue; 0: no separate limit */
	int carries_events; /* 0: no arrivals ever (null) */
	/* 1: lane_create and lane_connect of different lanes may run on several threads at once, while no lane carries traffic */
	int parallel_setup;
	uint64_t
		memory_bytes; /* of this process's memory that packets take; 0 where a device holds them */
};

/* Keys of a region on one device. */
struct epf_nic_key {
	uint32_t lkey;
	uint32_t rkey;
};

/*
 * A registered memory region. Its keys are a device's own: a NIC of several devices (caps.keys above 1) has so many, and
 * what travels on lane L names keys[L % caps.keys]. Others fill in lkey and rkey, which are keys[0].
 */
struct epf_nic_mr {
	uint64_t raddr; /* what peers put in epf_wr.raddr for its first byte, on every lane */

	union {
		struct {
			uint32_t lkey;
			uint32_t rkey;
		};
		struct epf_nic_key keys[EPF_NIC_LINKS];
	};

	void *priv; /* the NIC's own */
};

enum {
	EPF_MR_REMOTE_WRITE = 1,
	EPF_MR_REMOTE_READ = 2,
	/* Of a region of GPU memory, and the engine's alone: its rank's signals are in it (epf_signals_place). No NIC sees it. */
	EPF_MR_SIGNALS = 4,
};

enum epf_lane_link {
	EPF_LANE_IDLE = 0,  /* created, not connected */
	EPF_LANE_READY = 1, /* may be posted to */
	EPF_LANE_ERROR = 2, /* a completion failed or lane_fence was called */
};

/* One row of the NIC's counters; the engine copies them into the statistics file (queues/stats_keys.h, class nic). */
struct epf_nic_counters {
	uint64_t bytes_tx, bytes_rx, messages_tx, messages_rx;
	uint64_t packets_dropped, packets_duplicated, packets_reordered, retransmits, rnr_events,
		errors;
	uint64_t doorbells;
	uint64_t strangers; /* connections that did not prove the job's key */
	uint32_t link_up;   /* number of links that are up: 0 to caps.links */
};

/* What a NIC knows of the connection of a lane (epf_nic_ops.lane_path). */
struct epf_nic_path {
	uint64_t retransmits;  /* packets sent again since the NIC was opened; of this lane */
	uint32_t rtt_us;       /* round trip, smoothed; 0: not known, as below */
	uint32_t cwnd_bytes;   /* congestion window */
	uint32_t unsent_bytes; /* given to the kernel and not sent */
	uint8_t state;         /* enum epf_stats_path (queues/epf_stats.h) */
};

/* What a NIC that leaves the machine has to know of its job before it is reached (epf_nic_ops.set_job). */
struct epf_nic_job {
	uint8_t key[32]; /* the same at all engines of the job */
	int is_secret; /* 0: anybody can make that key, so that nobody may be let in from outside */
	const char
		*route; /* this host's address on the way to the others, as text; NULL: not known */
};

/*
 * The operations. All return 0 or -errno unless said otherwise. No entry of a registered table is NULL:
 * epf_nic_ops_fill() puts a function that returns -EOPNOTSUPP (or 0 for the poll operations) there.
 */
struct epf_nic_ops {
	const char *name;
	/* Returns 1 if the CPU moves the bytes, so that a region's pages may be allocated when touched; 0 if registration pins them. */
	int (*is_cpu)(void);

	/* Opens the NIC. now() is the core's clock in ns (a virtual one in simulations). Slow. */
	int (*open)(const struct epf_conf *conf, uint64_t (*now)(void *), void *now_arg,
		    struct epf_nic **out);
	/* Closes it. Lanes and regions still open are closed first. Accepts NULL. Slow. */
	void (*close)(struct epf_nic *nic);
	void (*describe)(const struct epf_nic *nic, struct epf_nic_caps *out);

	/* Tells the NIC what it must know of the job. Once, before address() and the first lane; what it names is copied. Slow. */
	int (*set_job)(struct epf_nic *nic, const struct epf_nic_job *job);

	/* Writes the address peers need to reach this NIC: at most EPF_NIC_ADDR_BYTES; returns its length. Slow. */
	int (*address)(const struct epf_nic *nic, void *buf, size_t size);

	/* Registers [addr, addr+len) with EPF_MR_* access. Slow. -ENOMEM, -EINVAL. */
	int (*region_register)(struct epf_nic *nic, void *addr, uint64_t len, unsigned access,
			       struct epf_nic_mr *out);
	/*
	 * The same for GPU memory (fabric/gpu/copy.h), of which the NIC keeps a use: addresses in work requests lie in
	 * [mem->addr, mem->addr + mem->bytes). -EOPNOTSUPP where the NIC cannot. Slow.
	 */
	int (*region_register_gpu)(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
				   struct epf_nic_mr *out);
	/*
	 * The same for GPU memory (gpu/device_mem.h): work requests and peers name its device address. -EOPNOTSUPP where the NIC takes none,
	 * or with epf_last_error() saying what the machine lacks. Slow.
	 */
	int (*region_register_device)(struct epf_nic *nic, const struct epf_device_mem *mem,
				      unsigned access, struct epf_nic_mr *out);
	/* The key stops working: later remote accesses fail with EPF_S_REMOTE_ACCESS, and the memory may be freed. Slow. */
	void (*region_deregister)(struct epf_nic *nic, struct epf_nic_mr *mr);

	/* 1: the device is gone, and will not serve this NIC any more even if it returns. */
	int (*is_removed)(const struct epf_nic *nic);
	/*
	 * Opens devices again that were removed and are back. *links: bit l: no lane of link l is in use; on success only the
	 * links that have a new device. Their regions are registered there, under other keys (region_keys), and their lanes are gone. That a device is not
	 * back is no error. Slow.
	 */
	int (*revive)(struct epf_nic *nic, uint32_t *links);
	/* The keys a region has now, into mr->keys. */
	void (*region_keys)(const struct epf_nic *nic, struct epf_nic_mr *mr);

	/*
	 * Creates lane number `lane` (dense, < caps.max_lanes) with room for `depth` work requests and
	 * returns in *token what the other end must give to lane_connect (the queue pair number). Slow.
	 */
	int (*lane_create)(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
	/*
	 * Connects to the peer NIC with this address and the peer lane's token. READY afterwards. -ENETDOWN: the own port is
	 * down; may be called again. Slow.
	 */
	int (*lane_connect)(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			    uint64_t token);
	/*
	 * Fences a lane (queue pair to error): from now on nothing that still travels on it takes effect
	 * HERE (target side: no byte written, no event raised beyond those already queued), and all own
	 * outstanding work requests complete, as EPF_S_FLUSHED where the outcome is not known. What the device has in
	 * hand at this moment may still land: only when lane_drained says 1 nothing can any more. Cold, once for each failure;
	 * but called between two steps by the core, so it waits for nobody (verbs asks the kernel, emu makes no system call).
	 */
	void (*lane_fence)(struct epf_nic *nic, uint16_t lane);
	/*
	 * 1 when a fenced lane has no more completions or events to give (all reaped) and nothing on it takes effect here any
	 * more. To be asked again after further reaps: that is what it goes by. Cold.
	 */
	int (*lane_drained)(const struct epf_nic *nic, uint16_t lane);
	/* Destroys a lane; its number may be used again. Slow. */
	void (*lane_destroy)(struct epf_nic *nic, uint16_t lane);
	/*
	 * A lane that is to be opened again after a failure, in place of link_ready, lane_destroy and lane_create: begins it, and asked again
	 * says -EAGAIN until it is over; then 0 and *token, or -ENETDOWN (the own port is down) or another error, after which it may be begun again.
	 * Called between two steps by the core: makes no system call, takes no lock and no memory; what needs those a NIC does on a separate thread, which
	 * wake_peers wakes. lane_fence and lane_destroy end one that is under way. Filled in by the slow ones where a NIC has none.
	 */
	int (*lane_reopen)(struct epf_nic *nic, uint16_t lane, uint32_t depth, uint64_t *token);
	/* The same for lane_connect of such a lane. */
	int (*lane_reconnect)(struct epf_nic *nic, uint16_t lane, const void *addr, size_t addr_len,
			      uint64_t token);
	enum epf_lane_link (*lane_link)(const struct epf_nic *nic, uint16_t lane);
	/* What watch() has found out about a lane's connection: 1 and *out, or 0: this NIC has nothing to say. Cold; no system call. */
	int (*lane_path)(const struct epf_nic *nic, uint16_t lane, struct epf_nic_path *out);
	/*
	 * 0: the own port that lanes of this number travel on is known to be down, so that opening one is of no use. Asked before a
	 * failed lane is opened again. Cold; may make a system call while the port is down.
	 */
	int (*link_ready)(struct epf_nic *nic, uint16_t lane);

	/*
	 * HOT. Posts n work requests on a READY lane, in order, with one doorbell at the end. Returns how many
	 * were accepted (fewer: the NIC's own queue is full, try again after reap), or -ENOTCONN on a lane in error.
	 */
	int (*post)(struct epf_nic *nic, uint16_t lane, const struct epf_wr *wr, unsigned n);
	/* HOT. Reaps up to n completions and arrivals, advancing the NIC's own work. Returns the number. */
	int (*reap)(struct epf_nic *nic, struct epf_wc *wc, unsigned n);
	/*
	 * HOT. Posts n more receives on the shared receive queue. A NIC without one (efa) spreads them evenly over its lanes, and a lane
	 * made in place of another takes over what that one had.
	 */
	void (*post_receives)(struct epf_nic *nic, unsigned n);
	/* HOT. Earliest time (now() units, ns) at which reap() could find work without an outside event; UINT64_MAX: none. */
	uint64_t (*next_event)(const struct epf_nic *nic);

	/*
	 * The wakeup on which a sleeping core waits and which peers' NICs ring (queues/epf_wakeup.h); NULL if the NIC
	 * has none. Slow.
	 */
	struct epf_wakeup *(*wakeup)(struct epf_nic *nic);
	/*
	 * Asks the NIC to wake its own sleeper for the next completion or arrival. Called by the run loop when it has armed the wakeups
	 * and before it looks for work for the last time. 0: it will, or its peers do (wake_peers); else the sleeper looks by itself
	 * before long. Makes system calls.
	 */
	int (*arm)(struct epf_nic *nic);
	/* Wakes the peers whose wakeups post() found sleeping. Makes system calls: called by the run loop, not by a step. */
	void (*wake_peers)(struct epf_nic *nic);
	/* HOT. 1 if wake_peers has something to do. */
	int (*wake_pending)(const struct epf_nic *nic);

	/*
	 * HOT. Begins to add to the aligned 8-byte word at offset of an own region of GPU memory, which no CPU can. -EAGAIN: no room
	 * now. Until add_pending says 0 the sum may not be there yet; the core applies no later arrival before, but additions to the same
	 * region, which become visible in the order of the calls, and those to other ranks'.
	 */
	int (*add)(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset,
		   uint64_t value);
	/* HOT. 1 while additions are under way. Does what work of the NIC they need, so that it may be asked without a reap between. */
	int (*add_pending)(struct epf_nic *nic);

	void (*counters)(const struct epf_nic *nic, struct epf_nic_counters *out);
	/*
	 * Test and operator hook: link number `link` down (0) or up (1); called between two steps. Lane L travels on link
	 * L % caps.links of its own NIC; at the other end the same holds for the lane number there. A core numbers lanes
	 * peer node * lanes_per_node + index, so the two ends agree on the link where lanes_per_node is a multiple of
	 * caps.links (both then use index % caps.links). A link that is down at either end is a pulled cable: what is under way
	 * waits, goes on if it comes up in time, and otherwise fails with RETRY_EXCEEDED at the sender. -EINVAL for a number
	 * not below caps.links.
	 */
	int (*set_link)(struct epf_nic *nic, unsigned link, int up);
	/*
	 * Looks after peers: a lane whose peer's process has ended, or whose peer has closed its NIC, is reported by
	 * the following reap() as EPF_WC_LANE_DOWN, idle lanes too. A peer that is only slow, stopped or cut off is not. Makes
	 * system calls, few and bounded in one call (NICs with very many peers inspect some in each call); called by the run loop
	 * about every 100 ms on the core's thread.
	 */
	void (*watch)(struct epf_nic *nic);
};

/* The first member of every NIC's own structure. */
struct epf_nic {
	const struct epf_nic_ops *ops;
	/*
	 * Halvings of what one step does for its job where jobs share a thread: the scheduler sets it, so that a step of one does not last much
	 * longer than a turn; the core halves the bytes it takes from a ring and cuts transfers to EPF_PACE_BYTES halved, and a NIC that moves bytes by the CPU what one reap moves. 0 to
	 * EPF_PACE_MOST.
	 */
	uint32_t pace;
	/*
	 * Counts what reap() moved for peers whether or not it reports a completion: reads that it answers, writes that arrive. A core that serves peers is not idle:
	 * asleep, it would be woken for each of them. NICs whose hardware serves them leave it alone.
	 */
	uint32_t served;
};

enum { EPF_PACE_MOST = 4, EPF_PACE_BYTES = 1 << 20 };

/**
 * epf_nic_rails_open() - several NICs of one kind as one: lane L is lane L of child number L % n, whose link is link L % n.
 * @children: 1 to EPF_NIC_LINKS open ones of one link each, alike in order; they belong to the new NIC when this succeeds. One alone is what it
 * was, but that it may be revived.
 * They should share one wakeup; that of the first is the one a core sleeps on.
 *
 * Slow. Return: 0 and *out; -EINVAL or -ENOMEM with epf_last_error() set, and the children stay the caller's.
 */
int epf_nic_rails_open(struct epf_nic *const *children, unsigned n, struct epf_nic **out);

/* How a child whose device was removed is opened again (epf_nic_ops.revive). */
struct epf_rails_again {
	/* Child number `index`, as it was, or -errno: it is not back. It shares the wakeup of the first child that was there. */
	int (*open)(void *arg, unsigned index, struct epf_nic **out);
	void (*free)(void *arg); /* when the NIC is closed */
	void *arg;
};

/* Lets the NIC revive its children. again is copied. */
void epf_nic_rails_revivable(struct epf_nic *nic, const struct epf_rails_again *again);

/**
 * epf_nic_address_part() - the part of an address that a lane is connected to. The address of several NICs as one is a list.
 * @addr: what epf_nic_ops.address gave at the peer.
 * @index: the lane's index to that peer; the part is that of link @index modulo their number. A plain address is its own part.
 *
 * Return: how many parts there are, with *part and *part_len set; -EINVAL with epf_last_error() set for a damaged list.
 */
int epf_nic_address_part(const void *addr, size_t len, unsigned index, const void **part,
			 size_t *part_len);

/*
 * For a NIC that leaves the machine and cannot encrypt: 0, or -EINVAL with epf_last_error() set where wire-encryption asks for it. Such a NIC calls it before it opens.
 */
int epf_nic_refuse_encryption(const struct epf_conf *conf, const char *nic);

/* The NIC table: "emu", "null", "verbs", "efa", "tcp", "ofi". Returns NULL for an unknown name. */
const struct epf_nic_ops *epf_nic_find(const char *name);

/* For NICs that open: fails with -EINVAL and the range, unless a setting is in it. */
int epf_nic_check_range(const char *nic, const char *name, uint64_t value, uint64_t min,
			uint64_t max);
/* Names of all NICs, NULL-terminated. */
const char *const *epf_nic_names(void);

extern const struct epf_nic_ops epf_nic_emu_ops;
extern const struct epf_nic_ops epf_nic_null_ops;
extern const struct epf_nic_ops epf_nic_verbs_ops;
extern const struct epf_nic_ops epf_nic_efa_ops;
extern const struct epf_nic_ops epf_nic_tcp_ops;
extern const struct epf_nic_ops epf_nic_ofi_ops;

#endif
