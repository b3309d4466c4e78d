#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Dispatch and combine of many rank processes on 8 nodes with small shapes: far more processes than CPUs. Every two of mode, order and place of the
# engines (embedded, 8 daemons) come together; in the long form every three. Run by meson: moe_64.sh EP-BENCH EP-FABRIC RANKS. ep-bench prints "wrong: 0" and exits with 0 only if bytes
# moved and every byte was right.
set -u

bench=$1
fabric=$2
ranks=$3
limit=$((60 * ${LIMIT_TIMES:-1}))
log=$(mktemp /tmp/epf-test-moe-XXXXXX)
trap 'rm -f "$log"' EXIT

run()
{
	local name=$1 start=$EPOCHREALTIME rc
	shift
	timeout "$limit" "$bench" moe --timeout-s "$((limit - 10))" --ranks "$ranks" --nodes 8 --tokens 8 --hidden 512 "$@" >"$log" 2>&1
	rc=$?
	if [ "$rc" -ne 0 ] || ! grep -qx '# wrong: 0' "$log"; then
		tail -n 20 "$log"
		echo "moe_64: $name: exit status $rc (124: not within $limit s)"
		exit 1
	fi
	echo "# $ranks rank processes, $name: $(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }') s," \
		"$(sed -n 's/^# \(peak memory[^;]*\);.*/\1/p' "$log")"
}

faults=(--order unordered --delay-us 20 --reorder 0.02 --duplicate 0.02 --drop 0.01)
service=(--service --fabric-program "$fabric")
run "ll ordered" --mode ll --order ordered
run "ht unordered with faults" --mode ht "${faults[@]}"
run "8 daemons, ll unordered with faults" "${service[@]}" --mode ll "${faults[@]}"
run "8 daemons, ht ordered" "${service[@]}" --mode ht --order ordered
[ -n "${EPF_TEST_LONG:-}" ] || exit 0
run "ht ordered" --mode ht --order ordered
run "ll unordered with faults" --mode ll "${faults[@]}"
run "8 daemons, ll ordered" "${service[@]}" --mode ll --order ordered
run "8 daemons, ht unordered with faults" "${service[@]}" --mode ht "${faults[@]}"
