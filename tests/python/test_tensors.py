#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deep_ep.Buffer on CPU tensors: real processes with PyTorch and gloo, dispatch and combine against a reference, bit for bit.

Usage: test_tensors.py PACKAGE-DIR libepf.so libepf-ll.so ep-fabric. Skipped without PyTorch. A Buffer finds its ranks through the gloo group, whose own
meeting point is a file. Every rank computes what it must get from the seeds of all ranks; sums are also held against FP64.
"""
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ["EPF_LIBRARY"], os.environ["EPF_LL_LIBRARY"] = os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
os.environ.setdefault("EPF_GPU_TIMEOUT", "60s")
sys.path[:0] = [HERE, os.path.abspath(sys.argv[1])]

from kit import preload, processes, python_with, raises, run, skip  # noqa: E402

if not python_with("torch"):
    skip("PyTorch is not installed: the Buffer on tensors was not tested (Debian: python3-torch)")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import deep_ep  # noqa: E402
import epf  # noqa: E402

BF16_EPS = 2.0 ** -8


class Job:
    """The sizes of a job and the inputs of all its ranks, from seeds."""

    def __init__(self, ranks, tokens, hidden, experts, topk, seed=1, holes=True):
        self.ranks, self.tokens, self.hidden, self.experts, self.topk = ranks, tokens, hidden, experts, topk
        self.most = max(max(tokens), 1)
        self.local, self.rows = experts // ranks, ranks * self.most
        self.inputs = [self._input(r, seed, holes) for r in range(ranks)]

    def _input(self, rank, seed, holes):
        g = torch.Generator().manual_seed(1000 * seed + rank)
        n = self.tokens[rank]
        x = (torch.randn((n, self.hidden), generator=g) * torch.rand((n, 1), generator=g) * 8).to(torch.bfloat16)
        idx = torch.rand((n, self.experts), generator=g).argsort(1)[:, :self.topk].contiguous()
        if holes:
            idx[torch.rand(idx.shape, generator=g) < 0.15] = -1
        return x, idx, torch.rand((n, self.topk), generator=g)

    def received(self, rank):
        """For each local expert the rows in order, as (source rank, token, k)."""
        for e in range(rank * self.local, (rank + 1) * self.local):
            yield [(r, t, k) for r in range(self.ranks) for t, k in (self.inputs[r][1] == e).nonzero().tolist()]


def bits(t):
    """A tensor as integers, so that equal means the same bits."""
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def same(a, b, what):
    assert a.shape == b.shape, f"{what}: {list(a.shape)} and {list(b.shape)}"
    differ = bits(a) != bits(b)
    assert not differ.any(), f"{what}: {int(differ.sum())} of {a.numel()} differ, the first at {differ.nonzero()[0].tolist()}"


def e4m3_values():
    """The 127 values that E4M3 has above and with 0, as FP64, by the format's definition."""
    codes = torch.arange(127, dtype=torch.float64)
    exponent, mantissa = torch.div(codes, 8, rounding_mode="floor"), codes % 8
    return torch.where(exponent > 0, (1 + mantissa / 8) * 2.0 ** (exponent - 7), mantissa * 2.0 ** -9)


def to_e4m3(v):
    """Nearest code of each float, ties to the even one, saturating."""
    table = e4m3_values()
    magnitude = v.double().abs().clamp(max=448.0)
    high = torch.searchsorted(table, magnitude).clamp(max=126)
    low = (high - 1).clamp(min=0)
    up, down = table[high] - magnitude, magnitude - table[low]
    code = torch.where((up < down) | ((up == down) & (high % 2 == 0)), high, low)
    return (code + 128 * torch.signbit(v).long()).to(torch.uint8)


