# SPDX-License-Identifier: Apache-2.0
"""The handle that a high-throughput dispatch returns."""
from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Sequence, Tuple


class RoutingHandle(tuple):
    """What a dispatch gives, for combines and further dispatches of the same routing, in any number and order.

    As a tuple what programs look into: entry 0 is int32 [ranks, ranks], rows that ranks 0..i send to r; with more than 8 ranks or several nodes it has
    10 entries, as in DeepEP, and the fourth from the end is int32 [ranks], rows received from ranks 0..i. Its tensors are made when somebody looks at them.

    Attributes: memory: what its arrays lie in; matrix: entry 0; place: int32 [tokens, ranks], the place of each token's row among those for a rank, or
    -1; links: which ranks of this node the rows go to that it forwards, int32 [rows forwarded, ranks], None on one node; received: rows; room: rows that
    a window holds; across: rows that cross between nodes; forwarded: rows of links; tokens; rank; at: addresses of place, matrix and the plan of where
    rows lie on their way; recorded: the communication stream that PyTorch knows to use its arrays.
    """
    memory: Any
    links: Any = None
    recorded: Any = None
    received: int
    room: int
    across: int
    forwarded: int
    tokens: int
    rank: int
    at: Tuple[int, int, int]
    ranks: int
    _entries: Optional[tuple] = None

    @classmethod
    def make(cls, memory: Any, plan_words: int, rank: int, ranks: int, several: bool, in_rank: Any, tokens: int, worst: int) -> "RoutingHandle":
        """memory: int32, for a plan, a matrix and places. several: of 10 entries. worst: rows that can arrive at most; 0: their number comes later."""
        handle = cls((None,) * (10 if several else 6))
        at, matrix = memory.data_ptr(), plan_words + ranks * ranks
        handle.memory, handle.at, handle._layout = memory, (at + 4 * matrix, at + 4 * plan_words, at), (plan_words, ranks)
        handle.received = handle.room = handle.across = handle.forwarded = worst
        handle.tokens, handle.rank, handle.ranks, handle._in_rank = tokens, rank, ranks, in_rank
        return handle

    @classmethod
    def sizes(cls, plan_words: int, ranks: int, tokens: int) -> Tuple[int]:
        """Of the memory."""
        return (plan_words + ranks * (ranks + tokens),)

    @property
    def matrix(self) -> Any:
        words, ranks = self._layout
        return self.memory.as_strided((ranks, ranks), (ranks, 1), words)

    @property
    def place(self) -> Any:
        words, ranks = self._layout
        return self.memory.as_strided((self.tokens, ranks), (ranks, 1), words + ranks * ranks)

    def _look(self) -> tuple:
        if self._entries is None:
            matrix, place, in_rank = self.matrix, self.place, self._in_rank
            self._entries = ((matrix, place, None, None, None, in_rank, matrix[:, self.rank], None, None, None) if len(self) == 10 else
                             (matrix, place, None, None, self.tokens, in_rank))
        return self._entries

    def __iter__(self) -> Iterator[Any]:
        return iter(self._look())

    def __getitem__(self, at: Any) -> Any:
        return self._look()[at]

    def __repr__(self) -> str:
        return repr(self._look())
