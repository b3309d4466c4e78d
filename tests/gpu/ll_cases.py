#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatch and combine on GPUs with deep_ep.Buffer of this tree: parts of the suite, one after another in one set of processes.

    ll_cases.py PART[,PART]... [--ranks N] [--commands] [--sums off|auto|always] [--cases N] [--steps N] [--seed N] [--quick] [--limit SECONDS] [--device cpu]

PART: smoke, table, random, graph, mixed, beside, kill; speed and compare (ll_speed.py); stages (ll_stages.py). One process per rank, rank r on GPU r
modulo the number of GPUs; NCCL if each rank has its own GPU, else gloo. --commands: no NVLink, every byte goes through rings, engine and NIC. --sums:
whether combines sum at the sender. --device cpu runs the parts that need no GPU on CPU tensors. EPF_LIBRARY, EPF_LL_LIBRARY and PYTHONPATH select what
is tested; run by ll.sh.

Each part prints a line about its checks. Exit 0: right; 1: wrong, with the first wrong element and the state of the ranks; 77: cannot run here.
"""
import argparse
import faulthandler
import importlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback

os.environ.setdefault("EPF_GPU_TIMEOUT", "5s")  # of a rank for another: turns a hang into an error
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from ll_reference import Case, Wrong, bits  # noqa: E402

FORMS = [{}, {"form": "hook"}, {"form": "async"}, {"zero_copy": True}, {"fp8": True}, {"fp8": True, "form": "hook"},
         {"fp8": True, "round_scale": True}, {"fp8": True, "round_scale": True, "ue8m0": True, "form": "async"},
         {"form": "hook", "zero_copy": True}, {"fp8": True, "round_scale": True, "ue8m0": True, "form": "hook", "zero_copy": True},
         {"logfmt": True}, {"fp8": True, "logfmt": True, "form": "async"}, {"logfmt": True, "form": "hook"}]


class Rank:
    """The context of a part: rank, group, Buffers."""

    def __init__(self, rank, args, folder):
        self.rank, self.size, self.args, self.folder = rank, args.ranks, args, folder
        self.nodes = args.nodes.split(",") if args.nodes else ["0"] * args.ranks
        os.environ["EPF_NODE"] = self.nodes[rank]
        self.on_gpu = args.device == "cuda"
        self.device = torch.device("cuda", rank % torch.cuda.device_count()) if self.on_gpu else torch.device("cpu")
        nccl = self.on_gpu and args.ranks <= torch.cuda.device_count() and not args.kills
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if nccl else "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=args.ranks)
        self.group = dist.group.WORLD
        self.made = []

    def buffer(self, shapes, module=None, **more):
        """A Buffer of deep_ep (or of a module with its interface) for the largest of the shapes (tokens at most, hidden, experts)."""
        if module is None:
            import deep_ep as module
        hint = max(module.Buffer.get_low_latency_rdma_size_hint(most, hidden, self.size, experts) for most, hidden, experts in shapes)
        if module.__name__ == "deep_ep":
            more.update(device=self.device, sum_at_sender=self.args.sums)
        b = module.Buffer(self.group, num_rdma_bytes=hint, low_latency_mode=True, num_qps_per_rank=max(s[2] for s in shapes) // self.size,
                          allow_nvlink_for_low_latency_mode=not self.args.commands, explicitly_destroy=True, **more)
        self.made.append(b)
        return b

    def throughput_buffer(self, module=None):
        """A Buffer for the high-throughput calls."""
        if module is None:
            import deep_ep as module
        b = module.Buffer(self.group, 1 << 30, 0, explicitly_destroy=True, **({"device": self.device} if module.__name__ == "deep_ep" else {}))
        self.made.append(b)
        return b

    def sync(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def meet(self):
        """A barrier of all ranks, after all their launches."""
        self.sync()
        dist.barrier()
        self.sync()

    def say(self, text):
        """Prints once, not on each rank."""
        if self.rank == 0:
            print(text, flush=True)

    def known(self):
        """Yields lines about this rank's state after a failure."""
        for b in self.made:
            if getattr(b, "_ll", None) is None:
                continue
            try:
                b._ll.check()
                yield "kernels reported nothing"
            except Exception as error:
                yield f"kernels reported: {error}"
            for name in ("cmds_dequeued", "cmds_retired", "cmds_failed", "signals_applied"):
                try:
                    yield f"{name} {b._fabric.counter(name)}"
                except Exception:
                    pass  # no such counter
            from epf.tensors import view
            words = view(torch, b._ll.memory()[0], 4 * self.size * 32, torch.int32, b.device, getattr(b, "_shared", None))
            words = words.view(2, 2, self.size, 32).cpu()
            stores = [[sorted(set(line.tolist())) for line in lines] for lines in words[0]]
            yield (f"flags written by plain stores, by set and rank: dispatches {stores}, combines {words[1, ..., 0].tolist()}; "
                   f"peers mapped: {getattr(b._shared, 'peers', None)}")


