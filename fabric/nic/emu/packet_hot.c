/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The check of a packet that another process wrote: nothing of it is believed before. Hot path: no allocation, lock, log or system call.
 */
#include "fabric/nic/emu/emu.h"

uint8_t epf_emu_check_packet(const struct epf_emu *e, const struct epf_emu_lane *l,
			     const struct epf_emu_packet *h, const struct epf_emu_region **region)
{
	unsigned access = h->op == EPF_WR_READ ? EPF_MR_REMOTE_READ : EPF_MR_REMOTE_WRITE;
	bool by_ref = h->form == EPF_EMU_BY_REF;

	*region = NULL;
	if (h->form == EPF_EMU_REFS) /* each write of it is checked when its copy begins */
		return h->op == EPF_WR_WRITE && h->offset && h->offset <= EPF_EMU_REFS_MOST &&
				       h->offset <= l->peer->mtu / sizeof(struct epf_emu_ref)
			       ? EPF_S_OK
			       : EPF_S_REMOTE_ACCESS;
	if (by_ref ? h->offset || h->len != h->msg_len
		   : h->len > l->peer->mtu || h->offset > h->msg_len ||
			     h->len > h->msg_len - h->offset)
		return EPF_S_REMOTE_ACCESS;
	if (h->op == EPF_WR_SEND)
		return !by_ref && h->msg_len <= EPF_NIC_MSG_BYTES && h->len == h->msg_len
			       ? EPF_S_OK
			       : EPF_S_REMOTE_ACCESS;
	if (h->op < EPF_WR_WRITE || h->op > EPF_WR_READ)
		return EPF_S_REMOTE_ACCESS;
	if (h->msg_len == 0)
		return EPF_S_OK;
	*region = epf_emu_covers(e, h->rkey, h->raddr, h->msg_len, access);
	if (!*region)
		return EPF_S_REMOTE_ACCESS;
	/* GPU memory is read by reference, host memory is not, and nothing is written so. */
	if (by_ref != (h->op == EPF_WR_READ && (*region)->mem))
		return EPF_S_REMOTE_ACCESS;
	return EPF_S_OK;
}
