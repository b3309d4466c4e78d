/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two whose members have a connection already: allgathers travel by a function of the caller, who also has the key. For endpoints
 * (fabric/p2p), whose pairs need no rendezvous.
 */
#include "bootstrap/auth.h"
#include "bootstrap/boot_priv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pair_boot {
	struct epf_boot base;
	struct epf_boot_pair opts;
	char route[EPF_BOOT_ADDRESS_MAX];
	struct epf_error failed;
	int err;
};

static struct pair_boot *pair_of(struct epf_boot *b)
{
	return (struct pair_boot *)b;
}

static int pair_allgather(struct epf_boot *b, const void *mine, size_t len, struct epf_blob **all)
{
	struct pair_boot *p = pair_of(b);
	struct epf_blob in[2];
	void *theirs = NULL;
	size_t their_len = 0, bytes;
	uint8_t *stream;

	if (p->err) {
		epf_error_set(&p->failed);
		return p->err;
	}
	p->err = p->opts.exchange(p->opts.arg, mine, len, &theirs, &their_len);
	if (p->err) {
		epf_error_get(&p->failed);
		return p->err;
	}
	in[b->rank] = (struct epf_blob){ mine, len };
	in[!b->rank] = (struct epf_blob){ theirs, their_len };
	bytes = epf_boot_stream_write(2, in, NULL);
	*all = epf_boot_stream_new(2, bytes, 1, &stream);
	if (*all) {
		epf_boot_stream_write(2, in, stream);
		epf_boot_stream_index(2, stream, bytes, *all);
	}
	free(theirs);
	return *all ? 0 : epf_fail(EPF_R_NO_MEMORY, "an allgather result of %zu bytes", bytes);
}

static int pair_barrier(struct epf_boot *b)
{
	struct epf_blob *all;
	int rc = pair_allgather(b, NULL, 0, &all);

	if (!rc)
		epf_boot_free_blobs(all);
	return rc;
}

static int pair_check(struct epf_boot *b)
{
	if (pair_of(b)->err)
		epf_error_set(&pair_of(b)->failed);
	return pair_of(b)->err;
}

static int pair_post(struct epf_boot *b, const void *mine, size_t len)
{
	(void)b;
	(void)mine;
	(void)len;
	return epf_fail_sys(EPF_R_BOOT_OPTION, EOPNOTSUPP, "a pair has no exchange in two halves");
}

static int pair_collect(struct epf_boot *b, struct epf_blob **all)
{
	(void)all;
	return pair_post(b, NULL, 0);
}

static int pair_job_key(struct epf_boot *b, const char *label, uint8_t key[EPF_BOOT_KEY_BYTES])
{
	struct epf_auth auth = { .has_secret = true };

	memcpy(auth.master, pair_of(b)->opts.key, sizeof(auth.master));
	epf_auth_job_key(&auth, label, key);
	epf_auth_wipe(&auth);
	return 0;
}

static int pair_route(struct epf_boot *b, char *host, size_t size, bool *is_secret)
{
	snprintf(host, size, "%s", pair_of(b)->route);
	*is_secret = true;
	return 0;
}

static void pair_close(struct epf_boot *b)
{
	struct pair_boot *p = pair_of(b);

	explicit_bzero(p->opts.key, sizeof(p->opts.key));
	free(p);
}

static const struct epf_boot_ops pair_ops = {
	.allgather = pair_allgather,
	.barrier = pair_barrier,
	.check = pair_check,
	.close = pair_close,
	.collect = pair_collect,
	.job_key = pair_job_key,
	.post = pair_post,
	.route = pair_route,
};

int epf_boot_pair_open(const struct epf_boot_pair *opts, struct epf_boot **out)
{
	struct pair_boot *p = calloc(1, sizeof(*p));

	if (!p)
		return epf_fail(EPF_R_NO_MEMORY, "the bootstrap of a pair");
	p->base = (struct epf_boot){ .ops = &pair_ops, .rank = opts->rank, .world = 2 };
	p->opts = *opts;
	snprintf(p->route, sizeof(p->route), "%s", opts->route ? opts->route : "");
	*out = &p->base;
	return 0;
}
