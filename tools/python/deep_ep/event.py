# SPDX-License-Identifier: Apache-2.0
"""Events: a point in a stream's work that another stream can wait for. On CPU tensors calls are done when they return, and events are empty."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

from epf.lowlat import check


_there: Any = None


def _cuda() -> Any:
    """torch.cuda where there is a GPU, else None. That there is one is asked once: the question takes longer than to record an event."""
    global _there
    if _there is None:
        try:
            import torch
        except ImportError:
            return None
        if torch.cuda.is_available():
            _there = torch.cuda
    return _there


class EventHandle:
    """A point in the work of a stream.

    Arguments:
        stream: torch.cuda.Stream whose work so far is meant; None: the current one. Without a GPU there is nothing to wait for.

    Attributes: event: what was recorded; None: there is nothing to wait for.
    """

    event: Any = None

    def __init__(self, stream: Any = None) -> None:
        if stream is None:
            cuda = _cuda()
            stream = None if cuda is None else cuda.current_stream()
        if stream is not None:
            self.event = stream.record_event()

    def current_stream_wait(self) -> None:
        """Lets the current stream wait for it; the CPU does not wait."""
        if self.event is not None:
            self.event.wait()

    def let_wait(self, buffer: Any) -> None:
        """Lets the communication stream of a Buffer wait for it."""
        buffer._comm_stream.wait_event(self.event)


class Recorded(EventHandle):
    """The same by an event of the C library, at a fraction of the CPU time. Not of a stream that a graph captures.

    Arguments:
        buffer: whose library; it lives as long as this.
        stream: the number of a stream of its GPU.
        call: number of the Buffer's call whose end this is; 0: of none.
    """

    def __init__(self, buffer: Any, stream: int, call: int) -> None:
        self._buffer, self._ht, self._call = buffer, buffer._ht, call
        self.event = self._ht.record(stream)

    def current_stream_wait(self) -> None:
        buffer = self._buffer
        stream = buffer._stream()
        check(self._ht.wait(self.event, stream))
        buffer._behind = self._call, stream

    def let_wait(self, buffer: Any) -> None:
        check(self._ht.wait(self.event, buffer._comm_number))

    def __del__(self) -> None:
        if self.event is not None:
            self._ht.free.append(self.event)


class EventOverlap:
    """What an asynchronous call gives: wait for it by current_stream_wait(), or as a `with` block, at whose end the stream waits.

    Attributes:
        event: the EventHandle, or None where the call was not asynchronous.
        extra_tensors: tensors that must live until the work is done; they live as long as this object.
    """

    hook_after_wait: Optional[Callable[[], None]] = None
    _release = False

    def __init__(self, event: Optional[EventHandle] = None, extra_tensors: Optional[Tuple[Any, ...]] = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self, release_handle: bool = False) -> None:
        """Lets the current stream wait for the work. release_handle: forget the event and its tensors afterwards."""
        if self.event is None:
            raise RuntimeError("EventOverlap.current_stream_wait: there is no event to wait for: the call was made without async_finish")
        self.event.current_stream_wait()
        hook, self.hook_after_wait = self.hook_after_wait, None
        if hook is not None:
            hook()
        if release_handle:
            self.event = self.extra_tensors = None

    def register_hook_after_wait(self, hook_after_wait: Callable[[], None]) -> None:
        """Has a function called once, after the next current_stream_wait()."""
        if self.hook_after_wait is not None:
            raise RuntimeError("EventOverlap: a hook is registered already")
        self.hook_after_wait = hook_after_wait

    def __call__(self, release_handle: bool = False) -> "EventOverlap":
        """For `with event(release_handle=True):`."""
        self._release = release_handle
        return self

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: object) -> None:
        if self.event is not None:
            self.current_stream_wait(self._release)
        self._release = False
