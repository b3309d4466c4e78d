#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What two GPUs cannot show, on a machine with four or eight: both modes among all GPUs, two nodes of half of them each, rings of all GPUs at once, DeepEP by
# the shim, training, jobs and kills. Each part is a run of another script of this folder with more ranks; this one adds limits and one table.
#
#   tests/gpu/many.sh --build DIR [--ranks N,N] [--deepep DIR] [--deepep-tests DIR] [--packages DIR] [--out DIR] [--only REGEX] [--seconds N] [--list]
#
# --build         a folder with libepf.so.0, libepf-ll.so.0, ep-fabric, ep-bench and libepf-deepep.so, or a build tree with them
# --ranks         how many ranks, one after the other (4,8 as far as there are GPUs). More than GPUs share them under MPS, and times mean nothing
# --deepep        DeepEP's package with its compiled module (v1.2.1): to compare with, and for the shim
# --deepep-tests  DeepEP v1.2.1's folder of tests, to run on our package
# --packages      a folder made by tools/frameworks/fetch.py gpu: training
# --only          parts whose name matches, as ll-4; --list prints the names
# --seconds       no part begins later (540), so that all of it ends within ten minutes
#
# Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/gpu
build="" out=$PWD/gpu-results/many ranks="" deepep="" deepep_tests="" packages="" only=. list=0 begin_before=540
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--deepep-tests) deepep_tests=$2 && shift ;;
	--packages) packages=$2 && shift ;;
	--only) only=$2 && shift ;;
	--seconds) begin_before=$2 && shift ;;
	--list) list=1 ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
gpus=0
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpus=$(nvidia-smi -L | wc -l); fi
if [ "$gpus" = 0 ] && [ "$list" = 0 ]; then
	echo "no GPU here (nvidia-smi lists none): many GPUs are skipped"
	exit 77
fi
suite="many GPUs" part_width=18
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
log=$out/table.txt
: >"$log"
trap leave_nothing EXIT
if [ -z "$ranks" ]; then
	ranks=4
	[ "$gpus" -lt 8 ] || ranks=4,8
fi
[ "$list" = 1 ] || say "# $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, ranks $ranks"

# part NAME LIMIT COMMAND...: COMMAND writes into --out, whose table is shown
part()
{
	local name=$1 limit=$2
	shift 2
	wanted "$name" || return 0
	bounded "$limit" "$out/$name.log" "$@"
	case $rc in
	0) result "$name" "ok, $took s" ;;
	77) result "$name" "skipped: $(tail -n 1 "$out/$name.log")" ;;
	*) failed=1 && result "$name" "WRONG: status $rc after $took s" ;;
	esac
	grep -v '^# [0-9]\{4\}-\|^# results\|^# all right' "$out/$name.log" | cut -c1-200 | tail -n "$([ "$rc" = 0 ] && echo 24 || echo 60)" | sed 's/^/    /' | tee -a "$log"
}

# rings N: kernels of N GPUs into N engine cores at once
# shellcheck disable=SC2317 # a part
rings()
{
	local i failed=0 jobs=()

	for ((i = 0; i < $1; i++)); do
		"$bench" ring --gpu --gpu-device $((i % gpus)) --parts t --commands 200000000 >"$out/ring-$1-$i.log" 2>&1 &
		jobs+=($!)
	done
	for i in "${jobs[@]}"; do wait "$i" || failed=1; done
	for ((i = 0; i < $1; i++)); do grep 'private\|shared\|wrong' "$out/ring-$1-$i.log" | sed "s/^/GPU $i: /"; done
	return "$failed"
}
export -f rings
for at in "$build" "$build/bench"; do [ ! -x "$at/ep-bench" ] || bench=$at/ep-bench; done
export bench=${bench:-} gpus out

for n in ${ranks//,/ }; do
	same=(--build "$build" --ranks "$n" --quick)
	part "ll-$n" 150 "$here/ll.sh" "${same[@]}" --out "$out/ll-$n" --only '^(smoke|smoke-commands|cases|cases-sums|kill|deepep-test|compare)$' \
		${deepep:+--deepep "$deepep"} ${deepep_tests:+--deepep-tests "$deepep_tests"}
	part "ht-$n" 150 "$here/ht.sh" "${same[@]}" --out "$out/ht-$n" --only '^(table|random|layers|graphs|callers|speed|kill|deepep-4096)$' \
		${deepep:+--deepep "$deepep"} ${deepep_tests:+--deepep-tests "$deepep_tests"}
	# Halves of the GPUs as two nodes: forwarding, and a killed rank.
	part "nodes-$n" 120 "$here/ht.sh" "${same[@]}" --out "$out/nodes-$n" --only '^nodes-(table|random|graphs|mixed|kill)$'
	[ -z "$bench" ] || part "rings-$n" 60 bash -c "rings $n"
	[ -z "$deepep" ] || part "shim-$n" 120 "$here/shim.sh" --build "$build" --deepep "$deepep" --out "$out/shim-$n" --ranks "$n" --limit 60 \
		--only '^(nvlink|host|gpu|daemon)$'
	[ -z "$packages" ] || part "training-$n" 150 "$here/frameworks.sh" --build "$build" --packages "$packages" --out "$out/training-$n" --ranks "$n" --rounds 1 \
		--only '^(losses|deepseek)$' --steps 40 ${deepep:+--deepep "$deepep"}
done
[ -z "$bench" ] || part jobs 120 "$here/run.sh" --build "$build" --out "$out/jobs" --only '^(job|job-all|kill-engine|kill-kernel)$'
end
