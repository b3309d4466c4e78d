# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the suites of this folder: parts with deadlines, a table of results, MPS, a daemon, what the build holds, and checks of the machine. The suite
# sets out, build, only and suite (a few words), and reads failed, rc, late, took, gpus. Optional: list (1: print the names of the parts), part_width (of names
# in the table), begin_before (seconds after which no part starts), ends_early (text in a part's log that ends it), shown and last (part), root
# (take_ranks), deepep (begin).
list=${list:-0}
log=/dev/null
failed=0
mps=0
daemon=""
running=""
table=()
rc=0 late=0 took=0

say()
{
	echo "$*" | tee -a "$log"
}

# need_gpu HINT: sets gpus; without any it says so, with the hint, and exits with 77
need_gpu()
{
	if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
		say "no GPU here (nvidia-smi lists none): ${suite:?} is skipped${1:+; $1}"
		exit 77
	fi
	gpus=$(nvidia-smi -L | wc -l)
}

# open_table: makes $out, with the table that say() writes
open_table()
{
	mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
	log=$out/table.txt
	: >"$log"
	trap leave_nothing EXIT
}

# hardware: one line
hardware()
{
	echo "$(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs"
}

# find_built NAME: prints where the build has it, one folder or a build tree
find_built()
{
	local at
	for at in "$build"{,/fabric,/kernels,/tools,/tools/nccl,/tools/nixl,/bench}; do
		[ -e "$at/$1" ] && realpath -s "$at/$1" && return 0
	done
	return 1
}

