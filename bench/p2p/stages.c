/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-bench p2p --gpu --stages: what each of the three threads on the way of a put out of GPU memory spends on it: the sending core, the
 * receiving core, and the copier's thread beside it. A rank's part collects, the parent's prints.
 */
#include "bench/p2p/p2p.h"

#include "fabric/base/clock.h"
#include "fabric/nic/emu/stages.h"

#include <stdio.h>

_Static_assert((int)P2P_NIC_STAGES == (int)EPF_EMU_STAGES &&
		       (int)P2P_NIC_TALLIES == (int)EPF_EMU_TALLIES,
	       "as the NIC has them");

static struct epf_emu_stages nic;

void p2p_stages_want(void)
{
	epf_emu_stages_want(&nic);
}

void p2p_stages_add(struct p2p_stages *s, double sign)
{
	struct epf_emu_copier_stages c;

	for (unsigned i = 0; i < EPF_EMU_STAGES; i++)
		s->nic_ns[i] += sign * (double)epf_tsc_to_ns(
					       __atomic_load_n(&nic.tsc[i], __ATOMIC_RELAXED));
	for (unsigned i = 0; i < EPF_EMU_TALLIES; i++)
		s->nic_n[i] += sign * (double)__atomic_load_n(&nic.tally[i], __ATOMIC_RELAXED);
	epf_emu_copier_stages(&c);
	s->take_ns += sign * (double)epf_tsc_to_ns(c.dequeue_tsc);
	s->pump_ns += sign * (double)epf_tsc_to_ns(c.pump_tsc);
	s->submit_ns += sign * (double)epf_tsc_to_ns(c.submit_tsc);
	s->copies += sign * (double)c.copies;
	s->batches += sign * (double)c.batches;
	s->wall_ns += sign * (double)epf_now_ns();
}

static const char *const stage[] = { "fill", "push", "mail", "outcomes", "land", "return", "emit" };
static const char *const tally[] = { "posts", "packets", "back", "inboxes", "jobs" };

json_t *p2p_stages_json(const struct p2p_row *r, double puts)
{
	const struct p2p_stages *s = &r->stages;
	json_t *j = json_object();

	for (unsigned i = 0; i < EPF_EMU_STAGES; i++)
		json_object_set_new(j, stage[i], json_real(s->nic_ns[i] / puts));
	for (unsigned i = 0; i < EPF_EMU_TALLIES; i++)
		json_object_set_new(j, tally[i], json_integer((json_int_t)s->nic_n[i]));
	if (s->copies > 0) {
		json_object_set_new(j, "copier_take", json_real(s->take_ns / s->copies));
		json_object_set_new(j, "copier_pump", json_real(s->pump_ns / s->copies));
		json_object_set_new(j, "copier_submit", json_real(s->submit_ns / s->copies));
	}
	json_object_set_new(j, "copies", json_integer((json_int_t)s->copies));
	json_object_set_new(j, "batches", json_integer((json_int_t)s->batches));
	json_object_set_new(j, "wall", json_real(s->wall_ns / puts));
	return j;
}

void p2p_stages_print(const struct p2p_row *r, double puts)
{
	const struct p2p_stages *s = &r->stages;
	double sum = 0;

	printf("#   its NIC:");
	for (unsigned i = 0; i < EPF_EMU_STAGES; i++) {
		printf(" %s %.1f", stage[i], s->nic_ns[i] / puts);
		sum += s->nic_ns[i] / puts;
	}
	printf(", in all %.1f of %.1f", sum, s->wall_ns / puts);
	for (unsigned i = 0; i < EPF_EMU_TALLIES; i++)
		printf("%s %s %.2f", i ? "," : "; in 1000 transfers:", tally[i],
		       1000 * s->nic_n[i] / puts);
	printf("\n");
	if (s->copies > 0)
		printf("#   its copier, ns a copy: take %.1f, pump %.1f, in them submit %.1f; %.1f copies a batch\n",
		       s->take_ns / s->copies, s->pump_ns / s->copies, s->submit_ns / s->copies,
		       s->copies / (s->batches > 0 ? s->batches : 1));
}
