/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The back ends that can carry the traffic of an expert-parallel program (docs/guides/choose.md): what each needs on this machine, and the variables that
 * select it. Shared by the commands that run programs and by the doctor.
 */
#ifndef EPF_TOOLS_DOCTOR_BACKEND_H
#define EPF_TOOLS_DOCTOR_BACKEND_H

#include "fabric/base/conf.h"

#include <limits.h>
#include <stdbool.h>

/* backend_name() - its name as a value of EPF_BACKEND. */
const char *backend_name(enum epf_conf_backend backend);

/* backend_file() - what it needs: the name of a library, or "deep_ep" for the Python package. */
const char *backend_file(enum epf_conf_backend backend);

/**
 * backend_find() - find what it needs: beside this program in a build tree, or where it is installed with this program.
 * @out: the library, or the folder with the package.
 *
 * Return: true if it was found, and always for none.
 */
bool backend_find(enum epf_conf_backend backend, char out[PATH_MAX]);

/**
 * backend_set() - set the variables that select it, in this process, for the program to run next. A variable of NCCL's that is already set is kept, unless it
 * names our plug-in without its path.
 * @path: from backend_find(). Not for NVSHMEM: epf_tool_shim() does it.
 *
 * Return: 0; -ENOMEM; or -EINVAL: NCCL cannot take a plug-in at this path, which has a comma or more than 254 characters.
 */
int backend_set(enum epf_conf_backend backend, const char *path);

#endif
