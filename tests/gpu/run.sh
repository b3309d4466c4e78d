#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# All GPU tests and measurements in one run, on a machine with one or more GPUs: builds (unless --build is given), tests, measures, and
# writes one table.
#
#   tests/gpu/run.sh [--build DIR] [--out DIR] [--commands N] [--only REGEX] [--list] [--peer 'NAME;SHAPE;REGEX;COMMAND']...
#
# --build     a build tree (or a folder with ep-bench, ep-fabric, ep-top, test_gpu_job, test_gpu_kill, late_load, additions, libepf.so.0) made with nvcc; default: builds
#             one in a scratch directory
# --out       where logs and the table go (./gpu-results)
# --commands  twice the number of checked commands through each kind of ring, about (1000000000)
# --only      runs the parts whose names match, for example p2p or job-rate (--list prints them); default: all
# --list      prints the names of the parts and exits
# --peer      a peer's program, alternating with our rings in the same session (see compare.py)
#
# Copies by kernels run under MPS, if its control program is installed: several processes use one GPU. Tests that kill processes run without it,
# because MPS ends all its clients when one is killed.
#
# Exit 0: all checks passed. 77: no GPU, with the reason. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=""
out=$PWD/gpu-results
commands=1000000000
only=.
list=0
peers=()
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--commands) commands=$2 && shift ;;
	--only) only=$2 && shift ;;
	--list) list=1 ;;
	--peer) peers+=("$2") && shift ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
log=$out/table.txt
failed=0

say()
{
	echo "$*" | tee -a "$log"
}

# wanted NAME
wanted()
{
	[[ $1 =~ $only ]]
}

# skip NAME WHY
skip()
{
	if wanted "$1" && [ "$list" = 0 ]; then say "## $1: $2, skipped"; fi
}

