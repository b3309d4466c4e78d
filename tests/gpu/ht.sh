#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# High-throughput dispatch and combine behind deep_ep.Buffer on a machine with one or more GPUs: right, repeatable, in graphs, with a lost rank, on one
# node and on two that share the machine; DeepEP's own tests, unmodified, on our package; and how fast.
#
#   tests/gpu/ht.sh --build DIR [--out DIR] [--quick] [--ranks N] [--cases N] [--steps N] [--only REGEX] [--deepep-tests DIR] [--deepep-later DIR] [--deepep DIR]
#
# --build         a folder with libepf.so.0 and libepf-ll.so.0, or a build tree with them
# --out           where logs and the table go (./gpu-results/ht)
# --quick         few cases and shapes: about a minute
# --ranks         processes; as many as GPUs by default, 2 on one. More than GPUs share them under MPS (onegpu/)
# --cases         random cases (100), each run twice
# --steps         replays of a graph (200)
# --only          parts whose name matches
# --deepep-tests  DeepEP v1.2.1's folder of tests: its test_intranode.py runs on our package, and its test_internode.py, as two nodes of 8 processes
# --deepep-later  a later release's tests/legacy
# --deepep        DeepEP's package with its compiled module: the parts "speed" and "memory" compare with it
#
# Each part has a limit and a log. Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" out=$PWD/gpu-results/ht quick="" ranks="" cases=100 steps=200 only=. deepep_tests="" deepep_later="" deepep=""
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--quick) quick=--quick ;;
	--ranks) ranks=$2 && shift ;;
	--cases) cases=$2 && shift ;;
	--steps) steps=$2 && shift ;;
	--only) only=$2 && shift ;;
	--deepep-tests) deepep_tests=$2 && shift ;;
	--deepep-later) deepep_later=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
	echo "no GPU here (nvidia-smi lists none): high-throughput calls on GPUs are skipped"
	exit 77
fi
begin_before=1000000 list=0 suite="high throughput on GPUs"
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
log=$out/table.txt
: >"$log"
trap leave_nothing EXIT
for at in "$build" "$build/fabric"; do [ -e "$at/libepf.so.0" ] && EPF_LIBRARY=$(realpath -s "$at/libepf.so.0"); done
for at in "$build" "$build/kernels"; do [ -e "$at/libepf-ll.so.0" ] && EPF_LL_LIBRARY=$(realpath -s "$at/libepf-ll.so.0"); done
if [ -z "${EPF_LIBRARY:-}" ] || [ -z "${EPF_LL_LIBRARY:-}" ]; then
	say "no libepf.so.0 and libepf-ll.so.0 in '$build': --build"
	exit 1
fi
export EPF_LIBRARY EPF_LL_LIBRARY PYTHONUNBUFFERED=1 TORCH_NCCL_ENABLE_MONITORING=0 EPF_GPU_TIMEOUT=${EPF_GPU_TIMEOUT:-10s}
LD_LIBRARY_PATH=$(dirname "$EPF_LIBRARY"):$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=$root/tools/python${PYTHONPATH:+:$PYTHONPATH} LD_LIBRARY_PATH
gpus=$(nvidia-smi -L | wc -l)
ranks=${ranks:-$((gpus > 1 ? gpus : 2))}
say "# $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $ranks ranks"
if [ "$ranks" -gt "$gpus" ]; then
	say "# $ranks ranks share $gpus GPU: 'NVLink' is memory of the same GPU, process groups are gloo's"
	export ONE_GPU=1 PYTHONPATH=$root/tests/gpu/onegpu:$PYTHONPATH
	with_mps on
fi

# part NAME LIMIT COMMAND...
part()
{
	local name=$1 limit=$2
	shift 2
	wanted "$name" || return 0
	bounded "$limit" "$out/$name.log" "$@"
	if [ "$rc" = 0 ]; then
		result "$name" "ok, $took s"
		grep '^# ht-\|tokens.* SMs\|Best \(dispatch\|combine\)\|^\[layout\]' "$out/$name.log" | sed 's/^/    /' | tee -a "$log"
	else
		failed=1
		result "$name" "WRONG: status $rc after $took s"
		tail -n 40 "$out/$name.log" | cut -c1-300 | sed 's/^/    /' | tee -a "$log"
	fi
}

