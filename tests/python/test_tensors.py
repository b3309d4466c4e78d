#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer on CPU tensors: real processes with PyTorch and gloo, dispatch and combine compared with a reference, bit for bit.

Usage: test_tensors.py PACKAGE-DIR libepf.so libepf-ll.so ep-fabric. Skipped without PyTorch. A Buffer finds its ranks through the gloo group, which
meets at a file. The reference is that of the tests on GPUs (tests/gpu/ll_reference.py): every rank computes its results from the seeds of all ranks.
"""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["EPF_LIBRARY"], os.environ["EPF_LL_LIBRARY"] = os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
os.environ.setdefault("EPF_GPU_TIMEOUT", "60s")
sys.path[:0] = [HERE, os.path.join(HERE, "../gpu"), os.path.abspath(sys.argv[1])]

from kit import preload, processes, python_with, raises, run, skip  # noqa: E402

if not python_with("torch"):
    skip("PyTorch is not installed: the Buffer on tensors was not tested (Debian: python3-torch)")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import deep_ep  # noqa: E402
import epf  # noqa: E402
from ll_reference import Case, bits  # noqa: E402


def case_of(tokens, hidden, experts, topk, seed=1, lost=()):
    return Case("cpu", tokens, hidden, experts, topk, seed=seed, lost=lost)


def poison(t):
    bits(t).fill_(-7 if t.element_size() > 1 else 0xa5)


# ---------------------------------------------------------------------- what the processes run


def start(rank, size, file):
    """Makes the gloo group of a rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    return dist.group.WORLD


