#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package without a library, a GPU or PyTorch: imports, and the error of each wrong argument.

Usage: test_arguments.py PACKAGE-DIR. A stand-in for PyTorch (standin/) provides tensors without values; calls into the C library are recorded.
test_call_sites.py replays the calls of real programs, test_streams.py has the order of calls on streams.
"""
import errno
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.abspath(sys.argv[1])
sys.path[:0] = [HERE, PACKAGE, os.path.join(HERE, "standin")]

import torch  # noqa: E402  the stand-in

import deep_ep  # noqa: E402
import epf  # noqa: E402
from epf import lowlat  # noqa: E402
from kit import raises, run  # noqa: E402
from recorder import EXPERTS, HIDDEN, LOCAL, RANKS, ROWS, TOKENS, TOPK, TwoRanks, buffer, dispatched, index, outputs, weights, x  # noqa: E402

Wrong = deep_ep.ArgumentError


# ---------------------------------------------------------------------- importing


def python(code, **environment):
    """Runs code in a fresh interpreter with only the package; returns its output."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("EPF_")}
    env.update(PYTHONPATH=PACKAGE, PYTHONNOUSERSITE="1", **environment)
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def imports_without_torch():
    assert python("import sys, deep_ep, epf; print('torch' in sys.modules)") == "False"


def missing_torch_is_reported():
    got = python("import deep_ep\ntry: deep_ep.Buffer(object())\nexcept Exception as e: print(type(e).__name__, e)")
    assert got.startswith("Unavailable") and "PyTorch is not installed" in got, got
    got = python("import deep_ep\ntry: deep_ep.topk_idx_t\nexcept AttributeError as e: print(e)")
    assert "torch.int64" in got and "not installed" in got, got
    got = python("import deep_ep\ntry: deep_ep.ElasticBuffer(object())\nexcept Exception as e: print(type(e).__name__, e)")
    assert got.startswith("Unavailable") and "PyTorch is not installed" in got, got


def missing_library_is_reported():
    got = python("import epf; print(epf.why_not())", EPF_LIBRARY="/nowhere/libepf.so")
    assert "/nowhere/libepf.so" in got and "EPF_LIBRARY" in got and "\n" not in got, got
    got = python("import deep_ep\ntry: deep_ep.Buffer.get_low_latency_rdma_size_hint(128, 7168, 4, 256)\nexcept Exception as e: print(e)",
                 EPF_LIBRARY="/nowhere/libepf.so")
    assert "/nowhere/libepf.so" in got, got


def missing_gpu_is_reported():
    real = lowlat.load
    lowlat.load = lambda: None
    try:
        why = epf.why_not()
        assert "no GPU" in why and "CUDA_VISIBLE_DEVICES" in why, why
        assert epf.why_not("cpu") is None and not epf.available()
    finally:
        lowlat.load = real


def topk_idx_t_is_int64():
    assert deep_ep.topk_idx_t is torch.int64


# ---------------------------------------------------------------------- the Buffer


def wrong_buffers():
    raises(Wrong, "neither group nor comm", deep_ep.Buffer, None)
    raises(Wrong, "num_nvl_bytes is -1", deep_ep.Buffer, TwoRanks(), -1)
    raises(Wrong, "num_rdma_bytes is 1.5", deep_ep.Buffer, TwoRanks(), 0, 1.5)
    raises(Wrong, "num_rdma_bytes is 0; low-latency mode needs", deep_ep.Buffer, TwoRanks(), low_latency_mode=True)
    raises(Wrong, "num_qps_per_rank is 0", deep_ep.Buffer, TwoRanks(), num_qps_per_rank=0)


def without_low_latency_mode():
    b = deep_ep.Buffer(TwoRanks(), 1024, 2048)
    assert (b.rank, b.group_size, b.num_nvl_bytes, b.num_rdma_bytes, b.low_latency_mode) == (0, 2, 1024, 2048, False)
    raises(Wrong, "without low_latency_mode", b.low_latency_clean_mask_buffer)
    raises(Wrong, "CPU tensors, which have no streams", b.get_comm_stream)
    b.destroy()
    b.destroy()


