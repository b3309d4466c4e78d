# SPDX-License-Identifier: Apache-2.0
"""The results of low-latency dispatch and combine, computed independently with tensor operations.

Every rank generates the inputs of all ranks from their seeds, so that each knows what it must receive. Bits are compared where the definition
(kernels/host/README.md, kernels/ll/README.md) fixes them; sums are also compared with FP64. Used on GPUs (ll_cases.py) and on CPU tensors
(tests/python/test_tensors.py).
"""
import torch

BLOCK = 128
FP8 = getattr(torch, "float8_e4m3fn", torch.uint8)  # PyTorch before 2.1 has no name for it


class Wrong(AssertionError):
    """A result differs, at the place in the text."""


def bits(t):
    """A tensor as integers: equal means the same bits."""
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def same(got, want, what):
    """Raises Wrong, with the first place and both values, unless the bits are the same."""
    if got.shape != want.shape:
        raise Wrong(f"{what}: shape {list(got.shape)} instead of {list(want.shape)}")
    a, b = bits(got), bits(want)
    if torch.equal(a, b):
        return
    differ = a != b
    at = differ.nonzero()[0].tolist()
    rows = differ.flatten(1).any(1) if differ.dim() > 1 else differ
    raise Wrong(f"{what}: {int(differ.sum())} of {a.numel()} elements differ, in {int(rows.sum())} of {a.size(0)} rows; the first at {at}: "
                f"{int(a[tuple(at)]) & 0xffffffff:#x} instead of {int(b[tuple(at)]) & 0xffffffff:#x}")


def to_e4m3(v):
    """Nearest code of each float32, ties to the even one, saturating at 448; by the table of all values."""
    values = [(1 + m / 8) * 2.0 ** (e - 7) if e else m / 512 for e in range(16) for m in range(8)][:127]
    table = torch.tensor(values, dtype=torch.float64, device=v.device)
    magnitude = v.double().abs().clamp(max=448.0)
    high = torch.searchsorted(table, magnitude).clamp(max=126)
    low = (high - 1).clamp(min=0)
    up, down = table[high] - magnitude, magnitude - table[low]
    code = torch.where((up < down) | ((up == down) & (high % 2 == 0)), high, low)
    return (code + 128 * torch.signbit(v).long()).to(torch.uint8)


