# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# shellcheck disable=SC2034 # ENVIRONMENT and BED_HOSTS are for job_kit.sh
# Cases of jobs.sh: encryption, firewalls and wrong interfaces with what the doctor and `ep-fabric why` say of them, and strangers that come to open ports.

# Both shapes with every connection encrypted; a host that does not encrypt is refused, and the message says why.
encrypted()
{
	ENVIRONMENT=(EPF_WIRE_ENCRYPTION=yes)
	moe encrypted-ll "${SMALL[@]}" --mode ll && moe encrypted-ht "${SMALL[@]}" --mode ht --dispatch bf16 || return 1
	ENVIRONMENT=()
	# shellcheck disable=SC2016 # expanded on the hosts
	launch -n 1 -- sh -c '[ "$(uname -n)" = alpha ] || export EPF_WIRE_ENCRYPTION=yes; exec ep-bench moe --launched --experts 8 --quiet' >"$OUT/half" 2>&1 &&
		echo "one host encrypts, the other does not, and nobody minds" && return 1
	grep -q 'wire-encryption is not the same at both ends' "$OUT/half" || { cat "$OUT/half" && echo "nobody says that wire-encryption differs" && return 1; }
}

# strangers_of HOST: the connections that its engines have turned away
strangers_of()
{
	bed_on "$1" ep-fabric stats --json 2>/dev/null | python3 -c 'import json, re, sys
print(sum(int(n) for n in re.findall(r"\"strangers\": *(?:{[^}]*\"value\": *)?(\d+)", sys.stdin.read())))'
}

# firewall HOST WHAT VERDICT: a firewall on a host, for what comes over its cables: all of TCP, or new connections but those to the rendezvous; "off" ends it. 77: none here
firewall()
{
	local match="meta l4proto tcp"
	bed_on "$1" nft delete table inet epf 2>/dev/null
	[ "$2" = off ] && return 0
	[ "$2" = all ] || match="tcp flags & (syn | ack) == syn tcp dport != 29999"
	bed_on "$1" nft -f - <<<"table inet epf { chain in { type filter hook input priority 0; iifname lo accept; $match $3; }; }" && return 0
	echo "no firewall can be made here (package nftables)"
	return 77
}

# doctor HOST WORDS OPTION...: what the doctor says there
doctor()
{
	local host=$1 words=$2
	shift 2
	bed_on "$host" ep-fabric doctor --nic=tcp "$@" >"$OUT/doctor" 2>&1
	says "$OUT/doctor" "$words" && grep -E -A 1 "$words" "$OUT/doctor" | sed 's/^/# doctor: /'
}

# A job that cannot connect, and the doctor, say what keeps them apart: a firewall that drops, one that rejects, nothing that listens, the wrong interface.
apart()
{
	local how words wrong=(ep-bench moe --launched --experts 8 --quiet) host rc=0
	# Which end dials is random, so the firewall stands at both.
	for how in drop "reject with tcp reset"; do
		for host in alpha beta; do
			firewall "$host" new "$how" || return
		done
		words="no answer: a firewall"
		[ "$how" = drop ] || words="connection refused: .*a firewall"
		ENVIRONMENT=(EPF_TCP_TIMEOUT=1500ms)
		start_ranks 1 "${wrong[@]}"
		for host in "${PIDS[@]}"; do
			wait "$host" && echo "a job through a firewall" && rc=1
		done
		cat "$OUT/rank.0" "$OUT/rank.1" >"$OUT/apart.${how%% *}"
		says "$OUT/apart.${how%% *}" "$words" || rc=1
		grep -hoE '[0-9.:]*: (no answer|connection refused): .*' "$OUT/apart.${how%% *}" | head -n 1 | sed "s/^/# $how: /"
		words='FAIL  rendezvous .* does not answer within tcp-timeout, by eth1'
		[ "$how" = drop ] || words='warn  rendezvous .* refuses: its host is reached by eth1'
		doctor beta "$words" --rendezvous=alpha:30000 || rc=1
	done
	for host in alpha beta; do
		firewall "$host" off
	done
	doctor beta 'FAIL  rendezvous .* (does not answer|no way to)' --rendezvous=10.77.1.77:30000 || rc=1
	doctor beta 'FAIL  rendezvous .*no way to 10.99.9.9' --rendezvous=10.99.9.9:30000 || rc=1
	# beta announces an interface that does not lead to alpha.
	bed_unplug alpha 2
	doctor beta 'warn  rendezvous .*the way to the rendezvous is eth1, and socket-ifname is eth2' --rendezvous=alpha:30000 --socket-ifname=eth2 || rc=1
	ENVIRONMENT=()
	# shellcheck disable=SC2016 # expanded on the hosts
	start_ranks 1 sh -c '[ "$EPF_RANK" = 0 ] || export EPF_SOCKET_IFNAME=eth2; exec "$@"' sh "${wrong[@]}" --timeout-s 4
	for host in "${PIDS[@]}"; do
		wait "$host" && echo "a job by an interface that leads nowhere" && rc=1
	done
	cat "$OUT"/rank.[01] >"$OUT/apart.interface"
	says "$OUT/apart.interface" 'no rendezvous server answered at alpha:29999 .*socket-ifname eth2' || rc=1
	grep -hoE 'no rendezvous server .*' "$OUT/apart.interface" | head -n 1 | sed 's/^/# wrong interface: /'
	return "$rc"
}

