# SPDX-License-Identifier: Apache-2.0
"""Events: a point in a stream's work that another stream can wait for. On CPU tensors calls are done when they return, and events are empty."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple


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
    """

    def __init__(self, stream: Any = None) -> None:
        if stream is None:
            cuda = _cuda()
            stream = None if cuda is None else cuda.current_stream()
        self.event = None if stream is None else stream.record_event()

    def current_stream_wait(self) -> None:
        """Lets the current stream wait for it; the CPU does not wait."""
        if self.event is not None:
            self.event.wait()


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
