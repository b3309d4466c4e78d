/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letting go of clients' memory. The last user of a memfd frees its pages, all of them in one system call and whatever part of it was mapped: of
 * a region of many GiB that is seconds, in which the control thread would serve nobody. So a separate thread unmaps what is large, in
 * slices (each holds up page faults of the engine threads only briefly), and closes the descriptors of large memfds. What a user
 * has in use is released by the control thread when it is really free. Called on the control thread; the thread here touches nothing but the
 * list.
 */
#include "fabric/service/service_priv.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096 };

/* A mapping or a descriptor to let go of. */
struct svc_unmap {
	struct svc_unmap *next;
	uint8_t *at; /* NULL: only fd */
	uint64_t left;
	int fd;
	struct svc_user *user; /* of a region; NULL: nothing is released */
	uint64_t bytes;        /* of the region */
};

static void give_back(struct svc_user *user, uint64_t bytes)
{
	svc_user_give(user, SVC_REGIONS, 1);
	svc_user_give(user, SVC_BYTES, bytes);
}

static void let_go(struct svc_unmap *u)
{
	while (u->left) {
		uint64_t n = u->left < SVC_SLICE_BYTES ? u->left : SVC_SLICE_BYTES;

		munmap(u->at, n);
		u->at += n;
		u->left -= n;
	}
	if (u->fd >= 0)
		close(u->fd);
}

static void *unmap_thread(void *arg)
{
	struct svc_unmaps *all = arg;

	pthread_setname_np(pthread_self(), "epf-unmap");
	pthread_mutex_lock(&all->lock);
	while (all->todo || !all->stop) {
		struct svc_unmap *u = all->todo;

		if (!u) {
			pthread_cond_wait(&all->more, &all->lock);
			continue;
		}
		all->todo = u->next;
		pthread_mutex_unlock(&all->lock);
		let_go(u);
		pthread_mutex_lock(&all->lock);
		u->next = all->done;
		all->done = u;
	}
	pthread_mutex_unlock(&all->lock);
	return NULL;
}

int svc_unmap_start(struct epf_svc *s)
{
	struct svc_unmaps *all = &s->unmaps;
	int rc;

	pthread_mutex_init(&all->lock, NULL);
	pthread_cond_init(&all->more, NULL);
	rc = pthread_create(&all->thread, NULL, unmap_thread, all);
	all->started = rc == 0;
	return rc ? epf_fail_sys(EPF_R_SYSTEM, rc, "service: cannot start a thread") : 0;
}

void svc_unmap_stop(struct epf_svc *s)
{
	struct svc_unmaps *all = &s->unmaps;

	if (!all->started)
		return;
	pthread_mutex_lock(&all->lock);
	all->stop = true;
	pthread_cond_signal(&all->more);
	pthread_mutex_unlock(&all->lock);
	pthread_join(all->thread, NULL);
	svc_unmap_collect(s);
	all->started = false;
	pthread_cond_destroy(&all->more);
	pthread_mutex_destroy(&all->lock);
}

/* Hands it over; 0 where that cannot be, and then it is the caller's. */
static int hand_over(struct epf_svc *s, const struct svc_unmap *what)
{
	struct svc_unmaps *all = &s->unmaps;
	struct svc_unmap *u = all->started ? malloc(sizeof(*u)) : NULL;

	if (!u)
		return 0;
	*u = *what;
	if (u->user)
		u->user->refs++;
	pthread_mutex_lock(&all->lock);
	u->next = all->todo;
	all->todo = u;
	all->pending++;
	pthread_cond_signal(&all->more);
	pthread_mutex_unlock(&all->lock);
	return 1;
}

void svc_unmap_region(struct epf_svc *s, struct svc_user *user, void *addr, uint64_t bytes,
		      uint64_t file_bytes)
{
	uint64_t before = (uintptr_t)addr % PAGE, all = (bytes + before + PAGE - 1) / PAGE * PAGE;
	struct svc_unmap u = {
		.at = (uint8_t *)addr - before, .left = all, .fd = -1, .user = user, .bytes = bytes
	};

	if (file_bytes > SVC_SLICE_BYTES && hand_over(s, &u))
		return;
	svc_memory_unmap(addr, bytes);
	give_back(user, bytes);
}

void svc_unmap_close(struct epf_svc *s, int fd)
{
	struct svc_unmap u = { .fd = fd };
	struct stat st;

	if (fstat(fd, &st) == 0 && (uint64_t)st.st_size > SVC_SLICE_BYTES && hand_over(s, &u))
		return;
	close(fd);
}

void svc_unmap_collect(struct epf_svc *s)
{
	struct svc_unmaps *all = &s->unmaps;
	struct svc_unmap *u;

	if (!all->pending)
		return;
	pthread_mutex_lock(&all->lock);
	u = all->done;
	all->done = NULL;
	pthread_mutex_unlock(&all->lock);
	while (u) {
		struct svc_unmap *next = u->next;

		if (u->user) {
			give_back(u->user, u->bytes);
			svc_user_put(s, u->user);
		}
		free(u);
		all->pending--;
		u = next;
	}
}
