/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completing a NIC's table of operations: for table.c and for tests that make a separate table. It must
 * never be needed by the engine, which gets complete tables from epf_nic_find().
 */
#ifndef EPF_FABRIC_NIC_FILL_H
#define EPF_FABRIC_NIC_FILL_H

struct epf_nic_ops;

/**
 * epf_nic_ops_fill() - put a stand-in wherever a table has NULL.
 *
 * Stand-ins of operations that do something return -EOPNOTSUPP; reap and wake_pending return 0, next_event
 * UINT64_MAX, wakeup NULL; the void ones do nothing (describe and counters clear their output).
 */
void epf_nic_ops_fill(struct epf_nic_ops *ops);

#endif
