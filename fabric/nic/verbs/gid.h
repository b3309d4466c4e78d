/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GID a verbs NIC uses: a pure function over a table, so that tests can put recorded ones before it. Called when a NIC is
 * opened. It must never talk to a device.
 */
#ifndef EPF_FABRIC_NIC_VERBS_GID_H
#define EPF_FABRIC_NIC_VERBS_GID_H

#include <infiniband/verbs.h>
#include <stddef.h>

/**
 * epf_verbs_pick_gid() - choose a GID by rule: RoCE v2 before v1, in each routable ones (IPv4 or global IPv6) before
 * link-local ones, then the lowest index; on InfiniBand the lowest index.
 * @table: @n entries, of any ports.
 * @index: that entry wanted, or -1 for the rule. Entries above 255 are never chosen: a route cannot name them.
 *
 * Return: position in the table; -ENOENT when there is none.
 */
int epf_verbs_pick_gid(const struct ibv_gid_entry *table, size_t n, unsigned port, int index);

#endif
