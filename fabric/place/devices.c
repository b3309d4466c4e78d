/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a map for placement: RDMA devices with their ports from class/infiniband, GPUs from bus/pci/devices, and where each
 * sits. Called by epf_place_read(). No folder is walked deeper than named here; a device that is half broken keeps what is whole.
 */
#include "fabric/base/err.h"
#include "fabric/place/place_priv.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INFINIBAND "class/infiniband"
#define PCI        "bus/pci/devices"

enum {
	VENDOR_AMD = 0x1002,
	VENDOR_NVIDIA = 0x10de,
	CLASS_DISPLAY = 0x03,       /* base class: VGA, 3D, other display controllers */
	CLASS_ACCELERATOR = 0x1200, /* what MI300X calls itself */
	STATE_ACTIVE = 4,           /* IBV_PORT_ACTIVE */
	NODE_LIMIT = 1 << 20,
};

/* ---- where a device sits -------------------------------------------------------------------- */

/* "0000:44:00.0": 4 to 8, 2, 2 hexadecimal digits, a function from 0 to 7. */
static bool is_pci_address(const char *s, size_t len)
{
	size_t domain = 0;

	while (domain < len && isxdigit((unsigned char)s[domain]))
		domain++;
	if (domain < 4 || domain > 8 || len != domain + 8)
		return false;
	s += domain;
	return s[0] == ':' && isxdigit((unsigned char)s[1]) && isxdigit((unsigned char)s[2]) &&
	       s[3] == ':' && isxdigit((unsigned char)s[4]) && isxdigit((unsigned char)s[5]) &&
	       s[6] == '.' && s[7] >= '0' && s[7] <= '7';
}

/* "pci0000:44": 4 to 8 and 2 hexadecimal digits. */
static bool is_pci_root(const char *s, size_t len)
{
	size_t digits = 3;

	if (len < 10 || len > 14 || strncmp(s, "pci", 3) != 0 || s[len - 3] != ':')
		return false;
	for (; digits < len; digits++)
		if (digits != len - 3 && !isxdigit((unsigned char)s[digits]))
			return false;
	return true;
}

/* Keeps the PCI parts of a resolved path. */
static int split_path(const char *path, struct epf_place_spot *spot)
{
	while (*path) {
		size_t len = strcspn(path, "/");

		if (is_pci_root(path, len) || is_pci_address(path, len)) {
			char **grown = epf_place_grow(spot->path, spot->depth, sizeof(*grown));

			if (!grown)
				return epf_place_no_memory();
			spot->path = grown;
			grown[spot->depth] = strndup(path, len);
			if (!grown[spot->depth])
				return epf_place_no_memory();
			spot->depth++;
		}
		path += len;
		path += *path == '/';
	}
	return 0;
}

static void read_node(struct epf_place_map *map, const char *what, const char *folder,
		      struct epf_place_spot *spot)
{
	static const char cost[] = "its NUMA node is not known";
	char text[EPF_PLACE_TEXT_BYTES];
	uint64_t value;

	if (epf_place_text_noted(map, what, folder, "numa_node", text, cost))
		return;
	if (!strcmp(text, "-1"))
		return;
	if (epf_place_number(text, 10, NODE_LIMIT, &value))
		epf_place_nonsense(map, what, "numa_node", text, cost);
	else if (map->nodes && !epf_place_node_of(map, (int32_t)value))
		epf_place_note_map(map, "%s: numa_node is %s, and the machine has no such node: %s",
				   what, text, cost);
	else
		spot->node = (int32_t)value;
}

/* Fills a spot from ROOT/LINK, a link to a device's folder. Only -ENOMEM is an error. */
static int read_spot(struct epf_place_map *map, const char *what, const char *link,
		     struct epf_place_spot *spot)
{
	char path[PATH_MAX];
	int rc = epf_place_resolve(map, link, path);

	if (rc) {
		epf_place_note_map(map, "%s: %s cannot be followed (%s): its place is not known",
				   what, link,
				   rc == -EXDEV ? "it leads out of the tree" : strerror(-rc));
		return 0;
	}
	rc = split_path(path + strlen(map->root), spot);
	if (rc)
		return rc;
	read_node(map, what, path, spot);
	return epf_place_read_cpus(map, what, path, "local_cpulist", &spot->cpus);
}

