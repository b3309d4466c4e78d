/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels on the TCP NIC's connections: layouts, and the handshake without a socket (greet.h), with whom it must not succeed.
 */
#include "tests/unit/nic/tcp/tcp_kit.h"

static const uint8_t dialer_id[EPF_TCP_ID] = { 1 }, acceptor_id[EPF_TCP_ID] = { 2 };

static void load(struct epf_auth *auth, const char *secret)
{
	assert_int_equal(epf_auth_load(secret, strlen(secret), NULL, NULL, NULL, auth), 0);
}

/* What is in `from`'s out becomes `to`'s in. Returns the step's result. */
static int pass(struct epf_tcp_greet *from, struct epf_tcp_greet *to)
{
	assert_int_equal(from->out_len - from->sent, to->want);
	memcpy(to->in, from->out + from->sent, to->want);
	from->sent = from->out_len;
	return epf_tcp_greet_step(to);
}

struct pair {
	struct epf_auth auth[2];
	struct epf_tcp_greet d, a;
};

static void begin(struct pair *p, const char *secret_d, const char *secret_a)
{
	struct epf_tcp_claim claim = { .to_token = 77ull << 32 | 5, .from_token = 88ull << 32 | 6 };

	load(&p->auth[0], secret_d);
	load(&p->auth[1], secret_a);
	memcpy(claim.to, acceptor_id, EPF_TCP_ID);
	memcpy(claim.from, dialer_id, EPF_TCP_ID);
	epf_tcp_greet_dial(&p->d, &p->auth[0], dialer_id, &claim, 0);
	epf_tcp_greet_accept(&p->a, &p->auth[1], acceptor_id, 0);
}

#define SECRET "a secret of thirty characters."
#define OTHER  "another one of thirty, no less"

static void both_ends_agree(void **state)
{
	struct pair p;

	begin(&p, SECRET, SECRET);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	assert_int_equal(p.a.state, EPF_TCP_GREET_PROOF);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(p.a.state, EPF_TCP_GREET_DONE);
	assert_int_equal(pass(&p.a, &p.d), 0);
	assert_int_equal(p.d.state, EPF_TCP_GREET_DONE);
	assert_true(p.a.claim.to_token == (77ull << 32 | 5));
	assert_true(p.a.claim.from_token == (88ull << 32 | 6));
	assert_memory_equal(p.a.claim.from, dialer_id, EPF_TCP_ID);
}

static void another_secret_is_refused(void **state)
{
	struct pair p;

	begin(&p, OTHER, SECRET);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	assert_int_equal(pass(&p.d, &p.a), -EACCES);
	assert_int_equal(p.a.out_len - p.a.sent, 0); /* nothing to guess on */
}

/* The end that accepts proves itself, too. */
static void an_impostor_cannot_accept(void **state)
{
	struct pair p;

	begin(&p, SECRET, OTHER);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	memset(p.d.in, 0, EPF_TCP_PROOF);
	assert_int_equal(epf_tcp_greet_step(&p.d), -EACCES);
	/* Nor with the proof that it has just seen. */
	begin(&p, SECRET, OTHER);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	memcpy(p.d.in, p.d.out + EPF_TCP_CLAIM_BYTES, EPF_TCP_PROOF);
	assert_int_equal(epf_tcp_greet_step(&p.d), -EACCES);
}

/* Everything that an honest dialer said once, said again on another connection. */
static void a_recording_is_refused(void **state)
{
	uint8_t hello[EPF_TCP_HELLO_BYTES], proof[EPF_TCP_PROOF_BYTES];
	struct pair p;

	begin(&p, SECRET, SECRET);
	memcpy(hello, p.d.out, sizeof(hello));
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	memcpy(proof, p.d.out, sizeof(proof));
	assert_int_equal(pass(&p.d, &p.a), 0);
	epf_tcp_greet_accept(&p.a, &p.auth[1], acceptor_id, 0);
	memcpy(p.a.in, hello, sizeof(hello));
	assert_int_equal(epf_tcp_greet_step(&p.a), 0);
	memcpy(p.a.in, proof, sizeof(proof));
	assert_int_equal(epf_tcp_greet_step(&p.a), -EACCES);
}

