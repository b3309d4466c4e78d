# SPDX-License-Identifier: Apache-2.0
"""One rank of vLLM, unmodified, with a small random Qwen3-MoE model: what serve_vllm.py runs in each process.

Weights and prompts depend on seeds alone, so that tokens of different backends can be compared. Every function prints lines that begin with "@": where it
is, and after how many seconds.
"""
import json
import os
import statistics
import time
import zlib

# Shape of the model by the names of serve_vllm.py's options.
SIZES = {"layers": 4, "hidden": 2048, "ffn": 768, "experts": 128, "topk": 8, "heads": 16, "vocab": 8192}
# Size of the measured work. "chunk" and "ll_chunk" are the most tokens that a rank computes at once, ll_chunk with low latency.
WORK = {"requests": 12, "new": 32, "prompts": 16, "prompt": 1024, "sequences": 64, "decode": 128, "chunk": 4096, "ll_chunk": 1024, "rounds": 3, "calls": 20}
LOW_LATENCY = "deepep_low_latency"
FORMAT = "seeded"  # load format: weights made in place
SHORT = 16         # tokens of a prompt whose decoding is measured
_began = time.monotonic()


def say(text):
    print(f"@ {time.monotonic() - _began:6.1f} s  {text}", flush=True)


def options(a, name, rank, folder):
    """Returns vLLM's engine arguments. name: an all-to-all backend, followed by "+graphs" for CUDA graphs."""
    backend, _, graphs = name.partition("+")
    model = os.path.join(folder, f"model{rank}")
    os.makedirs(model, exist_ok=True)
    with open(f"{model}/config.json", "w", encoding="ascii") as f:
        json.dump({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": a.hidden, "num_hidden_layers": a.layers, "vocab_size": a.vocab,
                   "num_attention_heads": a.heads, "num_key_value_heads": max(a.heads // 4, 1), "head_dim": a.hidden // 16, "intermediate_size": a.ffn,
                   "moe_intermediate_size": a.ffn, "num_experts": a.experts, "num_experts_per_tok": a.topk, "norm_topk_prob": True, "decoder_sparse_step": 1,
                   "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
                   "tie_word_embeddings": False, "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}, f)
    sizes = [1 << i for i in range(a.sequences.bit_length()) if 1 << i <= a.sequences]
    return {
        "model": model, "skip_tokenizer_init": True, "load_format": FORMAT, "dtype": "bfloat16", "max_model_len": 2 * (max(a.prompt, a.decode) + SHORT),
        "max_num_seqs": a.sequences, "max_num_batched_tokens": a.ll_chunk if backend == LOW_LATENCY else a.chunk, "enable_prefix_caching": False,
        "kv_cache_memory_bytes": a.kv_bytes, "enable_expert_parallel": True, "all2all_backend": backend, "attention_backend": "TRITON_ATTN", "seed": 0,
        "disable_custom_all_reduce": True, "distributed_executor_backend": "uni", "enforce_eager": not graphs,
        # Graphs of whole decode steps, without compiling the model: what is measured is the fabric in a graph.
        "compilation_config": {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes} if graphs else {"mode": 0}}


def environment(rank, ranks, port):
    """Sets what vLLM reads from the environment."""
    os.environ.update({
        "VLLM_DP_RANK": str(rank), "VLLM_DP_RANK_LOCAL": str(rank), "VLLM_DP_SIZE": str(ranks), "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port), "VLLM_HOST_IP": "127.0.0.1", "VLLM_LOOPBACK_IP": "127.0.0.1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_PLUGINS": "",
        "VLLM_USE_FLASHINFER_SAMPLER": "0", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})


def fill(model, rank):
    """Gives a model weights from the names of its parameters; experts differ from rank to rank."""
    import torch
    for name, p in sorted(model.named_parameters()):
        if p.dim() < 2:
            p.data.fill_(1)
            continue
        own = 1000 * rank if p.dim() == 3 else 0
        g = torch.Generator(device=p.device).manual_seed(zlib.crc32(name.encode()) % 100003 + own)
        p.data.normal_(0, p.size(-1) ** -0.5, generator=g)


def register():
    """Tells vLLM the load format that fill() is."""
    from vllm.distributed import get_ep_group
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    @register_model_loader(FORMAT)
    class Seeded(BaseModelLoader):  # pylint: disable=unused-variable
        """Makes weights in place."""

        def download_model(self, model_config):
            pass

        def load_weights(self, model, model_config):
            say("model built; making weights")
            fill(model, get_ep_group().rank_in_group)


def prompts_of(a, rank, count, length):
    """Returns prompts as token numbers. length: of all, or a function of the prompt's number."""
    import random
    numbers = random.Random(rank)
    return [{"prompt_token_ids": [numbers.randrange(3, a.vocab) for _ in range(length(i) if callable(length) else length)]} for i in range(count)]


def serve(a, name, rank, folder, meet):
    """Starts the engine, generates, measures; returns {"requests": [[token, log probability, gap to the second]...], "prefill": seconds, "decode": seconds}.

    meet: waits for all ranks.
    """
    from vllm import LLM, SamplingParams
    register()
    say(f"{name}: starting the engine")
    llm = LLM(**options(a, name, rank, folder))
    say("engine is up")
    step, answered = llm.llm_engine.step, [0.0]

    def timed_step():
        outputs = step()
        if outputs:
            answered[0] = time.perf_counter()
        return outputs

    llm.llm_engine.step = timed_step

    def generate(prompts, **parameters):
        """Returns results, and seconds to the last answer: the call itself ends later, because ranks agree every 32 steps whether all are done."""
        parameters = SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **parameters)
        meet()
        began = time.perf_counter()
        got = llm.generate(prompts, parameters, use_tqdm=False)
        return got, answered[0] - began

    # Each rank has more requests and tokens than the one before, which goes on with no tokens when it is done.
    got, took = generate(prompts_of(a, rank, a.requests * (rank + 1), lambda i: 3 + 13 * (i + 1) * (rank + 1) % max(a.prompt // 5, 5)), max_tokens=a.new * (rank + 1),
                         logprobs=2)
    requests = []
    for one in got:
        rows = []
        for token, places in zip(one.outputs[0].token_ids, one.outputs[0].logprobs):
            first, second = sorted((p.logprob for p in places.values()), reverse=True)[:2]
            rows.append([token, first, first - second])
        requests.append(rows)
    say(f"{len(requests)} requests answered in {took:.1f} s; first tokens {[rows[0][0] for rows in requests[:6]]}")
    result = {"requests": requests, "chunk": options(a, name, rank, folder)["max_num_batched_tokens"]}
    long, short = prompts_of(a, rank, a.prompts, a.prompt), prompts_of(a, rank, a.sequences, SHORT)
    prefill, decode = [], []
    for r in range(a.rounds + 1):  # the first is not counted
        prefill.append(generate(long, max_tokens=1)[1])
        decode.append(generate(short, max_tokens=a.decode + 1)[1] - generate(short, max_tokens=1)[1])
        say(f"round {r}: prefill {prefill[-1]:.3f} s, {a.decode} decode steps {decode[-1]:.3f} s")
    result.update(prefill=statistics.median(prefill[1:]), decode=statistics.median(decode[1:]))
    meet()
    return result


def reference(x, w13, w2, weights, ids):
    """Computes a layer of experts in float32, token by token of an expert. w13, w2: of all experts."""
    import torch
    out = torch.zeros_like(x, dtype=torch.float32)
    for e in range(w13.size(0)):
        token, place = (ids == e).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ w13[e].float().T).chunk(2, -1)
        hidden = (torch.nn.functional.silu(gate) * up).to(x.dtype)
        out.index_add_(0, token, weights[token, place, None].float() * (hidden.float() @ w2[e].float().T))
    return out


def kernel(a, name, rank, folder, meet):
    """Drives vLLM's modular kernel without the engine: its own groups, layer, prepare and finalize; compares with reference(). Returns errors and times."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.forward_context import get_forward_context, set_forward_context
    from vllm.model_executor.layers.fused_moe import FusedMoE
    from vllm.platforms import current_platform
    from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
    from vllm.v1.worker.workspace import init_workspace_manager
    register()
    device = torch.device(current_platform.device_type, rank) if current_platform.device_type == "cuda" else torch.device("cpu")
    config = EngineArgs(**options(a, name, rank, folder)).create_engine_config()
    say(f"{name}: configured")
    with set_current_vllm_config(config), torch.inference_mode():
        torch.accelerator.set_device_index(device.index or 0)
        init_worker_distributed_environment(config, 0, None, rank, current_platform.dist_backend)
        init_workspace_manager(device, 1)
        say("groups are up")
        with device:
            layer = FusedMoE(num_experts=a.experts, top_k=a.topk, hidden_size=a.hidden, intermediate_size=a.ffn, params_dtype=torch.bfloat16, renormalize=True,
                             prefix="experts")
        experts, local = layer.routed_experts, a.experts // a.ranks
        fill(experts, rank)
        halves = [(experts.w13_weight.data.clone(), experts.w2_weight.data.clone()) if r == rank else None for r in range(a.ranks)]
        for r in range(a.ranks):
            if r != rank:  # what the other rank made
                halves[r] = tuple(torch.empty_like(w) for w in halves[rank])
                for (pname, _), w in zip(sorted(experts.named_parameters()), halves[r]):
                    seed = zlib.crc32(pname.encode()) % 100003 + 1000 * r
                    w.normal_(0, w.size(-1) ** -0.5, generator=torch.Generator(device=device).manual_seed(seed))
        w13, w2 = (torch.cat(parts) for parts in zip(*halves))
        experts.quant_method.process_weights_after_loading(experts)
        moe = experts.quant_method.moe_kernel
        say(f"{type(moe.prepare_finalize).__name__}, {type(moe.fused_experts).__name__}; {local} experts here")

        def call(x, weights, ids, counts):
            """One layer, as the runner of vLLM calls it."""
            with set_forward_context(None, config, num_tokens=x.size(0), num_tokens_across_dp=counts), get_forward_context().dp_metadata.sp_local_sizes(1):
                return moe.apply(hidden_states=x.clone(), w1=experts.w13_weight, w2=experts.w2_weight, topk_weights=weights, topk_ids=ids,
                                 activation=experts.activation, global_num_experts=a.experts, expert_map=experts.expert_map,
                                 apply_router_weight_on_input=False)

        def inputs(tokens, seed):
            g = torch.Generator(device=device).manual_seed(seed)
            x = torch.randn(tokens, a.hidden, generator=g, device=device).bfloat16()
            weights, ids = torch.randn(tokens, a.experts, generator=g, device=device).softmax(-1).topk(a.topk)
            return x, weights / weights.sum(-1, keepdim=True), ids.to(moe.prepare_finalize.topk_indices_dtype() or torch.int32)

        result = {"errors": {}, "us": {}}
        for tokens in (1, 7, a.sequences, options(a, name, rank, folder)["max_num_batched_tokens"]):
            counts = torch.tensor([max(tokens - 3 * r, 1) for r in range(a.ranks)], dtype=torch.int32)  # ranks have other numbers
            x, weights, ids = inputs(int(counts[rank]), 100 * tokens + rank)
            wanted = reference(x, w13, w2, weights, ids)
            worst = 0.0
            for _ in range(2):
                got = call(x, weights, ids, counts)
                worst = max(worst, ((got.float() - wanted).norm() / wanted.norm()).item())
            result["errors"][tokens] = worst
            say(f"{tokens} tokens: relative error {worst:.2e}")
            if tokens < a.sequences:
                continue
            counts = torch.full((a.ranks,), tokens, dtype=torch.int32)
            x, weights, ids = inputs(tokens, rank)
            times = []
            for _ in range(a.rounds * 3 + 1):
                meet()
                torch.accelerator.synchronize()
                began = time.perf_counter()
                for _ in range(a.calls):
                    call(x, weights, ids, counts)
                torch.accelerator.synchronize()
                times.append((time.perf_counter() - began) / a.calls * 1e6)
            result["us"][tokens] = statistics.median(times[1:])
            say(f"{tokens} tokens: {result['us'][tokens]:.0f} us a layer")
        meet()
    return result
