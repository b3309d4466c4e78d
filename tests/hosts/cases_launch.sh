# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# shellcheck disable=SC2034 # ENVIRONMENT and BED_HOSTS are for job_kit.sh
# Cases of jobs.sh: the launcher, `ep-fabric launch`.

# nobody_left HOST...: no process but the host's own is left there; the agent gives ranks 3 s to end
nobody_left()
{
	local host turn left
	for turn in {1..500}; do
		left=
		for host in "$@"; do
			left+=$(bed_on "$host" ps -eo pid=,args= | awk '$1 != 1 && !/sleep 1000|ps -eo|\[|awk/')
		done
		[ -n "$left" ] || return 0
		sleep 0.1
	done
	echo "after $turn looks there is still: $left"
	return 1
}

# A rank is killed: all others end, and one line names it. The launcher is killed: all end. The remote shell of a host dies: the same.
launcher_ends_all()
{
	local pid rc=0
	# shellcheck disable=SC2016 # expanded on the hosts
	launch -n 2 -- sh -c 'echo "begun $EPF_RANK"; sleep 600 & [ "$EPF_RANK" != 2 ] || kill -9 $$; wait' >"$OUT/killed" 2>&1 && echo "a killed rank was not noticed" && rc=1
	[ "$(grep -c '^ep-fabric launch: ' "$OUT/killed")" = 1 ] || { echo "not one line says who failed" && rc=1; }
	grep -q '^ep-fabric launch: rank 2 on beta was killed by signal 9' "$OUT/killed" || { cat "$OUT/killed" && echo "nobody says that rank 2 was killed" && rc=1; }
	nobody_left alpha beta || rc=1
	# shellcheck disable=SC2016
	launch -n 2 -- sh -c 'trap "" TERM; echo "begun $EPF_RANK"; sleep 600 & [ "$EPF_RANK" != 1 ] || exit 7; wait' >"$OUT/failed" 2>&1
	grep -q '^ep-fabric launch: rank 1 on alpha ended with status 7' "$OUT/failed" || { cat "$OUT/failed" && echo "nobody says that rank 1 failed" && rc=1; }
	nobody_left alpha beta || rc=1
	env EPF_NIC=tcp "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED_HERE/enter" -n 2 -- sh -c 'echo begun; sleep 600' >"$OUT/orphan" 2>&1 &
	pid=$!
	await "$OUT/orphan" 'alpha 1. begun' "$pid" && await "$OUT/orphan" 'beta 3. begun' "$pid" || return 1
	kill -9 "$pid"
	nobody_left alpha beta || { echo "the launcher was killed" && rc=1; }
	wait "$pid" 2>/dev/null
	launch -n 2 -- sh -c 'echo begun; sleep 600' >"$OUT/agent" 2>&1 &
	pid=$!
	await "$OUT/agent" 'beta 3. begun' "$pid" || return 1
	bed_on beta pkill -KILL -x ep-fabric
	wait "$pid" && echo "a killed agent was not noticed" && rc=1
	grep -q '^ep-fabric launch: beta: .* while ranks ran' "$OUT/agent" || { cat "$OUT/agent" && echo "nobody says that beta's agent ended" && rc=1; }
	nobody_left alpha beta || { echo "beta's agent was killed" && rc=1; }
	grep -h '^ep-fabric launch: ' "$OUT/killed" "$OUT/failed" "$OUT/agent" | sed 's/^/# /'
	return "$rc"
}

