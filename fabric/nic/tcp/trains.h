/* SPDX-License-Identifier: Apache-2.0 */
/* What trains.c offers rx.c: the train that is being received, and what takes effect of it. */
#ifndef EPF_FABRIC_NIC_TCP_TRAINS_H
#define EPF_FABRIC_NIC_TCP_TRAINS_H

#include "fabric/nic/tcp/tcp.h"

/* Opens the next train if its front is there. 1: it is open; 0: not yet; -EPROTO. */
int epf_tcp_open_train(struct epf_tcp_lane *l);
/* Where the payload of a descriptor goes. False: its key, range or right is wrong, or its own memory has gone. */
bool epf_tcp_place_of(const struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i,
		      struct epf_tcp_spot *out);
/* All descriptors whose payload is in place take effect, in order. 1: those did, and more may be received; 0: something else has to be waited for. */
int epf_tcp_settle(struct epf_tcp *t, struct epf_tcp_lane *l, struct epf_tcp_out *out);
/* Descriptor number i of the open train cannot take effect. When all before has, that is the end of the lane; until then nothing happens. */
void epf_tcp_refuse_place(struct epf_tcp *t, struct epf_tcp_lane *l, uint32_t i, const char *why);

#endif
