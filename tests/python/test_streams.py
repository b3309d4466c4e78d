#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Streams and events of the Python package: the order of its calls on the streams of a GPU, and the events it returns and accepts.

Usage: test_streams.py PACKAGE-DIR. The GPU is the one of the stand-in for PyTorch (standin/), which logs what happens on its streams; calls into the C
library are recorded in the same log. Each test compares the log with the expected order.
"""
import ctypes
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.abspath(sys.argv[1]), os.path.join(HERE, "standin")]

import torch  # noqa: E402  the stand-in

import deep_ep  # noqa: E402
from epf import lowlat, throughput  # noqa: E402
from kit import raises, run  # noqa: E402
from recorder import EXPERTS, RANKS, ROWS, TOKENS, buffer, dispatched, index, weights, x  # noqa: E402

Wrong = deep_ep.ArgumentError


def hooks_and_events():
    b = buffer()
    *_, event, hook = dispatched(b, return_recv_hook=True)
    assert [halves for _, _, halves in b._ll.calls] == [lowlat.SEND]
    raises(RuntimeError, "without async_finish", event.current_stream_wait)
    hook()
    assert [halves for _, _, halves in b._ll.calls] == [lowlat.SEND, lowlat.RECV]
    raises(Wrong, "called twice", hook)
    *_, event, hook = dispatched(b, async_finish=True)
    assert hook is None and b._ll.calls[-1][2] == lowlat.BOTH and event.extra_tensors
    event.current_stream_wait()


def on_gpu(test):
    """Runs a test with a fake GPU and an empty log."""
    def wrapped():
        torch.cuda.there = True
        try:
            b = buffer()
            assert str(b.device) == "cuda:0"
            rows, choice = x(device="cuda:0"), index(device="cuda:0")
            torch.cuda.log.clear()
            test(b, lambda **named: b.low_latency_dispatch(rows, choice, TOKENS, EXPERTS, **named))
        finally:
            torch.cuda.there = torch.cuda.capturing = False
            deep_ep.event._recorders.clear()
    wrapped.__name__ = test.__name__
    return wrapped


@on_gpu
def streams_and_events_are_in_order(b, dispatch):
    log, comm = torch.cuda.log, b.get_comm_stream().cuda_stream
    dispatch()
    assert log == [("launch", lowlat.BOTH, 1)], log
    log.clear()
    *_, hook = dispatch(return_recv_hook=True)
    with torch.cuda.stream(torch.cuda.Stream(number=2)):
        hook()  # on the stream that is current then
    assert log == [("launch", lowlat.SEND, 1), ("launch", lowlat.RECV, 2)], log
    log.clear()
    rows, count, handle, event, _ = dispatch(async_finish=True)
    assert all(any(t is held for held in event.extra_tensors) for t in (*rows, count, handle)), "the kernel still writes to it"
    assert log == [("wait", comm, 1), ("launch", lowlat.BOTH, comm), ("record", comm)], log
    assert torch.cuda.current_stream().cuda_stream == 1 and event.extra_tensors
    log.clear()
    with event:
        pass
    assert log == [("wait event of", 1, comm)], log
    log.clear()
    deep_ep.Buffer.capture()
    assert log == [("record", 1)], log


def with_kernels(b):
    """Gives a Buffer a Throughput whose library is played here: ("behind", a stream, another one), ("mark", a stream) and ("wait for", a stream, the one that
    was marked) are of its events; PyTorch's say "wait", "record" and "wait event of"."""
    log, marked = torch.cuda.log, {}
    pair, each = [ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * n) for n in (2, 3)]

    not_called = each(lambda *_: -1)

    class Library:
        epf_ht_check = epf_ht_wait_counts = epf_ht_close = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda ht: 0)
        epf_ht_notify, epf_ht_dispatch, epf_ht_combine = [each(lambda ht, packed, stream, name=name: log.append((name, stream)) or 0)
                                                          for name in ("notify", "dispatch", "combine")]

        def epf_ht_plan_bytes(self, ht, tokens):
            return 256

        def __getattr__(self, name):
            return not_called

        @pair
        def epf_ht_event(ht, out):
            event = 1000 + len(marked)
            marked[event] = None
            ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = event
            return 0

        @each
        def epf_ht_layout(ht, packed, stream):
            log.append(("layout", stream))
            return 0

        @each
        def epf_ht_order(ht, first, then):
            log.append(("behind", then, first))
            return 0

        @each
        def epf_ht_record(ht, event, stream):
            marked[event] = stream
            log.append(("mark", stream))
            return 0

        @each
        def epf_ht_wait(ht, event, stream):
            log.append(("wait for", stream, marked[event]))
            return 0
    b._ht = ht = throughput.Throughput.__new__(throughput.Throughput)
    ht._bind(Library(), 7)
    ht._ht, ht.nodes, ht.node_max = ctypes.c_void_p(7), 1, 1
    return marked


