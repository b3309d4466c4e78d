/* SPDX-License-Identifier: Apache-2.0 */
/* The names under which drivers keep what only the device counts (nic/rdma/hw_counters.h). */
#include "fabric/nic/verbs/verbs.h"

/* Names that add up in one number. */
static const struct epf_hw_counter files[] = {

#define F(name, field)                           \
 {                                               \
  name, offsetof(struct epf_nic_counters, field) \
 }
	F("duplicate_request", packets_duplicated), /* soft-RoCE, mlx5, bnxt_re, irdma */
	F("out_of_seq_request", packets_reordered), /* soft-RoCE */
	F("out_of_sequence", packets_reordered),    /* mlx5 */
	F("completer_retry_err", retransmits),      /* soft-RoCE */
	F("local_ack_timeout_err", retransmits),    /* mlx5 */
	F("packet_seq_err", retransmits),           /* mlx5 */
	F("to_retransmits", retransmits),           /* bnxt_re */
	F("seq_err_naks_rcvd", retransmits),        /* bnxt_re */
	F("send_rnr_err", rnr_events),              /* soft-RoCE */
	F("out_of_buffer", rnr_events),             /* mlx5 */
	F("rnr_naks_rcvd", rnr_events),             /* bnxt_re */
#undef F
};

_Static_assert(sizeof(files) / sizeof(files[0]) <= EPF_HW_COUNTERS_MAX,
	       "one descriptor for each file");

void epf_verbs_counters_open(struct epf_verbs *v)
{
	epf_hw_counters_open(&v->hw_counters, files, sizeof(files) / sizeof(files[0]),
			     v->ctx->device->ibdev_path, v->port);
}
