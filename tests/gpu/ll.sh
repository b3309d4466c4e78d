#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Low-latency dispatch and combine of deep_ep.Buffer, on a machine with GPUs, preferably two or more: correctness, repeatability, lost ranks, speed.
#
#   tests/gpu/ll.sh --build DIR [--out DIR] [--quick] [--ranks N] [--cases N] [--steps N] [--only REGEX] [--deepep DIR] [--deepep-tests DIR]
#                   [--deepep-later DIR] [--pressure SECONDS]
#
# --build         a folder with libepf.so.0, libepf-ll.so.0 (and for --deepep ep-fabric and libepf-deepep.so), or a build tree with them
# --out           where logs and the table go (./gpu-results/ll)
# --quick         few cases and shapes: about three minutes
# --ranks         processes (default: the number of GPUs, 2 on one). More ranks than GPUs share them under MPS, and other
#                 projects' programs see as many GPUs as they ask for (onegpu/)
# --cases         random cases (100), each run twice
# --steps         replays of a graph, and alternating graph and eager calls (1000)
# --only          runs the parts whose names match
# --deepep        DeepEP's package and compiled module: measures its Buffer alternating with ours
# --deepep-tests  DeepEP's folder of tests: runs its test_low_latency.py, unmodified, on our package
# --deepep-later  the same with a later release's test_low_latency.py (tests/legacy), which has pressure and shrink modes. Pressure runs forever: it is
#                 ended after --pressure SECONDS (120) and must have repeated itself by then. Shrink loses ranks 1, 3 and 5, so it needs 6 ranks, which
#                 share GPUs under MPS if there are fewer
#
# Each part has its own limit and log; a part that hangs prints each rank's stack. Exit 0: all was right; 1: something was wrong; 77: no GPU, with
# the reason. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" out=$PWD/gpu-results/ll quick="" ranks="" cases=100 steps=1000 only=. deepep="" deepep_tests="" deepep_later="" pressure=120
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--quick) quick=--quick ;;
	--ranks) ranks=$2 && shift ;;
	--cases) cases=$2 && shift ;;
	--steps) steps=$2 && shift ;;
	--only) only=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--deepep-tests) deepep_tests=$2 && shift ;;
	--deepep-later) deepep_later=$2 && shift ;;
	--pressure) pressure=$2 && shift ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
	echo "no GPU here (nvidia-smi lists none): the low-latency suite is skipped"
	exit 77
fi
mkdir -p "$out" || exit 1
table=$out/table.txt
failed=0 mps=0 shared=0
: >"$table"

say()
{
	echo "$*" | tee -a "$table"
}

# find_built NAME: a file of the build, in one folder or in a build tree
find_built()
{
	local at
	for at in "$build/$1" "$build/fabric/$1" "$build/kernels/$1" "$build/tools/$1" "$build/tools/shim/$1"; do
		[ -e "$at" ] && realpath -s "$at" && return 0
	done
	return 1
}

# A killed MPS client leaves the GPU busy for a moment.
settle()
{
	[ "$shared" = 0 ] && return
	for _ in 1 2 3 4 5; do
		python3 -c 'import torch; torch.zeros(1, device="cuda")' 2>/dev/null && return
		sleep 1
	done
}

# part NAME LIMIT COMMAND...: one line in the table
part()
{
	local name=$1 limit=$2 began=$SECONDS rc
	shift 2
	[[ $name =~ $only ]] || return 0
	timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
	rc=$?
	case $rc in
	0)
		say "ok    $name ($((SECONDS - began)) s)"
		grep '^# [a-z]*: ' "$out/$name.log" | sed 's/^/        /' | tee -a "$table"
		;;
	77) say "skip  $name: $(tail -n 1 "$out/$name.log")" ;;
	*)
		failed=1
		[ "$rc" != 124 ] && [ "$rc" != 137 ] || echo "ended after its limit of $limit s" >>"$out/$name.log"
		say "WRONG $name ($((SECONDS - began)) s): exit $rc, $out/$name.log ends with"
		tail -n 45 "$out/$name.log" | cut -c1-300 | sed 's/^/      /' | tee -a "$table"
		settle
		;;
	esac
	case $name in
	speed* | beside* | compare) grep '^# [^a-z]\|^#.*us a call\|^  ' "$out/$name.log" | tee -a "$table" ;;
	esac
}

