#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The shim (docs/reference/shim.md) with DeepEP's kernels: unmodified DeepEP v1.2.1 and its low-latency test, ranks on the GPUs of this machine.
#
#   tests/gpu/shim.sh --deepep DIR [--build DIR] [--out DIR] [--ranks N] [--one-gpu] [--limit SECONDS] [--only REGEX] [--list]
#
# --deepep  a folder with deep_ep_cpp*.so, the package deep_ep, and DeepEP's tests/, all of v1.2.1, built with a release of NVSHMEM that the shim serves
# --build   a build tree, or a folder with ep-fabric and shim/libepf-deepep.so (build); optional shim-hooks/libepf-deepep.so: the same,
#           built with -Dtest_hooks=true
# --out     where logs and the table go (./gpu-results/shim)
# --ranks   ranks of a job, one per GPU (default: the number of GPUs, at most 8)
# --one-gpu several ranks on each GPU: under MPS, each with a share of the multiprocessors, process groups by gloo (onegpu/sitecustomize.py);
#           DeepEP and its test are unmodified. "nvlink" then means stores within one GPU
# --limit   upper bound of every part's time limit
# --only    runs the parts whose name matches; --list names them all
#
# With a heap in GPU memory CUDA_MODULE_LOADING=EAGER is set: the software NIC copies with CUDA calls, and loading a PyTorch kernel while DeepEP's kernel
# waits for such a copy would block both (gpu-lazy shows that). A heap in host memory, a daemon, or an RDMA NIC does not need it.
#
# Each part has a deadline and is killed with all its processes, because DeepEP's kernels wait forever. The shim's counts are
# compared with the test's seeds (shim_routing.py). Exit 0: all parts that ran did as they should; 77: no GPU or no DeepEP.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=build deepep="" out=$PWD/gpu-results/shim ranks="" only=. list=0 one=0 longest=600
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--only) only=$2 && shift ;;
	--list) list=1 ;;
	--one-gpu) one=1 ;;
	--limit) longest=$2 && shift ;;
	*) sed -n '/^#   tests/,/^# compared/p' "$0" && exit 2 ;;
	esac
	shift
done

# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
# shellcheck disable=SC2034 # parts.sh reads them. Served no more: DeepEP's kernels wait forever.
suite="the shim's GPU suite" part_width=22 ends_early='served no more'
daemon=""

# (Called by a trap only.)
# shellcheck disable=SC2317
cleanup()
{
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null
	leave_nothing
}
trap cleanup EXIT
trap 'exit 1' TERM INT

# start NAME SECONDS COMMAND...: runs it with a separate runtime folder; if it hangs, saves the output of ep-fabric why, then kills it
start()
{
	local name=$1 limit=$2
	shift 2
	[ "$limit" -le "$longest" ] || limit=$longest
	mkdir -p "$out/run-$name"
	# (Called by bounded.)
	# shellcheck disable=SC2317
	on_late()
	{
		XDG_RUNTIME_DIR=$out/run-$name timeout 8 "$fabric" why >"$out/$name.why" 2>&1
		XDG_RUNTIME_DIR=$out/run-$name timeout 8 "$fabric" stats >"$out/$name.stats" 2>&1
	}
	bounded "$limit" "$out/$name.log" env "XDG_RUNTIME_DIR=$out/run-$name" "$@"
	[ "$late" = 0 ] || sleep 3 # the GPU stays busy for a moment
	rm -rf "$out/run-$name"
}

# error_of NAME: the last error line of its log
error_of()
{
	grep -aE 'EPF-[0-9]|Error|error|ERROR|Assert|assert|refus|Timeout|timeout' "$out/$1.log" | grep -avE 'NCCL_|ProcessExitedException|^ *File ' | tail -n 1 | cut -c1-300
}

# counts NAME TOKENS HIDDEN TOPK EXPERTS: compares the shim's counts with the seeds
counts()
{
	local want=$out/routing-$2-$3-$4-$5.txt bad=0 r puts bytes adds
	[ -s "$want" ] || timeout 90 env "${common[@]}" python3 "$here/shim_routing.py" "$ranks" "$2" "$3" "$4" "$5" >"$want" 2>"$want.err"
	while read -r _ r _ puts _ bytes _ adds; do
		grep -qaE "rank $r: $puts puts of $bytes bytes, 0 inline puts, $adds adds" "$out/$1.log" || bad=1
	done <"$want"
	[ -s "$want" ] || { echo "counts not known ($(tail -n 1 "$want.err"))" && return; }
	[ "$bad" = 0 ] && echo "counts as the seeds say" || echo "COUNTS DIFFER: $(tr '\n' ';' <"$want")"
}

