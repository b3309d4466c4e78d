#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# deep_ep.ElasticBuffer on a machine with one or more GPUs: right, in graphs, within a node and on two that share the machine; DeepEP V2's own test on it; a
# small mixture of experts of torchtitan's parts; and how fast, beside DeepEP V2 where that runs.
#
#   tests/gpu/elastic.sh --build DIR [--out DIR] [--quick] [--ranks N] [--cases N] [--steps N] [--only REGEX] [--tree DIR] [--packages DIR] [--clients DIR]
#                        [--rounds N] [--cpu]
#
# --build      a folder with libepf.so.0 and libepf-ll.so.0 (and ep-fabric, for two nodes), or a build tree with them
# --out        where logs and the table go (./gpu-results/elastic)
# --quick      few cases and shapes: two minutes
# --ranks      processes; as many as GPUs by default, 2 on one. More than GPUs share them under MPS (onegpu/)
# --cases      random cases (100); --steps: replays of a graph (100)
# --only       parts whose name matches
# --tree       a source tree of DeepEP V2, whose tests/elastic is run on our package; --clients brings one
# --packages   a folder made by tools/frameworks/fetch.py gpu (with --cpu: cpu), with torchtitan
# --clients    a folder made by tools/frameworks/nccl_clients.py, with DeepEP V2 compiled, to measure beside, over NVLink only (EP_DISABLE_GIN=1), and its NCCL, which is put in
#              place of PyTorch's while this runs, for all parts
# --rounds     runs of each in a measurement, alternating (3)
# --cpu        small shapes on CPU tensors, to check this script on a machine without a GPU; DeepEP V2 itself needs one
#
# Each part has a limit and a log. Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" out=$PWD/gpu-results/elastic quick="" ranks="" cases=100 steps=100 only=. tree="" packages="" clients="" rounds=3 cpu=""
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--quick) quick=--quick ;;
	--ranks) ranks=$2 && shift ;;
	--cases) cases=$2 && shift ;;
	--steps) steps=$2 && shift ;;
	--only) only=$2 && shift ;;
	--tree) tree=$(realpath "$2") && shift ;;
	--packages) packages=$(realpath "$2") && shift ;;
	--clients) clients=$(realpath "$2") && shift ;;
	--rounds) rounds=$2 && shift ;;
	--cpu) cpu=yes quick=--quick ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
suite="ElasticBuffer on GPUs" part_width=24 shown='^# \|passed$\|tokens, .* SMs'
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
# shellcheck source=tests/gpu/clients.sh
. "$root/tests/gpu/clients.sh"
gpus=0
[ -n "$cpu" ] || need_gpu "--cpu checks this script"
open_table
find_libraries
tree=${tree:-${clients:+$clients/deepep}}
if [ -n "$clients" ] && [ -z "$cpu" ]; then
	unpack_clients "$clients"
	replace_nccl
	client_settings
fi
export TORCH_NCCL_ENABLE_MONITORING=0 EPF_GPU_TIMEOUT=${EPF_GPU_TIMEOUT:-10s}
before=${PYTHONPATH:-}
export PYTHONPATH=$root/tools/python${packages:+:$packages}${before:+:$before}
python=python3 device=() limit=300
if [ -n "$cpu" ]; then
	python=/usr/bin/python3 device=(--device cpu) ranks=${ranks:-2}
	export OMP_NUM_THREADS=1 EPF_GPU_TIMEOUT=60s
	say "# CPU tensors: this checks the script"
	if ! "$python" -c 'import torch; torch.float8_e4m3fn' 2>/dev/null; then
		say "# this PyTorch has no FP8: not run are V2's test and the measurement (--packages brings another one)"
		tree="" rounds=0
	fi
else
	take_ranks
fi
if [ -n "$quick" ]; then
	limit=120 rounds=$((rounds < 1 ? rounds : 1))
	cases=$((cases < 20 ? cases : 20)) steps=$((steps < 30 ? steps : 30))
fi

