#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Dispatch and combine over libfabric's providers tcp and shm: both modes, embedded engines and daemons; with notifications as messages; and with lanes that fail again and
# again in the middle, which must show as failovers and as nothing else. Run by meson: moe_ofi.sh EP-BENCH EP-FABRIC.
set -u

bench=$1
fabric=$2
limit=100
log=$(mktemp /tmp/epf-test-ofi-XXXXXX)
trap 'rm -f "$log"' EXIT

fail()
{
	tail -n 20 "$log"
	echo "moe_ofi: $*"
	exit 1
}

# run NAME OPTION...: nothing wrong
run()
{
	local name=$1
	shift
	timeout "$limit" "$bench" "$@" --timeout-s "$((limit - 10))" >"$log" 2>&1 || fail "$name: exit status $? (124: not within $limit s)"
	grep -qx '# wrong: 0' "$log" || fail "$name: no '# wrong: 0'"
	echo "# $name: wrong 0"
}

# failed_over NAME LEAST: at least so many times
failed_over()
{
	local name=$1 least=$2 n

	n=$(sed -n 's/^# failovers \([0-9]*\) .*/\1/p' "$log")
	[ "${n:-0}" -ge "$least" ] || fail "$name: ${n:-no} failovers, and lanes failed"
	echo "# $name: $n failovers"
}

job=(moe --nic ofi --ranks 4 --nodes 2 --tokens 32 --hidden 1024 --experts 32 --quiet)
service=(--service --fabric-program "$fabric")
tcp=(--set ofi-provider=tcp)
shm=(--set ofi-provider=shm)
for mode in ll ht; do
	run "$mode, tcp, embedded" "${job[@]}" "${tcp[@]}" --mode "$mode"
	run "$mode, shm, embedded" "${job[@]}" "${shm[@]}" --mode "$mode"
	run "$mode, tcp, daemons, failing lanes" "${job[@]}" "${tcp[@]}" --mode "$mode" --rounds 6 --set ofi-fail-after=25 "${service[@]}"
	failed_over "$mode, tcp, daemons, failing lanes" 1
	run "$mode, tcp, messages, failing lanes" "${job[@]}" "${tcp[@]}" --mode "$mode" --rounds 6 --set ofi-fail-after=25 --set ofi-remote-data=no
	failed_over "$mode, tcp, messages, failing lanes" 4
done
run "p2p get" p2p --nic ofi "${shm[@]}" --test bw --op get -s 65536 -n 300
