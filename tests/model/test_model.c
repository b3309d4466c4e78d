/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The orderings of rings, completion counters, signals, wakeups, the peers page, the mail words of the emulated NIC, the owner of a core and calls into one, with the labels of
 * queues/README.md: each program is right in every execution of a weakly ordered machine, and wrong without any one of them.
 */
#include "tests/model/model.h"

#include "fabric/engine/owner.h"
#include "fabric/nic/emu/wire.h"
#include "queues/epf_peers.h"
#include "queues/epf_ring.h"
#include "queues/epf_signal.h"
#include "queues/epf_wakeup.h"

#include <stdio.h>

enum { LOG2 = 0, SLOTS = 1 << LOG2, COMMANDS = 3 };

static struct {
	struct epf_ring_shm shm;
	struct epf_cmd slots[SLOTS];
	uint64_t payload[SLOTS], result[COMMANDS];
	struct epf_ring_producer producer;
	struct epf_ring_consumer consumer;
} ring;

EPF_STATIC_ASSERT(offsetof(__typeof__(ring), slots) == sizeof(struct epf_ring_shm),
		  "slots follow the header");

static struct epf_cmd command(uint64_t i)
{
	return (struct epf_cmd){ .lo = (i + 1) << 8, .hi = (i + 1) << 16 };
}

static void ring_begin(void)
{
	epf_ring_format(&ring.shm, LOG2, 0, 0);
	epf_ring_reset(&ring.shm, 0);
	epf_ring_producer_init(&ring.producer, &ring.shm, 0);
	epf_ring_consumer_init(&ring.consumer, &ring.shm, LOG2, 0);
}

/* A place of the payload is written again when the slot of its command is free again. */
static void ring_push(void)
{
	for (uint64_t i = 0; i < COMMANDS; i++) {
		while (epf_ring_room(&ring.producer, 1) < 1)
			model_spin();
		MODEL_WRITE(&ring.payload[i % SLOTS], 100 + i);
		MODEL_ASSERT(epf_ring_push(&ring.producer, command(i)));
	}
}

static void ring_take(void)
{
	for (uint64_t i = 0; i < COMMANDS; i++) {
		struct epf_cmd got;

		while (!epf_ring_peek(&ring.consumer, ring.consumer.tail, &got))
			model_spin();
		MODEL_ASSERT(got.lo >> 8 == i + 1 && got.hi >> 16 == i + 1);
		MODEL_ASSERT(MODEL_READ(&ring.payload[i % SLOTS]) == 100 + i);
		ring.consumer.tail++;
		epf_ring_release(&ring.consumer);
	}
}

static const struct model_program ring_program = { "ring", ring_begin, { ring_push, ring_take },
						   NULL,   &ring,      sizeof(ring) };

static const struct model_order ring_orders[] = {
	{ "R1", "epf_ring.h", "store", "&slot->", NULL },
	{ "A1", "epf_ring.h", "load", "&slot->", NULL },
	{ "R2", "epf_ring.h", "store", "&c->shm->dequeued", NULL },
	{ "A2", "epf_ring.h", "load", "&p->shm->dequeued", NULL },
};

/* ---- what a GET brought ---- */

static void get_push(void)
{
	MODEL_ASSERT(epf_ring_push(&ring.producer, command(0)));
	while (epf_ring_retired(&ring.producer) != 1)
		model_spin();
	MODEL_ASSERT(MODEL_READ(&ring.result[0]) == 7);
	MODEL_ASSERT(EPF_LOAD_RELAXED(&ring.shm.done.failed) == 1);
}

/* The engine's part: fabric/engine/lane_hot.h stores `failed` and `retired` so. */
static void get_serve(void)
{
	struct epf_cmd got;

	while (!epf_ring_peek(&ring.consumer, ring.consumer.tail, &got))
		model_spin();
	MODEL_WRITE(&ring.result[0], 7);
	EPF_STORE_RELAXED(&ring.shm.done.failed, 1u);
	EPF_STORE_RELEASE(&ring.shm.done.retired, 1u);
}

