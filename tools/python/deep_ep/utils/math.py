# SPDX-License-Identifier: Apache-2.0
"""Comparing and casting tensors in tests."""
from __future__ import annotations

from typing import Any, Tuple

BLOCK = 128
FP8_MAX = 448.0


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The next multiple of y."""
    return ceil_div(x, y) * y


def column_stride(rows: int) -> int:
    """Elements between the columns of column-major scales of 4 bytes: each column begins at a multiple of 16 bytes."""
    return max(align(rows, 4), 1)


def safe_div(a: float, b: float) -> float:
    """a / b; 0 / 0 is 0."""
    return 0.0 if a == 0 and b == 0 else a / b


def count_bytes(*tensors: Any) -> int:
    """Bytes of tensors, including those in tuples and lists; None counts as 0."""
    return sum(count_bytes(*t) if isinstance(t, (tuple, list)) else 0 if t is None else t.numel() * t.element_size() for t in tensors)


def calc_diff(x: Any, y: Any) -> float:
    """How far two tensors point apart: 1 - 2<x, y> / (<x, x> + <y, y>), both moved by one, in FP64. 0: equal."""
    a, b = x.double() + 1, y.double() + 1
    both = (a * a).sum() + (b * b).sum()
    return float(1 - 2 * (a * b).sum() / both)


def per_token_cast_to_fp8(x: Any) -> Tuple[Any, Any]:
    """Rows as E4M3 codes with a float scale for each 128 channels."""
    import torch
    blocks = x.float().reshape(x.size(0), -1, BLOCK)
    largest = blocks.abs().amax(2, keepdim=True).clamp(min=1e-4)
    codes = (blocks * (FP8_MAX / largest)).to(torch.float8_e4m3fn).reshape(x.shape)
    return codes, (largest / FP8_MAX).squeeze(2)


def per_token_cast_back(x_fp8: Any, x_scales: Any) -> Any:
    """BF16 rows out of E4M3 codes and their scales: float [rows, blocks], or int32 with four exponents each."""
    import torch
    if x_fp8.numel() == 0:
        return x_fp8.to(torch.bfloat16)
    if x_scales.dtype == torch.int32:
        exponents = x_scales.contiguous().view(torch.uint8).to(torch.int32)
        x_scales = (exponents << 23).view(torch.float32)
    blocks = x_fp8.float().reshape(x_fp8.size(0), -1, BLOCK) * x_scales.reshape(x_fp8.size(0), -1, 1)
    return blocks.reshape(x_fp8.shape).to(torch.bfloat16)


def hash_tensor(t: Any) -> int:
    """The sum of its 32-bit words: the same for the same bits."""
    import torch
    return int(t.contiguous().view(torch.int32).sum())


def hash_tensors(*tensors: Any) -> int:
    """Exclusive or of hash_tensor() over tensors, including those in tuples and lists."""
    value = 0
    for t in tensors:
        value ^= hash_tensors(*t) if isinstance(t, (tuple, list)) else 0 if t is None else hash_tensor(t)
    return value


def inplace_unique(x: Any, num_slots: int) -> None:
    """Leaves each value of a row of x once, the largest first, and fills the rest of the row with -1. Values: below num_slots; negative ones are none."""
    assert x.dim() == 2
    ordered = x.sort(dim=1, descending=True).values
    again = ordered.clone()
    again[:, 0] = False
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]).to(x.dtype)
    ordered[(again != 0) | (ordered < 0) | (ordered >= num_slots)] = -1
    x.copy_(ordered.sort(dim=1, descending=True).values)


def create_grouped_scores(scores: Any, group_idx: Any, num_groups: int) -> Any:
    """Scores [tokens, experts] with 0 for the experts of groups that group_idx [tokens, n] does not name."""
    tokens, experts = scores.shape
    chosen = scores.new_zeros((tokens, num_groups)).scatter_(1, group_idx, 1)
    return scores * chosen.repeat_interleave(experts // num_groups, dim=1)
