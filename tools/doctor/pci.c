/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ep-fabric doctor` asks about PCI Express between NICs and GPUs: access control services, the IOMMU, relaxed ordering. Called through
 * the table at the end. Registers are those of the PCI Express Base Specification (device control in the PCI Express capability,
 * the ACS extended capability); most kernels show them to root only, and then the finding says so.
 */
#include "tools/doctor/doctor.h"

#include <endian.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	CONFIG_BYTES = 4096,
	CAPS_POINTER = 0x34,
	CAP_EXPRESS = 0x10,
	DEVICE_CONTROL = 8,
	RELAXED_ORDERING = 0x0010,
	EXTENDED = 0x100,
	EXT_ACS = 0x000d,
	ACS_CONTROL = 6,
	ACS_REDIRECT = 0x000c, /* P2P request redirect, P2P completion redirect */
	STEPS_MAX = 128,       /* a damaged list of capabilities ends */
};

static uint16_t word(const uint8_t *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

/* Offset of the PCI Express capability, 0: none. */
static size_t express_of(const uint8_t *config, int bytes)
{
	size_t at = bytes >= 256 ? config[CAPS_POINTER] & 0xfcu : 0;

	for (int i = 0; i < STEPS_MAX && at >= 0x40 && at + DEVICE_CONTROL + 2 <= 256; i++) {
		if (config[at] == CAP_EXPRESS)
			return at;
		at = config[at + 1] & 0xfcu;
	}
	return 0;
}

/* Offset of the ACS capability, 0: none. */
static size_t acs_of(const uint8_t *config, int bytes)
{
	size_t at = EXTENDED;

	for (int i = 0; i < STEPS_MAX && at >= EXTENDED && at + 8 <= (size_t)bytes; i++) {
		uint32_t head = (uint32_t)word(config + at) | (uint32_t)word(config + at + 2) << 16;

		if ((head & 0xffff) == EXT_ACS)
			return at;
		at = head >> 20 & 0xffc;
	}
	return 0;
}

/* Bridges between RDMA devices and GPUs that share a switch, each once; names belong to the map. */
struct bridges {
	const char **name;
	size_t count, room;
};

static void add_bridge(struct bridges *b, const char *name)
{
	for (size_t i = 0; i < b->count; i++)
		if (!strcmp(b->name[i], name))
			return;
	if (b->count == b->room) {
		size_t room = b->room ? 2 * b->room : 64;
		const char **all = reallocarray(b->name, room, sizeof(*all));

		if (!all)
			return;
		b->name = all;
		b->room = room;
	}
	b->name[b->count++] = name;
}

/* What is below the last bridge that both share: there a redirected request turns up instead of across. */
static void add_between(struct bridges *b, const struct epf_place_spot *nic,
			const struct epf_place_spot *gpu)
{
	uint32_t common = 0;

	while (common + 1 < nic->depth && common + 1 < gpu->depth &&
	       !strcmp(nic->path[common], gpu->path[common]))
		common++;
	/* path[0] is the root complex, the last one the device itself. */
	if (common < 2)
		return;
	for (uint32_t i = common; i + 1 < nic->depth; i++)
		add_bridge(b, nic->path[i]);
	for (uint32_t i = common; i + 1 < gpu->depth; i++)
		add_bridge(b, gpu->path[i]);
}

/* 1: redirects peer traffic; 0: does not; -1: its registers are hidden from this user. */
static int redirects(const struct doctor *d, const char *bridge)
{
	uint8_t config[CONFIG_BYTES];
	int n = doctor_config(d, bridge, 0, config, sizeof(config));
	size_t acs = n > EXTENDED ? acs_of(config, n) : 0;

	if (n <= EXTENDED)
		return -1;
	return acs && word(config + acs + ACS_CONTROL) & ACS_REDIRECT;
}

static void judge_bridges(struct doctor *d, const struct bridges *b)
{
	char names[DOCTOR_LINE / 2] = "", fix[DOCTOR_LINE];
	size_t hidden = 0, redirecting = 0, at = 0;

	for (size_t i = 0; i < b->count; i++) {
		int r = redirects(d, b->name[i]);

		hidden += r < 0;
		redirecting += r > 0;
		if (r > 0 && at + strlen(b->name[i]) + 2 < sizeof(names))
			at += (size_t)snprintf(names + at, sizeof(names) - at, "%s ", b->name[i]);
	}
	snprintf(fix, sizeof(fix),
		 "at every boot: for b in %s; do setpci -s $b ECAP_ACS+6.w=0000; done", names);
	if (redirecting)
		doctor_say(
			d, DOCTOR_WARN, fix,
			"%zu of %zu bridges between RDMA devices and GPUs send peer traffic through the CPU (ACS)",
			redirecting, b->count);
	else if (hidden)
		doctor_say(
			d, DOCTOR_SKIP, "sudo ep-fabric doctor",
			"this user cannot read the PCI registers of %zu of %zu bridges: try as root",
			hidden, b->count);
	else
		doctor_say(d, DOCTOR_OK, NULL, "none of %zu bridges redirects peer traffic",
			   b->count);
}

static void check_acs(struct doctor *d)
{
	struct bridges b = { 0 };

	for (uint32_t i = 0; i < d->map.nics; i++)
		for (uint32_t g = 0; g < d->map.gpus; g++)
			add_between(&b, &d->map.nic[i].spot, &d->map.gpu[g].spot);
	if (b.count)
		judge_bridges(d, &b);
	else
		doctor_say(d, DOCTOR_SKIP, NULL,
			   "no PCIe switch joins an RDMA device and a GPU here");
	free(b.name);
}

/* "identity" passes addresses through; all others translate each access. */
static void check_iommu(struct doctor *d)
{
	char type[DOCTOR_TEXT];
	unsigned int looked = 0;

	for (uint32_t i = 0; i < d->map.nics; i++) {
		const struct epf_place_spot *spot = &d->map.nic[i].spot;

		if (!spot->depth ||
		    doctor_text(d->sysfs, type, "bus/pci/devices/%s/iommu_group/type",
				epf_place_pci(spot)))
			continue;
		looked++;
		if (!strcmp(type, "identity"))
			doctor_say(d, DOCTOR_OK, NULL, "%s: addresses pass the IOMMU untranslated",
				   d->map.nic[i].name);
		else
			doctor_say(
				d, DOCTOR_WARN, "boot with iommu=pt on the kernel's command line",
				"%s: the IOMMU translates each access (%.32s): slower, and no peer access to GPUs on many machines",
				d->map.nic[i].name, type);
	}
	if (!looked)
		doctor_say(d, DOCTOR_SKIP, NULL, "no RDMA device is behind an IOMMU");
}

static void check_relaxed(struct doctor *d)
{
	uint8_t config[256];
	unsigned int looked = 0;

	for (uint32_t i = 0; i < d->map.nics; i++) {
		const struct epf_place_spot *spot = &d->map.nic[i].spot;
		const char *pci = epf_place_pci(spot);
		char fix[DOCTOR_LINE];
		size_t at;
		int n;

		if (!spot->depth)
			continue;
		looked++;
		n = doctor_config(d, pci, 0, config, sizeof(config));
		at = express_of(config, n);
		snprintf(fix, sizeof(fix), "setpci -s %s CAP_EXP+8.w=0010:0010", pci);
		if (n < 256)
			doctor_say(d, DOCTOR_SKIP, "sudo ep-fabric doctor",
				   "this user cannot read the PCI registers of %s: try as root",
				   d->map.nic[i].name);
		else if (!at)
			doctor_say(d, DOCTOR_SKIP, NULL, "%s has no PCI Express capability",
				   d->map.nic[i].name);
		else if (word(config + at + DEVICE_CONTROL) & RELAXED_ORDERING)
			doctor_say(d, DOCTOR_OK, NULL, "%s may use relaxed ordering",
				   d->map.nic[i].name);
		else
			doctor_say(d, d->conf.verbs_relaxed_ordering ? DOCTOR_WARN : DOCTOR_OK,
				   d->conf.verbs_relaxed_ordering ? fix : NULL,
				   "%s may not use relaxed ordering%s", d->map.nic[i].name,
				   d->conf.verbs_relaxed_ordering
					   ? ": slower towards memory on AMD EPYC and large Xeons"
					   : ", and verbs-relaxed-ordering is no");
	}
	if (!looked)
		doctor_say(d, DOCTOR_SKIP, NULL, "no RDMA device on PCI");
}

const struct doctor_check doctor_pci_checks[] = {
	{ "acs", "PCIe switches let NICs and GPUs talk without the CPU", check_acs },
	{ "iommu", "the IOMMU passes addresses through", check_iommu },
	{ "relaxed", "NICs may use relaxed ordering on PCI Express", check_relaxed },
	{ 0 },
};