gpus=$(nvidia-smi -L | wc -l)
ranks=${ranks:-$((gpus > 1 ? gpus : 2))}
if ! libepf=$(find_built libepf.so.0) || ! libll=$(find_built libepf-ll.so.0); then
	say "no libepf.so.0 and libepf-ll.so.0 in '$build': --build"
	exit 1
fi
export EPF_LIBRARY=$libepf EPF_LL_LIBRARY=$libll PYTHONPATH=$root/tools/python${PYTHONPATH:+:$PYTHONPATH}
LD_LIBRARY_PATH=$(dirname "$libepf"):$(dirname "$libll"):$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH PYTHONUNBUFFERED=1 TORCH_NCCL_ENABLE_MONITORING=0
say "# $(date -u +%FT%TZ), $(git -C "$root" -c safe.directory='*' log -1 --format=%h 2>/dev/null || echo 'no checkout'), $ranks ranks"
say "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $(uname -r)"
if [ "$ranks" -gt "$gpus" ]; then
	shared=1
	say "# $ranks ranks share $gpus GPU: 'NVLink' below means memory of the same GPU, process groups are gloo's"
	if command -v nvidia-cuda-mps-control >/dev/null && [ -z "$(pgrep -f '^nvidia-cuda-mps-control -d')" ] && nvidia-cuda-mps-control -d; then
		mps=1
		trap 'echo quit | nvidia-cuda-mps-control' EXIT
	fi
	# Kernels that wait for each other must be resident together: each process gets its share of the multiprocessors.
	export CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-$((90 * gpus / ranks))}
	export ONE_GPU=1 PYTHONPATH=$root/tests/gpu/onegpu:$PYTHONPATH
fi

# shrink NAME ARGUMENT...: the later test's shrink mode. Its lost ranks stay alive, so MPS loses no client.
shrink()
{
	local name=$1 share started=""
	shift
	[[ $name =~ $only ]] || return 0
	if [ "$gpus" -ge 6 ]; then
		part "$name" 90 env EPF_GPU_TIMEOUT=3s "${later[@]}" --num-processes 6 --shrink-test "$@"
		return
	fi
	if [ -z "$(pgrep -f '^nvidia-cuda-mps-control -d')" ]; then
		if ! command -v nvidia-cuda-mps-control >/dev/null || ! nvidia-cuda-mps-control -d; then
			say "skip  $name: 6 ranks on $gpus GPUs need MPS, which is not installed"
			return
		fi
		started=1
	fi
	share=$((90 * gpus / 6))
	part "$name" 120 env EPF_GPU_TIMEOUT=3s CUDA_MODULE_LOADING=EAGER CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$share ONE_GPU=1 \
		PYTHONPATH="$root/tests/gpu/onegpu:$PYTHONPATH" "${later[@]}" --num-processes 6 --shrink-test "$@"
	[ -z "$started" ] || echo quit | nvidia-cuda-mps-control
}

cases_py=$root/tests/gpu/ll_cases.py
# run NAME LIMIT PART ARGUMENT...
run()
{
	local name=$1 limit=$2 what=$3
	shift 3
	part "$name" "$((limit + 6))" python3 "$cases_py" "$what" --ranks "$ranks" --limit "$limit" $quick "$@"
}

if [ -n "$quick" ]; then
	fast=30 long=40
	steps=$((steps < 300 ? steps : 300))
	cases=$((cases < 30 ? cases : 30))
	run smoke "$fast" smoke
	run smoke-commands "$fast" smoke --commands
	run cases "$long" table,random,graph,mixed --cases "$cases" --steps "$steps"
	run cases-commands "$long" table,random,graph --cases "$((cases / 2))" --steps "$((steps / 10))" --seed 100000 --commands
	run cases-sums "$long" smoke,table,random,graph --cases "$cases" --steps "$steps" --sums always
	run cases-sums-many "$long" table,random --cases "$cases" --sums auto
	run cases-sums-commands "$long" smoke,table --sums always --commands
	[ "$shared" = 1 ] || run kill "$fast" kill
