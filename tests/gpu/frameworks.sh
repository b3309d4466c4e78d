#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Real frameworks over deep_ep on a machine with two or more GPUs: a transformers model with its experts spread, and Megatron-core's training with each of
# its token dispatchers, alternating: losses, resumed runs, time of a step, shares of its parts, few multiprocessors, two nodes. The token
# dispatchers of SGLang and LMDeploy, vLLM's classes, DeepSpeed. vLLM serves a small Qwen3-MoE model over each of its all-to-all backends: tokens, prefill and decode.
#
#   tests/gpu/frameworks.sh --build DIR [--packages DIR] [--vllm DIR] [--deepep DIR] [--out DIR] [--ranks N] [--steps N] [--rounds N] [--quick] [--only REGEX] [--cpu]
#
# --build     a folder with libepf.so.0 and libepf-ll.so.0 (and ep-fabric, for two nodes), or a build tree with them
# --packages  a folder made by tools/frameworks/fetch.py gpu (with --cpu: cpu), carried here
# --vllm      a folder made by tools/frameworks/fetch.py vllm or unpack: parts vllm-kernel, vllm-serve, vllm-graphs, with --deepep vllm-deepep
# --deepep    a folder with DeepEP's package and compiled module, to measure beside
# --out       where logs, results (JSON) and the table go (./gpu-results/frameworks)
# --ranks     processes; as many as GPUs by default, 2 on one (they share it under MPS, and times mean nothing)
# --steps     of the run whose losses are compared and which is resumed in the middle (300)
# --rounds    runs of each dispatcher in a measurement, alternating (3)
# --quick     20 steps, one round
# --only      parts whose name matches
# --cpu       small shapes on CPU tensors, to check this script on a machine without a GPU
#
# Each part has a limit and a log. Exit 0: all was right; 1: something was wrong; 77: no GPU, or no packages. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" packages="" vllm="" deepep="" out=$PWD/gpu-results/frameworks ranks="" steps=300 rounds=3 only=. cpu=0
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--packages) packages=$2 && shift ;;
	--vllm) vllm=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--steps) steps=$2 && shift ;;
	--rounds) rounds=$2 && shift ;;
	--quick) steps=20 rounds=1 ;;
	--only) only=$2 && shift ;;
	--cpu) cpu=1 ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
suite="the suite of frameworks" part_width=20 last=40 shown='^#\|^dispatcher\|^backend\|^flex\|^hybridep\|^deepep\|^all'
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
[ "$cpu" = 1 ] || need_gpu "--cpu checks this script"
for at in ${packages:+"$packages"} ${vllm:+"$vllm"}; do
	if [ "$cpu" = 0 ] && ! python3 "$root/tools/frameworks/fetch.py" verify "$at"; then
		echo "'$at' is not whole: tools/frameworks/fetch.py makes it, on a machine with a network"
		exit 77
	fi
done
if [ ! -d "$packages/megatron" ] && [ ! -d "$vllm/vllm" ]; then
	echo "no packages in '$packages' or '$vllm': tools/frameworks/fetch.py gpu DIR, and vllm DIR, make them, on a machine with a network"
	exit 77
