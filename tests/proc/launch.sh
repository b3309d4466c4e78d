#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ep-fabric launch on this host, without root: options that make no sense, output line by line, who failed, what a rank is given, and that nothing is left of a job however it
# ends. Several hosts: tests/hosts. Run by meson: launch.sh EP-FABRIC EP-BENCH.
# shellcheck disable=SC2016 # expanded by the ranks' shells
set -u

fabric=$(readlink -f "$1")
bench=$(readlink -f "$2")
limit=$((120 * ${LIMIT_TIMES:-1}))
dir=$(mktemp -d "${TMPDIR:-/tmp}/epf-test-launch-XXXXXX")
trap 'rm -rf "$dir"' EXIT
unset EPF_SECRET EPF_SECRET_FILE EPF_SECRET_FD EPF_SERVICE EPF_LAUNCH_RSH
export EPF_STATS_DIR=$dir
cd "$dir" || exit 1

fail()
{
	echo "launch: $*"
	tail -n 20 "$dir"/*.out
	exit 1
}

# run STATUS OPTION...: on this host; output in run.out and, of stderr, run.err
run()
{
	local want=$1 rc
	shift
	timeout -k 5 "$limit" "$fabric" launch "$@" >"$dir/run.out" 2>"$dir/run.err" </dev/null
	rc=$?
	[ "$rc" = "$want" ] || { cat "$dir/run.err" && fail "$*: exit status $rc, want $want"; }
}

says()
{
	grep -qE -- "$1" "$dir/run.out" "$dir/run.err" || { cat "$dir/run.err" && fail "nobody says '$1'"; }
}

# ended WORD: until no process has the word in its arguments; the agent gives ranks 3 s
ended()
{
	local turn
	for turn in {1..600}; do
		grep -qsz -- "$1" /proc/[0-9]*/cmdline || return 0
		sleep 0.1
	done
	fail "a process with $1 still runs after $turn looks"
}

run 2
says 'which hosts'
run 2 --hosts a,b
says 'which program'
run 2 --hosts a,a -- true
says 'a is there twice: --ranks-per-host'
run 2 --hosts a,b@a -- true
run 2 --hosts localhost,b -- true
says 'localhost is another host on every host'
run 2 --hosts -oProxyCommand=x -- true
says 'is no name or address'
run 2 --hosts a -n 0 -- true
run 2 --hosts a,b -n 4000 -- true
says 'more than 4096 ranks'
run 1 --hosts nowhere.invalid,elsewhere.invalid --launch-rsh none -- true
says 'none of --hosts is this host'
run 1 --hosts nowhere.invalid --launch-rsh "sh -c true" -- true
says 'nowhere.invalid: sh -c true ended with status 0 before the job began'
run 1 --hosts localhost --rendezvous nonsense -- sh -c "$bench moe --launched"
echo "# options that make no sense are refused with a reason"

EPF_LOG=warning GIVEN=7 run 0 --hosts localhost -n 3 -x GIVEN -x MADE=8 -- sh -c 'echo "$EPF_RANK of $EPF_WORLD_SIZE, $EPF_LOCAL_RANK, $EPF_NODE, $GIVEN, $MADE, $EPF_LOG"; printf "no end"; echo oops >&2; cat'
for rank in 0 1 2; do
	says "^\[localhost $rank\] $rank of 3, $rank, localhost, 7, 8, warning\$"
	says "^\[localhost $rank\] no end\$"
	grep -qx "\[localhost $rank\] oops" "$dir/run.err" || fail "no stderr of rank $rank"
done
run 0 --hosts localhost -- sh -c 'head -c 200000 /dev/zero | tr "\0" x; echo; echo after'
says '^\[localhost 0\] after$'
[ "$(tr -cd x <"$dir/run.out" | wc -c)" = 200000 ] || fail "bytes of a long line are missing"
echo "# lines come whole, behind host and rank"

