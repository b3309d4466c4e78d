/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NIC's copies by the copier thread: packets whose bytes the CPU cannot move, because one end is GPU memory. */
#ifndef EPF_FABRIC_NIC_EMU_COPIES_H
#define EPF_FABRIC_NIC_EMU_COPIES_H

#include "fabric/nic/emu/emu.h"

/* ---- copy_hot.c ---- */
/* What landing a packet takes (checked header h, packet p in the peer's segment): EPF_S_*, or one of these. */
enum { EPF_EMU_MOVE_LATER = 0xfe, EPF_EMU_MOVE_FULL = 0xff };

/* Begins the copy of a packet to be landed: MOVE_LATER, or MOVE_FULL (try again), or an error status. dst: GPU region or NULL. */
uint8_t epf_emu_copy_land(struct epf_emu *e, uint16_t lane, uint32_t idx,
			  const struct epf_emu_packet *h, const struct epf_emu_packet *p,
			  const struct epf_emu_region *dst);
/* The copy begun for this packet, if it is the first of its lane; NULL: none was. */
struct epf_emu_copy *epf_emu_copy_of(struct epf_emu *e, const struct epf_emu_lane *l, uint32_t idx);

/* True when the last copy begun for a packet of the lane is known to fail: on an ordered lane nothing behind it may take effect. */
static inline bool epf_emu_copy_is_bad(const struct epf_emu *e, const struct epf_emu_lane *l)
{
	return l->copy_head && e->copies[l->copy_tail - 1].status != 0;
}

/* Forgets it: the packet is landed. */
void epf_emu_copy_landed(struct epf_emu *e, struct epf_emu_lane *l);
/* A READ's packet is back and its bytes must be copied. */
void epf_emu_copy_home(struct epf_emu *e, uint32_t lane, uint32_t idx);
/* Takes what the copier has done. */
void epf_emu_copies_reap(struct epf_emu *e);
/* The lane is destroyed: what was copied ahead is forgotten. No copy of it may be under way. */
void epf_emu_copies_drop(struct epf_emu *e, uint16_t lane);
/* epf_nic_ops.add, add_pending */
int epf_emu_add(struct epf_nic *nic, const struct epf_nic_mr *mr, uint64_t offset, uint64_t value);
int epf_emu_add_pending(struct epf_nic *nic);

/* True when a region key of a peer names GPU memory. */
static inline bool epf_emu_is_gpu_key(const struct epf_emu_seg *peer, uint32_t key)
{
	uint32_t at = key & 0xffff;

	return key && at < EPF_EMU_GPU_REGIONS &&
	       __atomic_load_n(&peer->gpu[at].key, __ATOMIC_ACQUIRE) == key; /* C3 */
}

/* ---- gpu.c, region.c: slow ---- */
int epf_emu_register_gpu(struct epf_nic *nic, struct epf_copy_mem *mem, unsigned access,
			 struct epf_nic_mr *out);
void epf_emu_deregister_gpu(struct epf_emu *e, uint32_t index);
/* region.c: a row in the table of regions, where the CPU uses its memory unless the caller says otherwise. */
int epf_emu_region_add(struct epf_emu *e, uint64_t base, uint64_t len, unsigned access,
		       struct epf_nic_mr *out);
/* The copier that a peer's packet asks for, between two steps. */
void epf_emu_copier_attach(struct epf_emu *e);
/* Waits until no copy of the lane is under way (EPF_EMU_NO_LANE: of the NIC); false: the GPU does not answer. */
bool epf_emu_copies_quiesce(struct epf_emu *e, uint16_t lane);
/* Ends the copier of a NIC that is closed. */
void epf_emu_copier_detach(struct epf_emu *e);

#endif