# run NAME PART ARGUMENT...
run()
{
	local name=$1 what=$2
	shift 2
	part "$name" "$((limit + 6))" "$python" "$root/tests/gpu/ll_cases.py" "$what" --ranks "$ranks" --limit "$limit" "${device[@]}" $quick "$@"
}

# v2 NAME OPTION...: DeepEP V2's test, with sizes that fit
v2()
{
	local name=$1 sizes=()
	shift
	[ -n "$tree" ] || return 0
	[ -z "$cpu" ] || sizes=(--num-tokens 32 --hidden 512 --num-topk 4 --num-experts 16)
	part "$name" 600 env MASTER_PORT=$((20000 + RANDOM % 10000)) "$python" "$root/tests/gpu/elastic_v2.py" "$tree" --num-processes "$ranks" "${sizes[@]}" "$@"
}

run table elastic-table
run random elastic-random --cases "$cases"
run layers elastic-layers
[ -n "$cpu" ] || run large elastic-large
run errors elastic-errors
run guesses elastic-guesses
run unwaited elastic-unwaited
run graphs elastic-graphs --steps "$steps"
run callers elastic-callers
run hybrid hybrid
v2 v2-test --skip-perf-test ${quick:+--test-first-only}
v2 v2-no-sync --skip-perf-test --test-first-only --do-cpu-sync 0
v2 v2-once --skip-perf-test --test-first-only --allow-multiple-reduction 0
v2 v2-masked --skip-perf-test --test-first-only --masked-ratio 0.3 --unbalanced-ratio 2 --deterministic
[ -n "$cpu" ] || v2 v2-times --test-first-only
[ -z "$packages" ] || part torchtitan 300 "$python" -m torch.distributed.run --standalone --nproc-per-node="$ranks" "$root/tests/frameworks/torchtitan_rank.py"

# One after the other, so that both meet the same machine.
speed()
{
	local sms i
	for sms in 0 24 12; do
		for ((i = 0; i < rounds; i++)); do
			part "speed-$sms-$i" 240 "$python" "$root/tests/gpu/elastic_speed.py" run "$out/ours-$sms.json" --ranks "$ranks" --sms "$sms" $quick
			[ -z "$clients" ] || [ -n "$cpu" ] || part "speed-v2-$sms-$i" 300 env "${client_base[@]}" EP_DISABLE_GIN=1 NCCL_IB_DISABLE=1 \
				"$python" "$root/tests/gpu/elastic_speed.py" run "$out/theirs-$sms.json" --ranks "$ranks" --sms "$sms" $quick
		done
		[ ! -e "$out/ours-$sms.json" ] || "$python" "$root/tests/gpu/elastic_speed.py" ratio "$out/ours-$sms.json" "$out/theirs-$sms.json" | tee -a "$log"
	done
}
rm -f "$out"/ours-*.json "$out"/theirs-*.json
if [ -n "$cpu" ] || [ "$ranks" -le "$gpus" ]; then
	speed
fi

# Two nodes on one machine: what crosses between them takes the command path. A daemon copies it: copies of a rank's own process may wait in the GPU's driver for its
# kernels. Without ep-fabric in the build the ranks copy.
start_daemon elastic
export CUDA_MODULE_LOADING=EAGER
nodes=$(for ((r = 0; r < ranks; r++)); do printf '%s%s' "${comma:-}" $((r * 2 / ranks)) && comma=,; done)
run nodes-table elastic-table --nodes "$nodes"
run nodes-random elastic-random --cases "$cases" --nodes "$nodes"
run nodes-layers elastic-layers --nodes "$nodes"
run nodes-graphs elastic-graphs --steps "$steps" --nodes "$nodes"
run nodes-callers elastic-callers --nodes "$nodes"
run nodes-hybrid hybrid --nodes "$nodes"
export NODES=$nodes
v2 nodes-v2-test --skip-perf-test --test-first-only
v2 nodes-v2-once --skip-perf-test --test-first-only --allow-multiple-reduction 0
stop_daemon
[ -n "$cpu" ] || [ "$ranks" -le "$gpus" ] || with_mps off # it ends all clients with one that is killed
run kill elastic-kill
end
