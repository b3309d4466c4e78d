#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The shim (docs/reference/shim.md) with DeepEP's normal mode: two "nodes" of eight ranks, 16 processes on the GPUs of this machine (one is enough).
#
#   tests/gpu/shim_internode.sh --deepep DIR [--build DIR] [--out DIR] [--only REGEX] [--seconds N] [--limit N] [--list]
#
# --deepep   a folder with deep_ep_cpp*.so, the package deep_ep, and DeepEP's tests/, all of v1.2.1, built with NVSHMEM 3.4.5
# --build    a build tree, or a folder with ep-fabric and shim/libepf-deepep.so (build), for "times-" libepf.so.0 and libepf-ll.so.0; optional shim-hooks/libepf-deepep.so: the same,
#            built with -Dtest_hooks=true
# --out      where logs and the table go (./gpu-results/shim-internode)
# --only     runs the parts whose name matches; --list names them all
# --seconds  parts that would start later than this are skipped, and named (600)
# --limit    upper bound of every part's time limit
#
# Programs: DeepEP's test_internode.py, unmodified, with 24 multiprocessors per rank; and shim_internode.py, which drives the same module with 4 per
# rank and compares every row with the seeds, and in parts "times-" measures our deep_ep beside it. Their processes share a GPU by time slices, or under MPS, where all waiting grids must fit at once (8
# ranks with 4 do, with 24 do not). Also DeepEP's test_low_latency.py with more ranks than GPUs. Process groups are gloo's, device numbers count
# modulo the number of GPUs: onegpu/.
#
# Each part has a deadline and is killed with all its processes. Exit 0: all parts that ran did as they should; 77: no GPU or no DeepEP.
set -u
here=$(cd "$(dirname "$0")" && pwd)
build=build deepep="" out=$PWD/gpu-results/shim-internode only=. list=0 longest=600 begin_before=600
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--out) out=$2 && shift ;;
	--only) only=$2 && shift ;;
	--seconds) begin_before=$2 && shift ;;
	--limit) longest=$2 && shift ;;
	--list) list=1 ;;
	*) sed -n '/^#   tests/,/^# --limit/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$here/parts.sh"
# shellcheck disable=SC2034 # parts.sh reads it
suite="DeepEP's normal mode under the shim"
library=()
helper=() # --daemon: ep-fabric shim starts a daemon for the program
ours=0    # whether our deep_ep runs in place of DeepEP's under the shim
trap leave_nothing EXIT
trap 'exit 1' TERM INT

# (Called by bounded.)
# shellcheck disable=SC2317
on_late()
{
	bash -c "$INTERNODE_LOOK"
}

# harness NAME SECONDS pass|fail SETTING... [-- OPTION...]
harness()
{
	local name=$1 limit=$2 want=$3 settings options under
	shift 3
	wanted "$name" || return 0
	under=("$fabric" shim ${library[@]+"${library[@]}"} ${helper[@]+"${helper[@]}"} --module "$module" --)
	[ "$ours" = 0 ] || under=(env "PYTHONPATH=$here/../../tools/python:$here/onegpu" "EPF_LIBRARY=$(find_built libepf.so.0)" "EPF_LL_LIBRARY=$(find_built libepf-ll.so.0)")
	settings_of "$@"
	set -- ${options[@]+"${options[@]}"}
	[ "$limit" -le "$longest" ] || limit=$longest
	look "$name"
	bounded "$((limit + 30))" "$out/$name.log" env "${common[@]}" "XDG_RUNTIME_DIR=$out/run-$name" ${settings[@]+"${settings[@]}"} \
		"${under[@]}" python3 "$here/shim_internode.py" --out "$out/$name" --limit "$limit" "$@"
	tail -n 12 "$out/$name.log" | cut -c1-300 | tee -a "$log"
	rm -rf "$out/run-$name"
	# A client killed under MPS ends its server.
	[ "$rc" = 0 ] || [ "$mps" = 0 ] || { with_mps off && sleep 2 && with_mps on; }
	if [ "$want" = fail ]; then
		[ "$rc" != 0 ] || failed=1
		result "$name" "$([ "$rc" != 0 ] && echo "failed, as it must" || echo "PASSED, but must fail"); copies stalled at $(grep -la 'EPF-472' "$out/$name"/rank-*.log | wc -l) ranks; $(tail -n 1 "$out/$name.log" | cut -c1-160)"
		return
	fi
	[ "$rc" = 0 ] || failed=1
	result "$name" "$([ "$rc" = 0 ] && echo passed || echo "FAILED, status $rc") in $took s; $(tail -n 1 "$out/$name.log" | cut -c1-160)"
}

# look NAME: writes a script that inspects a stalled job
look()
{
	mkdir -p "$out/run-$1" "$out/$1"
	cat >"$out/$1/look.sh" <<-END
		export XDG_RUNTIME_DIR=$out/run-$1
		timeout 8 $fabric why >$out/$1.why 2>&1
		timeout 8 $fabric stats >$out/$1.stats 2>&1
	END
	export INTERNODE_LOOK="bash $out/$1/look.sh"
}