def an_mpi_communicator_is_accepted():
    class Comm:
        Get_rank, Get_size, allgather = (lambda self: 1), (lambda self: 3), (lambda self, mine: (mine, mine, mine))
    b = deep_ep.Buffer(None, comm=Comm())
    assert (b.rank, b.group_size, b.group.Get_size()) == (1, 3, 3)


def high_throughput_arguments():
    b = buffer()
    raises(deep_ep.NotThereYet, "no buffer that programs may look into", b.get_local_buffer_tensor, torch.bfloat16)
    rows = torch.empty((TOKENS, 3), dtype=torch.bfloat16)
    raises(Wrong, "Buffer.dispatch: a row has 6 bytes; it must be a positive multiple of 16", b.dispatch, rows)
    raises(Wrong, "the scales of x must be a tensor", b.dispatch, (x(), torch.empty((1, 1), dtype=torch.float32)))
    raises(Wrong, "handle is a tuple; it must be the one that dispatch gave", b.combine, x(), ())
    raises(Wrong, "there are 3 experts; it must be a positive multiple of the 2 ranks", b.get_dispatch_layout, index(), 3)
    raises(Wrong, "topk_idx has dtype", b.get_dispatch_layout, weights(), EXPERTS)


def helpers():
    assert deep_ep.Buffer.is_sm90_compiled() is True
    raises(Wrong, "21 multiprocessors; it must be a positive even", deep_ep.Buffer.set_num_sms, 21)
    before = deep_ep.Buffer.num_sms
    deep_ep.Buffer.set_num_sms(24)
    assert deep_ep.Buffer.get_dispatch_config(6).num_sms == 24 and deep_ep.Buffer.get_combine_config(144).num_sms == 24
    deep_ep.Buffer.set_num_sms(before)
    event = deep_ep.Buffer.capture()
    event.current_stream_wait()
    with event:
        pass
    raises(RuntimeError, "no event to wait for", deep_ep.EventOverlap().current_stream_wait)
    seen = []
    event.register_hook_after_wait(lambda: seen.append(1))
    with event(release_handle=True):
        assert not seen
    assert seen == [1] and event.event is None


def configs():
    c = deep_ep.Config(20, 6, 256, 6, 128)
    assert c.num_max_rdma_chunked_recv_tokens == 132  # a multiple of the chunk
    assert deep_ep.Config(num_sms=24, num_max_nvl_chunked_send_tokens=8).num_sms == 24
    assert c.get_nvl_buffer_size_hint(7168 * 2, 8) > 10 * 8 * 256 * 7168 * 2 and c.get_nvl_buffer_size_hint(7168 * 2, 8) % 128 == 0
    assert c.get_rdma_buffer_size_hint(7168 * 2, 8) == 0 < c.get_rdma_buffer_size_hint(7168 * 2, 16)
    raises(Wrong, "num_max_nvl_chunked_send_tokens is 300", deep_ep.Config, 20, 300, 256)
    raises(Wrong, "at most half", deep_ep.Config, 20, 6, 256, 100, 128)


def size_hints_check_their_numbers():
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
    raises(Wrong, "hidden is 7000; it must be a multiple of 128", hint, 128, 7000, 4, 256)
    raises(Wrong, "num_experts is 255; it must be a multiple of the 4 ranks", hint, 128, 7168, 4, 255)
    raises(Wrong, "num_max_dispatch_tokens_per_rank is 0", hint, 0, 7168, 4, 256)
    raises(Wrong, "num_ranks is 0", hint, 128, 7168, 0, 256)


# ---------------------------------------------------------------------- dispatch


