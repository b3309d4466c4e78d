#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepEP's normal mode between nodes, with unmodified kernels and module, at a size that lets 16 processes share one or two GPUs.

  shim_internode.py --out DIR [--limit S] [--seeds N] [--tokens N] [--hidden N] [--topk N] [--experts N] [--sms N] [--chunk N] [--room N] [--services SOCKET...]
                    [--ours] [--rounds N]
  shim_internode.py --ratios --out DIR
  shim_internode.py --own LOG... [--tokens N] [--hidden N] [--topk N] [--experts N] [--sms N]

Two "nodes" of eight ranks (the least for DeepEP's kernels), node n on GPU n modulo the number of GPUs. Ranks of one index in their nodes are a separate
NVSHMEM job: eight jobs of two ranks. Each rank generates all ranks' tokens and routing from the seeds and compares bit for bit: the layout; every
received row, scale, index and weight of dispatch, plain and with a cached handle, BF16 and FP8; every combined row and weight. All sums are exact, so
their order does not matter. The shim's counts are compared with the routing: bytes and barrier requests exactly; the number of puts depends on timing
and has a lower bound.

Each rank is a process with a separate log in DIR (rank-NN.log). After S seconds the remaining ranks print their stacks and are killed. DeepEP must be
on PYTHONPATH and the shim preloaded, see shim_internode.sh. Exit 0: all results match the seeds.

--ours: the deep_ep on PYTHONPATH is ours, without the shim; nothing is counted. --rounds times calls after the cases, also uncounted: from a barrier until the
slowest rank's GPU is done, medians. --ratios prints those of the logs times-ours-*.log and times-deepep-*.log in DIR, medians of all runs.

--own compares the shim's counts in one run of DeepEP's test_internode.py (its 32 cases, seed 0) with that test's seeds: bytes and barrier requests.
"""
import argparse
import faulthandler
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

NVL = 8  # ranks of a node, fixed in DeepEP
META_INTS = 2 * NVL + 2  # of a channel's first put in a dispatch
SOURCE_META = 8
NOTIFY_SYNCS, CACHED_SYNCS = 3, 2  # barriers in the kernels before the data

# Calls of one seed: payload, with top-k indices, followed by a dispatch with the cached handle, with events between streams.
CASES = (("bf16", True, False, False), ("bf16", False, True, False), ("fp8", True, False, True), ("fp8", False, True, False))


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--out")
    p.add_argument("--own", nargs="+")
    p.add_argument("--limit", type=int, default=120)
    p.set_defaults(ranks=2 * NVL)
    p.add_argument("--seeds", type=int, default=2)
    p.add_argument("--tokens", type=int, default=192)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--topk", type=int, default=8)
    p.add_argument("--experts", type=int, default=64)
    p.add_argument("--sms", type=int, default=4)
    p.add_argument("--chunk", type=int, default=16, help="most tokens per RDMA put; a channel's buffer holds twice as many")
    p.add_argument("--room", type=int, default=2, help="such chunks that a channel's buffer holds")
    p.add_argument("--ours", action="store_true")
    p.add_argument("--rounds", type=int, default=0)
    p.add_argument("--ratios", action="store_true")
    p.add_argument("--services", nargs="+", default=[], help="sockets of daemons: node n is served by the n-th")
    p.add_argument("--one-world", action="store_true", help="a buffer that also serves low latency: one NVSHMEM job of 16 ranks, barriers by teams")
    return p.parse_args()


def draw(torch, a, seed, rank):
    """Returns a rank's tokens (bytes), scales, expert indices (-1: none), weights."""
    g = torch.Generator().manual_seed(1000 * seed + rank)
    data = torch.randint(0, 256, (a.tokens, a.hidden), dtype=torch.uint8, generator=g)
    scales = torch.randn((a.tokens, a.hidden // 128), generator=g)
    index = torch.topk(torch.rand((a.tokens, a.experts), generator=g), a.topk, dim=-1)[1]
    index[torch.rand((a.tokens, a.topk), generator=g) < 0.1] = -1
    index[torch.rand(a.tokens, generator=g) < 0.05] = -1
    weights = torch.randn((a.tokens, a.topk), generator=g)
    return data, scales, index, weights


def goes_to(torch, a, index):
    """[tokens, ranks]: which ranks a token goes to."""
    where = torch.where(index >= 0, index // (a.experts // a.ranks), a.ranks)
    return torch.nn.functional.one_hot(where, a.ranks + 1)[:, :, :a.ranks].amax(dim=1).bool()


def number(torch, data):
    """Maps bytes to numbers that are exact in BF16, as are sums of sixteen."""
    return (data.float() - 128) / 64


def worth(torch, data, rank):
    """A rank's output for a token, before combine."""
    return (number(torch, data) * (1 + rank % 3)).to(torch.bfloat16)


def per_token(a, case, topk):
    """Bytes of a token in dispatch's buffers, in DeepEP's layout."""
    row = a.hidden * 2 if case[0] == "bf16" else a.hidden + a.hidden // 128 * 4
    return (row + SOURCE_META + 8 * topk + 15) // 16 * 16


def same(torch, what, got, want):
    if got.shape == want.shape and torch.equal(got, want):
        return
    text = f"{what}: shapes {tuple(got.shape)}, {tuple(want.shape)}"
    if got.shape == want.shape:
        bad = (got != want).reshape(got.shape[0], -1)
        rows = bad.any(dim=1).nonzero().flatten()
        first = int(rows[0])
        text = f"{what}: {len(rows)} of {len(bad)} rows wrong, first {first} in {int(bad[first].sum())} of {bad.shape[1]} places: " \
               f"{got.reshape(len(bad), -1)[first][bad[first]][:4].tolist()}, not {want.reshape(len(bad), -1)[first][bad[first]][:4].tolist()}"
    raise SystemExit("WRONG " + text)


class Rank:
    """One rank: its buffer, and the requests that the shim must count."""

    def __init__(self, a, rank):
        import torch
        import torch.distributed as dist
        import deep_ep
        self.torch, self.dist, self.a, self.rank = torch, dist, a, rank
        torch.set_num_threads(1)
        if torch.cuda.is_available():
            torch.cuda.set_device(rank // NVL % torch.cuda.device_count())
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dist.init_process_group("gloo", init_method=f"file://{a.out}/store", rank=rank, world_size=a.ranks)
        # By default room for only two chunks, so that tokens wait for heads to return.
        self.config = deep_ep.Config(a.sms, 8, 4 * a.chunk, a.chunk, a.room * a.chunk)
        hidden_bytes = a.hidden * 2
        self.say(f"meets, process {os.getpid()}")
        self.buffer = deep_ep.Buffer(dist.group.WORLD, self.config.get_nvl_buffer_size_hint(hidden_bytes, a.ranks),
                                     self.config.get_rdma_buffer_size_hint(hidden_bytes, a.ranks), low_latency_mode=a.one_world, num_qps_per_rank=a.sms,
                                     explicitly_destroy=True)
        self.capture = deep_ep.Buffer.capture
        self.bytes = self.puts = self.requests = 0

    def say(self, text):
        print(f"at {time.time():.3f} rank {self.rank}: {text}", flush=True)

    def on(self, tensor):
        """Copies to the device after a synchronize: an unpinned copy behind DeepEP's kernel would block the software NIC's copies."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return tensor.to(self.device)

    def far(self, rank):
        """Tokens of a rank that go to the other node."""
        other = 1 - rank // NVL
        return self.sent[rank][:, other * NVL:(other + 1) * NVL].any(dim=1)

    def count(self, tokens, size):
        """Adds a call's puts to the other node: tokens (a mask) of `size` bytes, split evenly over the channels, at most a chunk per put."""
        channels = self.a.sms // 2
        each = -(-len(tokens) // channels)
        self.bytes += int(tokens.sum()) * size
        for c in range(channels):
            self.puts += -(-int(tokens[c * each:(c + 1) * each].sum()) // self.a.chunk)

    def payload(self, case, data, scales):
        if case[0] == "bf16":
            return self.on(number(self.torch, data).to(self.torch.bfloat16))
        return self.on(data).view(self.torch.float8_e4m3fn), self.on(scales)

    def check_rows(self, what, case, got, drawn):
        """Rows are ordered by source rank, then token."""
        torch = self.torch
        mine = [s[:, self.rank] for s in self.sent]
        data = torch.cat([d[0][m] for d, m in zip(drawn, mine)])
        if case[0] == "bf16":
            same(torch, what, got.view(torch.int16), self.on(number(torch, data).to(torch.bfloat16)).view(torch.int16))
        else:
            same(torch, what, got[0].view(torch.uint8), self.on(data))
            same(torch, what + ", scales", got[1], self.on(torch.cat([d[1][m] for d, m in zip(drawn, mine)])))

    def bytes_of(self, case, got):
        """Converts received rows back to the drawn bytes."""
        torch = self.torch
        return (got.float() * 64 + 128).to(torch.uint8) if case[0] == "bf16" else got[0].view(torch.uint8)

    def check_topk(self, got_index, got_weights, counts, drawn):
        torch, local = self.torch, self.a.experts // self.a.ranks
        mine = [s[:, self.rank] for s in self.sent]
        index = torch.cat([d[2][m] for d, m in zip(drawn, mine)]) - self.rank * local
        index[(index < 0) | (index >= local)] = -1
        weights = torch.cat([d[3][m] for d, m in zip(drawn, mine)]).masked_fill(index < 0, 0)
        same(torch, "indices", got_index, self.on(index))
        same(torch, "weights", got_weights, self.on(weights))
        want = [int((index == e).sum()) for e in range(local)]
        if list(counts) != want:
            raise SystemExit(f"WRONG tokens of each expert: {list(counts)}, not {want}")

    def layout(self, index, sent):
        torch, a = self.torch, self.a
        per_rank, per_node, per_expert, in_rank, _ = self.buffer.get_dispatch_layout(self.on(index), a.experts)
        same(torch, "layout: ranks", per_rank.long(), self.on(sent.sum(dim=0)))
        same(torch, "layout: nodes", per_node.long(), self.on(sent.view(len(sent), -1, NVL).any(dim=2).sum(dim=0)))
        same(torch, "layout: experts", per_expert.long(), self.on(torch.stack([(index == e).sum() for e in range(a.experts)])))
        same(torch, "layout: tokens", in_rank, self.on(sent))
        return {"num_tokens_per_rank": per_rank, "num_tokens_per_rdma_rank": per_node, "num_tokens_per_expert": per_expert, "is_token_in_rank": in_rank}

    def combine(self, case, got, handle, weights, drawn):
        """Checks the combined rows of this rank's tokens, and counts the rows returned to its partner in the other node."""
        torch, a, me = self.torch, self.a, self.rank
        sent, partner = self.sent[me], (me + NVL) % a.ranks
        bias = None if case[2] else (self.on(torch.full((a.tokens, a.hidden), 1.5, dtype=torch.bfloat16)), self.on(torch.full((a.tokens, a.hidden), -0.25, dtype=torch.bfloat16)))
        x = self.on(worth(torch, self.bytes_of(case, got), me))
        row, row_weights, event = self.buffer.combine(x, handle, topk_weights=weights, bias=bias, config=self.config, async_finish=case[3])
        if case[3]:
            event.current_stream_wait()
        want = torch.zeros((a.tokens, a.hidden))
        for node in range(a.ranks // NVL):
            part = sum(worth(torch, drawn[me][0], r).float() * sent[:, r:r + 1] for r in range(node * NVL, (node + 1) * NVL))
            want += part.to(torch.bfloat16).float()
        want += 0 if bias is None else 1.25
        same(torch, "combined rows", row, self.on(want.to(torch.bfloat16)))
        if weights is not None:
            same(torch, "combined weights", row_weights, self.on(drawn[me][3].masked_fill(drawn[me][2] < 0, 0)))
        self.requests += CACHED_SYNCS
        self.count(self.far(partner), combined_token(a, 0 if weights is None else a.topk))

    def case(self, seed, case):
        torch, a, me = self.torch, self.a, self.rank
        drawn = [draw(torch, a, seed, r) for r in range(a.ranks)]
        self.sent = [goes_to(torch, a, d[2]) for d in drawn]
        data, scales, index, weights = drawn[me]
        named = self.layout(index, self.sent[me])
        if case[1]:
            named.update(topk_idx=self.on(index), topk_weights=self.on(weights))
        if case[3]:
            named.update(previous_event=self.capture(), async_finish=True)
        self.say(f"seed {seed} {case}: dispatch")
        got, got_index, got_weights, counts, handle, event = self.buffer.dispatch(self.payload(case, data, scales), config=self.config, **named)
        if case[3]:
            event.current_stream_wait()
        self.check_rows("dispatch", case, got, drawn)
        if case[1]:
            self.check_topk(got_index, got_weights, counts, drawn)
        self.bytes += 4 * (NVL + a.experts // (a.ranks // NVL) + 1) + 4 * META_INTS * (a.sms // 2)
        self.puts += 1 + a.sms // 2
        self.requests += NOTIFY_SYNCS
        self.count(self.far(me), per_token(a, case, a.topk if case[1] else 0))
        if case[2]:
            self.say(f"seed {seed} {case}: cached dispatch")
            again = [(d[0].flip(0),) + d[1:] for d in drawn]
            got, _, _, _, _, _ = self.buffer.dispatch(self.payload(case, again[me][0], scales), handle=handle, config=self.config)
            self.check_rows("cached dispatch", case, got, again)
            self.bytes += 4 * META_INTS * (a.sms // 2)
            self.puts += a.sms // 2
            self.requests += CACHED_SYNCS
            self.count(self.far(me), per_token(a, case, 0))
            drawn = again
        self.say(f"seed {seed} {case}: combine")
        self.combine(case, got, handle, got_weights if case[1] else None, drawn)

    def times(self):
        """Prints how long calls take, and what they move."""
        torch, a, me = self.torch, self.a, self.rank
        drawn = [draw(torch, a, a.seeds, r) for r in range(a.ranks)]
        self.sent = [goes_to(torch, a, d[2]) for d in drawn]
        data, scales, index, weights = drawn[me]
        named = dict(self.layout(index, self.sent[me]), topk_idx=self.on(index), topk_weights=self.on(weights))
        bf16, fp8 = (self.payload((kind,), data, scales) for kind in ("bf16", "fp8"))
        got, *_, handle, _ = self.buffer.dispatch(bf16, config=self.config, **named)
        calls = {"dispatch BF16": lambda: self.buffer.dispatch(bf16, config=self.config, **named),
                 "dispatch FP8": lambda: self.buffer.dispatch(fp8, config=self.config, **named),
                 "cached BF16": lambda: self.buffer.dispatch(bf16, handle=handle, config=self.config),
                 "combine": lambda: self.buffer.combine(got, handle, config=self.config)}
        node = me // NVL * NVL
        self.say(f"TIME {int(self.sent[me][:, node:node + NVL].sum())} rows stay within the node, {int(self.far(me).sum())} tokens cross")
        took = {name: [] for name in calls}
        for _ in range(a.rounds + 1):
            for name, call in calls.items():
                self.dist.barrier()
                start = time.perf_counter()
                call()
                if self.device == "cuda":
                    torch.cuda.synchronize()
                slowest = torch.tensor([time.perf_counter() - start])
                self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
                took[name].append(float(slowest) * 1e6)
        self.say("TIME us " + json.dumps({name: round(statistics.median(values[1:])) for name, values in took.items()}))

    def asked(self):
        return self.torch.cuda.memory_stats().get("num_device_alloc", 0) if self.device == "cuda" else 0

    def play(self):
        start, before = time.time(), self.asked()
        for seed in range(self.a.seeds):
            for case in CASES:
                self.case(seed, case)
        if self.a.rounds:
            self.times()
        self.say("ends")
        if self.device == "cuda":
            self.say(f"PyTorch asked the driver for memory {self.asked() - before} times")
        self.buffer.destroy()
        self.dist.barrier()
        self.dist.destroy_process_group()
        print(f"PASSED in {time.time() - start:.1f} s", flush=True)
        print(f"WANT {self.bytes} bytes {self.requests} requests {self.puts} puts", flush=True)


def verdict(log, counts):
    """Returns what is wrong in a rank's log, or None. counts: whether those of the shim must be as the seeds say."""
    text = open(log, encoding="utf-8", errors="replace").read()
    want = re.search(r"^WANT (\d+) bytes (\d+) requests (\d+) puts", text, re.M)
    if not want:
        lines = [x for x in text.splitlines() if re.search("WRONG|Error|EPF-[0-9]|timeout|Assert|refus", x) and "NCCL" not in x] or text.splitlines()[-1:]
        return "not finished; " + (lines[-1][:300] if lines else "no output")
    if not counts:
        return None
    had = re.search(r"(\d+) puts of (\d+) bytes, (\d+) inline puts, (\d+) adds, (\d+) channel requests, (\d+) early doorbells, (\d+) refusals", text)
    if not had:
        return "passed, but the shim printed no counts"
    size, requests, puts = map(int, want.groups())
    n = list(map(int, had.groups()))
    # Adds follow puts of tokens, or return heads.
    if n[1] != size or n[4] != requests or n[0] < puts or n[2] or n[6]:
        return f"COUNTS DIFFER: {had.group(0)}; expected {size} bytes, {requests} requests, at least {puts} puts"
    return None


def combined_token(a, topk):
    """Bytes of a token in combine's buffers."""
    return (a.hidden * 2 + SOURCE_META + 4 * topk + 15) // 16 * 16


def own_draw(torch, a, rank):
    """Tokens that a rank of test_internode.py sends to the other node, by its draws from the GPU's generator."""
    torch.manual_seed(rank)
    torch.randn((a.tokens, a.hidden), dtype=torch.bfloat16, device="cuda")
    scores = torch.randn((a.tokens, a.experts), dtype=torch.float32, device="cuda").abs() + 1
    nodes = torch.topk(scores, a.topk, dim=-1)[1] // (a.experts // 2)
    return int((nodes != rank // NVL).any(dim=1).sum())


def own(a):
    """Each of the 32 cases dispatches and combines; the 16 without top-k indices dispatch once more with the cached handle."""
    import torch
    channels, fixed, out, back = a.sms // 2, 0, 0, 0
    for payload in ("bf16", "fp8"):
        for topk, dispatches in ((a.topk, 1), (0, 2)):
            fixed += 8 * (4 * (NVL + a.experts // 2 + 1) + dispatches * channels * 4 * META_INTS)
            out += 8 * dispatches * per_token(a, (payload,), topk)
            back += 8 * combined_token(a, topk)
    requests = 16 * (NOTIFY_SYNCS + CACHED_SYNCS) + 16 * (NOTIFY_SYNCS + 2 * CACHED_SYNCS)
    far = [own_draw(torch, a, r) for r in range(a.ranks)]
    want = sorted(f"rank {r // NVL}: {fixed + far[r] * out + far[(r + NVL) % a.ranks] * back} bytes, {requests} requests" for r in range(a.ranks))
    text = "".join(open(name, encoding="utf-8", errors="replace").read() for name in a.own)
    had = sorted(f"rank {r}: {size} bytes, {n} requests" for r, size, n in
                 re.findall(r"rank (\d+): \d+ puts of (\d+) bytes, 0 inline puts, \d+ adds, (\d+) channel requests, \d+ early doorbells, 0 refusals", text))
    if had == want:
        print(f"bytes and barrier requests of {len(had)} ranks as the seeds say")
        return 0
    print(f"COUNTS DIFFER: {sorted(set(had) - set(want))[:4]} instead of {sorted(set(want) - set(had))[:4]}")
    return 1


def ratios(folder):
    runs = {who: [json.loads(line) for log in glob.glob(f"{folder}/times-{who}-[0-9]*.log")
                  for line in re.findall(r"TIME us (.*)", open(log, encoding="utf-8", errors="replace").read())] for who in ("ours", "deepep")}
    if not all(runs.values()):
        print("# no ratios: " + ", ".join(f"{len(times)} runs of {who}" for who, times in runs.items()))
        return 1
    for name in runs["ours"][0]:
        ours, theirs = (statistics.median(times[name] for times in runs[who]) for who in runs)
        print(f"# {name}: {ours:.0f} / {theirs:.0f} us = {ours / theirs:.2f}")
    return 0


def parent(a):
    os.makedirs(a.out, exist_ok=True)
    for name in os.listdir(a.out):
        if name == "store" or name.startswith("rank-"):
            os.unlink(os.path.join(a.out, name))
    logs = [os.path.join(a.out, f"rank-{r:02}.log") for r in range(a.ranks)]
    ranks = []
    for r, log in enumerate(logs):
        env = dict(os.environ, INTERNODE_RANK=str(r))
        if a.services:
            env["EPF_SERVICE"] = a.services[r // NVL % len(a.services)]
        if a.ours:
            env["EPF_NODE"] = str(r // NVL)
        with open(log, "w", encoding="utf-8") as f:
            ranks.append(subprocess.Popen([sys.executable, *sys.argv], env=env, stdin=subprocess.DEVNULL, stdout=f, stderr=f))
    end, fell = time.time() + a.limit, None
    while time.time() < end and any(p.poll() is None for p in ranks):
        time.sleep(0.2)
        # After a failure the other ranks' kernels wait forever.
        if fell is None and any(p.poll() for p in ranks):
            fell = time.time()
            end = min(end, fell + 5)
    late = [r for r, p in enumerate(ranks) if p.poll() is None]
    if late:
        for r in late:
            ranks[r].send_signal(signal.SIGUSR1)
        time.sleep(1)
        if os.environ.get("INTERNODE_LOOK"):
            subprocess.run(os.environ["INTERNODE_LOOK"], shell=True, timeout=20, check=False)
        for r in late:
            ranks[r].kill()
    for p in ranks:
        p.wait()
    bad = [(r, said) for r, said in ((r, verdict(log, not a.ours and not a.rounds)) for r, log in enumerate(logs)) if said]
    for r, said in sorted(bad, key=lambda b: "WRONG" not in b[1])[:6]:
        print(f"rank {r}: {said}")
    if late:
        print(f"killed after {a.limit if fell is None else 5} s: ranks {late}")
    first = open(logs[0], encoding="utf-8", errors="replace").read()
    for line in re.findall(r".*peers mapped.*|.*early doorbells.*|.*PyTorch asked.*|.*TIME .*|^PASSED.*", first, re.M):
        print("rank 0: " + line[:260])
    unmapped = sum("0 peers mapped" in open(log, encoding="utf-8", errors="replace").read() for log in logs)
    print(f"{a.ranks - len(bad)} of {a.ranks} ranks as the seeds say" + ("" if a.ours else f"; 0 peers mapped at {unmapped}"))
    return 1 if bad or late or (unmapped != a.ranks and not a.ours) else 0


def main():
    a = arguments()
    if a.own:
        return own(a)
    if a.ratios:
        return ratios(a.out)
    a.out = os.path.abspath(a.out)
    rank = os.environ.get("INTERNODE_RANK")
    if rank is None:
        return parent(a)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    Rank(a, int(rank)).play()
    return 0


if __name__ == "__main__":
    sys.exit(main())
