#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Dispatch and combine over the TCP NIC on loopback: both modes, embedded engines and daemons, then with connections that are reset again and again in the middle, which
# must show as failovers and as nothing else; the same encrypted, and refused where only one end encrypts; and ep-bench p2p. Run by meson: moe_tcp.sh EP-BENCH EP-FABRIC.
set -u

bench=$1
fabric=$2
limit=100
log=$(mktemp /tmp/epf-test-tcp-XXXXXX)
trap 'rm -f "$log"' EXIT

fail()
{
	tail -n 20 "$log"
	echo "moe_tcp: $*"
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

# failed_over NAME: at least so many times
failed_over()
{
	local name=$1 least=$2 n

	n=$(sed -n 's/^# failovers \([0-9]*\) .*/\1/p' "$log")
	[ "${n:-0}" -ge "$least" ] || fail "$name: ${n:-no} failovers, and connections were reset"
	echo "# $name: $n failovers"
}

job=(moe --nic tcp --ranks 4 --nodes 2 --tokens 32 --hidden 1024 --experts 32 --quiet)
service=(--service --fabric-program "$fabric")
for mode in ll ht; do
	run "$mode, embedded" "${job[@]}" --mode "$mode"
	run "$mode, daemons" "${job[@]}" --mode "$mode" "${service[@]}"
	run "$mode, embedded, resets" "${job[@]}" --mode "$mode" --rounds 6 --set tcp-reset-after=25
	failed_over "$mode, embedded" 4
	run "$mode, daemons, resets" "${job[@]}" --mode "$mode" --rounds 6 --set tcp-reset-after=25 "${service[@]}"
	failed_over "$mode, daemons" 1
done
run "encrypted, embedded, resets" "${job[@]}" --rounds 6 --set tcp-reset-after=25 --set wire-encryption=yes
failed_over "encrypted, embedded" 4
run "encrypted, daemons" "${job[@]}" --mode ht --set wire-encryption=yes "${service[@]}"
timeout "$limit" "$bench" "${job[@]}" --set 1:wire-encryption=yes --timeout-s "$((limit - 10))" >"$log" 2>&1 && fail "one end encrypts and the other does not, and nobody minds"
grep -q 'wire-encryption is not the same at both ends' "$log" || fail "nobody says that wire-encryption differs"
run "p2p latency" p2p --nic tcp --test lat -n 300
run "p2p bandwidth" p2p --nic tcp --test bw --op put -s 65536 -n 300
run "p2p get" p2p --nic tcp --test bw --op get -s 65536 -n 300