def wrong_dispatches():
    b = buffer()

    def refuses(pattern, x_=None, index_=None, tokens=TOKENS, experts=EXPERTS, **named):
        raises(Wrong, "^low_latency_dispatch: .*" + pattern, b.low_latency_dispatch, x() if x_ is None else x_,
               index() if index_ is None else index_, tokens, experts, **named)

    refuses("x is a list; it must be a tensor", [1, 2])
    refuses(r"x has dtype torch.float16; it must be torch.bfloat16", x(dtype=torch.float16))
    refuses("x has 3 dimensions; it must have 2", torch.empty((5, 2, 512), dtype=torch.bfloat16))
    refuses("x is on cuda:0; this Buffer works on cpu", x(device="cuda:0"))
    refuses(r"x is not contiguous; give x.contiguous\(\)", x(tokens=HIDDEN, hidden=5).as_strided((5, HIDDEN), (1, 5)))
    refuses("hidden is 1000; it must be a multiple of 128", x(hidden=1000))
    refuses("there are 9 tokens; num_max_dispatch_tokens_per_rank is 8", x(tokens=9), index(tokens=9))
    refuses(r"topk_idx has dtype torch.int32; it must be torch.int64", None, index(dtype=torch.int32))
    refuses(r"topk_idx has shape \[4, 4\]; it must have \[5 \(tokens\), any\]", None, index(tokens=4))
    refuses("top-k is 17; it must be 1 to 16", None, index(topk=17))
    refuses("num_experts is 7; it must be a multiple of the 2 ranks", experts=7)
    refuses("num_max_dispatch_tokens_per_rank is -1; it must be a positive integer", tokens=-1)
    refuses("exclude each other", async_finish=True, return_recv_hook=True)
    refuses("use_fp8 is False", use_fp8=False, round_scale=True)
    refuses("use_ue8m0 needs round_scale=True", use_ue8m0=True)
    refuses("hidden must be a multiple of 512, not 1152", x(hidden=1152), use_ue8m0=True, round_scale=True)
    refuses(r"cumulative_local_expert_recv_stats has dtype torch.int64; it must be torch.int32",
         cumulative_local_expert_recv_stats=torch.empty(3, dtype=torch.int64))
    refuses(r"cumulative_local_expert_recv_stats has shape \[6\]; it must have \[3 \(local experts\)\]",
         cumulative_local_expert_recv_stats=torch.empty(6, dtype=torch.int32))
    refuses(r"dispatch_wait_recv_cost_stats has 2 dimensions; it must have 1, \[2 \(ranks\)\]",
         dispatch_wait_recv_cost_stats=torch.empty((2, 2), dtype=torch.int64))
    raises(deep_ep.NotThereYet, "NVFP4", dispatched, b, use_nvfp4=True)
    odd = torch.Tensor((5, HIDDEN), torch.bfloat16, address=x().data_ptr() + 8)
    refuses("address that is no multiple of 16", odd)
    assert not b._ll.calls, "a call was sent nevertheless"


