#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Dispatch and combine over a NIC that leaves the host, on this one: both modes, embedded engines and daemons, and with lanes that fail again and again in the middle, which must show as
# failovers and as nothing else. tcp: its connections are reset; encrypted, too, and refused where only one end encrypts; and ep-bench p2p. ofi: libfabric's providers tcp and shm,
# and notifications as messages. Run by meson: moe_net.sh tcp|ofi EP-BENCH EP-FABRIC.
set -u

nic=$1
bench=$2
fabric=$3
limit=$((100 * ${LIMIT_TIMES:-1}))
log=$(mktemp "/tmp/epf-test-$nic-XXXXXX")
trap 'rm -f "$log"' EXIT

fail()
{
	tail -n 20 "$log"
	echo "moe_net $nic: $*"
	exit 1
}

# bench OPTION...: its exit status
bench()
{
	timeout "$limit" "$bench" "$@" --timeout-s "$((limit - 10))" >"$log" 2>&1
}

# run NAME OPTION...: nothing wrong
run()
{
	local name=$1
	shift
	bench "$@" || fail "$name: exit status $? (124: not within $limit s)"
	grep -qx '# wrong: 0' "$log" || fail "$name: no '# wrong: 0'"
	echo "# $name: wrong 0"
}

# fails_over NAME LEAST OPTION...: a run of six rounds with failing lanes, and at least so many failovers
fails_over()
{
	local name="$1, failing lanes" least=$2 n
	shift 2
	run "$name" "${job[@]}" --rounds 6 "$@"
	n=$(sed -n 's/^# failovers \([0-9]*\) .*/\1/p' "$log")
	[ "${n:-0}" -ge "$least" ] || fail "$name: ${n:-no} failovers"
	echo "# $name: $n failovers"
}

job=(moe --nic "$nic" --ranks 4 --nodes 2 --tokens 32 --hidden 1024 --experts 32 --quiet)
service=(--service --fabric-program "$fabric")

over_tcp()
{
	local mode reset=(--set tcp-reset-after=25) encrypted=(--set wire-encryption=yes)

	for mode in ll ht; do
		run "$mode, embedded" "${job[@]}" --mode "$mode"
		run "$mode, daemons" "${job[@]}" --mode "$mode" "${service[@]}"
		fails_over "$mode, embedded" 4 --mode "$mode" "${reset[@]}"
		fails_over "$mode, daemons" 1 --mode "$mode" "${reset[@]}" "${service[@]}"
	done
	fails_over "encrypted, embedded" 4 "${reset[@]}" "${encrypted[@]}"
	run "encrypted, daemons" "${job[@]}" --mode ht "${encrypted[@]}" "${service[@]}"
	bench "${job[@]}" --set 1:wire-encryption=yes && fail "one end encrypts and the other does not, and nobody minds"
	grep -q 'wire-encryption is not the same at both ends' "$log" || fail "nobody says that wire-encryption differs"
	run "p2p latency" p2p --nic tcp --test lat -n 300
	run "p2p bandwidth" p2p --nic tcp --test bw --op put -s 65536 -n 300
	run "p2p get" p2p --nic tcp --test bw --op get -s 65536 -n 300
}

over_ofi()
{
	local mode tcp=(--set ofi-provider=tcp) shm=(--set ofi-provider=shm) failing=(--set ofi-fail-after=25)

	for mode in ll ht; do
		run "$mode, tcp, embedded" "${job[@]}" "${tcp[@]}" --mode "$mode"
		run "$mode, shm, embedded" "${job[@]}" "${shm[@]}" --mode "$mode"
		fails_over "$mode, tcp, daemons" 1 "${tcp[@]}" --mode "$mode" "${failing[@]}" "${service[@]}"
		fails_over "$mode, tcp, messages" 4 "${tcp[@]}" --mode "$mode" "${failing[@]}" --set ofi-remote-data=no
	done
	run "p2p get" p2p --nic ofi "${shm[@]}" --test bw --op get -s 65536 -n 300
}

"over_$nic"
