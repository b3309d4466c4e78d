/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job of the rendezvous server: ranks that join, rounds that fill and complete, and the one
 * way a job's bootstrap fails: every member gets the same cause, which names the rank. Called
 * by the server's thread only. A round is complete when all ranks have arrived; a rank arrives
 * again only after it has received the last result, so there is one result at a time.
 */
#include "bootstrap/server_priv.h"

#define EPF_LOG_COMP "boot"
#include "fabric/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAREWELL_NS 10000000000ull /* time for the members to read why it failed */

static const char *node_of(const struct srv_conn *c)
{
	return c->node[0] ? c->node : "?";
}

/* Names come from the other side and end up in logs: printable bytes only. */
static void clean(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 32 || (unsigned char)*text == 127)
			*text = '?';
}

static bool check_join(struct epf_boot_server *srv, struct srv_conn *c, struct epf_wire_join *join)
{
	struct srv_conn *holder;

	if (srv->job_known && strcmp(srv->job, join->job)) {
		srv_conn_refuse(srv, c, EPF_R_BOOT_JOB,
				"rank %u of job '%.64s' came to job '%.64s' at %.64s", join->rank,
				join->job, srv->job, srv->where);
		return false;
	}
	if (join->world != srv->world || join->rank >= srv->world) {
		srv_conn_refuse(
			srv, c, EPF_R_BOOT_WORLD,
			"rank %u of %u came to the rendezvous at %.64s, which expects %u ranks",
			join->rank, join->world, srv->where, srv->world);
		return false;
	}
	if (srv->failure.reason) {
		srv_conn_refuse(srv, c, (enum epf_reason)srv->failure.reason, "%s",
				srv->failure.text);
		return false;
	}
	holder = srv->seat[join->rank];
	if (holder) {
		srv_conn_refuse(
			srv, c, EPF_R_BOOT_DUPLICATE_RANK,
			"rank %u at %s (node %.64s) comes second: %s (node %.64s) has that number",
			join->rank, c->address, join->node[0] ? join->node : "?", holder->address,
			node_of(holder));
		return false;
	}
	return true;
}

/* By which address another host reaches this one: where the server listens everywhere, nobody else knows. */
static void note_reached(struct epf_boot_server *srv, int fd)
{
	struct epf_net_addr at = { .len = sizeof(at.any) };

	if (srv->reached.len || getsockname(fd, &at.sa, &at.len))
		return;
	if (at.sa.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&at.v6.sin6_addr)) {
		struct epf_net_addr v4 = epf_net_any(AF_INET, 0);

		memcpy(&v4.v4.sin_addr, &at.v6.sin6_addr.s6_addr[12], 4);
		at = v4;
	}
	if (epf_net_is_loopback(&at))
		return;
	epf_net_set_port(&at, 0);
	pthread_mutex_lock(&srv->lock);
	srv->reached = at;
	pthread_mutex_unlock(&srv->lock);
}

static void job_join(struct epf_boot_server *srv, struct srv_conn *c,
		     const struct epf_wire_msg *msg)
{
	struct epf_wire_join join;
	uint8_t welcome[8];

	if (msg->head.version < EPF_WIRE_OLDEST || msg->head.version > EPF_WIRE_VERSION) {
		srv_conn_refuse(
			srv, c, EPF_R_BOOT_VERSION,
			"rank %u at %s speaks version %u, the rendezvous at %.64s version %u",
			msg->head.sender, c->address, msg->head.version, srv->where,
			EPF_WIRE_VERSION);
		return;
	}
	/* What is not understood leaves the connection where it is, and the caller closes it. */
	if (epf_wire_get_join(msg, &join) != EPF_WIRE_V_OK || join.rank != msg->head.sender)
		return;
	clean(join.job);
	clean(join.node);
	if (!check_join(srv, c, &join))
		return;
	if (!srv->job_known)
		memcpy(srv->job, join.job, sizeof(srv->job));
	srv->job_known = true;
	note_reached(srv, c->fd);
	srv_conn_set_state(srv, c, SRV_MEMBER);
	c->session.version = msg->head.version;
	c->seated = true;
	c->rank = join.rank;
	c->timeout_ns = join.timeout_ns ? join.timeout_ns : srv->timeout_ns;
	memcpy(c->node, join.node, sizeof(c->node));
	srv->seat[c->rank] = c;
	if (!srv->joined++)
		epf_boot_notice_begin(&srv->notice);
	srv_count(srv, joined, 1);
	epf_info("rank %u joined from %s (node %s), %u of %u", c->rank, c->address, node_of(c),
		 srv->joined, srv->world);
	epf_wire_put_u32(welcome, srv->world);
	epf_wire_put_u32(welcome + 4, EPF_WIRE_PART_BYTES);
	srv_conn_send(srv, c, EPF_WIRE_WELCOME, welcome, sizeof(welcome), NULL);
}

