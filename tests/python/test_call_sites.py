#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays the call sites of vLLM, SGLang and DeepEP's test programs, with their argument lists.

Usage: test_call_sites.py PACKAGE-DIR. Needs no library, GPU or PyTorch: a stand-in (standin/) provides tensors without values, and calls into the C
library are recorded. test_arguments.py has the errors of wrong arguments.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.abspath(sys.argv[1])
sys.path[:0] = [HERE, PACKAGE, os.path.join(HERE, "standin")]

import torch  # noqa: E402  the stand-in

import deep_ep  # noqa: E402
from kit import raises, run  # noqa: E402
from recorder import EXPERTS, HIDDEN, LOCAL, RANKS, ROWS, TOKENS, TOPK, TwoRanks, buffer, index, outputs, recording, weights, x  # noqa: E402


def vllm_calls():
    """The manager of deepep_low_latency, prepare and finalize, with all their arguments."""
    with recording():
        b = deep_ep.Buffer(**dict(group=TwoRanks(), num_nvl_bytes=1024 << 20, num_rdma_bytes=1 << 20, low_latency_mode=True,
                                  num_qps_per_rank=LOCAL, allow_nvlink_for_low_latency_mode=True, allow_mnnvl=False,
                                  explicitly_destroy=True, enable_shrink=True))
        older = deep_ep.Buffer(**dict(group=TwoRanks(), num_nvl_bytes=1 << 30, num_rdma_bytes=1 << 20, low_latency_mode=True,
                                      num_qps_per_rank=LOCAL))
        deep_ep.Buffer(**dict(group=TwoRanks(), num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1,
                              explicitly_destroy=True))
    deep_ep.Buffer.set_num_sms(20)
    for use_fp8, ue8m0 in ((False, False), (True, False), (True, True)):
        got, count, handle, _, hook = b.low_latency_dispatch(x(), index(), TOKENS, EXPERTS, use_fp8=use_fp8, round_scale=ue8m0,
                                                             use_ue8m0=ue8m0, async_finish=False, return_recv_hook=True)
        assert isinstance(got, tuple) == use_fp8 and count.shape == (LOCAL,)
        hook()
        out = x()
        for do_hook in (False, True):
            _, _, hook = b.low_latency_combine(outputs(), index(), weights(), handle, async_finish=False, zero_copy=False,
                                               return_recv_hook=do_hook, out=out)
            assert (hook is not None) == do_hook
            if hook:
                hook()
    older.low_latency_dispatch(x(), index(), TOKENS, EXPERTS, use_fp8=True, async_finish=False, return_recv_hook=False)
    b.low_latency_query_mask_buffer(torch.empty(RANKS, dtype=torch.int32))


def sglang_calls():
    """The buffer and the two dispatchers, with all their arguments, including the overlap arguments of SGLang's DeepEP branch."""
    configs_ = [c(RANKS) for c in (deep_ep.Buffer.get_dispatch_config, deep_ep.Buffer.get_combine_config)]
    nvl = max(c.get_nvl_buffer_size_hint(HIDDEN * 2, RANKS) for c in configs_)
    rdma = max(c.get_rdma_buffer_size_hint(HIDDEN * 2, RANKS) for c in configs_)
    with recording():
        b = deep_ep.Buffer(TwoRanks(), nvl, max(rdma, 1 << 20), low_latency_mode=True, num_qps_per_rank=max(20, LOCAL), allow_mnnvl=True)
    assert b.low_latency_mode and b.group_size == RANKS and deep_ep.Buffer.num_sms > 0
    b.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
    for use_hook in (False, True):
        for options in (dict(use_fp8=False), dict(use_fp8=True, round_scale=False, use_ue8m0=False),
                        dict(use_fp8=True, round_scale=True, use_ue8m0=True)):
            _, count, handle, event, hook = b.low_latency_dispatch(x(), index(), TOKENS, EXPERTS, async_finish=not use_hook,
                                                                   return_recv_hook=use_hook, **options)
            hook() if use_hook else event.current_stream_wait()
            _, event, hook = b.low_latency_combine(x=outputs(), topk_idx=index(), topk_weights=weights(), handle=handle,
                                                   async_finish=not use_hook, return_recv_hook=use_hook)
            hook() if use_hook else event.current_stream_wait()
            combine = dict(x=outputs(), topk_idx=index(), topk_weights=weights(), handle=handle, async_finish=not use_hook,
                           return_recv_hook=use_hook)
            for more in (dict(overlap=True, src_signals=None, src_signal_expect_value=4),
                         dict(overlap=True, packed_recv_count=count, comp_signal=None, block_m=64, threshold=2, num_sms=3)):
                raises(deep_ep.NotThereYet, "overlap", b.low_latency_combine, **combine, **more)
                off, event, hook = b.low_latency_combine(**combine, **dict(more, overlap=False))
                hook() if use_hook else event.current_stream_wait()
    raises(deep_ep.NotThereYet, "NVFP4", b.low_latency_dispatch, x(), index(), TOKENS, EXPERTS, use_fp8=False, use_nvfp4=True,
           x_global_scale=torch.empty(1), async_finish=False, return_recv_hook=True)


