#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The stage hosts: jobs on hosts made of namespaces (bed.sh), with the TCP NIC. Usage: jobs.sh BUILD LOGS [CASE...], with BUILD a build tree with ep-bench and
# ep-fabric. Prints "ok CASE", "FAIL CASE: why" or "skip CASE: why", and results as "# " lines. Exit status 77 with a reason as the last line: no hosts here.
# HOSTS_AT_ONCE: cases at a time (3).
#
# No case is judged by its time. Order is forced: a fault comes after a line that the job has printed, and a job that ends before it is a failure. Times are
# printed. What bounds a case are the product's own deadlines (settings below) and LIMIT, against hanging.
# shellcheck disable=SC2317 # run_case calls functions by name
set -u
# shellcheck source=tests/hosts/bed.sh
. "$(dirname "$(readlink -f "$0")")/bed.sh"

BUILD=$(readlink -f "$1")
LOGS=$(readlink -f "$2")
shift 2
BED_KEEP="$BUILD $LOGS"
BED_PATH=$BUILD/tools:$BUILD/bench
LIMIT=$((100 * ${LIMIT_TIMES:-1}))
AT_ONCE=${HOSTS_AT_ONCE:-3}
ONLY=("$@")

# shellcheck source=tests/hosts/job_kit.sh
. "$BED_HERE/job_kit.sh"
# shellcheck source=tests/hosts/cases_p2p.sh
. "$BED_HERE/cases_p2p.sh"
# shellcheck source=tests/hosts/cases_jobs.sh
. "$BED_HERE/cases_jobs.sh"
# shellcheck source=tests/hosts/cases_launch.sh
. "$BED_HERE/cases_launch.sh"
# shellcheck source=tests/hosts/cases_faults.sh
. "$BED_HERE/cases_faults.sh"
# shellcheck source=tests/hosts/cases_apart.sh
. "$BED_HERE/cases_apart.sh"
# shellcheck source=tests/hosts/cases_guide.sh
. "$BED_HERE/cases_guide.sh"

# ---- running cases ---------------------------------------------------------------------------

wanted()
{
	[ ${#ONLY[@]} = 0 ] || [[ " ${ONLY[*]} " == *" $1 "* ]]
}

# run_case NAME FUNCTION HOSTS CABLES ARGUMENT...: on fresh hosts, beside up to AT_ONCE - 1 other cases: most of a case is waiting
run_case()
{
	wanted "$1" || return 0
	[ "$(jobs -rp | wc -l)" -lt "$AT_ONCE" ] || wait -n
	case_on_hosts "$@" &
}

# Runs in a subshell. Its output goes to a file, so that lines of concurrent cases do not mix.
case_on_hosts()
{
	local name=$1 function=$2 hosts=$3 cables=$4 rc=0 begin
	shift 4
	OUT=$LOGS/hosts-$name
	rm -rf "$OUT" && mkdir -p "$OUT" || exit 1
	begin=$(now_ms)
	ENVIRONMENT=()
	BED_KEEP="$BUILD $LOGS"
	trap bed_end EXIT
	trap 'exit 143' TERM
	bed_begin "$hosts" "$cables" >"$OUT/bed" 2>&1 && secrets && HOSTS=$(IFS=, && echo "${BED_HOSTS[*]}") && "$function" "$@" >"$OUT/case" 2>&1 || rc=$?
	bed_end || { echo "stopped processes are left:$BED_LEFT" >>"$OUT/case" && rc=1; }
	said "$name" "$rc" $(($(now_ms) - begin)) >"$OUT/said"
	cat "$OUT/said"
}

# said NAME STATUS MS: what is reported of a case
said()
{
	grep -h '^# ' "$OUT/case" 2>/dev/null
	case $2 in
	0) echo "ok $1" ;;
	77) echo "skip $1: $(tail -n 1 "$OUT/case")" ;;
	*)
		tail -n 30 "$OUT"/bed "$OUT"/case 2>/dev/null | sed 's/^/    | /'
		echo "FAIL $1: $(grep -v '^#' "$OUT/case" | tail -n 1); see $OUT"
		;;
	esac
	printf '# %s: %d ms\n' "$1" "$3"
}

# Ends the running cases and their hosts.
end_cases()
{
	local pids
	mapfile -t pids < <(jobs -p)
	[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null
	wait
}

now_ms()
{
	local t=${EPOCHREALTIME//[.,]/}
	echo $((t / 1000))
}

# ---- all of them -----------------------------------------------------------------------------

why=$(bed_why_not)
if [ -n "$why" ]; then
	echo "$why"
	exit 77
fi
trap end_cases EXIT
trap 'exit 143' TERM
run_case moe-2-embedded embedded 2 1
run_case moe-3-embedded embedded 3 1
run_case moe-2-daemons with_daemons 2 1
run_case moe-3-daemons with_daemons 3 1
run_case transfers transfers 2 2
run_case target-killed target_vanishes 2 1 killed
run_case target-unplugged target_vanishes 2 1 unplugged
run_case connections connections_of_daemons 2 2
run_case launchers launchers 2 1
run_case torchrun torchrun_itself 2 1
run_case mpirun mpirun_itself 3 1
run_case srun srun_itself 2 1
run_case launch-ends-all launcher_ends_all 2 1
run_case launch-secret launcher_keeps_secret 2 1
run_case launch-addresses addresses 2 2
run_case launch-same-command same_command 2 1
run_case guide guide 2 1
run_case cable-replugged cable_replugged 2 1
run_case cable-one-of-two one_of_two_cables 2 2
run_case cable-out cable_out 2 1
run_case mtu-1280 mtu_1280 2 1
run_case loss-delay loss_and_delay 2 1
run_case connections-reset connections_reset 2 1
run_case encrypted encrypted 2 1
run_case apart apart 2 2
run_case why why_sees 2 1
run_case strangers strangers 3 1
run_case host-frozen vanish 3 1 frozen
run_case host-off vanish 3 1 off
run_case host-killed vanish 3 1 killed
wait
exit 0
