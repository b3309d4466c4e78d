# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Results of `tools/quickstart test`: every check writes one line to $RESULTS (stage, pass|fail|skip, name, detail), here or in
# tests/results.py; the last line of the run is their sum. Sourced by tools/quickstart. No check may end without a line.

results_begin()
{
	RESULTS=$LOGS/results
	STAGE_TIMES=$LOGS/stage-times
	: >"$RESULTS"
	: >"$STAGE_TIMES"
	export RESULTS
	RUN_BEGIN=$(now_ms)
}

# record RESULT NAME DETAIL
record()
{
	printf '%s\t%s\t%s\t%s\n' "$STAGE" "$1" "$2" "$3" >>"$RESULTS"
}

pass()
{
	record pass "$1" ""
	printf '    ok    %s %s\n' "$1" "${2:+($2)}"
}

fail()
{
	record fail "$1" "$2"
	printf '    FAIL  %s: %s\n' "$1" "$2"
}

# passed_again NAME WHY: a test on the machine's clock that failed, and passed when run again
passed_again()
{
	record pass "$1" "only when run again: $2"
	printf '    again %s: passed when run again; before: %s\n' "$1" "$2"
}

skip()
{
	record skip "$1" "$2"
	printf '    skip  %s: %s\n' "$1" "$2"
}

# absent NAME WHY: an entry of tests/expected.txt is missing
absent()
{
	if [ "$PARTIAL" = yes ]; then
		skip "$1" "not there yet: $2"
	else
		fail "$1" "missing: $2"
	fi
}

# check NAME COMMAND...: one check; its output goes to a log, whose end is shown on failure.
# Exit status 77 is a skip; the last line is the reason.
check()
{
	local name=$1 log start rc
	shift
	log=$LOGS/$STAGE-${name//[^A-Za-z0-9]/-}.log
	start=$(now_ms)
	"$@" >"$log" 2>&1
	rc=$?
	case $rc in
	0) pass "$name" "$(seconds "$start")" ;;
	77) skip "$name" "$(tail -n 1 "$log")" ;;
	*)
		tail -n 40 "$log" | sed 's/^/        | /'
		fail "$name" "exit status $rc after $(seconds "$start"); whole output in $log"
		;;
	esac
	return "$rc"
}

# check_beside NAME COMMAND...: a check beside those before it, $JOBS at most; wait_beside ends them all
BESIDE=()
check_beside()
{
	check "$@" &
	BESIDE+=($!)
	if [ ${#BESIDE[@]} -ge "$JOBS" ]; then
		wait "${BESIDE[0]}"
		BESIDE=("${BESIDE[@]:1}")
	fi
}

# Not a bare `wait`, which would wait for downloads and compilers of later stages, too.
wait_beside()
{
	[ ${#BESIDE[@]} = 0 ] || wait "${BESIDE[@]}"
	BESIDE=()
}

# tally STAGE RESULT: number of such results in a stage (empty: in all stages)
tally()
{
	awk -F '\t' -v stage="$1" -v result="$2" \
		'(stage == "" || $1 == stage) && $2 == result { n++ } END { print n + 0 }' "$RESULTS"
}

# cpu_seconds BEFORE AFTER: CPU time between two outputs of `times`: of this shell and of its children that have ended
cpu_seconds()
{
	sed 's/[ms]/ /g' "$1" "$2" | awk '{ sum[NR > 2] += 60 * ($1 + $3) + $2 + $4 } END { printf "%.0f\n", sum[1] - sum[0] }'
}

# The columns of the summary.
STAGE_ROW='    %-12s %7s %7s %7s %8s %8s\n'

# run_stage STAGE or STAGE:PART,...: runs a stage, with its parts in STAGE_PARTS
# shellcheck disable=SC2034
run_stage()
{
	local start cpu=$RESULTS.cpu
	STAGE=${1%%:*}
	STAGE_PARTS=
	[ "$STAGE" = "$1" ] || STAGE_PARTS=${1#*:}
	export STAGE
	start=$(now_ms)
	times >"$cpu" # not in a subshell, which counts separately
	say "stage $STAGE"
	"stage_${STAGE//-/_}"
	if [ $(($(tally "$STAGE" pass) + $(tally "$STAGE" fail) + $(tally "$STAGE" skip))) = 0 ]; then
		fail "$STAGE" "the stage checked nothing"
	fi
	times >"$cpu.end"
	# shellcheck disable=SC2059
	printf "$STAGE_ROW" "$STAGE" "$(tally "$STAGE" pass)" "$(tally "$STAGE" fail)" "$(tally "$STAGE" skip)" \
		$((($(now_ms) - start) / 1000)) "$(cpu_seconds "$cpu" "$cpu.end")" >>"$STAGE_TIMES"
	tail -n 1 "$STAGE_TIMES"
}

# The summary: skips with reasons, failures, and what is often all that is kept of the output, one row a stage, with the sum as the last line.
results_end()
{
	local failed
	if [ "$(tally "" skip)" != 0 ]; then
		say "skipped"
		awk -F '\t' '$2 == "skip" { printf "    %s: %s: %s\n", $1, $3, $4 }' "$RESULTS"
	fi
	if grep -q "	pass	.*	only when run again" "$RESULTS"; then
		say "passed only when run again"
		awk -F '\t' '$2 == "pass" && $4 != "" { printf "    %s: %s: %s\n", $1, $3, $4 }' "$RESULTS"
	fi
	failed=$(tally "" fail)
	if [ "$failed" != 0 ]; then
		say "failed"
		awk -F '\t' '$2 == "fail" { printf "    %s: %s: %s\n", $1, $3, $4 }' "$RESULTS"
	fi
	say "stages"
	# shellcheck disable=SC2059
	printf "$STAGE_ROW" stage passed failed skipped seconds "CPU s"
	cat "$STAGE_TIMES"
	awk -v row="$STAGE_ROW" -v seconds=$((($(now_ms) - RUN_BEGIN) / 1000)) '{ passed += $2; failed += $3; skipped += $4; cpu += $6 }
		END { printf row, "all", passed, failed, skipped, seconds, cpu }' "$STAGE_TIMES"
	printf '%s passed, %s failed\n' "$(tally "" pass)" "$failed"
	[ "$failed" = 0 ]
}
