# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Cases of jobs.sh: point to point, endpoints of two hosts.

# xfer NAME OPTION...: a transfer between endpoints on two hosts, every byte compared
xfer()
{
	local name=$1 target rc=0
	shift
	bed_on alpha timeout -k 5 "$LIMIT" env "${ENVIRONMENT[@]}" ep-bench xfer --target 4711 "$@" >"$OUT/$name.target" 2>&1 &
	target=$!
	bed_on beta timeout -k 5 "$LIMIT" env "${ENVIRONMENT[@]}" ep-bench xfer --peer alpha:4711 "$@" >"$OUT/$name" 2>&1 || rc=1
	wait "$target" || rc=1
	grep -q '^# wrong: 0$' "$OUT/$name" || rc=1
	[ "$rc" = 0 ] || { cat "$OUT/$name" "$OUT/$name.target" && echo "$name: exit status or bytes are wrong" && return 1; }
}

# carried CABLE: bytes that beta has sent and received by a cable
carried()
{
	bed_on beta sh -c "cat /sys/class/net/eth$1/statistics/tx_bytes /sys/class/net/eth$1/statistics/rx_bytes" | awk '{ n += $1 } END { print n }'
}

# Endpoints of two hosts with two cables: reads and writes of many blocks and of one large one, which takes both cables.
transfers()
{
	local cable before=() name sent
	ENVIRONMENT=(EPF_NIC=tcp "EPF_SOCKET_IFNAME=eth1,eth2" EPF_LANES_PER_PEER=2)
	xfer write --bytes 4096 --blocks 2000 --repeat 2 || return 1
	xfer read --bytes 3001 --blocks 2000 --repeat 2 --read || return 1
	xfer note --bytes 8 --blocks 1 --repeat 20 --note || return 1
	for name in packed "packed-read --read"; do
		# shellcheck disable=SC2086
		xfer $name --bytes 33554432 --blocks 2 --repeat 2 --compress split || return 1
		grep '^# compressed: [1-9]' "$OUT/${name%% *}" || { echo "nothing was compressed" && return 1; }
	done
	before=([1]="$(carried 1)" [2]="$(carried 2)")
	xfer large --bytes 67108864 --blocks 1 --repeat 2 --gap 0 || return 1
	for cable in 1 2; do
		sent=$(($(carried "$cable") - before[cable]))
		echo "# cable $cable carried $sent bytes of three transfers of 64 MiB"
		[ "$sent" -gt 16777216 ] || { echo "cable $cable carried $sent bytes" && return 1; }
	done
	ENVIRONMENT=()
}

# The target's host is killed or unplugged while it is written to: the initiator's transfer must end with an error that names the target.
target_vanishes()
{
	local how=$1 before end begin initiator rc=0
	ENVIRONMENT=(EPF_NIC=tcp "${SOON[@]}")
	before=$(carried 1)
	bed_on alpha ep-bench xfer --target 4711 --bytes 67108864 --blocks 1 --gap 0 >"$OUT/target" 2>&1 &
	bed_on beta timeout -k 5 "$LIMIT" env "${ENVIRONMENT[@]}" ep-bench xfer --peer alpha:4711 --bytes 67108864 --blocks 1 --gap 0 --repeat 1000 >"$OUT/initiator" 2>&1 &
	initiator=$!
	end=$(($(now_ms) + LIMIT * 1000))
	until [ $(($(carried 1) - before)) -gt 200000000 ]; do
		if ! kill -0 "$initiator" 2>/dev/null || [ "$(now_ms)" -ge "$end" ]; then
			cat "$OUT/initiator" "$OUT/target"
			echo "no 200 MB were transferred before the program ended or $LIMIT s had passed"
			return 1
		fi
		sleep 0.05
	done
	begin=$(now_ms)
	case $how in
	killed) bed_kill alpha ;;
	*) bed_unplug alpha 1 ;;
	esac
	wait "$initiator" || rc=$?
	echo "# $how: the initiator ended after $(($(now_ms) - begin)) ms: $(tail -n 1 "$OUT/initiator" | cut -c1-150)"
	ENVIRONMENT=()
	if [ "$rc" = 0 ] || [ "$rc" = 124 ] || ! grep -q 'peer target' "$OUT/initiator"; then
		cat "$OUT/initiator"
		echo "status $rc, or no error that names the peer"
		return 1
	fi
}
