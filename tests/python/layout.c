/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout of the structures that Python passes to the C libraries, as compiled: prints "struct field offset bytes" for each field and
 * "struct = bytes 0" for the whole. test_meeting.py compares it with the ctypes declarations.
 */
#include "fabric/client/epf.h"
#include "kernels/epf_ll.h"

#include <stddef.h>
#include <stdio.h>

#define WHOLE(type) printf("%s = %zu 0\n", #type, sizeof(struct type))
#define FIELD(type, name)                                             \
 printf("%s %s %zu %zu\n", #type, #name, offsetof(struct type, name), \
	sizeof(((struct type *)0)->name))

static void options(void)
{
	WHOLE(epf_options);
	FIELD(epf_options, size);
	FIELD(epf_options, config_file);
	FIELD(epf_options, settings);
	FIELD(epf_options, progress);
	FIELD(epf_options, progress_arg);
	FIELD(epf_options, now);
	FIELD(epf_options, now_arg);
	WHOLE(epf_ll_shape);
	FIELD(epf_ll_shape, tokens_max);
	FIELD(epf_ll_shape, hidden);
	FIELD(epf_ll_shape, experts);
	FIELD(epf_ll_shape, topk);
	WHOLE(epf_ll_options);
	FIELD(epf_ll_options, size);
	FIELD(epf_ll_options, device);
	FIELD(epf_ll_options, first_signal);
	FIELD(epf_ll_options, bytes);
	FIELD(epf_ll_options, memory);
	FIELD(epf_ll_options, timeout_ns);
	FIELD(epf_ll_options, blocks);
	FIELD(epf_ll_options, reserved);
	FIELD(epf_ll_options, peers);
	FIELD(epf_ll_options, progress);
	FIELD(epf_ll_options, progress_arg);
}

static void calls(void)
{
	WHOLE(epf_ll_dispatch);
	FIELD(epf_ll_dispatch, size);
	FIELD(epf_ll_dispatch, shape);
	FIELD(epf_ll_dispatch, tokens);
	FIELD(epf_ll_dispatch, flags);
	FIELD(epf_ll_dispatch, x);
	FIELD(epf_ll_dispatch, topk_idx);
	FIELD(epf_ll_dispatch, recv_x);
	FIELD(epf_ll_dispatch, recv_scales);
	FIELD(epf_ll_dispatch, recv_count);
	FIELD(epf_ll_dispatch, src_info);
	FIELD(epf_ll_dispatch, src_slot);
	FIELD(epf_ll_dispatch, layout_range);
	FIELD(epf_ll_dispatch, recv_stats);
	FIELD(epf_ll_dispatch, wait_stats);
	FIELD(epf_ll_dispatch, src_row);
	WHOLE(epf_ll_combine);
	FIELD(epf_ll_combine, size);
	FIELD(epf_ll_combine, shape);
	FIELD(epf_ll_combine, tokens);
	FIELD(epf_ll_combine, flags);
	FIELD(epf_ll_combine, x);
	FIELD(epf_ll_combine, src_info);
	FIELD(epf_ll_combine, src_slot);
	FIELD(epf_ll_combine, layout_range);
	FIELD(epf_ll_combine, topk_idx);
	FIELD(epf_ll_combine, topk_weights);
	FIELD(epf_ll_combine, out);
	FIELD(epf_ll_combine, wait_stats);
	FIELD(epf_ll_combine, src_row);
}

int main(void)
{
	options();
	calls();
	return 0;
}