# ll NAME SECONDS WANT TOKENS HIDDEN TOPK EXPERTS SETTING... [-- OPTION...]: DeepEP's low-latency test under the shim. WANT: counts: it must pass with
# the counts of its seeds; nvlink: it must pass with no traffic over the fabric; pass; fail: it must fail
ll()
{
	local name=$1 limit=$2 want=$3 tokens=$4 hidden=$5 topk=$6 experts=$7 settings options text said shim=()
	shift 7
	wanted "$name" || return 0
	settings_of "$@"
	set -- ${options[@]+"${options[@]}"}
	[ "$want" = nvlink ] || set -- --disable-nvlink "$@"
	[ ! -f "$out/library" ] || shim=(--library "$(cat "$out/library")")
	start "$name" "$limit" env "${common[@]}" ${settings[@]+"${settings[@]}"} "$fabric" shim ${shim[@]+"${shim[@]}"} --module "$module" -- python3 "$deepep/tests/test_low_latency.py" \
		--num-processes "$ranks" --num-tokens "$tokens" --hidden "$hidden" --num-topk "$topk" --num-experts "$experts" "$@"
	grep -aE 'peers mapped|early doorbells|no longer|served no more|bandwidth|send/recv|EPF-' "$out/$name.log" | cut -c1-260 | tail -n 30 | tee -a "$log"
	text="exit $rc"
	[ "$late" = 0 ] || text="HUNG, killed after $took s (see $name.why)"
	said=$(grep -aoE '[0-9]+ early doorbells, [0-9]+ refusals' "$out/$name.log" | tr '\n' ';')
	if [ "$want" = fail ]; then
		[ "$rc" != 0 ] || failed=1
		result "$name" "$([ "$rc" != 0 ] && echo "failed, as it must" || echo "PASSED, but must fail") ($text); $(error_of "$name")"
		return
	fi
	if [ "$rc" != 0 ]; then
		failed=1
		result "$name" "FAILED, $text; $(error_of "$name")"
		return
	fi
	text=""
	case $want in
	counts)
		text=$(counts "$name" "$tokens" "$hidden" "$topk" "$experts")
		;;
	nvlink)
		text="nothing went by the fabric"
		[ "$(grep -acE 'rank [0-9]+: 0 puts of 0 bytes, 0 inline puts, 0 adds' "$out/$name.log")" = "$ranks" ] || text="COUNTS DIFFER: something went by the fabric"
		;;
	esac
	case $text in COUNTS*) failed=1 ;; esac
	result "$name" "passed in $took s; $text; $said $(grep -aoE '\[rank 0\] .*avg_t=[0-9.]+ us' "$out/$name.log" | head -n 1)"
}

# many NAME SECONDS WANT TIMES AT_ONCE TOKENS HIDDEN TOPK EXPERTS SETTING...: the low-latency test TIMES times, AT_ONCE of them concurrently on the
# same GPUs. WANT: fail: nine of ten must fail by the test's assertion or stall until the deadline; pass: all must pass
many()
{
	local name=$1 limit=$2 want=$3 times=$4 at_once=$5 tokens=$6 hidden=$7 topk=$8 experts=$9 shim=() i passed=0 said=0 hung_runs=0 other=0 text
	shift 9
	wanted "$name" || return 0
	[ ! -f "$out/library" ] || shim=(--library "$(cat "$out/library")")
	for ((i = 1; i <= times; i++)); do
		(
			start "$name-$i" "$limit" env "${common[@]}" "$@" "MASTER_PORT=$((8500 + i))" "$fabric" shim ${shim[@]+"${shim[@]}"} --module "$module" -- \
				python3 "$deepep/tests/test_low_latency.py" --num-processes "$ranks" --num-tokens "$tokens" --hidden "$hidden" --num-topk "$topk" \
				--num-experts "$experts" --disable-nvlink
			echo "$rc $late $took" >"$out/$name-$i.rc"
		) &
		[ $((i % at_once)) != 0 ] || wait
	done
	wait
	for ((i = 1; i <= times; i++)); do
		read -r rc late took <"$out/$name-$i.rc"
		if [ "$late" = 1 ]; then
			hung_runs=$((hung_runs + 1))
		elif [ "$rc" = 0 ]; then
			passed=$((passed + 1))
		elif grep -qa '^AssertionError' "$out/$name-$i.log"; then
			said=$((said + 1))
		else
			other=$((other + 1))
		fi
	done
	text="of $times runs $passed passed, $said failed by the test's assertion, $hung_runs stalled, $other ended otherwise"
	if [ "$want" = fail ] && [ $(((said + hung_runs) * 10)) -lt $((times * 9)) ]; then
		failed=1
		text="NOT ENOUGH FAILED: $text; $(error_of "$name-1")"
	elif [ "$want" = pass ] && [ "$passed" != "$times" ]; then
		failed=1
		text="NOT ALL PASSED: $text; $(error_of "$name-1")"
	fi
	result "$name" "$text"
}

