# SPDX-License-Identifier: Apache-2.0
"""Events: a point in a stream's work that another stream can wait for. On CPU tensors calls are done when they return, and events are empty."""
from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, Optional, Tuple

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


_recorders: Dict[int, Any] = {}  # weak references to Buffers, by GPU
_device: Callable[[], int]  # gives the current GPU


def offer(buffer: Any) -> None:
    """From now on the library of a Buffer records the events that programs make on its GPU."""
    global _device
    torch = buffer._torch
    _device = getattr(getattr(torch, "_C", None), "_cuda_getDevice", None) or torch.cuda.current_device
    _recorders[buffer._index] = weakref.ref(buffer)


def _recorder() -> Any:
    """A Buffer whose library can record an event of the current stream; None: there is none, or a graph captures the stream."""
    found = _recorders.get(_device()) if _recorders else None
    buffer = None if found is None else found()
    return None if buffer is None or buffer._ht is None or buffer._capturing() else buffer


class EventHandle:
    """A point in the work of a stream. An event of the C library where one is open on this GPU, at a fraction of the CPU time of PyTorch's.

    Arguments:
        stream: torch.cuda.Stream whose work so far is meant; None: the current one. Without a GPU there is nothing to wait for.

    Attributes: event: what was recorded; None: there is nothing to wait for.
    """

    event: Any = None
    _ht: Any = None  # whose event it is; None: PyTorch's
    _buffer: Any = None  # lives as long as this, so that the library does
    _call = 0  # the call of the Buffer whose end this is

    def __init__(self, stream: Any = None) -> None:
        if stream is None:
            buffer = _recorder()
            if buffer is not None:
                self._record(buffer, buffer._stream())
                return
            cuda = _cuda()
            stream = None if cuda is None else cuda.current_stream()
        if stream is not None:
            self.event = stream.record_event()

    @classmethod
    def of_call(cls, buffer: Any) -> "EventHandle":
        """The end of a Buffer's last call on its communication stream, which no graph captures."""
        handle = cls.__new__(cls)
        handle._call = buffer._calls
        handle._record(buffer, buffer._comm_number)
        return handle

    def _record(self, buffer: Any, stream: int) -> None:
        self._buffer, self._ht = buffer, buffer._ht
        self.event = self._ht.record(stream)

    def __del__(self) -> None:
        if self._ht is not None and self.event is not None:
            self._ht.free.append(self.event)

    def current_stream_wait(self) -> None:
        """Lets the current stream wait for it; the CPU does not wait."""
        if self._ht is not None:
            buffer = self._buffer
            stream = buffer._stream()
            check(self._ht.wait(self.event, stream))
            buffer._behind = self._call, stream
        elif self.event is not None:
            self.event.wait()

    def let_wait(self, buffer: Any) -> None:
        """Lets the communication stream of a Buffer wait for it."""
        if self._ht is not None:
            check(self._ht.wait(self.event, buffer._comm_number))
        else:
            buffer._comm_stream.wait_event(self.event)


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