# run NAME PART ARGUMENT...
run()
{
	local name=$1 what=$2
	shift 2
	part "$name" "$((limit + 6))" python3 "$root/tests/gpu/ll_cases.py" "$what" --ranks "$ranks" --limit "$limit" $quick "$@"
}

limit=300
if [ -n "$quick" ]; then
	limit=60
	cases=$((cases < 30 ? cases : 30)) steps=$((steps < 60 ? steps : 60))
fi
run table ht-table
run random ht-random --cases "$cases"
run layers ht-layers
run streams ht-streams
run graphs ht-graphs --steps "$steps"
run mixed ht-mixed
run threads ht-threads
run callers ht-callers
[ "$ranks" -gt "$gpus" ] || run speed ht-speed ${deepep:+--deepep "$deepep"}
run memory ht-memory ${deepep:+--deepep "$deepep"}
for tokens in 4096 128; do
	[ -z "$deepep_tests" ] || part "deepep-$tokens" 120 env -C "$deepep_tests" python3 test_intranode.py --num-processes "$ranks" --num-tokens "$tokens"
	[ -z "$deepep_later" ] || part "deepep-later-$tokens" 120 env -C "$deepep_later" python3 test_intranode.py --num-processes "$ranks" --num-tokens "$tokens"
done
# Two nodes on one machine: what crosses between them takes the command path. A daemon copies it: copies of a rank's own process may wait in the GPU's driver for its
# kernels. Without ep-fabric in the build the ranks copy.
daemon=""
for at in "$build" "$build/tools"; do
	[ -x "$at/ep-fabric" ] || continue
	mkdir -p "$out/run"
	EPF_CORE_IDLE=pause "$at/ep-fabric" run --instance=ht --runtime-dir="$out/run" --stats-dir="$out/run" >"$out/daemon.log" 2>&1 &
	daemon=$!
	trap 'kill $daemon; leave_nothing' EXIT
	for ((i = 0; i < 100; i++)); do [ -S "$out/run/ht.sock" ] || sleep 0.1; done
	export EPF_SERVICE=$out/run/ht.sock
	break
done
export CUDA_MODULE_LOADING=EAGER
nodes=$(for ((r = 0; r < ranks; r++)); do printf '%s%s' "${nodes_comma:-}" $((r * 2 / ranks)) && nodes_comma=,; done)
run nodes-table ht-table --nodes "$nodes"
run nodes-random ht-random --cases "$cases" --nodes "$nodes"
run nodes-layers ht-layers --nodes "$nodes"
run nodes-streams ht-streams --nodes "$nodes"
run nodes-graphs ht-graphs --steps "$steps" --nodes "$nodes"
run nodes-mixed ht-mixed --nodes "$nodes"
run nodes-threads ht-threads --nodes "$nodes"
run nodes-callers ht-callers --nodes "$nodes"

# internode ARGUMENT...: DeepEP's test, a launch for each node
# shellcheck disable=SC2317
internode()
{
	local port=$((20000 + RANDOM % 10000)) failed=0 second

	env -C "$deepep_tests" WORLD_SIZE=2 RANK=1 EPF_NODE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" python3 test_internode.py "$@" &
	second=$!
	env -C "$deepep_tests" WORLD_SIZE=2 RANK=0 EPF_NODE=0 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" python3 test_internode.py "$@" || failed=1
	wait "$second" && return "$failed"
}
export -f internode
export deepep_tests
[ -z "$deepep_tests" ] || part deepep-internode 300 bash -c 'internode --num-processes 8 --num-tokens 256 --hidden 2048 --test-ll-compatibility'
if [ -n "$daemon" ]; then
	unset EPF_SERVICE
	kill "$daemon" && wait "$daemon"
	trap leave_nothing EXIT
fi
# MPS ends all clients with one that is killed: without it processes share a GPU by time slices.
[ "$ranks" -le "$gpus" ] || with_mps off
run kill ht-kill
run nodes-kill ht-kill --nodes "$nodes"
end
