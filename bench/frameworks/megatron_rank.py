# SPDX-License-Identifier: Apache-2.0
"""One rank that trains an MoE GPT with Megatron-core, unmodified: what train_megatron.py and tests/frameworks run in each process.

Weights, tokens and their order depend on seeds alone, so that losses of different dispatchers and of resumed runs can be compared. On a machine without a
GPU everything is on CPU tensors (on_cpu.py).
"""
import json
import os
import time
import zlib

# Shape and length of a run by the names of train_megatron.py's options.
SIZES = {"ranks": 2, "layers": 2, "hidden": 1024, "ffn": 1024, "experts": 8, "topk": 2, "seq": 512, "batch": 2, "vocab": 1024, "sms": 20, "steps": 10}
BACKENDS = {"flex": "deepep", "hybridep": "hybridep"}  # of Megatron's dispatcher "flex", by what train_megatron.py calls it
CLIP = 1.0  # norm of gradients at most
NOISE = 4  # one token in so many is random; the others follow from the token before, so that there is something to learn
# What a token dispatcher of Megatron does around the experts; "moves" crosses ranks.
PARTS = {"token_dispatch": "moves", "token_combine": "moves", "dispatch_preprocess": "sorts", "dispatch_postprocess": "sorts", "combine_preprocess": "sorts",
         "combine_postprocess": "sorts"}


def device_of(torch):
    return "cuda" if torch.cuda.is_available() else "cpu"


