# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the suites of DeepEP on GPUs (shim.sh, shim_internode.sh): parts with deadlines, a table of results, MPS, and checks of the machine. The suite
# sets out, build, deepep, only, list and suite (a few words) and reads failed, rc, late, took. Optional: part_width (of names in the table), begin_before
# (seconds after which no part starts), ends_early (text in a part's log that ends it).
log=/dev/null
failed=0
mps=0
running=""
table=()
rc=0 late=0 took=0

say()
{
	echo "$*" | tee -a "$log"
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

# Ends all processes if the suite is interrupted. (Called by a trap only.)
# shellcheck disable=SC2317
leave_nothing()
{
	[ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null
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
	mkdir -p "$out" || exit 1
	out=$(cd "$out" && pwd)
	log=$out/table.txt
	: >"$log"
	if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
		say "no GPU here (nvidia-smi lists none): ${suite:?} is skipped"
		exit 77
	fi
	module=$(find "${deepep:-/nonexistent}" -maxdepth 1 -name 'deep_ep_cpp*.so' 2>/dev/null | head -n 1)
	if [ -z "$module" ] || [ ! -f "$deepep/tests/$1" ]; then
		say "no DeepEP in '$deepep' (deep_ep_cpp*.so, deep_ep, tests): $suite is skipped"
		exit 77
	fi
	deepep=$(cd "$deepep" && pwd)
	module=$deepep/${module##*/}
	build=$(cd "$build" && pwd) || exit 1
	fabric=$build/tools/ep-fabric
	[ -x "$fabric" ] || fabric=$build/ep-fabric
	[ -x "$fabric" ] || { say "no ep-fabric in $build" && exit 1; }
	# shellcheck disable=SC2034 # the suite's
	gpus=$(nvidia-smi -L | wc -l)
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
	say "# $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $1"
	say "# $(python3 --version), torch $(python3 -c 'import torch; print(torch.__version__)'), NVSHMEM in ${nvshmem:-not found}, sha256 $(sha256sum "$module" | cut -c1-64) ${module##*/}"
}

# Prints the table and the verdict.
end()
{
	local line

	if [ "$list" = 0 ]; then
		say "# results"
		for line in ${table[@]+"${table[@]}"}; do
			say "$line"
		done
		say "# $([ "$failed" = 0 ] && echo "all right" || echo "SOMETHING WAS WRONG"); logs: $out"
	fi
	exit "$failed"
}
