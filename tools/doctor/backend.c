/* SPDX-License-Identifier: Apache-2.0 */
/* See backend.h. */
#include "tools/doctor/backend.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	PLACES = 4,
	VARIABLES = 4,
	NCCL_NAME_MAX = 254, /* NCCL leaves out a plug-in with a longer name */
};

struct backend {
	const char *name;
	const char *file;
	/* Folders, relative to this program's; the first is in a build tree, and in a wheel. */
	const char *at[PLACES + 1];
	const char *path_variable; /* the folder with the file is prepended to it */
	/* Variables that select it, and their values; NULL: the file's path. */
	const char *set[VARIABLES][2];
};

#define LIBRARIES "../lib/x86_64-linux-gnu", "../lib64", "../lib"

static const struct backend backends[] = {
	[EPF_CONF_BACKEND_NONE] = { .name = "none", .file = "" },
	[EPF_CONF_BACKEND_DEEP_EP] = { .name = "deep_ep",
				       .file = "deep_ep",
				       .at = { "../../tools/python", "../share/ep-fabric/python" },
				       .path_variable = "PYTHONPATH",
				       /* vLLM asks NCCL for GIN before it offers DeepEP V2; our kernels have no need of it. */
				       .set = { { "EP_DISABLE_GIN", "1" } } },
	[EPF_CONF_BACKEND_NVSHMEM] = { .name = "nvshmem",
				       .file = "libepf-deepep.so",
				       .at = { "shim", LIBRARIES } },
	[EPF_CONF_BACKEND_NCCL] = { .name = "nccl",
				    .file = "libnccl-net-epf.so",
				    .at = { "nccl", LIBRARIES },
				    /* By its path: a folder in LD_LIBRARY_PATH would put all its libraries before the program's own. */
				    .set = { { "NCCL_NET_PLUGIN", NULL },
					     { "NCCL_GIN_PLUGIN", NULL },
					     { "NCCL_RMA_PLUGIN", NULL },
					     { "NCCL_GIN_TYPE", "2" } } },
};

const char *backend_name(enum epf_conf_backend backend)
{
	return backends[backend].name;
}

const char *backend_file(enum epf_conf_backend backend)
{
	return backends[backend].file;
}

bool backend_find(enum epf_conf_backend backend, char out[PATH_MAX])
{
	const struct backend *b = &backends[backend];
	char self[PATH_MAX - 128], *slash;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	*out = 0;
	if (!*b->file)
		return true;
	if (n < 0)
		return false;
	self[n] = 0;
	slash = strrchr(self, '/');
	if (slash)
		*slash = 0;
	for (size_t i = 0; b->at[i]; i++) {
		snprintf(out, PATH_MAX, "%s/%s/%s", self, b->at[i], b->file);
		if (access(out, R_OK) == 0) {
			if (b->path_variable)
				*strrchr(out, '/') = 0;
			return true;
		}
	}
	return false;
}

/* Prepends a text to a colon-separated list. */
static int put_first(const char *variable, const char *text)
{
	const char *before = getenv(variable);
	char *list;
	int err;

	if (asprintf(&list, "%s%s%s", text, before && *before ? ":" : "", before ? before : "") < 0)
		return -ENOMEM;
	err = setenv(variable, list, 1) ? -ENOMEM : 0;
	free(list);
	return err;
}

int backend_set(enum epf_conf_backend backend, const char *path)
{
	const struct backend *b = &backends[backend];
	int err = b->path_variable ? put_first(b->path_variable, path) : 0;

	if (backend == EPF_CONF_BACKEND_NCCL && (strlen(path) > NCCL_NAME_MAX || strchr(path, ',')))
		return -EINVAL;
	for (size_t i = 0; !err && i < VARIABLES && b->set[i][0]; i++) {
		const char *before = getenv(b->set[i][0]);
		/* NCCL finds that name only where the loader does, and goes on without it. */
		int is_short = before && strcmp(before, "epf") == 0;

		err = setenv(b->set[i][0], b->set[i][1] ? b->set[i][1] : path, is_short) ? -ENOMEM
											 : 0;
	}
	return err;
}