# ---------------------------------------------------------------------- one dispatch and combine, compared


def poison(rank, b, case):
    """Fills the communication memory, and the allocator's memory for outputs, with a pattern. Collective."""
    rank.meet()
    if os.environ.get("EPF_SERVICE") is None:
        b.get_local_buffer_tensor(torch.uint8, use_rdma_buffer=True).fill_(0xa5)
    torch.full((case.local, case.rows, case.hidden), float("nan"), dtype=torch.bfloat16, device=rank.device)  # freed at once and reused
    rank.meet()


def launch(b, case, x, idx, fp8=False, round_scale=False, ue8m0=False, form="sync", **more):
    """Dispatches in one form, finished on the current stream; returns (received, count, handle)."""
    got, count, handle, event, hook = b.low_latency_dispatch(
        x, idx, case.most, case.experts, use_fp8=fp8, round_scale=round_scale, use_ue8m0=ue8m0, async_finish=form == "async",
        return_recv_hook=form == "hook", **more)
    if form == "hook":
        hook()
    elif form == "async":
        event.current_stream_wait()
    return got, count, handle


def finish(b, y, idx, weight, handle, form="sync", zero_copy=False, **more):
    """Combines in one form; returns the sums."""
    if zero_copy:
        b.get_next_low_latency_combine_buffer(handle).copy_(y)
        y = torch.full_like(y, float("nan"))
    sums, event, hook = b.low_latency_combine(y, idx, weight, handle, zero_copy=zero_copy, async_finish=form == "async",
                                              return_recv_hook=form == "hook", **more)
    if form == "hook":
        hook()
    elif form == "async":
        event.current_stream_wait()
    return sums


def one(rank, b, case, fp8=False, round_scale=False, ue8m0=False, form="sync", zero_copy=False, logfmt=False, what=""):
    """Dispatches and combines, compares both; returns the sums."""
    x, idx, weight = case.inputs(rank.rank)
    stats = torch.zeros(case.local, dtype=torch.int32, device=rank.device)
    waits = torch.zeros(rank.size, dtype=torch.int64, device=rank.device)
    try:
        got, count, handle = launch(b, case, x, idx, fp8, round_scale, ue8m0, form, cumulative_local_expert_recv_stats=stats,
                                    dispatch_wait_recv_cost_stats=waits)
        rank.sync()
        case.check_received(rank.rank, got, count, handle, fp8, round_scale, ue8m0)
        if not torch.equal(stats, count):
            raise Wrong(f"cumulative statistics {stats.tolist()} instead of {count.tolist()}")
        sums = finish(b, case.outputs(rank.rank), idx, weight, handle, form, zero_copy, use_logfmt=logfmt)
        rank.sync()
        case.check_combined(rank.rank, sums, logfmt)
        if int(waits.min()) < 0:
            raise Wrong(f"waiting statistics {waits.tolist()}")
        return sums
    except Wrong as error:
        named = {"fp8": fp8, "round_scale": round_scale, "ue8m0": ue8m0, "zero_copy": zero_copy, "logfmt": logfmt}
        raise Wrong(f"{what}{case}, {form}{''.join(' ' + n for n, on in named.items() if on)}: {error}") from None


