/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement: which RDMA NIC (device and port, called a rail here) serves which local index of a node and its GPU, and which CPU
 * and memory node go with it. Two steps: epf_place_read() makes a map of the machine from a sysfs tree, epf_place_choose() makes
 * a plan from the map, with a reason in words for each choice. Used by `ep-fabric nics` and by whoever opens NICs with devices.
 *
 * The plan is a function of the machine and of the settings, not of the job, so nodes that are built alike agree on it: GPU i
 * of every node has the same rail, and a port that goes down changes nothing for the other GPUs. Slow path; nothing here opens
 * a device or changes anything. Any tree is accepted: what is broken in it becomes a note.
 */
#ifndef EPF_FABRIC_PLACE_PLACE_H
#define EPF_FABRIC_PLACE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

struct epf_conf_cpus;
struct epf_conf_list;

#define EPF_PLACE_SYSFS "/sys"

/* CPU numbers first to last, both included. */
struct epf_place_range {
	uint32_t first;
	uint32_t last;
};

struct epf_place_cpus {
	struct epf_place_range *range;
	uint32_t count; /* of ranges; 0: none known */
};

/* Where a device sits. */
struct epf_place_spot {
	char **path; /* "pci0000:44", then PCI addresses of the bridges, at last the device's own */
	uint32_t depth;             /* entries of path; 0: not on PCI, or not known */
	int32_t node;               /* NUMA node; -1: not known */
	struct epf_place_cpus cpus; /* the CPUs next to it */
};

struct epf_place_port {
	char *state;        /* "ACTIVE" */
	char *link_layer;   /* "InfiniBand", "Ethernet", "Unknown" */
	uint64_t rate_mbps; /* 0: not known; of a port that is down it says nothing */
	uint32_t number;    /* from 1 */
	bool is_up;
};

struct epf_place_nic {
	char *name; /* as ibv_get_device_name(3) has it */
	struct epf_place_spot spot;
	struct epf_place_port *port; /* by number */
	uint32_t ports;
};

struct epf_place_gpu {
	struct epf_place_spot spot;
	uint32_t vendor; /* 0x10de NVIDIA, 0x1002 AMD */
	uint32_t device;
};

struct epf_place_node {
	struct epf_place_cpus cpus;
	uint32_t number;
	bool has_memory;
};

/* What a sysfs tree says of a machine. NICs and GPUs are sorted by PCI address; what is not on PCI comes last, by name. */
struct epf_place_map {
	char *root;
	struct epf_place_nic *nic;
	struct epf_place_gpu *gpu;
	struct epf_place_node *node; /* by number */
	uint32_t *sibling; /* CPUs that share a core with a lower-numbered one, ascending */
	char **note;       /* what was missing or broken, for people */
	struct epf_place_cpus online;
	uint32_t nics, gpus, nodes, siblings, notes;
};

/**
 * epf_place_read() - read a machine's map.
 * @root: a sysfs tree, live or recorded; NULL: EPF_PLACE_SYSFS.
 *
 * A file that is missing, unreadable or nonsense costs what it would have said and leaves a note.
 *
 * Return: 0; -ENOMEM; or another negative errno with epf_last_error() set when @root is not a directory that can be read.
 */
int epf_place_read(const char *root, struct epf_place_map *out);

/* epf_place_map_destroy() - free what a map holds. NULL and a zeroed one are fine. */
void epf_place_map_destroy(struct epf_place_map *map);

/* How far a NIC is from a GPU, nearest first. */
enum epf_place_near {
	EPF_PLACE_SWITCH =
		0, /* a PCIe switch (or port) is above both: traffic does not enter the CPU */
	EPF_PLACE_ROOT = 1,    /* same root complex */
	EPF_PLACE_NODE = 2,    /* same NUMA node */
	EPF_PLACE_FAR = 3,     /* another NUMA node */
	EPF_PLACE_UNKNOWN = 4, /* one of them has no known place, or there is no GPU */
};

