/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doctor's checks of the ways by which programs get onto the fabric (docs/guides/choose.md): whether a program started from here would find
 * the plug-in for NCCL, the shim, and our deep_ep, and whether its variables ask for what is not there. That none of them is in use is no fault.
 */
#include "tools/doctor/backend.h"
#include "tools/doctor/doctor.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As the program that asks will look: by the loader's paths. Loading runs no code of ours. */
static bool is_found(const char *library)
{
	void *lib = dlopen(library, RTLD_LAZY | RTLD_LOCAL);

	if (lib)
		dlclose(lib);
	return lib != NULL;
}

/* Whether a list with commas, as NCCL_NET_PLUGIN is, names the plug-in: by its short name, its file name or a path. */
static bool names_plugin(const char *list)
{
	for (const char *at = list; at && *at;) {
		size_t n = strcspn(at, ",");
		const char *file = at;

		for (const char *c = at; c < at + n; c++)
			if (*c == '/')
				file = c + 1;
		if ((n == 3 && strncmp(at, "epf", 3) == 0) ||
		    strncmp(file, "libnccl-net-epf.so", 18) == 0)
			return true;
		at += n + (at[n] == ',');
	}
	return false;
}

/* Checks the back end that EPF_BACKEND chooses, and lists the others that are installed. */
static void check_chosen(struct doctor *d)
{
	enum epf_conf_backend chosen = d->conf.backend;
	char path[PATH_MAX], usable[64] = "", absent[DOCTOR_LINE / 2] = "";

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "only a live machine shows what is installed");
		return;
	}
	for (enum epf_conf_backend b = EPF_CONF_BACKEND_NONE + 1; b <= EPF_CONF_BACKEND_NCCL; b++) {
		bool is_there = backend_find(b, path);
		char *list = is_there ? usable : absent;
		size_t size = is_there ? sizeof(usable) : sizeof(absent), n = strlen(list);

		snprintf(list + n, size - n, "%s%s%s%s", n ? ", " : "", backend_name(b),
			 is_there ? "" : " without ", is_there ? "" : backend_file(b));
	}
	if (!backend_find(chosen, path)) {
		doctor_say(d, DOCTOR_FAIL, "install it, or choose another EPF_BACKEND",
			   "EPF_BACKEND=%s needs %s, which is neither beside this program nor "
			   "installed with it",
			   backend_name(chosen), backend_file(chosen));
		return;
	}
	doctor_say(d, chosen == EPF_CONF_BACKEND_NONE && !*usable ? DOCTOR_SKIP : DOCTOR_OK, NULL,
		   "EPF_BACKEND=%s%s; ep-fabric exec can use: %s%s%s", backend_name(chosen),
		   chosen ? "" : " (the variables of programs decide)", *usable ? usable : "none",
		   *absent ? "; not: " : "", absent);
}

static void check_nccl(struct doctor *d)
{
	const char *list = getenv("NCCL_NET_PLUGIN");
	bool is_asked_for = names_plugin(list);
	char path[PATH_MAX];
	bool is_there;

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "the loader's paths belong to a live machine");
		return;
	}
	is_there = is_found(is_asked_for && strchr(list, '/') ? list : "libnccl-net-epf.so");
	if (is_there && is_asked_for)
		doctor_say(d, DOCTOR_OK, NULL,
			   "programs on NCCL use the fabric: NCCL_NET_PLUGIN=%.100s", list);
	else if (is_there)
		doctor_say(d, DOCTOR_OK, NULL,
			   "programs on NCCL can use the fabric: NCCL_NET_PLUGIN=epf");
	else if (is_asked_for)
		doctor_say(
			d, DOCTOR_FAIL, "add the folder with libnccl-net-epf.so to LD_LIBRARY_PATH",
			"NCCL_NET_PLUGIN names a plug-in that the loader does not find: NCCL takes "
			"its own networks, without an error");
	else if (backend_find(EPF_CONF_BACKEND_NCCL, path))
		doctor_say(
			d, DOCTOR_SKIP, NULL,
			"libnccl-net-epf.so is not in the loader's paths; programs on NCCL can use "
			"it by EPF_BACKEND=nccl ep-fabric exec, or NCCL_NET_PLUGIN=%.120s",
			path);
	else
		doctor_say(
			d, DOCTOR_SKIP, NULL,
			"libnccl-net-epf.so is not in the loader's paths: programs on NCCL cannot "
			"use the fabric");
}

static void check_shim(struct doctor *d)
{
	const char *preload = getenv("LD_PRELOAD");

	if (d->is_recorded)
		doctor_say(d, DOCTOR_SKIP, NULL, "the loader's paths belong to a live machine");
	else if (preload && strstr(preload, "libepf-deepep.so"))
		doctor_say(d, DOCTOR_OK, NULL,
			   "DeepEP compiled with NVSHMEM uses the fabric: LD_PRELOAD");
	else
		doctor_say(
			d, DOCTOR_SKIP, NULL,
			"not preloaded: ep-fabric shim --dry-run --module FILE.so says whether a "
			"DeepEP can be served");
}

/* The first package of that name in PYTHONPATH is the one that a program imports. */
static void check_package(struct doctor *d)
{
	const char *at = getenv("PYTHONPATH");
	char path[PATH_MAX];

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "the environment belongs to a live machine");
		return;
	}
	while (at && *at) {
		size_t n = strcspn(at, ":");

		snprintf(path, sizeof(path), "%.*s/deep_ep/__init__.py", (int)n, at);
		if (access(path, R_OK) == 0) {
			snprintf(path, sizeof(path), "%.*s/deep_ep/throughput.py", (int)n, at);
			if (access(path, R_OK) == 0)
				doctor_say(d, DOCTOR_OK, NULL,
					   "deep_ep in %.*s is ours: its programs use the fabric",
					   (int)n, at);
			else
				doctor_say(
					d, DOCTOR_SKIP, NULL,
					"deep_ep in %.*s is another one: its programs use the fabric "
					"by the shim or NCCL, or not at all",
					(int)n, at);
			return;
		}
		at += n + (at[n] == ':');
	}
	doctor_say(d, DOCTOR_SKIP, NULL,
		   "no deep_ep in PYTHONPATH: an installed one is imported, if there is one");
}

const struct doctor_check doctor_backend_checks[] = {
	{ "backend", "the back end that EPF_BACKEND chooses is installed", check_chosen },
	{ "nccl", "NCCL finds the plug-in that its variables name", check_nccl },
	{ "shim", "how DeepEP compiled with NVSHMEM gets onto the fabric", check_shim },
	{ "deep_ep", "which deep_ep programs import", check_package },
	{ 0 },
};