# run NAME COMMAND...: runs a part, with its output in the table; records failures
run()
{
	local name=$1 rc
	shift
	wanted "$name" || return 0
	if [ "$list" = 1 ]; then
		echo "$name"
		return 0
	fi
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

# built FOLDER NAME: the file in a build tree, or in a folder with all files
built()
{
	if [ -e "$build/$1/$2" ]; then echo "$build/$1/$2"; else echo "$build/$2"; fi
}

# run_built FILE NAME COMMAND...: run, if FILE was built
run_built()
{
	local file=$1
	shift
	if [ -e "$file" ] || [ "$list" = 1 ]; then run "$@"; else skip "$1" "no ${file##*/} in $build"; fi
}

# prepare: makes a build if needed, and the head of the table
prepare()
{
	local tests=enabled

	mkdir -p "$out" || exit 1
	rm -f "$out"/*.log
	: >"$log"
	if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
		say "no GPU here (nvidia-smi lists none): the GPU suite is skipped"
		exit 77
	fi
	gpus=$(nvidia-smi -L | wc -l)
	say "# $(date -u +%FT%TZ), $(git -C "$root" -c safe.directory='*' log -1 --format=%h 2>/dev/null || echo 'no checkout')"
	say "# $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $(uname -r)"
	[ -z "$build" ] || return 0
	build=$(mktemp -d) || exit 1
	trap 'rm -rf "$build"' EXIT
	pkg-config --exists cmocka || tests=disabled # skips the parts that are tests, by name
	if ! { meson setup "$build" "$root" --buildtype=release -Dtests="$tests" && ninja -C "$build"; } >"$out/build.log" 2>&1; then
		say "the build failed, see $out/build.log"
		exit 1
	fi
}

gpus=3
[ "$list" = 1 ] || prepare
bench=$(built bench ep-bench)
fabric=$(built tools ep-fabric)
top=$(built tools ep-top)
job=$(built tests/proc test_gpu_job)
kill=$(built tests/proc test_gpu_kill)
late=$(built tests/proc late_load)
additions=$(built tests/proc additions)
libepf=$(built fabric libepf.so.0)
[ -x "$bench" ] || [ "$list" = 1 ] || { say "no ep-bench in $build"; exit 1; }
export FABRIC_PROGRAM=$fabric # for the jobs' daemons

run ring "$bench" ring --gpu --commands "$((commands * 4 / 5))" --trips 20000
for tool in memcheck racecheck; do
	# Errors of driver calls are expected and handled (for example asking a thread without a context for its device).
	checked=(compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --error-exitcode 9 "$bench")
	if ! command -v compute-sanitizer >/dev/null && [ "$list" = 0 ]; then
		skip "$tool" "no compute-sanitizer here"
		continue
	fi
	run "$tool" "${checked[@]}" ring --gpu --commands 20000 --trips 200 --parts cvpxred
	for copy in engine kernel; do
		# The tools slow kernels down, and ranks may share a GPU: waits may be long.
		run "$tool-p2p-$copy" "${checked[@]}" p2p --gpu --op put_signal -n 50 -s 7168 --gpu-copy "$copy" --set gpu-timeout=60s
	done
done
run_built "$fabric" service "$root/tests/gpu/service.sh" "$build"
run_built "$top" waits "$root/tests/gpu/waits.sh" "$build"
deep=(EPF_LANE_DEPTH=4096 EPF_LANE_RECEIVES=8192 EPF_WINDOW=8192 EPF_RANK_INFLIGHT_BYTES=256MiB EPF_NIC_INFLIGHT_BYTES=256MiB
	EPF_RANK_INFLIGHT_MESSAGES=16384 EPF_NIC_INFLIGHT_MESSAGES=16384 EPF_CORE_IDLE=pause)
on_gpus=("$job" --gpu cuda --devices "$gpus" --mode both)
run_built "$job" job "${on_gpus[@]}" --ranks 4 --rounds 30
run_built "$job" job-rate "${on_gpus[@]}" --rounds 5 --rate 400000
run_built "$job" job-rate-deep env "${deep[@]}" "${on_gpus[@]}" --rounds 2 --rate 400000
run_built "$job" job-full-gpu "${on_gpus[@]}" --rounds 3 --hold 1
run_built "$job" job-other-memory "${on_gpus[@]}" --rounds 5 --plain 1
for copy in engine kernel; do
	run_built "$kill" "kill-$copy" "$kill" --gpu cuda --devices "$gpus" --copy "$copy"
done
run_built "$late" late-load "$late" cuda
run_built "$additions" additions "$additions" cuda
run_built "$libepf" torch python3 "$root/tests/gpu/torch_calls.py" "$libepf"

# Several processes on one GPU from here on.
mps=0
several()
{
	run_built "$job" job-kernel "${on_gpus[@]}" --ranks 4 --rounds 10 --copy kernel
	run_built "$job" job-rate-kernel env "${deep[@]}" "${on_gpus[@]}" --ranks 4 --rounds 2 --rate 1000000 --copy kernel
	[ "$gpus" -lt 3 ] || run_built "$job" job-all "${on_gpus[@]}" --ranks "$((gpus < 8 ? gpus : 8))" --rounds 10
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
		run_built "$fabric" "p2p-service-$copy" "$bench" p2p --gpu --service --rounds 3 -s 7168 --gpu-copy "$copy" --warps 8 \
			--fabric-program "$fabric"
	done
}

# shellcheck disable=SC2030 # only there
several_wanted()
(
	list=1
	several | grep -q .
)

# shellcheck disable=SC2031
if [ "$list" = 1 ]; then
	several
elif several_wanted; then
	if command -v nvidia-cuda-mps-control >/dev/null && [ -z "$(pgrep -x nvidia-cuda-mps)" ] && nvidia-cuda-mps-control -d; then
		mps=1
	else
		say "# MPS was not started: processes on one GPU use time slices, or an MPS server that was already running"
	fi
	several
	[ "$mps" = 0 ] || echo quit | nvidia-cuda-mps-control
fi
compared=()
for peer in ${peers[@]+"${peers[@]}"}; do
	compared+=(--peer "$peer")
done
[ ${#compared[@]} -eq 0 ] || run compare "$root/tests/gpu/compare.py" --bench "$bench" "${compared[@]}"
# shellcheck disable=SC2031
[ "$list" = 0 ] || exit 0
say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); table: $log"
exit "$failed"