def ready(b):
    """with_kernels(), and memory for all calls; gives rows, topk_idx and topk_weights."""
    with_kernels(b)
    b._fits = types.SimpleNamespace(get=lambda row, other: (1 << 30, 1 << 30))
    return x(device="cuda:0"), index(device="cuda:0"), weights(device="cuda:0")


def layout_of(b):
    """A function that makes a layout call and checks the log; returns its event, and the streams that tensors were recorded for."""
    log, idx = torch.cuda.log, index(device="cuda:0")

    def ordered(*expected, **named):
        log.clear()
        *_, event = b.get_dispatch_layout(idx, EXPERTS, **named)
        assert [entry for entry in log if entry[0] != "used on"] == list(expected), log
        return event, [entry[1] for entry in log if entry[0] == "used on"]
    return ordered


@on_gpu
def high_throughput_calls_follow_each_other(b, _):
    comm, ordered = b.get_comm_stream().cuda_stream, layout_of(b)
    with_kernels(b)
    ordered(("layout", 1))
    ordered(("layout", 1))
    with torch.cuda.stream(torch.cuda.Stream(number=2)):
        ordered(("behind", 2, 1), ("layout", 2))
        ordered(("layout", 2))
    ordered(("behind", 1, 2), ("layout", 1))
    event, used = ordered(("behind", comm, 1), ("layout", comm), ("mark", comm), async_finish=True)
    assert event.event is not None and used == [comm] * 4, "topk_idx and three outputs"
    with torch.cuda.stream(torch.cuda.Stream(number=2)):
        ordered(("behind", 2, comm), ("layout", 2))
    ordered(("behind", comm, 1), ("behind", comm, 2), ("layout", comm), ("mark", comm), async_finish=True)  # behind the last call, too
    ordered(("behind", 1, comm), ("layout", 1))
    event, used = ordered(("wait event of", comm, 1), ("behind", comm, 1), ("layout", comm), ("mark", comm), previous_event=deep_ep.Buffer.capture(),
                          async_finish=True, allocate_on_comm_stream=True)
    assert used == [comm, 1, 1, 1] and torch.cuda.current_stream().cuda_stream == 1, "outputs in the communication stream's memory are used on the caller's"
    ordered(("behind", 1, comm), ("layout", 1))
    _, used = ordered(("wait event of", comm, 1), ("behind", comm, 1), ("layout", comm), ("behind", 1, comm), previous_event=deep_ep.Buffer.capture())
    assert used == [], "the current stream waits"
    ordered(("layout", 1))  # it is behind that call already
    ordered(("layout", 1), previous_event=deep_ep.EventOverlap())  # it wraps nothing


@on_gpu
def graphs_hold_events_of_pytorch(b, _):
    """What a graph captures knows no event from outside of it, and none of the library's."""
    comm, ordered = b.get_comm_stream().cuda_stream, layout_of(b)
    with_kernels(b)
    ordered(("layout", 1))
    torch.cuda.capturing = True
    ordered(("wait", comm, 1), ("layout", comm), ("wait", 1, comm))
    event, _ = ordered(("wait", comm, 1), ("layout", comm), ("record", comm), async_finish=True)
    torch.cuda.log.clear()
    event.current_stream_wait()
    assert torch.cuda.log == [("wait event of", 1, comm)]
    ordered(("wait event of", comm, comm), ("layout", comm), ("record", comm), previous_event=event, async_finish=True)
    torch.cuda.capturing = False
    ordered(("behind", 1, comm), ("layout", 1))