def quantised(x, round_scale):
    """Codes and float scales of rows, as kernels/host/README.md defines them."""
    blocks = x.float().view(x.size(0), -1, 128)
    amax = blocks.abs().amax(2).clamp(min=torch.tensor(1e-4))
    most = torch.full_like(amax, 448.0)  # a number divided by a tensor would be rounded twice
    scale, inv = amax / most, most / amax
    if round_scale:
        mantissa, exponent = torch.frexp(scale)
        power = exponent - (mantissa == 0.5).int()
        scale = torch.ldexp(torch.ones_like(scale), power)
        inv = torch.ones_like(scale) / scale
    return to_e4m3((blocks * inv.unsqueeze(2)).view(x.shape)), scale


def combined(job, rank, rows_of):
    """The weighted sums of a rank's tokens in FP32 and in FP64. rows_of(rank, token, k): the BF16 row that comes back."""
    x, idx, weight = job.inputs[rank]
    exact, acc = torch.zeros(x.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float32)
    bound = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.size(0)):
        for k in range(job.topk):
            if idx[t, k] >= 0:
                y = rows_of(rank, t, k)
                acc[t] = acc[t] + weight[t, k] * y.float()
                term = weight[t, k].double() * y.double()
                exact[t] += term
                bound[t] += term.abs()
    return acc.to(torch.bfloat16), exact, bound


def combined_at_sender(job, rank, rows_of):
    """The same where each rank adds what it holds of a token and sends that in BF16; these are added in the order of each rank's first entry."""
    x, idx, weight = job.inputs[rank]
    acc = torch.zeros(x.shape, dtype=torch.float32)
    for t in range(x.size(0)):
        parts = {}
        for k in range(job.topk):
            if idx[t, k] >= 0:
                owner = idx[t, k].item() // job.local
                parts[owner] = parts.get(owner, torch.zeros(x.size(1))) + weight[t, k] * rows_of(rank, t, k).float()
        for part in parts.values():  # in the order they were put there
            acc[t] = acc[t] + part.to(torch.bfloat16).float()
    return acc.to(torch.bfloat16), *combined(job, rank, rows_of)[1:]


def expert_output(job, source, token, k):
    """What the expert makes of a row: a function of what it received and of who it is, in BF16."""
    x, idx, _ = job.inputs[source]
    return (x[token].float() * (1.0 + idx[token, k].item() / 16)).to(torch.bfloat16)


def poison(t):
    bits(t).fill_(-7 if t.element_size() > 1 else 0xa5)


# ---------------------------------------------------------------------- what the processes run