/* Each byte of the proof's message counts, and so does each of the hellos. */
static void changed_bytes_are_refused(void **state)
{
	for (unsigned i = 0; i < EPF_TCP_PROOF_BYTES; i++) {
		struct pair p;

		begin(&p, SECRET, SECRET);
		assert_int_equal(pass(&p.d, &p.a), 0);
		assert_int_equal(pass(&p.a, &p.d), 0);
		p.d.out[i] ^= 1;
		assert_int_equal(pass(&p.d, &p.a), -EACCES);
	}
	for (unsigned i = 0; i < EPF_TCP_HELLO_BYTES; i++) {
		struct pair p;
		int rc;

		begin(&p, SECRET, SECRET);
		p.d.out[i] ^= 1;
		rc = pass(&p.d, &p.a);
		assert_int_equal(rc, i < 8 && i != 6 ? -EPROTO : 0); /* 6: the other mode */
		if (rc)
			continue;
		assert_int_equal(pass(&p.a, &p.d), 0);
		assert_int_equal(pass(&p.d, &p.a), -EACCES);
	}
}

/* One end encrypts and the other does not: both refuse, and know why. */
static void another_mode_is_refused(void **state)
{
	static const struct epf_tcp_claim claim = { .from_token = 5 };
	struct pair p;

	begin(&p, SECRET, SECRET);
	epf_tcp_greet_accept(&p.a, &p.auth[1], acceptor_id, EPF_TCP_MODE_SEALED);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), -EPROTOTYPE);
	/* An end that goes on all the same, with a good proof. */
	begin(&p, SECRET, SECRET);
	epf_tcp_greet_dial(&p.d, &p.auth[0], dialer_id, &claim, EPF_TCP_MODE_SEALED);
	memcpy(p.d.claim.to, acceptor_id, EPF_TCP_ID);
	assert_int_equal(pass(&p.d, &p.a), 0);
	p.d.mode = EPF_TCP_MODE_PLAIN;
	assert_int_equal(pass(&p.a, &p.d), 0);
	assert_int_equal(pass(&p.d, &p.a), -EPROTOTYPE);
}

/* The keys of both ends fit, differ by direction, and by connection. */
static void keys_are_of_one_connection_and_direction(void **state)
{
	struct epf_tcp_seal_keys d, a, other;
	struct pair p;

	for (int i = 0; i < 2; i++) {
		begin(&p, SECRET, SECRET);
		assert_int_equal(pass(&p.d, &p.a), 0);
		assert_int_equal(pass(&p.a, &p.d), 0);
		assert_int_equal(pass(&p.d, &p.a), 0);
		assert_int_equal(pass(&p.a, &p.d), 0);
		epf_tcp_greet_keys(&p.d, true, &d);
		epf_tcp_greet_keys(&p.a, false, &a);
		assert_memory_equal(d.send, a.receive, EPF_TCP_SEAL_KEY);
		assert_memory_equal(d.receive, a.send, EPF_TCP_SEAL_KEY);
		assert_memory_not_equal(d.send, d.receive, EPF_TCP_SEAL_KEY);
		if (i)
			assert_memory_not_equal(d.send, other.send, EPF_TCP_SEAL_KEY);
		other = d;
	}
}

/* A proof for one NIC is worth nothing at another of the same job. */
static void another_nic_is_refused(void **state)
{
	static const uint8_t third[EPF_TCP_ID] = { 3 };
	struct pair p;

	begin(&p, SECRET, SECRET);
	epf_tcp_greet_accept(&p.a, &p.auth[1], third, 0);
	assert_int_equal(pass(&p.d, &p.a), 0);
	assert_int_equal(pass(&p.a, &p.d), 0);
	assert_int_equal(pass(&p.d, &p.a), -EACCES);
}