else
	fast=60 long=300
	run smoke "$fast" smoke
	run smoke-commands "$fast" smoke --commands
	run table "$long" table
	run table-commands "$long" table --commands
	run random "$((long * 4))" random --cases "$cases"
	run random-commands "$long" random --cases "$((cases / 4))" --seed 100000 --commands
	run graph "$long" graph --steps "$steps"
	run graph-commands "$long" graph --steps "$((steps / 10))" --commands
	run mixed "$long" mixed --steps "$steps"
	run sums "$((long * 4))" smoke,table,random,graph,mixed --cases "$cases" --steps "$steps" --sums always
	run sums-many "$long" table,random --cases "$cases" --sums auto
	run sums-commands "$long" smoke,table,random,graph --cases "$((cases / 4))" --steps "$((steps / 10))" --sums always --commands
	[ "$shared" = 1 ] || run kill "$fast" kill
	[ "$shared" = 1 ] || run kill-commands "$fast" kill --commands
	if [ "$ranks" -gt 1 ]; then
		all=$ranks ranks=1
		run one-rank "$fast" smoke,random --cases "$((cases / 10))"
		ranks=$all
	fi
fi
if [ -n "$deepep_tests" ] && [ -e "$deepep_tests/test_low_latency.py" ]; then
	# Over the command path no code may be loaded while a kernel waits: docs/reference/python.md.
	for how in "" --use-logfmt --disable-nvlink; do
		name=deepep-test${how:+-${how#--}}
		[ -z "$quick" ] || [ "$only" != . ] || [ "$how" != --use-logfmt ] || continue
		[[ $name =~ $only ]] || continue
		[ "$how" != --disable-nvlink ] || export CUDA_MODULE_LOADING=EAGER
		part "$name" 90 env EPF_GPU_TIMEOUT=10s python3 "$deepep_tests/test_low_latency.py" --num-processes "$ranks" $how
		unset CUDA_MODULE_LOADING
		grep -h 'bandwidth\|send/recv' "$out/$name.log" | tee -a "$table"
	done
elif [ -n "$deepep_tests" ]; then
	say "skip  deepep-test: no test_low_latency.py in $deepep_tests"
fi
if [ -n "$deepep_later" ] && [ -e "$deepep_later/test_low_latency.py" ]; then
	later=(python3 "$deepep_later/test_low_latency.py")
	for how in "" --use-logfmt --disable-nvlink; do
		[ "$how" != --disable-nvlink ] || export CUDA_MODULE_LOADING=EAGER
		part "deepep-later${how:+-${how#--}}" 90 env EPF_GPU_TIMEOUT=10s "${later[@]}" --num-processes "$ranks" $how
		unset CUDA_MODULE_LOADING
	done
	# Each run prints its bandwidth once per rank: the first before the pressure, the second is the reference, later ones must have its hash.
	# shellcheck disable=SC2016 # the inner shell's
	part deepep-later-pressure "$((pressure + 15))" env EPF_GPU_TIMEOUT=10s bash -c '
		said=$(timeout -k 5 "$1" "${@:2}" --pressure-test 2>&1)
		rc=$?
		echo "$said"
		again=$(($(grep -c "^.rank 0. Dispatch + combine" <<<"$said") - 2))
		echo "# pressure: $again repetitions had the hash of the first, ended after $1 s"
		[ "$rc" = 124 ] && [ "$again" -gt 0 ]' pressure "$pressure" "${later[@]}" --num-processes "$ranks"
	shrink deepep-later-shrink
	shrink deepep-later-shrink-disable-nvlink --disable-nvlink
elif [ -n "$deepep_later" ]; then
	say "skip  deepep-later: no test_low_latency.py in $deepep_later"
fi
run beside-commands 60 beside --commands
run speed "$((long * 2))" speed
run speed-commands "$((long * 2))" speed --commands
if [ -n "$deepep" ] && fabric=$(find_built ep-fabric) && shim=$(find_built libepf-deepep.so); then
	export NVSHMEM_SYMMETRIC_SIZE=12884901888 EPF_GPU_TIMEOUT=10s
	part compare "$((long * 2 + 30))" "$fabric" shim --library "$shim" -- python3 "$cases_py" compare --ranks "$ranks" --limit "$((long * 2 + 24))" \
		$quick --deepep "$deepep"
elif [ -n "$deepep" ]; then
	say "skip  compare: DeepEP needs IBGDA or the shim in low-latency mode, and $build has no ep-fabric with libepf-deepep.so"
fi
# MPS ends all its clients when one is killed: without it, processes share a GPU by time slices of milliseconds.
if [ "$shared" = 1 ] && [ "$mps" = 1 ]; then
	echo quit | nvidia-cuda-mps-control
	trap - EXIT
	sleep 2
	run kill "$fast" kill
	[ -n "$quick" ] || run kill-commands "$fast" kill --commands
elif [ "$shared" = 1 ]; then
	say "skip  kill: an MPS server that was already running would end all ranks with one"
fi
say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); table: $table"
exit "$failed"
