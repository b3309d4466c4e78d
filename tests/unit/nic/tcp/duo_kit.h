/* SPDX-License-Identifier: Apache-2.0 */
/* Two TCP NICs of one process, each with registered memory, lane 0 of each connected to the other. For tests/unit/nic/tcp only. */
#ifndef EPF_TESTS_TCP_DUO_KIT_H
#define EPF_TESTS_TCP_DUO_KIT_H

#include "tests/unit/nic/tcp/tcp_kit.h"

enum { DUO_BYTES = 4 << 20, DUO_DEPTH = 256 };

struct duo {
	struct epf_nic *a, *b;
	uint8_t *mem_a, *mem_b; /* DUO_BYTES each, zeroed */
	struct epf_nic_mr mr_a, mr_b;
	uint64_t clock_ns;
	struct epf_wc wc[512];
};

static inline struct epf_nic *duo_nic(struct duo *d, const char *congestion, uint8_t **mem,
				      struct epf_nic_mr *mr)
{
	struct epf_tcp_opts opts;
	struct epf_nic *nic;

	epf_tcp_opts_defaults(&opts);
	opts.congestion = congestion;
	assert_int_equal(epf_tcp_open(&opts, kit_now, &d->clock_ns, &nic), 0);
	*mem = calloc(1, DUO_BYTES);
	assert_non_null(*mem);
	assert_int_equal(nic->ops->region_register(nic, *mem, DUO_BYTES,
						   EPF_MR_REMOTE_WRITE | EPF_MR_REMOTE_READ, mr),
			 0);
	nic->ops->post_receives(nic, 1000);
	return nic;
}

/* Connects lane lx of x with lane ly of y. Returns before the connection is up. */
static inline void duo_join(struct epf_nic *x, uint16_t lx, struct epf_nic *y, uint16_t ly)
{
	uint8_t ax[EPF_NIC_ADDR_BYTES], ay[EPF_NIC_ADDR_BYTES];
	int nx = x->ops->address(x, ax, sizeof(ax)), ny = y->ops->address(y, ay, sizeof(ay));
	uint64_t tx, ty;
	int rc;

	for (int tries = 0;; tries++) {
		assert_int_equal(x->ops->lane_create(x, lx, DUO_DEPTH, &tx), 0);
		assert_int_equal(y->ops->lane_create(y, ly, DUO_DEPTH, &ty), 0);
		rc = x->ops->lane_connect(x, lx, ay, (size_t)ny, ty);
		if (!rc)
			rc = y->ops->lane_connect(y, ly, ax, (size_t)nx, tx);
		if (!rc)
			return;
		/* On a busy machine a door may answer later than tcp-timeout. */
		assert_true(rc == -EHOSTUNREACH && tries < 30);
		x->ops->lane_destroy(x, lx);
		y->ops->lane_destroy(y, ly);
	}
}

/* congestion: as opts; NULL: the system's. */
static inline struct duo *duo_open_with(const char *congestion)
{
	struct duo *d = calloc(1, sizeof(*d));

	assert_non_null(d);
	d->clock_ns = 1;
	d->a = duo_nic(d, congestion, &d->mem_a, &d->mr_a);
	d->b = duo_nic(d, congestion, &d->mem_b, &d->mr_b);
	duo_join(d->a, 0, d->b, 0);
	return d;
}

static inline struct duo *duo_open(void)
{
	return duo_open_with(NULL);
}

static inline void duo_close(struct duo *d)
{
	d->a->ops->close(d->a);
	d->b->ops->close(d->b);
	free(d->mem_a);
	free(d->mem_b);
	free(d);
}

#endif
