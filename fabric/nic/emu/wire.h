/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What two emulated NICs share: the layout of a wire segment and the words by which packets travel.
 *
 * Each NIC owns one segment (a slice of its process's memfd) and maps those of its peers: a header, a
 * word set per lane, a bitmap of lanes that have mail, and the NIC's own pool of packets. No memory of
 * a rank is ever in a segment. Used by the emu_*.c files only; it must never hold a pointer.
 *
 * How a packet travels, with the labels of the acquire/release pairs:
 *   The sender fills packets of its OWN pool, links them (newest first) and puts the chain on the
 *   inbox of the target's lane with one compare-and-swap [M1, release]; if the inbox was empty it marks
 *   the lane in the target's mail bitmap [M2, release].
 *   The target takes the bitmap [M2, acquire] and with one exchange the whole inbox [M1, acquire],
 *   turns the chain round, copies the payload to its regions and gives the packets back in the same
 *   way on the returns word of the sender's lane [M3, as M1] and the sender's bitmap [M4, as M2].
 *   The owner counts in `pulse` [M6, release] how often it has handled all mail that it had found: a peer that waits for an answer sees by it
 *   an owner that is silent from one that is not being run. It orders nothing.
 *   The target's lane state [M5] says whether its end is connected: a sender that finds it is not
 *   keeps its packets, and learns by a mark in its bitmap when that changes.
 * A chain holds packets of one sender only and links are indices into that sender's pool, checked at
 * every use: a broken or dead sender spoils its own lanes and nobody else's. Any step may be the last of
 * a process: what was linked is whole, what was not is lost together with the process.
 * An inbox word names the epoch of the lane it is meant for; a chain of an older epoch is let go.
 *
 * Bytes of GPU memory do not travel in packets: a packet names memory of both ends, of many writes at once (EPF_EMU_REFS) or of one
 * READ (EPF_EMU_BY_REF), and whoever is to receive the bytes fetches them by a copier (copier.h). For that a segment says which of its
 * NIC's regions are GPU memory [C3].
 */
#ifndef EPF_FABRIC_NIC_EMU_WIRE_H
#define EPF_FABRIC_NIC_EMU_WIRE_H

#include "queues/epf_base.h"
#include "queues/epf_wakeup.h"

#include <stddef.h>
#include <stdint.h>

enum {
	EPF_EMU_VERSION = 3,
	EPF_EMU_MAX_LANES = 4096, /* 64 bitmap words of 64 lanes, found by one summary word */
	EPF_EMU_MAX_LINKS = 8,
	EPF_EMU_PACKET_HEADER = 64,
	EPF_EMU_MIN_MTU = 256,
	EPF_EMU_MAX_MTU = 65536,
	EPF_EMU_MAX_PACKETS = 1 << 20,
};

#define EPF_EMU_MAGIC 0x31756d6570660aull

/* epf_emu_lane_words.state: epoch in the upper half, these in the lower. 0: no such lane. */
enum { EPF_EMU_LANE_OPEN = 1, EPF_EMU_LANE_CONNECTED = 2 };

/* The words of one lane, in the segment of the lane's owner. Mail words: 0 is empty. */
struct epf_emu_lane_words {
	uint64_t state;   /* [M5] written by the owner */
	uint64_t inbox;   /* [M1] epoch << 32 | packet index + 1, pool of the peer */
	uint64_t returns; /* [M3] packet index + 1, pool of the owner */
	uint64_t reserved;
};

EPF_STATIC_ASSERT(sizeof(struct epf_emu_lane_words) == 32, "two lanes a cache line");

/* First bytes of a wire segment. Everything but the pulse, the wakeup and the mail words is written once. */
struct epf_emu_segment {
	uint64_t magic;
	uint64_t
		nonce; /* random: distinguishes a NIC from an earlier one with the same pid and descriptor */
	uint64_t bytes; /* of the whole segment */
	uint32_t version;
	uint32_t nic_number; /* small number of the NIC inside its process */
	uint32_t packets;
	uint32_t mtu;
	uint32_t lanes;
	uint32_t ordered;
	uint32_t alive; /* 0 after an orderly close */
	uint32_t reserved0[3];
	uint64_t
		pulse; /* [M6] times the owner had handled all its mail; 0: it does not count; a separate line */
	uint32_t reserved2[14];
	struct epf_wakeup wakeup;
	uint64_t summary; /* [M2, M4] bit w: mail[w] may be non-zero */
	uint64_t reserved1[15];
	uint64_t mail[64]; /* [M2, M4] one bit per lane */
};

EPF_STATIC_ASSERT(offsetof(struct epf_emu_segment, pulse) == 64, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_segment, wakeup) == 128, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_segment, summary) == 256, "layout");
EPF_STATIC_ASSERT(sizeof(struct epf_emu_segment) == 896, "layout");

/* A region of GPU memory, at the place in the table that the low 16 bits of its key say. The key is written last and cleared first [C3]. */
struct epf_emu_gpu_region {
	uint32_t key;  /* 0: none */
	uint32_t kind; /* enum epf_copy_handle_kind */
	int32_t fd;    /* FD: in the owner's process */
	uint32_t reserved0;
	uint64_t base, len;     /* as in work requests */
	uint64_t bytes, offset; /* of the whole allocation; of base in it */
	uint8_t ipc[64];
	char pci[16]; /* of the GPU */
};

