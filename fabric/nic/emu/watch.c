/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who of the emulated NIC's peers still lives: the processes whose wire segments are mapped here, distinguished by PID, start time
 * and PID namespace, and the watch that finds the dead ones. A process counts as dead when the kernel says that it has ended, or
 * its NIC when it said so itself (the segment's `alive` word): never because it is slow or stopped. Slow path: system calls.
 * Called by map.c (with its lock held where emu.h says so), lane.c and, through epf_nic_ops, by the run loop.
 */
#include "fabric/nic/emu/emu.h"
#include "fabric/nic/emu/peers.h"

#include "fabric/base/err.h"
#include "fabric/nic/emu/copier.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
# define SYS_pidfd_open 434 /* the same on all architectures; older headers lack it */
#endif

#ifdef EPF_TEST_HOOKS
int epf_hook_no_pidfd;
#endif

/* Peers looked at in one call: 6 us by one poll(2) for all (13 us for each where only /proc is to be had); 1,024 take 8 calls. */
enum { WATCH_PEERS = 128 };

/* A process that owns segments mapped here. Immutable but for dead, and refs and next, which the map's lock protects. */
struct epf_emu_proc {
	pid_t pid;
	int pidfd; /* -1: not to be had, /proc is read instead */
	uint64_t start_ticks;
	uint32_t dead; /* 1 once it was seen dead: stays so, whoever gets its number next */
	unsigned refs;
	struct epf_emu_proc *next;
};

static struct epf_emu_proc *procs;

int epf_emu_proc_stat(pid_t pid, char *state, uint64_t *start_ticks)
{
	char path[64], text[1024], *at;
	int skip, err = EIO;
	size_t n;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	errno = 0;
	n = fread(text, 1, sizeof(text) - 1, file);
	if (n == 0 && errno)
		err = errno;
	fclose(file);
	text[n] = '\0';
	at = strrchr(text, ')'); /* the name before it may hold anything */
	if (!at || at[1] != ' ' || at[2] == '\0')
		return -err;
	*state = at[2];
	at += 2;
	for (skip = 0; skip < 19 && at; skip++) {
		at = strchr(at, ' ');
		if (at)
			at++;
	}
	if (!at)
		return -err;
	*start_ticks = strtoull(at, NULL, 10);
	return 0;
}

uint64_t epf_emu_proc_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/*
 * A descriptor that becomes readable when the process ends, or -1. /proc may be that of another PID namespace than our own, so
 * the number is looked up the other way round as well. Half of the descriptors are left to the rest of the program.
 */
static int open_pidfd(pid_t pid)
{
	char path[64], line[128];
	struct rlimit limit;
	long shown = -1;
	FILE *file;
	int fd;

#ifdef EPF_TEST_HOOKS
	if (epf_hook_no_pidfd)
		return -1;
#endif
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pid: %ld", &shown) == 1)
			break;
	if (file)
		fclose(file);
	if (shown == pid && getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
	    (rlim_t)fd < limit.rlim_cur / 2)
		return fd;
	close(fd);
	return -1;
}

/* True when /proc says that the process has ended; false also when /proc cannot be read just now. */
static bool has_ended(pid_t pid, uint64_t start_ticks)
{
	uint64_t start;
	char state;
	int rc = epf_emu_proc_stat(pid, &state, &start);

	if (rc)
		return rc == -ENOENT || rc == -ESRCH;
	return start != start_ticks || state == 'Z' || state == 'X';
}

int epf_emu_proc_get(pid_t pid, uint64_t start_ticks, uint64_t name_space,
		     struct epf_emu_proc **out)
{
	uint64_t here = epf_emu_proc_namespace(), start;
	struct epf_emu_proc *proc;
	char state;
	int rc;

	if (here && name_space && here != name_space)
		return epf_fail(EPF_R_NIC_PEER_GONE,
				"emu: process %d runs in another PID namespace (pid:[%" PRIu64 "]) "
				"than this one (pid:[%" PRIu64 "])",
				(int)pid, name_space, here);
	rc = epf_emu_proc_stat(pid, &state, &start);
	if (rc == -ENOENT || rc == -ESRCH)
		return epf_fail(EPF_R_NIC_PEER_GONE,
				"emu: process %d has ended, or is not visible in /proc here",
				(int)pid);
	if (rc)
		return epf_fail_sys(EPF_R_SYSTEM, -rc, "emu: reading /proc/%d/stat", (int)pid);
	if (start != start_ticks || state == 'Z' || state == 'X')
		return epf_fail(EPF_R_NIC_PEER_GONE, "emu: process %d has ended", (int)pid);
	for (proc = procs; proc; proc = proc->next)
		if (proc->pid == pid && proc->start_ticks == start_ticks) {
			proc->refs++;
			*out = proc;
			return 0;
		}
	proc = calloc(1, sizeof(*proc));
	if (!proc)
		return epf_fail(EPF_R_NO_MEMORY, "emu: a peer");
	proc->pid = pid;
	proc->start_ticks = start_ticks;
	proc->refs = 1;
	proc->pidfd = open_pidfd(pid);
	/* It may have ended, and its number be another's, before the descriptor was there. */
	if (proc->pidfd >= 0 && has_ended(pid, start_ticks))
		proc->dead = 1;
	proc->next = procs;
	procs = proc;
	*out = proc;
	return 0;
}

void epf_emu_proc_put(struct epf_emu_proc *proc)
{
	struct epf_emu_proc **at = &procs;

	if (!proc || --proc->refs)
		return;
	while (*at && *at != proc)
		at = &(*at)->next;
	if (*at)
		*at = proc->next;
	if (proc->pidfd >= 0)
		close(proc->pidfd);
	free(proc);
}

void epf_emu_procs_forget(void)
{
	procs = NULL;
}

/* Sets dead[i] for each of n segments, 1 to WATCH_PEERS of them; returns how many are. */
static unsigned find_dead(struct epf_emu_seg *const *segs, bool *dead, unsigned n)
{
	struct pollfd fds[WATCH_PEERS];
	unsigned asked = 0, count = 0;

	for (unsigned i = 0; i < n; i++) {
		struct epf_emu_proc *proc = segs[i]->proc;

		fds[i] = (struct pollfd){ .fd = -1, .events = POLLIN };
		dead[i] = __atomic_load_n(&segs[i]->hdr->alive, __ATOMIC_ACQUIRE) == 0;
		if (dead[i] || !proc) /* closed, or of this process */
			continue;
		dead[i] = __atomic_load_n(&proc->dead, __ATOMIC_RELAXED);
		if (!dead[i] && proc->pidfd >= 0) {
			fds[i].fd = proc->pidfd;
			asked++;
		} else if (!dead[i] && has_ended(proc->pid, proc->start_ticks)) {
			fds[i].revents = POLLIN;
		}
	}
	if (asked)
		(void)poll(fds, n, 0); /* if it fails, nothing is found, and looked for again */
	for (unsigned i = 0; i < n; i++) {
		if (fds[i].revents & POLLIN) {
			__atomic_store_n(&segs[i]->proc->dead, 1, __ATOMIC_RELAXED);
			dead[i] = true;
		}
		count += dead[i];
	}
	return count;
}

bool epf_emu_seg_is_dead(struct epf_emu_seg *seg)
{
	bool dead;

	return find_dead(&seg, &dead, 1) != 0;
}

/* Marks the lanes of a dead peer: the next reap lets in what has arrived from it, and then reports them. */
static void mark_lanes(struct epf_emu *e, const struct epf_emu_seg *peer)
{
	for (uint32_t lane = 0; lane < e->lanes_end; lane++) {
		struct epf_emu_lane *l = &e->lanes[lane];

		if (l->peer != peer || l->link != EPF_LANE_READY || (l->flags & EPF_EMU_GONE))
			continue;
		l->flags |= EPF_EMU_GONE;
		e->gone_lanes++;
		epf_emu_mark(e->seg->hdr, lane);
	}
}

void epf_emu_watch(struct epf_nic *nic)
{
	struct epf_emu *e = epf_emu_of(nic);
	struct epf_emu_seg *segs[WATCH_PEERS], *peer;
	bool dead[WATCH_PEERS];
	unsigned n = 0;

	epf_emu_copier_watch();
	/* Lanes of one peer mostly lie together; a peer that is met twice is looked at twice. */
	for (uint32_t i = 0; i < e->lanes_end && n < WATCH_PEERS; i++) {
		if (e->watch_lane >= e->lanes_end)
			e->watch_lane = 0;
		peer = e->lanes[e->watch_lane].peer;
		if (e->lanes[e->watch_lane].link == EPF_LANE_READY &&
		    (n == 0 || segs[n - 1] != peer))
			segs[n++] = peer;
		e->watch_lane++;
	}
	if (n == 0 || find_dead(segs, dead, n) == 0)
		return;
	for (unsigned i = 0; i < n; i++)
		if (dead[i])
			mark_lanes(e, segs[i]);
}