def spread(rank, tokens, i):
    """Tokens by rank: `tokens` on one rank, other numbers on the others."""
    return [max(0, tokens - 3 * ((r + i) % rank.size)) if i % 2 else tokens for r in range(rank.size)]


# ---------------------------------------------------------------------- the parts


def smoke(rank):
    """The smallest case through all forms, BF16 first."""
    case = Case(rank.device, [16] * rank.size, 2048, 16 // rank.size * rank.size, 4, seed=7)
    b = rank.buffer([(16, 2048, case.experts)])
    began = time.time()
    one(rank, b, case, what="first call: ")
    took = time.time() - began
    for i, form in enumerate(FORMS):
        one(rank, b, case, **form)
    b.destroy()
    return f"{1 + len(FORMS)} forms of {case}; the first took {took * 1e3:.0f} ms with its checks"


def table(rank):
    """Every hidden size, token count and top-k with changing forms and numbers of experts, in poisoned memory."""
    quick = rank.args.quick
    hidden = list(range(2048, 8193, 512))
    tokens, done = [0, 1, 7, 128, 512], 0
    cases = [(tokens[i % 5], hidden[i % 13], rank.size * (1 + (i * 7) % 24), 1 + i % 16) for i in range(16 if quick else 65)]
    cases = [(t, h, max(e, -(-k // rank.size) * rank.size), k) for t, h, e, k in cases] + [(128, 7168, 288 // rank.size * rank.size, 8)]
    b = rank.buffer([(max(t, 1), h, e) for t, h, e, _ in cases])
    for i, (t, h, e, k) in enumerate(cases):
        case = Case(rank.device, spread(rank, t, i), h, e, k, seed=100 + i, most=max(t, 1))
        if i % 3 == 0:
            poison(rank, b, case)
        for form in (FORMS[i % len(FORMS)], FORMS[(3 * i + 4) % len(FORMS)]):
            one(rank, b, case, **form)
            done += 1
    b.destroy()
    return f"{done} calls of {len(cases)} shapes"


def random_cases(rank):
    """Random cases from seeds, each run twice: right, with identical bits."""
    biggest = (512, 8192, 72 * rank.size)
    b = rank.buffer([biggest])
    for i in range(rank.args.cases):
        seed = rank.args.seed + i
        r = random.Random(seed)
        topk = r.randint(1, 16)
        experts = rank.size * r.randint(-(-topk // rank.size), 72)
        tokens = [r.choice([0, 1, 7, r.randint(0, 128), r.randint(0, 512)]) for _ in range(rank.size)]
        case = Case(rank.device, tokens, 512 * r.randint(1, 16), experts, topk, seed=seed, holes=r.choice([0, 0.15, 0.9]))
        form = FORMS[r.randrange(len(FORMS))]
        if r.random() < 0.1:
            poison(rank, b, case)
        first = one(rank, b, case, what=f"seed {seed}: ", **form)
        again = one(rank, b, case, what=f"seed {seed} again: ", **form)
        if not torch.equal(bits(first), bits(again)):
            raise Wrong(f"seed {seed}: {case}: the second run gave other bits")
    b.destroy()
    return f"{rank.args.cases} cases from seed {rank.args.seed}, each twice, in one process group"


class Replayed:
    """A dispatch and a combine in a CUDA graph with replaceable inputs. The graph computes the experts' outputs from BF16 rows."""

    def __init__(self, rank, b, case, hook):
        self.rank, self.b, self.case, self.form = rank, b, case, "hook" if hook else "sync"
        self.x, self.idx, self.weight = case.inputs(rank.rank)
        self.expert = torch.arange(rank.rank * case.local, (rank.rank + 1) * case.local, device=rank.device).view(-1, 1)
        self.step()  # loads code on first use, and sets the shape
        rank.meet()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self.step()
        rank.meet()

    def step(self):
        got, count, handle = launch(self.b, self.case, self.x, self.idx, form=self.form)
        y = Case.output_of(got, self.expert)
        return got, count, handle, finish(self.b, y, self.idx, self.weight, handle, self.form)

    def run(self, case, replay=True, compare=True):
        """Runs another case of the same shape, by the graph or eagerly."""
        x, idx, weight = case.inputs(self.rank.rank)
        for mine, new in ((self.x, x), (self.idx, idx), (self.weight, weight)):
            mine.copy_(new)
        if replay:
            self.graph.replay()
        got, count, handle, sums = self.out if replay else self.step()
        if compare:
            self.rank.sync()
            case.check_received(self.rank.rank, got, count, handle)
            case.check_combined(self.rank.rank, sums)


def _same_shape(rank, seed):
    return Case(rank.device, [32] * rank.size, 2048, 8 * rank.size, 6, seed=seed)


def graph(rank):
    """One captured dispatch and combine, replayed with changing inputs."""
    cases = [_same_shape(rank, seed) for seed in range(20)]
    b = rank.buffer([(32, 2048, cases[0].experts)])
    done = 0
    for hook in (False, True):
        replayed = Replayed(rank, b, cases[0], hook)
        for i in range(rank.args.steps):
            try:
                replayed.run(cases[i % len(cases)], compare=i < 40 or i % 10 == 0)
            except Wrong as error:
                raise Wrong(f"replay {i}, hook {hook}: {error}") from None
            done += 1
    rank.meet()
    b.destroy()
    return f"{done} replays with changing inputs, half of them with separate halves"


def mixed(rank):
    """Alternating graph and eager calls on one Buffer; memory must not grow."""
    cases = [_same_shape(rank, seed) for seed in range(10)]
    b = rank.buffer([(32, 2048, cases[0].experts)])
    replayed = Replayed(rank, b, cases[0], False)
    before = None
    for i in range(rank.args.steps):
        try:
            replayed.run(cases[i % len(cases)], replay=bool((i // 3) % 2), compare=i % 10 == 0)
        except Wrong as error:
            raise Wrong(f"step {i}: {error}") from None
        if i == rank.args.steps // 10:
            rank.meet()
            before = (torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], _resident())
    rank.meet()
    after = (torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0], _resident())
    if after[0] > before[0]:
        raise Wrong(f"tensors hold {after[0] - before[0]} bytes more than after a tenth of the steps")
    if before[1] - after[1] > 64 << 20 or after[2] - before[2] > 64 << 20:
        raise Wrong(f"GPU memory grew by {before[1] - after[1]} bytes, the process by {after[2] - before[2]}")
    b.destroy()
    return f"{rank.args.steps} steps, graph and eager alternating; GPU memory grew by {before[1] - after[1]} bytes, the process by {after[2] - before[2]}"


def _resident():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


def kill(rank):
    """The last rank is killed between two calls: the others name it as lost, mask it and go on. No deadline passes before the test's limit."""
    last = rank.size - 1
    said, warnings = [], logging.Handler()
    warnings.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("deep_ep").addHandler(warnings)
    case = _same_shape(rank, 1)
    b = rank.buffer([(32, 2048, case.experts)], enable_shrink=True)
    for _ in range(5):
        one(rank, b, case)
    rank.meet()
    if rank.rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.time()
    x, idx, weight = case.inputs(rank.rank)
    _, _, handle = launch(b, case, x, idx)
    rank.sync()
    took = time.time() - began
    finish(b, torch.zeros((case.local, case.rows, case.hidden), dtype=torch.bfloat16, device=rank.device), idx, weight, handle)
    mask = torch.zeros(rank.size, dtype=torch.int32, device=rank.device)
    b.low_latency_query_mask_buffer(mask)
    rank.sync()
    if mask.tolist() != [int(r == last) for r in range(rank.size)]:
        raise Wrong(f"masks are {mask.tolist()} after {took:.1f} s")
    if not any(f"lost or closed, and masked now: rank {last} (rank {last} on node" in line for line in said):
        raise Wrong(f"nothing said that rank {last} is lost: {said}")
    for seed in range(10):
        one(rank, b, Case(rank.device, [32] * rank.size, 2048, case.experts, 6, seed=seed, lost=(last,)), what="without the lost rank: ")
    return f"rank {last} was lost: the call returned after {took:.2f} s with its mask set, and 10 rounds without it were right"


def _driver_calls(rank):
    """Driver calls of a program, by name; each is the first of its kind, or acts like one."""
    held = []

    def alloc():
        held.append(torch.cuda.caching_allocator_alloc(96 << 20))

    def free():
        for at in held:
            torch.cuda.caching_allocator_delete(at)
        torch.cuda.empty_cache()

    small = torch.rand(1000, device=rank.device)
    return {"nothing": lambda: None, "a kernel used before": lambda: small + 1, "a kernel's first use": lambda: torch.special.i1e(small),
            "another kernel's first use": lambda: torch.logcumsumexp(small, 0), "cudaMalloc": alloc, "cudaFree": free,
            "pinned host memory": lambda: torch.empty(1 << 20, pin_memory=True), "a new stream": lambda: torch.cuda.Stream(rank.device, priority=-1),
            "cudaMemGetInfo": torch.cuda.mem_get_info, "copy to the host": lambda: small.cpu(), "synchronize": torch.cuda.synchronize}


def beside(rank):
    """Driver calls while a receiving half waits for rows that the engine must copy. A call that waits for that half and blocks the engine's driver calls
    ends only by the timeout. Printed, not judged: it is a limitation of the software NIC."""
    case = _same_shape(rank, 1)
    b = rank.buffer([(32, 2048, case.experts)], enable_shrink=True)
    one(rank, b, case)
    stalled = []
    for name, call in _driver_calls(rank).items():
        x, idx, _ = case.inputs(rank.rank)
        rank.meet()
        if rank.rank == rank.size - 1:
            time.sleep(0.3)  # the others wait for it in their kernels
        got, count, handle, event, _ = b.low_latency_dispatch(x, idx, case.most, case.experts, use_fp8=False, async_finish=True)
        began = time.time()
        if rank.rank != rank.size - 1:
            call()
        took = time.time() - began
        event.current_stream_wait()
        rank.sync()
        mask = torch.zeros(rank.size, dtype=torch.int32, device=rank.device)
        b.low_latency_query_mask_buffer(mask)
        lost = torch.tensor([int(mask.sum())])
        everybody = [None] * rank.size
        dist.all_gather_object(everybody, int(lost))
        rank.say(f"  {name:28s} {took * 1e3:8.1f} ms  {'STALLED until the timeout' if any(everybody) else 'right'}")
        if any(everybody):
            stalled.append(name)
            b.low_latency_clean_mask_buffer()
            b.clean_low_latency_buffer(case.most, case.hidden, case.experts)
        else:
            case.check_received(rank.rank, got, count, handle)
    b.destroy()
    return "all calls returned during a waiting half" if not stalled else "deadlocked until the timeout: a waiting half and " + ", ".join(stalled)


# ---------------------------------------------------------------------- processes


def worker(rank, args, folder):
    """The process of a rank."""
    faulthandler.dump_traceback_later(max(args.limit - 4, 1), exit=True)
    if args.kills:
        os.environ["EPF_GPU_TIMEOUT"] = "1h"  # longer than the test waits
    elif "beside" in args.part:
        os.environ["EPF_GPU_TIMEOUT"] = "2s"
    me = None
    try:
        me = Rank(rank, args, folder)
        Case.at_sender = args.sums
        for part in args.part:
            began = time.time()
            result = PARTS[part](me)
            me.say(f"# {part}: {result} ({time.time() - began:.1f} s)")
        code = 0
    except BaseException as error:
        code = 1
        text = [f"rank {rank}: {error if isinstance(error, Wrong) else traceback.format_exc().rstrip()}"]
        if me:
            try:
                text += [f"rank {rank}: {line}" for line in me.known()]
            except BaseException as more:
                text.append(f"rank {rank}: no more is known: {type(more).__name__}: {more}")
        print("\n".join(text), flush=True)
    sys.stdout.flush()
    # No destructors: after a failure or a lost rank, their collectives would hang.
    if code == 0 and not args.kills:
        dist.destroy_process_group()
    os._exit(code)


def run(args):
    """Runs all ranks; returns 0 if each exited as it should."""
    # CUDA does not survive a fork; where there is none, forked ranks need not import PyTorch again, which takes longer than most parts.
    context = multiprocessing.get_context("fork" if args.device == "cpu" else "spawn")
    deadline = time.time() + args.limit
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=worker, args=(r, args, folder)) for r in range(args.ranks)]
        for p in ranks:
            p.start()
        failed_at = None
        while any(p.is_alive() for p in ranks) and time.time() < deadline:
            time.sleep(0.02)
            if failed_at is None and any(p.exitcode not in (None, 0) for p in ranks) and not args.kills:
                failed_at = time.time()
                deadline = min(deadline, failed_at + 8)  # the others notice by their own timeout
        codes = []
        for p in ranks:
            if p.is_alive():
                p.kill()
            p.join()
            codes.append(p.exitcode)
    if args.kills and codes[-1] == -signal.SIGKILL:
        codes[-1] = 0
    if any(codes):
        print(f"# {','.join(args.part)}: ranks ended with {codes} (negative: by a signal)")
    return 1 if any(codes) else 0


def part_of(module, name):
    """A part in another file, which is imported only when it runs."""
    return lambda rank: getattr(importlib.import_module(module), name)(rank)


PARTS = {"smoke": smoke, "table": table, "random": random_cases, "graph": graph, "mixed": mixed, "beside": beside, "kill": kill,
         "speed": part_of("ll_speed", "speed"), "compare": part_of("ll_speed", "compare"), "stages": part_of("ll_stages", "stages")}
PARTS.update({f"ht-{name}": part_of("ht_cases", name) for name in ("table", "random", "sizes", "numbers", "crossing", "layers", "streams", "graphs", "mixed", "threads", "callers", "late", "kill")})
PARTS.update({f"ht-kill-{name}": part_of("ht_cases", f"kill_{name}") for name in ("rows", "sums")})
PARTS.update({f"elastic-{name}": part_of("elastic_cases", name) for name in ("table", "random", "large", "errors", "guesses", "unwaited", "layers", "graphs", "callers", "kill")})
PARTS["hybrid"] = part_of("hybrid_cases", "hybrid")
PARTS["ht-speed"] = part_of("ht_speed", "speed")
PARTS["ht-memory"] = part_of("ht_memory", "memory")
PARTS["ht-between"] = part_of("ht_between", "between")
PARTS.update({"peers-ll": part_of("peers_speed", "low_latency"), "peers-ht": part_of("peers_speed", "high_throughput")})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", type=lambda names: names.split(","), help="of " + ", ".join(PARTS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--commands", action="store_true", help="no NVLink")
    parser.add_argument("--nodes", help="the node of each rank, as 0,0,1: ranks of different ones do not map each other's memory (default: one node)")
    parser.add_argument("--sums", default="off", choices=("off", "auto", "always"), help="sums at the sender: never, if there are many tokens, always")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60, help="seconds after which ranks print their stacks and are killed")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--deepep", help="folder with DeepEP's package and its compiled module")
    parser.add_argument("--nixl", help="folder with NIXL EP's package")
    parser.add_argument("--nccl-ep", action="store_true", help="NCCL EP takes part in peers-*")
    args = parser.parse_args()
    args.kills = any(part.startswith(("kill", "ht-kill", "elastic-kill")) for part in args.part)
    if set(args.part) - set(PARTS) or (args.kills and len(args.part) > 1):
        parser.error(f"parts are {', '.join(PARTS)}; kill must be the only part")
    if args.device == "cuda" and not torch.cuda.is_available():
        print("PyTorch finds no GPU: skipped")
        sys.exit(77)
    if args.device == "cpu" and set(args.part) & {"graph", "mixed", "beside", "speed", "compare", "stages", "ht-graphs", "ht-speed", "ht-memory", "ht-between", "elastic-graphs", "elastic-large", "peers-ll", "peers-ht"}:
        print("graphs and times need a GPU: skipped")
        sys.exit(77)
    sys.exit(run(args))


if __name__ == "__main__":
    main()