/* ---- RDMA devices --------------------------------------------------------------------------- */

/* "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)" to Mb/s. */
static int parse_rate(const char *text, uint64_t *mbps)
{
	uint64_t whole = 0, scale = 1000;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	for (; isdigit((unsigned char)*text) && whole < 1000000000; text++)
		whole = whole * 10 + (uint64_t)(*text - '0');
	whole *= 1000;
	if (*text == '.')
		for (text++; isdigit((unsigned char)*text) && scale > 1; text++) {
			scale /= 10;
			whole += (uint64_t)(*text - '0') * scale;
		}
	if (strncmp(text, " Gb/sec", 7) != 0)
		return -EINVAL;
	*mbps = whole;
	return 0;
}

/* Text for people: what is not printable is replaced; NULL: no memory. */
static char *clean_copy(const char *text)
{
	char *copy = strndup(text, 40);

	for (char *c = copy; c && *c; c++)
		if (!isgraph((unsigned char)*c))
			*c = '?';
	return copy;
}

static int read_port(struct epf_place_map *map, const char *what, const char *folder,
		     struct epf_place_port *port)
{
	char text[EPF_PLACE_TEXT_BYTES], *word = strcpy(text, "unknown");
	uint64_t state = 0;

	if (!epf_place_text_noted(map, what, folder, "state", text, "taken as down")) {
		char *colon = strchr(text, ':');

		if (colon)
			*colon = '\0';
		if (!colon || epf_place_number(text, 10, 255, &state))
			epf_place_nonsense(map, what, "state", text, "taken as down");
		else
			word = colon + 1 + strspn(colon + 1, " ");
	}
	port->is_up = state == STATE_ACTIVE;
	port->state = clean_copy(state ? word : "unknown");
	if (epf_place_text_noted(map, what, folder, "link_layer", text, "taken as Unknown"))
		strcpy(text, "Unknown");
	port->link_layer = clean_copy(text);
	if (!epf_place_text_noted(map, what, folder, "rate", text, "its rate is not known") &&
	    parse_rate(text, &port->rate_mbps))
		epf_place_nonsense(map, what, "rate", text, "its rate is not known");
	return port->state && port->link_layer ? 0 : epf_place_no_memory();
}

static int add_port(struct epf_place_map *map, struct epf_place_nic *nic, const char *name)
{
	struct epf_place_port *grown;
	char folder[PATH_MAX], what[128];
	uint64_t number;

	if (epf_place_number(name, 10, UINT8_MAX, &number) || number == 0 ||
	    epf_place_join(folder, "%s/" INFINIBAND "/%s/ports/%s", map->root, nic->name, name)) {
		epf_place_note_map(map, "%s: '%s' is no port number: left out", nic->name, name);
		return 0;
	}
	grown = epf_place_grow(nic->port, nic->ports, sizeof(*grown));
	if (!grown)
		return epf_place_no_memory();
	nic->port = grown;
	grown += nic->ports++;
	memset(grown, 0, sizeof(*grown));
	grown->number = (uint32_t)number;
	snprintf(what, sizeof(what), "%.100s:%s", nic->name, name);
	return read_port(map, what, folder, grown);
}

static int read_ports(struct epf_place_map *map, struct epf_place_nic *nic)
{
	char folder[PATH_MAX];
	struct epf_place_names names;
	int rc;

	if (epf_place_join(folder, INFINIBAND "/%s/ports", nic->name))
		return 0;
	rc = epf_place_names(map, folder, "", &names);
	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < names.count; i++)
		rc = add_port(map, nic, names.name[i]);
	epf_place_names_free(&names);
	if (!rc && !nic->ports)
		epf_place_note_map(map, "%s: it has no port: it cannot be used", nic->name);
	return rc;
}

