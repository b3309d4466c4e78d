#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that needs a GPU, in one go, on a machine with one or more of them: builds (unless told where a build is), tests,
# measures, and writes one table.
#
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--commands N] [--only REGEX] [--peer 'NAME;SHAPE;REGEX;COMMAND']...
#
# --build     a build tree (or a folder with ep-bench, ep-fabric, test_gpu_job, test_gpu_kill, libepf.so.0) made where nvcc is; without it one is made in a scratch directory
# --out       where logs and the table go (./gpu-results)
# --commands  checked commands through each kind of ring, about half of it (1000000000)
# --only      runs the parts whose name matches, p2p or job-rate say; all by default
# --peer      a peer's program, run in turn with our rings in the same session, as compare.py takes it
#
# Copies by kernels are tried under MPS, where its control program is there: several processes use one GPU. Killed processes are tried without,
# because MPS ends all its clients together with one that is killed.
#
# Exit 0: everything that was checked was right. 77: no GPU, with the reason. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=""
out=$PWD/gpu-results
commands=1000000000
only=.
peers=()
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--commands) commands=$2 && shift ;;
	--only) only=$2 && shift ;;
	--peer) peers+=("$2") && shift ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
mkdir -p "$out" || exit 1
log=$out/table.txt
failed=0

say()
{
	echo "$*" | tee -a "$log"
}

: >"$log"
if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
	say "no GPU here (nvidia-smi lists none): the GPU suite is skipped"
	exit 77
fi
say "# $(date -u +%FT%TZ), $(git -C "$root" -c safe.directory='*' log -1 --format=%h 2>/dev/null || echo 'no checkout')"
say "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $(uname -r)"

if [ -z "$build" ]; then
	build=$(mktemp -d) || exit 1
	trap 'rm -rf "$build"' EXIT
	if ! { meson setup "$build" "$root" --buildtype=release -Dtests=disabled && ninja -C "$build"; } >"$out/build.log" 2>&1; then
		say "the build failed, see $out/build.log"
		exit 1
	fi
fi
bench=$build/bench/ep-bench
[ -x "$bench" ] || bench=$build/ep-bench
[ -x "$bench" ] || { say "no ep-bench in $build"; exit 1; }

# run NAME COMMAND...: its output into the table; what went wrong counts
run()
{
	local name=$1 rc
	shift
	[[ $name =~ $only ]] || return 0
	say "## $name"
	timeout 600 "$@" 2>&1 | tee -a "$log" "$out/$name.log" >/dev/null
	rc=${PIPESTATUS[0]}
	tail -n 60 "$out/$name.log"
	if [ "$rc" = 77 ]; then
		say "## $name: skipped, see above"
	elif [ "$rc" != 0 ]; then
		say "## $name: FAILED, exit $rc"
		failed=1
	fi
}

