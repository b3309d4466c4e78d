#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# ep-fabric nics --prove as users run it: over each NIC that needs no device, on one host and between two programs that find each other, all at
# the same time; strangers, wrong options. Run by meson: prove.sh EP-FABRIC. That broken assumptions are seen is tests/unit/nic/test_prove.c.
set -u

fabric=$1
limit=300
dir=$(mktemp -d /tmp/epf-test-prove-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export EPF_STATS_DIR=$dir EPF_SECRET=prove-prove-prove
unset EPF_SECRET_FILE EPF_SECRET_FD EPF_SERVICE EPF_NIC

fail()
{
	echo "prove: $*"
	tail -n 20 "$dir"/*.out "$dir"/*.err
	exit 1
}

free_port()
{
	"$(dirname "$0")/../free_port.py"
}

# prove NAME OPTION...: one run in the background; its report and its JSON go to files of that name
prove()
{
	local name=$1
	shift
	timeout "$limit" "$fabric" nics --prove "$@" "--save=$dir/$name.json" >"$dir/$name.out" 2>"$dir/$name.err" &
	runs+=("$!:$name")
}

# between NAME OPTION...: the same between two programs
between()
{
	local name=$1 port
	shift
	port=$(free_port)
	timeout "$limit" "$fabric" nics --prove --wait "--port=$port" "$@" >"$dir/$name-wait.out" 2>"$dir/$name-wait.err" &
	runs+=("$!:$name-wait")
	timeout "$limit" "$fabric" nics --prove=127.0.0.1 "--port=$port" "$@" "--save=$dir/$name.json" >"$dir/$name.out" 2>"$dir/$name.err" &
	runs+=("$!:$name")
}

# held NAME LEAST: nothing is broken, and so many assumptions were held
held()
{
	python3 - "$dir/$1.json" "$2" <<-'PY' || fail "$1"
		import json, sys
		report = json.load(open(sys.argv[1]))
		rows = report["assumptions"]
		bad = [row["key"] for row in rows if row["verdict"] == "broken"]
		late = [row["key"] for row in rows if "within the time" in row["detail"] or "two minutes" in row["detail"]]
		print("%s: %d held, %d not tried" % (sys.argv[1].split("/")[-1], report["held"], report["not_tried"]))
		assert report["schema"] == "epf.prove/1" and not bad and report["broken"] == 0, bad
		assert report["held"] + report["not_tried"] == len(rows) == 44, len(rows)
		assert report["held"] >= int(sys.argv[2]) or late, report["held"]
		assert all(row["assumption"] and row["consequence"] for row in rows)
		assert all(row["detail"] for row in rows if row["verdict"] != "held")
	PY
}

# wrong OPTION...: refused with exit status 2
wrong()
{
	"$fabric" nics "$@" >"$dir/wrong.out" 2>"$dir/wrong.err"
	[ "$?" = 2 ] || fail "nics $*: not refused as wrong usage"
}

runs=()
EPF_GPU_BACKEND=fake prove emu --nic=emu
prove unordered --nic=emu --emu-order=unordered
prove null --nic=null
prove tcp --nic=tcp
prove shm --nic=ofi --ofi-provider=shm
prove ofi --nic=ofi --ofi-provider=tcp
between two-emu --nic=emu
between two-tcp --nic=tcp
# A NIC whose lanes fail.
EPF_TCP_RESET_AFTER=50 prove broken --nic=tcp
for run in "${runs[@]}"; do
	wait "${run%%:*}"
	rc=$?
	case ${run#*:} in
	broken) [ "$rc" = 1 ] || fail "broken: exit status $rc" ;;
	shm | ofi) ;; # below
	*) [ "$rc" = 0 ] || fail "${run#*:}: exit status $rc" ;;
	esac
done
held emu 42
held unordered 39
held null 6
held tcp 40
held two-emu 38
held two-tcp 38
# Where libfabric is not installed, the NIC says so.
for name in shm ofi; do
	if [ -e "$dir/$name.json" ]; then held "$name" 33; else grep -q 'libfabric' "$dir/$name.err" || fail "$name"; fi
done
grep -q '^held  ' "$dir/emu.out" || fail "no line that says held"
grep -q "attach $dir/emu.json to an issue" "$dir/emu.out" || fail "how to send it is not said"
grep -q ' 1/44 writes  *held' "$dir/emu.err" || fail "no progress"

grep -A 1 '^broken  ' "$dir/broken.out" | grep -q 'use nic=' || fail "broken: the report does not say so"

# Who does not know the secret is let in by nobody.
port=$(free_port)
timeout "$limit" "$fabric" nics --prove --wait "--port=$port" --nic=emu >"$dir/strange-wait.out" 2>&1 &
waits=$!
EPF_SECRET=another-another-another timeout "$limit" "$fabric" nics --prove=127.0.0.1 "--port=$port" --nic=emu >"$dir/strange.out" 2>&1 &&
	fail "a stranger was let in"
grep -q 'EPF-209' "$dir/strange.out" || fail "the stranger is not told why"
kill "$waits"
wait "$waits" 2>/dev/null

wrong --save=x
wrong --prove=host --wait
wrong --prove --plan
wrong --prove --wait --json
wrong --prove --port=0
exit 0