@on_gpu
def who_waited_for_a_call_is_behind_it(b, _):
    log, comm, ordered = torch.cuda.log, b.get_comm_stream().cuda_stream, layout_of(b)
    with_kernels(b)
    begun = ("behind", comm, 1), ("layout", comm), ("mark", comm)
    event, _ = ordered(*begun, async_finish=True)
    log.clear()
    event.current_stream_wait()
    assert log == [("wait for", 1, comm)], log
    with torch.cuda.stream(torch.cuda.Stream(number=2)):
        ordered(("behind", 2, comm), ("layout", 2))  # this one has not waited
    ordered(("behind", 1, 2), ("layout", 1))
    event, _ = ordered(*begun, async_finish=True)
    event.current_stream_wait()
    ordered(("layout", 1))
    # A wait for a call that is not the last one says nothing of the last one.
    event, _ = ordered(*begun, async_finish=True)
    ordered(*begun, async_finish=True)
    event.current_stream_wait()
    ordered(("behind", 1, comm), ("layout", 1))
    # Nor does one for a call that others, on its own stream, have followed.
    event, _ = ordered(*begun, async_finish=True)
    event.current_stream_wait()
    with torch.cuda.stream(b.get_comm_stream()):
        ordered(("layout", comm))
    ordered(("behind", 1, comm), ("layout", 1))
    # One call may wait for another one's event.
    event, _ = ordered(*begun, async_finish=True)
    ordered(("wait for", comm, comm), ("layout", comm), ("mark", comm), previous_event=event, async_finish=True)


@on_gpu
def a_layer_of_vllm_orders_streams_three_times(b, _):
    """As its high-throughput backend calls: the layout of the next layer is behind the combine that the current stream has waited for."""
    log, comm = torch.cuda.log, b.get_comm_stream().cuda_stream
    rows, idx, w = ready(b)

    def layer():
        log.clear()
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(idx, EXPERTS)
        y, *_, handle, event = b.dispatch(rows, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx,
                                          topk_weights=w, num_worst_tokens=ROWS, async_finish=True)
        event.current_stream_wait()
        *_, event = b.combine(y, handle, async_finish=True)
        event.current_stream_wait()
        return y, handle
    y, handle = layer()
    y, handle = layer()
    used = [entry for entry in log if entry[0] == "used on"]
    assert [entry for entry in log if entry[0] != "used on"] == [
        ("layout", 1), ("behind", comm, 1), ("notify", comm), ("dispatch", comm), ("mark", comm), ("wait for", 1, comm),
        ("behind", comm, 1), ("combine", comm), ("mark", comm), ("wait for", 1, comm)], log
    assert used == [("used on", comm)] * 12, "6 tensors that a dispatch reads, 4 that it makes; 1 and 1 of a combine, which need not record the handle's again"
    log.clear()
    b.combine(y, handle)
    assert log == [("combine", 1)], log
    _, _, _, _, fresh, _ = b.dispatch(rows, num_tokens_per_rank=torch.empty(RANKS, dtype=torch.int32, device="cuda:0"), num_worst_tokens=ROWS, topk_idx=idx,
                                      is_token_in_rank=torch.empty((5, RANKS), dtype=torch.bool, device="cuda:0"),
                                      num_tokens_per_expert=torch.empty(EXPERTS, dtype=torch.int32, device="cuda:0"))
    for count in (3, 2):  # after a synchronous dispatch: rows, outputs, and once the handle's
        log.clear()
        b.combine(y, fresh, async_finish=True)
        assert log.count(("used on", comm)) == count, log


