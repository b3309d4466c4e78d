# SPDX-License-Identifier: Apache-2.0
"""The high-throughput calls of the interface, with DeepEP's arguments: EP fabric does not serve them yet, and each says so."""
from __future__ import annotations

from typing import Any

from .checks import NotThereYet


class HighThroughput:
    """Base of Buffer: calls that are not there yet."""

    @staticmethod
    def _refuse(name: str) -> None:
        raise NotThereYet(f"deep_ep.Buffer.{name}: EP fabric has no high-throughput kernels on GPUs yet, only the low-latency calls: use "
                          "low_latency_dispatch and low_latency_combine (vLLM: --all2all-backend deepep_low_latency; SGLang: "
                          "--deepep-mode low_latency), or install DeepEP for this phase")

    def dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
                 is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None, topk_weights: Any = None,
                 expert_alignment: int = 1, num_worst_tokens: int = 0, config: Any = None, previous_event: Any = None,
                 async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """Not there yet: raises NotThereYet."""
        self._refuse("dispatch")

    def combine(self, x: Any, handle: Any, topk_weights: Any = None, bias: Any = None, config: Any = None, previous_event: Any = None,
                async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """Not there yet: raises NotThereYet."""
        self._refuse("combine")

    def internode_dispatch(self, x: Any, handle: Any = None, num_tokens_per_rank: Any = None, num_tokens_per_rdma_rank: Any = None,
                           is_token_in_rank: Any = None, num_tokens_per_expert: Any = None, topk_idx: Any = None, topk_weights: Any = None,
                           expert_alignment: int = 1, config: Any = None, previous_event: Any = None, async_finish: bool = False,
                           allocate_on_comm_stream: bool = False) -> Any:
        """Not there yet: raises NotThereYet."""
        self._refuse("internode_dispatch")

    def internode_combine(self, x: Any, handle: Any, topk_weights: Any = None, bias: Any = None, config: Any = None,
                          previous_event: Any = None, async_finish: bool = False, allocate_on_comm_stream: bool = False) -> Any:
        """Not there yet: raises NotThereYet."""
        self._refuse("internode_combine")
