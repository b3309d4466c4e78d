/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare post loop in a build without <infiniband/verbs.h>: it says so. The rest cannot be reached.
 */
#include "bench/common/bench.h"
#include "bench/verbs/rawverbs.h"

#include <errno.h>
#include <string.h>

void rawverbs_defaults(struct rawverbs_opts *o)
{
	memset(o, 0, sizeof(*o));
}

int rawverbs_check(const struct rawverbs_opts *o)
{
	return 0;
}

int rawverbs_probe(const struct rawverbs_opts *o)
{
	bench_complain("this build has no verbs: install libibverbs-dev and build again");
	return -EOPNOTSUPP;
}

int rawverbs_open(const struct rawverbs_opts *o, void *memory, uint64_t bytes,
		  struct rawverbs **out)
{
	return rawverbs_probe(o);
}

void rawverbs_address(const struct rawverbs *r, struct rawverbs_address *out)
{
	memset(out, 0, sizeof(*out));
}

int rawverbs_connect(struct rawverbs *r, const struct rawverbs_address *peer)
{
	return -EOPNOTSUPP;
}

int rawverbs_write(struct rawverbs *r, uint64_t from, uint64_t to, uint64_t bytes, uint64_t n,
		   double seconds, struct rawverbs_result *out)
{
	return -EOPNOTSUPP;
}

void rawverbs_close(struct rawverbs *r)
{
}

const char *rawverbs_error(const struct rawverbs *r)
{
	return "";
}

const char *rawverbs_text(const struct rawverbs *r)
{
	return "";
}

bool rawverbs_has_wr(const struct rawverbs *r)
{
	return false;
}
