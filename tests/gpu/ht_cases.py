# SPDX-License-Identifier: Apache-2.0
"""High-throughput parts of ll_cases.py: dispatch and combine of deep_ep.Buffer against a reference in PyTorch, bit for bit."""
import os
import re
import signal
import time
from random import Random

import torch
import torch.distributed as dist

from epf.throughput import Row
from ht_batch import ORDERS, Batch, Odd, check_rows, named, one, ordered, received, returned, same, wait
from ll_reference import Wrong, bits


def table(rank):
    """Types of rows, top-k, sizes, orders, alignments, worst-case calls, biases."""
    from deep_ep import Buffer, Config
    b = rank.throughput_buffer()
    done = 0
    for i in range(12 if rank.args.quick else 48):
        tokens = [[5, 0, 64, 129, 300][(i + r) % 5] for r in range(rank.size)]
        topk = [1, 4, 8, 32][i % 4]
        experts = rank.size * [8, 32, 33][i % 3]
        topk = min(topk, experts)
        kind = ("bf16", "bf16", "fp8", "fp32", "int8")[i % 5]
        hidden = {"bf16": (8, 2048, 7168), "fp8": (2048, 7168, 512), "fp32": (4, 1024, 2048), "int8": (16, 2048, 48)}[kind][i % 3]
        batch = Batch(rank, tokens, hidden, experts, topk, seed=i, kind=kind, holes=(0.1, 0, 0.9)[i % 3])
        one(rank, b, batch, order=ORDERS[i % 4], topk=i % 7 != 3 or i % 2 == 0 or i % 6 == 5, worst=rank.size * 300 if i % 6 == 5 else 0, align=(1, 16)[i % 2],
            biases=i % 3, config=(None, Config(24, 8, 256), Buffer.get_dispatch_config(rank.size))[i % 3])
        done += 1
    b.destroy()
    return f"{done} shapes, each with a cached dispatch"


def random(rank):
    """Cases from seeds, each twice: right, and the same bits again; with blocks of another number."""
    from deep_ep import Config
    b = rank.throughput_buffer()
    for i in range(rank.args.cases):
        r = Random(rank.args.seed + i)
        topk, experts = r.randint(1, 16), rank.size * r.randint(1, 64)
        tokens = [r.choice([0, 1, 7, r.randint(0, 512)]) for _ in range(rank.size)]
        batch = Batch(rank, tokens, 8 * r.randint(1, 600), experts, min(topk, experts), seed=rank.args.seed + i, holes=r.choice([0, 0.2, 0.95]))
        form = {"order": r.choice(ORDERS), "biases": r.randint(0, 2), "worst": r.choice([0, 0, 512 * rank.size])}
        for sms in (24, 2 * r.randint(1, 16)):
            one(rank, b, batch, what=f"seed {rank.args.seed + i}, {sms} SMs: ", config=Config(sms), **form)
    b.destroy()
    return f"{rank.args.cases} cases from seed {rank.args.seed}, each twice"