# why_says HOST WORDS: ep-fabric why there says so before long, while the job runs
why_says()
{
	until bed_on "$1" ep-fabric why --least-ms 200 >"$OUT/why" 2>&1 && grep -qE -- "$2" "$OUT/why"; do
		runs_still "why on $1 said '$2'" || { cat "$OUT/why" && return 1; }
		sleep 0.1
	done
	grep -E -- "$2" "$OUT/why" | sed 's/^ */# /'
}

# In a running job: beta's process stops, so that its receive buffer fills, which is small there; then a firewall drops all of TCP. why on alpha names each, and that nothing waits
# when it is over.
why_sees()
{
	local job=(env EPF_SECRET_FILE="$BED/job.secret" "${PATIENT[@]}" ep-bench p2p)
	bed_on beta sh -c 'echo 4096 65536 65536 >/proc/sys/net/ipv4/tcp_rmem' || return 1
	bed_on beta timeout -k 5 "$LIMIT" "${job[@]}" --server >"$OUT/rank.1" 2>&1 &
	await "$OUT/rank.1" 'waiting for a client' $! || return 1
	bed_on alpha timeout -k 5 "$LIMIT" "${job[@]}" --test bw --op put -s 1048576 -n 100000000 beta >"$OUT/rank.0" 2>&1 &
	PIDS=($!)
	until bed_on alpha ep-fabric stats 2>/dev/null | grep -qE 'put_bytes_remote_node +[1-9]'; do
		runs_still "it had moved bytes" || { cat "$OUT/rank.0" && return 1; }
		sleep 0.1
	done
	bed_on beta pkill -STOP -x ep-bench
	why_says alpha 'CAUSE the node of rank 1 does not read: its receive buffer is full' || return 1
	bed_on alpha ep-fabric stats --json >"$OUT/stats" && says "$OUT/stats" '"rtt_us"' || return 1
	firewall alpha all drop || return
	bed_on beta pkill -CONT -x ep-bench
	why_says alpha 'CAUSE the host of rank 1 acknowledges nothing' || return 1
	firewall alpha off
	why_says alpha 'nothing waits'
}

# A third host comes to every open port of a job with all that strangers do, 10,000 connections among it: the job goes on, and they are counted.
strangers()
{
	local before after begin
	ENVIRONMENT=("${PATIENT[@]}")
	BED_HOSTS=(alpha beta)
	start_ranks 2 ep-bench moe --launched --tokens 320 --hidden 4096 --experts 24 --topk 4 --rounds 64
	BED_HOSTS=(alpha beta gamma)
	await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
	before=$(strangers_of beta)
	begin=$(now_ms)
	bed_on gamma python3 "$BED_HERE/strangers.py" 10.77.1.2 10000 >"$OUT/strangers" 2>&1 || { cat "$OUT/strangers" && return 1; }
	echo "# strangers for $(($(now_ms) - begin)) ms"
	runs_still "all strangers had come" || return 1
	# Statistics are written now and then.
	until after=$(strangers_of beta) && [ "$after" -ge 10000 ]; do
		runs_still "all strangers were counted, $after so far," || return 1
		sleep 0.1
	done
	BED_HOSTS=(alpha beta)
	all_right || return 1
	BED_HOSTS=(alpha beta gamma)
	echo "# $(cat "$OUT/strangers"); turned away so far: $before before, $after after"
	[ "$before" = 0 ] || { echo "strangers are counted that did not come" && return 1; }
}
