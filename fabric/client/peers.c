/* SPDX-License-Identifier: Apache-2.0 */
/* libepf: which peer explains that a wait ends: a rank that is lost, or one whose engine is silent. Slow path. */
#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/engine/losses.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTIFY_TRIES = 100, NOTIFY_US = 200 };

/* The error of a lost rank: with the cause's own row where it says more than that the rank is gone. what: stands in front. */
static int fail_lost(const struct epf *ep, const struct epf_loss *loss, const char *what)
{
	uint32_t node = EPF_LOAD_RELAXED(&ep->peers->peers[loss->rank].node);
	const struct epf_reason_info *info = epf_reason_info((enum epf_reason)loss->cause);
	enum epf_reason reason = EPF_R_PEER_DOWN;
	char cause[160], after[64] = "";
	size_t len;

	if (loss->after != UINT32_MAX)
		snprintf(after, sizeof(after), "; rank %u ended because of it", loss->after);
	if (!info || info->reason == EPF_R_NONE)
		return epf_fail(reason, "%srank %u on node %u is lost%s", what, loss->rank, node,
				after);
	if (info->err == ECONNRESET)
		reason = info->reason;
	/* The table has sentences; inside a line they begin small and have no full stop. */
	snprintf(cause, sizeof(cause), "%s", info->cause);
	len = strlen(cause);
	if (len && cause[len - 1] == '.')
		cause[len - 1] = 0;
	if (isupper((unsigned char)cause[0]) && !isupper((unsigned char)cause[1]))
		cause[0] = (char)tolower((unsigned char)cause[0]);
	return epf_fail(reason, "%srank %u on node %u is lost: %s%s", what, loss->rank, node, cause,
			after);
}

/*
 * Whoever hears of a loss may exit at once, and with it an engine in this process. So the peers are notified first: they would name this rank
 * otherwise. Bounded, for peers that take nothing any more.
 */
static void notify_peers(struct epf *ep)
{
	for (unsigned i = 0; i < NOTIFY_TRIES && !EPF_LOAD_RELAXED(&ep->has_notified); i++) {
		if (i && !epf_progress_once(ep))
			usleep(NOTIFY_US);
		if (ep->be->has_notified(ep))
			EPF_STORE_RELAXED(&ep->has_notified, true);
	}
	EPF_STORE_RELAXED(&ep->has_notified, true);
}

int epf_wait_lost(struct epf *ep, bool left)
{
	struct epf_loss loss;

	if (!epf_first_loss(ep->peers, ep->details, ep->world, ep->masked, ep->rank, left, &loss))
		return 0;
	notify_peers(ep);
	/* Meanwhile a peer may have reported which loss began it. */
	(void)epf_first_loss(ep->peers, ep->details, ep->world, ep->masked, ep->rank, left, &loss);
	return fail_lost(ep, &loss, "");
}

int epf_fail_after_loss(const struct epf *ep, const char *what)
{
	struct epf_loss loss;

	return epf_first_loss(ep->peers, ep->details, ep->world, ep->masked, ep->rank, true, &loss)
		       ? fail_lost(ep, &loss, what)
		       : 0;
}

/* The rank whose engine has been silent longest, and how many more are; false: none is. */
static bool find_silent(const struct epf *ep, uint32_t *rank, uint64_t *since, uint32_t *more)
{
	*since = *more = 0;
	for (uint32_t r = 0; ep->details && r < ep->world; r++) {
		uint64_t at = EPF_LOAD_ACQUIRE(&ep->details[r].silent_ns);

		if (!at || r == ep->rank || EPF_LOAD_RELAXED(&ep->masked[r]) ||
		    EPF_LOAD_RELAXED(&ep->peers->peers[r].state) != EPF_PEER_UP)
			continue;
		*more += *since != 0;
		if (*since && at >= *since)
			continue;
		*since = at;
		*rank = r;
	}
	return *since != 0;
}

/* A wait that a silent peer explains. */
static int peer_silent(const struct epf *ep, uint64_t timeout_ns, const char *what, uint64_t number,
		       uint32_t rank, uint64_t since, uint32_t more)
{
	uint64_t now = ep->now(ep->now_arg);
	double seconds = now > since ? (double)(now - since) / 1e9 : 0;
	time_t at = time(NULL) - (time_t)seconds;
	char who[160], others[32] = "", when[16] = "?";
	struct tm tm;

	epf_who_text(ep, rank, who, sizeof(who));
	if (gmtime_r(&at, &tm))
		strftime(when, sizeof(when), "%H:%M:%S", &tm);
	if (more)
		snprintf(others, sizeof(others), ", and %u more rank%s", more, more > 1 ? "s" : "");
	return epf_fail(
		EPF_R_PEER_SILENT,
		"rank %u: %s %llu: not there after %llu ms: %s is silent since %s UTC, %.1f s ago%s",
		ep->rank, what, (unsigned long long)number,
		(unsigned long long)(timeout_ns / 1000000), who, when, seconds, others);
}

int epf_wait_silent(const struct epf *ep, uint64_t timeout_ns, const char *what, uint64_t number)
{
	uint32_t rank, more;
	uint64_t since;

	return find_silent(ep, &rank, &since, &more)
		       ? peer_silent(ep, timeout_ns, what, number, rank, since, more)
		       : 0;
}
