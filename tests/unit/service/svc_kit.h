/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A service daemon inside the test's process, on a separate thread, and clients that speak its protocol: for tests of sessions,
 * limits and jobs without any rank process. The fabric is the emulated NIC. Everything is made in a directory that is removed at the end.
 */
#ifndef EPF_TESTS_SVC_KIT_H
#define EPF_TESTS_SVC_KIT_H

#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/protocol/channel.h"
#include "fabric/service/service.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KIT_WAIT_NS UINT64_C(60000000000)

/* Fails the test unless the last error contains the text. */
#define kit_says(text)                                   \
 do {                                                    \
  if (!strstr(epf_last_error(), text))                   \
   fail_msg("no \"%s\" in: %s", text, epf_last_error()); \
 } while (0)

struct kit {
	char dir[64];
	struct epf_conf conf;
	struct epf_svc *svc;
	pthread_t thread;
	int running;
	int rc; /* of epf_svc_run */
};

static inline void *kit_thread(void *arg)
{
	struct kit *k = arg;

	k->rc = epf_svc_run(k->svc, 0);
	return NULL;
}

/* Sets one value; stops the test's program when it is wrong. */
static inline void kit_set(struct kit *k, const char *name, const char *value)
{
	if (epf_conf_set(&k->conf, name, value, EPF_CONF_PROGRAM)) {
		fprintf(stderr, "kit: %s\n", epf_last_error());
		exit(1);
	}
}

/* Directory and configuration; then kit_set() what is wanted, then kit_run(). */
static inline void kit_make(struct kit *k)
{
	memset(k, 0, sizeof(*k));
	snprintf(k->dir, sizeof(k->dir), "/tmp/epf-test-svc-XXXXXX");
	if (!mkdtemp(k->dir) || epf_conf_init(&k->conf))
		exit(1);
	kit_set(k, "runtime-dir", k->dir);
	kit_set(k, "stats-dir", k->dir);
	kit_set(k, "instance", "kit");
	kit_set(k, "service-stranger-timeout", "20s"); /* longer than any machine is stalled */
	kit_set(k, "service-grace", "100ms");
	kit_set(k, "lanes-per-peer", "1");
}

static inline int kit_run(struct kit *k)
{
	int rc = epf_svc_create(&k->conf, "0.0.0", &k->svc);

	if (!rc)
		k->running = pthread_create(&k->thread, NULL, kit_thread, k) == 0;
	return rc;
}

static inline int kit_files(const struct kit *k)
{
	DIR *d = opendir(k->dir);
	int n = 0;

	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

/* Ends the daemon, jobs and all; returns what epf_svc_run() returned. */
static inline int kit_stop(struct kit *k)
{
	if (k->running) {
		epf_svc_stop(k->svc);
		epf_svc_stop(k->svc);
		pthread_join(k->thread, NULL);
		k->running = 0;
	}
	epf_svc_destroy(k->svc);
	k->svc = NULL;
	return k->rc;
}

static inline void kit_remove(struct kit *k)
{
	DIR *d;

	kit_stop(k);
	d = opendir(k->dir);
	for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
	rmdir(k->dir);
	epf_conf_destroy(&k->conf);
}

static inline struct epf_svc_channel *kit_connect(const struct kit *k)
{
	struct epf_svc_channel *ch = NULL;

	if (epf_svc_channel_open(epf_svc_socket(k->svc), 0, &ch))
		fprintf(stderr, "kit: %s\n", epf_last_error());
	return ch;
}

/* A greeted client; NULL with epf_last_error(). */
static inline struct epf_svc_channel *kit_client(const struct kit *k)
{
	struct epf_svc_channel *ch = kit_connect(k);
	struct epf_svc_hello_reply reply;

	if (ch && epf_svc_hello(ch, 0, "kit client", &reply, KIT_WAIT_NS)) {
		epf_svc_channel_close(ch);
		return NULL;
	}
	return ch;
}

/* A call whose answer's descriptors are kept in fds[4]; -1 where there is none. */
static inline int kit_call(struct epf_svc_channel *ch, unsigned type, const void *req, int fd,
			   void *reply, int *fds)
{
	int own[EPF_SVC_FDS_MAX];
	unsigned n = 0;
	int rc = epf_svc_call(ch, type, req, fd < 0 ? NULL : &fd, fd >= 0, reply, own,
			      EPF_SVC_FDS_MAX, &n, KIT_WAIT_NS);

	for (unsigned i = 0; i < EPF_SVC_FDS_MAX && fds; i++)
		fds[i] = i < n ? own[i] : -1;
	for (unsigned i = 0; i < n && !fds; i++)
		close(own[i]);
	return rc;
}

static inline int kit_signals(struct epf_svc_channel *ch, uint32_t count)
{
	struct epf_svc_signals q = { .count = count };
	struct epf_svc_signals_reply reply;

	return kit_call(ch, EPF_SVC_SIGNALS, &q, -1, &reply, NULL);
}

static inline int kit_ring(struct epf_svc_channel *ch)
{
	struct epf_svc_ring q = { .log2 = 4, .weight = 1 };
	struct epf_svc_ring_reply reply;

	return kit_call(ch, EPF_SVC_RING, &q, -1, &reply, NULL);
}

/* A memfd with these seals. */
static inline int kit_memfd(size_t bytes, int seals)
{
	int fd = memfd_create("kit", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd >= 0 && (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, seals)))
		exit(1);
	return fd;
}