def together(size, function, *arguments, **named):
    """Runs function(rank, size, pipes, meeting file, ...) in processes; returns their results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        return processes(size, function, os.path.join(folder, "meet"), *arguments, **named)


def make(case, group, **named):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(case.most, case.hidden, case.ranks, case.experts)
    return deep_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=case.local, explicitly_destroy=True, **named)


def one_round(case, rank, b, fp8=False, round_scale=False, ue8m0=False, form="sync", zero_copy=False, out=None, stats=None):
    """A dispatch and a combine in one form, compared."""
    x, idx, weight = case.inputs(rank)
    how = {"async_finish": form == "async", "return_recv_hook": form == "hook"}
    got, count, handle, event, hook = b.low_latency_dispatch(
        x, idx, case.most, case.experts, use_fp8=fp8, round_scale=round_scale, use_ue8m0=ue8m0,
        cumulative_local_expert_recv_stats=stats[0] if stats else None, dispatch_wait_recv_cost_stats=stats[1] if stats else None, **how)
    if form == "hook":
        poison(x)  # sent already
        hook()
    elif form == "async":
        event.current_stream_wait()
    case.check_received(rank, got, count, handle, fp8, round_scale, ue8m0)
    y = case.outputs(rank)
    if zero_copy:
        view = b.get_next_low_latency_combine_buffer(handle)
        assert view.shape == y.shape and view.dtype == torch.bfloat16 and view.is_contiguous()
        begin = b.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True)
        assert begin.data_ptr() <= view.data_ptr() < begin.data_ptr() + begin.numel(), "not a view of the communication memory"
        view.copy_(y)
        poison(y)
    sums, event, hook = b.low_latency_combine(y, idx, weight, handle, zero_copy=zero_copy, out=out,
                                              combine_wait_recv_cost_stats=stats[2] if stats else None, **how)
    if form == "hook":
        hook()
    elif form == "async":
        event.current_stream_wait()
    case.at_sender = b._sums
    case.check_combined(rank, sums)
    assert out is None or sums is out
    return handle


FORMS = [dict(), dict(form="hook"), dict(form="async"), dict(zero_copy=True), dict(fp8=True), dict(fp8=True, form="hook"),
         dict(fp8=True, round_scale=True), dict(fp8=True, round_scale=True, ue8m0=True, form="async"), dict(form="hook", zero_copy=True)]


def _forms(rank, size, pipes, file, sizes, direct, at_sender):
    group = start(rank, size, file)
    case = case_of(*sizes)
    b = make(case, group, allow_nvlink_for_low_latency_mode=direct, sum_at_sender=at_sender)
    stats = (torch.zeros(case.local, dtype=torch.int32), torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
    rounds = 0
    for form in FORMS:
        if form.get("ue8m0") and case.hidden % 512:
            continue
        out = torch.empty((case.tokens[rank], case.hidden), dtype=torch.bfloat16) if rounds % 2 else None
        one_round(case, rank, b, out=out, stats=stats, **form)
        rounds += 1
    assert torch.equal(stats[0], rounds * case.received(rank)[0].sum(1).int()), stats[0]
    assert (stats[1] >= 0).all() and (stats[2] >= 0).all() and (size == 1 or stats[1].sum() > 0)
    commands = b._fabric.counter("cmds_dequeued")
    b.destroy()
    b.destroy()
    raises(deep_ep.ArgumentError, "is destroyed", b.low_latency_clean_mask_buffer)
    dist.destroy_process_group()
    return commands


def forms(size, *sizes, direct=True, at_sender=None):
    return together(size, _forms, sizes, direct, at_sender)


def two_ranks():
    forms(2, (5, 8), 1024, 6, 4)


def two_ranks_by_commands_only():
    """Stores replace commands, and commands replace stores."""
    by_stores, by_commands = forms(2, (7, 3), 512, 4, 2), forms(2, (7, 3), 512, 4, 2, direct=False)
    print(f"# commands of the ranks: {by_stores} with shared pages, {by_commands} without")
    assert all(few < many for few, many in zip(by_stores, by_commands)), (by_stores, by_commands)


def sums_at_the_sender():
    forms(2, (5, 8), 1024, 6, 4, at_sender="always")
    forms(4, (0, 1, 9, 4), 640, 12, 3, direct=False, at_sender="always")
    forms(2, (39, 40), 128, 16, 8, at_sender="auto")  # 40 are many
    forms(2, (41, 3), 128, 16, 8, direct=False, at_sender="auto")


def _different_sums(rank, size, pipes, file):
    group = start(rank, size, file)
    raises(deep_ep.ArgumentError, r"by rank: \['auto', 'off'\]", make, case_of((1, 1), 512, 2, 1), group, sum_at_sender=("auto", "off")[rank])
    dist.destroy_process_group()


def different_sums_by_rank_are_refused():
    together(2, _different_sums)


def four_ranks_of_different_sizes():
    forms(4, (0, 1, 9, 4), 640, 12, 3)


def three_ranks_and_sixteen_experts_a_token():
    forms(3, (3, 0, 6), 512, 21, 16)


def one_rank():
    forms(1, (6,), 512, 5, 5)


def _many(rank, size, pipes, file):
    """One Buffer, many rounds with changing inputs and forms; then two micro-batches with overlapping halves, and another shape."""
    group = start(rank, size, file)
    first = case_of((4, 6), 512, 8, 2)
    b = make(first, group)
    for seed in range(30):
        one_round(case_of((seed % 5, 6), 512, 8, 2, seed=seed), rank, b, **FORMS[seed % len(FORMS)])
    cases = [case_of((4, 6), 512, 8, 2, seed=100 + i) for i in range(2)]
    sent = [b.low_latency_dispatch(*case.inputs(rank)[:2], case.most, case.experts, use_fp8=False, return_recv_hook=True) for case in cases]
    for case, (got, count, handle, _, hook) in zip(cases, sent):
        hook()
        case.check_received(rank, got, count, handle)
    back = [b.low_latency_combine(case.outputs(rank), *case.inputs(rank)[1:], handle, return_recv_hook=True)
            for case, (_, _, handle, _, _) in zip(cases, sent)]
    for case, (sums, _, hook) in zip(cases, back):
        hook()
        case.check_combined(rank, sums)
    one_round(case_of((2, 3), 256, 4, 3), rank, b)
    one_round(first, rank, b)
    dist.barrier()
    b.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()  # as vLLM does on a restart
    b.low_latency_clean_mask_buffer()
    dist.barrier()
    one_round(first, rank, b)
    b.clean_low_latency_buffer(first.most, first.hidden, first.experts)
    one_round(first, rank, b)
    b.destroy()
    dist.destroy_process_group()


def one_buffer_serves_many_rounds_and_shapes():
    together(2, _many)


def _layout(rank, size, pipes, file):
    group = start(rank, size, file)
    b = deep_ep.Buffer(group)
    idx = case_of((5, 0), 256, 6, 3).inputs(rank)[1]
    to_rank, to_node, to_expert, there, event = b.get_dispatch_layout(idx, 6, async_finish=True)
    event.current_stream_wait()
    assert to_node is None and to_rank.dtype == to_expert.dtype == torch.int32 and there.dtype == torch.bool
    assert to_expert.tolist() == [int((idx == e).sum()) for e in range(6)]
    for r in range(size):
        want = ((idx >= r * 3) & (idx < r * 3 + 3)).any(1)
        assert there[:, r].tolist() == want.tolist() and to_rank[r] == want.sum()
    dist.destroy_process_group()


def layouts_of_a_dispatch():
    together(2, _layout)


def _lost(rank, size, pipes, file, shrink):
    """Rank 2 exits without closing; the others get an error, or go on without it."""
    os.environ["EPF_GPU_TIMEOUT"] = "3s"
    group = start(rank, size, file)
    case, without = (case_of((3, 4, 2), 256, 6, 3, lost=lost) for lost in ((), (2,)))
    b = make(case, group, enable_shrink=shrink)
    one_round(case, rank, b)
    dist.barrier()
    if rank == 2:
        os._exit(0)
    text = None
    x, idx, weight = case.inputs(rank)
    status = torch.full((size,), 9, dtype=torch.int32)
    try:
        for _ in range(2):
            got, count, handle, *_ = b.low_latency_dispatch(x, idx, case.most, case.experts, use_fp8=False)
            sums, *_ = b.low_latency_combine(without.outputs(rank), idx, weight, handle)
    except epf.EpfError as error:
        text = str(error)
    b.low_latency_query_mask_buffer(status)
    if shrink:
        assert text is None, text
        without.check_received(rank, got, count, handle)
        without.check_combined(rank, sums)
        b.low_latency_update_mask_buffer(2, True)
    b.destroy()
    return text, status.tolist()


def a_lost_rank_is_named_and_with_shrink_left_out():
    for shrink in (False, True):
        got = together(3, _lost, shrink, gone=(2,))
        for rank in (0, 1):
            text, status = got[rank]
            print(f"# shrink {shrink}, rank {rank} got: {text}")
            assert status == [0, 0, 1], status
            assert shrink or "rank 2" in text, text


def _shrinking(rank, size, pipes, file, direct):
    """DeepEP's simulated failures: rank 1 stops at its first dispatch, 3 at a combine, 5 at a clean. They stay alive but make no more calls."""
    os.environ["EPF_GPU_TIMEOUT"] = "3s"
    group = start(rank, size, file)
    sizes = (3, 4, 2, 5, 1, 3), 256, 12, 4
    case, gone = case_of(*sizes), set()
    b = make(case, group, enable_shrink=True, allow_nvlink_for_low_latency_mode=direct)
    status = torch.zeros(size, dtype=torch.int32)

    def fails(who):
        gone.add(who)
        return rank in gone

    def masked_are_those_gone():
        b.low_latency_query_mask_buffer(status)
        assert set(status.nonzero().squeeze(-1).tolist()) == gone, (status, gone)

    x, idx, weight = case.inputs(rank)
    for form in range(4):
        if fails(1):
            break
        hook_form = bool(form % 2)
        for _ in range(form % 2 + 1):
            got, count, handle, event, hook = b.low_latency_dispatch(x, idx, case.most, case.experts, use_fp8=False,
                                                                     async_finish=not hook_form, return_recv_hook=hook_form)
            hook() if hook_form else event.current_stream_wait()
        masked_are_those_gone()
        sent = case_of(*sizes, lost=tuple(gone))
        sent.check_received(rank, got, count, handle)
        if fails(3):
            break
        # In the first round the rows of rank 3 have arrived.
        sums, event, hook = b.low_latency_combine(sent.outputs(rank), idx, weight, handle, async_finish=not hook_form, return_recv_hook=hook_form)
        hook() if hook_form else event.current_stream_wait()
        masked_are_those_gone()
        case_of(*sizes, lost=tuple(gone)).check_combined(rank, sums)
        if fails(5):
            break
        b.clean_low_latency_buffer(case.most, case.hidden, case.experts)
        masked_are_those_gone()
    b.destroy()
    dist.barrier()
    dist.destroy_process_group()
    return sorted(gone)