def sizes(rank):
    """Batches that grow and shrink: outputs of a size that is guessed from the batch before, and again of the right one where the guess was wrong at any rank."""
    b = rank.throughput_buffer()
    outcomes = []
    for i, (n, hidden) in enumerate([(60, 1024), (64, 1024), (40, 64), (150, 512), (150, 512), (1, 8), (0, 8), (30, 2048), (33, 8), (400, 7168), (400, 7168), (5, 7168)]):
        batch = Batch(rank, [n + (r if n else 0) for r in range(rank.size)], hidden, 8 * rank.size, 4, seed=700 + i, holes=0)
        guess, room, spare = b._guess(b._ht, (2 * hidden, 0, batch.topk)) if b._ht else (0, 0, 0)
        one(rank, b, batch, f"guessed {guess}: ", order=ORDERS[i % 3])
        got, everybody = b._last_received, [None] * rank.size
        mine = "none" if not guess else "too small" if got > guess or b._last_room > room else "too long" if guess - got > max(got // 8, spare) else "right"
        dist.all_gather_object(everybody, mine)
        outcome = next(o for o in ("none", "too small", "too long", "right") if o in everybody)
        if b._did_fit != (outcome == "right"):
            raise Wrong(f"{batch}: {got} rows of at most {b._last_room}, guessed {guess} and {room}: {outcome}, and it is said to be {b._did_fit}")
        outcomes.append(outcome)
    if b._ht.nodes == 1 and set(outcomes) != {"none", "right", "too small", "too long"}:
        raise Wrong(f"not every outcome: {outcomes}")
    b.destroy()
    # What a call needed is enough for those that need no more, whatever they guess: to replace a window, all ranks wait for each other.
    b = rank.throughput_buffer()
    for i, n in enumerate((64, 64, 64, 66, 66)):  # two more fit, too, but not what the next call could need
        batch = Batch(rank, [n] * rank.size, 1024, rank.size, rank.size, seed=720, holes=0)  # all rows go to all ranks
        one(rank, b, batch, f"as large as the worst, {i}: ", worst=0 if i else n * rank.size)
        window = window if i else b._window
        if b._window is not window:
            raise Wrong(f"{batch}: the window has moved, though it held so many rows")
    b.destroy()
    return ", ".join(f"{outcomes.count(what)} {what}" for what in sorted(set(outcomes)))


def numbers(rank):
    """Sums of all kinds of numbers, of none, one, two and more rows, in rows whose vectors all lanes share alike and in others."""
    b = rank.throughput_buffer()
    done = 0
    for hidden in (7168, 3584, 2056, 8):
        for holes in (0, 0.6):
            batch = Odd(rank, [130 + r for r in range(rank.size)], hidden, 8 * rank.size, 4, seed=740 + hidden, holes=holes)
            one(rank, b, batch, "odd numbers: ", biases=int(holes > 0 and hidden == 8))
            done += sum(batch.tokens) * hidden
    b.destroy()
    return f"{done} sums"


def crossing(rank):
    """A batch that stays within each node, then one with fewer rows that cross between nodes: only the memory for rows that cross has to grow."""
    b = rank.throughput_buffer()
    far = [next((r for r in range(rank.size) if rank.nodes[r] != node), i) for i, node in enumerate(rank.nodes)]
    far = [to if far[to] == r else r for r, to in enumerate(far)]  # pairs, so that nobody receives the rows of two ranks
    for n, goes_to in ((200, range(rank.size)), (150, far)):
        batch = Batch(rank, [n] * rank.size, 1024, rank.size, 1, seed=n, holes=0)
        for (_, _, idx, _, _), to in zip(batch.all, goes_to):
            idx.fill_(to)
        one(rank, b, batch, f"to ranks {list(goes_to)}: ")
    b.destroy()
    return f"200 rows within nodes, then 150 to ranks {far}"


def layers(rank):
    """As training does: results and handles of many layers are held, and used in reverse order. Every row is checked at the end."""
    b = rank.throughput_buffer()
    held = []
    for i in range(8 if rank.args.quick else 60):
        batch = Batch(rank, [(i * 37 + 11 * r) % 200 for r in range(rank.size)], 1024, 8 * rank.size, 4, seed=500 + i)
        held.append((batch, *received(b, batch, order=ORDERS[i % 3])))
    for batch, rows, weights, handle in reversed(held):
        named(rank, str(batch), check_rows, batch, rows)
        named(rank, str(batch), returned, b, batch, rows, weights, handle, "async")
        cached, *_ = b.dispatch(batch.x, handle=handle)
        named(rank, str(batch), check_rows, batch, cached)
    b.destroy()
    return f"{len(held)} layers held, used in reverse order"


def streams(rank):
    """Calls on three streams, each at times behind a long kernel, in every order and without the CPU waiting: they follow each other nevertheless."""
    b = rank.throughput_buffer()
    batches = [Batch(rank, [90 + 40 * i + r for r in range(rank.size)], 2048, 8 * rank.size, 4, seed=900 + i) for i in range(3)]
    handles = [received(b, batch)[2] for batch in batches]
    rows = [batch.output(batch.expected()[0], rank.rank) for batch in batches]
    rank.sync()
    ways = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    alike, own = Random(rank.args.seed), Random(rank.args.seed + 1 + rank.rank)  # who is slow where differs by rank
    held = []
    for _ in range(40 if rank.args.quick else 400):
        i, way, order, comes_back = alike.randrange(3), alike.randrange(3), alike.choice(ORDERS), alike.random() < 0.5
        with torch.cuda.stream(ways[way]):
            if own.random() < 0.3:
                torch.cuda._sleep(own.randrange(400000))
            if comes_back:
                got, _, event = b.combine(rows[i], handles[i], **ordered(order, b))
            else:
                got, *_, event = b.dispatch(batches[i].x, handle=handles[i], **ordered(order, b))
            wait(event, order)
        held.append((i, comes_back, got))
    rank.sync()
    for n, (i, comes_back, got) in enumerate(held):
        named(rank, f"call {n}", same, got, batches[i].sums(0) if comes_back else batches[i].expected()[0], "sums" if comes_back else "recv_x")
    b.destroy()
    return f"{len(held)} calls on 3 streams"


def threads(rank):
    """Two threads with a batch each on one Buffer, as micro-batches that overlap: in the same order at all ranks, which they see to themselves."""
    import threading
    b = rank.throughput_buffer()
    turn, failed = threading.Condition(), []
    order = [0]

    def work(me):
        try:
            if rank.on_gpu:
                torch.cuda.set_device(rank.device)
            for i in range(6):
                batch = Batch(rank, [30 + r + i for r in range(rank.size)], 1024, 8 * rank.size, 4, seed=800 + 10 * me + i)
                for step in range(2):
                    with turn:
                        turn.wait_for(lambda: order[0] % 2 == me or failed)
                        if step == 0:
                            got = received(b, batch)
                        else:
                            returned(b, batch, *got)
                        order[0] += 1
                        turn.notify_all()
        except BaseException as error:
            with turn:
                failed.append(error)
                turn.notify_all()

    workers = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    if failed:
        raise failed[0]
    rank.sync()
    b.destroy()
    return "2 threads, 6 batches each, their calls alternating"


def grow(rank, buffer, call):
    """Calls call(tokens) with more and more tokens, until the memory that other ranks write rows to has moved: within the node, and between nodes."""
    def lacks(rows):
        return buffer._ht.lacks(Row(4096, 0, 0), rows)

    window, tokens = buffer._window, 128
    too_many = next((n for n in map(lambda bit: 1 << bit, range(24)) if lacks(n)), 0)  # rows between nodes; 0 on one
    while window and buffer._window is window or too_many and lacks(too_many):
        if tokens > 8192:
            raise Wrong(f"{tokens} tokens a rank, and the memory for rows of other ranks is as it was")
        call(tokens)
        tokens *= 2


def graphs(rank):
    """A worst-case dispatch and its combine in a CUDA graph, replayed with other inputs, mixed with eager calls; memory that grows moves meanwhile."""
    b = rank.throughput_buffer()
    tokens, hidden, experts, topk = [256] * rank.size, 2048, 16 * rank.size, 4
    first = Batch(rank, tokens, hidden, experts, topk, seed=1)
    x, idx, weights = first.x.clone(), first.idx.clone(), first.weights.clone()

    def step():
        per_rank, per_node, per_expert, in_rank, _ = b.get_dispatch_layout(idx, experts)
        rows, index, w, _, handle, _ = b.dispatch(x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert,
                                                  topk_idx=idx, topk_weights=weights, num_worst_tokens=256 * rank.size)
        sums, _, _ = b.combine((rows.float() * (1 + rank.rank / 8)).to(torch.bfloat16), handle)
        return rows, index, sums

    step()
    rank.meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows, index, sums = step()
    rank.meet()
    for i in range(min(rank.args.steps, 200)):
        batch = Batch(rank, tokens, hidden, experts, topk, seed=2 + i)
        x.copy_(batch.x)
        idx.copy_(batch.idx)
        weights.copy_(batch.weights)
        graph.replay()
        rank.sync()
        want = batch.expected()
        same(rows[:want[0].size(0)], want[0], f"replay {i}, recv_x")
        same(index[:want[0].size(0)], want[2], f"replay {i}, recv_topk_idx")
        same(sums, batch.sums(0), f"replay {i}, sums")
        if i % 10 == 3:
            one(rank, b, batch, what=f"eager, after replay {i}: ")
        if i == 3:
            grow(rank, b, lambda n: one(rank, b, Batch(rank, [n] * rank.size, hidden, experts, topk, seed=n), what=f"eager, {n} tokens: "))
    del graph
    b.destroy()
    return f"{min(rank.args.steps, 200)} replays with changing inputs, eager calls between them, memory moved after the fourth"


def mixed(rank):
    """One Buffer serves both modes, in any order."""
    from ll_cases import one as low_latency
    from ll_reference import Case
    case = Case(rank.device, [16] * rank.size, 2048, 16 // rank.size * rank.size, 4, seed=7)
    b = rank.buffer([(16, 2048, case.experts)])
    for i in range(6):
        low_latency(rank, b, case, fp8=i % 2 == 1)
        one(rank, b, Batch(rank, [40 + r for r in range(rank.size)], 2048, 8 * rank.size, 4, seed=70 + i), order=ORDERS[i % 4])
    b.destroy()
    b = rank.throughput_buffer()  # given nothing for low latency
    for i in range(3):
        one(rank, b, Batch(rank, [40 + r for r in range(rank.size)], 2048, 8 * rank.size, 4, seed=90 + i), order=ORDERS[i % 4])
        for rounds in range(2):
            low_latency(rank, b, Case(rank.device, [8 << i] * rank.size, 2048, case.experts, 4, seed=i))
    b.destroy()
    return "6 rounds of each mode on one Buffer, 3 on one that was given no memory for low latency"


def callers(rank):
    """The calls of Megatron-core 0.19, vLLM 0.24, SGLang 0.5 and LMDeploy 0.18 with their arguments, by keyword and by position."""
    import deep_ep
    from deep_ep.utils import EventHandle, EventOverlap
    n, group = rank.size, rank.group
    batch = Batch(rank, [50 + 3 * r for r in range(n)], 1024, 8 * n, 4, seed=21)
    want = batch.expected()
    deep_ep.Buffer.set_num_sms(20)
    configs = [get(n) for get in (deep_ep.Buffer.get_dispatch_config, deep_ep.Buffer.get_combine_config)]
    nvl = max(c.get_nvl_buffer_size_hint(batch.hidden * 2, n) for c in configs)
    rdma = max(c.get_rdma_buffer_size_hint(batch.hidden * 2, n) for c in configs)
    device = {"device": rank.device}  # ours; programs on GPUs have no need of it

    # Megatron-core: a Buffer made at the first step and never destroyed; everything asynchronous; backward in reverse order.
    b = deep_ep.Buffer(group, nvl, rdma, **device)
    if b.num_nvl_bytes < nvl or b.num_rdma_bytes < rdma or b.group is not group:
        raise Wrong("the Buffer's sizes and group are not those given")
    previous = EventOverlap(EventHandle())
    per_rank, per_node, per_expert, in_rank, previous = b.get_dispatch_layout(
        batch.idx, batch.experts, previous_event=previous, async_finish=True, allocate_on_comm_stream=True)
    rows, index, probs, counts, handle, event = b.dispatch(
        batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=previous, async_finish=True, allocate_on_comm_stream=True)
    event.current_stream_wait()
    check_rows(batch, rows)
    same(index, want[2], "recv_topk_idx")
    if torch.tensor(counts).tolist() != want[4]:
        raise Wrong(f"counts are {counts} instead of {want[4]}")
    y, _, event = b.combine(batch.output(rows, rank.rank), handle, async_finish=True, previous_event=EventOverlap(EventHandle()),
                            allocate_on_comm_stream=True)
    event.current_stream_wait()
    same(y, batch.sums(0), "Megatron's combine")
    grad_rows, _, _, _, _, event = b.dispatch(batch.x.contiguous(), handle=handle, previous_event=EventOverlap(EventHandle()), async_finish=True,
                                              allocate_on_comm_stream=True)
    event.current_stream_wait()
    check_rows(batch, grad_rows)
    grad, grad_probs, event = b.combine(batch.output(grad_rows, rank.rank).contiguous(), handle, topk_weights=probs.float() * (rank.rank + 1),
                                        previous_event=EventOverlap(EventHandle()), async_finish=True, allocate_on_comm_stream=True)
    event.current_stream_wait()
    same(grad, batch.sums(0), "Megatron's gradient")
    same(grad_probs, batch.sums_of_weights(), "Megatron's gradient of the probabilities")

    # vLLM: synchronous layout, a config, FP8 pairs or BF16; the event may be None; destroyed at the end.
    v = deep_ep.Buffer(group=group, num_nvl_bytes=1 << 30, num_rdma_bytes=0, low_latency_mode=False, num_qps_per_rank=1, explicitly_destroy=True, **device)
    per_rank, per_node, per_expert, in_rank, event = v.get_dispatch_layout(
        topk_idx=batch.idx, num_experts=batch.experts, previous_event=None, async_finish=False, allocate_on_comm_stream=False)
    fp8 = Batch(rank, batch.tokens, 1024, batch.experts, 4, seed=21, kind="fp8")
    for x, data in ((batch.x, batch), ((fp8.x, fp8.scales), fp8)):
        data.idx.copy_(batch.idx)
        rows, index, _, counts, handle, event = v.dispatch(
            x=x, handle=None, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert, topk_idx=batch.idx, topk_weights=batch.weights, expert_alignment=1,
            config=v.get_dispatch_config(n) if n in (2, 4, 8) else None, previous_event=None, async_finish=True, allocate_on_comm_stream=False)
        if event.event is None:
            raise Wrong("no event with async_finish")
        event.current_stream_wait()
    rows, *_, handle, event = v.dispatch(batch.x, None, per_rank, per_node, in_rank, per_expert, batch.idx, batch.weights)
    if event.event is not None:
        raise Wrong("an event without async_finish")
    y, _, event = v.combine(x=batch.output(rows, rank.rank), handle=handle, topk_weights=None, config=None, previous_event=None, async_finish=True,
                            allocate_on_comm_stream=False)
    event.current_stream_wait()
    same(y, batch.sums(0), "vLLM's combine")
    v.destroy()

    # SGLang: one Buffer for both modes, a Config by keywords, an alignment of 128. LMDeploy: an event that wraps nothing.
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(16, 1024, n, batch.experts)
    s = deep_ep.Buffer(group, nvl, max(rdma, hint), low_latency_mode=True, num_qps_per_rank=20, allow_mnnvl=True, **device)
    config = deep_ep.Config(num_sms=24, num_max_nvl_chunked_send_tokens=8, num_max_nvl_chunked_recv_tokens=256, num_max_rdma_chunked_send_tokens=16,
                            num_max_rdma_chunked_recv_tokens=128)
    previous = deep_ep.Buffer.capture()
    per_rank, per_node, per_expert, in_rank, previous = s.get_dispatch_layout(batch.idx, batch.experts, previous_event=previous, async_finish=True,
                                                                             allocate_on_comm_stream=True)
    rows, index, weights, counts, handle, event = s.dispatch(
        batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, previous_event=previous, async_finish=True, allocate_on_comm_stream=True,
        expert_alignment=128, config=config)
    event.current_stream_wait()
    if counts != [-(-c // 128) * 128 for c in want[4]]:
        raise Wrong(f"aligned counts are {counts}")
    y, _, event = s.combine(batch.output(rows, rank.rank), handle, async_finish=True, previous_event=deep_ep.Buffer.capture(),
                            allocate_on_comm_stream=True, config=config)
    event.current_stream_wait()
    same(y, batch.sums(0), "SGLang's combine")
    s.clean_low_latency_buffer(16, 1024, batch.experts)
    layout = s.get_dispatch_layout(batch.idx, batch.experts, None, False, False)
    rows, *_, handle, _ = s.dispatch(batch.x, topk_idx=batch.idx, topk_weights=batch.weights, num_tokens_per_rank=layout[0],
                                     num_tokens_per_rdma_rank=layout[1], is_token_in_rank=layout[3], num_tokens_per_expert=layout[2],
                                     previous_event=layout[4], async_finish=False, allocate_on_comm_stream=False)
    check_rows(batch, rows)
    s.destroy()
    return "Megatron-core, vLLM, SGLang, LMDeploy; one Buffer is never destroyed"


def late(rank):
    """The last rank makes its next call when a file says so (HT_LATE_FILE); meanwhile the others wait."""
    b = rank.throughput_buffer()
    batch = Batch(rank, [64] * rank.size, 1024, 8 * rank.size, 4, seed=4)
    one(rank, b, batch)
    if rank.rank == rank.size - 1:
        while not os.path.exists(os.environ["HT_LATE_FILE"]):
            time.sleep(0.05)
    one(rank, b, batch)
    b.destroy()
    return "a late rank was waited for, and everything was right"


def kill(rank, at="counts"):
    """The last rank is killed, and the others wait for its counts, rows of a dispatch, or rows of a combine: they name it as lost.

    No deadline passes before the test's limit.
    """
    last = rank.size - 1
    b = rank.throughput_buffer()
    batch = Batch(rank, [64] * rank.size, 1024, 8 * rank.size, 4, seed=3)
    for _ in range(3):
        one(rank, b, batch)
    rows, _, handle = received(b, batch)
    rank.meet()
    if rank.rank == last and at == "rows":
        b._ht.dispatch = die  # its counts are with the others by then
    elif rank.rank == last:
        die()

    def call():
        if at == "sums":
            b.combine(batch.output(rows, rank.rank), handle)
        else:
            per_rank, per_node, per_expert, in_rank, _ = b.get_dispatch_layout(batch.idx, batch.experts)
            b.dispatch(batch.x, num_tokens_per_rank=per_rank, num_tokens_per_rdma_rank=per_node, is_token_in_rank=in_rank,
                       num_tokens_per_expert=per_expert, topk_idx=batch.idx, topk_weights=batch.weights)
    return lost(rank, b, call)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def lost(rank, buffer, call):
    """A call of a Buffer that the last rank is lost in: it says so."""
    import epf
    last, began = rank.size - 1, time.time()
    try:
        call()
        rank.sync()
        buffer._ht.check()
    except epf.EpfError as error:
        if not re.search(rf"rank {last} on node \d+ is lost", str(error)):
            raise Wrong(f"the error does not say that rank {last} is lost: {error}") from None
        return f"rank {last} was lost: after {time.time() - began:.1f} s: {error}"
    raise Wrong("a call without the lost rank reported nothing")


def kill_rows(rank):
    """Within a dispatch."""
    return kill(rank, "rows")


def kill_sums(rank):
    """Between a dispatch and its combine."""
    return kill(rank, "sums")