static void drop_result(struct epf_boot_server *srv)
{
	free(srv->result.stream);
	free(srv->result.digest);
	free(srv->result.digest_known);
	srv->result = (struct srv_result){ 0 };
}

static void reset_round(struct epf_boot_server *srv)
{
	struct srv_conn *c;

	TAILQ_FOREACH(c, &srv->members, link) {
		free(c->blob);
		c->blob = NULL;
		c->blob_len = c->blob_got = 0;
		c->arrived = c->started = false;
	}
	srv->arrived = 0;
	srv->kind = 0;
	srv->gather_bytes = 0;
	srv->round_deadline_ns = UINT64_MAX;
}

void srv_job_fail(struct epf_boot_server *srv, enum epf_reason reason, uint32_t rank,
		  const char *fmt, ...)
{
	uint8_t buf[10 + EPF_WIRE_TEXT_MAX];
	struct srv_conn *c, *next;
	va_list args;
	size_t len;

	if (srv->failure.reason)
		return;
	srv->failure = (struct epf_wire_note){ .reason = reason, .rank = rank };
	va_start(args, fmt);
	vsnprintf(srv->failure.text, sizeof(srv->failure.text), fmt, args);
	va_end(args);
	/* A root that closes first is the usual end of a job and worth no warning. */
	epf_log_at(reason == EPF_R_BOOT_SERVER_LOST ? EPF_LOG_INFO : EPF_LOG_WARN,
		   "job '%s' failed: %s", srv->job, srv->failure.text);
	srv->end_ns = epf_boot_deadline(FAREWELL_NS);
	reset_round(srv);
	len = epf_wire_put_note(buf, EPF_WIRE_FAIL, &srv->failure);
	/* A send that fails moves its connection out of the list, and finds the job failed already. */
	for (c = TAILQ_FIRST(&srv->members); c; c = next) {
		next = TAILQ_NEXT(c, link);
		c->receiving = false;
		if (!c->left)
			srv_conn_send(srv, c, EPF_WIRE_FAIL, buf, len, NULL);
	}
	drop_result(srv);
}

static void job_lost(struct epf_boot_server *srv, struct srv_conn *c, const char *why)
{
	if (c->receiving && --srv->result.receivers == 0)
		drop_result(srv);
	c->receiving = false;
	if (!c->left)
		srv_job_fail(srv, EPF_R_BOOT_RANK_LOST, c->rank,
			     "rank %u at %s (node %s) was lost: %s", c->rank, c->address,
			     node_of(c), why);
}

