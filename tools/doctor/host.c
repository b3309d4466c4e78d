/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ep-fabric doctor` asks about the host: CPUs for the cores, their frequency, memory, clock and limits. Called through the
 * table at the end.
 */
#include "tools/doctor/doctor.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

enum { CPUS_MAX = 8192, SHM_LEAST_MIB = 64, FILES_LEAST = 4096 };

static unsigned int allowed_cpus(void)
{
	cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
	size_t size = CPU_ALLOC_SIZE(CPUS_MAX);
	unsigned int count = 0;

	if (set && !sched_getaffinity(0, size, set))
		count = (unsigned int)CPU_COUNT_S(size, set);
	CPU_FREE(set);
	return count;
}

static void check_cores(struct doctor *d)
{
	unsigned int cpus = d->is_recorded ? 0 : allowed_cpus();
	unsigned int cores = (unsigned int)d->conf.service_cores;

	if (!cpus)
		doctor_say(d, DOCTOR_SKIP, NULL, "CPUs belong to a live process");
	else if (cpus <= cores)
		doctor_say(
			d, DOCTOR_WARN,
			"give the job more CPUs (cpuset, --cpus), or set service-cores lower",
			"%u CPUs for %u engine cores and the ranks: they take turns, and latency suffers",
			cpus, cores);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%u CPUs, %u of them for engine cores", cpus, cores);
}

static void check_governor(struct doctor *d)
{
	char text[DOCTOR_TEXT];

	if (doctor_text(d->sysfs, text, "devices/system/cpu/cpu0/cpufreq/scaling_governor"))
		doctor_say(d, DOCTOR_SKIP, NULL, "the kernel does not set CPU frequencies here");
	else if (!strcmp(text, "performance"))
		doctor_say(d, DOCTOR_OK, NULL, "the CPUs run at full speed");
	else
		doctor_say(
			d, DOCTOR_WARN, "cpupower frequency-set -g performance",
			"governor %.32s: a core that sleeps between bursts starts each of them slowly",
			text);
}

static void check_balancing(struct doctor *d)
{
	char text[DOCTOR_TEXT];

	if (doctor_text(d->procfs, text, "sys/kernel/numa_balancing"))
		doctor_say(d, DOCTOR_SKIP, NULL, "this kernel moves no memory between nodes");
	else if (d->map.nodes < 2 || !strcmp(text, "0"))
		doctor_say(d, DOCTOR_OK, NULL, "memory stays where it was put");
	else
		doctor_say(
			d, DOCTOR_WARN, "sysctl kernel.numa_balancing=0",
			"automatic NUMA balancing unmaps pages to sample them: ring and core stall for it");
}

static void check_pages(struct doctor *d)
{
	char text[DOCTOR_TEXT];

	if (doctor_text(d->sysfs, text, "kernel/mm/transparent_hugepage/enabled"))
		doctor_say(d, DOCTOR_SKIP, NULL, "this kernel has no transparent huge pages");
	else if (strstr(text, "[never]"))
		doctor_say(
			d, DOCTOR_WARN, "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
			"huge pages are off: large regions take longer to register and use more of a NIC's address cache");
	else
		doctor_say(d, DOCTOR_OK, NULL, "huge pages can be had: %s", text);
}

static void check_clock(struct doctor *d)
{
	char text[DOCTOR_TEXT];

	if (doctor_text(d->sysfs, text,
			"devices/system/clocksource/clocksource0/current_clocksource"))
		doctor_say(d, DOCTOR_SKIP, NULL, "the kernel does not name its clock");
	else if (!strcmp(text, "tsc") || !strcmp(text, "kvm-clock") ||
		 !strcmp(text, "arch_sys_counter"))
		doctor_say(d, DOCTOR_OK, NULL, "clock %s is read without a system call", text);
	else
		doctor_say(
			d, DOCTOR_WARN,
			"boot with tsc=reliable clocksource=tsc if the machine's TSC is invariant",
			"clock %.32s: each reading of the time is a system call, and the cores read it in every step",
			text);
}

static void check_shm(struct doctor *d)
{
	struct statvfs fs;
	uint64_t mib;

	if (d->is_recorded || statvfs("/dev/shm", &fs)) {
		doctor_say(d, DOCTOR_SKIP, NULL, "no /dev/shm to look at");
		return;
	}
	mib = (uint64_t)fs.f_bavail * fs.f_frsize >> 20;
	if (mib < SHM_LEAST_MIB)
		doctor_say(d, DOCTOR_WARN,
			   "mount -o remount,size=1G /dev/shm; a container: --shm-size=1g",
			   "%" PRIu64
			   " MiB are free in /dev/shm: statistics and sockets may lie there",
			   mib);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%" PRIu64 " MiB are free in /dev/shm", mib);
}

static void check_files(struct doctor *d)
{
	struct rlimit lim;

	if (d->is_recorded || getrlimit(RLIMIT_NOFILE, &lim)) {
		doctor_say(d, DOCTOR_SKIP, NULL, "the limit belongs to a live process");
		return;
	}
	if (lim.rlim_cur < FILES_LEAST)
		doctor_say(
			d, DOCTOR_WARN, "a service: LimitNOFILE=1048576; a login: ulimit -n 65536",
			"%" PRIu64
			" descriptors a process: each rank, region and peer of a daemon takes some",
			(uint64_t)lim.rlim_cur);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%" PRIu64 " descriptors a process",
			   (uint64_t)lim.rlim_cur);
}

const struct doctor_check doctor_host_checks[] = {
	{ "cores", "there are CPUs for the engine's cores beside the ranks", check_cores },
	{ "governor", "CPU frequency", check_governor },
	{ "numa", "the kernel does not move memory about", check_balancing },
	{ "huge-pages", "huge pages can be had", check_pages },
	{ "clock", "the clock is read without a system call", check_clock },
	{ "shm", "room in /dev/shm", check_shm },
	{ "files", "how many descriptors a process may have", check_files },
	{ 0 },
};
