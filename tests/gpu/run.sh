#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that needs a GPU, in one go, on a machine with one or more of them: builds (unless told where a build is), tests,
# measures, and writes one table.
#
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--commands N] [--peer PROGRAM]...
#
# --build     a build tree (or a folder with ep-bench, ep-fabric, test_gpu_job) made where nvcc is; without it one is made in a scratch directory
# --out       where logs and the table go (./gpu-results)
# --commands  checked commands through each kind of ring, about half of it (1000000000)
# --peer      a peer's benchmark program, run as it is in the same session; its output stands in the table's log
#
# Exit 0: everything that was checked was right. 77: no GPU, with the reason. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=""
out=$PWD/gpu-results
commands=1000000000
peers=()
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--commands) commands=$2 && shift ;;
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
	if ! { meson setup "$build" "$root" --buildtype=release -Dtests=disabled && ninja -C "$build" bench/ep-bench tools/ep-fabric; } >"$out/build.log" 2>&1; then
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
	say "## $name"
	timeout 600 "$@" 2>&1 | tee -a "$log" "$out/$name.log" >/dev/null
	rc=${PIPESTATUS[0]}
	tail -n 60 "$out/$name.log"
	if [ "$rc" != 0 ]; then
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
		"$bench" ring --gpu --commands 20000 --trips 200 --parts cvred
done
if [ -x "$build/tools/ep-fabric" ] || [ -x "$build/ep-fabric" ]; then
	run service "$root/tests/gpu/service.sh" "$build"
else
	say "## service: no ep-fabric in $build, skipped"
fi
job=$build/tests/proc/test_gpu_job
[ -x "$job" ] || job=$build/test_gpu_job
if [ -x "$job" ]; then
	FABRIC_PROGRAM=$build/tools/ep-fabric
	[ -x "$FABRIC_PROGRAM" ] || FABRIC_PROGRAM=$build/ep-fabric
	export FABRIC_PROGRAM
	gpus=$(nvidia-smi -L | wc -l)
	deep=(EPF_LANE_DEPTH=2048 EPF_LANE_RECEIVES=4096 EPF_WINDOW=4096)
	run job "$job" --gpu cuda --devices "$gpus" --mode both --ranks 4 --rounds 30
	run job-rate "$job" --gpu cuda --devices "$gpus" --mode both --rounds 5 --rate 400000
	run job-rate-deep env "${deep[@]}" "$job" --gpu cuda --devices "$gpus" --mode both --rounds 2 --rate 400000
	run job-full-gpu "$job" --gpu cuda --devices "$gpus" --mode both --rounds 3 --hold 1
	run job-other-memory "$job" --gpu cuda --devices "$gpus" --mode both --rounds 5 --plain 1
else
	say "## job: no test_gpu_job in $build, skipped"
fi
for peer in ${peers[@]+"${peers[@]}"}; do
	run "peer-$(basename "$peer")" "$peer"
done
say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); table: $log"
exit "$failed"