/* Everybody is here: gather the blobs into one stream and begin to send it. */
static bool build_result(struct epf_boot_server *srv)
{
	struct epf_blob *in = calloc(srv->world, sizeof(*in));
	struct srv_result *r = &srv->result;
	size_t parts;

	if (!in)
		return false;
	for (uint32_t i = 0; i < srv->world; i++)
		in[i] = (struct epf_blob){ srv->seat[i]->blob, srv->seat[i]->blob_len };
	r->bytes = epf_boot_stream_write(srv->world, in, NULL);
	parts = (r->bytes + EPF_WIRE_PART_BYTES - 1) / EPF_WIRE_PART_BYTES;
	r->stream = malloc(r->bytes);
	r->digest = malloc(parts * sizeof(*r->digest));
	r->digest_known = calloc(parts, sizeof(*r->digest_known));
	if (r->stream)
		epf_boot_stream_write(srv->world, in, r->stream);
	free(in);
	if (!r->stream || !r->digest || !r->digest_known) {
		drop_result(srv);
		return false;
	}
	r->round = srv->round;
	r->receivers = srv->world;
	return true;
}

static void job_pump(struct epf_boot_server *srv, struct srv_conn *c)
{
	uint8_t payload[EPF_WIRE_PAYLOAD_MAX];
	struct srv_result *r = &srv->result;
	size_t left = r->bytes - c->result_sent;
	size_t part = c->result_sent / EPF_WIRE_PART_BYTES;
	size_t bytes = left < EPF_WIRE_PART_BYTES ? left : EPF_WIRE_PART_BYTES;

	if (!c->receiving)
		return;
	epf_wire_put_part(payload, r->round, r->bytes, c->result_sent);
	memcpy(payload + EPF_WIRE_PART_HEAD, r->stream + c->result_sent, bytes);
	if (!r->digest_known[part])
		epf_auth_digest(payload, EPF_WIRE_PART_HEAD + bytes, r->digest[part]);
	r->digest_known[part] = true;
	c->result_sent += bytes;
	/* The last part: from here on only the connection's buffer holds something for it. */
	if (c->result_sent == r->bytes) {
		uint8_t digest[EPF_AUTH_HASH_BYTES];

		memcpy(digest, r->digest[part], sizeof(digest));
		c->receiving = false;
		if (--r->receivers == 0)
			drop_result(srv);
		srv_conn_send(srv, c, EPF_WIRE_PART, payload, EPF_WIRE_PART_HEAD + bytes, digest);
		return;
	}
	srv_conn_send(srv, c, EPF_WIRE_PART, payload, EPF_WIRE_PART_HEAD + bytes, r->digest[part]);
}

static void complete_round(struct epf_boot_server *srv)
{
	bool gather = srv->kind == EPF_BOOT_GATHER;
	struct srv_conn *c, *next;
	uint8_t round[8];

	if (gather && !build_result(srv)) {
		srv_job_fail(srv, EPF_R_NO_MEMORY, EPF_WIRE_SERVER,
			     "the rendezvous at %.64s has no memory for %zu bytes", srv->where,
			     srv->gather_bytes);
		return;
	}
	epf_wire_put_u64(round, srv->round);
	reset_round(srv);
	srv->round++;
	srv_count(srv, rounds, 1);
	TAILQ_FOREACH(c, &srv->members, link) {
		c->receiving = gather;
		c->result_sent = 0;
	}
	for (c = TAILQ_FIRST(&srv->members); c; c = next) {
		next = TAILQ_NEXT(c, link);
		if (gather)
			job_pump(srv, c);
		else
			srv_conn_send(srv, c, EPF_WIRE_RELEASE, round, sizeof(round), NULL);
		if (srv->failure.reason)
			return;
	}
}

/* The first sign of a rank in this round. False: the job has failed. */
static bool begin(struct epf_boot_server *srv, struct srv_conn *c, enum epf_boot_kind kind)
{
	if (!srv->kind) {
		srv->kind = kind;
		srv->kind_rank = c->rank;
	}
	if (srv->kind != kind) {
		srv_job_fail(srv, EPF_R_BOOT_ORDER, c->rank,
			     "rank %u called %s where rank %u called %s (exchange %llu)", c->rank,
			     epf_boot_kind_text(kind), srv->kind_rank,
			     epf_boot_kind_text(srv->kind), (unsigned long long)srv->round);
		return false;
	}
	return true;
}