def ranks_fail_one_after_another_and_the_others_go_on():
    for direct in (True, False):
        got = together(6, _shrinking, direct)
        assert got == [[1, 3, 5], [1], [1, 3, 5], [1, 3], [1, 3, 5], [1, 3, 5]], got


def _masks(rank, size, pipes, file):
    group = start(rank, size, file)
    case = case_of((3, 4), 256, 6, 3)
    b = make(case, group, enable_shrink=True)
    status = torch.full((size,), 9, dtype=torch.int32)
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0]
    b.low_latency_update_mask_buffer(1 - rank, True)
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [int(r != rank) for r in range(size)]
    got, count, handle, *_ = b.low_latency_dispatch(*case.inputs(rank)[:2], case.most, case.experts, use_fp8=False)
    case_of((3, 4), 256, 6, 3, lost=(1 - rank,)).check_received(rank, got, count, handle)
    b.low_latency_clean_mask_buffer()
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0]
    b.clean_low_latency_buffer(case.most, case.hidden, case.experts)
    one_round(case, rank, b)
    b.destroy()
    dist.destroy_process_group()


def masks_are_set_asked_and_cleared():
    together(2, _masks)


def _served(rank, size, pipes, file, sock):
    os.environ["EPF_SERVICE"] = sock
    group = start(rank, size, file)
    case = case_of((3, 4), 512, 6, 3)
    b = make(case, group)
    mode = b._fabric.mode
    for form in FORMS:
        one_round(case, rank, b, **form)
    b.destroy()
    dist.destroy_process_group()
    return mode