/* Software devices name the network interface they sit on, and that may be a PCI device. */
static int read_nic_spot(struct epf_place_map *map, struct epf_place_nic *nic)
{
	char link[PATH_MAX], joined[PATH_MAX], folder[PATH_MAX], text[EPF_PLACE_TEXT_BYTES];

	if (epf_place_join(link, INFINIBAND "/%s/device", nic->name) ||
	    epf_place_join(joined, "%s/%s", map->root, link) ||
	    epf_place_join(folder, "%s/" INFINIBAND "/%s", map->root, nic->name))
		return 0;
	if (!faccessat(AT_FDCWD, joined, F_OK, AT_SYMLINK_NOFOLLOW) || errno != ENOENT)
		return read_spot(map, nic->name, link, &nic->spot);
	if (epf_place_text(folder, "parent", text) || !epf_place_is_printable(text) ||
	    strchr(text, '/')) {
		epf_place_note_map(map, "%s: it has no device link: its place is not known",
				   nic->name);
		return 0;
	}
	if (epf_place_join(link, "class/net/%s/device", text) ||
	    epf_place_join(joined, "%s/%s", map->root, link) || access(joined, F_OK))
		return 0; /* a virtual interface: nothing is wrong with that */
	return read_spot(map, nic->name, link, &nic->spot);
}

int epf_place_read_nics(struct epf_place_map *map)
{
	struct epf_place_names names;
	int rc = epf_place_names(map, INFINIBAND, "", &names);

	for (uint32_t i = 0; !rc && i < names.count; i++) {
		struct epf_place_nic *nic = epf_place_grow(map->nic, map->nics, sizeof(*nic));

		rc = -ENOMEM;
		if (!nic)
			break;
		map->nic = nic;
		nic += map->nics;
		memset(nic, 0, sizeof(*nic));
		nic->spot.node = -1;
		nic->name = strdup(names.name[i]);
		map->nics++;
		if (nic->name)
			rc = read_nic_spot(map, nic);
		if (!rc)
			rc = read_ports(map, nic);
	}
	epf_place_names_free(&names);
	return rc ? epf_place_no_memory() : 0;
}

/* ---- GPUs ----------------------------------------------------------------------------------- */

static bool is_gpu(uint64_t vendor, uint64_t class)
{
	if (vendor != VENDOR_NVIDIA && vendor != VENDOR_AMD)
		return false;
	return class >> 16 == CLASS_DISPLAY ||
	       (vendor == VENDOR_AMD && class >> 8 == CLASS_ACCELERATOR);
}

/* A hexadecimal file of a PCI device; false with a note when there is none. */
static bool read_hex(struct epf_place_map *map, const char *pci, const char *name, uint64_t *out)
{
	static const char cost[] = "not taken for a GPU";
	char folder[PATH_MAX], text[EPF_PLACE_TEXT_BYTES];

	if (epf_place_join(folder, "%s/" PCI "/%s", map->root, pci) ||
	    epf_place_text_noted(map, pci, folder, name, text, cost))
		return false;
	if (epf_place_number(text, 16, UINT32_MAX, out)) {
		epf_place_nonsense(map, pci, name, text, cost);
		return false;
	}
	return true;
}

static int add_gpu(struct epf_place_map *map, const char *pci)
{
	uint64_t vendor, class, device = 0;
	struct epf_place_gpu *gpu;
	char link[PATH_MAX];

	if (!is_pci_address(pci, strlen(pci)) || epf_place_join(link, PCI "/%s", pci)) {
		epf_place_note_map(map, "%s: '%s' is no PCI address: left out", PCI, pci);
		return 0;
	}
	if (!read_hex(map, pci, "vendor", &vendor) || !read_hex(map, pci, "class", &class) ||
	    !is_gpu(vendor, class))
		return 0;
	(void)read_hex(map, pci, "device", &device);
	gpu = epf_place_grow(map->gpu, map->gpus, sizeof(*gpu));
	if (!gpu)
		return epf_place_no_memory();
	map->gpu = gpu;
	gpu += map->gpus++;
	memset(gpu, 0, sizeof(*gpu));
	gpu->spot.node = -1;
	gpu->vendor = (uint32_t)vendor;
	gpu->device = (uint32_t)device;
	return read_spot(map, pci, link, &gpu->spot);
}

int epf_place_read_gpus(struct epf_place_map *map)
{
	struct epf_place_names names;
	int rc = epf_place_names(map, PCI, "", &names);

	if (rc)
		return rc;
	for (uint32_t i = 0; !rc && i < names.count; i++)
		rc = add_gpu(map, names.name[i]);
	epf_place_names_free(&names);
	return rc;
}
