/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric/nic/rdma/peer_memory.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

enum { NVIDIA = 0x10de, AMD = 0x1002 };

/* Where sysfs shows a module that is loaded. */
static const struct {
	uint32_t vendor;
	const char *module;
	const char *path;
} peer_memory[] = {
	{ NVIDIA, "nvidia-peermem", "module/nvidia_peermem" },
	{ NVIDIA, "nvidia-peermem", "kernel/mm/memory_peers/nv_mem" },
	{ NVIDIA, "nvidia-peermem", "kernel/mm/memory_peers/nv_mem_nc" },
	{ NVIDIA, "nv_peer_mem", "module/nv_peer_mem" },
	{ AMD, "amdgpu (peer memory)", "kernel/mm/memory_peers/amdkfd" },
	{ AMD, "amdp2p", "module/amdp2p" },
};

const char *epf_rdma_peer_memory(const char *sysfs, uint32_t vendor, const char **want)
{
	*want = "nvidia-peermem or amdgpu's peer memory";
	if (vendor == NVIDIA)
		*want = "nvidia-peermem";
	if (vendor == AMD)
		*want = "amdgpu with peer memory (amdkfd)";
	for (size_t i = 0; i < sizeof(peer_memory) / sizeof(peer_memory[0]); i++) {
		char path[PATH_MAX];

		if (vendor && vendor != peer_memory[i].vendor)
			continue;
		snprintf(path, sizeof(path), "%s/%s", sysfs, peer_memory[i].path);
		if (access(path, F_OK) == 0)
			return peer_memory[i].module;
	}
	return NULL;
}