static const struct model_program get_program = { "completion", ring_begin, { get_push, get_serve },
						  NULL,         &ring,      sizeof(ring) };

static const struct model_order get_orders[] = {
	{ "R3", "test_model.c", "store", "&ring.shm.done.retired", NULL },
	{ "A3", "epf_ring.h", "load", "&p->shm->done.retired", NULL },
	{ "R1", "epf_ring.h", "store", "&slot->", "nothing is covered by the command here" },
	{ "A1", "epf_ring.h", "load", "&slot->", "nothing is covered by the command here" },
};

/* ---- signals: two engines add, one rank waits ---- */

static struct {
	struct epf_signal signal;
	uint64_t data[2];
} covered;

static void nothing(void)
{
}

static void add_first(void)
{
	MODEL_WRITE(&covered.data[0], 5);
	epf_signal_add(&covered.signal, 1);
}

static void add_second(void)
{
	MODEL_WRITE(&covered.data[1], 6);
	epf_signal_add(&covered.signal, 1);
}

static void wait_for_both(void)
{
	while (epf_signal_read(&covered.signal) != 2)
		model_spin();
	MODEL_ASSERT(MODEL_READ(&covered.data[0]) == 5);
	MODEL_ASSERT(MODEL_READ(&covered.data[1]) == 6);
}

static const struct model_program signal_program = {
	"signal", nothing, { add_first, add_second, wait_for_both }, NULL, &covered, sizeof(covered)
};

static const struct model_order signal_orders[] = {
	{ "R4", "epf_signal.h", "add", "&s->value", NULL },
	{ "A4", "epf_signal.h", "load", "&s->value", NULL },
};

/* ---- wakeups: nobody sleeps while there is work ---- */

static struct {
	struct epf_wakeup wakeup;
	uint64_t work, data;
} bed;

static void ring_bell(void)
{
	if (epf_wakeup_is_needed(&bed.wakeup))
		epf_wakeup_disarm(&bed.wakeup); /* and a futex call: epf_wakeup_wake() */
}

static void give_work(void)
{
	MODEL_WRITE(&bed.data, 9);
	EPF_STORE_RELEASE(&bed.work, 1u);
	ring_bell();
}

static void sleep_alone(void)
{
	while (!EPF_LOAD_ACQUIRE(&bed.work)) {
		epf_wakeup_arm(&bed.wakeup);
		if (!EPF_LOAD_ACQUIRE(&bed.work))
			model_sleep_while(&bed.wakeup.sleeping);
		epf_wakeup_disarm(&bed.wakeup);
	}
	MODEL_ASSERT(MODEL_READ(&bed.data) == 9);
}

static const struct model_program sleep_program = { "wakeup", nothing, { give_work, sleep_alone },
						    NULL,     &bed,    sizeof(bed) };

static const struct model_order sleep_orders[] = {
	{ "B1 and B2", "epf_wakeup.h", "fence", "", NULL },
	{ "B1's store", "epf_wakeup.h", "store", "&wakeup->sleeping",
	  "the fence behind it orders it" },
	{ "R of work", "test_model.c", "store", "&bed.work", NULL },
	{ "A of work", "test_model.c", "load", "&bed.work", NULL },
};

static void sleep_joined(void)
{
	while (!EPF_LOAD_ACQUIRE(&bed.work)) {
		uint32_t ticket = epf_wakeup_join(&bed.wakeup, EPF_WAKE_ON_ANY, 0, 0);

		if (!EPF_LOAD_ACQUIRE(&bed.work) &&
		    EPF_LOAD_RELAXED(&bed.wakeup.sleeping) == ticket)
			model_sleep_while(&bed.wakeup.sleeping);
		epf_wakeup_leave(&bed.wakeup, ticket);
	}
}

static void give_work_to_two(void)
{
	EPF_STORE_RELEASE(&bed.work, 1u);
	ring_bell();
}

