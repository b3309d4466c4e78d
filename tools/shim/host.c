/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libepf-deepep.so: the NVSHMEM host functions that a compiled DeepEP needs, under their own names and symbol version, for LD_PRELOAD. Calls
 * from modules that shim-modules does not name (PyTorch has its own NVSHMEM) are passed on to the library that they are linked with. Any
 * thread, one at a time. It must never end the process: a program that cannot be served hears so by the return value, and reads why.
 */
#define EPF_LOG_COMP "shim"
#include "tools/shim/host.h"
#include "bootstrap/net.h"
#include "fabric/base/err.h"
#include "fabric/base/log.h"
#include "tools/shim/job.h"
#include "tools/shim/modules.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#define VERSION "NVSHMEM"

enum { SECRET_BYTES = 32, MAGIC = 0x45504653, INITIALISED = 2, THREAD_SERIALIZED = 2 };

static struct {
	pthread_mutex_t lock;
	struct epf_job *job;
	unsigned starts; /* starts without an end: a program may start more than once */
	char mine[88];   /* the rendezvous that this process made an id for */
	int reserved;    /* socket that holds its port until the start, or -1 */
	struct epf_conf_list *modules;
	struct epf_conf conf;
} shim = { .lock = PTHREAD_MUTEX_INITIALIZER, .reserved = -1 };

static pthread_once_t loaded = PTHREAD_ONCE_INIT;

static void load_modules(void)
{
	if (epf_conf_init(&shim.conf) == 0 && epf_conf_load(&shim.conf, NULL) == 0)
		shim.modules = &shim.conf.shim_modules;
	else
		epf_warn("%s", epf_last_error());
}

/* Whether the caller is a module that we serve. */
static bool is_served(const void *caller)
{
	Dl_info info;

	pthread_once(&loaded, load_modules);
	return shim.modules && dladdr(caller, &info) && info.dli_fname &&
	       epf_shim_names(shim.modules, info.dli_fname);
}

/*
 * The function that a foreign caller would have had without us: that of the library it is linked with. Modules that Python opens are in no scope
 * but their own, so "the next one" after us is often none. NULL, and a line in the log, when there is no other.
 */
static void *next(const char *name, const void *caller)
{
	void *module = NULL, *f = NULL;
	Dl_info info;

	if (dladdr(caller, &info) && info.dli_fname)
		module = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (module) {
		f = dlvsym(module, name, VERSION);
		dlclose(module); /* the caller keeps it loaded */
	}
	if (!f)
		f = dlvsym(RTLD_NEXT, name, VERSION);
	if (!f)
		epf_warn(
			"%s: called by a module that shim-modules does not name, and there is no other NVSHMEM",
			name);
	return f;
}