run 0 --hosts localhost -n 4 -- "$bench" moe --launched --tokens 8 --hidden 256 --experts 16 --topk 4 --quiet
says '^\[localhost 0\] # wrong: 0$'
EPF_SECRET=not-so-secret-not-so-secret run 0 --hosts localhost --launch-rsh none -n 2 -- "$bench" moe --launched --tokens 8 --hidden 256 --experts 16 --topk 4 --quiet
says '^\[localhost 0\] # wrong: 0$'

run 0 --hosts localhost -n 2 -- sh -c 'cat "$EPF_SECRET_FILE"; echo; ! tr "\0" "\n" </proc/self/environ | grep -F -f "$EPF_SECRET_FILE"; python3 -c "import os, subprocess; subprocess.run([\"sh\", \"-c\", \"cat \$EPF_SECRET_FILE | wc -c\"], close_fds=True)"'
[ "$(grep -cE '^\[localhost [01]\] [0-9a-f]{64}$' "$dir/run.out")" = 2 ] || fail "a rank has no secret"
[ "$(grep -oE '[0-9a-f]{64}' "$dir/run.out" | sort -u | wc -l)" = 1 ] || fail "ranks have different secrets"
[ "$(grep -c '\] 64$' "$dir/run.out")" = 2 ] || fail "a rank's own children cannot read the secret"
! grep -qE '[0-9a-f]{64}' "$dir/run.err" || fail "stderr shows the secret"
echo "# one secret for all ranks, by file"

word=launch-test-$$-$RANDOM
run 1 --hosts localhost -n 3 -- sh -c ": $word; sleep 1000 & [ \$EPF_RANK != 1 ] || kill -9 \$\$; wait"
says '^ep-fabric launch: rank 1 on localhost was killed by signal 9'
ended "$word"
run 1 --hosts localhost -n 2 -- sh -c ": $word; trap '' TERM; [ \$EPF_RANK != 0 ] || exit 3; while :; do sleep 1000 & wait; done"
says '^ep-fabric launch: rank 0 on localhost ended with status 3$'
[ "$(grep -c '^ep-fabric launch: ' "$dir/run.err")" = 1 ] || fail "more than one line says who failed"
ended "$word"
run 1 --hosts localhost -- no-such-program
says 'no-such-program: No such file'
for signal in TERM KILL; do
	"$fabric" launch --hosts localhost -n 2 -- sh -c ": $word; echo begun; sleep 1000" >"$dir/run.out" 2>"$dir/run.err" &
	launcher=$!
	until [ "$(grep -c begun "$dir/run.out")" = 2 ]; do
		kill -0 "$launcher" 2>/dev/null || fail "the job ended before SIG$signal"
		sleep 0.02
	done
	kill -"$signal" "$launcher"
	wait "$launcher" 2>/dev/null && fail "exit status 0 after SIG$signal"
	[ "$signal" = KILL ] || says '^ep-fabric launch: ended by signal 15'
	ended "$word"
done
# The agent is killed: the keeper ends what the ranks have started.
"$fabric" launch --hosts localhost -n 2 -- sh -c ": $word; sh -c ': $word; echo begun; sleep 1000'; true" >"$dir/run.out" 2>"$dir/run.err" &
launcher=$!
until [ "$(grep -c begun "$dir/run.out")" = 2 ]; do
	sleep 0.02
done
# Not from /proc/PID/task/TID/children, which misses a child now and then.
agent=""
until [ -n "$agent" ] && kill -9 "$agent"; do
	kill -0 "$launcher" 2>/dev/null || fail "the launcher ended before its agent was killed"
	agent=$(pgrep -P "$launcher")
done
wait "$launcher" && fail "a killed agent was not noticed"
says '^ep-fabric launch: localhost: its agent was killed by signal 9'
ended "$word"
echo "# nothing is left of a job that failed, or whose launcher or agent was killed"

for bytes in 5 64 4096; do
	head -c "$bytes" /dev/urandom | timeout "$limit" "$fabric" launch --agent >"$dir/run.out" 2>&1
	[ $? -lt 3 ] || fail "the agent crashed on $bytes random bytes"
done
exit 0