static const struct model_program joined_program = {
	"wakeup of two", nothing, { give_work_to_two, sleep_joined }, NULL, &bed, sizeof(bed)
};

static const struct model_order joined_orders[] = {
	{ "B1 and B2", "epf_wakeup.h", "fence", "", NULL },
	{ "B1's exchange", "epf_wakeup.h", "exchange", "&wakeup->sleeping",
	  "the fence behind it orders it" },
	{ "waiters", "epf_wakeup.h", "add", "&wakeup->waiters",
	  "one sleeper has nobody to hand a condition to" },
	{ "R of work", "test_model.c", "store", "&bed.work",
	  "nothing is covered by the work here" },
	{ "A of work", "test_model.c", "load", "&bed.work", "nothing is covered by the work here" },
};

/* ---- mail words of the emulated NIC: what was marked is found ---- */

static struct {
	struct epf_emu_segment segment;
	uint64_t inbox[2], packet[2];
} mail;

/* As fabric/nic/emu/tx_hot.c: a chain grows by a compare-and-swap, and who found it empty marks the lane. */
static void send_mail(unsigned sender, unsigned lane)
{
	uint64_t old = EPF_LOAD_RELAXED(&mail.inbox[lane]);

	MODEL_WRITE(&mail.packet[sender], 3);
	while (!__atomic_compare_exchange_n(&mail.inbox[lane], &old, old | 1u << sender, 0,
					    __ATOMIC_RELEASE, __ATOMIC_RELAXED))
		;
	if (!old)
		epf_emu_mark(&mail.segment, lane);
}

static void send_to_first(void)
{
	send_mail(0, 0);
}

static void send_to_first_too(void)
{
	send_mail(1, 0);
}

static void send_to_second(void)
{
	send_mail(1, 1);
}

/* As fabric/nic/emu/reap_hot.c: the summary, then the word, then the inboxes. */
static void take_mail(void)
{
	uint64_t got = 0;

	while (got != 3) {
		uint64_t lanes = 0, taken;

		if (__atomic_load_n(&mail.segment.summary, __ATOMIC_RELAXED) &&
		    __atomic_exchange_n(&mail.segment.summary, 0u, __ATOMIC_SEQ_CST))
			lanes = __atomic_exchange_n(&mail.segment.mail[0], 0u, __ATOMIC_SEQ_CST);
		for (unsigned lane = 0; lane < 2; lane++) {
			if (!(lanes >> lane & 1))
				continue;
			taken = __atomic_exchange_n(&mail.inbox[lane], 0u, __ATOMIC_ACQ_REL);
			for (unsigned sender = 0; sender < 2; sender++)
				if (taken >> sender & 1)
					MODEL_ASSERT(MODEL_READ(&mail.packet[sender]) == 3);
			got |= taken;
		}
		if (!lanes && got != 3)
			model_spin();
	}
}

static const struct model_program mail_program = {
	"mail of two lanes", nothing, { send_to_first, send_to_second, take_mail }, NULL, &mail,
	sizeof(mail)
};

#define SEQUENCE "sequential consistency of the summary orders it too"

static const struct model_order mail_orders[] = {
	{ "M2, the sender's", "wire.h", "or", "&seg->mail", NULL },
	{ "M2, the sender's", "wire.h", "load", "&seg->summary", NULL },
	{ "M2, the owner's", "test_model.c", "exchange", "&mail.segment.", NULL },
	{ "M2, marking", "wire.h", "or", "&seg->mail", SEQUENCE },
	{ "M2, looking", "wire.h", "load", "&seg->summary",
	  "the mark has acquired what the owner did before it took the word" },
	{ "M2, the bit", "wire.h", "or", "&seg->summary",
	  "a change finds the newest value of a word that only changes write" },
	{ "M1, release", "test_model.c", "compare", "&mail.inbox",
	  "the mark covers a chain of one" },
	{ "M1, acquire", "test_model.c", "exchange", "&mail.inbox",
	  "the mark covers a chain of one" },
};