def deepep_test_program_calls():
    """Calls of DeepEP's low-latency test."""
    b = buffer(num_qps_per_rank=LOCAL, allow_nvlink_for_low_latency_mode=False, allow_mnnvl=False, enable_shrink=True)
    *_, handle, event, hook = b.low_latency_dispatch(
        x(), index(), TOKENS, EXPERTS, use_fp8=True, round_scale=True, use_ue8m0=False,
        cumulative_local_expert_recv_stats=torch.empty(LOCAL, dtype=torch.int32), async_finish=True, return_recv_hook=False)
    event.current_stream_wait()
    b.low_latency_combine(outputs(), index(), weights(), handle, use_logfmt=False, async_finish=True, zero_copy=True, return_recv_hook=False,
                          out=x())[1].current_stream_wait()
    from deep_ep.utils.envs import init_dist
    from deep_ep.utils.math import calc_diff, hash_tensor, per_token_cast_back
    from deep_ep.utils.testing import bench, bench_kineto
    assert all(callable(f) for f in (init_dist, calc_diff, hash_tensor, per_token_cast_back, bench, bench_kineto))


def deepep_later_test_program_calls():
    """Calls of the later test (legacy interface) in shrink mode: mask queries after each call, positional arguments, a clean each round."""
    with recording():
        b = deep_ep.Buffer(TwoRanks(), num_rdma_bytes=1 << 20, low_latency_mode=True, num_qps_per_rank=LOCAL,
                           allow_nvlink_for_low_latency_mode=True, explicitly_destroy=True, allow_mnnvl=False, enable_shrink=True)
    status = torch.empty(RANKS, dtype=torch.int32)
    idx = torch.empty((5, TOPK), dtype=deep_ep.topk_idx_t)
    for use_hook in (False, True):
        for fp8, round_scale, ue8m0 in ((False, False, False), (True, False, False), (True, True, False), (True, True, True)):
            _, _, handle, event, hook = b.low_latency_dispatch(
                x(), idx, TOKENS, EXPERTS, use_fp8=fp8, round_scale=round_scale, use_ue8m0=ue8m0,
                cumulative_local_expert_recv_stats=torch.empty(LOCAL, dtype=torch.int32), async_finish=not use_hook, return_recv_hook=use_hook)
            hook() if use_hook else event.current_stream_wait()
            b.low_latency_query_mask_buffer(status)
            assert len(handle) == 5 and handle[0].shape == (LOCAL, ROWS) and handle[1].shape == (LOCAL, RANKS)
            for zero_copy in (False, True):
                _, event, hook = b.low_latency_combine(outputs(), idx, weights(), handle, use_logfmt=False, async_finish=not use_hook,
                                                       zero_copy=zero_copy, return_recv_hook=use_hook, out=x())
                hook() if use_hook else event.current_stream_wait()
                b.low_latency_query_mask_buffer(status)
            b.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
            b.low_latency_query_mask_buffer(status)
    assert [c[0] for c in b._ll.calls].count("clean") == 8
    # Its timing calls omit arguments with defaults.
    _, _, handle, _, hook = b.low_latency_dispatch(
        x(), idx, TOKENS, EXPERTS, cumulative_local_expert_recv_stats=torch.empty(LOCAL, dtype=torch.int32), use_fp8=True, async_finish=False,
        return_recv_hook=False)
    assert hook is None
    b.low_latency_combine(outputs(), idx, weights(), handle, use_logfmt=True, return_recv_hook=True)[2]()


run([vllm_calls, sglang_calls, deepep_test_program_calls, deepep_later_test_program_calls])
