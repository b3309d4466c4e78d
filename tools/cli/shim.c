/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ep-fabric shim`: runs a program with the shim for DeepEP preloaded, after a look at whether it can be served, and says in one line by what.
 * --dry-run looks and says, and runs nothing. What the shim does itself is in tools/shim/.
 */
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "tools/cli/shim_daemon.h"
#include "tools/cli/shim_elf.h"
#include "tools/cli/tools.h"
#include "tools/doctor/backend.h"
#include "tools/shim/modules.h"

#include <argp.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_USAGE 2

enum { OPT_LIBRARY = 1, OPT_MODULE, OPT_DRY_RUN, OPT_DAEMON, MODULES = 16 };

static struct {
	const char *file;
	const char *modules[MODULES];
	unsigned n_modules;
	bool is_dry, has_daemon;
	char **program; /* NULL-terminated */
} given;

static const char *what;
static unsigned faults;

static error_t parse(int key, char *arg, struct argp_state *state)
{
	switch (key) {
	case OPT_LIBRARY:
		given.file = arg;
		return 0;
	case OPT_MODULE:
		if (given.n_modules == MODULES)
			argp_error(state, "at most %d --module", MODULES);
		given.modules[given.n_modules++] = arg;
		return 0;
	case OPT_DRY_RUN:
		given.is_dry = true;
		return 0;
	case OPT_DAEMON:
		given.has_daemon = true;
		return 0;
	case ARGP_KEY_ARGS:
		given.program = state->argv + state->next;
		return 0;
	case ARGP_KEY_NO_ARGS:
		if (!given.is_dry)
			argp_error(state, "which program?");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void fault(const char *format, const char *text)
{
	fprintf(stderr, "%s: ", what);
	fprintf(stderr, format, text);
	fputc('\n', stderr);
	faults++;
}

static bool is_file(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The library: as named, or where backend_find() finds it. */
static bool find_library(char out[PATH_MAX])
{
	if (given.file)
		return snprintf(out, PATH_MAX, "%s", given.file) < PATH_MAX && is_file(out);
	return backend_find(EPF_CONF_BACKEND_NVSHMEM, out);
}

static void look_at_library(char library[PATH_MAX])
{
	void *handle;

	if (!find_library(library)) {
		fault("libepf-deepep.so is not where it is looked for: name it with --library%s",
		      "");
		return;
	}
	handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		fault("the shim cannot be loaded: %s", dlerror());
	else if (!dlvsym(handle, "nvshmemid_hostlib_init_attr", "NVSHMEM"))
		fault("%s is no shim of this release", library);
}

/* Where execvp(3) would find it. */
static bool find_program(const char *name, char out[PATH_MAX])
{
	const char *path = getenv("PATH");

	if (strchr(name, '/'))
		return snprintf(out, PATH_MAX, "%s", name) < PATH_MAX && access(out, X_OK) == 0;
	while (path && *path) {
		size_t n = strcspn(path, ":");

		if (snprintf(out, PATH_MAX, "%.*s/%s", (int)n, path, name) < PATH_MAX &&
		    is_file(out) && access(out, X_OK) == 0)
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

static void look_at_program(const char *name)
{
	char path[PATH_MAX], text[PATH_MAX + 100];
	struct shim_elf e;
	struct stat st;

	if (!find_program(name, path)) {
		fault("%s is no program that can be run", name);
		return;
	}
	if (stat(path, &st) == 0 && (st.st_mode & (S_ISUID | S_ISGID)))
		fault("%s changes its user or group: such programs ignore preloaded libraries",
		      path);
	/* A script has an interpreter, which is looked at by nobody. */
	if (shim_elf_read(path, &e, text, sizeof(text)) == 0 && !e.is_dynamic)
		fault("%s is linked statically: nothing can be preloaded into it", path);
}

static void look_at_module(const struct epf_conf *conf, const char *path)
{
	const char *base = strrchr(path, '/');
	char text[PATH_MAX + 100];
	struct shim_elf e;
	bool is_named;

	base = base ? base + 1 : path;
	if (shim_elf_read(path, &e, text, sizeof(text))) {
		fault("%s", text);
		return;
	}
	is_named = epf_shim_names(&conf->shim_modules, path);
	if (!is_named)
		fault("%s is not named by shim-modules: its calls go to the real NVSHMEM", base);
	if (e.wanted == 0)
		fault("%s asks nothing of an NVSHMEM library: it is built without it, or has it inside",
		      base);
	if (e.left_over) {
		snprintf(text, sizeof(text), "%s asks for what the shim has not: %s", base,
			 e.unserved);
		fault("%s", text);
	}
	if (is_named && e.wanted && !e.left_over)
		printf("%s: %u symbols of NVSHMEM, all served\n", base, e.served);
}

static void describe(const struct epf_conf *conf, const char *library)
{
	const char *nic = epf_conf_nic(conf);

	fprintf(given.is_dry ? stdout : stderr,
		"%s: %s serves modules named %s%s, built with NVSHMEM " EPF_NV_SERVED
		", by %s%s, nic=%s; heap of %llu MiB in %s memory\n",
		what, library, conf->shim_modules.item[0],
		conf->shim_modules.count > 1 ? ", ..." : "",
		given.has_daemon   ? "a private daemon"
		: conf->service[0] ? "the daemon "
				   : "an engine in each rank",
		given.has_daemon ? "" : conf->service, nic,
		(unsigned long long)(conf->shim_heap >> 20), conf->shim_host_heap ? "host" : "GPU");
}

/*
 * The software NIC and TCP in a rank copy GPU memory by CUDA calls. The driver loads a kernel when it is first launched, waits for running kernels
 * to end, and blocks all other calls meanwhile; but DeepEP's kernels wait for such a copy. RDMA NICs, and a daemon, copy without these calls.
 */
static void load_kernels_at_once(const struct epf_conf *conf)
{
	if (!epf_conf_nic_copies(conf->nic) || conf->service[0] || given.has_daemon ||
	    conf->shim_host_heap || getenv("CUDA_MODULE_LOADING"))
		return;
	if (!given.is_dry)
		setenv("CUDA_MODULE_LOADING", "EAGER", 1);
	fprintf(given.is_dry ? stdout : stderr,
		"%s: CUDA_MODULE_LOADING=EAGER, as the software NIC needs it: the program starts more slowly\n",
		what);
}

static int run(const char *library)
{
	const char *before = getenv("LD_PRELOAD");
	char *preload;
	int status;

	if (asprintf(&preload, "%s%s%s", library, before && *before ? ":" : "",
		     before ? before : "") < 0) {
		fprintf(stderr, "%s: no memory\n", what);
		return EXIT_FAILURE;
	}
	if (given.has_daemon) {
		status = shim_daemon_run(what, preload, given.program);
		free(preload);
		return status;
	}
	if (setenv("LD_PRELOAD", preload, 1)) {
		perror(what);
		return EXIT_FAILURE;
	}
	execvp(given.program[0], given.program);
	perror(given.program[0]);
	return EXIT_FAILURE;
}

int epf_tool_shim(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "library", OPT_LIBRARY, "FILE", 0, "The shim (default: beside this program)", 0 },
		{ "module", OPT_MODULE, "FILE", 0,
		  "Check whether this compiled module can be served; may be repeated", 0 },
		{ "daemon", OPT_DAEMON, NULL, 0,
		  "Serve it by a daemon that is started before and ends with it: copies of GPU memory are made in another process than DeepEP's kernels",
		  0 },
		{ "dry-run", OPT_DRY_RUN, NULL, 0, "Check and report; run nothing", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		options,
		parse,
		"[--] PROGRAM [ARG...]",
		"Run a program whose DeepEP was compiled with NVSHMEM over this fabric, without rebuilding it: see docs/reference/shim.md. "
		"Settings come from the environment and the file, as for every rank.",
		NULL,
		NULL,
		NULL
	};
	char library[PATH_MAX] = "";
	struct epf_conf conf;

	what = argv[0];
	argp_err_exit_status = EXIT_USAGE;
	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, NULL))
		return EXIT_USAGE;
	if (epf_conf_init(&conf) || epf_conf_load(&conf, NULL)) {
		fprintf(stderr, "%s: %s\n", what, epf_last_error());
		return EXIT_FAILURE;
	}
	if (given.has_daemon && conf.service[0])
		fault("--daemon, but the program is served by %s already (EPF_SERVICE)",
		      conf.service);
	look_at_library(library);
	for (unsigned i = 0; i < given.n_modules; i++)
		look_at_module(&conf, given.modules[i]);
	if (given.program && given.program[0])
		look_at_program(given.program[0]);
	if (!faults) {
		describe(&conf, library);
		load_kernels_at_once(&conf);
	}
	epf_conf_destroy(&conf);
	if (faults || given.is_dry)
		return faults ? EXIT_FAILURE : EXIT_SUCCESS;
	return run(library);
}