# own NAME SECONDS SETTING...: DeepEP's test, its 32 cases with seed 0, then an orderly exit instead of the next seed (onegpu/sitecustomize.py)
own()
{
	local name=$1 limit=$2 settings=("${@:3}") cases said
	wanted "$name" || return 0
	[ "$limit" -le "$longest" ] || limit=$longest
	look "$name"
	# shellcheck disable=SC2016
	bounded "$limit" "$out/$name.log" env "${common[@]}" "XDG_RUNTIME_DIR=$out/run-$name" ONE_GPU=1 ONE_GPU_RUNS=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=8361 \
		${settings[@]+"${settings[@]}"} bash -c '
		for node in 0 1; do
			RANK=$node "$@" >"$0-$node.log" 2>&1 &
			pids="${pids-} $!"
		done
		bad=0
		for p in $pids; do wait "$p" || bad=1; done
		exit $bad' "$out/$name/node" "$fabric" shim ${helper[@]+"${helper[@]}"} --module "$module" -- python3 "$deepep/tests/test_internode.py" --pressure-test-mode 1 \
		--num-tokens 64 --hidden 2048 --num-experts 64
	cases=$(grep -aoc ' passed' "$out/$name/node-0.log")
	cat "$out/$name"/node-*.log | grep -aE 'peers mapped|early doorbells|EPF-|rror' | sort | uniq -c | sort -rn | cut -c1-260 | head -n 8 | tee -a "$log"
	tail -n 2 "$out/$name/node-0.log" | cut -c1-200 | tee -a "$log"
	rm -rf "$out/run-$name"
	said=""
	[ "$rc" != 0 ] || said=$(timeout 60 python3 "$here/shim_internode.py" --own "$out/$name"/node-*.log --tokens 64 --hidden 2048 --experts 64 --sms 24 2>&1 | tail -n 1)
	case $said in "bytes and barrier requests of 16 "*) ;; *) failed=1 ;; esac
	result "$name" "$([ "$rc" = 0 ] && echo passed || echo "FAILED, status $rc") in $took s; $cases cases of its own passed at rank 0; 0 peers mapped at $(cat "$out/$name"/node-*.log | grep -ac ' 0 peers mapped'); $said"
}

# low_latency NAME SECONDS RANKS SETTING...: DeepEP's low-latency test with more ranks than GPUs, NVLink off; counts against its seeds (shim_routing.py)
low_latency()
{
	local name=$1 limit=$2 ranks=$3 said="counts as the seeds say" r puts bytes adds
	shift 3
	wanted "$name" || return 0
	[ "$limit" -le "$longest" ] || limit=$longest
	look "$name"
	bounded "$limit" "$out/$name.log" env "${common[@]}" "XDG_RUNTIME_DIR=$out/run-$name" ONE_GPU=1 "$@" "$fabric" shim ${helper[@]+"${helper[@]}"} \
		--module "$module" -- \
		python3 "$deepep/tests/test_low_latency.py" --disable-nvlink --num-processes "$ranks" --num-tokens 16 --hidden 2048 --num-topk 4 --num-experts 16
	timeout 60 python3 "$here/shim_routing.py" "$ranks" 16 2048 4 16 >"$out/$name/routing.txt" 2>&1 || said="COUNTS not known: $(tail -n 1 "$out/$name/routing.txt")"
	while [ "${said:0:6}" != COUNTS ] && read -r _ r _ puts _ bytes _ adds; do
		grep -qaE "rank $r: $puts puts of $bytes bytes, 0 inline puts, $adds adds" "$out/$name.log" || said="COUNTS DIFFER"
	done <"$out/$name/routing.txt"
	grep -aE 'peers mapped|early doorbells|EPF-|rror' "$out/$name.log" | cut -c1-260 | tail -n 8 | tee -a "$log"
	rm -rf "$out/run-$name"
	case $said in COUNTS*) rc=1 ;; esac
	[ "$rc" = 0 ] || failed=1
	[ "$rc" = 0 ] || [ "$mps" = 0 ] || { with_mps off && sleep 2 && with_mps on; }
	result "$name" "$([ "$rc" = 0 ] && echo passed || echo "FAILED, status $rc") in $took s; $said; 0 peers mapped at $(grep -ac ' 0 peers mapped' "$out/$name.log") of $ranks"
}

