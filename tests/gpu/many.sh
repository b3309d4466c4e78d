#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What two GPUs cannot show, on a machine with four or eight: both modes among all GPUs, two nodes of half of them each, rings of all GPUs at once, DeepEP by
# the shim, training, transfers among all, jobs and kills. Each part is a run of another script of this folder with more ranks; this one adds limits and one table.
#
#   tests/gpu/many.sh --build DIR [--ranks N,N] [--deepep DIR] [--deepep-tests DIR] [--packages DIR] [--nixl DIR] [--out DIR] [--only REGEX] [--seconds N] [--list]
#
# --build         a folder with libepf.so.0, libepf-ll.so.0, ep-fabric, ep-bench and shim/libepf-deepep.so, or a build tree with them
# --ranks         how many ranks, one after the other (4,8 as far as there are GPUs). More than GPUs share them under MPS, and times mean nothing
# --deepep        DeepEP's package with its compiled module (v1.2.1): to compare with, and for the shim
# --deepep-tests  DeepEP v1.2.1's folder of tests, to run on our package
# --packages      a folder made by tools/frameworks/fetch.py gpu: training
# --nixl          what tools/frameworks/fetch.py nixl-gpu-1.5 DIR makes: NIXL's agents among all GPUs
# --only          parts whose name matches, as ll-4; --list prints the names
# --seconds       no part begins later (400), so that all of it ends within ten minutes; a part that would is named as skipped
#
# Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/gpu
build="" out=$PWD/gpu-results/many ranks="" deepep="" deepep_tests="" packages="" nixl="" only=. list=0 begin_before=400
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--deepep-tests) deepep_tests=$2 && shift ;;
	--packages) packages=$2 && shift ;;
	--nixl) nixl=$2 && shift ;;
	--only) only=$2 && shift ;;
	--seconds) begin_before=$2 && shift ;;
	--list) list=1 ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
suite="the suite of many GPUs" part_width=18
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
gpus=0
[ "$list" = 1 ] || need_gpu ""
open_table
if [ -z "$ranks" ]; then
	ranks=4
	[ "$gpus" -lt 8 ] || ranks=4,8
fi
[ "$list" = 1 ] || say "# $(hardware), ranks $ranks"

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

# among NAME COMMAND...: runs it for each two GPUs, all at once, with the two at its end
# shellcheck disable=SC2317 # a part
among()
{
	local a b failed=0 jobs=() name=$1

	shift
	for ((a = 0; a < gpus; a++)); do
		for ((b = a + 1; b < gpus; b++)); do
			"$@" "$a,$b" >"$out/$name-$a,$b.log" 2>&1 &
			jobs+=("$!:$a,$b")
		done
	done
	for a in "${jobs[@]}"; do
		wait "${a%%:*}" && echo "GPUs ${a#*:}: right" && continue
		failed=1
		echo "GPUs ${a#*:}: WRONG" && tail -n 8 "$out/$name-${a#*:}.log"
	done
	return "$failed"
}
export -f rings among
bench=$(find_built ep-bench) libepf=$(find_built libepf.so.0) plugin=$(find_built libplugin_EPF.so)
export bench gpus out

for n in ${ranks//,/ }; do
	same=(--build "$build" --ranks "$n" --quick)
	part "ll-$n" 150 "$here/ll.sh" "${same[@]}" --out "$out/ll-$n" --only '^(smoke|smoke-commands|cases|cases-sums|kill|deepep-test|compare)$' \
		${deepep:+--deepep "$deepep"} ${deepep_tests:+--deepep-tests "$deepep_tests"}
	part "ht-$n" 200 "$here/ht.sh" "${same[@]}" --out "$out/ht-$n" --only '^(table|random|sizes|numbers|layers|streams|graphs|mixed|callers|speed|kill|deepep-4096)$' \
		${deepep:+--deepep "$deepep"} ${deepep_tests:+--deepep-tests "$deepep_tests"}
	# Halves of the GPUs as two nodes: forwarding, and a killed rank.
	part "nodes-$n" 120 "$here/ht.sh" "${same[@]}" --out "$out/nodes-$n" --only '^nodes-(table|random|graphs|mixed|failover|kill)$'
	[ -z "$bench" ] || part "rings-$n" 60 bash -c "rings $n"
	[ -z "$deepep" ] || part "shim-$n" 250 "$here/shim.sh" --build "$build" --deepep "$deepep" --out "$out/shim-$n" --ranks "$n" --limit 60 \
		--only '^(nvlink|host|gpu|daemon)$'
	[ -z "$packages" ] || part "training-$n" 200 "$here/frameworks.sh" --build "$build" --packages "$packages" --out "$out/training-$n" --ranks "$n" --rounds 1 \
		--only '^(losses|deepseek)$' --steps 40 ${deepep:+--deepep "$deepep"}
done
if [ "$gpus" -gt 2 ] || [ "$list" = 1 ]; then
	part p2p 120 env "LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" bash -c 'among "$@"' - p2p \
		python3 "$here/p2p_cases.py" --libepf "$libepf" correct --devices
	[ -z "$nixl" ] || part nixl 120 env "LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" bash -c 'among "$@"' - nixl \
		python3 "$here/p2p_nixl.py" --wheel "$nixl" --plugin "$plugin" --gpu
fi
[ -z "$bench" ] || part jobs 120 "$here/run.sh" --build "$build" --out "$out/jobs" --only '^(job|job-all|kill-engine|kill-kernel)$'
end