/* A rank has left because another one was lost: that one is the cause. */
static bool name_blamed(struct epf_boot_server *srv)
{
	for (uint32_t r = 0; r < srv->world; r++) {
		const struct srv_conn *c = srv->seat[r];

		if (!c || !c->left || !c->leave.reason || c->leave.rank >= srv->world)
			continue;
		srv_job_fail(
			srv, EPF_R_BOOT_RANK_LOST, c->leave.rank,
			"rank %u was lost (EPF-%u), says rank %u at %s (node %s), which left because of it",
			c->leave.rank, c->leave.reason, r, c->address, node_of(c));
		return true;
	}
	return false;
}

static void name_left(struct epf_boot_server *srv)
{
	if (name_blamed(srv))
		return;
	for (uint32_t r = 0; r < srv->world; r++)
		if (srv->seat[r] && srv->seat[r]->left) {
			srv_job_fail(
				srv, EPF_R_BOOT_RANK_LEFT, r,
				"rank %u at %s (node %s) has left, others wait for it at exchange %llu",
				r, srv->seat[r]->address, node_of(srv->seat[r]),
				(unsigned long long)srv->round);
			return;
		}
}

static void arrive(struct epf_boot_server *srv, struct srv_conn *c)
{
	uint64_t deadline = epf_boot_deadline(c->timeout_ns);

	c->arrived = true;
	srv->arrived++;
	if (deadline < srv->round_deadline_ns) {
		srv->round_deadline_ns = deadline;
		srv->round_timeout_ns = c->timeout_ns;
	}
	if (srv->left)
		name_left(srv);
	else if (srv->arrived == srv->world)
		complete_round(srv);
}

static enum epf_wire_verdict take_part(struct epf_boot_server *srv, struct srv_conn *c,
				       const struct epf_wire_msg *msg)
{
	struct epf_wire_part part;

	if (epf_wire_get_part(msg, &part) != EPF_WIRE_V_OK || part.total > EPF_BOOT_BLOB_MAX)
		return EPF_WIRE_V_PAYLOAD;
	if (part.round != srv->round || c->arrived || c->receiving)
		return EPF_WIRE_V_STATE;
	if (part.offset != c->blob_got || (c->started && part.total != c->blob_len))
		return EPF_WIRE_V_PAYLOAD;
	if (!c->started) {
		if (!begin(srv, c, EPF_BOOT_GATHER))
			return EPF_WIRE_V_OK;
		if (part.total > EPF_BOOT_GATHER_MAX - srv->gather_bytes) {
			srv_job_fail(
				srv, EPF_R_BOOT_LIMIT, c->rank,
				"rank %u's %llu bytes exceed the limit of %u for all ranks together",
				c->rank, (unsigned long long)part.total, EPF_BOOT_GATHER_MAX);
			return EPF_WIRE_V_OK;
		}
		c->blob = malloc(part.total ? part.total : 1);
		if (!c->blob) {
			srv_job_fail(
				srv, EPF_R_NO_MEMORY, c->rank,
				"the rendezvous at %.64s has no memory for rank %u's %llu bytes",
				srv->where, c->rank, (unsigned long long)part.total);
			return EPF_WIRE_V_OK;
		}
		srv->gather_bytes += part.total;
		c->blob_len = part.total;
		c->started = true;
	}
	memcpy(c->blob + part.offset, part.data, part.bytes);
	c->blob_got += part.bytes;
	if (c->blob_got == c->blob_len)
		arrive(srv, c);
	return EPF_WIRE_V_OK;
}

static enum epf_wire_verdict take_leave(struct epf_boot_server *srv, struct srv_conn *c,
					const struct epf_wire_msg *msg)
{
	if (c->left)
		return EPF_WIRE_V_STATE;
	if (epf_wire_get_leave(msg, &c->leave) != EPF_WIRE_V_OK)
		return EPF_WIRE_V_PAYLOAD;
	c->left = true;
	srv->left++;
	epf_info("rank %u left, %u of %u", c->rank, srv->left, srv->world);
	if (srv->kind)
		name_left(srv);
	return EPF_WIRE_V_OK;
}