def model_of(a, dispatcher, device):
    """Returns the model, with weights from the names of its parameters."""
    import torch
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig
    flex = {}
    if dispatcher in BACKENDS:
        flex = {"moe_flex_dispatcher_backend": BACKENDS[dispatcher], "moe_flex_dispatcher_num_sms": a.sms}
        dispatcher = "flex"
    config = TransformerConfig(
        num_layers=a.layers, hidden_size=a.hidden, num_attention_heads=max(a.hidden // 128, 1), ffn_hidden_size=a.ffn, num_moe_experts=a.experts,
        moe_ffn_hidden_size=a.ffn, moe_router_topk=a.topk, moe_router_dtype="fp32", moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
        moe_grouped_gemm=False, moe_permute_fusion=False, moe_token_dispatcher_type=dispatcher, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, bf16=True,
        params_dtype=torch.bfloat16, gradient_accumulation_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        bias_activation_fusion=False, bias_dropout_fusion=False, expert_model_parallel_size=a.ranks, **flex)
    model = GPTModel(config, get_gpt_layer_local_spec(num_experts=a.experts, moe_grouped_gemm=False), a.vocab, a.seq).to(device).bfloat16()
    for name, p in sorted(model.named_parameters()):
        own = 0 if getattr(p, "allreduce", True) else 1000 * a.rank  # experts differ from rank to rank
        g = torch.Generator(device=device).manual_seed(zlib.crc32(name.encode()) % 100003 + own)
        with torch.no_grad():
            p.copy_(torch.ones_like(p) if p.dim() < 2 else torch.randn(p.shape, generator=g, device=device) * 0.02)
    return model


def tokens_of(torch, a, step, device):
    """Returns int64 [batch, seq + 1] of one rank and step."""
    g = torch.Generator().manual_seed(1000 * step + a.rank)
    rows = torch.randint(0, a.vocab, (a.batch, a.seq + 1), generator=g)
    surprise = torch.randint(0, NOISE, rows.shape, generator=g) == 0
    for i in range(1, a.seq + 1):
        rows[:, i] = torch.where(surprise[:, i], rows[:, i], (5 * rows[:, i - 1] + 17) % a.vocab)
    return rows.to(device)


class Shares:
    """Time of each part of the token dispatchers, forward and backward: on the GPU's clock, by events, and of the CPU thread that runs them."""

    def __init__(self, torch, model):
        self._torch, self._open, self.marks = torch, {}, []
        shares = self

        class Mark(torch.autograd.Function):
            """Passes a tensor on and notes when: `ends` in forward is where backward begins."""
            @staticmethod
            def forward(ctx, tensor, part, ends):
                ctx.part, ctx.ends = part, ends
                shares.note(part, ends)
                return tensor.view_as(tensor)

            @staticmethod
            def backward(ctx, grad):
                shares.note(ctx.part, not ctx.ends)
                return grad, None, None

        def around(part, function):
            def call(first, *others):
                result = function(Mark.apply(first, part, False), *others)
                if not isinstance(result, tuple):
                    return Mark.apply(result, part, True)
                return (Mark.apply(result[0], part, True), *result[1:])
            return call

        for module in model.modules():
            dispatcher = getattr(module, "token_dispatcher", None)
            for name, part in PARTS.items() if dispatcher is not None else ():
                setattr(dispatcher, name, around(part, getattr(dispatcher, name)))

    def note(self, part, ends):
        event = None
        if self._torch.cuda.is_available():
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
        now = (time.perf_counter(), event)
        if not ends:
            self._open[part] = now
        elif part in self._open:
            self.marks.append((part, self._open.pop(part), now))

    def take(self):
        """Returns {part: [GPU ms, or None, CPU ms]} since the last call; the device must be idle."""
        total = {}
        for part, (began, first), (ended, last) in self.marks:
            one = total.setdefault(part, [0.0 if first else None, 0.0])
            one[1] += (ended - began) * 1e3
            if first:
                one[0] += first.elapsed_time(last)
        self.marks, self._open = [], {}
        return total


class Training:
    """A model with one token dispatcher, and what its steps gave."""

    def __init__(self, torch, dist, a, dispatcher, device):
        self._torch, self._dist, self._a, self._device = torch, dist, a, device
        self._model = model_of(a, dispatcher, device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=a.lr, momentum=0.9)
        if a.load:
            state = torch.load(f"{a.load}/{a.rank}.pt", map_location=device, weights_only=True)
            self._model.load_state_dict(state["model"], strict=False)
            self._optimizer.load_state_dict(state["optimizer"])
        self._shares = Shares(torch, self._model) if a.shares else None
        self._position = torch.arange(a.seq, device=device).unsqueeze(0).expand(a.batch, -1).contiguous()
        self._mask = torch.ones((1, 1, a.seq, a.seq), dtype=torch.bool, device=device).triu(1)
        self.result = {"losses": [], "norms": [], "ms": [], "shares": []}

    def step(self, step, sync, on_step):
        """One step; it begins at all ranks at once."""
        torch, dist, a, result = self._torch, self._dist, self._a, self.result
        tokens = tokens_of(torch, a, step, self._device)
        sync()
        dist.barrier()
        if on_step:
            on_step(step)
        began = time.perf_counter()
        loss = self._model(tokens[:, :-1].contiguous(), self._position, self._mask, labels=tokens[:, 1:].contiguous()).float().mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = reduce_gradients(dist, a.ranks, self._model)
        self._optimizer.step()
        sync()
        result["ms"].append((time.perf_counter() - began) * 1e3)
        if self._shares:
            result["shares"].append(self._shares.take())
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        result["losses"].append(mean.item() / a.ranks)
        result["norms"].append(norm.item())

    def save(self, folder):
        os.makedirs(folder, exist_ok=True)
        parameters = {name: p for name, p in self._model.state_dict().items() if isinstance(p, self._torch.Tensor)}  # the others are Megatron's empty extra states
        self._torch.save({"model": parameters, "optimizer": self._optimizer.state_dict()}, f"{folder}/{self._a.rank}.pt")


def train(a, on_step=None):
    """Trains; rank 0 writes a.folder/result.json: by dispatcher losses, gradient norms, milliseconds and shares of each step.

    a: SIZES and lr, rank, folder, dispatcher; first: step to begin with; load, save: a folder with the ranks' states, or None; shares: whether to measure them.
    Several dispatchers, joined by "+", each train a model of their own, and take turns step by step. on_step: called with the number of each step after all ranks
    have reached it.
    """
    import torch
    import torch.distributed as dist
    device = device_of(torch)
    if device == "cpu":
        import on_cpu  # noqa: F401  pylint: disable=unused-import
        torch.set_num_threads(1)
        sync = int
    else:
        torch.cuda.set_device(a.rank % torch.cuda.device_count())
        sync = torch.cuda.synchronize
    dist.init_process_group("nccl" if device == "cuda" and torch.cuda.device_count() >= a.ranks else "gloo", init_method=f"file://{a.folder}/meet", rank=a.rank,
                            world_size=a.ranks)
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    parallel_state.initialize_model_parallel(expert_model_parallel_size=a.ranks)
    model_parallel_cuda_manual_seed(7)
    trainings = {name: Training(torch, dist, a, name, device) for name in a.dispatcher.split("+")}
    turns = [*trainings.values()]
    for step in range(a.first, a.steps):
        for training in turns:
            training.step(step, sync, on_step)
        turns.reverse()
    if a.save:
        trainings[a.dispatcher].save(a.save)
    if a.rank == 0:
        with open(f"{a.folder}/result.json", "w", encoding="ascii") as f:
            json.dump({name: training.result for name, training in trainings.items()}, f)
    dist.barrier()
    dist.destroy_process_group()


def reduce_gradients(dist, ranks, model):
    """Averages gradients over ranks, clips their norm, and returns what it was: what all ranks share counts once, experts everywhere."""
    squares = {True: 0.0, False: 0.0}
    for p in model.parameters():
        if p.grad is None:
            continue
        shared = getattr(p, "allreduce", True)
        if shared:
            dist.all_reduce(p.grad)
        p.grad /= ranks
        squares[shared] += (p.grad.float() ** 2).sum()
    dist.all_reduce(squares[False])
    norm = (squares[True] + squares[False]).sqrt()
    for p in model.parameters():
        if p.grad is not None:
            p.grad *= (CLIP / norm).clamp(max=1)
    return norm
