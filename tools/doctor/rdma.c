/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ep-fabric doctor` asks about RDMA devices: the library, the devices, locked memory, links, GIDs, MTU, and memory of GPUs.
 * Called through the table at the end. What each finding rests on is in docs/reference/transports.md.
 */
#include "tools/doctor/doctor.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* An RDMA MTU of 4096 bytes and its headers on Ethernet. */
enum { MTU_LEAST = 4200, GIDS_MAX = 256 };

enum { VENDOR_AMD = 0x1002, VENDOR_NVIDIA = 0x10de };

static void open_library(struct doctor *d, const char *name, const char *fix, bool needs,
			 bool wants)
{
	void *lib = dlopen(name, RTLD_LAZY | RTLD_LOCAL);

	if (lib) {
		doctor_say(d, DOCTOR_OK, NULL, "%s can be opened", name);
		dlclose(lib);
	} else if (needs || wants) {
		doctor_say(d, needs ? DOCTOR_FAIL : DOCTOR_WARN, fix,
			   "%s cannot be opened: no %s can be used", name,
			   needs && !wants ? "provider of nic=ofi" : "RDMA device");
	} else {
		doctor_say(d, DOCTOR_SKIP, NULL, "%s is not there, and neither is an RDMA device",
			   name);
	}
}

static void check_library(struct doctor *d)
{
	static const char verbs_fix[] = "apt-get install ibverbs-providers";

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "a recorded machine has no libraries to open");
		return;
	}
	open_library(d, "libibverbs.so.1", verbs_fix, d->needs_rdma, d->wants_rdma);
	if (d->conf.nic == EPF_CONF_NIC_EFA)
		open_library(d, "libefa.so.1", verbs_fix, true, true);
	if (d->conf.nic == EPF_CONF_NIC_OFI)
		open_library(d, "libfabric.so.1", "apt-get install libfabric1", true, false);
}

static void check_devices(struct doctor *d)
{
	if (d->map.nics) {
		for (uint32_t i = 0; i < d->map.nics; i++)
			doctor_say(d, DOCTOR_OK, NULL, "%s at PCI %s, %" PRIu32 " ports",
				   d->map.nic[i].name, epf_place_pci(&d->map.nic[i].spot),
				   d->map.nic[i].ports);
		return;
	}
	if (!doctor_there(d->sysfs, "class/infiniband"))
		doctor_say(
			d, d->needs_rdma ? DOCTOR_FAIL : DOCTOR_SKIP,
			"modprobe ib_uverbs; modprobe mlx5_ib (or bnxt_re, irdma, ionic_rdma, erdma, efa)",
			"this kernel has no RDMA: %s/class/infiniband is not there%s", d->sysfs,
			d->needs_rdma ? "" : "; nic=emu needs none");
	else
		doctor_say(
			d, d->needs_rdma ? DOCTOR_FAIL : DOCTOR_SKIP,
			"lspci shows whether the NIC is seen; then its RDMA module: mlx5_ib, bnxt_re, irdma, ionic_rdma, erdma, efa",
			"no RDMA device: no driver has brought one up");
}

static void check_uverbs(struct doctor *d)
{
	if (!d->map.nics) {
		doctor_say(d, DOCTOR_SKIP, NULL, "no RDMA device");
		return;
	}
	if (doctor_there(d->sysfs, "class/infiniband_verbs/uverbs0"))
		doctor_say(d, DOCTOR_OK, NULL, "the kernel gives RDMA devices to programs");
	else
		doctor_say(d, DOCTOR_FAIL, "modprobe ib_uverbs",
			   "%s/class/infiniband_verbs has no uverbs0: programs cannot open devices",
			   d->sysfs);
}

static void check_memlock(struct doctor *d)
{
	static const char fix[] = "a service: LimitMEMLOCK=infinity; a login: '* - memlock "
				  "unlimited' in /etc/security/limits.d/rdma.conf; "
				  "a container: --ulimit memlock=-1";
	struct rlimit lim;

	if (d->is_recorded || getrlimit(RLIMIT_MEMLOCK, &lim)) {
		doctor_say(d, DOCTOR_SKIP, NULL, "the limit belongs to a live process");
		return;
	}
	if (lim.rlim_cur == RLIM_INFINITY)
		doctor_say(d, DOCTOR_OK, NULL, "memory can be locked without limit");
	else
		doctor_say(d,
			   d->needs_rdma   ? DOCTOR_FAIL
			   : d->wants_rdma ? DOCTOR_WARN
					   : DOCTOR_OK,
			   d->wants_rdma ? fix : NULL,
			   "%" PRIu64 " KiB of memory can be locked: RDMA locks whole regions%s",
			   (uint64_t)lim.rlim_cur / 1024,
			   d->wants_rdma ? ", registering them ends in EPF-435"
					 : ", other NICs lock nothing");
}

static void check_links(struct doctor *d)
{
	for (uint32_t i = 0; i < d->map.nics; i++) {
		const struct epf_place_nic *nic = &d->map.nic[i];

		for (uint32_t p = 0; p < nic->ports; p++) {
			const struct epf_place_port *port = &nic->port[p];

			if (port->is_up)
				doctor_say(d, DOCTOR_OK, NULL, "%s:%" PRIu32 " %s, %s, %.0f Gbit/s",
					   nic->name, port->number, port->state, port->link_layer,
					   (double)port->rate_mbps / 1000);
			else
				doctor_say(
					d, DOCTOR_WARN,
					strcmp(port->state, "INIT") == 0 &&
							strcmp(port->link_layer, "InfiniBand") == 0
						? "start a subnet manager (opensm) in this network"
						: "the cable and the switch's port; ip link set DEVICE up",
					"%s:%" PRIu32
					" is %s: jobs do not use it until it is ACTIVE",
					nic->name, port->number, port->state);
		}
	}
	if (!d->map.nics)
		doctor_say(d, DOCTOR_SKIP, NULL, "no RDMA device");
}

/* Whether a GID as sysfs writes it is one that routers carry: neither empty nor link-local. */
static bool is_routable(const char *gid)
{
	return strncmp(gid, "fe80:", 5) != 0 && strspn(gid, "0:") != strlen(gid);
}

static void check_gid_of(struct doctor *d, const char *nic, uint32_t port)
{
	char gid[DOCTOR_TEXT], type[DOCTOR_TEXT];
	int routable = -1, v2 = -1;

	for (int i = 0; i < GIDS_MAX && routable < 0; i++) {
		if (doctor_text(d->sysfs, gid, "class/infiniband/%s/ports/%" PRIu32 "/gids/%d", nic,
				port, i))
			break;
		if (strspn(gid, "0:") == strlen(gid) ||
		    doctor_text(d->sysfs, type,
				"class/infiniband/%s/ports/%" PRIu32 "/gid_attrs/types/%d", nic,
				port, i) ||
		    strcmp(type, "RoCE v2") != 0)
			continue;
		v2 = v2 < 0 ? i : v2;
		routable = is_routable(gid) ? i : -1;
	}
	if (routable >= 0)
		doctor_say(d, DOCTOR_OK, NULL, "%s:%" PRIu32 " GID %d is RoCE v2 and routable", nic,
			   port, routable);
	else if (v2 >= 0)
		doctor_say(
			d, DOCTOR_WARN, "ip address add ADDRESS/PREFIX dev DEVICE",
			"%s:%" PRIu32
			" has RoCE v2 only with a link-local GID (%d): its network device has no address, peers behind a router are out of reach",
			nic, port, v2);
	else
		doctor_say(d, DOCTOR_FAIL,
			   "ip link set DEVICE up; ip address add ADDRESS/PREFIX dev DEVICE",
			   "%s:%" PRIu32 " has no RoCE v2 GID: no connection can be made (EPF-433)",
			   nic, port);
}

static void check_gids(struct doctor *d)
{
	unsigned int looked = 0;

	for (uint32_t i = 0; i < d->map.nics; i++) {
		const struct epf_place_nic *nic = &d->map.nic[i];

		for (uint32_t p = 0; p < nic->ports; p++)
			if (nic->port[p].is_up && !strcmp(nic->port[p].link_layer, "Ethernet")) {
				check_gid_of(d, nic->name, nic->port[p].number);
				looked++;
			}
	}
	if (!looked)
		doctor_say(d, DOCTOR_SKIP, NULL, "no Ethernet port of an RDMA device is up");
}

static void check_mtus(struct doctor *d)
{
	char device[DOCTOR_TEXT], mtu[DOCTOR_TEXT], fix[DOCTOR_TEXT + 64];
	unsigned int looked = 0;

	for (uint32_t i = 0; i < d->map.nics; i++) {
		const struct epf_place_nic *nic = &d->map.nic[i];

		for (uint32_t p = 0; p < nic->ports; p++) {
			if (!nic->port[p].is_up || strcmp(nic->port[p].link_layer, "Ethernet") ||
			    doctor_text(d->sysfs, device,
					"class/infiniband/%s/ports/%" PRIu32 "/gid_attrs/ndevs/0",
					nic->name, nic->port[p].number) ||
			    doctor_text(d->sysfs, mtu, "class/net/%.64s/mtu", device))
				continue;
			looked++;
			snprintf(fix, sizeof(fix),
				 "ip link set dev %s mtu 9000, on both ends and the switch",
				 device);
			if (atoi(mtu) >= MTU_LEAST)
				doctor_say(d, DOCTOR_OK, NULL, "%s: MTU %s of %s", nic->name, mtu,
					   device);
			else
				doctor_say(d, DOCTOR_WARN, fix,
					   "%s: MTU %s of %s: RDMA packets carry at most %d bytes",
					   nic->name, mtu, device, atoi(mtu) >= 2148 ? 2048 : 1024);
		}
	}
	if (!looked)
		doctor_say(d, DOCTOR_SKIP, NULL, "no Ethernet port of an RDMA device is up");
}

/* dma-buf: a kernel from 5.12 on, and the open modules of NVIDIA's driver or amdgpu. */
static bool has_dmabuf(const struct doctor *d, uint32_t vendor)
{
	char text[DOCTOR_TEXT];
	int major = 0, minor = 0;

	if (doctor_text(d->procfs, text, "sys/kernel/osrelease") ||
	    sscanf(text, "%d.%d", &major, &minor) != 2 || major < 5 || (major == 5 && minor < 12))
		return false;
	if (vendor == VENDOR_AMD)
		return doctor_there(d->sysfs, "module/amdgpu");
	return !doctor_text(d->procfs, text, "driver/nvidia/version") &&
	       strstr(text, "Open Kernel Module");
}

static bool has_peer_memory(const struct doctor *d, uint32_t vendor)
{
	if (vendor == VENDOR_AMD)
		return doctor_there(d->sysfs, "kernel/mm/memory_peers/amdkfd");
	return doctor_there(d->sysfs, "module/nvidia_peermem") ||
	       doctor_there(d->sysfs, "module/nv_peer_mem") ||
	       doctor_there(d->sysfs, "module/efa_nv_peermem") ||
	       doctor_there(d->sysfs, "kernel/mm/memory_peers/nv_mem");
}

static void check_gpus(struct doctor *d)
{
	uint32_t vendor = 0;

	for (uint32_t i = 0; i < d->map.gpus && !vendor; i++)
		if (d->map.gpu[i].vendor == VENDOR_NVIDIA || d->map.gpu[i].vendor == VENDOR_AMD)
			vendor = d->map.gpu[i].vendor;
	if (!vendor)
		doctor_say(d, DOCTOR_SKIP, NULL, "no GPU that the fabric knows");
	else if (!d->map.nics)
		doctor_say(d, DOCTOR_SKIP, NULL, "%" PRIu32 " GPUs, no RDMA device", d->map.gpus);
	else if (has_dmabuf(d, vendor))
		doctor_say(d, DOCTOR_OK, NULL, "GPU memory can be registered by dma-buf");
	else if (has_peer_memory(d, vendor))
		doctor_say(
			d, DOCTOR_OK, NULL,
			"GPU memory can be registered by peer memory, in the process that owns it");
	else
		doctor_say(
			d, DOCTOR_FAIL,
			vendor == VENDOR_NVIDIA
				? "install the driver's open kernel modules (dma-buf, Linux 5.12 or later), or modprobe nvidia-peermem"
				: "load amdgpu of a ROCm release, on Linux 5.12 or later",
			"GPU memory cannot be registered with RDMA devices: neither dma-buf nor a peer memory module is there (EPF-445)");
}

const struct doctor_check doctor_rdma_checks[] = {
	{ "library", "the user-space RDMA libraries can be opened", check_library },
	{ "devices", "the kernel has brought up RDMA devices", check_devices },
	{ "uverbs", "programs may open them", check_uverbs },
	{ "memlock", "how much memory this process may lock", check_memlock },
	{ "links", "each port is ACTIVE, and how fast", check_links },
	{ "gid", "each RoCE port has a routable RoCE v2 GID", check_gids },
	{ "mtu", "Ethernet frames hold the largest RDMA packets", check_mtus },
	{ "gpu-memory", "GPU memory can be registered: dma-buf, or a peer memory module",
	  check_gpus },
	{ 0 },
};