@on_gpu
def a_dispatch_ends_before_its_counts_are_there(b, _):
    """The caller waits for what comes after them. If its outputs do not fit, the rows move again, into others, and it ends once more."""
    log, comm = torch.cuda.log, b.get_comm_stream().cuda_stream
    rows, idx, w = ready(b)
    b._numbers, b._host_counts = (ctypes.c_int64 * 64)(), lambda count: 0
    said = {}

    def wait_counts(host):
        log.append(("counts",))
        b._numbers[1], b._numbers[2], b._numbers[5] = said["rows"], said["rows"], throughput.FITS if said["fits"] else 0
    b._ht.wait_counts = wait_counts

    def dispatch(count, fits, **named):
        said.update(rows=count, fits=fits)
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(idx, EXPERTS)
        if "previous_event" in named:
            named["previous_event"] = deep_ep.Buffer.capture()
        log.clear()
        y, at, *_, event = b.dispatch(rows, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, topk_idx=idx, topk_weights=w,
                                      **named)
        assert y.shape[0] == at.shape[0] == count and torch.cuda.current_stream().cuda_stream == 1
        assert y.made_on == at.made_on == (comm if named.get("allocate_on_comm_stream") else 1), y.made_on
        return [entry for entry in log if entry[0] != "used on"], [entry[1] for entry in log if entry[0] == "used on"], event
    began, ends = [("behind", comm, 1), ("notify", comm), ("dispatch", comm)], [("mark", comm)]
    order, used, _ = dispatch(60, True, async_finish=True)  # there is nothing to guess by
    assert order == [("behind", comm, 1), ("notify", comm), ("counts",), ("dispatch", comm), ("mark", comm)], order
    for count in (60, 58, 62):
        order, used, event = dispatch(count, True, async_finish=True)
        assert order == began + ends + [("counts",)] and used == [comm] * 10, (order, used)
        assert event.event.event is not None
    order, used, _ = dispatch(90, False, async_finish=True)
    assert order == began + ends + [("counts",), ("dispatch", comm)] + ends and used == [comm] * 20, (order, used)
    comm_only = {"previous_event": None, "async_finish": True, "allocate_on_comm_stream": True}
    began[0:1] = [("wait event of", comm, 1), ("behind", comm, 1)]
    order, used, _ = dispatch(90, True, **comm_only)
    assert order == began + ends + [("counts",)] and used == [comm] * 6 + [1] * 4, (order, used)
    order, used, _ = dispatch(200, False, **comm_only)
    assert order == began + ends + [("counts",), ("dispatch", comm)] + ends and used == ([comm] * 6 + [1] * 4) * 2, (order, used)
    order, used, _ = dispatch(200, True)
    assert order == [("notify", 1), ("dispatch", 1), ("counts",)] and not used, (order, used)


@on_gpu
def what_is_not_of_the_last_layout_is_checked(b, _):
    rows, idx, w = ready(b)

    def of_a_layout(**others):
        per_rank, _, per_expert, in_rank, _ = b.get_dispatch_layout(idx, EXPERTS)
        return {"x": rows, "num_tokens_per_rank": per_rank, "is_token_in_rank": in_rank, "num_tokens_per_expert": per_expert, "topk_idx": idx, "topk_weights": w,
                "num_worst_tokens": ROWS, **others}
    for pattern, others in (
            ("num_tokens_per_rank has shape", {"num_tokens_per_rank": torch.empty(RANKS + 1, dtype=torch.int32, device="cuda:0")}),
            ("is_token_in_rank has shape", {"is_token_in_rank": torch.empty((6, RANKS), dtype=torch.bool, device="cuda:0")}),
            ("num_tokens_per_expert has dtype", {"num_tokens_per_expert": torch.empty(EXPERTS, dtype=torch.int64, device="cuda:0")}),
            ("num_tokens_per_expert is None", {"num_tokens_per_expert": None}), ("topk_idx has dtype", {"topk_idx": w}),
            ("topk_weights is given and topk_idx is None", {"topk_idx": None}), ("topk_weights has shape", {"topk_weights": weights(tokens=4, device="cuda:0")}),
            ("is_token_in_rank has shape", {"x": x(tokens=4, device="cuda:0")}), ("expert_alignment is 0", {"expert_alignment": 0}),
            ("num_worst_tokens is -1", {"num_worst_tokens": -1}), ("num_worst_tokens needs topk_idx", {"topk_idx": None, "topk_weights": None})):
        raises(Wrong, pattern, b.dispatch, **of_a_layout(**others))
    arguments = of_a_layout()
    for _ in range(2):  # the second time it is not the last layout's any more
        b.dispatch(**arguments)