rm -f "$out"/*.log
run ring "$bench" ring --gpu --commands "$((commands * 4 / 5))" --trips 20000
for tool in memcheck racecheck; do
	if ! command -v compute-sanitizer >/dev/null; then
		say "## $tool: no compute-sanitizer here, skipped"
		continue
	fi
	# Errors of driver calls are ours to handle (asking a thread without a context for its device is one).
	run "$tool" compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --error-exitcode 9 \
		"$bench" ring --gpu --commands 20000 --trips 200 --parts cvpxred
done
if [ -x "$build/tools/ep-fabric" ] || [ -x "$build/ep-fabric" ]; then
	run service "$root/tests/gpu/service.sh" "$build"
else
	say "## service: no ep-fabric in $build, skipped"
fi
deep=(EPF_LANE_DEPTH=4096 EPF_LANE_RECEIVES=8192 EPF_WINDOW=8192 EPF_RANK_INFLIGHT_BYTES=256MiB EPF_NIC_INFLIGHT_BYTES=256MiB
	EPF_RANK_INFLIGHT_MESSAGES=16384 EPF_NIC_INFLIGHT_MESSAGES=16384 EPF_CORE_IDLE=pause)
job=$build/tests/proc/test_gpu_job
[ -x "$job" ] || job=$build/test_gpu_job
FABRIC_PROGRAM=$build/tools/ep-fabric
[ -x "$FABRIC_PROGRAM" ] || FABRIC_PROGRAM=$build/ep-fabric
export FABRIC_PROGRAM
gpus=$(nvidia-smi -L | wc -l)
if [ -x "$job" ]; then
	run job "$job" --gpu cuda --devices "$gpus" --mode both --ranks 4 --rounds 30
	run job-rate "$job" --gpu cuda --devices "$gpus" --mode both --rounds 5 --rate 400000
	run job-rate-deep env "${deep[@]}" "$job" --gpu cuda --devices "$gpus" --mode both --rounds 2 --rate 400000
	run job-full-gpu "$job" --gpu cuda --devices "$gpus" --mode both --rounds 3 --hold 1
	run job-other-memory "$job" --gpu cuda --devices "$gpus" --mode both --rounds 5 --plain 1
else
	say "## job: no test_gpu_job in $build, skipped"
fi
kill=$build/tests/proc/test_gpu_kill
[ -x "$kill" ] || kill=$build/test_gpu_kill
for copy in engine kernel; do
	if [ -x "$kill" ]; then
		run "kill-$copy" "$kill" --gpu cuda --devices "$gpus" --copy "$copy"
	else
		say "## kill-$copy: no test_gpu_kill in $build, skipped"
	fi
done
libepf=$build/fabric/libepf.so.0
[ -e "$libepf" ] || libepf=$build/libepf.so.0
if [ -e "$libepf" ]; then
	run torch python3 "$root/tests/gpu/torch_calls.py" "$libepf"
else
	say "## torch: no libepf.so.0 in $build, skipped"
fi

# Several processes on one GPU from here on.
mps=0
if command -v nvidia-cuda-mps-control >/dev/null && [ -z "$(pgrep -x nvidia-cuda-mps)" ] && nvidia-cuda-mps-control -d; then
	mps=1
else
	say "# MPS was not started here: processes on one GPU take turns, or share a server that was there"
fi
if [ -x "$job" ]; then
	run job-kernel "$job" --gpu cuda --devices "$gpus" --mode both --ranks 4 --rounds 10 --copy kernel
	run job-rate-kernel env "${deep[@]}" "$job" --gpu cuda --devices "$gpus" --mode both --ranks 4 --rounds 2 --rate 1000000 --copy kernel
	[ "$gpus" -lt 3 ] || run job-all "$job" --gpu cuda --devices "$gpus" --mode both --ranks "$((gpus < 8 ? gpus : 8))" --rounds 10
fi
for copy in engine kernel; do
	for op in put_signal put_add put get; do
		for size in 8 7168 65536; do
			run "p2p-lat-$copy-$op-$size" "$bench" p2p --gpu --op "$op" -s "$size" --gpu-copy "$copy"
		done
		[ "$op" != put_add ] || continue
		for size in 7168 14352; do
			run "p2p-bw-$copy-$op-$size" "$bench" p2p --gpu --op "$op" --test bw -s "$size" --gpu-copy "$copy" --warps 8
		done
	done
	run "p2p-lat-$copy-signals-gpu" "$bench" p2p --gpu --op put_signal --signals gpu -s 7168 --gpu-copy "$copy"
	run "p2p-service-$copy" "$bench" p2p --gpu --service --rounds 3 -s 7168 --gpu-copy "$copy" --warps 8 --fabric-program "$FABRIC_PROGRAM"
done
[ "$mps" = 0 ] || echo quit | nvidia-cuda-mps-control
compared=()
for peer in ${peers[@]+"${peers[@]}"}; do
	compared+=(--peer "$peer")
done
[ ${#compared[@]} -eq 0 ] || run compare "$root/tests/gpu/compare.py" --bench "$bench" "${compared[@]}"
say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); table: $log"
exit "$failed"
