# SPDX-License-Identifier: Apache-2.0
"""How the high-throughput calls are ordered on the streams of a GPU."""
from __future__ import annotations

from typing import Any, Optional, Union

from .checks import need
from .event import EventHandle, EventOverlap


class Call:
    """One call: the stream it runs on, what it waits for, where its outputs are allocated, and the event it gives. A synchronous call runs on the current
    stream, so that nothing has to order two streams; others, and those of a graph that is captured, run on the communication stream. Calls follow each
    other on the device whichever streams they use. On CPU tensors a call has run when it returns, and nothing of this happens.

    Arguments:
        whole: PyTorch operations between begin and end are part of the call: its stream is the current one until end(), and outputs are allocated
            there.
    """

    def __init__(self, buffer: Any, where: str, previous: Optional[EventOverlap], async_finish: bool, on_comm_stream: bool, whole: bool = False) -> None:
        need(whole or not on_comm_stream or (previous is not None and async_finish), where,
             "allocate_on_comm_stream needs previous_event and async_finish: nothing else orders the communication stream behind the caller's work")
        self._cuda = buffer._torch.cuda if buffer._on_gpu else None
        self._async, self._on_comm = async_finish, on_comm_stream
        self.capturing = False
        if self._cuda is None:
            self.stream = None
            return
        event = previous.event.event if previous is not None and previous.event is not None else None
        self.capturing = capturing = buffer._capturing()
        comm = buffer._comm_stream
        self._current = None
        if async_finish or event is not None or capturing or on_comm_stream:
            self._on_comm = on_comm_stream or whole
            self._current, self._comm = buffer._current_stream(), comm
            comm.wait_stream(self._current) if event is None else comm.wait_event(event)
            self.stream = comm.cuda_stream
        else:
            self.stream = buffer._stream()
        before, buffer._last_stream = buffer._last_stream, self.stream
        # What is captured cannot wait for what is not: who replays a graph orders that.
        waited = self._current is not None and event is None and before == self._current.cuda_stream
        if before is not None and before != self.stream and not capturing and not waited:
            after = comm if self._current is not None else self._cuda.current_stream(buffer.device)
            after.wait_stream(comm if before == comm.cuda_stream else self._cuda.ExternalStream(before, buffer.device))
        if self._on_comm:
            self._cuda.set_stream(comm)

    def end(self, reads: tuple, writes: tuple) -> EventOverlap:
        """Ends the call. reads, writes: tensors that others made and its kernels read, and those that it made, or that calls on another stream may read;
        None among them: there is none."""
        if self._cuda is None:
            return EventOverlap(EventHandle() if self._async else None)
        if self._on_comm:
            self._cuda.set_stream(self._current)
        if not self._async:
            if self._current is not None:
                self._current.wait_stream(self._comm)
            reads = ()  # the current stream, whose they are, waits for what reads them
        for t in reads:
            if t is not None:
                t.record_stream(self._comm)
        # What was made in the communication stream's own memory is used on the caller's stream, and the other way round.
        user = self._current if self._on_comm else self._comm if self._async else None
        for t in writes if user is not None else ():
            if t is not None:
                t.record_stream(user)
        return EventOverlap(EventHandle(self._comm) if self._async else None)

    def give_up(self) -> None:
        if self._cuda is not None and self._on_comm:
            self._cuda.set_stream(self._current)


class Plain:
    """A synchronous call on the stream of the call before it, or on CPU tensors: there is nothing to order, wait for or record."""
    __slots__ = ("stream",)
    capturing = False

    def __init__(self, stream: Optional[int]) -> None:
        self.stream = stream

    def end(self, reads: tuple, writes: tuple) -> EventOverlap:
        return EventOverlap()

    def give_up(self) -> None:
        pass


Order = Union[Call, Plain]


def begin(buffer: Any, where: str, previous: Optional[EventOverlap], async_finish: bool, on_comm_stream: bool, whole: bool = False) -> Order:
    """Begins a call; arguments as of Call."""
    if previous is None and not async_finish and not on_comm_stream:
        stream = buffer._stream()
        if stream == buffer._last_stream and not buffer._capturing():
            return Plain(stream)
    return Call(buffer, where, previous, async_finish, on_comm_stream, whole)