# find_libraries: those that deep_ep loads, and what they need beside them
find_libraries()
{
	if ! EPF_LIBRARY=$(find_built libepf.so.0) || ! EPF_LL_LIBRARY=$(find_built libepf-ll.so.0); then
		say "no libepf.so.0 and libepf-ll.so.0 in '$build': --build"
		exit 1
	fi
	LD_LIBRARY_PATH=${EPF_LIBRARY%/*}:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	export EPF_LIBRARY EPF_LL_LIBRARY LD_LIBRARY_PATH PYTHONUNBUFFERED=1
}

# take_ranks: as many ranks as GPUs, 2 on one, unless $ranks says how many. More than GPUs share them under MPS
# shellcheck disable=SC2154 # the suite's root
take_ranks()
{
	ranks=${ranks:-$((gpus > 1 ? gpus : 2))}
	say "# $(hardware), $ranks ranks"
	if [ "$ranks" -gt "$gpus" ]; then
		say "# $ranks ranks share $gpus GPU: 'NVLink' is memory of the same GPU, process groups are gloo's, times mean nothing"
		export ONE_GPU=1 PYTHONPATH=$root/tests/gpu/onegpu:$PYTHONPATH
		with_mps on
	fi
}

# start_daemon NAME: sets daemon, and EPF_SERVICE for the parts that follow; without ep-fabric in the build, neither
start_daemon()
{
	local program
	program=$(find_built ep-fabric) || return 0
	mkdir -p "$out/run"
	"$program" run --instance="$1" --runtime-dir="$out/run" --stats-dir="$out/run" >"$out/daemon.log" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do [ -S "$out/run/$1.sock" ] || sleep 0.1; done
	[ -S "$out/run/$1.sock" ] || say "# the daemon does not serve: $(tail -n 1 "$out/daemon.log")"
	export EPF_SERVICE=$out/run/$1.sock
}

stop_daemon()
{
	[ -n "$daemon" ] || return 0
	unset EPF_SERVICE
	kill "$daemon" && wait "$daemon"
	daemon=""
}

# settings_of SETTING... [-- OPTION...]: sets the arrays settings and options
# shellcheck disable=SC2034 # the suite reads them
settings_of()
{
	settings=() options=()
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		settings+=("$1")
		shift
	done
	[ $# -eq 0 ] || shift
	options=("$@")
}

# result NAME TEXT: a line of the table
result()
{
	table+=("$(printf '%-*s %s' "${part_width:-16}" "$1" "$2")")
	say "## $1: $2"
}

# wanted NAME: whether --only matches it and there is time; with --list prints the name
# shellcheck disable=SC2154 # the suite's
wanted()
{
	[[ $1 =~ $only ]] || return 1
	[ "$list" = 0 ] || { echo "$1" && return 1; }
	[ "$SECONDS" -lt "${begin_before:-1000000}" ] || { result "$1" "skipped: past --seconds $begin_before" && return 1; }
}

# part NAME LIMIT COMMAND...: runs it; of its output the lines that match $shown go to the table, and when it is wrong its last lines ($last, 40)
part()
{
	local name=$1 bound=$2
	shift 2
	wanted "$name" || return 0
	bounded "$bound" "$out/$name.log" "$@"
	case $rc in
	0)
		result "$name" "ok, $took s"
		grep -a "${shown:-^# }" "$out/$name.log" | cut -c1-220 | sed 's/^/    /' | tee -a "$log"
		;;
	77) result "$name" "skipped: $(tail -n 1 "$out/$name.log")" ;;
	*)
		failed=1
		result "$name" "WRONG: status $rc after $took s"
		tail -n "${last:-40}" "$out/$name.log" | cut -c1-300 | sed 's/^/    /' | tee -a "$log"
		;;
	esac
}

# Ends all processes if the suite is interrupted. (Called by a trap only.)
# shellcheck disable=SC2317
leave_nothing()
{
	[ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null
	[ -z "$daemon" ] || kill "$daemon" 2>/dev/null
	[ "$mps" = 0 ] || end_mps
}

# Whether an MPS daemon or server runs here (zombies do not count).
mps_lives()
{
	pgrep -r R,S,D -x nvidia-cuda-mps >/dev/null
}

# Ends MPS and waits until it has exited: processes started earlier would still be its clients.
end_mps()
{
	mps=0
	echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
	for _ in $(seq 50); do
		mps_lives || return 0
		sleep 0.2
	done
	say "# an MPS daemon does not exit"
}

# with_mps on|off: processes of later parts share a GPU concurrently, or by time slices
with_mps()
{
	[ "$list" = 0 ] || return 0
	if [ "$1" = on ] && [ "$mps" = 0 ]; then
		nvidia-cuda-mps-control -d && mps=1
	elif [ "$1" = off ] && [ "$mps" = 1 ]; then
		end_mps
	fi
}

# bounded SECONDS LOG COMMAND...: runs it in its own process group. Past the limit, calls the suite's on_late, if any, and kills the group. Sets rc
# (its status, 124 if late), late and took (seconds).
# shellcheck disable=SC2034 # the suite reads rc
bounded()
{
	local limit=$1 into=$2 pid t=0
	shift 2
	setsid "$@" >"$into" 2>&1 </dev/null &
	pid=$!
	running=$pid
	while kill -0 "$pid" 2>/dev/null && [ "$t" -lt "$((limit * 5))" ]; do
		sleep 0.2
		t=$((t + 1))
		[ -z "${ends_early:-}" ] || [ $((t % 10)) != 0 ] || ! grep -qa "$ends_early" "$into" || limit=$((t / 5))
	done
	late=0
	if kill -0 "$pid" 2>/dev/null; then
		late=1
		! declare -F on_late >/dev/null || on_late
	fi
	# First a signal that a suite within this one passes on to its own parts.
	if [ "$late" = 1 ]; then
		kill -TERM -- "-$pid" 2>/dev/null
		for _ in $(seq 20); do kill -0 "$pid" 2>/dev/null && sleep 0.1; done
	fi
	kill -KILL -- "-$pid" 2>/dev/null
	wait "$pid" 2>/dev/null
	rc=$?
	[ "$late" = 0 ] || rc=124
	took=$((t / 5))
	running=""
}

# begin TEST: finds GPUs, DeepEP with that test, and the build; otherwise exits, with 77 if the suite cannot run here. Sets out, log, deepep, module,
# build, fabric, gpus, nvshmem, and base (the settings of every part).
begin()
{
	open_table
	need_gpu ""
	module=$(find "${deepep:-/nonexistent}" -maxdepth 1 -name 'deep_ep_cpp*.so' 2>/dev/null | head -n 1)
	if [ -z "$module" ] || [ ! -f "$deepep/tests/$1" ]; then
		say "no DeepEP in '$deepep' (deep_ep_cpp*.so, deep_ep, tests): $suite is skipped"
		exit 77
	fi
	deepep=$(cd "$deepep" && pwd)
	module=$deepep/${module##*/}
	build=$(cd "$build" && pwd) || exit 1
	# shellcheck disable=SC2034 # the suite's
	fabric=$(find_built ep-fabric) || { say "no ep-fabric in '$build': --build" && exit 1; }
	# The module needs NVSHMEM's library, which it is linked with.
	nvshmem=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nvshmem").submodule_search_locations[0])' 2>/dev/null)
	# shellcheck disable=SC2154 # the suite's
	base=(PYTHONUNBUFFERED=1 "PYTHONPATH=$deepep:$here/onegpu" "LD_LIBRARY_PATH=${nvshmem:-/nonexistent}/lib:$build/lib:${LD_LIBRARY_PATH:-}" EPF_LOG=note
		EPF_NIC=emu NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo CUDA_MODULE_LOADING=EAGER)
	export "${base[@]:0:3}"
}

# machine TEXT: prints the head of the table: software and hardware
machine()
{
	say "# $(hardware), $1"
	say "# $(python3 --version), torch $(python3 -c 'import torch; print(torch.__version__)'), NVSHMEM in ${nvshmem:-not found}, sha256 $(sha256sum "$module" | cut -c1-64) ${module##*/}"
}

# Prints the table and the verdict.
end()
{
	local line

	if [ "$list" = 0 ]; then
		[ ${#table[@]} -gt 0 ] || { say "# no part ran: --only '$only' matches none" && exit 77; }
		say "# results"
		for line in ${table[@]+"${table[@]}"}; do
			say "$line"
		done
		say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); logs: $out"
	fi
	exit "$failed"
}