static const struct model_program chain_program = { "mail of two senders",
						    nothing,
						    { send_to_first, send_to_first_too, take_mail },
						    NULL,
						    &mail,
						    sizeof(mail) };

static const struct model_order chain_orders[] = {
	{ "M1, release", "test_model.c", "compare", "&mail.inbox", NULL },
	{ "M1, acquire", "test_model.c", "exchange", "&mail.inbox", NULL },
	{ "M2, the sender's", "wire.h", "or", "&seg->mail", NULL },
	{ "M2, the sender's", "wire.h", "load", "&seg->summary", NULL },
	{ "M2, the owner's", "test_model.c", "exchange", "&mail.segment.", NULL },
	{ "M2, the bit", "wire.h", "or", "&seg->summary",
	  "a change finds the newest value of a word that only changes write" },
};

/* ---- the peers page: who sees that a rank is down sees why ---- */

static struct {
	struct epf_peers_shm shm;
	struct epf_peer_word words[1];
	struct epf_peer_detail details[1];
} page;

static void page_begin(void)
{
	epf_peers_format(&page.shm, 1);
}

static void lose_rank(void)
{
	epf_peers_set(&page.shm, 0, EPF_PEER_DOWN, 5, 2);
}

static void see_state(void)
{
	while (EPF_LOAD_ACQUIRE(&page.shm.peers[0].state) != EPF_PEER_DOWN)
		model_spin();
	MODEL_ASSERT(EPF_LOAD_RELAXED(&page.shm.peers[0].cause) == 5);
	MODEL_ASSERT(EPF_LOAD_RELAXED(&page.shm.peers[0].epoch) == 2);
}

static void see_changes(void)
{
	while (EPF_LOAD_ACQUIRE(&page.shm.changes) != 1)
		model_spin();
	MODEL_ASSERT(EPF_LOAD_RELAXED(&page.shm.peers[0].state) == EPF_PEER_DOWN);
}

static void see_losses(void)
{
	while (EPF_LOAD_ACQUIRE(&page.shm.lost) != 1)
		model_spin();
	MODEL_ASSERT(EPF_LOAD_RELAXED(&page.shm.peers[0].state) == EPF_PEER_DOWN);
}

static const struct model_program state_program = {
	"a rank that is down", page_begin, { lose_rank, see_state }, NULL, &page, sizeof(page)
};

static const struct model_order state_orders[] = {
	{ "P1, state", "epf_peers.h", "store", "&w->state", NULL },
	{ "P2, state", "test_model.c", "load", "&page.shm.peers[0].state", NULL },
	{ "P1, lost", "epf_peers.h", "store", "&shm->lost", "nobody looks at it here" },
	{ "P1, changes", "epf_peers.h", "store", "&shm->changes", "nobody looks at it here" },
};

static const struct model_program changes_program = {
	"changes of the page", page_begin, { lose_rank, see_changes, see_losses }, NULL, &page,
	sizeof(page)
};

static const struct model_order changes_orders[] = {
	{ "P1, changes", "epf_peers.h", "store", "&shm->changes", NULL },
	{ "P2, changes", "test_model.c", "load", "&page.shm.changes", NULL },
	{ "P1, lost", "epf_peers.h", "store", "&shm->lost", NULL },
	{ "P2, lost", "test_model.c", "load", "&page.shm.lost", NULL },
	{ "P1, state", "epf_peers.h", "store", "&w->state", "nobody looks at the cause here" },
};

/* ---- who steps a core: its thread, or one that waits (fabric/engine/drive.c) ---- */

static struct {
	struct epf_wakeup wakeup, recall;
	uint32_t owner, work, rung, handled;
	uint64_t core; /* everything that the owner alone touches */
} seat;

static void step_core(uint32_t handled_by)
{
	MODEL_WRITE(&seat.core, MODEL_READ(&seat.core) + 1);
	if (EPF_LOAD_RELAXED(&seat.work))
		EPF_STORE_RELAXED(&seat.handled, handled_by);
}

