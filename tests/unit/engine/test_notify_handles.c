/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notify handles at the sender (fabric/engine/notify_hot.c): a handle stands for one stream, signal and add, also where all of them meet in one hash chain;
 * it is named only after its definition has completed; when a node's handles are used up, signals are messages. On the null NIC.
 */
#include "tests/unit/engine/null_rig.h"

#include "fabric/engine/lane_hot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { SIGNALS = 3, ADDS = 3, FIRST = 2, PEERS = 2 };

/* What the peer engine knows, and what was staged since begin(). */
static struct epf_msg defined[NULL_STREAMS];
static uint32_t seen[NULL_NODES * NULL_LANES];
static unsigned riding, messages, definitions;

static void open_rig(struct null_rig *rig)
{
	memset(rig, 0, sizeof(*rig));
	null_rig_open(rig, false);
	rig->core->group_mask = 0;
	memset(seen, 0, sizeof(seen));
}

static void put_signal(struct null_rig *rig, uint32_t rank, uint32_t signal, uint32_t add)
{
	const struct epf_op op = {
		.op = EPF_OP_PUT_SIGNAL, .rank = rank, .signal = signal, .add = add, .length = 16
	};

	assert_true(epf_ring_room(&rig->rank[0].ring, 1) >= 1);
	epf_ring_push(&rig->rank[0].ring, epf_op_pack_narrow(&op));
	epf_core_step(rig->core);
}

/* Reads what was staged, as the peer engine would: handles must be defined as this signal. */
static void look(struct null_rig *rig, uint32_t rank, uint32_t signal, uint32_t add)
{
	struct epf_core *core = rig->core;

	riding = messages = definitions = 0;
	for (uint32_t l = NULL_LANES; l < core->n_lanes; l++) {
		const struct epf_lane *lane = &core->lanes[l];

		for (; seen[l] != lane->head; seen[l]++) {
			const struct epf_wr *wr = &lane->wrs[seen[l] & lane->mask];
			const struct epf_msg *m = entry_message(wr);

			if (wr->op == EPF_WR_SEND && m->kind == EPF_MSG_NOTIFY) {
				assert_in_range(m->d, 0, NULL_STREAMS - 1);
				assert_int_equal(defined[m->d].kind, 0);
				assert_int_equal(m->a, 0 + 1); /* for people: rank 0 raises it */
				defined[m->d] = *m;
				definitions++;
			} else if (wr->op == EPF_WR_SEND && m->kind == EPF_MSG_SIGNAL) {
				assert_int_equal(m->signal, signal);
				assert_int_equal(m->value, add);
				messages++;
			} else if (wr->op == EPF_WR_WRITE_IMM) {
				const struct epf_msg *d = &defined[wr->imm >> 16 & 0x1fff];
				uint32_t stream = core->rings[0]->streams[rank];

				assert_int_equal(wr->imm >> 29, EPF_IMM_NOTIFY);
				assert_int_equal(d->rank, rank);
				assert_int_equal(d->signal, signal);
				assert_int_equal(d->value, add);
				assert_int_equal(d->c, core->streams[stream].handle);
				riding++;
			}
		}
	}
}

static void each_handle_has_one_meaning(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	memset(defined, 0, sizeof(defined));
	for (unsigned round = 0; round < 3; round++)
		for (uint32_t i = 0; i < PEERS * SIGNALS * ADDS; i++) {
			uint32_t rank = FIRST + i % PEERS, signal = i / PEERS % SIGNALS;
			uint32_t add = 1 + i / PEERS / SIGNALS;

			put_signal(&rig, rank, signal, add);
			for (unsigned s = 0; s < 4; s++)
				epf_core_step(rig.core);
			look(&rig, rank, signal, add);
			assert_int_equal(definitions, round == 0);
			assert_int_equal(messages, round == 0);
			assert_int_equal(riding, round != 0);
		}
	null_rig_close(&rig);
}

static void a_handle_is_named_when_it_is_known(void **state)
{
	struct null_rig rig;

	open_rig(&rig);
	memset(defined, 0, sizeof(defined));
	null_rig_hold(&rig, true);
	for (unsigned i = 0; i < 3; i++) {
		put_signal(&rig, FIRST, 1, 1);
		look(&rig, FIRST, 1, 1);
		assert_int_equal(definitions, i == 0);
		assert_int_equal(messages, 1);
		assert_int_equal(riding, 0);
	}
	null_rig_hold(&rig, false);
	for (unsigned s = 0; s < 4; s++)
		epf_core_step(rig.core);
	put_signal(&rig, FIRST, 1, 1);
	look(&rig, FIRST, 1, 1);
	assert_int_equal(riding, 1);
	assert_int_equal(messages, 0);
	null_rig_close(&rig);
}

/* The peer accepts so many; the last one is used, and what comes behind it is a message every time. */
static void handles_run_out(void **state)
{
	enum { MOST = 5 };

	struct null_rig rig;

	open_rig(&rig);
	memset(defined, 0, sizeof(defined));
	rig.core->nodes[1].max_handles = MOST;
	for (unsigned round = 0; round < 2; round++)
		for (uint32_t signal = 0; signal < MOST + 2; signal++) {
			put_signal(&rig, FIRST, signal, 1);
			for (unsigned s = 0; s < 4; s++)
				epf_core_step(rig.core);
			look(&rig, FIRST, signal, 1);
			assert_int_equal(definitions, round == 0 && signal < MOST);
			assert_int_equal(riding, round == 1 && signal < MOST);
			assert_int_equal(messages, riding == 0);
		}
	assert_int_equal(rig.core->nodes[1].n_notifies, MOST);
	null_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_handle_has_one_meaning),
		cmocka_unit_test(a_handle_is_named_when_it_is_known),
		cmocka_unit_test(handles_run_out),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