fi
open_table
find_libraries
export PYTHONWARNINGS=ignore
[ -z "$packages" ] || PYTHONPATH=$(cd "$packages" && pwd)${PYTHONPATH:+:$PYTHONPATH}
PYTHONPATH=$root/tools/python${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
# Shapes end with what makes them small on CPU tensors; the last of two equal options counts.
small=() model=(hidden_size=2048 moe_intermediate_size=768 num_attention_heads=16 num_key_value_heads=16) dispatchers=flex+hybridep+alltoall+allgather
if [ "$cpu" = 1 ]; then
	ranks=${ranks:-2}
	small=(--hidden 128 --ffn 64 --seq 32 --batch 1 --vocab 256) model=() dispatchers=flex+hybridep+allgather
	export OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu
	say "# $(date -u +%FT%TZ), CPU tensors, $ranks ranks, small shapes: times mean nothing"
else
	take_ranks
fi
beside=()
if [ -n "$deepep" ]; then
	beside=(--deepep "$(cd "$deepep" && pwd)")
	# Its module is linked with NVSHMEM.
	LD_LIBRARY_PATH+=:$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nvshmem").submodule_search_locations[0])' 2>/dev/null)/lib
fi

# train NAME LIMIT OPTION...
train()
{
	local name=$1 limit=$2
	shift 2
	part "$name" "$limit" python3 "$root/bench/frameworks/train_megatron.py" --ranks "$ranks" --json "$out/$name.json" "$@" "${small[@]}"
}

# spread NAME KIND SIZE...
spread()
{
	local name=$1
	shift
	part "$name" 200 python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$root/tests/frameworks/transformers_rank.py" "$@"
}

# serve NAME LIMIT OPTION...: over the deep_ep in $first, ours by default
serve()
{
	local name=$1 limit=$2
	shift 2
	PYTHONPATH=${first:-$root/tools/python}:$(cd "$vllm" && pwd)${PYTHONPATH:+:$PYTHONPATH} part "$name" "$limit" \
		python3 "$root/bench/frameworks/serve_vllm.py" --json "$out/$name.json" "$@"
}

if [ -n "$vllm" ]; then
	last=250 # serve_vllm.py ends with the last lines of each rank
	# The kernel first: if the engine cannot start, this has been seen.
	serve vllm-kernel 240 --kernel-only --limit 75
	serve vllm-serve 420 --limit 130
	serve vllm-graphs 300 --limit 130 --backends allgather_reducescatter+graphs,deepep_low_latency+graphs
	[ -z "$deepep" ] || first=${beside[1]} serve vllm-deepep 580 --limit 130 --backends deepep_high_throughput,deepep_low_latency,deepep_low_latency+graphs
	last=40
fi
[ -n "$packages" ] || end

# What servers call DeepEP with, on small batches, and DeepSpeed's training.
for name in sglang lmdeploy vllm_parts deepspeed; do
	[ ! -d "$packages/${name%_parts}" ] ||
		part "${name/_/-}" 200 python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$root/tests/frameworks/${name}_rank.py"
done
part example 200 python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$root/docs/examples/transformers_ep.py"
spread transformers-qwen3 qwen3_moe "${model[@]}"
spread transformers-deepseek deepseek_v3 "${model[@]}"

# With top-2 on two ranks all bits agree; with more rows a token, dispatchers add in other orders.
train losses 580 --dispatchers "$dispatchers" "${beside[@]}" --steps "$steps" --resume $((steps / 2))
train losses-top8 580 --dispatchers "$dispatchers" "${beside[@]}" --steps "$steps" --topk 8 --experts 16
deepseek=(--hidden 7168 --ffn 2048 --experts 16 --topk 8 --seq 1024 --batch 4 --steps 45 --rounds "$rounds" --lr 0.01)
train deepseek 580 --dispatchers "$dispatchers" "${beside[@]}" "${deepseek[@]}" --shares
train qwen3 580 --dispatchers "$dispatchers" "${beside[@]}" "${deepseek[@]}" --hidden 2048 --ffn 768 --experts 128 --shares
# Small experts: what crosses ranks is a large share of the step.
train small-experts 580 --dispatchers "$dispatchers" "${beside[@]}" "${deepseek[@]}" --ffn 256 --shares
train sms 580 --dispatchers flex:24+allgather,flex:8+allgather,hybridep:24+allgather,hybridep:8+allgather "${deepseek[@]}"

# Each rank a node of its own: every row over the command path. On GPUs a daemon copies (docs/reference/python.md).
start_daemon frameworks
if [ -n "$daemon" ]; then
	export CUDA_MODULE_LOADING=EAGER
	train nodes 580 --dispatchers flex+hybridep+allgather --nodes "$(seq -s , 0 $((ranks - 1)))" --steps 20
	stop_daemon
fi
[ "$mps" = 0 ] || with_mps off
end
