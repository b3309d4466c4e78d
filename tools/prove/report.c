/* SPDX-License-Identifier: Apache-2.0 */
/* The report of prove.h as text and as JSON. */
#include "tools/prove/prove.h"

#include <inttypes.h>
#include <string.h>
#include <sys/utsname.h>

static const char *const words[] = { "held", "broken", "not tried" };

static void ends(const struct prove_report *r, FILE *out)
{
	fprintf(out, "NIC %s%s%s of %s, to ", r->nic, *r->device ? " " : "", r->device, r->host);
	if (*r->peer_host)
		fprintf(out, "%s\n", r->peer_host);
	else if (strcmp(r->device, r->peer_device) != 0)
		fprintf(out, "%s of the same host\n", r->peer_device);
	else
		fprintf(out, "itself\n");
}

void prove_text(const struct prove_report *r, FILE *out)
{
	ends(r, out);
	fprintf(out, "%s, writes of at most %" PRIu32 " bytes\n\n",
		r->caps.ordered ? "ordered" : "unordered", r->caps.max_msg_bytes);
	for (unsigned i = 0; i < r->n; i++) {
		const struct prove_row *row = &r->rows[i];

		fprintf(out, "%-9s  %s\n", words[row->verdict], row->check->assumption);
		if (row->verdict == PROVE_BROKEN)
			fprintf(out, "           %s\n", row->check->consequence);
		if (*row->detail)
			fprintf(out, "           %s: %s\n", row->check->key, row->detail);
	}
	fprintf(out, "\n%u held, %u broken, %u not tried, in %.0f s\n", r->held, r->broken,
		r->not_tried, (double)r->ns / 1e9);
}

static json_t *row_json(const struct prove_row *row)
{
	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:f}", "key", row->check->key, "assumption",
			 row->check->assumption, "verdict", words[row->verdict], "consequence",
			 row->check->consequence, "detail", row->detail, "seconds",
			 (double)row->ns / 1e9);
}

json_t *prove_json(const struct prove_report *r)
{
	json_t *rows = json_array(), *top;
	struct utsname os;

	if (uname(&os))
		memset(&os, 0, sizeof(os));
	for (unsigned i = 0; i < r->n; i++)
		if (json_array_append_new(rows, row_json(&r->rows[i]))) {
			json_decref(rows);
			return NULL;
		}
	top = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "schema", "epf.prove/1", "nic",
			r->nic, "host", r->host, "peer_host", r->peer_host, "device", r->device,
			"peer_device", r->peer_device, "kernel", os.release, "machine", os.machine);
	if (top &&
	    json_object_update_new(
		    top,
		    json_pack("{s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f}", "is_ordered",
			      r->caps.ordered, "max_message_bytes",
			      (json_int_t)r->caps.max_msg_bytes, "max_lanes",
			      (json_int_t)r->caps.max_lanes, "links", (json_int_t)r->caps.links,
			      "lane_depth", (json_int_t)r->caps.lane_depth, "receives",
			      (json_int_t)r->caps.receives, "held", (json_int_t)r->held, "broken",
			      (json_int_t)r->broken, "not_tried", (json_int_t)r->not_tried,
			      "seconds", (double)r->ns / 1e9))) {
		json_decref(top);
		top = NULL;
	}
	if (!top) {
		json_decref(rows);
		return NULL;
	}
	if (json_object_set_new(top, "assumptions", rows)) {
		json_decref(top);
		return NULL;
	}
	return top;
}