static void trains_are_read_as_written(void **state)
{
	struct epf_tcp_desc d[3] = {
		{ .raddr = 0x1122334455667788,
		  .len = 7,
		  .rkey = 9,
		  .imm = 0,
		  .kind = EPF_TCP_WRITE },
		{ .len = 128, .kind = EPF_TCP_SEND },
		{ .raddr = 1, .len = 1 << 20, .rkey = 3, .kind = EPF_TCP_READ }
	};
	struct epf_tcp_head h = { .count = 3, .ack = 0xfffffffe, .bytes = 135 }, h2;
	uint8_t buf[EPF_TCP_FRONT_BYTES];
	struct epf_tcp_desc got[EPF_TCP_TRAIN];

	epf_tcp_head_encode(&h, buf);
	for (int i = 0; i < 3; i++)
		epf_tcp_desc_encode(&d[i], buf + EPF_TCP_HEAD_BYTES + i * EPF_TCP_DESC_BYTES);
	assert_int_equal(epf_tcp_head_decode(buf, &h2), 0);
	assert_memory_equal(&h, &h2, sizeof(h));
	assert_int_equal(epf_tcp_descs_decode(&h2, buf + EPF_TCP_HEAD_BYTES, got), 0);
	for (int i = 0; i < 3; i++)
		assert_true(got[i].raddr == d[i].raddr && got[i].len == d[i].len &&
			    got[i].rkey == d[i].rkey && got[i].kind == d[i].kind);
	h2.bytes++;
	assert_int_equal(epf_tcp_descs_decode(&h2, buf + EPF_TCP_HEAD_BYTES, got), -EPROTO);
}

static int decodes(const struct epf_tcp_desc *d)
{
	struct epf_tcp_head h = { .count = 1, .bytes = epf_tcp_payload(d) };
	uint8_t buf[EPF_TCP_DESC_BYTES];
	struct epf_tcp_desc got[EPF_TCP_TRAIN];

	epf_tcp_desc_encode(d, buf);
	return epf_tcp_descs_decode(&h, buf, got) == 0;
}

static void impossible_descriptors_are_refused(void **state)
{
	struct epf_tcp_desc d = { .kind = EPF_TCP_WRITE, .len = EPF_TCP_MSG_MAX };
	struct epf_tcp_head h = { .count = EPF_TCP_TRAIN + 1 };
	uint8_t buf[EPF_TCP_HEAD_BYTES];

	assert_true(decodes(&d));
	d.len++;
	assert_false(decodes(&d));
	d = (struct epf_tcp_desc){ .kind = EPF_TCP_SEND, .len = EPF_NIC_MSG_BYTES + 1 };
	assert_false(decodes(&d));
	for (unsigned kind = 0; kind < 256; kind++) {
		d = (struct epf_tcp_desc){ .kind = (uint8_t)kind, .len = 1 };
		assert_int_equal(decodes(&d), kind >= EPF_TCP_WRITE && kind <= EPF_TCP_BYTES);
	}
	d = (struct epf_tcp_desc){ .kind = EPF_TCP_NAK, .status = EPF_S_OK };
	assert_false(decodes(&d));
	d.status = EPF_S_REMOTE_ACCESS;
	assert_true(decodes(&d));
	epf_tcp_head_encode(&h, buf);
	assert_int_equal(epf_tcp_head_decode(buf, &h), -EPROTO);
}

/* An address says whose it is: the first bytes are no other NIC's. */
static void addresses_are_of_this_kind(void **state)
{
	static const char *const others[] = { "EPFA", "EPFV", "EPFO", "EPFR" };
	struct epf_tcp_place place = { .count = 1 }, got;
	uint8_t addr[EPF_NIC_ADDR_BYTES];
	int n;

	place.addrs[0].sa.sa_family = AF_INET;
	n = epf_tcp_addr_encode(&place, addr, sizeof(addr));
	assert_true(n > 0);
	assert_int_equal(epf_tcp_addr_decode(addr, (size_t)n, &got), 0);
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		assert_memory_not_equal(addr, others[i], 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(both_ends_agree),
		cmocka_unit_test(another_secret_is_refused),
		cmocka_unit_test(an_impostor_cannot_accept),
		cmocka_unit_test(a_recording_is_refused),
		cmocka_unit_test(changed_bytes_are_refused),
		cmocka_unit_test(another_nic_is_refused),
		cmocka_unit_test(another_mode_is_refused),
		cmocka_unit_test(keys_are_of_one_connection_and_direction),
		cmocka_unit_test(trains_are_read_as_written),
		cmocka_unit_test(impossible_descriptors_are_refused),
		cmocka_unit_test(addresses_are_of_this_kind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