def a_dispatch_has_its_arguments():
    b = buffer()
    stats, cost = torch.empty(LOCAL, dtype=torch.int32), torch.empty(RANKS, dtype=torch.int64)
    rows, choice = x(), index()
    (codes, scales), count, handle, event, hook = b.low_latency_dispatch(
        rows, choice, TOKENS, EXPERTS, cumulative_local_expert_recv_stats=stats, dispatch_wait_recv_cost_stats=cost, round_scale=True,
        use_ue8m0=True)
    (_, call, halves), = b._ll.calls
    assert halves == lowlat.BOTH and hook is None and event.event is None
    assert call.size == 120 == lowlat.ctypes.sizeof(lowlat.Dispatch), call.size
    assert (call.shape.tokens_max, call.shape.hidden, call.shape.experts, call.shape.topk) == (TOKENS, HIDDEN, EXPERTS, TOPK)
    assert call.tokens == 5 and call.flags == lowlat.FP8 | lowlat.ROUND_SCALE | lowlat.UE8M0
    assert (call.x, call.topk_idx, call.recv_stats, call.wait_stats) == tuple(t.data_ptr() for t in (rows, choice, stats, cost))
    assert (call.recv_x, call.recv_scales, call.recv_count) == (codes.data_ptr(), scales.data_ptr(), count.data_ptr())
    assert (call.src_info, call.layout_range, call.src_slot) == (handle[0].data_ptr(), handle[1].data_ptr(), handle.slots)
    assert codes.dtype is torch.float8_e4m3fn and codes.shape == (LOCAL, ROWS, HIDDEN)
    assert scales.dtype is torch.int32 and scales.shape == (LOCAL, ROWS, HIDDEN // 512) and scales.stride() == (ROWS * 2, 1, ROWS)
    assert count.shape == (LOCAL,) and handle[0].shape == (LOCAL, ROWS) and handle[1].shape == (LOCAL, RANKS)
    src_info, layout_range, tokens, hidden, experts = handle
    assert (tokens, hidden, experts) == (TOKENS, HIDDEN, EXPERTS) and src_info.dtype is torch.int32 and layout_range.dtype is torch.int64
    (codes, scales), *_ = dispatched(b)
    assert scales.dtype is torch.float32 and scales.shape == (LOCAL, ROWS, HIDDEN // 128) and b._ll.calls[-1][1].flags == lowlat.FP8
    plain, *_ = dispatched(b, use_fp8=False)
    assert plain.dtype is torch.bfloat16 and b._ll.calls[-1][1].flags == 0 and b._ll.calls[-1][1].recv_scales is None


def another_shape_cleans_first():
    b = buffer()
    dispatched(b)
    dispatched(b)
    assert ("clean",) not in b._ll.calls
    b.low_latency_dispatch(x(hidden=2048), index(), TOKENS, EXPERTS)
    assert [c[0] for c in b._ll.calls] == ["dispatch", "dispatch", "clean", "dispatch"]
    *_, hook = dispatched(b, return_recv_hook=True)
    raises(Wrong, "the shape changes from .* while a hook was not called", b.low_latency_dispatch, x(hidden=2048), index(), TOKENS, EXPERTS)
    hook()


# ---------------------------------------------------------------------- memory of a GPU


class Driver:
    """A fake GPU driver for epf.shared. Rank 1 of three is out of reach."""

    def __init__(self, room=True):
        self.room, self.log = room, []

    def alloc(self, size):
        if not self.room:
            raise epf.EpfError(12, "no room")
        assert size == 2 << 20, "a block of its own"
        return 0x1000

    def handle(self, address):
        return b"handle of mine"

    def open(self, handle):
        self.log.append(("open", handle))
        return None if handle == b"far" else 0x2000

    def close(self, address):
        self.log.append(("close", address))

    def free(self, address):
        self.log.append(("free", address))


class ThreeRanks(epf.fabric.Group):
    rank, size = 0, 3

    def all_gather(self, mine):
        if not isinstance(mine, tuple):
            return [mine, None, None]
        return [mine, (mine[0], b"far"), (mine[0], b"near")]


def gpu_memory_is_mapped_and_released():
    from epf.shared import GpuShared
    driver = Driver()
    shared = GpuShared(ThreeRanks(), 4096, driver)
    assert shared.address == 0x1000 and shared.peers == [None, None, 0x2000]
    assert driver.log == [("open", b"far"), ("open", b"near")], "its own memory is not opened"
    shared.close()
    shared.close()
    assert driver.log[2:] == [("close", 0x2000), ("free", 0x1000)], driver.log
    raises(epf.EpfError, "no room", GpuShared, ThreeRanks(), 4096, Driver(room=False))


# ---------------------------------------------------------------------- combine


def wrong_combines():
    b = buffer()
    *_, handle, _, _ = dispatched(b)
    sent = len(b._ll.calls)

    def refuses(pattern, x_=None, index_=None, weights_=None, handle_=handle, **named):
        raises(Wrong, "^low_latency_combine: .*" + pattern, b.low_latency_combine, outputs() if x_ is None else x_,
               index() if index_ is None else index_, weights() if weights_ is None else weights_, handle_, **named)

    refuses("handle is a tuple; it must be the one that low_latency_dispatch gave", handle_=tuple(handle))
    refuses(r"x has shape \[3, 8, 1024\]; it must have \[3 \(local experts\), 16 \(ranks \* tokens at most\), 1024 \(hidden\)\]",
         torch.empty((LOCAL, TOKENS, HIDDEN), dtype=torch.bfloat16))
    refuses("x has dtype torch.float32", outputs(dtype=torch.float32))
    refuses(r"topk_idx has shape \[5, 3\]", None, index(topk=3))
    refuses(r"topk_weights has shape \[4, 4\]", None, None, weights(tokens=4))
    refuses(r"topk_weights has dtype torch.bfloat16; it must be torch.float32", None, None, weights(dtype=torch.bfloat16))
    refuses(r"out has shape \[4, 1024\]; it must have \[5 \(tokens\), 1024 \(hidden\)\]", out=x(tokens=4))
    refuses("there are 9 tokens", None, index(tokens=9), weights(tokens=9))
    refuses(r"combine_wait_recv_cost_stats has shape \[3\]", combine_wait_recv_cost_stats=torch.empty(3, dtype=torch.int64))
    refuses("exclude each other", async_finish=True, return_recv_hook=True)
    raises(Wrong, "use_logfmt and zero_copy exclude", b.low_latency_combine, outputs(), index(), weights(), handle, use_logfmt=True,
           zero_copy=True)
    raises(deep_ep.NotThereYet, "overlap", b.low_latency_combine, outputs(), index(), weights(), handle, overlap=True)
    raises(Wrong, "handle is a int", b.get_next_low_latency_combine_buffer, 3)
    assert len(b._ll.calls) == sent, "a call was sent nevertheless"


def a_combine_has_its_arguments():
    b = buffer()
    *_, handle, _, _ = dispatched(b)
    rows, choice, weight, out = outputs(), index(), weights(), x()
    got, event, hook = b.low_latency_combine(rows, choice, weight, handle, use_logfmt=True, out=out)
    _, call, halves = b._ll.calls[-1]
    assert got is out and hook is None and event.event is None and halves == lowlat.BOTH
    assert call.size == 104 == lowlat.ctypes.sizeof(lowlat.Combine), call.size
    assert call.flags == lowlat.LOGFMT and call.tokens == 5 and call.wait_stats is None
    assert (call.x, call.topk_idx, call.topk_weights, call.out) == tuple(t.data_ptr() for t in (rows, choice, weight, out))
    assert (call.src_info, call.src_slot, call.layout_range) == (handle[0].data_ptr(), handle.slots, handle[1].data_ptr())
    got, _, _ = b.low_latency_combine(rows, choice, weight, handle, zero_copy=True)
    _, call, _ = b._ll.calls[-1]
    assert call.flags & ~(lowlat.SUM_AT_SENDER | lowlat.SUM_IF_MANY) == lowlat.ZERO_COPY and call.x == b._ll.buffer.data_ptr() and got.shape == (5, HIDDEN)


def sums_at_the_sender_are_requested():
    always, many = lowlat.SUM_AT_SENDER, lowlat.SUM_AT_SENDER | lowlat.SUM_IF_MANY

    def what(said=None, **more):
        b = buffer(**({} if said is None else {"sum_at_sender": said}))
        *_, handle, _, _ = dispatched(b)
        b.low_latency_combine(outputs(), index(), weights(), handle, **more)
        (_, sent, _), (_, back, _) = b._ll.calls
        assert sent.src_row == handle.rows and handle.slots == handle[0].data_ptr() + 4 * LOCAL * ROWS
        words = 2 * LOCAL * ROWS + (0 if handle.rows is None else RANKS * (TOKENS * TOPK + 1))
        assert len(handle[0]._memory) >= 4 * words and handle.rows in (None, handle.slots + 4 * LOCAL * ROWS)
        assert back.src_row == (sent.src_row if back.flags & lowlat.SUM_AT_SENDER else None)
        return back.flags
    assert what("off") == 0 and what("off", return_recv_hook=True) == 0
    assert what() == what("auto") == what("auto", async_finish=True) == what("auto", return_recv_hook=True) == many
    assert what("always", return_recv_hook=True) == always and what("always", zero_copy=True) == always | lowlat.ZERO_COPY
    assert what("always", use_logfmt=True) == lowlat.LOGFMT
    os.environ["EPF_LL_SENDER_SUMS"] = "always"
    assert what(return_recv_hook=True) == always and what("off") == 0
    os.environ["EPF_LL_SENDER_SUMS"] = "yes"
    raises(Wrong, "EPF_LL_SENDER_SUMS, is 'yes'; it must be one of off, auto", buffer)
    del os.environ["EPF_LL_SENDER_SUMS"]


# ---------------------------------------------------------------------- ranks that are lost


def lost_ranks():
    late = epf.EpfError(110, "rank 1 did not come in 10 s and is masked")
    b = buffer()
    b._ll.reports.append(late)
    raises(epf.EpfError, "rank 1 did not come", dispatched, b)
    b = buffer(enable_shrink=True)
    b._ll.reports.append(late)
    dispatched(b)
    b._ll.reports.append(epf.EpfError(5, "a command failed"))
    raises(epf.EpfError, "a command failed", dispatched, b)


def masks():
    b = buffer(enable_shrink=True)
    status = torch.empty(RANKS, dtype=torch.int32)
    b.low_latency_update_mask_buffer(1, True)
    b.low_latency_update_mask_buffer(1)
    b.low_latency_query_mask_buffer(status)
    b.low_latency_clean_mask_buffer()
    b.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
    assert b._ll.calls == [("mask", 1, True), ("mask", 1, False), ("query", status.data_ptr()), ("mask clean",), ("clean",)]
    raises(Wrong, "rank_to_mask is 2; ranks are 0 to 1", b.low_latency_update_mask_buffer, 2, True)
    raises(Wrong, "rank 0 would mask itself", b.low_latency_update_mask_buffer, 0, True)
    raises(Wrong, r"mask_status has shape \[3\]", b.low_latency_query_mask_buffer, torch.empty(3, dtype=torch.int32))
    raises(Wrong, "mask_status has dtype torch.int64", b.low_latency_query_mask_buffer, torch.empty(2, dtype=torch.int64))
    raises(Wrong, "hidden is 1000", b.clean_low_latency_buffer, TOKENS, 1000, EXPERTS)
    for shrink in (True, False):  # a missing rank is reported at once
        b = buffer(enable_shrink=shrink)
        b._ll.reports.append(epf.EpfError(errno.ETIMEDOUT, "rank 1 did not come"))
        if shrink:
            b.clean_low_latency_buffer(TOKENS, HIDDEN, EXPERTS)
        else:
            raises(epf.EpfError, "rank 1 did not come", b.clean_low_latency_buffer, TOKENS, HIDDEN, EXPERTS)
        assert not b._ll.reports


run([imports_without_torch, missing_torch_is_reported, missing_library_is_reported, missing_gpu_is_reported, topk_idx_t_is_int64,
     wrong_buffers, without_low_latency_mode, an_mpi_communicator_is_accepted, high_throughput_arguments, helpers, configs,
     size_hints_check_their_numbers, wrong_dispatches, a_dispatch_has_its_arguments, another_shape_cleans_first,
     gpu_memory_is_mapped_and_released, wrong_combines, a_combine_has_its_arguments, sums_at_the_sender_are_requested, lost_ranks, masks])
