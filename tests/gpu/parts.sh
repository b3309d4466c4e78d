# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the suites of DeepEP on GPUs (shim.sh, shim_internode.sh): parts with a deadline each, a table of what they found, MPS, and what is needed of
# the machine. The suite sets out, build, deepep, only, list and suite (a few words); it reads failed, rc, late, took. Optional: part_width (of names in the
# table), begin_before (seconds after which no part begins), ends_early (text in a part's log with which it is over).
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

# result NAME TEXT: a line of the table
result()
{
	table+=("$(printf '%-*s %s' "${part_width:-16}" "$1" "$2")")
	say "## $1: $2"
}

# wanted NAME: whether --only names it, and there is time; --list only names
# shellcheck disable=SC2154 # the suite's
wanted()
{
	[[ $1 =~ $only ]] || return 1
	[ "$list" = 0 ] || { echo "$1" && return 1; }
	[ "$SECONDS" -lt "${begin_before:-1000000}" ] || { result "$1" "left out: past --seconds $begin_before" && return 1; }
}

# Whoever ends a suite early leaves nothing behind. (Called by a trap only.)
# shellcheck disable=SC2317
leave_nothing()
{
	[ -z "$running" ] || kill -KILL -- "-$running" 2>/dev/null
	[ "$mps" = 0 ] || end_mps
}

# Whether an MPS daemon or server lives here (a dead one that nobody has waited for is none).
mps_lives()
{
	pgrep -r R,S,D -x nvidia-cuda-mps >/dev/null
}

# Ends MPS, and waits until it has ended: whoever starts meanwhile would be its client still.
end_mps()
{
	mps=0
	echo quit | timeout 20 nvidia-cuda-mps-control >/dev/null 2>&1
	for _ in $(seq 50); do
		mps_lives || return 0
		sleep 0.2
	done
	say "# an MPS daemon does not end"
}

# with_mps on|off: processes of the parts that follow use one GPU side by side, or take turns
with_mps()
{
	[ "$list" = 0 ] || return 0
	if [ "$1" = on ] && [ "$mps" = 0 ]; then
		nvidia-cuda-mps-control -d && mps=1
	elif [ "$1" = off ] && [ "$mps" = 1 ]; then
		end_mps
	fi
}

# bounded SECONDS LOG COMMAND...: runs it in its own process group. When it is late, on_late is called where the suite has one, and it is killed whole. rc:
# its status, 124 when it was late; late: whether it was; took: seconds
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

# begin TEST: GPUs, DeepEP with that test of its own, the build; else the suite ends here, with 77 where it cannot run. Sets out, log, deepep, module, build,
# fabric, gpus, nvshmem, and base, the settings that every part has
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
	# The module finds NVSHMEM's library, which it is linked with, wherever it was built.
	nvshmem=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nvshmem").submodule_search_locations[0])' 2>/dev/null)
	# shellcheck disable=SC2154 # the suite's
	base=(PYTHONUNBUFFERED=1 "PYTHONPATH=$deepep:$here/onegpu" "LD_LIBRARY_PATH=${nvshmem:-/nonexistent}/lib:$build/lib:${LD_LIBRARY_PATH:-}" EPF_LOG=note
		EPF_NIC=emu NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo CUDA_MODULE_LOADING=EAGER)
	export "${base[@]:0:3}"
}

# machine TEXT: the first lines of the table: what runs here, on what
machine()
{
	say "# $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, $1"
	say "# $(python3 --version), torch $(python3 -c 'import torch; print(torch.__version__)'), NVSHMEM in ${nvshmem:-not found}, sha256 $(sha256sum "$module" | cut -c1-64) ${module##*/}"
}

# The table, and how it all ended.
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