/* What a rail is good for. */
enum epf_place_use {
	EPF_PLACE_USABLE = 0,
	EPF_PLACE_DOWN = 1,
	EPF_PLACE_SLOW = 2, /* below half the rate of the fastest one that is up */
	EPF_PLACE_OTHER_LINK =
		3, /* not of the link layer that most of the machine's bandwidth has */
	EPF_PLACE_NOT_CHOSEN = 4, /* the user's selection leaves it out */
};

#define EPF_PLACE_NONE UINT32_MAX

/* A port of a device. */
struct epf_place_rail {
	const struct epf_place_nic *nic;
	const struct epf_place_port *port;
	enum epf_place_use use;
	uint32_t
		number; /* counts rails that are usable or down, in the map's order; EPF_PLACE_NONE for others */
	uint32_t users; /* GPUs (without GPUs: local indices) that have it as their own */
	int32_t node;   /* NUMA node for its core and memory; -1: not known */
	int64_t cpu;    /* CPU for its core; -1: none to recommend */
};

/* What one local index gets. */
struct epf_place_choice {
	const struct epf_place_gpu *gpu; /* NULL: none */
	uint32_t gpu_index;              /* EPF_PLACE_NONE: none */
	uint32_t *
		rail; /* indices into the plan's rails: its own, then the usable others for failover, nearest first */
	uint32_t own; /* of rail; 0: the machine has no device that may be used */
	uint32_t rails;
	enum epf_place_near near; /* the GPU and rail[0] */
	int32_t node;             /* as of rail[0]; without rail as of the GPU */
	int64_t cpu;
	char *why; /* one line, for people */
};

struct epf_place_opts {
	const struct epf_place_map *map;
	const struct epf_conf_list *select; /* nic-device; NULL or empty: all */
	const struct epf_conf_cpus *cpus;   /* CPUs that may be recommended; NULL or empty: all */
	const char *const *
		gpu_pci; /* PCI address of each index's GPU; NULL: index i has GPU i modulo their number */
	uint32_t indices; /* 0: one for each GPU; without GPUs one for each rail, at least 1 */
};

struct epf_place_plan {
	struct epf_place_rail *rail; /* every port of every device */
	struct epf_place_choice *choice;
	char **note;
	uint32_t rails, choices, notes;
};

/**
 * epf_place_choose() - decide who uses what.
 * @opts: the map must outlive the plan.
 * @out: freed by epf_place_plan_destroy(); written on success only.
 *
 * The selection is what NCCL_IB_HCA takes: name prefixes, each with ":port" if wanted; '=' in front of the first one: whole names;
 * '^' in front: all but these. A selection that names devices also takes in slow ones and ones of another link layer.
 *
 * Return: 0, also for a machine without devices; -ENOMEM; -EINVAL for a malformed selection, -ENODEV for one that leaves nothing of the
 * devices there are, or for a gpu_pci that is not in the map, each with epf_last_error() set.
 */
int epf_place_choose(const struct epf_place_opts *opts, struct epf_place_plan *out);

/* epf_place_plan_destroy() - free what a plan holds. NULL and a zeroed one are fine. */
void epf_place_plan_destroy(struct epf_place_plan *plan);

/* epf_place_near_name() - "switch", "root", "node", "far" or "unknown". */
const char *epf_place_near_name(enum epf_place_near near);

/* epf_place_use_name() - "usable", "down", "slow", "other link layer", "not selected". */
const char *epf_place_use_name(enum epf_place_use use);

/* epf_place_pci() - a spot's own PCI address, "-" when it has none. */
const char *epf_place_pci(const struct epf_place_spot *spot);

/* epf_place_rdma() - the RDMA NIC for what a machine has: "verbs", "efa", or NULL: no port is active. */
const char *epf_place_rdma(const struct epf_place_map *map);

#endif
