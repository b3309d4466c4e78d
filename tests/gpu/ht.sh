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
# --quick         few cases and shapes, and one set of processes for all parts that measure nothing: about a minute
# --ranks         processes; as many as GPUs by default, 2 on one. More than GPUs share them under MPS (onegpu/)
# --cases         random cases (100), each run twice
# --steps         replays of a graph (200)
# --only          parts whose name matches
# --deepep-tests  DeepEP v1.2.1's folder of tests: its test_intranode.py runs on our package, and its test_internode.py, as two nodes of 8 processes
# --deepep-later  a later release's tests/legacy
# --deepep        DeepEP's package with its compiled module: the parts "speed" and "memory" compare with it. Part "nodes-speed" needs no peer: rows between
#                 nodes, and "nodes-copies" the NIC's own copies of them; DeepEP's normal mode on the same NIC: shim_internode.sh
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
# shellcheck disable=SC2034 # parts.sh reads them
suite="high throughput on GPUs" shown='^# ht-\|tokens.* SMs\|between nodes\|own copies\|Best \(dispatch\|combine\)\|^\[layout\]'
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
need_gpu ""
open_table
find_libraries
export TORCH_NCCL_ENABLE_MONITORING=0 EPF_GPU_TIMEOUT=${EPF_GPU_TIMEOUT:-10s}
export PYTHONPATH=$root/tools/python${PYTHONPATH:+:$PYTHONPATH}
take_ranks

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

# forms PREFIX ARGUMENT...: the parts that say right or wrong. Processes take 7 to 15 s to begin: with --quick one set of them runs all that are wanted
forms()
{
	local prefix=$1 name names=()
	shift
	for name in table random ${prefix:+crossing} $([ -n "$prefix" ] || echo sizes numbers) layers streams graphs mixed threads callers; do
		if [ -z "$quick" ]; then
			run "$prefix$name" "ht-$name" --cases "$cases" --steps "$steps" "$@"
		elif wanted "$prefix$name"; then
			names+=("ht-$name")
		fi
	done
	[ ${#names[@]} -gt 0 ] || return 0
	local only=. limit=$((limit * ${#names[@]}))
	run "${prefix}forms" "$(IFS=, && echo "${names[*]}")" --cases "$cases" --steps "$steps" "$@"
}
forms ""
[ "$ranks" -gt "$gpus" ] || run speed ht-speed ${deepep:+--deepep "$deepep"}
run memory ht-memory ${deepep:+--deepep "$deepep"}
for tokens in 4096 128; do
	[ -z "$deepep_tests" ] || part "deepep-$tokens" 120 env -C "$deepep_tests" python3 test_intranode.py --num-processes "$ranks" --num-tokens "$tokens"
	[ -z "$deepep_later" ] || part "deepep-later-$tokens" 120 env -C "$deepep_later" python3 test_intranode.py --num-processes "$ranks" --num-tokens "$tokens"
done
# Two nodes on one machine: what crosses between them takes the command path. A daemon copies it: copies of a rank's own process may wait in the GPU's driver for its
# kernels. Without ep-fabric in the build the ranks copy.
start_daemon ht
export CUDA_MODULE_LOADING=EAGER
nodes=$(for ((r = 0; r < ranks; r++)); do printf '%s%s' "${nodes_comma:-}" $((r * 2 / ranks)) && nodes_comma=,; done)
forms nodes- --nodes "$nodes"
if [ -n "$daemon" ] && [ "$ranks" -le "$gpus" ] && [[ nodes-speed =~ $only ]]; then
	rm -f "$out/run/lists"
	EPF_STATS_DIR=$out/run STAGES_BUILD=$build run nodes-speed ht-between --nodes "$nodes"
	stop_daemon # the copies alone are measured where nothing else copies
	[ ! -e "$out/run/lists" ] || part nodes-copies 60 env "STAGES_BUILD=$build" python3 "$root/tests/gpu/ll_stages.py" "$out/run"
	start_daemon ht
fi

# The daemon's NIC reorders, repeats and fails: lanes break, and what they carried is sent again.
if [ -n "$daemon" ] && [[ nodes-failover =~ $only ]]; then
	stop_daemon
	EPF_EMU_ORDER=unordered EPF_EMU_REORDER=0.1 EPF_EMU_DUPLICATE=0.05 EPF_EMU_ERROR=0.0005 EPF_LANES_PER_PEER=8 start_daemon failing
	# A daemon forgets the counters of a job that has ended.
	while sleep 0.5; do
		EPF_STATS_DIR=$out/run "$(find_built ep-fabric)" stats failing | grep -a 'lane_errors\|replays \|duplicates_dropped' >"$out/lanes.new" && mv "$out/lanes.new" "$out/lanes"
	done 2>/dev/null &
	watcher=$!
	run nodes-failover ht-random --cases "$cases" --nodes "$nodes"
	kill "$watcher"
	[ ! -e "$out/lanes" ] || sed 's/^/    /' "$out/lanes" | tee -a "$log"
	stop_daemon
	start_daemon ht
fi

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
if [ -n "$deepep_tests" ] && wanted deepep-internode; then
	# Eight processes a node, each with a GPU, or all sharing.
	if [ "$gpus" -ge 8 ] || [ "$ranks" -gt "$gpus" ]; then
		part deepep-internode 300 bash -c 'internode --num-processes 8 --num-tokens 256 --hidden 2048 --test-ll-compatibility'
	else
		result deepep-internode "skipped: 8 processes a node, and $gpus GPUs that $ranks ranks do not share: --ranks $((2 * gpus))"
	fi
fi
stop_daemon
# MPS ends all clients with one that is killed: without it processes share a GPU by time slices.
[ "$ranks" -le "$gpus" ] || with_mps off
run kill ht-kill
run kill-rows ht-kill-rows
run kill-sums ht-kill-sums
run nodes-kill ht-kill --nodes "$nodes"
end