def start(rank, size, file):
    """The gloo group of a rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    return dist.group.WORLD


def make(job, group, **named):
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(job.most, job.hidden, job.ranks, job.experts)
    return deep_ep.Buffer(group, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=job.local, explicitly_destroy=True, **named)


def check_received(job, rank, got, count, handle, fp8, round_scale, ue8m0):
    codes, scales = got if fp8 else (got, None)
    src_info, layout_range = handle[0], handle[1]
    for e, rows in enumerate(job.received(rank)):
        n = len(rows)
        assert count[e] == n, f"expert {e}: {count[e]} rows instead of {n}"
        assert src_info[e, :n].tolist() == [t for _, t, _ in rows], f"expert {e}: tokens differ"
        begin = 0
        for r in range(job.ranks):
            of = sum(1 for source, _, _ in rows if source == r)
            word = layout_range[e, r].item()
            assert (word >> 32, word & 0xffffffff) == (begin, of), f"expert {e}, rank {r}: {word >> 32}, {word & 0xffffffff}"
            begin += of
        if not n:
            continue
        x = torch.stack([job.inputs[r][0][t] for r, t, _ in rows])
        if not fp8:
            same(codes[e, :n], x, f"rows of expert {e}")
            continue
        want, scale = quantised(x, round_scale)
        same(codes[e, :n], want, f"codes of expert {e}")
        if ue8m0:
            exponents = (bits(scale) >> 23).to(torch.uint8)
            same(scales[e, :n].contiguous(), exponents.view(torch.int32), f"packed scales of expert {e}")
        else:
            same(scales[e, :n].contiguous(), scale, f"scales of expert {e}")


def outputs_of(job, rank):
    y = torch.empty((job.local, job.rows, job.hidden), dtype=torch.bfloat16)
    poison(y)
    for e, rows in enumerate(job.received(rank)):
        for i, (r, t, k) in enumerate(rows):
            y[e, i] = expert_output(job, r, t, k)
    return y


def one_round(job, rank, b, fp8=False, round_scale=False, ue8m0=False, form="sync", zero_copy=False, out=None, stats=None):
    """A dispatch and a combine in one form, compared."""
    x, idx, weight = (t.clone() for t in job.inputs[rank])
    how = {"async_finish": form == "async", "return_recv_hook": form == "hook"}
    got, count, handle, event, hook = b.low_latency_dispatch(
        x, idx, job.most, job.experts, use_fp8=fp8, round_scale=round_scale, use_ue8m0=ue8m0,
        cumulative_local_expert_recv_stats=stats[0] if stats else None, dispatch_wait_recv_cost_stats=stats[1] if stats else None, **how)
    if form == "hook":
        poison(x)  # sent already
        hook()
    elif form == "async":
        event.current_stream_wait()
    check_received(job, rank, got, count, handle, fp8, round_scale, ue8m0)
    y = outputs_of(job, rank)
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
    at_sender = b._sums == "always" or b._sums != "off" and job.tokens[rank] * job.topk >= 160 * job.ranks and (b._sums == "all" or form != "hook")
    want, exact, bound = (combined_at_sender if at_sender else combined)(job, rank, lambda r, t, k: expert_output(job, r, t, k))
    same(sums, want, "sums")
    assert out is None or sums is out
    assert ((sums.double() - exact).abs() <= bound * (1 + at_sender) * BF16_EPS + 1e-30).all(), "further from FP64 than BF16 rounding explains"
    return handle


FORMS = [dict(), dict(form="hook"), dict(form="async"), dict(zero_copy=True), dict(fp8=True), dict(fp8=True, form="hook"),
         dict(fp8=True, round_scale=True), dict(fp8=True, round_scale=True, ue8m0=True, form="async"), dict(form="hook", zero_copy=True)]


def _forms(rank, size, pipes, file, sizes, direct, at_sender):
    group = start(rank, size, file)
    job = Job(size, *sizes)
    b = make(job, group, allow_nvlink_for_low_latency_mode=direct, sum_at_sender=at_sender)
    stats = (torch.zeros(job.local, dtype=torch.int32), torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
    rounds = 0
    for form in FORMS:
        if form.get("ue8m0") and job.hidden % 512:
            continue
        out = torch.empty((job.tokens[rank], job.hidden), dtype=torch.bfloat16) if rounds % 2 else None
        one_round(job, rank, b, out=out, stats=stats, **form)
        rounds += 1
    assert stats[0].tolist() == [rounds * len(rows) for rows in job.received(rank)], stats[0]
    assert (stats[1] >= 0).all() and (stats[2] >= 0).all() and (size == 1 or stats[1].sum() > 0)
    commands = b._fabric.counter("cmds_dequeued")
    b.destroy()
    b.destroy()
    raises(deep_ep.ArgumentError, "is destroyed", b.low_latency_clean_mask_buffer)
    dist.destroy_process_group()
    return commands


def forms(size, *sizes, direct=True, at_sender=None):
    with tempfile.TemporaryDirectory() as folder:
        return processes(size, _forms, os.path.join(folder, "meet"), sizes, direct, at_sender)


def two_ranks():
    forms(2, (5, 8), 1024, 6, 4)


def two_ranks_by_commands_only():
    """What goes by stores sends no commands, and the other way round."""
    by_stores, by_commands = forms(2, (7, 3), 512, 4, 2), forms(2, (7, 3), 512, 4, 2, direct=False)
    print(f"# commands of the ranks: {by_stores} with shared pages, {by_commands} without")
    assert all(few < many for few, many in zip(by_stores, by_commands)), (by_stores, by_commands)


def sums_at_the_sender():
    forms(2, (5, 8), 1024, 6, 4, at_sender="always")
    forms(4, (0, 1, 9, 4), 640, 12, 3, direct=False, at_sender="always")
    forms(2, (39, 40), 128, 16, 8, at_sender="all")  # 40 are many
    forms(2, (41, 3), 128, 16, 8, direct=False, at_sender="auto")


def _different_wishes(rank, size, pipes, file):
    group = start(rank, size, file)
    raises(deep_ep.ArgumentError, r"by rank: \['all', 'off'\]", make, Job(size, (1, 1), 512, 2, 1), group, sum_at_sender=("all", "off")[rank])
    dist.destroy_process_group()


def ranks_that_want_different_sums_are_told():
    with tempfile.TemporaryDirectory() as folder:
        processes(2, _different_wishes, os.path.join(folder, "meet"))


def four_ranks_of_different_sizes():
    forms(4, (0, 1, 9, 4), 640, 12, 3)


def three_ranks_and_sixteen_experts_a_token():
    forms(3, (3, 0, 6), 512, 21, 16)


def one_rank():
    forms(1, (6,), 512, 5, 5)


def _many(rank, size, pipes, file):
    """One Buffer, many rounds of changing inputs and forms; then two micro-batches whose halves overlap, and another shape."""
    group = start(rank, size, file)
    first = Job(size, (4, 6), 512, 8, 2)
    b = make(first, group)
    for seed in range(30):
        one_round(Job(size, (seed % 5, 6), 512, 8, 2, seed=seed), rank, b, **FORMS[seed % len(FORMS)])
    jobs = [Job(size, (4, 6), 512, 8, 2, seed=100 + i) for i in range(2)]
    sent = [b.low_latency_dispatch(job.inputs[rank][0], job.inputs[rank][1], job.most, job.experts, use_fp8=False, return_recv_hook=True)
            for job in jobs]
    for job, (got, count, handle, _, hook) in zip(jobs, sent):
        hook()
        check_received(job, rank, got, count, handle, False, False, False)
    back = [b.low_latency_combine(outputs_of(job, rank), job.inputs[rank][1], job.inputs[rank][2], handle, return_recv_hook=True)
            for job, (_, _, handle, _, _) in zip(jobs, sent)]
    for job, (sums, _, hook) in zip(jobs, back):
        hook()
        same(sums, combined(job, rank, lambda r, t, k: expert_output(job, r, t, k))[0], "sums of overlapping rounds")
    one_round(Job(size, (2, 3), 256, 4, 3), rank, b)
    one_round(first, rank, b)
    dist.barrier()
    b.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()  # as vLLM does when it begins again
    b.low_latency_clean_mask_buffer()
    dist.barrier()
    one_round(first, rank, b)
    b.clean_low_latency_buffer(first.most, first.hidden, first.experts)
    one_round(first, rank, b)
    b.destroy()
    dist.destroy_process_group()


def one_buffer_serves_many_rounds_and_shapes():
    with tempfile.TemporaryDirectory() as folder:
        processes(2, _many, os.path.join(folder, "meet"))


def _layout(rank, size, pipes, file):
    group = start(rank, size, file)
    job = Job(size, (5, 0), 256, 6, 3)
    b = deep_ep.Buffer(group)
    idx = job.inputs[rank][1]
    to_rank, to_node, to_expert, there, event = b.get_dispatch_layout(idx, 6, async_finish=True)
    event.current_stream_wait()
    assert to_node is None and to_rank.dtype == to_expert.dtype == torch.int32 and there.dtype == torch.bool
    assert to_expert.tolist() == [int((idx == e).sum()) for e in range(6)]
    for r in range(size):
        want = ((idx >= r * 3) & (idx < r * 3 + 3)).any(1)
        assert there[:, r].tolist() == want.tolist() and to_rank[r] == want.sum()
    dist.destroy_process_group()


def layouts_of_a_dispatch():
    with tempfile.TemporaryDirectory() as folder:
        processes(2, _layout, os.path.join(folder, "meet"))
    from deep_ep.layout import dispatch_layout
    idx = torch.tensor([[0, 17, -1], [31, 30, 8]])
    to_rank, to_node, to_expert, there = dispatch_layout(torch, idx, 32, 16)
    assert to_node.tolist() == [2, 2] and to_rank.tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 1] + [0] * 6 + [1] and there.sum() == 4


def _lost(rank, size, pipes, file, shrink):
    """Rank 2 goes away without a word; the others get an error, or go on without it."""
    os.environ["EPF_GPU_TIMEOUT"] = "3s"
    group = start(rank, size, file)
    job = Job(size, (3, 4, 2), 256, 6, 3)
    b = make(job, group, enable_shrink=shrink)
    one_round(job, rank, b)
    dist.barrier()
    if rank == 2:
        os._exit(0)
    told = None
    x, idx, weight = job.inputs[rank]
    status = torch.full((size,), 9, dtype=torch.int32)
    try:
        for _ in range(2):
            got, count, handle, *_ = b.low_latency_dispatch(x, idx, job.most, job.experts, use_fp8=False)
            sums, *_ = b.low_latency_combine(outputs_without(job, rank, {2}), idx, weight, handle)
    except epf.EpfError as error:
        told = str(error)
    b.low_latency_query_mask_buffer(status)
    if shrink:
        assert told is None, told
        for e, rows in enumerate(job.received(rank)):
            assert count[e] == sum(1 for r, _, _ in rows if r != 2)
        alive = Job(size, (3, 4, 2), 256, 6, 3)
        alive.inputs[rank][1][idx >= 4] = -1  # the lost rank's experts
        same(sums, combined(alive, rank, lambda r, t, k: expert_output(job, r, t, k))[0], "sums without the lost rank")
        b.low_latency_update_mask_buffer(2, True)
    b.destroy()
    return told, status.tolist()


def outputs_without(job, rank, lost):
    """outputs_of(), the rows of some ranks left out."""
    y = torch.zeros((job.local, job.rows, job.hidden), dtype=torch.bfloat16)
    for e, rows in enumerate(job.received(rank)):
        for i, (r, t, k) in enumerate([row for row in rows if row[0] not in lost]):
            y[e, i] = expert_output(job, r, t, k)
    return y


def a_lost_rank_is_named_and_with_shrink_left_out():
    for shrink in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            got = processes(3, _lost, os.path.join(folder, "meet"), shrink, gone=(2,))
        for rank in (0, 1):
            told, status = got[rank]
            print(f"# shrink {shrink}, rank {rank} got: {told}")
            assert status == [0, 0, 1], status
            assert shrink or "rank 2" in told, told


def _shrinking(rank, size, pipes, file, direct):
    """DeepEP's simulated failures: rank 1 goes at its first dispatch, 3 at a combine, 5 at a clean. They stay alive and make no call any more."""
    os.environ["EPF_GPU_TIMEOUT"] = "3s"
    group = start(rank, size, file)
    job = Job(size, (3, 4, 2, 5, 1, 3), 256, 12, 4)
    b = make(job, group, enable_shrink=True, allow_nvlink_for_low_latency_mode=direct)
    status, gone = torch.zeros(size, dtype=torch.int32), set()

    def fails(who):
        gone.add(who)
        return rank in gone

    def masked_are_those_gone():
        b.low_latency_query_mask_buffer(status)
        assert set(status.nonzero().squeeze(-1).tolist()) == gone, (status, gone)

    x, idx, weight = job.inputs[rank]
    for form in range(4):
        if fails(1):
            break
        hook_form = bool(form % 2)
        for _ in range(form % 2 + 1):
            got, count, handle, event, hook = b.low_latency_dispatch(x, idx, job.most, job.experts, use_fp8=False,
                                                                     async_finish=not hook_form, return_recv_hook=hook_form)
            hook() if hook_form else event.current_stream_wait()
        masked_are_those_gone()
        assert count.tolist() == [sum(1 for r, _, _ in rows if r not in gone) for rows in job.received(rank)]
        if fails(3):
            break
        y = outputs_without(job, rank, gone if form else gone - {3})  # in the first round 3's rows have come
        sums, event, hook = b.low_latency_combine(y, idx, weight, handle, async_finish=not hook_form, return_recv_hook=hook_form)
        hook() if hook_form else event.current_stream_wait()
        masked_are_those_gone()
        alive = Job(size, job.tokens, 256, 12, 4)
        for lost in gone:
            alive.inputs[rank][1][(idx >= 2 * lost) & (idx < 2 * lost + 2)] = -1
        same(sums, combined(alive, rank, lambda r, t, k: expert_output(job, r, t, k))[0], "sums without the lost ranks")
        if fails(5):
            break
        b.clean_low_latency_buffer(job.most, job.hidden, job.experts)
        masked_are_those_gone()
    b.destroy()
    dist.barrier()
    dist.destroy_process_group()
    return sorted(gone)