static enum epf_wire_verdict job_message(struct epf_boot_server *srv, struct srv_conn *c,
					 const struct epf_wire_msg *msg)
{
	if (msg->head.type == EPF_WIRE_LEAVE)
		return take_leave(srv, c, msg);
	/* What a member had under way when the job failed has no meaning any more. */
	if (srv->failure.reason)
		return EPF_WIRE_V_OK;
	if (c->left)
		return EPF_WIRE_V_STATE;
	if (msg->head.type == EPF_WIRE_PART)
		return take_part(srv, c, msg);
	if (msg->head.type != EPF_WIRE_BARRIER)
		return EPF_WIRE_V_STATE;
	if (epf_wire_get_u64(msg->payload) != srv->round || c->arrived || c->started ||
	    c->receiving)
		return EPF_WIRE_V_STATE;
	if (begin(srv, c, EPF_BOOT_BARRIER))
		arrive(srv, c);
	return EPF_WIRE_V_OK;
}

void srv_job_timeout(struct epf_boot_server *srv)
{
	bool *missing = calloc(srv->world, sizeof(*missing));
	bool *absent = calloc(srv->world, sizeof(*absent));
	char ranks[160] = "some ranks", never[160] = "some", time[32];
	uint32_t unseen = 0, waiting = 0;

	for (uint32_t r = 0; missing && absent && r < srv->world; r++) {
		missing[r] = !srv->seat[r] || !srv->seat[r]->arrived;
		absent[r] = !srv->seat[r];
		unseen += absent[r];
		waiting += missing[r];
	}
	if (missing)
		epf_boot_rank_list(missing, srv->world, ranks, sizeof(ranks));
	if (absent)
		epf_boot_rank_list(absent, srv->world, never, 120);
	free(missing);
	free(absent);
	epf_boot_time_text(srv->round_timeout_ns, time, sizeof(time));
	if (unseen == waiting)
		snprintf(never, sizeof(never), "never connected");
	else
		snprintf(never + strlen(never), sizeof(never) - strlen(never), " never connected");
	srv_job_fail(srv, EPF_R_BOOT_TIMEOUT, EPF_WIRE_SERVER,
		     "%s did not arrive within %s at %.64s (exchange %llu, %s)%s%s", ranks, time,
		     srv->where, (unsigned long long)srv->round, epf_boot_kind_text(srv->kind),
		     unseen ? ": " : "", unseen ? never : "");
}

uint64_t srv_job_notice(struct epf_boot_server *srv)
{
	bool *absent;
	char ranks[160] = "ranks";

	if (!srv->joined || srv->joined == srv->world || srv->failure.reason)
		return UINT64_MAX;
	if (!epf_boot_notice_due(&srv->notice))
		return srv->notice.next_ns;
	absent = calloc(srv->world, sizeof(*absent));
	for (uint32_t r = 0; absent && r < srv->world; r++)
		absent[r] = !srv->seat[r];
	if (absent)
		epf_boot_rank_list(absent, srv->world, ranks, sizeof(ranks));
	free(absent);
	epf_note(
		"job '%s': waiting for %s of %u: start what is missing with EPF_RENDEZVOUS=%s and EPF_WORLD_SIZE=%u",
		srv->job, ranks, srv->world, srv->where, srv->world);
	return srv->notice.next_ns;
}

void srv_job_free(struct epf_boot_server *srv)
{
	drop_result(srv);
	for (uint32_t r = 0; srv->seat && r < srv->world; r++)
		free(srv->seat[r]);
	free(srv->seat);
	srv->seat = NULL;
}

const struct srv_conn_calls srv_job_calls = {
	.join = job_join,
	.message = job_message,
	.pump = job_pump,
	.lost = job_lost,
};
