/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the provider of fake_verbs.h, for fake_verbs.c and fake_verbs_qp.c only.
 */
#ifndef EPF_TESTS_FAKE_VERBS_IMPL_H
#define EPF_TESTS_FAKE_VERBS_IMPL_H

#include "tests/unit/nic/verbs/fake_verbs.h"

/* fake_verbs.c */
/* 1: this call is to fail; errno is set. */
int fake_verbs_fails(const char *call);
/* Of the device, from 0. */
unsigned fake_verbs_number_of(const struct ibv_context *ctx);

/* fake_verbs_qp.c: calls of the provider. */
struct ibv_qp *fake_verbs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *fake_verbs_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp_ex *fake_verbs_qp_to_qp_ex(struct ibv_qp *qp);
int fake_verbs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int fake_verbs_destroy_qp(struct ibv_qp *qp);
int fake_verbs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int fake_verbs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

#endif