def ranks_fail_one_after_another_and_the_others_go_on():
    for direct in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            got = processes(6, _shrinking, os.path.join(folder, "meet"), direct)
        assert got == [[1, 3, 5], [1], [1, 3, 5], [1, 3], [1, 3, 5], [1, 3, 5]], got


def _masks(rank, size, pipes, file):
    group = start(rank, size, file)
    job = Job(size, (3, 4), 256, 6, 3)
    b = make(job, group, enable_shrink=True)
    status = torch.full((size,), 9, dtype=torch.int32)
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0]
    b.low_latency_update_mask_buffer(1 - rank, True)
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [int(r != rank) for r in range(size)]
    _, count, *_ = b.low_latency_dispatch(*job.inputs[rank][:2], job.most, job.experts, use_fp8=False)
    assert count.tolist() == [sum(1 for r, _, _ in rows if r == rank) for rows in job.received(rank)]
    b.low_latency_clean_mask_buffer()
    b.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0, 0]
    b.clean_low_latency_buffer(job.most, job.hidden, job.experts)
    one_round(job, rank, b)
    b.destroy()
    dist.destroy_process_group()


def masks_are_set_asked_and_cleared():
    with tempfile.TemporaryDirectory() as folder:
        processes(2, _masks, os.path.join(folder, "meet"))