# stages NAME SECONDS SETTING... [-- OPTION...]: the time of calls by stage (ll_stages.py); --deepep measures DeepEP
stages()
{
	local name=$1 limit=$2 settings options shim=()
	shift 2
	wanted "$name" || return 0
	settings_of "$@"
	set -- ${options[@]+"${options[@]}"}
	[[ " $* " != *" --deepep "* ]] || shim=("$fabric" shim --module "$module" --)
	rm -rf "$out/stats-$name"
	mkdir -p "$out/stats-$name"
	start "$name" "$limit" env "${common[@]}" EPF_LOG=note ${settings[@]+"${settings[@]}"} "EPF_STATS_DIR=$out/stats-$name" "STAGES_BUILD=$build" \
		"PYTHONPATH=$here/../../tools/python:$here/onegpu" "EPF_LIBRARY=$(built libepf.so.0)" "EPF_LL_LIBRARY=$(built libepf-ll.so.0)" EPF_GPU_TIMEOUT=10s \
		NVSHMEM_SYMMETRIC_SIZE=4294967296 ${shim[@]+"${shim[@]}"} python3 "$here/ll_cases.py" stages --ranks "$ranks" --commands --limit "$((limit - 3))" "$@"
	grep -aE '^# |^  |early doorbells|serving thread|EPF-[0-9]|rror' "$out/$name.log" | cut -c1-260 | tail -n 24 | tee -a "$log"
	[ "$rc" = 0 ] && timeout 60 env ${settings[@]+"${settings[@]}"} STAGES_BUILD="$build" LD_LIBRARY_PATH="$build/lib:${LD_LIBRARY_PATH:-}" \
		python3 "$here/ll_stages.py" "$out/stats-$name" 2>&1 | tee -a "$out/$name.log" "$log"
	rm -rf "$out/stats-$name"
	[ "$rc" = 0 ] || failed=1
	result "$name" "exit $rc, hung $late, $took s$([ "$rc" = 0 ] || echo "; $(error_of "$name")")"
}

# built NAME: a library of the build, in its folder or in a build tree
built()
{
	local at
	for at in "$build/$1" "$build/fabric/$1" "$build/kernels/$1"; do
		[ ! -e "$at" ] || { echo "$at" && return; }
	done
}