/* All but the key. */
enum { EPF_EMU_GPU_WORDS = sizeof(struct epf_emu_gpu_region) / sizeof(uint32_t) - 1 };

EPF_STATIC_ASSERT(sizeof(struct epf_emu_gpu_region) == 128, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_gpu_region, base) == 16, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_gpu_region, ipc) == 48, "layout");

enum {
	EPF_EMU_OFF_GPU = 1024,
	EPF_EMU_GPU_REGIONS = 1024, /* regions of a NIC with a higher number cannot be GPU memory */
	EPF_EMU_OFF_LANES = 1024 + EPF_EMU_GPU_REGIONS * 128,
};

/* Offset of the packet pool in a segment with this many lanes. */
EPF_INLINE uint64_t epf_emu_off_packets(uint32_t lanes)
{
	return (EPF_EMU_OFF_LANES + (uint64_t)lanes * sizeof(struct epf_emu_lane_words) + 4095) &
	       ~4095ull;
}

/* epf_emu_packet.form */
enum {
	EPF_EMU_IN_PACKET = 0, /* the bytes are in the payload (READ: are returned there) */
	EPF_EMU_BY_REF = 1,    /* a READ: in GPU memory of the target, named by raddr and rkey */
	/*
	 * `offset` WRITEs out of GPU memory, at most EPF_EMU_REFS_MOST: struct epf_emu_ref in the payload, in the order of the lane. Bit k of raddr:
	 * the k-th has an immediate; the target takes off those it has reported. len: bytes of all. They share one outcome; where it is
	 * REMOTE_ACCESS, the target says in offset how many are in place before the one that failed.
	 */
	EPF_EMU_REFS = 2,
};

enum { EPF_EMU_REFS_MOST = 64 };

/* A write of EPF_EMU_REFS. */
struct epf_emu_ref {
	uint64_t src; /* an address in the sender's region src_key, which is GPU memory */
	uint64_t dst;
	uint32_t src_key;
	uint32_t dst_key;
	uint32_t bytes;
	uint32_t imm;
};

EPF_STATIC_ASSERT(sizeof(struct epf_emu_ref) == 32, "layout");

/*
 * A packet: this header and mtu bytes of payload. The sender fills it; while the target holds it, the
 * target writes next, status, remaining, holds, landed and due_ns (and the payload of a READ).
 */
struct epf_emu_packet {
	uint32_t next;   /* index + 1 of the next packet of the chain, 0: the last */
	uint32_t lead;   /* index of the first packet of the message */
	uint64_t token;  /* of the target's lane: what lane_create gave there */
	uint64_t raddr;  /* remote address of the whole message */
	uint64_t due_ns; /* target: when it may be looked at (ordered mode with faults) */
	uint32_t rkey;
	uint32_t offset;  /* of this packet's bytes in the message */
	uint32_t len;     /* of this packet's bytes */
	uint32_t msg_len; /* of the message */
	uint32_t imm;
	uint32_t seq;       /* of the message in its lane */
	uint16_t remaining; /* lead: packets of the message not yet landed */
	uint8_t op;         /* enum epf_wr_op */
	uint8_t status;     /* lead: enum epf_status of the message */
	uint8_t holds;      /* target: times this packet will still be handled (duplicates) */
	uint8_t landed; /* target: the message is complete, only its event is still to be raised */
	uint8_t fate;   /* target: what the faults decided (EPF_EMU_FATE_*) */
	uint8_t form;   /* EPF_EMU_IN_PACKET, EPF_EMU_BY_REF, EPF_EMU_REFS */
};

EPF_STATIC_ASSERT(sizeof(struct epf_emu_packet) == EPF_EMU_PACKET_HEADER,
		  "a header is one cache line");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_packet, due_ns) == 24, "layout");
EPF_STATIC_ASSERT(offsetof(struct epf_emu_packet, remaining) == 56, "layout");

/* A lane token: epoch << 32 | lane number. The epoch is never 0. */
EPF_INLINE uint32_t epf_emu_token_epoch(uint64_t token)
{
	return (uint32_t)(token >> 32);
}

EPF_INLINE uint32_t epf_emu_token_lane(uint64_t token)
{
	return (uint32_t)(token & 0xffff);
}

/*
 * Marks a lane in a segment's bitmap [M2, M4]: first the lane, then the word's bit in the summary, unless it stands there already. That the
 * word was not empty is no reason to leave the summary to somebody else: he may have been stopped or killed between the two steps, and
 * everything of 64 lanes would wait for him. The owner takes summary and word in the other order; sequential consistency on both sides
 * (Dekker) makes sure that a mark is read together with the bit that was seen, or announced by this one.
 */
EPF_INLINE void epf_emu_mark(struct epf_emu_segment *seg, uint32_t lane)
{
	uint64_t word = 1ull << (lane >> 6);

	__atomic_fetch_or(&seg->mail[lane >> 6], 1ull << (lane & 63), __ATOMIC_SEQ_CST);
	if (!(__atomic_load_n(&seg->summary, __ATOMIC_SEQ_CST) & word))
		__atomic_fetch_or(&seg->summary, word, __ATOMIC_SEQ_CST);
}

#endif