@on_gpu
def events_are_used_again_when_nobody_has_them(b, _):
    marked = with_kernels(b)
    held = [b.get_dispatch_layout(index(device="cuda:0"), EXPERTS, async_finish=True)[-1] for _ in range(3)]
    assert len({event.event.event for event in held}) == len(marked) == 3
    numbers = [event.event.event for event in held]
    del held[1]
    again = b.get_dispatch_layout(index(device="cuda:0"), EXPERTS, async_finish=True)[-1]
    assert again.event.event == numbers[1] and len(marked) == 3
    again.current_stream_wait(release_handle=True)
    assert b._ht.free == [numbers[1]]
    # An event outlives the library: what it meant is done then.
    ht, b._ht = b._ht, None
    ht.close()
    torch.cuda.log.clear()
    held[0].current_stream_wait()
    assert torch.cuda.log == [], torch.cuda.log


@on_gpu
def events_of_programs_are_the_librarys_where_it_is_open(b, _):
    log, comm, ordered = torch.cuda.log, b.get_comm_stream().cuda_stream, layout_of(b)
    with_kernels(b)
    deep_ep.event.offer(b)

    def captured(*expected):
        log.clear()
        event = deep_ep.Buffer.capture()
        assert log == list(expected), log
        return event
    event = captured(("mark", 1))
    ordered(("wait for", comm, 1), ("layout", comm), ("mark", comm), previous_event=event, async_finish=True)
    log.clear()
    with torch.cuda.stream(torch.cuda.Stream(number=2)):
        event.current_stream_wait()
    assert log == [("wait for", 2, 1)], log
    ordered(("behind", 1, comm), ("layout", 1))  # that wait was for no call
    torch.cuda.capturing = True
    captured(("record", 1))
    torch.cuda.capturing = False
    deep_ep.EventHandle(b.get_comm_stream())
    assert log[-1] == ("record", comm), log
    offered, deep_ep.event._recorders = deep_ep.event._recorders, {1: None}
    captured(("record", 1))  # the library is open on another GPU
    deep_ep.event._recorders = offered
    ht, b._ht = b._ht, None
    captured(("record", 1))
    b._ht = ht
    captured(("mark", 1))


@on_gpu
def graphs_hold_calls_of_one_shape(b, dispatch):
    dispatch()
    torch.cuda.capturing = True
    dispatch()
    raises(Wrong, "the shape changes .* while a CUDA graph is captured", b.low_latency_dispatch, x(hidden=2048, device="cuda:0"),
           index(device="cuda:0"), TOKENS, EXPERTS)
    assert ("clean",) not in b._ll.calls


@on_gpu
def tensors_on_another_device_are_refused(b, dispatch):
    raises(Wrong, "x is on cpu; this Buffer works on cuda:0", b.low_latency_dispatch, x(), index(), TOKENS, EXPERTS)
    raises(Wrong, "x is on cuda:1; this Buffer works on cuda:0", b.low_latency_dispatch, x(device="cuda:1"), index(), TOKENS, EXPERTS)
    raises(Wrong, "topk_idx is on cpu", b.low_latency_dispatch, x(device="cuda:0"), index(), TOKENS, EXPERTS)


run([hooks_and_events, streams_and_events_are_in_order, high_throughput_calls_follow_each_other, a_layer_of_vllm_orders_streams_three_times,
     a_dispatch_ends_before_its_counts_are_there, graphs_hold_events_of_pytorch, who_waited_for_a_call_is_behind_it,
     what_is_not_of_the_last_layout_is_checked, events_are_used_again_when_nobody_has_them, events_of_programs_are_the_librarys_where_it_is_open,
     graphs_hold_calls_of_one_shape, tensors_on_another_device_are_refused])
