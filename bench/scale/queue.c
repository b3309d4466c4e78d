/* SPDX-License-Identifier: Apache-2.0 */
/* Events in order of time, and among equal times in the order in which they were made: the same run every time. See net_priv.h. */
#include "bench/scale/net_priv.h"

#include <errno.h>
#include <stdlib.h>

static int is_before(const struct sim_event *x, const struct sim_event *y)
{
	return x->at != y->at ? x->at < y->at : x->order < y->order;
}

int sim_events_push(struct sim_events *q, struct sim_event e)
{
	size_t at = q->n;

	if (q->n == q->room) {
		size_t room = q->room ? 2 * q->room : 4096;
		struct sim_event *more = realloc(q->e, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		q->e = more;
		q->room = room;
	}
	e.order = q->made++;
	q->n++;
	while (at && is_before(&e, &q->e[(at - 1) / 2])) {
		q->e[at] = q->e[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	q->e[at] = e;
	return 0;
}

int sim_events_pop(struct sim_events *q, struct sim_event *out)
{
	struct sim_event last;
	size_t at = 0, child;

	if (!q->n)
		return 0;
	*out = q->e[0];
	last = q->e[--q->n];
	while ((child = 2 * at + 1) < q->n) {
		if (child + 1 < q->n && is_before(&q->e[child + 1], &q->e[child]))
			child++;
		if (!is_before(&q->e[child], &last))
			break;
		q->e[at] = q->e[child];
		at = child;
	}
	q->e[at] = last;
	return 1;
}
