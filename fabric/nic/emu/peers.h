/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of the software NIC's peers (watch.c): which still live, and how dead ones are found. Slow path.
 */
#ifndef EPF_FABRIC_NIC_EMU_PEERS_H
#define EPF_FABRIC_NIC_EMU_PEERS_H

#include "fabric/nic/emu/emu.h"

#include <sys/types.h>

/*
 * get, put and forget are called with the map's lock held.
 * proc_stat: state letter and start time from proc(5) stat; -ENOENT or -ESRCH: there is no such process.
 */
int epf_emu_proc_stat(pid_t pid, char *state, uint64_t *start_ticks);
/* Identity of the PID namespace of this process; 0: /proc does not tell. */
uint64_t epf_emu_proc_namespace(void);
/* One more use of a living process with this number and start time in that namespace (0: not known). -ESRCH with the reason. */
int epf_emu_proc_get(pid_t pid, uint64_t start_ticks, uint64_t name_space,
		     struct epf_emu_proc **out);
/* Ends one use. Accepts NULL. */
void epf_emu_proc_put(struct epf_emu_proc *proc);
/* In a forked child: what the parent knew is not ours. */
void epf_emu_procs_forget(void);
/* True when the process that owns the segment is known to be gone, or its NIC closed. */
bool epf_emu_seg_is_dead(struct epf_emu_seg *seg);
/* epf_nic_ops.watch: finds dead peers; the next reap reports their lanes. */
void epf_emu_watch(struct epf_nic *nic);

#endif