def a_daemon_serves_by_one_variable():
    with tempfile.TemporaryDirectory() as folder:
        daemon = subprocess.Popen([sys.argv[4], "run", "--instance=n", f"--runtime-dir={folder}", f"--stats-dir={folder}"],
                                  stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(f"{folder}/n.sock"):
                assert daemon.poll() is None, "the daemon ended"
                time.sleep(0.02)
            modes = processes(2, _served, os.path.join(folder, "meet"), f"{folder}/n.sock")
            assert modes == ["service:n"] * 2, modes
        finally:
            daemon.terminate()
            daemon.wait(60)


def a_size_hint_is_enough_and_less_is_not():
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
    assert hint(128, 7168, 4, 256) > 128 * 7168 * 256 // 4
    assert hint(129, 7168, 4, 256) > hint(128, 7168, 4, 256) < hint(128, 7296, 4, 256)
    from epf.meet import Alone
    small = deep_ep.Buffer(Alone(), num_rdma_bytes=hint(2, 512, 1, 4), low_latency_mode=True)
    raises(epf.EpfError, "", small.low_latency_dispatch, *case_of((4,), 512, 4, 2).inputs(0)[:2], 4, 4)
    small.destroy()


def memory_is_a_view():
    from epf.meet import Alone
    b = deep_ep.Buffer(Alone(), num_rdma_bytes=1 << 20, low_latency_mode=True)
    words = b.get_local_buffer_tensor(torch.int32, use_rdma_buffer=True)
    assert words.numel() == ((1 << 20) - 4096) // 4  # its first page is reserved
    part = b.get_local_buffer_tensor(torch.int32, torch.Size((2, 3)), offset=words.numel() - 6, use_rdma_buffer=True)
    part.fill_(77)
    assert words[-6:].tolist() == [77] * 6 and part.shape == (2, 3)
    raises(deep_ep.ArgumentError, "has 7 elements; from offset", b.get_local_buffer_tensor, torch.int32, torch.Size((7,)),
           words.numel() - 6, True)
    b.destroy()
    assert words[-1] == 77  # the pages live as long as the tensor


if __name__ == "__main__":
    preload("torch")
    if not hasattr(torch, "float8_e4m3fn"):
        print(f"# PyTorch {torch.__version__} has no FP8 type: codes are compared as bytes")
    run([a_size_hint_is_enough_and_less_is_not, memory_is_a_view, one_rank, two_ranks, two_ranks_by_commands_only,
         sums_at_the_sender, different_sums_by_rank_are_refused, four_ranks_of_different_sizes, three_ranks_and_sixteen_experts_a_token,
         one_buffer_serves_many_rounds_and_shapes, layouts_of_a_dispatch, masks_are_set_asked_and_cleared, a_daemon_serves_by_one_variable,
         a_lost_rank_is_named_and_with_shrink_left_out, ranks_fail_one_after_another_and_the_others_go_on])
