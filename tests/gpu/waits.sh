#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Waiting kernels are reported: two ranks play ping-pong between GPU memories, rank 1 is stopped, and `ep-fabric why` and `ep-top` must report
# that a kernel of rank 0 waits for a signal. Then rank 1 continues, and (on a GPU) the run must end well.
#
#   waits.sh BUILD [BACKEND]
#
# BUILD holds bench/ep-bench, tools/ep-fabric and tools/ep-top, or all three; BACKEND: gpu-backend, auto by default; fake runs it without a
# GPU. Run by tests/gpu/run.sh. Exit 0: right; 77: no GPU.
set -u
build=$1
backend=${2:-auto}

# program FOLDER NAME
program()
{
	if [ -x "$build/$1/$2" ]; then echo "$build/$1/$2"; else echo "$build/$2"; fi
}

bench=$(program bench ep-bench)
fabric=$(program tools ep-fabric)
top=$(program tools ep-top)
dir=$(mktemp -d) || exit 1
run=
stopped=
failed=0
# shellcheck disable=SC2317 # called by the trap
clean()
{
	[ -z "$stopped" ] || kill -CONT "$stopped" 2>/dev/null
	[ -z "$run" ] || kill "$run" 2>/dev/null
	rm -rf "$dir"
}
trap clean EXIT

# expect NAME REGEX FILE
expect()
{
	if grep -qE "$2" "$3"; then
		echo "ok - $1: $(grep -oE -m 1 "$2" "$3")"
	else
		sed 's/^/# /' "$3" "$dir/out"
		echo "not ok - $1"
		failed=1
	fi
}

trips=300000
[ "$backend" != fake ] || trips=100000000 # more than it can finish before it is stopped, however late that is
timeout 300 "$bench" p2p --gpu --gpu-backend "$backend" --op put_signal -n "$trips" --timeout-s 290 --set stats-dir="$dir" \
	--set peer-timeout=30s --set gpu-timeout=120s >"$dir/out" 2>&1 &
run=$!
# Finds rank 1's process, once it has applied signals, so that rank 0's kernel waits for the next.
for _ in $(seq 300); do
	"$fabric" stats --json --stats-dir "$dir" >"$dir/stats" 2>/dev/null
	stopped=$(python3 - "$dir/stats" 2>/dev/null <<'END'
import json
import sys
for instance in json.load(open(sys.argv[1]))["instances"]:
    blocks = instance.get("blocks", [])
    applied = any(b["values"].get("signals_applied") for b in blocks if b["class"] == "core")
    if applied and any(b["class"] == "rank" and b["labels"]["rank"] == 1 for b in blocks):
        print(instance["pid"])
END
	)
	[ -z "$stopped" ] || break
	kill -0 "$run" 2>/dev/null || break
	sleep 0.1
done
if [ -z "$stopped" ]; then
	wait "$run"
	rc=$?
	cat "$dir/out"
	[ "$rc" != 77 ] || exit 77
	echo "not ok - rank 1 has applied no signal"
	exit 1
fi
kill -STOP "$stopped"
since=$SECONDS
why='a kernel of rank 0 waits for signal [0-9]+[^:]*'
screen='signal.* kernel'
for _ in $(seq 300); do
	"$fabric" why --stats-dir "$dir" --least-ms 300 >"$dir/why" 2>&1
	"$top" --once --screen ranks --stats-dir "$dir" >"$dir/top" 2>&1
	grep -qE "$why" "$dir/why" && grep -qE "$screen" "$dir/top" && break
	kill -0 "$run" 2>/dev/null || break
	# Stopped while its engine took a put in, it keeps rank 0 waiting for that one to be retired, and not for a signal.
	if [ $((SECONDS - since)) -ge 3 ]; then
		kill -CONT "$stopped"
		sleep 0.05
		kill -STOP "$stopped"
		since=$SECONDS
		sleep 0.4
	fi
	sleep 0.1
done
kill -CONT "$stopped"
expect "why" "$why" "$dir/why"
expect "ep-top" "$screen" "$dir/top"
[ "$backend" != fake ] || exit "$failed"
wait "$run"
rc=$?
run=
if [ "$rc" = 0 ]; then
	echo "ok - the run ended well after rank 1 continued"
else
	sed 's/^/# /' "$dir/out"
	echo "not ok - the run ended with $rc"
	failed=1
fi
exit "$failed"
