/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Point to point: endpoints that connect to each other at any time, without a job, and read and write each other's memory. For KV caches,
 * weights, and plug-ins of other transfer libraries. Usable from C, C++ and through ctypes. Part of libepf, but independent of epf.h.
 *
 * An endpoint registers memory, exports parts of it, and sends the 64-byte export keys to peers any way it likes. A peer imports a key
 * over a connection and then transfers: reads and writes of one or of many blocks, with an optional notification that arrives after the
 * data. The target takes no part in a transfer. One connection serves both directions. Between processes of one machine the bytes are
 * copied directly (shared memory, process_vm_writev(2), a GPU's own copies); otherwise they travel over the engine and its NICs.
 *
 * Conventions of every function here:
 *  - Returns 0 or a count on success and a negative errno on failure; epf_last_error() (epf.h) then holds one line with cause and remedy,
 *    which names the peer where there is one. Output arguments are written only on success.
 *  - Timeouts are in nanoseconds; 0 means the configured default (wait-timeout), EPF_P2P_NOW means not to wait. No call waits longer: it
 *    returns -ETIMEDOUT past the deadline and -ECONNRESET if the peer is lost, within 2 s of its death.
 *  - Connections, regions and imports are numbers that are never used again: a stale one gives -ENOENT, never another object. 0 is none.
 *  - Threads: any thread, concurrently with every other call on the same endpoint, except where a function says otherwise. A child after
 *    fork() must not use what its parent opened.
 *
 * Trust. A peer is authenticated when it connects (epf_p2p_options.key). Over NICs the engine and the NIC enforce range, rights,
 * withdrawal and expiry at the target. On one machine the kernel lets processes of one user write each other's memory anyway
 * (ptrace(2) access): there the initiating library enforces them, and a peer that runs other code can ignore them.
 *
 * Order: a notification is visible after all data of its transfer. Transfers are not ordered with each other.
 *
 * GPU memory: a transfer waits for no stream. Work that writes its source must be complete before it is posted, and kernels that read its
 * destination must be launched after its end (or its notification) was seen.
 */
#ifndef EPF_P2P_H
#define EPF_P2P_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define EPF_P2P_NOW            UINT64_MAX /* a timeout: do not wait */
#define EPF_P2P_NAME_BYTES     64u        /* room for an endpoint's name with its 0 */
#define EPF_P2P_METADATA_BYTES 512u       /* most bytes of metadata */
#define EPF_P2P_KEY_BYTES      64u        /* bytes of an export key */
#define EPF_P2P_EXPORTS        65536u     /* most exports of an endpoint at a time */
#define EPF_P2P_UNREAD         4096u      /* most notifications that wait to be taken */
#define EPF_P2P_NOTE_BYTES     8192u      /* most bytes of a notification */
#define EPF_P2P_BLOCK_BYTES    UINT32_MAX /* most bytes of one block; larger transfers take several */

struct epf_p2p;      /* an endpoint */
struct epf_p2p_xfer; /* a transfer that has been prepared; it can be posted many times */

struct epf_p2p_options {
	size_t size; /* sizeof(struct epf_p2p_options): lets the struct grow */
	/* NULL: "HOST:PID". At most EPF_P2P_NAME_BYTES - 1 bytes; peers see it, and errors name it. */
	const char *name;
	const char *config_file;     /* as in struct epf_options */
	const char *const *settings; /* as in struct epf_options */
	/*
	 * A key that all endpoints share, 16 to 4,096 bytes. NULL: the configured secret; without one, each endpoint makes its own random
	 * key, which travels in its metadata: whoever has the metadata may connect, so the metadata must then travel in confidence.
	 */
	const void *key;
	size_t key_bytes;
	const char *
		listen; /* "ADDRESS:PORT", port 0: any; NULL: the interface that socket-ifname chooses */
	int gpu;        /* GPU that peers see in the metadata; -1: none */
};

/* Fills *opts with defaults. */
void epf_p2p_options_init(struct epf_p2p_options *opts);

/*
 * Opens an endpoint: it listens for peers, and its one thread serves connections, expiries and transfers under way, so that nothing
 * depends on the caller's threads. Returns 0 with *out, which the caller releases by epf_p2p_close().
 */
int epf_p2p_open(const struct epf_p2p_options *opts, struct epf_p2p **out);

/*
 * Withdraws all exports, disconnects all peers, ends every wait of other threads with -ECANCELED, and frees the endpoint with its transfers and
 * the memory of epf_p2p_alloc(). Waits at most 2 s for peers that are copying, and 5 s for a GPU: if its copies or its compression do not
 * end, a warning says so, and the endpoint is not freed. Every other call must have returned or be such a wait, and none may follow. Accepts NULL.
 */
void epf_p2p_close(struct epf_p2p *ep);

/*
 * Writes the bytes by which peers find, recognize and authenticate this endpoint. Returns their length, at most EPF_P2P_METADATA_BYTES;
 * -EMSGSIZE if size is less. They stay valid until the endpoint is closed.
 */
int epf_p2p_metadata(const struct epf_p2p *ep, void *buf, size_t size);

/* What metadata says, and what is known of a connected peer. */
struct epf_p2p_peer {
	size_t size;                   /* set by the caller: sizeof(struct epf_p2p_peer) */
	char name[EPF_P2P_NAME_BYTES]; /* of the endpoint */
	char host[64];                 /* its address, as text */
	uint16_t port;
	int32_t gpu;    /* -1: none */
	uint8_t id[16]; /* random; tells endpoints apart */
	/* Of a connection only: */
	char path[32]; /* "local" or "engine:NIC"; "" in metadata */
	int32_t pid;   /* on this machine; 0: elsewhere */
	int32_t state; /* 0: connected; else -ECONNRESET (lost) or -EPIPE (closed in order) */
	uint64_t bytes_read, bytes_written; /* by this endpoint, completed */
	uint64_t transfers;                 /* completed without error */
	uint64_t under_way;                 /* posted and not ended */
	/* How both ends may compress: 0 none, 1 split, 2 full; and the bytes of chunks that did, before and after. */
	int32_t compress, reserved;
	uint64_t packed_from, packed_to;
};

/* Reads metadata without connecting. -EBADMSG if it is damaged or of another version. */
int epf_p2p_describe(const void *metadata, size_t bytes, struct epf_p2p_peer *out);

/*
 * Connects to the endpoint with this metadata and authenticates both ends. If a connection to that endpoint exists, whoever made it,
 * *conn is that connection. -EACCES: the keys differ; -ECONNREFUSED: nobody listens there; -EBADMSG: damaged metadata.
 */
int epf_p2p_connect(struct epf_p2p *ep, const void *metadata, size_t bytes, uint64_t timeout_ns,
		    uint64_t *conn);

/* The same by address. Without a shared key (epf_p2p_options.key, secret) this reaches loopback addresses only: -EPERM. */
int epf_p2p_connect_to(struct epf_p2p *ep, const char *host, uint16_t port, uint64_t timeout_ns,
		       uint64_t *conn);

/*
 * Waits for a connection that a peer has made and that no call has returned yet. Optional: connections work unaccepted, and
 * EPF_P2P_CONNECTED events report them too.
 */
int epf_p2p_accept(struct epf_p2p *ep, uint64_t timeout_ns, uint64_t *conn);

/*
 * Ends a connection. Its transfers under way end with -ECANCELED; the peer's end with -EPIPE. Waits until no peer touches this
 * endpoint's memory through it. *conn's number and its imports are stale afterwards. A lost connection must be disconnected too, to
 * release what describes it; connections that a peer has made and that nobody accepted are released by themselves when they end.
 */
int epf_p2p_disconnect(struct epf_p2p *ep, uint64_t conn, uint64_t timeout_ns);

/* Describes the peer of a connection, also after its loss. Writes only out->size bytes. */
int epf_p2p_peer(struct epf_p2p *ep, uint64_t conn, struct epf_p2p_peer *out);

/*
 * Allocates zeroed, page-aligned memory that peers on this machine can map, which makes small blocks several times faster than with
 * memory from elsewhere. Freed by epf_p2p_free() after deregistration, or by epf_p2p_close().
 */
int epf_p2p_alloc(struct epf_p2p *ep, uint64_t bytes, void **addr);
void epf_p2p_free(struct epf_p2p *ep, void *addr);

/* Whose memory it is: a GPU's number, or one of these. */
enum {
	EPF_P2P_HOST = -1, /* host memory, however allocated */
	EPF_P2P_AUTO = -2, /* whichever it is */
};

/*
 * Registers [addr, addr + bytes) for use as source or destination of this endpoint's transfers, and for exports. The caller keeps the
 * memory, which must stay mapped until epf_p2p_deregister() returns. Cheap for a range that lies within a registered one; ranges may
 * overlap. bytes at most 2^48 - 1. -EINVAL: unmapped memory or no bytes; -ENOSPC: beyond 2^20 regions.
 *
 * GPU memory (setting gpu-backend) must lie in one allocation of the GPU that `device` names: -EINVAL otherwise. EPF_P2P_AUTO asks the
 * driver only if its library is loaded in this process already; -ENODEV or -ENOENT: a GPU was named, and there is no driver for it. Peers
 * on this machine map memory of cudaMalloc, hipMalloc and epf_gpu_alloc(); memory that cannot be shared (PyTorch's expandable segments)
 * serves only this endpoint's own transfers and peers over NICs. Over NICs: the NIC's own registration (dma-buf), or copies by the software
 * NIC or the TCP NIC.
 */
int epf_p2p_register(struct epf_p2p *ep, void *addr, uint64_t bytes, int device, uint64_t *region);

/* What the values of a region are, for compression (setting p2p-compress). */
enum epf_p2p_float {
	EPF_P2P_NO_FLOAT = 0, /* anything: never compressed */
	EPF_P2P_BF16 = 1,
	EPF_P2P_FP16 = 2,
	EPF_P2P_FP32 = 3,
	EPF_P2P_FP8 = 4, /* of any layout: E4M3, E5M2 */
};

/*
 * Says what the values of a region are. Transfers that are prepared from then on may compress it on the way: between endpoints that both have
 * the setting p2p-compress, over NICs, in transfers of p2p-compress-min bytes and more, while that saves time: between host memory, and
 * between GPU memory where both ends have nvCOMP; between one and the other all goes as it is. Only a hint: all bytes arrive as they are, whatever they are, and blocks may begin anywhere. The peer's regions need no type. -ENOENT: no such
 * region; -EINVAL: no such type.
 */
int epf_p2p_set_float(struct epf_p2p *ep, uint64_t region, enum epf_p2p_float type);

/*
 * Withdraws all exports of the region (see epf_p2p_withdraw) and waits for own transfers that use it; those not yet posted fail with
 * -ENOENT. After a return of 0 the memory may be freed. -ETIMEDOUT names a peer that still copies, or says that an own transfer is
 * under way: exports are withdrawn nevertheless, and the call may be repeated.
 */
int epf_p2p_deregister(struct epf_p2p *ep, uint64_t region, uint64_t timeout_ns);

/* Rights of an export. */
enum {
	EPF_P2P_WRITE = 1, /* peers may write */
	EPF_P2P_READ = 2,  /* peers may read */
};

/*
 * Exports [offset, offset + bytes) of a region: writes the key that peers pass to epf_p2p_import(). rights: EPF_P2P_WRITE, EPF_P2P_READ or both.
 * conn: the one connection that may use it; 0: every authenticated peer that has the key. lifetime_ns: the export withdraws
 * itself after that time (over NICs transfers may then end with -EKEYREVOKED); 0: never. -ERANGE: outside the region; -ENOSPC: beyond EPF_P2P_EXPORTS. An expired export keeps its place until it
 * is withdrawn or its region deregistered. Over NICs a connection has 4,096 numbers for memory of either end at a time
 * (less, with the setting regions): one for each export that the peer has imported, one for each region that is a source or destination of transfers. Beyond that an
 * import fails with -ENOSPC. Withdrawing, deregistering and releasing give numbers back, a moment later.
 */
int epf_p2p_export(struct epf_p2p *ep, uint64_t region, uint64_t offset, uint64_t bytes,
		   unsigned rights, uint64_t conn, uint64_t lifetime_ns,
		   uint8_t key[EPF_P2P_KEY_BYTES]);

/*
 * Withdraws an export. Transfers of peers that use it end with -EKEYREVOKED after the block that they are copying. After a return of 0
 * no peer touches the memory any more. -ETIMEDOUT names a peer that still copies (it is stopped, say): the memory must not be
 * freed; the call may be repeated. -ENOENT: not an export of this endpoint, or withdrawn before (an expired one gives 0).
 */
int epf_p2p_withdraw(struct epf_p2p *ep, const uint8_t key[EPF_P2P_KEY_BYTES], uint64_t timeout_ns);

/*
 * Imports an export of the peer of a connection; *import names it in transfers over that connection. Asks the peer's endpoint thread, not
 * its program. The same key gives the same import again; each needs its epf_p2p_release(). -EACCES: not exported to this peer;
 * -EKEYREVOKED: withdrawn; -EKEYEXPIRED: expired; -EBADMSG: not a key of this peer.
 */
int epf_p2p_import(struct epf_p2p *ep, uint64_t conn, const uint8_t key[EPF_P2P_KEY_BYTES],
		   uint64_t timeout_ns, uint64_t *import);

/* Writes what an import covers: its address at the peer (as a number), its length in bytes and its rights. Each may be NULL. */
int epf_p2p_import_info(struct epf_p2p *ep, uint64_t import, uint64_t *addr, uint64_t *bytes,
			unsigned *rights);

/* Releases an import. Transfers under way keep it until they end. Ignores stale numbers. */
void epf_p2p_release(struct epf_p2p *ep, uint64_t import);

/*
 * One block of a transfer, 16 bytes: offset within the local region (48 bits), offset within the import (48 bits), and length (32 bits).
 * Made by epf_p2p_block().
 */
struct epf_p2p_block {
	uint64_t lo; /* local offset; above it the low half of the length */
	uint64_t hi; /* remote offset; above it the high half of the length */
};

/* Returns a block. Offsets below 2^48; bits above are ignored. */
static inline struct epf_p2p_block epf_p2p_block(uint64_t local_offset, uint64_t remote_offset,
						 uint32_t bytes)
{
	struct epf_p2p_block b;

	b.lo = (local_offset & 0xffffffffffffull) | (uint64_t)(bytes & 0xffffu) << 48;
	b.hi = (remote_offset & 0xffffffffffffull) | (uint64_t)(bytes >> 16) << 48;
	return b;
}

/* Blocks between one local region and one import. */
struct epf_p2p_vector {
	uint64_t region;
	uint64_t import;
	const struct epf_p2p_block *blocks;
	size_t count;
};

enum epf_p2p_op {
	EPF_P2P_OP_WRITE = 1, /* from the local region to the import */
	EPF_P2P_OP_READ = 2,  /* from the import to the local region */
};

enum epf_p2p_priority {
	EPF_P2P_NORMAL = 0,
	EPF_P2P_URGENT =
		1, /* before all others of the endpoint; over NICs beside those under way, and never compressed */
	EPF_P2P_BACKGROUND = 2, /* only when there is nothing else to copy */
};

struct epf_p2p_xfer_options {
	size_t size; /* sizeof(struct epf_p2p_xfer_options) */
	enum epf_p2p_priority priority;
	uint64_t
		deadline_ns; /* a posted transfer fails with -ETIMEDOUT after this time; 0: wait-timeout */
	int event;           /* 1: its end gives an EPF_P2P_DONE event */
	void *user;          /* returned in that event */
};

/*
 * Prepares a transfer over a connection: checks ranges and rights, merges adjacent blocks, and copies the rest; the caller may reuse the
 * arrays. One allocation, whatever the number of blocks; up to 2^32 - 1 blocks. Blocks of one transfer are copied in no particular
 * order, so those that are written must not overlap. opts may be NULL. The caller frees *out by epf_p2p_xfer_free(). -ERANGE,
 * -EACCES and -ENOENT name the first wrong block, or the wrong vector.
 */
int epf_p2p_prepare(struct epf_p2p *ep, uint64_t conn, enum epf_p2p_op op,
		    const struct epf_p2p_vector *vectors, size_t count,
		    const struct epf_p2p_xfer_options *opts, struct epf_p2p_xfer **out);

/*
 * Starts a prepared transfer. note: NULL, or note_bytes bytes (at most EPF_P2P_NOTE_BYTES; they are copied) for an EPF_P2P_NOTE event at
 * the peer after all data. Small transfers between processes of one machine may be over when the call returns. -EBUSY: it is under way
 * already. After a failure as well as after success the transfer may be posted again. Threads: one at a time for one transfer.
 */
int epf_p2p_post(struct epf_p2p_xfer *xfer, const void *note, size_t note_bytes);

/*
 * Returns 1 if the transfer has ended well (all data is visible at its destination, the notification is on its way), 0 if it is under
 * way, or the errno with which it failed: -ECONNRESET (the peer is lost), -EPIPE (it disconnected), -EKEYREVOKED, -EKEYEXPIRED, -ETIMEDOUT
 * (deadline_ns), -ECANCELED, -EFAULT (unmapped memory), -EIO (a GPU has failed). A failed transfer may have been carried out in part. May
 * copy a part of the transfer itself (at most 256 KiB), or step the engine of a connection over NICs, so that polling threads speed it up.
 * -EINVAL: never posted.
 */
int epf_p2p_test(struct epf_p2p_xfer *xfer);

/* Waits until the transfer has ended, and copies meanwhile. Returns 0 or as epf_p2p_test(); -ETIMEDOUT: still under way at timeout_ns. */
int epf_p2p_wait(struct epf_p2p_xfer *xfer, uint64_t timeout_ns);

/*
 * Frees a transfer. One under way is cancelled first: blocks that have not begun are not copied, and the call waits for those that
 * have, at most 2 s. Copies that a GPU has not ended by then keep the regions in use, which epf_p2p_deregister() reports. Accepts
 * NULL. Threads: no other call on this transfer.
 */
void epf_p2p_xfer_free(struct epf_p2p_xfer *xfer);

/* Prepares, posts, waits and frees a transfer of one block of any length, without a notification. Returns as epf_p2p_wait(). */
int epf_p2p_write(struct epf_p2p *ep, uint64_t conn, uint64_t region, uint64_t local_offset,
		  uint64_t import, uint64_t remote_offset, uint64_t bytes, uint64_t timeout_ns);
int epf_p2p_read(struct epf_p2p *ep, uint64_t conn, uint64_t region, uint64_t local_offset,
		 uint64_t import, uint64_t remote_offset, uint64_t bytes, uint64_t timeout_ns);

/*
 * Sends a notification without data. Waits while the peer does not take notifications (it has EPF_P2P_UNREAD unread). Notifications
 * of one connection from one thread arrive in order. Returns when it is on its way.
 */
int epf_p2p_notify(struct epf_p2p *ep, uint64_t conn, const void *note, size_t note_bytes,
		   uint64_t timeout_ns);

enum epf_p2p_kind {
	EPF_P2P_CONNECTED = 1, /* a peer has connected: conn */
	EPF_P2P_LOST =
		2, /* a connection has ended: conn; status -ECONNRESET, or -EPIPE if the peer closed it in order */
	EPF_P2P_NOTE = 3, /* a notification: conn, data, bytes */
	EPF_P2P_DONE = 4, /* a transfer that asked for it has ended: conn, user, status */
};

/* What has happened. */
struct epf_p2p_event {
	uint32_t kind;  /* enum epf_p2p_kind */
	int32_t status; /* 0 or -errno */
	uint64_t conn;
	void *user; /* of the transfer's options */
	void *data; /* released by epf_p2p_event_free(); NULL without bytes */
	size_t bytes;
};

/*
 * Takes up to max events, oldest first, without waiting, and returns how many. If there are none, the call itself takes what connections over NICs have sent, which costs a
 * system call, unless the endpoint's thread is doing so. Notifications of different peers are not ordered. Events
 * are kept until taken; the number of unread notifications is limited to EPF_P2P_UNREAD, beyond which
 * peers of this machine wait; one over NICs that has sent four times as many is disconnected.
 */
int epf_p2p_events(struct epf_p2p *ep, struct epf_p2p_event *events, size_t max);
/* Releases the data of an event; ignores one without. */
void epf_p2p_event_free(struct epf_p2p_event *event);

/* Waits until there is an event to take. Returns 0, or -ETIMEDOUT. */
int epf_p2p_wait_event(struct epf_p2p *ep, uint64_t timeout_ns);

/*
 * Returns a file descriptor for poll(2): readable while there are events to take. Never read or close it. From the first call on, a peer's
 * notification wakes the endpoint's thread even if the program polls, which costs a system call; call it only to use it.
 */
int epf_p2p_fd(struct epf_p2p *ep);

/*
 * From now on fn runs for each event on the endpoint's thread, instead of the queue; NULL ends that. It must return soon, must not
 * wait, and owns nothing: data is released afterwards. It may call epf_p2p_post() and epf_p2p_test(). After the call returns,
 * the former fn does not run any more, except that a call from fn itself returns before fn ends.
 */
int epf_p2p_on_event(struct epf_p2p *ep, void (*fn)(void *arg, const struct epf_p2p_event *event),
		     void *arg);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