# with_daemons NAME HOW_MANY SECONDS SETTING... [-- OPTION...]: a harness part whose ranks are served by one daemon, or by one per node. The daemons'
# processes then copy and add.
with_daemons()
{
	local name=$1 many=$2 limit=$3 i pids=() sockets=() settings options
	shift 3
	wanted "$name" || return 0
	settings_of "$@"
	set -- ${options[@]+"${options[@]}"}
	mkdir -p "$out/d" "$out/$name"
	for ((i = 0; i < many; i++)); do
		rm -f "$out/d/node$i.sock"
		env "${common[@]}" ${settings[@]+"${settings[@]}"} "$fabric" run --instance "node$i" --runtime-dir "$out/d" --stats-dir "$out/d" \
			--nic=emu >"$out/$name-daemon$i.log" 2>&1 </dev/null &
		pids+=($!)
		sockets+=("$out/d/node$i.sock")
	done
	for _ in $(seq 100); do
		[ ! -S "${sockets[-1]}" ] || break
		sleep 0.1
	done
	harness "$name" "$limit" pass ${settings[@]+"${settings[@]}"} -- --services "${sockets[@]}" "$@"
	kill "${pids[@]}" 2>/dev/null
	sleep 1
	kill -KILL "${pids[@]}" 2>/dev/null
	wait "${pids[@]}" 2>/dev/null
	tail -qn 2 "$out/$name"-daemon*.log | cut -c1-260 | tee -a "$log"
}

# Our calls and DeepEP's on the same software NIC: one daemon copies for all ranks. Alternating.
times()
{
	local i
	for i in 1 2 3; do
		ours=1
		with_daemons "times-ours-$i" 1 60 -- --ours "$@"
		ours=0
		with_daemons "times-deepep-$i" 1 60 NVSHMEM_SYMMETRIC_SIZE=1200M -- "$@"
	done
	if [ "$list" = 0 ] && [ -e "$out/times-deepep-1.log" ]; then
		python3 "$here/shim_internode.py" --ratios --out "$out" | tee -a "$log"
	fi
}

parts()
{
	local host=(EPF_SHIM_HOST_HEAP=yes CUDA_MODULE_LOADING=LAZY) unordered=(EPF_EMU_ORDER=unordered EPF_EMU_REORDER=0.3 EPF_EMU_DUPLICATE=0.1)
	local big=(NVSHMEM_SYMMETRIC_SIZE=1200M)
	harness turns-host 70 pass "${host[@]}"
	own own-turns-host 110 "${host[@]}" "${big[@]}"
	low_latency ll4-turns-host 60 4 "${host[@]}"
	low_latency ll4-turns-gpu 90 4
	with_mps on
	harness mps-host 60 pass "${host[@]}"
	harness mps-host-one-world 60 pass "${host[@]}" -- --one-world
	harness mps-gpu 100 pass -- --seeds 4
	helper=(--daemon)
	harness mps-gpu-helper 60 pass -- --seeds 4
	helper=()
	with_daemons mps-gpu-daemon 1 60 -- --seeds 4
	with_daemons mps-gpu-daemons 2 60 -- --seeds 4
	times --seeds 1 --rounds 15 --tokens 512 --hidden 7168 --room 8
	harness mps-gpu-kernel 60 pass EPF_EMU_GPU_COPY=kernel -- --seeds 4
	harness mps-host-reorder 60 pass "${host[@]}" "${unordered[@]}"
	harness mps-gpu-reorder 100 pass "${unordered[@]}"
	low_latency ll4-mps-host 60 4 "${host[@]}"
	low_latency ll4-mps-gpu 60 4
	low_latency ll4-mps-gpu-queues 60 4 CUDA_DEVICE_MAX_CONNECTIONS=32
	helper=(--daemon)
	low_latency ll4-mps-gpu-helper 60 4
	helper=()
	if [ "$list" = 1 ] || [ -f "$build/shim-hooks/libepf-deepep.so" ]; then
		library=(--library "$build/shim-hooks/libepf-deepep.so")
		harness mps-host-broken 20 fail "${host[@]}" "${unordered[@]}" SHIM_TEST_HOOK=1 EPF_EMU_DUPLICATE=0
		library=()
	fi
	with_mps off
	harness turns-gpu 100 pass
	own own-turns-gpu 200 "${big[@]}"
	helper=(--daemon)
	own own-turns-gpu-helper 200 "${big[@]}"
	helper=()
}

if [ "$list" = 0 ]; then
	begin test_internode.py
	# No busy waiting: 16 ranks have two threads each. Timeouts are long because a kernel may wait for its time slice.
	common=("${base[@]}" EPF_CORE_IDLE=sleep EPF_CORE_BIND=any EPF_SHIM_NO_P2P=yes NVSHMEM_SYMMETRIC_SIZE=128M EPF_EMU_RETRY_TIMEOUT=60s EPF_EMU_STALL_TIMEOUT=60s
		EPF_EMU_PACKETS=512 EPF_WAIT_TIMEOUT=60s GLOO_SOCKET_IFNAME=lo)
	# Parts by time slices need the GPU without MPS, and an MPS that has lost a client refuses the next.
	mps_lives && say "# an MPS daemon was already running and is ended" && end_mps
	machine "16 ranks"
fi
parts
end
