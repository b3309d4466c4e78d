/* SPDX-License-Identifier: Apache-2.0 */
/* What arrives on the stream of a connection. With ep->serving: on the endpoint's thread, or on one that polls. */
#include "fabric/p2p/engine.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* The peer gives this connection up and says why, in a text that is not trusted. */
static void end_because(struct conn *c, const uint8_t *text, uint32_t bytes)
{
	char why[sizeof(c->why)];

	memcpy(why, text, bytes);
	why[bytes] = '\0';
	for (char *p = why; *p; p++)
		if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
			*p = '?';
	epf_p2p_conn_end(c, CONN_LOST, why);
}

static int handle(struct conn *c, const struct received *m)
{
	if (m->type == MSG_IMPORT && m->bytes == sizeof(struct msg_import)) {
		struct msg_import q;

		memcpy(&q, m->data, sizeof(q));
		epf_p2p_answer_import(c, &q);
		return 0;
	}
	if (m->type == MSG_IMPORTED && m->bytes == sizeof(struct msg_imported)) {
		struct msg_imported a;

		memcpy(&a, m->data, sizeof(a));
		epf_p2p_take_answer(c, &a, m->fds[0]);
		return 0;
	}
	if (m->type == MSG_WAKE && m->bytes == 0)
		return 0;
	if (m->type == MSG_NOTE && c->engine)
		return epf_p2p_note_arrived(c, m->data, m->bytes);
	if (m->type == MSG_BOOT && c->engine) {
		epf_p2p_engine_boot(c, m->data, m->bytes);
		return 0;
	}
	if (m->type == MSG_STAGE && c->pack && m->bytes == sizeof(struct msg_stage)) {
		struct msg_stage s;

		memcpy(&s, m->data, sizeof(s));
		return epf_p2p_pack_staged(c, &s);
	}
	if (m->type == MSG_CHUNK && c->pack)
		return epf_p2p_pack_asked(c, m->data, m->bytes);
	if (m->type == MSG_CHUNK_DONE && c->pack && m->bytes == sizeof(struct msg_chunk_done)) {
		struct msg_chunk_done d;

		memcpy(&d, m->data, sizeof(d));
		return epf_p2p_pack_answered(c, &d);
	}
	if ((m->type == MSG_FORGET || m->type == MSG_FORGOTTEN) && c->reuses_numbers && c->engine &&
	    m->bytes == sizeof(struct msg_number)) {
		struct msg_number n;

		memcpy(&n, m->data, sizeof(n));
		return epf_p2p_number_arrived(c, m->type, &n);
	}
	if (m->type == MSG_RELEASE && c->reuses_numbers && c->engine &&
	    m->bytes == sizeof(struct msg_release)) {
		struct msg_release r;

		memcpy(&r, m->data, sizeof(r));
		return epf_p2p_release_arrived(c, &r);
	}
	if (m->type == MSG_BYE && m->bytes == 0)
		return -EPIPE;
	if (m->type == MSG_BYE && m->bytes < sizeof(c->why)) {
		end_because(c, m->data, m->bytes);
		return -EPIPE;
	}
	return -EBADMSG;
}

int epf_p2p_control(struct conn *c)
{
	struct received m;
	bool said_bye = false;
	int rc = 0;

	while (!rc && (rc = epf_p2p_receive(&c->stream, &m)) == 1) {
		rc = handle(c, &m);
		said_bye = rc == -EPIPE;
		for (unsigned i = 0; i < STREAM_FDS; i++)
			if (m.fds[i] >= 0 && !(m.type == MSG_IMPORTED && i == 0))
				close(m.fds[i]);
	}
	if (rc >= 0)
		return 0;
	if (said_bye)
		epf_p2p_conn_end(c, CONN_CLOSED, "it has disconnected");
	else if (rc == -EPIPE || rc == -ECONNRESET)
		epf_p2p_conn_end(c, CONN_LOST, "its process or its machine has gone");
	else if (rc == -ENOBUFS)
		epf_p2p_conn_end(c, CONN_LOST, "this program takes none of its notifications");
	else
		epf_p2p_conn_end(c, CONN_LOST, "it sent something that is no message");
	return rc;
}