/* Passes a foreign call on and returns from the calling function; bad: what to return when nobody is behind us. */
#define PASS_ON(call, bad, ...)                                                    \
 do {                                                                              \
  if (!is_served(__builtin_return_address(0))) {                                   \
   __typeof__(&call) other =                                                       \
	   (__typeof__(&call))(uintptr_t)next(#call, __builtin_return_address(0)); \
   return other ? other(__VA_ARGS__) : (bad);                                      \
  }                                                                                \
 } while (0)
#define PASS_ON_VOID(call, ...)                                                    \
 do {                                                                              \
  if (!is_served(__builtin_return_address(0))) {                                   \
   __typeof__(&call) other =                                                       \
	   (__typeof__(&call))(uintptr_t)next(#call, __builtin_return_address(0)); \
   if (other)                                                                      \
    other(__VA_ARGS__);                                                            \
   return;                                                                         \
  }                                                                                \
 } while (0)

static int complain(const char *call, int rc)
{
	if (rc)
		epf_warn("%s: %s", call, epf_last_error());
	return rc ? 1 : 0;
}

/* An address of this host with a port that stays ours until the start. */
static int reserve(char *out, size_t size, int *fd)
{
	struct epf_net_addr a;
	char ifname[IF_NAMESIZE];
	int rc = epf_net_pick(getenv("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"), AF_UNSPEC, &a, ifname);
	int s;

	if (rc)
		return rc;
	epf_net_set_port(&a, 0);
	s = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (s < 0 || bind(s, (struct sockaddr *)&a.sa, a.len) ||
	    getsockname(s, (struct sockaddr *)&a.sa, &a.len)) {
		rc = epf_fail_sys(EPF_R_SYSTEM, errno, "shim: an address for the ranks to meet");
		if (s >= 0)
			close(s);
		return rc;
	}
	epf_net_print(&a, out, size);
	*fd = s;
	return 0;
}

static int make_id(struct epf_host_id *id)
{
	int fd = -1, rc;

	memset(id, 0, sizeof(*id));
	if (getrandom(id->secret, sizeof(id->secret), 0) != (ssize_t)sizeof(id->secret))
		return epf_fail_sys(EPF_R_SYSTEM, errno, "shim: random numbers");
	rc = reserve(id->rendezvous, sizeof(id->rendezvous), &fd);
	if (rc)
		return rc;
	id->version = (1 << 16) + EPF_HOST_ID_BYTES;
	id->magic = MAGIC;
	if (shim.reserved >= 0)
		close(shim.reserved);
	shim.reserved = fd;
	memcpy(shim.mine, id->rendezvous, sizeof(shim.mine));
	return 0;
}

int nvshmemx_get_uniqueid(struct epf_host_id *id)
{
	int rc;

	PASS_ON(nvshmemx_get_uniqueid, 1, id);
	pthread_mutex_lock(&shim.lock);
	rc = make_id(id);
	pthread_mutex_unlock(&shim.lock);
	return complain("nvshmemx_get_uniqueid", rc);
}

int nvshmemx_set_attr_uniqueid_args(const int rank, const int world, const struct epf_host_id *id,
				    struct epf_host_attr *attr)
{
	PASS_ON(nvshmemx_set_attr_uniqueid_args, 1, rank, world, id, attr);
	attr->id = id;
	attr->rank = rank;
	attr->world = world;
	return 0;
}

static int start(const struct epf_host_attr *attr, struct epf_nv_version version,
		 epf_host_states_fn device_states)
{
	struct epf_job_start how = { .version = version, .device_states = device_states };
	char rendezvous[sizeof(shim.mine)];

	if (shim.job) {
		/* Another module of the program, or the same again: it gets the same state. */
		int rc = epf_job_tell(shim.job, device_states);

		shim.starts += !rc;
		return rc;
	}
	if (!attr || !attr->id || attr->id->magic != MAGIC)
		return epf_fail(EPF_R_SHIM_CALL, "start without a unique id of this library");
	memcpy(rendezvous, attr->id->rendezvous, sizeof(rendezvous));
	rendezvous[sizeof(rendezvous) - 1] = 0;
	how.rank = attr->rank;
	how.world = attr->world;
	how.rendezvous = rendezvous;
	how.secret = attr->id->secret;
	how.is_root = shim.reserved >= 0 && strcmp(rendezvous, shim.mine) == 0;
	if (how.is_root) {
		close(shim.reserved);
		shim.reserved = -1;
	}
	if (epf_job_start(&how, &shim.job))
		return -1;
	shim.starts = 1;
	return 0;
}

int nvshmemid_hostlib_init_attr(int requested, int *provided, unsigned flags,
				struct epf_host_attr *attr, struct epf_nv_version version,
				epf_host_states_fn device_states)
{
	int rc;

	PASS_ON(nvshmemid_hostlib_init_attr, 1, requested, provided, flags, attr, version,
		device_states);
	pthread_mutex_lock(&shim.lock);
	rc = start(attr, version, device_states);
	pthread_mutex_unlock(&shim.lock);
	if (!rc && provided)
		*provided = THREAD_SERIALIZED;
	return complain("nvshmemid_hostlib_init_attr", rc);
}

int nvshmemid_init_status(void)
{
	PASS_ON(nvshmemid_init_status, 0);
	return shim.job ? INITIALISED : 0;
}

void nvshmemid_hostlib_finalize(void *device, void *transport)
{
	PASS_ON_VOID(nvshmemid_hostlib_finalize, device, transport);
	pthread_mutex_lock(&shim.lock);
	if (shim.job && --shim.starts == 0) {
		epf_job_end(shim.job);
		shim.job = NULL;
	}
	pthread_mutex_unlock(&shim.lock);
}

int nvshmem_my_pe(void)
{
	PASS_ON(nvshmem_my_pe, -1);
	return shim.job ? shim.job->nv.rank : -1;
}

static int no_job(void)
{
	return epf_fail(EPF_R_SHIM_CALL, "called before the start");
}

void *nvshmem_align(size_t alignment, size_t bytes)
{
	void *at = NULL;

	PASS_ON(nvshmem_align, NULL, alignment, bytes);
	pthread_mutex_lock(&shim.lock);
	if (!shim.job)
		no_job();
	else
		at = epf_job_align(shim.job, alignment, bytes);
	/* Collective: nobody may write to it before everybody has it. */
	if (at && epf_job_barrier(shim.job))
		at = NULL;
	if (!at)
		complain("nvshmem_align", -1);
	pthread_mutex_unlock(&shim.lock);
	return at;
}

void nvshmem_free(void *addr)
{
	PASS_ON_VOID(nvshmem_free, addr);
	pthread_mutex_lock(&shim.lock);
	if (shim.job && addr) {
		complain("nvshmem_free", epf_job_barrier(shim.job));
		epf_job_free(shim.job, addr);
	}
	pthread_mutex_unlock(&shim.lock);
}

static void barrier(const char *name)
{
	pthread_mutex_lock(&shim.lock);
	complain(name, shim.job ? epf_job_barrier(shim.job) : no_job());
	pthread_mutex_unlock(&shim.lock);
}

void nvshmem_barrier_all(void)
{
	PASS_ON_VOID(nvshmem_barrier_all);
	barrier("nvshmem_barrier_all");
}

/* Waits for the stream here, then for the ranks: more than is asked for, and nothing that a graph can capture. */
void nvshmemx_barrier_all_on_stream(void *stream)
{
	PASS_ON_VOID(nvshmemx_barrier_all_on_stream, stream);
	if (shim.job)
		complain("nvshmemx_barrier_all_on_stream",
			 shim.job->ops->stream_sync(shim.job->dev, stream));
	barrier("nvshmemx_barrier_all_on_stream");
}

int nvshmem_team_split_strided(int32_t parent, int start_pe, int stride, int size,
			       const void *config, long mask, int32_t *team)
{
	int index = -1, rc;

	PASS_ON(nvshmem_team_split_strided, 1, parent, start_pe, stride, size, config, mask, team);
	pthread_mutex_lock(&shim.lock);
	if (!shim.job)
		rc = no_job();
	else if (parent != EPF_NV_WORLD)
		rc = epf_fail(EPF_R_SHIM_CALL, "a team of team %d: only the world can be split",
			      parent);
	else
		rc = epf_job_team(shim.job, start_pe, stride, size, &index);
	pthread_mutex_unlock(&shim.lock);
	*team = index;
	return complain("nvshmem_team_split_strided", rc);
}

void nvshmem_team_destroy(int32_t team)
{
	PASS_ON_VOID(nvshmem_team_destroy, team);
	pthread_mutex_lock(&shim.lock);
	if (shim.job)
		epf_job_team_end(shim.job, team);
	pthread_mutex_unlock(&shim.lock);
}