def _served(rank, size, pipes, file, sock):
    os.environ["EPF_SERVICE"] = sock
    group = start(rank, size, file)
    job = Job(size, (3, 4), 512, 6, 3)
    b = make(job, group)
    mode = b._fabric.mode
    for form in FORMS:
        one_round(job, rank, b, **form)
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
    job = Job(1, (4,), 512, 4, 2)
    small = deep_ep.Buffer(Alone(), num_rdma_bytes=hint(2, 512, 1, 4), low_latency_mode=True)
    raises(epf.EpfError, "", small.low_latency_dispatch, *job.inputs[0][:2], 4, 4)
    small.destroy()


def memory_is_a_view():
    from epf.meet import Alone
    b = deep_ep.Buffer(Alone(), num_rdma_bytes=1 << 20, low_latency_mode=True)
    words = b.get_local_buffer_tensor(torch.int32, use_rdma_buffer=True)
    assert words.numel() == ((1 << 20) - 4096) // 4  # a page at its head is not given out
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
        print(f"# PyTorch {torch.__version__} has no FP8 type: codes are looked at as bytes")
    run([a_size_hint_is_enough_and_less_is_not, memory_is_a_view, one_rank, two_ranks, two_ranks_by_commands_only,
         sums_at_the_sender, ranks_that_want_different_sums_are_told, four_ranks_of_different_sizes, three_ranks_and_sixteen_experts_a_token,
         one_buffer_serves_many_rounds_and_shapes, layouts_of_a_dispatch, masks_are_set_asked_and_cleared, a_daemon_serves_by_one_variable,
         a_lost_rank_is_named_and_with_shrink_left_out, ranks_fail_one_after_another_and_the_others_go_on])