# The secret: in no argument, no environment and no output, on no host; the same for all ranks.
launcher_keeps_secret()
{
	local secret n
	# shellcheck disable=SC2016
	launch -n 2 -- sh -c 'cat "$EPF_SECRET_FILE"; echo; tr "\0" "\n" </proc/self/environ | grep SECRET; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr "\0" "\n" | grep -c -F -f "$EPF_SECRET_FILE"; stat -L -c %a "$EPF_SECRET_FILE"' \
		>"$OUT/secret" 2>&1
	secret=$(sed -n 's/^\[alpha 0\] \([0-9a-f]\{64\}\)$/\1/p' "$OUT/secret")
	[ ${#secret} = 64 ] || { cat "$OUT/secret" && echo "no secret of 64 digits" && return 1; }
	n=$(grep -c "] $secret\$" "$OUT/secret")
	[ "$n" = 4 ] || { echo "$n of 4 ranks have one secret" && return 1; }
	[ "$(grep -c '^\[.*\] 0$' "$OUT/secret")" = 4 ] || { cat "$OUT/secret" && echo "it is in an argument or an environment" && return 1; }
	[ "$(grep -c '^\[.*\] 400$' "$OUT/secret")" = 4 ] || { cat "$OUT/secret" && echo "others may read it" && return 1; }
	EPF_LOG=debug launch -n 1 -- ep-bench moe --launched "${SMALL[@]}" --experts 8 >"$OUT/debug" 2>&1 || return 1
	! grep -E '[0-9a-f]{64}' "$OUT/debug" || { echo "a log shows it" && return 1; }
}

# Hosts by address, of both families; a second cable for the rendezvous; a host that does not answer; a remote shell that says more than it should.
addresses()
{
	local rc=0 save=$HOSTS
	# shellcheck disable=SC2016
	printf '#!/bin/sh\nhost=$1\nshift\ncase $host in *1) set -- alpha "$@" ;; *2) set -- beta "$@" ;; esac\nexec %q "$@"\n' "$BED_HERE/enter" >"$BED/by-address"
	chmod +x "$BED/by-address"
	for HOSTS in 10.77.2.1,10.77.2.2 fd77:2::1,fd77:2::2; do
		timeout "$LIMIT" env EPF_NIC=tcp "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED/by-address" -n 2 -- ep-bench moe --launched "${SMALL[@]}" \
			>"$OUT/address.$HOSTS" 2>&1
		right "$OUT/address.$HOSTS" 2 || { echo "hosts $HOSTS" && rc=1; }
	done
	HOSTS=$save
	# By addresses that mean something on one cable only.
	ENVIRONMENT=("EPF_RENDEZVOUS=[$(bed_on alpha ip -6 -br addr show dev eth1 scope link | grep -o 'fe80:[0-9a-f:]*')%eth1]:29999")
	start_ranks 2 ep-bench moe --launched "${SMALL[@]}"
	all_right || { echo "by link-local addresses" && rc=1; }
	# Two addresses of each host, of which a firewall lets one through.
	ENVIRONMENT=("EPF_RENDEZVOUS=[fd77:1::1]:29999" EPF_SOCKET_IFNAME=eth1 EPF_TCP_TIMEOUT=1500ms)
	bed_on alpha nft "add table ip epf; add chain ip epf in { type filter hook input priority 0; }; add rule ip epf in meta l4proto tcp iifname eth1 drop" &&
		bed_on beta nft "add table ip epf; add chain ip epf in { type filter hook input priority 0; }; add rule ip epf in meta l4proto tcp iifname eth1 drop" || rc=1
	start_ranks 2 ep-bench moe --launched "${SMALL[@]}"
	all_right || { echo "by the second of two addresses" && rc=1; }
	bed_on alpha nft delete table ip epf && bed_on beta nft delete table ip epf || rc=1
	ENVIRONMENT=()
	launch -n 2 --rendezvous 10.77.2.1:23456 -- ep-bench moe --launched "${SMALL[@]}" >"$OUT/rendezvous" 2>&1
	right "$OUT/rendezvous" 2 || { echo "rendezvous by the second cable" && rc=1; }
	# shellcheck disable=SC2016
	printf '#!/bin/sh\necho "Welcome to $1"\n[ "$1" != beta ] || { echo "no way to $1" >&2; exit 255; }\nexec %q "$@"\n' "$BED_HERE/enter" >"$BED/talks"
	chmod +x "$BED/talks"
	timeout "$LIMIT" "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED/talks" -- true >"$OUT/talks" 2>&1 && echo "beta was not missed" && rc=1
	grep -q "^ep-fabric launch: beta: .* ended with status 255 before the job began; it said: no way to beta" "$OUT/talks" || { cat "$OUT/talks" && rc=1; }
	HOSTS=alpha
	timeout "$LIMIT" "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED/talks" -- true >"$OUT/banner" 2>&1 || { cat "$OUT/banner" && rc=1; }
	HOSTS=$save
	printf '#!/bin/sh\nexec sleep 600\n' >"$BED/deaf" && chmod +x "$BED/deaf"
	timeout "$LIMIT" "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED/deaf" --bootstrap-timeout 1s -- true >"$OUT/deaf" 2>&1 && echo "a deaf host was not missed" && rc=1
	grep -q "^ep-fabric launch: no answer from alpha, beta within 1 s" "$OUT/deaf" || { cat "$OUT/deaf" && rc=1; }
	grep -hE '^ep-fabric launch: ' "$OUT/talks" "$OUT/deaf" | sed 's/^/# /'
	return "$rc"
}

# Without a remote shell: the same command on every host.
same_command()
{
	local host
	PIDS=()
	for host in alpha beta; do
		bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" ep-fabric launch --launch-rsh none --hosts alpha,beta -n 2 -- \
			ep-bench moe --launched "${SMALL[@]}" >"$OUT/rank.${#PIDS[@]}" 2>&1 &
		PIDS+=($!)
	done
	all_right
}