static inline int kit_region(struct epf_svc_channel *ch, int fd, uint64_t offset, uint64_t bytes,
			     uint32_t *region)
{
	struct epf_svc_region q = { .offset = offset, .bytes = bytes, .access = 3 };
	struct epf_svc_region_reply reply = { .region = 0 };
	int rc = kit_call(ch, EPF_SVC_REGION, &q, fd, &reply, NULL);

	if (region)
		*region = reply.region;
	return rc;
}

/* id: number of the job; its key is made from it. */
static inline struct epf_svc_attach kit_attach(uint8_t id, uint32_t rank, uint32_t world)
{
	struct epf_svc_attach q = { .rank = rank, .world = world };

	memset(q.job_id, id, sizeof(q.job_id));
	memset(q.job_key, id, sizeof(q.job_key));
	snprintf(q.job, sizeof(q.job), "job%u", id);
	return q;
}

/* The status; to be released with json_decref(). */
static inline json_t *kit_status(const struct kit *k)
{
	struct epf_svc_channel *ch = kit_connect(k);
	struct epf_svc_hello_reply hello;
	struct epf_svc_status q = { .flags = 0 };
	struct epf_svc_status_reply reply;
	json_t *top = NULL;

	if (ch && !epf_svc_hello(ch, 1, "kit", &hello, KIT_WAIT_NS) &&
	    !kit_call(ch, EPF_SVC_STATUS, &q, -1, &reply, NULL))
		top = json_loadb(reply.json.data, reply.json.len, 0, NULL);
	epf_svc_channel_close(ch);
	return top;
}

static inline long kit_refusals(const struct kit *k, enum epf_reason reason)
{
	json_t *top = kit_status(k);
	char key[16];
	long n;

	snprintf(key, sizeof(key), "EPF-%d", (int)reason);
	n = (long)json_integer_value(json_object_get(json_object_get(top, "refusals"), key));
	json_decref(top);
	return n;
}

/* What the (only) user has in use of a setting. */
static inline long kit_used(const struct kit *k, const char *setting)
{
	json_t *top = kit_status(k), *user = json_array_get(json_object_get(top, "users"), 0);
	long n = (long)json_integer_value(json_object_get(json_object_get(user, setting), "used"));

	json_decref(top);
	return n;
}

/* A number at the top of the status. */
static inline long kit_number(const struct kit *k, const char *key)
{
	json_t *top = kit_status(k);
	const json_t *v = json_object_get(top, key);
	long n = json_is_array(v) ? (long)json_array_size(v) : (long)json_integer_value(v);

	json_decref(top);
	return n;
}

/* Waits until it is `want`: 0, or -1 after a minute and more. */
static inline int kit_await(const struct kit *k, const char *key, long want)
{
	for (int i = 0; i < 12000; i++) {
		if (kit_number(k, key) == want)
			return 0;
		usleep(5000);
	}
	return -1;
}

#endif