/* Gives the core away and sleeps, until somebody rings. */
static void sleep_as_thread(void)
{
	step_core(1);
	epf_wakeup_arm(&seat.wakeup);
	step_core(1);
	epf_owner_give(&seat.owner, EPF_OWNER_NOBODY);
}

static void drive_and_leave(void)
{
	if (!epf_owner_take(&seat.owner, EPF_OWNER_NOBODY, EPF_OWNER_STEP))
		return;
	epf_wakeup_drive(&seat.wakeup);
	step_core(2);
	epf_wakeup_arm(&seat.wakeup);
	step_core(2);
	epf_owner_give(&seat.owner, EPF_OWNER_NOBODY);
}

static void give_to_core(void)
{
	EPF_STORE_RELAXED(&seat.work, 1u);
	if (epf_wakeup_is_needed(&seat.wakeup))
		EPF_STORE_RELAXED(&seat.rung, 1u);
}

static void nothing_is_forgotten(void)
{
	MODEL_ASSERT(seat.handled || seat.rung);
}

static const struct model_program drive_program = {
	"a core driven by a waiter", nothing, { sleep_as_thread, drive_and_leave, give_to_core },
	nothing_is_forgotten,        &seat,   sizeof(seat)
};

static const struct model_order drive_orders[] = {
	{ "O1", "owner.h", "store", "owner", NULL },
	{ "O2", "owner.h", "compare", "owner", NULL },
	{ "B1 and B2", "epf_wakeup.h", "fence", "", NULL },
	{ "B1's store", "epf_wakeup.h", "store", "&wakeup->sleeping",
	  "the fence behind it orders it" },
};

/* The thread wants the core back from a waiter in a step. */
static void take_back(void)
{
	bool has = false;

	while (!has) {
		epf_wakeup_arm(&seat.recall);
		has = epf_owner_is_thread(&seat.owner) ||
		      epf_owner_take(&seat.owner, EPF_OWNER_NOBODY, EPF_OWNER_THREAD);
		if (!has)
			model_sleep_while(&seat.recall.sleeping);
	}
	MODEL_WRITE(&seat.core, MODEL_READ(&seat.core) + 1);
}

static void recall_bell(void)
{
	if (epf_wakeup_is_needed(&seat.recall))
		epf_wakeup_disarm(&seat.recall);
}

static void in_a_step(void)
{
	seat.owner = EPF_OWNER_STEP;
}

/* It leaves, or hands the core over where it has seen the wish. */
static void end_of_step(void)
{
	MODEL_WRITE(&seat.core, MODEL_READ(&seat.core) + 1);
	if (EPF_LOAD_RELAXED(&seat.recall.sleeping)) {
		epf_owner_give(&seat.owner, EPF_OWNER_THREAD);
		recall_bell();
		return;
	}
	epf_owner_give(&seat.owner, EPF_OWNER_NOBODY);
	recall_bell();
}

static const struct model_program recall_program = { "a core that its thread takes back",
						     in_a_step,
						     { take_back, end_of_step },
						     NULL,
						     &seat,
						     sizeof(seat) };

static const struct model_order recall_orders[] = {
	{ "O1", "owner.h", "store", "owner", NULL },
	{ "O2", "owner.h", "load", "owner", NULL },
	{ "O2, taking", "owner.h", "compare", "owner", NULL },
	{ "O3", "epf_wakeup.h", "fence", "", NULL },
	{ "B1's store", "epf_wakeup.h", "store", "&wakeup->sleeping",
	  "the fence behind it orders it" },
};

int main(void)
{
	int failures = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
#define CHECK(name)                                      \
 failures += model_check(&name##_program, name##_orders, \
			 sizeof(name##_orders) / sizeof(name##_orders[0]))
	CHECK(ring);
	CHECK(get);
	CHECK(signal);
	CHECK(sleep);
	CHECK(joined);
	CHECK(mail);
	CHECK(chain);
	CHECK(state);
	CHECK(changes);
	CHECK(drive);
	CHECK(recall);
	return failures ? 1 : 0;
}
