/* SPDX-License-Identifier: Apache-2.0 */
/* What trains.c offers rx.c: the train being received, and its effects. */
#ifndef EPF_FABRIC_NIC_TCP_TRAINS_H
#define EPF_FABRIC_NIC_TCP_TRAINS_H

#include "fabric/nic/tcp/tcp.h"

/* Opens the next train. Returns 1, 0 if its header has not arrived yet, or -EPROTO. */
int epf_tcp_open_train(struct epf_tcp_lane *l);
/* Finds where the payload of a descriptor goes. Returns false if its key, range or right is wrong, or this end's memory is gone. */
bool epf_tcp_place_of(const struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i,
		      struct epf_tcp_spot *out);
/* Lets all descriptors whose payload is in place take effect, in order. Returns 1 if more may be received, 0 if one waits for something other than bytes. */
int epf_tcp_settle(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out);
/* Refuses descriptor number i of the open train, which ends the lane, once all descriptors before it have taken effect; until then does nothing. */
void epf_tcp_refuse_place(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i, const char *why);

#endif
