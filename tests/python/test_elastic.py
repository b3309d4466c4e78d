#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep.ElasticBuffer on CPU tensors: its signatures, its refusals, and the parts of tests/gpu/elastic_cases.py that need no GPU, in real processes with
PyTorch and gloo.

Usage: test_elastic.py PACKAGE-DIR libepf.so libepf-ll.so. Skipped without PyTorch.
"""
import inspect
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "../gpu/ll_cases.py")
sys.path.insert(0, HERE)

from kit import preload, program, python_with, raises, run, skip  # noqa: E402

if not python_with("torch"):
    skip("PyTorch is not installed: ElasticBuffer was not tested (Debian: python3-torch)")

os.environ.update(PYTHONPATH=os.path.abspath(sys.argv[1]), EPF_LIBRARY=os.path.abspath(sys.argv[2]), EPF_LL_LIBRARY=os.path.abspath(sys.argv[3]))
os.environ.setdefault("EPF_GPU_TIMEOUT", "60s")
sys.path.insert(0, os.environ["PYTHONPATH"])

import torch  # noqa: E402

import deep_ep  # noqa: E402
from deep_ep.elastic import nodes_of  # noqa: E402
from epf.meet import Alone  # noqa: E402

Wrong, NotThereYet, REQUIRED = deep_ep.ArgumentError, deep_ep.NotThereYet, inspect.Parameter.empty

# Names, order and defaults of DeepEP 2.1.0. Arguments that ours adds are keyword-only.
SIGNATURES = {
    "__init__": {"group": REQUIRED, "num_bytes": None, "num_cpu_bytes": 0, "num_max_tokens_per_rank": 0, "hidden": 0, "num_topk": 0, "use_fp8_dispatch": False,
                 "deterministic": False, "allow_hybrid_mode": True, "allow_multiple_reduction": True, "prefer_overlap_with_compute": True, "sl_idx": 3,
                 "num_allocated_qps": 0, "num_cpu_timeout_secs": 300, "num_gpu_timeout_secs": 100, "explicitly_destroy": False},
    "get_buffer_size_hint": {"group": REQUIRED, "num_max_tokens_per_rank": REQUIRED, "hidden": REQUIRED, "num_topk": 0, "use_fp8_dispatch": False,
                             "allow_hybrid_mode": True, "allow_multiple_reduction": True},
    "barrier": {"use_comm_stream": True, "with_cpu_sync": False, "sequential": True},
    "dispatch": {"x": REQUIRED, "topk_idx": None, "topk_weights": None, "cumulative_local_expert_recv_stats": None, "num_experts": None,
                 "num_max_tokens_per_rank": None, "expert_alignment": None, "num_sms": 0, "num_qps": 0, "previous_event": None,
                 "previous_event_before_epilogue": None, "async_with_compute_stream": False, "allocate_on_comm_stream": False, "handle": None,
                 "do_handle_copy": True, "do_cpu_sync": None, "do_expand": False, "do_zero_padding": False, "use_tma_aligned_col_major_sf": False},
    "combine": {"x": REQUIRED, "handle": REQUIRED, "topk_weights": None, "bias": None, "num_sms": 0, "num_qps": 0, "previous_event": None,
                "previous_event_before_epilogue": None, "async_with_compute_stream": False, "allocate_on_comm_stream": False},
}
# Names only: the defaults come from our model of the link and may differ from DeepEP's.
NAMES = {"get_theoretical_num_sms": ["num_experts", "num_topk", "num_scaleout_topk", "rdma_gbs", "nvlink_gbs", "sm_read_gbs", "sm_write_gbs"],
         "get_theoretical_num_qps": ["num_sms"]}


def parameters(name):
    found = inspect.signature(getattr(deep_ep.ElasticBuffer, name)).parameters.values()
    return [p for p in found if p.name != "self" and p.kind is not inspect.Parameter.KEYWORD_ONLY]


def signatures():
    for name, want in SIGNATURES.items():
        assert [(p.name, p.default) for p in parameters(name)] == list(want.items()), name
    for name, want in NAMES.items():
        assert [p.name for p in parameters(name)] == want, name


def alone(**more):
    return deep_ep.ElasticBuffer(Alone(), num_max_tokens_per_rank=16, hidden=64, num_topk=2, **more)


def x(tokens=5, hidden=64, dtype=torch.bfloat16):
    return torch.ones((tokens, hidden), dtype=dtype)


def idx(tokens=5, topk=2):
    return torch.arange(tokens * topk).view(tokens, topk) % 4


def sizes_and_numbers():
    hint = deep_ep.ElasticBuffer.get_buffer_size_hint
    assert hint(Alone(), 128, 7168) % (2 << 20) == 0 and hint(Alone(), 128, 7168) >= 128 * 7168 * 2
    assert hint(Alone(), 128, 7168) <= hint(Alone(), 128, 7168, 8, True) <= hint(Alone(), 256, 7168) <= hint(Alone(), 256, 8192)
    raises(Wrong, "hidden is -1; it must be a number, not negative", hint, Alone(), 128, -1)
    b = alone()
    assert b.num_bytes == hint(b.group, 16, 64) and deep_ep.ElasticBuffer(Alone(), num_bytes=4 << 20).num_bytes == 4 << 20
    assert (b.rank_idx, b.num_ranks, b.num_scaleout_ranks, b.num_scaleup_ranks, b.num_rdma_ranks, b.num_nvlink_ranks) == (0, 1, 1, 1, 1, 1)
    assert b.get_theoretical_num_sms(4, 2) > 0 and b.get_theoretical_num_qps(24) == b.num_allocated_qps == 1
    assert deep_ep.get_physical_domain_size(Alone()) == deep_ep.get_logical_domain_size(Alone()) == (1, 1)
    raises(Wrong, "5 experts with top-6 do not spread over 1 ranks", b.get_theoretical_num_sms, 5, 6)
    raises(Wrong, "num_scaleout_topk is 2", b.get_theoretical_num_sms, 4, 2, 2)
    raises(Wrong, "CPU tensors, which have no streams", b.get_comm_stream)
    b.capture().current_stream_wait()
    b.barrier(with_cpu_sync=True)
    for _ in range(2):
        b.destroy()
        raises(Wrong, "ElasticBuffer.dispatch: this Buffer is destroyed", b.dispatch, x(), idx(), num_experts=4)


def more_multiprocessors_for_more_traffic():
    b = alone()
    b.num_ranks, b.num_nvlink_ranks = 8, 8
    few, many = b.get_theoretical_num_sms(64, 8), b.get_theoretical_num_sms(64, 8, nvlink_gbs=740)
    assert 4 <= few < many and few % 2 == many % 2 == 0, (few, many)
    b.prefer_overlap_with_compute = False
    assert b.get_theoretical_num_sms(64, 8) == 64


def domains():
    assert nodes_of(list("aaaa")) == (1, 4) and nodes_of(list("aabb")) == (2, 2) and nodes_of(list("abc")) == (3, 1)
    for uneven in ("aab", "abab", "abba", "aabbb", "aabbaa"):
        assert nodes_of(list(uneven)) == (len(uneven), 1), uneven


def what_is_not_there():
    b = alone()
    raises(NotThereYet, "num_cpu_bytes is for Engram, which is not there", deep_ep.ElasticBuffer, Alone(), num_bytes=2 << 20, num_cpu_bytes=2 << 20)
    for name in ("engram_write", "engram_fetch", "pp_set_config", "pp_send", "pp_recv", "create_agrs_session", "destroy_agrs_session", "agrs_new_session",
                 "agrs_set_config", "agrs_get_inplace_tensor", "all_gather", "get_engram_storage_size_hint", "get_pp_buffer_size_hint",
                 "get_agrs_num_max_session_bytes", "get_agrs_buffer_size_hint"):
        raises(NotThereYet, f"ElasticBuffer.{name}: .* is not there; EP fabric serves dispatch and combine. (Use|Keep)", getattr(b, name), 1, 2)


def wrong_arguments():
    raises(Wrong, "num_max_tokens_per_rank is -1", deep_ep.ElasticBuffer, Alone(), num_max_tokens_per_rank=-1)
    raises(Wrong, "num_gpu_timeout_secs is 0", deep_ep.ElasticBuffer, Alone(), num_gpu_timeout_secs=0)
    b = alone()
    refused = [
        ("neither topk_idx nor handle", dict(topk_idx=None)), ("topk_idx has dtype", dict(topk_idx=idx().int())), ("num_experts is None", dict(num_experts=None)),
        ("there are 0 experts", dict(num_experts=0)), ("expert_alignment is 0", dict(expert_alignment=0)), ("there are 17 tokens", dict(x=x(17), topk_idx=idx(17))),
        ("a row has 6 bytes", dict(x=x(5, 3))), ("topk_weights has shape", dict(topk_weights=torch.ones(5, 3))),
        ("cumulative_local_expert_recv_stats has shape", dict(cumulative_local_expert_recv_stats=torch.zeros(3, dtype=torch.int32))),
        ("do_zero_padding is set", dict(do_zero_padding=True)), ("handle is a tuple", dict(handle=())), ("num_max_tokens_per_rank is 0", dict(num_max_tokens_per_rank=0)),
        ("num_expanded_tokens is 5; it must", dict(num_expanded_tokens=5)),
        ("num_expanded_tokens is 0; it must", dict(num_expanded_tokens=0, do_expand=True, do_cpu_sync=False)),
    ]
    for text, change in refused:
        raises(Wrong, f"ElasticBuffer.dispatch: {text}", b.dispatch, **{**dict(x=x(), topk_idx=idx(), num_experts=4), **change})
    rows, index, _, handle, event = b.dispatch(x(), idx(), num_experts=4)
    assert event.event is None and index.shape == (5, 2)
    for text, change in [("with a handle topk_idx must be None", dict(topk_idx=idx())), ("do_cpu_sync is set", dict(do_cpu_sync=True)),
                         ("do_expand is True; the handle is of a dispatch with False", dict(do_expand=True)),
                         ("num_experts is 8; the handle is of a dispatch with 4", dict(num_experts=8)), ("topk_idx has shape", dict(x=x(4)))]:
        raises(Wrong, f"ElasticBuffer.dispatch: {text}", b.dispatch, **{**dict(x=x(), handle=handle), **change})
    for text, change in [("handle is a tuple", dict(handle=())), ("x has shape", dict(x=x(4))), ("x has dtype", dict(x=x(5, 64, torch.float32))),
                         ("topk_weights has shape", dict(topk_weights=torch.ones(5, 3))), ("bias has shape", dict(bias=x(4)))]:
        raises(Wrong, f"ElasticBuffer.combine: {text}", b.combine, **{**dict(x=rows, handle=handle), **change})


def cases(*arguments, **environment):
    limit = 250 * int(os.environ.get("LIMIT_TIMES", "1"))  # against hanging
    status = program(CASES, [*arguments, "--device", "cpu", "--quick", "--limit", str(limit)], {**os.environ, **environment}, limit + 50)
    assert status == 0, f"{arguments}: exit status {status}"


def layouts_types_and_orders():
    cases("elastic-table,elastic-errors,elastic-guesses,elastic-unwaited,elastic-layers", "--ranks", "2")


def the_calls_of_frameworks():
    cases("elastic-callers", "--ranks", "2")


def the_interface_of_hybrid_ep():
    # Those of DeepEP's branch hybrid-ep that Megatron-core and torchtitan give.
    for name, want in (("__init__", ["group", "hidden_dim", "max_num_of_tokens_per_rank", "num_local_experts", "use_fp8", "num_sms_dispatch_api", "num_sms_combine_api",
                                     "num_sms_preprocessing_api", "num_blocks_permute", "num_blocks_unpermute", "load_cached_kernels", "use_shared_buffer",
                                     "enable_custom_allgather", "num_of_hybrid_ep_ranks_per_nvlink_domain", "use_mnnvl", "device"]),
                       ("dispatch_with_permute", ["hidden", "topk_idx", "topk_weights", "num_of_experts_per_rank", "num_of_experts", "use_fp8", "routing_map", "probs",
                                                  "scaling_factor", "num_permuted_tokens", "pad_multiple", "handle", "non_blocking", "fuse_permute_dispatch",
                                                  "num_dispatched_tokens", "use_host_meta"]),
                       ("combine_with_unpermute", ["hidden", "probs", "handle", "pad_multiple", "fuse_unpermute_combine", "num_dispatched_tokens"])):
        assert list(inspect.signature(getattr(deep_ep.HybridEPBuffer, name)).parameters)[1:] == want, name
    cases("hybrid", "--ranks", "2")
    cases("hybrid", "--ranks", "3", "--nodes", "a,b,a")


def one_rank_and_five():
    for ranks in ("1", "5"):
        cases("elastic-random", "--ranks", ranks, "--cases", "8")
    cases("elastic-random", "--ranks", "5", "--nodes", "a,a,a,b,b", "--cases", "2", "--seed", "10")  # a rank that has no tokens, and one that receives none


def between_nodes():
    cases("elastic-random,elastic-callers", "--ranks", "4", "--nodes", "a,a,b,b", "--cases", "8")
    cases("elastic-random,elastic-layers", "--ranks", "3", "--nodes", "a,b,a", "--cases", "8", "--seed", "50")


def nine_ranks_on_uneven_nodes():
    cases("elastic-random", "--ranks", "9", "--nodes", "a,b,a,c,c,c,b,a,c", "--cases", "3")


if __name__ == "__main__":
    preload("torch")
    run([signatures, sizes_and_numbers, more_multiprocessors_for_more_traffic, domains, what_is_not_there, wrong_arguments, layouts_types_and_orders,
         the_calls_of_frameworks, the_interface_of_hybrid_ep, one_rank_and_five, between_nodes, nine_ranks_on_uneven_nodes])
