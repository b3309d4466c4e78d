# SPDX-License-Identifier: Apache-2.0
"""Config: sizes of the high-throughput calls. Kept because programs make and ask for one before they make a Buffer."""
from __future__ import annotations

from dataclasses import dataclass

from .checks import need

# Ranks that share a node's fast links, at most; more make nodes of this many. What size hints are computed for.
NODE_RANKS = 8
# Beside the row, the most a token brings: indices (8 bytes), weights and scales (4 bytes) of 128 each, and 16 bytes that say whence it comes.
TOKEN_EXTRA = 128 * (8 + 4 + 4) + 16


@dataclass
class Config:
    """How many multiprocessors the high-throughput calls use and how many tokens travel at once.

    The arguments are those of DeepEP, in its order. Low-latency calls take none of them.
    """
    num_sms: int = 20
    num_max_nvl_chunked_send_tokens: int = 6
    num_max_nvl_chunked_recv_tokens: int = 256
    num_max_rdma_chunked_send_tokens: int = 6
    num_max_rdma_chunked_recv_tokens: int = 256

    def __post_init__(self) -> None:
        nvl, nvl_room, send, recv = (self.num_max_nvl_chunked_send_tokens, self.num_max_nvl_chunked_recv_tokens, self.num_max_rdma_chunked_send_tokens,
                                     self.num_max_rdma_chunked_recv_tokens)
        if self.num_sms < 0 or not 0 < nvl < nvl_room or not 0 < send < recv or 2 * send > recv:
            self._refuse()
        self.num_max_rdma_chunked_recv_tokens = -(-recv // send) * send

    def _refuse(self) -> None:
        """Says what does not hold. Not where a Config is made: programs make one for each call."""
        need(self.num_sms >= 0, "Config", f"num_sms is {self.num_sms}; it cannot be negative")
        for path in ("nvl", "rdma"):
            send = getattr(self, f"num_max_{path}_chunked_send_tokens")
            recv = getattr(self, f"num_max_{path}_chunked_recv_tokens")
            need(0 < send < recv, "Config", f"num_max_{path}_chunked_send_tokens is {send} and ..._recv_tokens {recv}; "
                 "sent at once must be at least 1 and fewer than there is room for")
        send, recv = self.num_max_rdma_chunked_send_tokens, self.num_max_rdma_chunked_recv_tokens
        need(2 * send <= recv, "Config", f"num_max_rdma_chunked_send_tokens is {send}; it can be at most half of ..._recv_tokens, {recv}")

    def _hint(self, hidden_bytes: int, places: int, tokens: int) -> int:
        need(hidden_bytes > 0, "Config", f"hidden_bytes is {hidden_bytes}; a row has at least one byte")
        channels = max(self.num_sms // 2, 1)
        size = channels * places * (tokens * (hidden_bytes + TOKEN_EXTRA) + 128)
        return -(-size // 128) * 128

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes a rank would need for its node's ranks. No call uses this memory yet, and a Buffer does not allocate it."""
        need(num_ranks >= 1, "Config", f"num_ranks is {num_ranks}; there is at least one")
        return self._hint(hidden_bytes, min(num_ranks, NODE_RANKS), self.num_max_nvl_chunked_recv_tokens)

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes a rank would need for other nodes: 0 within one node. No call uses this memory yet."""
        need(num_ranks >= 1, "Config", f"num_ranks is {num_ranks}; there is at least one")
        if num_ranks <= NODE_RANKS:
            return 0
        return 2 * self._hint(hidden_bytes, -(-num_ranks // NODE_RANKS), self.num_max_rdma_chunked_recv_tokens)