# with_daemon EXPERTS NAME SECONDS SETTING...: the low-latency test with the engine in a daemon, a separate process
with_daemon()
{
	local name=$2
	wanted "$name" || return 0
	mkdir -p "$out/d"
	rm -f "$out"/d/*.sock
	env "${common[@]}" "${@:4}" EPF_LOG=note "$fabric" run --instance shim --runtime-dir "$out/d" --stats-dir "$out/d" --nic=emu --core-idle=spin >"$out/$name-daemon.log" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		[ ! -S "$out/d/shim.sock" ] || break
		sleep 0.1
	done
	ll "$name" "$3" counts 128 7168 8 "$1" EPF_SERVICE="$out/d/shim.sock" "${@:4}"
	kill "$daemon" 2>/dev/null
	sleep 1
	kill -KILL "$daemon" 2>/dev/null
	wait "$daemon" 2>/dev/null
	daemon=""
	tail -n 5 "$out/$name-daemon.log" | cut -c1-260 | tee -a "$log"
}

parts()
{
	local host=(EPF_SHIM_HOST_HEAP=yes CUDA_MODULE_LOADING=LAZY) kernel=(EPF_EMU_GPU_COPY=kernel) unordered=(EPF_EMU_ORDER=unordered EPF_EMU_REORDER=0.3 EPF_EMU_DUPLICATE=0.1)
	if wanted dry-run; then
		start dry-run 20 "$fabric" shim --dry-run --module "$module" -- python3
		cat "$out/dry-run.log"
		[ "$rc" = 0 ] || failed=1
		result dry-run "exit $rc; $(grep -ao '[0-9]* symbols of NVSHMEM, all served' "$out/dry-run.log")"
	fi
	if wanted control; then
		start control 45 env NVSHMEM_DISABLE_P2P=1 python3 "$deepep/tests/test_low_latency.py" --num-processes "$ranks" --num-tokens 16 --hidden 2048 \
			--num-topk 4 --num-experts 16 --disable-nvlink
		[ "$rc" != 0 ] || failed=1
		result control "without the shim: exit $rc, hung $late; $(error_of control)"
	fi
	stages stages-ours 60
	stages stages-deepep 80 -- --deepep "$deepep"
	stages stages-deepep-kernel 80 "${kernel[@]}" -- --deepep "$deepep"
	stages stages-ours-kernel 60 "${kernel[@]}"
	ll host-small 90 counts 16 2048 4 16 "${host[@]}"
	ll gpu-small 90 counts 16 2048 4 16
	ll host 120 counts 128 7168 8 256 "${host[@]}"
	ll gpu 120 counts 128 7168 8 256
	ll kernel-small 90 counts 16 2048 4 16 "${kernel[@]}"
	ll kernel 120 counts 128 7168 8 256 "${kernel[@]}"
	ll gpu-288 120 counts 128 7168 8 288
	ll gpu-264 120 counts 128 7168 8 264
	ll nvlink 90 nvlink 128 7168 8 256
	ll gpu-reorder 150 counts 128 7168 8 256 "${unordered[@]}"
	ll host-reorder 150 counts 128 7168 8 256 "${host[@]}" "${unordered[@]}"
	ll gpu-lazy 60 counts 128 7168 8 256 CUDA_MODULE_LOADING=LAZY
	ll host-264 120 counts 128 7168 8 264 "${host[@]}"
	ll kernel-288 120 counts 128 7168 8 288 "${kernel[@]}"
	if [ "$list" = 1 ] || [ -f "$build/shim-hooks/libepf-deepep.so" ]; then
		[ "$list" = 1 ] || echo "$build/shim-hooks/libepf-deepep.so" >"$out/library"
		ll hooks-reorder 120 counts 128 7168 8 256 "${host[@]}" "${unordered[@]}"
		ll broken-order 45 fail 128 7168 8 256 "${host[@]}" "${unordered[@]}" SHIM_TEST_HOOK=1 EPF_EMU_DUPLICATE=0
		many broken-order-10 30 fail 10 4 16 2048 4 16 "${host[@]}" "${unordered[@]}" SHIM_TEST_HOOK=1 EPF_EMU_DUPLICATE=0
		many order-3 60 pass 3 3 16 2048 4 16 "${host[@]}" "${unordered[@]}" EPF_EMU_DUPLICATE=0
		ll broken-order-gpu 45 fail 128 7168 8 256 "${unordered[@]}" SHIM_TEST_HOOK=1 EPF_EMU_DUPLICATE=0
		[ "$list" = 1 ] || rm -f "$out/library"
	fi
	if wanted symmetric; then
		start symmetric 100 env "${common[@]}" "$fabric" shim --module "$module" -- python3 "$here/shim_torch.py" "$ranks"
		grep -aE 'peers mapped|early doorbells|^symmetric|EPF-' "$out/symmetric.log" | cut -c1-260 | tee -a "$log"
		[ "$rc" = 0 ] || failed=1
		result symmetric "exit $rc, hung $late; $(grep -a '^symmetric' "$out/symmetric.log" | tail -n 1) $([ "$rc" = 0 ] || error_of symmetric)"
	fi
	# Last, because a process killed under MPS ends MPS. With --one-gpu all parts run under it.
	[ "$one" = 1 ] || with_mps on
	with_daemon 256 daemon 150
	with_daemon 256 daemon-kernel 150 "${kernel[@]}"
	with_daemon 288 daemon-288 150
	[ "$one" = 1 ] || with_mps off
}

if [ "$list" = 0 ]; then
	begin test_low_latency.py
	[ -n "$ranks" ] || ranks=$((one ? 2 * gpus : gpus < 8 ? gpus : 8))
	common=("${base[@]}" EPF_CORE_IDLE=spin NVSHMEM_DISABLE_NVLS=1 NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1)
	if [ "$one" = 1 ]; then
		common+=(ONE_GPU=1 "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=$((90 * gpus / ranks))")
		mps_lives || nvidia-cuda-mps-control -d
		mps=1
		say "# $ranks ranks on $gpus GPU(s), under MPS; process groups by gloo"
	fi
	machine "$ranks ranks"
fi
parts
end
