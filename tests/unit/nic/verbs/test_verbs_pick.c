/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GID the verbs NIC takes, on tables as machines have them, and the address and tokens that peers get.
 */
#include "fabric/nic/verbs/gid.h"
#include "fabric/nic/verbs/verbs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define V1 IBV_GID_TYPE_ROCE_V1
#define V2 IBV_GID_TYPE_ROCE_V2

static struct ibv_gid_entry gid(unsigned port, unsigned index, unsigned type, const char *hex)
{
	struct ibv_gid_entry e = { .port_num = port, .gid_index = index, .gid_type = type };

	for (int i = 0; i < 16; i++) {
		char two[3] = { hex[2 * i], hex[2 * i + 1], 0 };

		e.gid.raw[i] = (uint8_t)strtoul(two, NULL, 16);
	}
	return e;
}

#define LINK_LOCAL "fe80000000000000ba83d2fffe400000"
#define IPV4       "00000000000000000000ffff0a000105"
#define GLOBAL     "20010db8000000000000000000000001"

/* A ConnectX on Ethernet: each address once as v1 and once as v2, link-local first. */
static void test_roce(void **state)
{
	struct ibv_gid_entry t[] = {
		gid(1, 0, V1, LINK_LOCAL), gid(1, 1, V2, LINK_LOCAL), gid(1, 2, V1, IPV4),
		gid(1, 3, V2, IPV4),       gid(1, 4, V1, GLOBAL),     gid(1, 5, V2, GLOBAL),
	};

	assert_int_equal(epf_verbs_pick_gid(t, 6, 1, -1), 3);
	assert_int_equal(epf_verbs_pick_gid(t, 3, 1, -1), 1); /* v2 link-local before v1 routable */
	assert_int_equal(epf_verbs_pick_gid(t, 1, 1, -1), 0);
	assert_int_equal(epf_verbs_pick_gid(t, 6, 1, 2), 2);
	assert_int_equal(epf_verbs_pick_gid(t, 6, 1, 9), -ENOENT);
	assert_int_equal(epf_verbs_pick_gid(t, 6, 2, -1), -ENOENT);
	assert_int_equal(epf_verbs_pick_gid(t, 0, 1, -1), -ENOENT);
	t[0].gid = t[3].gid; /* a routable v1 stands first */
	assert_int_equal(epf_verbs_pick_gid(t, 2, 1, -1), 1);
	/* v1 only: the routable one. */
	t[0].gid = t[1].gid;
	t[1].gid_type = t[3].gid_type = t[5].gid_type = V1;
	assert_int_equal(epf_verbs_pick_gid(t, 6, 1, -1), 2);
}

/* Two ports in one table, an entry without address, and the order of the table not that of the indices. */
static void test_ports(void **state)
{
	struct ibv_gid_entry t[] = {
		gid(2, 5, V2, IPV4),
		gid(1, 7, V2, IPV4),
		gid(1, 6, V2, GLOBAL),
		gid(1, 0, V2, "00000000000000000000000000000000"),
	};

	assert_int_equal(epf_verbs_pick_gid(t, 4, 1, -1), 2);
	assert_int_equal(epf_verbs_pick_gid(t, 4, 2, -1), 0);
	assert_int_equal(epf_verbs_pick_gid(t, 4, 1, 0), -ENOENT);
}

/* A route has 8 bits for the index: an entry that cannot be named is not chosen, however good, nor another in its place. */
static void test_index_limit(void **state)
{
	struct ibv_gid_entry t[] = {
		gid(1, 256, V2, IPV4),
		gid(1, 0x103, V2, IPV4),
		gid(1, 255, V1, LINK_LOCAL),
	};

	assert_int_equal(epf_verbs_pick_gid(t, 3, 1, -1), 2);
	assert_int_equal(epf_verbs_pick_gid(t, 3, 1, 256), -ENOENT);
	assert_int_equal(epf_verbs_pick_gid(t, 2, 1, -1), -ENOENT);
}

static void test_infiniband(void **state)
{
	struct ibv_gid_entry t[] = {
		gid(1, 1, IBV_GID_TYPE_IB, GLOBAL),
		gid(1, 0, IBV_GID_TYPE_IB, LINK_LOCAL),
	};

	assert_int_equal(epf_verbs_pick_gid(t, 2, 1, -1), 1);
}

static void test_address(void **state)
{
	struct epf_verbs_peer in = { .link_layer = IBV_LINK_LAYER_ETHERNET,
				     .mtu = IBV_MTU_1024,
				     .port = 2,
				     .gid_type = V2,
				     .lid = 0x1234 },
			      out;
	uint8_t buf[EPF_VERBS_ADDR_BYTES + 1] = { 0 };
	static const uint8_t head[12] = { 'E', 'P', 'F', 'V', 1, 0, 2, 3, 0x34, 0x12, 2, 2 };

	for (int i = 0; i < 16; i++)
		in.gid.raw[i] = (uint8_t)(i * 7 + 1);
	epf_verbs_addr_encode(&in, buf);
	assert_memory_equal(buf, head, sizeof(head));
	assert_memory_equal(buf + 16, in.gid.raw, 16);
	assert_int_equal(epf_verbs_addr_decode(buf, EPF_VERBS_ADDR_BYTES, &out), 0);
	assert_int_equal(out.lid, 0x1234);
	assert_int_equal(out.port, 2);
	assert_int_equal(out.mtu, IBV_MTU_1024);
	assert_memory_equal(out.gid.raw, in.gid.raw, 16);
	assert_int_equal(epf_verbs_addr_decode(buf, EPF_VERBS_ADDR_BYTES - 1, &out), -EINVAL);
	assert_int_equal(epf_verbs_addr_decode(buf, EPF_VERBS_ADDR_BYTES + 1, &out), -EINVAL);
	assert_int_equal(epf_verbs_addr_decode(buf, 0, &out), -EINVAL);
	for (unsigned bit = 0; bit < EPF_VERBS_ADDR_BYTES * 8; bit++) {
		buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(epf_verbs_addr_decode(buf, EPF_VERBS_ADDR_BYTES, &out), -EINVAL);
		buf[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
}

static void test_tokens(void **state)
{
	assert_true(epf_verbs_token_is_good(epf_verbs_token(1, 0)));
	assert_true(epf_verbs_token_is_good(epf_verbs_token(0xffffff, 0xffffff)));
	assert_false(epf_verbs_token_is_good(0));
	assert_false(epf_verbs_token_is_good(epf_verbs_token(0, 5)));
	assert_false(epf_verbs_token_is_good(epf_verbs_token(1 << 24, 5)));
	assert_false(epf_verbs_token_is_good(1u << 20));
}

int main(void)
{
	const struct CMUnitTest tests[] = {

		cmocka_unit_test(test_roce),        cmocka_unit_test(test_ports),
		cmocka_unit_test(test_index_limit), cmocka_unit_test(test_infiniband),
		cmocka_unit_test(test_address),     cmocka_unit_test(test_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
