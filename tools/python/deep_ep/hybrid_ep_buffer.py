# SPDX-License-Identifier: Apache-2.0
"""The interface of DeepEP's branch hybrid-ep on ElasticBuffer: rows arrive grouped by expert. docs/reference/python.md says what is served."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Dict, NamedTuple, Optional, Tuple

from epf.fabric import as_group

from . import checks
from .checks import NotThereYet, need
from .elastic import ElasticBuffer
from .ephandle import EPHandle


def _spread(values: Any, topk_idx: Any, experts: int) -> Any:
    """Returns float32 [tokens, experts] with the values of entries, [tokens, top-k]; 0 elsewhere."""
    dense = values.new_zeros((values.size(0), experts))
    return dense.scatter_add_(1, topk_idx.clamp(min=0), values.masked_fill(topk_idx < 0, 0))


def indices_to_map(topk_idx: Any, topk_weights: Any, num_of_tokens: int, num_of_experts: int) -> Tuple[Any, Optional[Any]]:
    """Returns a routing as bool [tokens, experts], and its weights as float32 of that shape, or None.

    Arguments:
        topk_idx: int64 [tokens, top-k], an expert, or -1. topk_weights: float32 of its shape, or None.
    """
    need(topk_idx.size(0) == num_of_tokens, "indices_to_map", "topk_idx has {} rows for {} tokens", topk_idx.size(0), num_of_tokens)
    topk_idx = topk_idx.long()
    chosen = _spread((topk_idx >= 0).float(), topk_idx, num_of_experts) > 0
    return chosen, None if topk_weights is None else _spread(topk_weights.float(), topk_idx, num_of_experts)


class Handle(NamedTuple):
    """The routing of a dispatch, for any number of combines and further dispatches."""
    routing: EPHandle
    overflow_flag: Any  # int32 [1]: not 0, if entries were dropped


class HybridEPBuffer:
    """DeepEP's HybridEPBuffer: dispatch_with_permute() and combine_with_unpermute(), as Megatron-core's `hybridep` and torchtitan's call them.

    Made and used by one thread at a time. Attributes: group; configurer.buffer_config: hidden_dim, max_num_of_tokens_per_rank, num_of_experts_per_rank.
    """

    def __init__(self, group: Any, hidden_dim: int, max_num_of_tokens_per_rank: int, num_local_experts: int, use_fp8: bool = False,
                 num_sms_dispatch_api: Optional[int] = None, num_sms_combine_api: Optional[int] = None, num_sms_preprocessing_api: Optional[int] = None,
                 num_blocks_permute: Optional[int] = None, num_blocks_unpermute: Optional[int] = None, load_cached_kernels: bool = False,
                 use_shared_buffer: bool = True, enable_custom_allgather: bool = True, num_of_hybrid_ep_ranks_per_nvlink_domain: Optional[int] = None,
                 use_mnnvl: Optional[bool] = None, *, device: Any = None) -> None:
        """Connects the ranks of a group and allocates the memory of each.

        Arguments:
            group: torch.distributed.ProcessGroup of the ranks, of any back end.
            hidden_dim, num_local_experts, use_fp8: of the largest call, the same at all ranks. max_num_of_tokens_per_rank: likewise; the most of any rank counts. Memory
            grows when a call needs more.
            num_sms_dispatch_api, num_sms_combine_api: multiprocessors; None: ElasticBuffer.get_theoretical_num_sms().
            device: torch.device of the tensors; None: the current GPU, or the CPU where PyTorch has no GPU.
            The others have no effect: no kernel is compiled at run time, and ranks find out themselves which memory they share.
        """
        most = max(as_group(group).all_gather(max_num_of_tokens_per_rank))  # what is not waited for is laid out by it, and ranks must agree
        self._elastic = e = ElasticBuffer(group, num_max_tokens_per_rank=most, hidden=hidden_dim, use_fp8_dispatch=use_fp8, device=device)
        self._torch, self._device = e._torch, e.device
        self._sms = num_sms_dispatch_api or 0, num_sms_combine_api or 0
        self.group, self.rank, self.group_size = group, e.rank_idx, e.num_ranks
        self.configurer = SimpleNamespace(buffer_config=SimpleNamespace(hidden_dim=hidden_dim, max_num_of_tokens_per_rank=most,
                                                                        num_of_experts_per_rank=num_local_experts))
        self._maps: Dict[int, Tuple[int, Any]] = {}  # by the number of all experts: the most of a token, the same at all ranks; int32, descending to 1
        # Not 0: a token of some call had more than that. On the device, and what the CPU knows of it.
        self._beyond = self._torch.zeros(1, dtype=self._torch.int32, device=self._device)
        self._known = self._torch.zeros(1, dtype=self._torch.int32, pin_memory=self._device.type == "cuda")
        self._none = self._torch.zeros_like(self._beyond)

    def dispatch_with_permute(self, *, hidden: Any, topk_idx: Any = None, topk_weights: Any = None, num_of_experts_per_rank: Optional[int] = None,
                              num_of_experts: Optional[int] = None, use_fp8: Optional[bool] = None, routing_map: Any = None, probs: Any = None,
                              scaling_factor: Any = None, num_permuted_tokens: Any = None, pad_multiple: Optional[int] = None,
                              handle: Optional[Handle] = None, non_blocking: bool = False, fuse_permute_dispatch: bool = False,
                              num_dispatched_tokens: Any = None, use_host_meta: Any = None) -> Tuple[Any, Optional[Any], Optional[Any], Optional[Any], Handle]:
        """Sends each token's row once to every rank that holds one of its experts; there it is copied to the group of each of them.

        Arguments:
            hidden: [tokens, hidden] of any type whose rows are a multiple of 16 bytes. scaling_factor: its scales, [tokens, n] of 4 bytes each, or None.
            routing_map, probs: bool and float32 [tokens, experts]; a token may have as many experts as the most of any rank in the first such call. Or
            topk_idx, topk_weights: int64 and float32 [tokens, top-k], with num_of_experts. Weights may be None.
            num_of_experts_per_rank: experts of each rank; None: all of them shared out alike.
            pad_multiple: sizes of groups are rounded up to a multiple of it; the rows between are zeros.
            handle: of an earlier dispatch, whose routing is used again, and then none of those above, and num_permuted_tokens has no effect.
            num_permuted_tokens: rows of the outputs; None: as many as come, for which the CPU waits. Entries beyond are dropped, and the handle's overflow_flag says so.
            non_blocking: sizes of groups stay on the device; needs num_permuted_tokens.
            use_fp8, fuse_permute_dispatch, num_dispatched_tokens, use_host_meta: no effect; rows are copied to their groups while others arrive in any case.

        Returns: rows grouped by expert, in each group ordered by source rank, then token; float32 [rows], the weight of each, or None; their scales, or None; int64
        [experts of a rank], the sizes of the groups, or None with a handle; the handle.
        """
        where, e, torch = "HybridEPBuffer.dispatch_with_permute", self._elastic, self._torch
        x = hidden if scaling_factor is None else (hidden, scaling_factor)
        if handle is not None:
            need(isinstance(handle, Handle), where, "handle is a {}; it must be the one that dispatch_with_permute gave", type(handle).__name__)
            out, _, _, _, _ = e.dispatch(x, handle=handle.routing, do_expand=True, do_zero_padding=handle.routing.expert_alignment > 1, num_sms=self._sms[0])
            return (out, None, None, None, handle) if scaling_factor is None else (out[0], None, out[1], None, handle)
        need(not non_blocking or num_permuted_tokens is not None, where, "non_blocking is set and num_permuted_tokens is None: nothing says how many rows outputs have")
        beyond: Any = None
        self._check_known(where)  # of calls that did not wait
        if routing_map is not None:
            topk_idx, topk_weights, beyond = self._entries(where, hidden, routing_map, probs)
            num_of_experts = routing_map.size(1)
        need(topk_idx is not None, where, "neither routing_map, topk_idx nor handle is given: nothing says where rows go")
        need(num_of_experts is not None, where, "num_of_experts is None: topk_idx does not say how many there are")
        need(num_of_experts_per_rank in (None, num_of_experts // self.group_size), where, "num_of_experts_per_rank is {}; {} experts on {} ranks are {} each",
             num_of_experts_per_rank, num_of_experts, self.group_size, num_of_experts // self.group_size)
        align, count = pad_multiple or 1, None if num_permuted_tokens is None else int(num_permuted_tokens)
        most, tokens = self.configurer.buffer_config.max_num_of_tokens_per_rank, hidden.size(0)
        need(count is None or tokens <= most, where, "there are {} tokens and the Buffer was made for {}: without the CPU's wait ranks cannot agree on more; make one for "
             "the largest batch, or leave num_permuted_tokens away", tokens, most)
        if beyond is not None:
            torch.maximum(self._beyond, beyond, out=self._beyond)
            self._known.copy_(self._beyond, non_blocking=True)
        out, _, weights, routing, _ = e.dispatch(
            x, topk_idx, topk_weights, num_experts=num_of_experts, num_max_tokens_per_rank=max(most, tokens), expert_alignment=align,
            num_sms=self._sms[0], do_handle_copy=False, do_cpu_sync=count is None, do_expand=True, do_zero_padding=align > 1, num_expanded_tokens=count)
        out, scales = (out, None) if scaling_factor is None else out
        if count is None:
            self._check_known(where)  # it was copied in front of the counts, for which the CPU has waited
            return out, weights, scales, torch.tensor(routing.num_recv_tokens_per_expert_list, dtype=torch.int64), Handle(routing, self._none)
        ends = routing.groups.aligned.long()
        sizes = ends.clamp(max=count).diff(prepend=ends.new_zeros(1))
        dropped = ends[-1:] > count if beyond is None else (ends[-1:] > count) | (beyond > 0)
        return out, weights, scales, sizes if non_blocking else sizes.cpu(), Handle(routing, dropped.int())

    def _check_known(self, where: str) -> None:
        """Raises an error if a token of a call had more experts than were sent, and forgets it."""
        if int(self._known[0]):
            if self._device.type == "cuda":
                self._torch.cuda.synchronize(self._device)  # copies on their way would say it again
            self._known.zero_()
            self._beyond.zero_()
            need(False, where, "a token has more experts than any had in the first call with as many experts, and not all were sent: give topk_idx in place of "
                 "routing_map, and leave Megatron-core's moe_pad_expert_input_to_capacity unset")

    def _entries(self, where: str, hidden: Any, routing_map: Any, probs: Any) -> Tuple[Any, Any, Any]:
        """Returns the entries of a map: experts, ascending, -1 behind the last one, and their weights; int32 [1], not 0 if a token has more than that, or None."""
        torch, (tokens, experts) = self._torch, routing_map.shape
        checks.tensor(torch, where, "routing_map", routing_map, torch.bool, (hidden.size(0), -1), self._device, ("tokens", "experts"))
        checks.optional(torch, where, "probs", probs, torch.float32, (tokens, experts), self._device, ("tokens", "experts"))
        known = self._maps.get(experts)
        if known is None:
            mine = int(routing_map.sum(1).max()) if tokens else 0
            known = self._maps[experts] = (max(1, *self._elastic._buffer._ranks.all_gather(mine)),
                                           torch.arange(experts, 0, -1, dtype=torch.int32, device=self._device))
        most, descending = known
        found, index = (routing_map * descending).topk(min(most + 1, experts), dim=1)
        beyond = found[:, most].max().view(1) if found.size(1) > most and tokens else None
        found, index = found[:, :most], index[:, :most]
        weights = None if probs is None else probs.gather(1, index)
        return index.masked_fill(found == 0, -1), weights, beyond

    def combine_with_unpermute(self, *, hidden: Any, probs: Any = None, handle: Optional[Handle] = None, pad_multiple: Optional[int] = None,
                               fuse_unpermute_combine: bool = False, num_dispatched_tokens: Any = None) -> Tuple[Any, Optional[Any]]:
        """Returns the rows of a dispatch to their tokens and adds them, as ElasticBuffer.combine() does. Weights are not applied.

        Arguments:
            hidden: bfloat16 [rows, hidden], grouped as the dispatch gave them. probs: float32 [rows], returned to their tokens, or None.
            handle: of the dispatch. The others have no effect.

        Returns: bfloat16 [tokens, hidden]; float32 [tokens, experts], 0 where a token has no entry, or None.
        """
        where = "HybridEPBuffer.combine_with_unpermute"
        need(isinstance(handle, Handle), where, "handle is a {}; it must be the one that dispatch_with_permute gave", type(handle).__name__)
        assert handle is not None
        self._check_known(where)
        routing = handle.routing
        out, weights, _ = self._elastic.combine(hidden, routing, topk_weights=probs, num_sms=self._sms[1])
        return out, None if weights is None else _spread(weights, routing.topk_idx, routing.num_experts)

    def empty_jit_cache(self) -> None:
        """No effect: no kernel is compiled at run time."""

    def dispatch(self, *_: Any, **__: Any) -> Any:
        """Not served."""
        raise NotThereYet("HybridEPBuffer.dispatch: rows that are not grouped are ElasticBuffer's and Buffer's: use dispatch_with_permute(), or these")

    def combine(self, *_: Any, **__: Any) -> Any:
        """Not served."""
        raise NotThereYet("HybridEPBuffer.combine: rows that are not grouped are ElasticBuffer's and Buffer's: use combine_with_unpermute(), or these")
