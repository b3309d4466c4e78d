# SPDX-License-Identifier: Apache-2.0
"""How the high-throughput calls are ordered on the streams of a GPU."""
from __future__ import annotations

from typing import Any, Optional, Union

from epf.lowlat import check

from .checks import need
from .event import EventHandle, EventOverlap


class Plain:
    """A call on the current stream, which nobody has to wait for, or on CPU tensors: it has run when it returns."""
    __slots__ = ("stream", "ended", "_async")
    capturing = False

    def __init__(self, stream: Optional[int], async_finish: bool) -> None:
        self.stream, self._async = stream, async_finish
        self.ended: Optional[EventOverlap] = None

    def end(self, reads: tuple, writes: tuple) -> EventOverlap:
        self.ended = event = EventOverlap(EventHandle() if self._async else None)
        return event

    def go_on(self) -> None:
        self.ended = None

    def give_up(self) -> None:
        pass


class Call:
    """A call on the communication stream: what it waits for, where its outputs are allocated, and the event it gives.

    Arguments:
        event: what to wait for in place of the current stream; may be None.
        on_comm: outputs are allocated on the communication stream, which is the current one until end().

    Attributes: ended: the event that end() gave; None: the call has not ended.
    """
    __slots__ = ("stream", "ended", "capturing", "_buffer", "_async", "_on_comm", "_comm", "_from", "_current")

    def __init__(self, buffer: Any, event: Optional[EventHandle], async_finish: bool, on_comm: bool) -> None:
        self._buffer, self._async, self._on_comm = buffer, async_finish, on_comm
        self.ended: Optional[EventOverlap] = None
        self._comm = comm = buffer._comm_stream
        self.stream = stream = buffer._comm_number
        self.capturing = capturing = buffer._capturing()
        self._from = current = buffer._stream()
        self._current = buffer._current_stream() if on_comm or capturing else None
        before, buffer._last_stream = buffer._last_stream, stream
        buffer._calls += 1
        if event is not None:
            event.let_wait(buffer)
        elif capturing:
            comm.wait_stream(self._current)
        else:
            check(buffer._ht.order(current, stream))
        # What is captured cannot wait for what is not: who replays a graph orders that.
        if before is not None and before != stream and not capturing and (event is not None or before != current):
            check(buffer._ht.order(before, stream))
        if on_comm:
            buffer._torch.cuda.set_stream(comm)

    def end(self, reads: tuple, writes: tuple) -> EventOverlap:
        """Ends the call. reads, writes: tensors that others made and its kernels read, and those that it made, or that calls on another stream may read;
        None among them: there is none."""
        buffer, comm = self._buffer, self._comm
        if self._on_comm:
            buffer._torch.cuda.set_stream(self._current)
        if self._async:
            for t in reads:
                if t is not None:
                    t.record_stream(comm)
        else:  # the current stream, whose they are, waits for what reads them
            self._join()
        # What was made in the communication stream's own memory is used on the caller's stream, and the other way round.
        user = self._current if self._on_comm else comm if self._async else None
        if user is not None:
            for t in writes:
                if t is not None:
                    t.record_stream(user)
        handle = None
        if self._async:
            handle = EventHandle(comm) if self.capturing else EventHandle.of_call(buffer)
        self.ended = event = EventOverlap(handle)
        return event

    def go_on(self) -> None:
        """More follows of a call that was ended; end() comes once more."""
        self.ended = None
        if self._on_comm:
            self._buffer._torch.cuda.set_stream(self._comm)

    def _join(self) -> None:
        """Lets the caller's stream wait for the call."""
        if self.capturing:
            self._current.wait_stream(self._comm)
            return
        buffer, current = self._buffer, self._from
        check(buffer._ht.order(self.stream, current))
        buffer._behind = buffer._calls, current

    def give_up(self) -> None:
        if self._on_comm:
            self._buffer._torch.cuda.set_stream(self._current)


Order = Union[Call, Plain]


def begin(buffer: Any, where: str, previous: Optional[EventOverlap], async_finish: bool, on_comm_stream: bool, whole: bool = False) -> Order:
    """Begins a call. A synchronous call that waits for no event runs on the current stream, so that nothing has to order two streams; others, and those of
    a graph that is captured, run on the communication stream. Calls follow each other on the device whichever streams they use.

    Arguments:
        whole: PyTorch operations between begin and end are part of the call: its stream is the current one until end(), and outputs are allocated
            there.
    """
    if on_comm_stream and not whole:
        need(previous is not None and async_finish, where,
             "allocate_on_comm_stream needs previous_event and async_finish: nothing else orders the communication stream behind the caller's work")
    event = None if previous is None else previous.event
    if event is not None and event.event is None:
        event = None
    stays = event is None and not async_finish and not on_comm_stream
    if not buffer._on_gpu:
        return Plain(None, async_finish)
    if not stays or buffer._capturing():
        return Call(buffer, event, async_finish, on_comm_stream or whole)
    stream, before = buffer._stream(), buffer._last_stream
    if stream != before:
        if before is not None and buffer._behind != (buffer._calls, stream):
            check(buffer._ht.order(before, stream))
        buffer._last_stream = stream
    buffer._calls += 1
    return Plain(stream, False)
