/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of GPU memory through the GPU's driver: memory that other processes can name, and asynchronous copies. A table with one
 * implementation for each kind of driver; "fake" is host memory that no CPU code may touch, so that all of this runs without a GPU.
 * Used by the copiers of nic/emu and nic/tcp, by endpoints (fabric/p2p), by the registration of GPU memory (copy_mem.c), and by tests. Hosts
 * without GPU regions never call any of it: no driver is loaded, no thread is made.
 *
 * All functions are slow and may be called from any thread; they return 0 or -errno with a reason unless said otherwise.
 */
#ifndef EPF_FABRIC_GPU_COPY_H
#define EPF_FABRIC_GPU_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum epf_copy_handle_kind {
	EPF_COPY_FD =
		1, /* a descriptor: memory made for sharing (CUDA: cuMemCreate, POSIX descriptor) */
	EPF_COPY_IPC = 2,   /* 64 bytes: ordinary device memory (CUDA: cuIpcGetMemHandle) */
	EPF_COPY_LOCAL = 3, /* no name: memory that its allocator made for its own process only */
};

/* How a piece of GPU memory is named to another process. */
struct epf_copy_handle {
	uint32_t kind;   /* enum epf_copy_handle_kind */
	int32_t fd;      /* FD: a descriptor of the process that holds this struct; else -1 */
	uint64_t bytes;  /* of the whole allocation */
	uint64_t offset; /* of the piece in it */
	uint8_t ipc[64];
	char pci[16]; /* of the GPU that holds it; "": not known */
};

/* An addition to an aligned 8-byte word of device memory. */
struct epf_copy_add {
	uint64_t dst, add;
};

/* One copy: addresses that the filling understands (device pointers; host memory as it is mapped here). */
struct epf_copy_span {
	uint64_t dst, src;
	uint64_t bytes;
	uint64_t host; /* 1: one end is host memory, which a kernel may not be able to use */
};

struct epf_conf;
struct epf_copy_queue; /* copies or additions in order of submission, on one device */

enum epf_copy_kind {
	EPF_COPY_ENGINES,   /* copies by the copy engines; loads no kernel */
	EPF_COPY_KERNEL,    /* copies by a kernel of bounded length where no end is host memory */
	EPF_COPY_ADDITIONS, /* additions */
};

enum {
	EPF_COPY_BATCH = 512,  /* most spans of one submit */
	EPF_COPY_ADDS = 64,    /* most additions of one */
	EPF_COPY_FLIGHTS = 16, /* most submits and adds of a queue that are not reached yet */
};

struct epf_copy_ops {
	const char *name;

	/* Loads the driver; called before anything else, again and again. */
	int (*load)(void);

	/* Device memory that can be named by a descriptor; freed by mem_free, which accepts NULL. */
	int (*mem_alloc)(int device, uint64_t bytes, void **addr);
	void (*mem_free)(void *addr);
	/*
	 * Names [addr, addr + bytes), any device pointer of this process. The caller closes out->fd. Memory that cannot be named is EPF_COPY_LOCAL:
	 * queues of this process can copy and add to it, no other process can import it.
	 */
	int (*mem_export)(const void *addr, uint64_t bytes, struct epf_copy_handle *out);
	/*
	 * Returns 1 with *device if [addr, addr + bytes) lies in one GPU allocation, of this process or mapped here; 0 if addr is no GPU address;
	 * -errno if the range exceeds its allocation.
	 */
	int (*mem_place)(const void *addr, uint64_t bytes, int *device);
	/* The device that holds what is named, 0 where that is unknown. */
	int (*mem_device)(const struct epf_copy_handle *h);
	/* Maps what another process named, for copies by queues of that device; *addr is the piece's first byte. h->fd stays the caller's. */
	int (*mem_import)(const struct epf_copy_handle *h, int device, uint64_t *addr);
	void (*mem_unimport)(const struct epf_copy_handle *h, uint64_t addr);
	/* Where kernels of its device find memory of mem_alloc; 0: nowhere. */
	uint64_t (*mem_for_kernels)(const void *addr, uint64_t bytes);
	/* Copies and waits: for programs, not for the NIC. */
	int (*copy)(void *dst, const void *src, uint64_t bytes);

	/* Makes host memory quick to copy from and to; without it copies are slower, not wrong. */
	int (*host_register)(void *addr, uint64_t bytes);
	void (*host_unregister)(void *addr);

