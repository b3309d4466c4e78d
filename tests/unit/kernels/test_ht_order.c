/* SPDX-License-Identifier: Apache-2.0 */
/* The order of streams (ht_order.c) on the fake GPU, whose table of operations here writes down what is recorded and what waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "fabric/client/handle.h"
#include "fabric/gpu/gpu.h"
#include "kernels/ht/ht.h"
#include "tests/unit/kernels/ll_kit.h"

enum { MOST = 64, LINE = 128 };

/* One entry a call: what it was, and its event and stream. */
struct entry {
	char what; /* 'r' record, 'w' wait, '+' event made, '-' event freed */
	void *event, *stream;
};

static struct entry entries[MOST];
static unsigned n_entries;
static int failure; /* of the next record */
static const struct epf_gpu_ops *real;

static void enter(char what, void *event, void *stream)
{
	assert_true(n_entries < MOST);
	entries[n_entries++] = (struct entry){ what, event, stream };
}

static int record(struct epf_gpu_dev *dev, void *stream, void *event)
{
	int fails = failure;

	failure = 0;
	if (fails)
		return epf_fail(EPF_R_GPU_CALL, "this record fails");
	enter('r', event, stream);
	return real->event_record(dev, stream, event);
}

static int await(struct epf_gpu_dev *dev, void *stream, void *event)
{
	enter('w', event, stream);
	return real->stream_wait(dev, stream, event);
}

static int create(struct epf_gpu_dev *dev, void **event)
{
	int err = real->event_create(dev, event);

	enter('+', *event, NULL);
	return err;
}

static void destroy(struct epf_gpu_dev *dev, void *event)
{
	enter('-', event, NULL);
	real->event_destroy(dev, event);
}

static void was(unsigned at, char what, void *event, void *stream)
{
	assert_true(at < n_entries);
	assert_int_equal(entries[at].what, what);
	assert_ptr_equal(entries[at].event, event);
	assert_ptr_equal(entries[at].stream, stream);
}

static struct epf_ht *open_ht(struct epf_ll *ll, void **control)
{
	struct epf_ht_options opts = { .size = sizeof(opts) };
	uint64_t bytes = (epf_ht_control_bytes(1) + LINE - 1) / LINE * LINE;
	struct epf_ht *ht;

	opts.control = *control = aligned_alloc(LINE, bytes);
	assert_non_null(*control);
	memset(*control, 0, bytes);
	assert_return_code(epf_ht_open(ll, &opts, &ht), 0);
	return ht;
}

static struct ll_kit *open_kit(bool gpu)
{
	struct ll_kit_options o = { .ranks = 1, .blocks = 1, .gpu = gpu };

	o.timeout_ns = 1000000000u;
	o.bytes = epf_ll_size_hint(8, 128, 1, 2);
	return ll_kit_open(&o);
}

static void streams_follow_each_other(void **state)
{
	struct ll_kit *k = open_kit(true);
	struct epf_ll *ll = ll_kit_ll(k, 0);
	struct epf_gpu_dev *dev = epf_gpu_device(ll->gpu);
	struct epf_gpu_ops ops = *(real = dev->ops);
	void *control, *own, *first, *second, *a = &control, *b = &own;
	struct epf_ht *ht;

	ops.event_record = record;
	ops.stream_wait = await;
	ops.event_create = create;
	ops.event_destroy = destroy;
	dev->ops = &ops;
	ht = open_ht(ll, &control);
	own = entries[0].event;
	was(0, '+', own, NULL);
	/* Record before wait, each on its stream; one event for all pairs. */
	assert_return_code(epf_ht_order(ht, a, b), 0);
	assert_return_code(epf_ht_order(ht, b, NULL), 0);
	was(1, 'r', own, a);
	was(2, 'w', own, b);
	was(3, 'r', own, b);
	was(4, 'w', own, NULL);
	assert_return_code(epf_ht_event(ht, &first), 0);
	assert_return_code(epf_ht_event(ht, &second), 0);
	assert_true(first && second && first != second && first != own && second != own);
	assert_return_code(epf_ht_record(ht, first, b), 0);
	assert_return_code(epf_ht_wait(ht, first, a), 0);
	was(7, 'r', first, b);
	was(8, 'w', first, a);
	/* Nobody waits for what could not be recorded. */
	failure = 1;
	assert_true(epf_ht_order(ht, a, b) < 0);
	assert_non_null(strstr(epf_ll_error(), "this record fails"));
	assert_int_equal(n_entries, 9);
	epf_ht_close(ht);
	assert_int_equal(n_entries, 12); /* all three are freed, once */
	for (unsigned i = 9; i < 12; i++)
		assert_int_equal(entries[i].what, '-');
	dev->ops = real;
	ll_kit_close(k);
	free(control);
}

static void nothing_happens_on_a_cpu(void **state)
{
	struct ll_kit *k = open_kit(false);
	void *control, *event = &control;
	struct epf_ht *ht = open_ht(ll_kit_ll(k, 0), &control);

	assert_return_code(epf_ht_order(ht, NULL, NULL), 0);
	assert_return_code(epf_ht_event(ht, &event), 0);
	assert_null(event);
	assert_return_code(epf_ht_record(ht, event, NULL), 0);
	assert_return_code(epf_ht_wait(ht, event, NULL), 0);
	epf_ht_close(ht);
	ll_kit_close(k);
	free(control);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_follow_each_other),
		cmocka_unit_test(nothing_happens_on_a_cpu),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