def quantised(x, round_scale):
    """Codes and float scales of BF16 rows, 128 channels a scale."""
    blocks = x.float().view(x.size(0), x.size(1) // BLOCK, BLOCK)
    amax = blocks.abs().amax(2).clamp(min=float(torch.tensor(1e-4)))
    most = torch.full_like(amax, 448.0)  # a number divided by a tensor may be rounded twice
    scale, inv = amax / most, most / amax
    if round_scale:
        scale = ((scale.view(torch.int32) + 0x7fffff) & 0x7f800000).view(torch.float32)
        inv = torch.ones_like(scale) / scale
    return to_e4m3((blocks * inv.unsqueeze(2)).view(x.shape)), scale


def logfmt(x):
    """BF16 rows after a transfer as LogFMT (kernels/ll/README.md)."""
    b = bits(x).long().view(x.size(0), x.size(1) // BLOCK, BLOCK) & 0xffff
    m = b & 0x7fff
    high = m.amax(2, keepdim=True)
    low = torch.where(m == 0, torch.full_like(m, 0x8000), m).amin(2, keepdim=True)
    spread = torch.where(high == 0, torch.zeros_like(high), high - low)
    span = spread.clamp(min=510)
    level = torch.div((m - low) * 1020 + span, 2 * span, rounding_mode="floor")
    back = low + torch.div(2 * level * span + 510, 1020, rounding_mode="floor")
    back = torch.where((m == 0) | (high >= 0x7f80) | (spread > 2040), m, back) | (b & 0x8000)
    return (back - ((back & 0x8000) << 1)).to(torch.int16).view(x.shape).view(torch.bfloat16)


class Case:
    """The sizes of a call, the inputs of all ranks, and the expected results.

    Arguments:
        tokens: for each rank. experts: of all ranks. holes: the share of entries that are -1.
        at_sender (attribute): whether ranks sum a token's rows before they send: off, all (if there are many tokens), always.
        lost: masked ranks: they send nothing, and their experts do not count.
    """

    at_sender = "off"

    def __init__(self, device, tokens, hidden, experts, topk, seed=1, holes=0.15, most=None, lost=()):
        self.device, self.tokens, self.hidden, self.experts, self.topk = device, list(tokens), hidden, experts, topk
        self.ranks = len(self.tokens)
        self.most = most or max(max(self.tokens), 1)
        self.local, self.rows = experts // self.ranks, self.ranks * self.most
        g = torch.Generator(device=device).manual_seed(seed)
        self.x = torch.zeros((self.ranks, self.most, hidden), dtype=torch.bfloat16, device=device)
        self.idx = torch.full((self.ranks, self.most, topk), -1, dtype=torch.int64, device=device)
        self.weight = torch.zeros((self.ranks, self.most, topk), dtype=torch.float32, device=device)
        for r, n in enumerate(self.tokens):
            size = torch.rand((n, 1), generator=g, device=device, dtype=torch.float32)
            self.x[r, :n] = (torch.randn((n, hidden), generator=g, device=device, dtype=torch.float32) * size * 8).bfloat16()
            chosen = torch.rand((n, experts), generator=g, device=device, dtype=torch.float32).argsort(1)[:, :topk]
            chosen[torch.rand((n, topk), generator=g, device=device, dtype=torch.float32) < holes] = -1
            self.idx[r, :n] = chosen
            self.weight[r, :n] = torch.rand((n, topk), generator=g, device=device, dtype=torch.float32)
        self.seen = self.idx.clone()  # without lost ranks
        for r in lost:
            self.seen[r] = -1
            self.seen[(self.seen >= r * self.local) & (self.seen < (r + 1) * self.local)] = -1

    def __str__(self):
        return (f"tokens {self.tokens} of {self.most}, hidden {self.hidden}, {self.experts} experts, top-{self.topk}")

    def inputs(self, rank):
        """x, topk_idx and topk_weights of a rank, as new tensors."""
        n = self.tokens[rank]
        return self.x[rank, :n].clone(), self.idx[rank, :n].clone(), self.weight[rank, :n].clone()

    def received(self, rank):
        """(count of each local expert and source, then for each received row its expert, source, token and place), in order."""
        ids = torch.arange(rank * self.local, (rank + 1) * self.local, device=self.device).view(-1, 1, 1, 1)
        there = (self.seen.unsqueeze(0) == ids).any(3)
        expert, source, token = there.nonzero(as_tuple=True)
        place = (there.flatten(1).cumsum(1) - 1)[expert, source * self.most + token]
        return there.sum(2), expert, source, token, place

    def check_received(self, rank, got, count, handle, fp8=False, round_scale=False, ue8m0=False):
        """Checks the results of a dispatch."""
        counts, expert, source, token, place = self.received(rank)
        same(count, counts.sum(1).int(), "rows of each expert")
        begin = counts.cumsum(1) - counts
        same(handle[1], begin << 32 | counts, "layout_range")
        same(handle[0][expert, place], token.int(), "src_info")
        x = self.x[source, token]
        codes, scales = got if fp8 else (got, None)
        if not fp8:
            same(codes[expert, place], x, "rows")
            return
        want, scale = quantised(x, round_scale)
        same(bits(codes)[expert, place], want, "codes")
        if ue8m0:
            scale = (scale.view(torch.int32) >> 23).to(torch.uint8).view(torch.int32)
        same(scales[expert, place], scale, "scales")

    def outputs(self, rank):
        """Returns the experts' outputs, a function of row and expert; places without a row are NaN."""
        y = torch.full((self.local, self.rows, self.hidden), float("nan"), dtype=torch.bfloat16, device=self.device)
        _, expert, source, token, place = self.received(rank)
        y[expert, place] = self.output_of(self.x[source, token], expert + rank * self.local)
        return y

    @staticmethod
    def output_of(x, expert):
        return (x.float() * (1.0 + expert.unsqueeze(-1).float() / 16)).bfloat16()

    def check_combined(self, rank, sums, log=False):
        """Checks the sums of a combine: bit for bit in FP32 in the order of top-k, and near FP64. log: rows were sent as LogFMT."""
        many = self.tokens[rank] * self.topk >= 80 * max(self.ranks, 4)  # EPF_LL_SUMS_FROM
        if not log and (self.at_sender == "always" or self.at_sender == "auto" and many):
            return self._check_sums_of_sums(rank, sums)
        n = self.tokens[rank]
        acc = torch.zeros((n, self.hidden), dtype=torch.float32, device=self.device)
        exact, bound = acc.double(), acc.double()
        for k in range(self.topk):
            e = self.seen[rank, :n, k]
            counts = (e >= 0).unsqueeze(1)
            y, w = self.output_of(self.x[rank, :n], e.clamp(min=0)), self.weight[rank, :n, k].unsqueeze(1)
            acc = torch.where(counts, acc + w * (logfmt(y) if log else y).float(), acc)
            term = torch.where(counts, w.double() * y.double(), torch.zeros_like(exact))
            exact, bound = exact + term, bound + term.abs()
        same(sums, acc.bfloat16(), "sums")
        # LogFMT moves a pattern by 2.5 at most, each at most 2^-7 of the value.
        if not bool(((sums.double() - exact).abs() <= bound * (2.0 ** -8 + (2.6 * 2.0 ** -7 if log else 0)) + 1e-30).all()):
            raise Wrong("sums: further from FP64 than the rounding to BF16, and of LogFMT, explains")

    def _check_sums_of_sums(self, rank, sums):
        """The same for sums at the sender: of each rank in top-k's order, rounded to BF16, then of these in the order of each rank's first entry."""
        n = self.tokens[rank]
        acc = torch.zeros((n, self.hidden), dtype=torch.float32, device=self.device)
        exact, bound = acc.double(), acc.double()
        for first in range(self.topk):
            owner = torch.div(self.seen[rank, :n], self.local, rounding_mode="floor")  # -1 stays -1
            mine = owner[:, first]
            begins = ((mine >= 0) & ~(owner[:, :first] == mine.unsqueeze(1)).any(1)).unsqueeze(1)
            part = torch.zeros_like(acc)
            for k in range(first, self.topk):
                counts = begins & (owner[:, k] == mine).unsqueeze(1)
                y = self.output_of(self.x[rank, :n], self.seen[rank, :n, k].clamp(min=0)).float()
                w = self.weight[rank, :n, k].unsqueeze(1)
                part = torch.where(counts, part + w * y, part)
                term = torch.where(counts, w.double() * y.double(), torch.zeros_like(exact))
                exact, bound = exact + term, bound + term.abs()
            acc = torch.where(begins, acc + part.bfloat16().float(), acc)
        same(sums, acc.bfloat16(), "sums of sums")
        if not bool(((sums.double() - exact).abs() <= bound * 2.0 ** -7 + 1e-30).all()):
            raise Wrong("sums of sums: further from FP64 than rounding to BF16 twice explains")