	int (*queue_open)(int device, enum epf_copy_kind kind, struct epf_copy_queue **out);
	/* Most spans worth giving to one submit of this queue, at most EPF_COPY_BATCH. */
	unsigned (*queue_batch)(const struct epf_copy_queue *queue);
	/* Waits for what was submitted, and with additions for a load in the usual context. Accepts NULL. */
	void (*queue_close)(struct epf_copy_queue *queue);
	/*
	 * Of a queue of copies: submits 1 to EPF_COPY_BATCH of them, which may be made in any order among themselves but all after what was submitted before;
	 * when they are complete, reached() is `value` or later. Does not wait for them.
	 */
	int (*submit)(struct epf_copy_queue *queue, const struct epf_copy_span *spans, unsigned n,
		      uint64_t value);
	/* Of a queue of additions: the same for 1 to EPF_COPY_ADDS of them, atomic against kernels of that device and visible to them in this order. */
	int (*add)(struct epf_copy_queue *queue, const struct epf_copy_add *adds, unsigned n,
		   uint64_t value);
	/* The newest value that was reached [C4, acquire]; UINT64_MAX: the device failed, nothing more will come. Cheap. */
	uint64_t (*reached)(struct epf_copy_queue *queue);
};

/*
 * The filling of that name: "fake", or a back-end of fabric/gpu/gpu.h ("cuda", "hip", "auto"); with "/own" behind it queues, imports and pinned memory are of a
 * context of their own. "none", unknown: -EOPNOTSUPP with a reason.
 */
int epf_copy_ops_find(const char *name, const struct epf_copy_ops **out);
/*
 * Returns true if this process can hold GPU memory: for "auto" and the drivers' names if the vendor's library is loaded already, for
 * "fake" always. Loads nothing.
 */
bool epf_copy_may_have(const char *name);

extern const struct epf_copy_ops epf_copy_fake; /* copy_fake.c */
/* Where the bytes of fake device memory really are, for tests; NULL: not inside one piece of it. */
void *epf_copy_fake_bytes(const void *addr, uint64_t bytes);
/*
 * For tests: from now on (1) no call that starts a copy returns, (2) no copy that was started ends, (3) each ends in an error, (4) no call returns
 * that a driver lets wait for running kernels (queue_open, host_unregister), or (5) no call of this process returns that a driver lets wait while another
 * thread loads a kernel (all that touch a queue or map memory), or (6) no addition that was launched in the usual context is made, as if its kernels filled the GPU, or
 * (7) additions cannot be opened in the usual context, until (0) all is well.
 */
void epf_copy_fake_hold(int hold);
/* But for so many of them more. */
void epf_copy_fake_let(unsigned calls);
/* How many calls have been kept from returning since the last epf_copy_fake_hold(). */
unsigned epf_copy_fake_held(void);
/*
 * For benchmarks, before any queue is opened: copies and additions are not made, but take submit_ns of the calling CPU a batch, and the
 * device copy_ns each, one after the other.
 */
void epf_copy_fake_pretend(uint32_t copy_ns, uint32_t submit_ns);

/* For tests: memory that is named from now on is (1) its process's own, as EPF_COPY_LOCAL, or (0) can be shared. */
void epf_copy_fake_private(int on);

/* Of the fake GPU: every batch of copies, but none of additions, begins so much later (under half a second). For tests of their order. */
void epf_copy_fake_pause(uint32_t ns);

extern const struct epf_copy_ops epf_copy_driver; /* copy_driver.c */
extern const struct epf_copy_ops epf_copy_driver_own,
	epf_copy_fake_own; /* the same in a context of their own */
/* The setting gpu-backend as a name. */
const char *epf_copy_gpu_name(const struct epf_conf *conf);
/* The settings gpu-backend and gpu-own-context as a name for epf_copy_ops_find. */
const char *epf_copy_name(const struct epf_conf *conf);
/* Which back-end of fabric/gpu/gpu.h it uses; before load(). */
void epf_copy_driver_choose(const char *name);

/*
 * GPU memory as a NIC registers it. `addr` is what work requests name: a device pointer of this process, or a reserved range of addresses
 * without memory (the memory belongs to a client and is mapped for the copier only).
 */
struct epf_copy_mem {
	uint64_t addr, bytes;
	struct epf_copy_handle handle; /* fd is owned */
	const struct epf_copy_ops *ops;
	uint64_t reserved;    /* bytes of the reserved range, 0: addr is the device pointer */
	uint64_t device_addr; /* where the copier finds it. Written by the copier, read by it. */
	int device;
	uint32_t state; /* 0: not tried, 1: ready, 2: failed [C5, release by the copier] */
	uint32_t refs;
};

/* copy_mem.c. Memory of this process at a device pointer: its name is made now. */
int epf_copy_mem_wrap(const struct epf_copy_ops *ops, void *addr, uint64_t bytes,
		      struct epf_copy_mem **out);
/* Memory of another process: h->fd is duplicated; imported by the copier when it is first used. */
int epf_copy_mem_adopt(const struct epf_copy_ops *ops, const struct epf_copy_handle *h,
		       uint64_t bytes, struct epf_copy_mem **out);
/* One more user; ends one use, the last one frees. put accepts NULL. Any thread. */
void epf_copy_mem_get(struct epf_copy_mem *mem);
void epf_copy_mem_put(struct epf_copy_mem *mem);

#endif
