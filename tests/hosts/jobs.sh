#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The stage hosts: jobs on hosts made of namespaces (bed.sh), with the TCP NIC. Usage: jobs.sh BUILD LOGS [CASE...], with BUILD a build tree with ep-bench and
# ep-fabric. Prints "ok CASE", "FAIL CASE: why" or "skip CASE: why", and results as "# " lines. Exit status 77 with a reason as the last line: no hosts here.
# HOSTS_AT_ONCE: cases at a time (3).
#
# No case is judged by its time. Order is forced: a fault comes after a line that the job has printed, and a job that ends before it is a failure. Times are
# printed. What bounds a case are the product's own deadlines (settings below) and LIMIT, against hanging.
# shellcheck disable=SC2317 # run_case calls functions by name
set -u
# shellcheck source=tests/hosts/bed.sh
. "$(dirname "$(readlink -f "$0")")/bed.sh"

BUILD=$(readlink -f "$1")
LOGS=$(readlink -f "$2")
shift 2
BED_KEEP="$BUILD $LOGS"
BED_PATH=$BUILD/tools:$BUILD/bench
LIMIT=$((100 * ${LIMIT_TIMES:-1}))
AT_ONCE=${HOSTS_AT_ONCE:-3}
ONLY=("$@")
SMALL=(--tokens 32 --hidden 512 --experts 24 --topk 4 --quiet)
# Long enough for a fault in the middle; a job of this size takes some seconds.
LONG=(--tokens 128 --hidden 1024 --experts 24 --topk 4 --rounds 64)
# What "within 3 s" needs: a host that says nothing is given up after these. TCP keepalives go out once a second, so a tcp-timeout of 1 s loses idle connections too.
SOON=(EPF_TCP_TIMEOUT=1500ms EPF_PEER_TIMEOUT=1s EPF_PEER_SILENCE=1500ms)
# For faults that a job survives: no deadline of the product may end it on a slow machine.
PATIENT=(EPF_PEER_TIMEOUT=60s EPF_PEER_SILENCE=0 EPF_TCP_TIMEOUT=60s)

# ---- helpers ---------------------------------------------------------------------------------

wanted()
{
	[ ${#ONLY[@]} = 0 ] || [[ " ${ONLY[*]} " == *" $1 "* ]]
}

# run_case NAME FUNCTION HOSTS CABLES ARGUMENT...: on fresh hosts, beside up to AT_ONCE - 1 other cases: most of a case is waiting
run_case()
{
	wanted "$1" || return 0
	[ "$(jobs -rp | wc -l)" -lt "$AT_ONCE" ] || wait -n
	case_on_hosts "$@" &
}

# Runs in a subshell. Its output goes to a file, so that lines of concurrent cases do not mix.
case_on_hosts()
{
	local name=$1 function=$2 hosts=$3 cables=$4 rc=0 begin
	shift 4
	OUT=$LOGS/hosts-$name
	rm -rf "$OUT" && mkdir -p "$OUT" || exit 1
	begin=$(now_ms)
	ENVIRONMENT=()
	BED_KEEP="$BUILD $LOGS"
	trap bed_end EXIT
	trap 'exit 143' TERM
	bed_begin "$hosts" "$cables" >"$OUT/bed" 2>&1 && secrets && HOSTS=$(IFS=, && echo "${BED_HOSTS[*]}") && "$function" "$@" >"$OUT/case" 2>&1 || rc=$?
	bed_end || { echo "stopped processes are left:$BED_LEFT" >>"$OUT/case" && rc=1; }
	said "$name" "$rc" $(($(now_ms) - begin)) >"$OUT/said"
	cat "$OUT/said"
}

# said NAME STATUS MS: what is reported of a case
said()
{
	grep -h '^# ' "$OUT/case" 2>/dev/null
	case $2 in
	0) echo "ok $1" ;;
	77) echo "skip $1: $(tail -n 1 "$OUT/case")" ;;
	*)
		tail -n 30 "$OUT"/bed "$OUT"/case 2>/dev/null | sed 's/^/    | /'
		echo "FAIL $1: $(grep -v '^#' "$OUT/case" | tail -n 1); see $OUT"
		;;
	esac
	printf '# %s: %d ms\n' "$1" "$3"
}

# Ends the running cases and their hosts.
end_cases()
{
	local pids
	mapfile -t pids < <(jobs -p)
	[ ${#pids[@]} = 0 ] || kill "${pids[@]}" 2>/dev/null
	wait
}

now_ms()
{
	local t=${EPOCHREALTIME//[.,]/}
	echo $((t / 1000))
}

# The job's secret for jobs without a launcher of ours, the daemons' secret, both in the bed's folder, which all hosts see.
secrets()
{
	(umask 077 && head -c 32 /dev/urandom | base64 >"$BED/job.secret" && head -c 32 /dev/urandom | base64 >"$BED/fabric.secret")
}

# launch OPTION...: the launcher outside of the hosts; $ENVIRONMENT goes to it and so to the ranks
launch()
{
	timeout -k 5 "$LIMIT" env EPF_NIC=tcp "${ENVIRONMENT[@]}" "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$BED_HERE/enter" "$@"
}
ENVIRONMENT=()

# right FILE NODES: a report of ep-bench moe of so many nodes, everything right
right()
{
	grep -q "ranks on $2 nodes" "$1" || { cat "$1" && echo "no report of $2 nodes in $1" && return 1; }
	grep -q '# wrong: 0$' "$1" || { cat "$1" && echo "no '# wrong: 0' in $1" && return 1; }
}

# moe NAME OPTION...: one launched job, everything right
moe()
{
	local name=$1
	shift
	launch -n 2 -- ep-bench moe --launched "$@" >"$OUT/$name" 2>&1 || { cat "$OUT/$name" && echo "$name: exit status $?" && return 1; }
	right "$OUT/$name" "${#BED_HOSTS[@]}"
}

four_shapes()
{
	local mode format rc=0
	for mode in ll ht; do
		for format in fp8 bf16; do
			moe "$1-$mode-$format" "${SMALL[@]}" --mode "$mode" --dispatch "$format" || rc=1
		done
	done
	return "$rc"
}

# start_ranks RANKS-PER-HOST COMMAND...: in the background, as any launcher of others would: variables, and the same command. PIDS, $OUT/rank.N
start_ranks()
{
	local per=$1 host i n=0
	shift
	PIDS=()
	for host in "${BED_HOSTS[@]}"; do
		for ((i = 0; i < per; i++)); do
			bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_RANK="$n" EPF_WORLD_SIZE=$((per * ${#BED_HOSTS[@]})) EPF_RENDEZVOUS=alpha:29999 \
				EPF_SECRET_FILE="$BED/job.secret" "${ENVIRONMENT[@]}" "$@" >"$OUT/rank.$n" 2>&1 &
			PIDS+=($!)
			n=$((n + 1))
		done
	done
}

# await FILE PATTERN PID: a line of a running process
await()
{
	local end=$(($(now_ms) + LIMIT * 1000))
	until grep -qE -- "$2" "$1" 2>/dev/null; do
		if ! kill -0 "$3" 2>/dev/null || [ "$(now_ms)" -ge "$end" ]; then
			grep -qE -- "$2" "$1" 2>/dev/null && return 0
			cat "$1"
			echo "$1 never says '$2'"
			return 1
		fi
		sleep 0.02
	done
}

# all_right: the ranks that run end with 0, and rank 0 reports
all_right()
{
	local i rc=0
	for i in "${!PIDS[@]}"; do
		wait "${PIDS[i]}" || { echo "rank $i: exit status $?" && tail -n 3 "$OUT/rank.$i" && rc=1; }
	done
	[ "$rc" = 0 ] && right "$OUT/rank.0" "${#BED_HOSTS[@]}"
}

# runs_still NAME: a fault must hit a job that runs
runs_still()
{
	kill -0 "${PIDS[0]}" 2>/dev/null || { echo "the job ended before $1: more rounds are needed" && return 1; }
}

# counted NAME: that counter of a report, summed over the job's engines
counted()
{
	awk -v name="$1" '{ for (i = 1; i < NF; i++) if ($i == name) print $(i + 1) }' "$OUT/rank.0" | tail -n 1
}

# ---- point to point ---------------------------------------------------------------------------

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

# ---- jobs ------------------------------------------------------------------------------------

embedded()
{
	four_shapes embedded
}

with_daemons()
{
	local host rc=0 daemons=()
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" ep-fabric run --instance=main --node="$host" --fabric-secret-file="$BED/fabric.secret" >"$OUT/daemon.$host" 2>&1 &
		daemons+=($!)
	done
	for host in "${BED_HOSTS[@]}"; do
		await "$OUT/daemon.$host" 'main: ready' $$ || return 1
	done
	ENVIRONMENT=(EPF_SERVICE=main)
	four_shapes daemons || rc=1
	ENVIRONMENT=()
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" pkill -TERM -x ep-fabric
		await "$OUT/daemon.$host" 'launch-.*: ended' $$ || rc=1
	done
	for host in "${daemons[@]}"; do
		wait "$host" || { echo "a daemon ended with $?" && rc=1; }
	done
	return "$rc"
}

# connections: established connections of alpha's engines to beta, those to the rendezvous left out; by cable
connections()
{
	# Addresses of a socket for both families look like [::ffff:10.77.1.1]:29999.
	bed_on alpha ss -tnH state established | sed 's/\[::ffff:\([0-9.]*\)\]/\1/g' | awk '$3 !~ /:29999$/ && $4 !~ /:29999$/ { sub(/:[0-9]*$/, "", $3); print $3 }' |
		sort | uniq -c | awk '{ printf "%s%d by %s", sep, $1, $2; sep = ", " }'
}

# A daemon's connections to another: as many with one rank a host as with four, one for each of two cables, one at the least.
connections_of_daemons()
{
	local host ranks lanes cables want got daemons rc=0
	while read -r lanes cables want <&3; do
		daemons=()
		for host in "${BED_HOSTS[@]}"; do
			bed_on "$host" ep-fabric run --instance=main --node="$host" --fabric-secret-file="$BED/fabric.secret" --lanes-per-peer="$lanes" \
				--socket-ifname="$cables" >"$OUT/daemon.$host" 2>&1 &
			daemons+=($!)
		done
		for host in "${BED_HOSTS[@]}"; do
			await "$OUT/daemon.$host" 'main: ready' $$ || return 1
		done
		for ranks in 1 4; do
			ENVIRONMENT=(EPF_SERVICE=main)
			start_ranks "$ranks" ep-bench moe --launched "${LONG[@]}" --tokens 32
			await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
			got=$(connections)
			runs_still "its connections were counted" || return 1
			all_right || return 1
			echo "# $ranks ranks a host, lanes-per-peer $lanes, $cables: $got"
			[ "$got" = "$want" ] || { echo "wanted $want" && rc=1; }
		done
		for host in "${BED_HOSTS[@]}"; do
			bed_on "$host" pkill -TERM -x ep-fabric
		done
		wait "${daemons[@]}" || { echo "a daemon ended with $?" && rc=1; }
	done 3<<-END
		1 eth1 1 by 10.77.1.1
		2 eth1 2 by 10.77.1.1
		2 eth1,eth2 1 by 10.77.1.1, 1 by 10.77.2.1
	END
	return "$rc"
}

# as_launcher NAME FORMAT: a job whose ranks have the variables of a launcher; FORMAT: those of rank R, local rank L, node N, host H
as_launcher()
{
	local host i n=0 words
	PIDS=()
	for host in alpha beta; do
		for i in 0 1; do
			words=${2//@R/$n} words=${words//@L/$i} words=${words//@N/$((n / 2))} words=${words//@H/$host}
			# shellcheck disable=SC2086
			bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" $words ep-bench moe --launched "${SMALL[@]}" \
				>"$OUT/rank.$n" 2>&1 &
			PIDS+=($!)
			n=$((n + 1))
		done
	done
	all_right || { echo "with the variables of $1" && return 1; }
}

# What torchrun, srun and mpirun set.
launchers()
{
	local rc=0
	as_launcher torchrun 'RANK=@R WORLD_SIZE=4 LOCAL_RANK=@L LOCAL_WORLD_SIZE=2 GROUP_RANK=@N MASTER_ADDR=alpha MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none' || rc=1
	as_launcher srun 'SLURM_PROCID=@R SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=@L SLURM_NODEID=@N SLURM_STEP_NODELIST=alpha,beta SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURMD_NODENAME=@H' || rc=1
	as_launcher mpirun 'OMPI_COMM_WORLD_RANK=@R OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=@L OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-alpha-9@1 MASTER_ADDR=alpha' || rc=1
	return "$rc"
}

torchrun_itself()
{
	local host n=0
	PIDS=()
	command -v torchrun >/dev/null || { echo "no torchrun here (package python3-torch)" && return 77; }
	# PyTorch 1.13 needs it with Python 3.11, which no longer lists a flag of value 0.
	python3 -c 'import torch.distributed.elastic.multiprocessing as m; m.Std.from_str("0").name' 2>/dev/null || { echo "this torchrun does not work with this Python" && return 77; }
	for host in alpha beta; do
		bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" torchrun --nnodes 2 --node_rank "$n" --nproc_per_node 2 \
			--master_addr alpha --master_port 29400 --redirects 3 --tee 3 --log_dir /tmp \
			--no_python "$BUILD/bench/ep-bench" moe --launched "${SMALL[@]}" >"$OUT/rank.$n" 2>&1 &
		PIDS+=($!)
		n=$((n + 1))
	done
	all_right
}

# ---- the launcher ----------------------------------------------------------------------------

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

# ---- faults that a job survives --------------------------------------------------------------

# One cable, pulled in the middle and plugged again: the job waits, and everything is right.
cable_replugged()
{
	ENVIRONMENT=("${PATIENT[@]}")
	start_ranks 2 ep-bench moe --launched "${LONG[@]}"
	await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
	bed_unplug beta 1
	sleep 1
	runs_still "the cable was plugged again" || return 1
	bed_plug beta 1
	all_right || return 1
	echo "# cable out for 1 s: $(grep -h '^# failovers' "$OUT/rank.0" || echo 'no failover')"
}

# Two cables, one of which is pulled: its traffic goes over the other one, and comes back when it is plugged again.
one_of_two_cables()
{
	ENVIRONMENT=(EPF_LOG=info "EPF_SOCKET_IFNAME=eth1,eth2" EPF_TCP_TIMEOUT=3s EPF_PEER_TIMEOUT=60s EPF_PEER_SILENCE=0)
	start_ranks 2 ep-bench moe --launched "${LONG[@]}"
	await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
	bed_unplug beta 2
	# What was under way on it must have moved by then.
	await "$OUT/rank.0" 'round 16 of' "${PIDS[0]}" || return 1
	runs_still "the cable was plugged again" || return 1
	bed_plug beta 2
	all_right || return 1
	grep -h '^# failovers' "$OUT/rank.0"
	[ "$(counted failovers)" -gt 0 ] 2>/dev/null || { echo "the engines counted no failover" && return 1; }
}

mtu_1280()
{
	bed_mtu 1280
	moe mtu-ll "${SMALL[@]}" --mode ll && moe mtu-ht "${SMALL[@]}" --mode ht --dispatch bf16
}

loss_and_delay()
{
	bed_relay beta 1 --loss 0.01 --delay-ms 3 --seed 7 || return 1
	ENVIRONMENT=("${PATIENT[@]}")
	moe loss-ll "${SMALL[@]}" --mode ll --rounds 4 && moe loss-ht "${SMALL[@]}" --mode ht --rounds 4 || return 1
	bed_unrelay >"$OUT/relay" || return 1
	sed 's/^/# /' "$OUT/relay"
	grep -qE ' [1-9][0-9]* dropped' "$OUT/relay" || { echo "no frame was dropped" && return 1; }
}

# Connections of a running job are reset from outside, again and again.
connections_reset()
{
	local killer
	ENVIRONMENT=("${PATIENT[@]}")
	start_ranks 2 ep-bench moe --launched "${LONG[@]}"
	await "$OUT/rank.0" 'round 2 of' "${PIDS[0]}" || return 1
	bed_on beta python3 "$BED_HERE/reset.py" --interface eth1 --not-port 29999 --times 4 >"$OUT/reset" 2>&1 &
	killer=$!
	wait "$killer" || { cat "$OUT/reset" && echo "no connections were reset" && return 1; }
	all_right || return 1
	sed 's/^/# /' "$OUT/reset"
	[ "$(counted failovers)" -gt 0 ] 2>/dev/null || { echo "the engines counted no failover" && return 1; }
	grep -h '^# failovers' "$OUT/rank.0"
}

# ---- strangers and listeners -----------------------------------------------------------------

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

# says FILE WORDS: the words stand in it
says()
{
	grep -qE -- "$2" "$1" || { cat "$1" && echo "$1 does not say '$2'" && return 1; }
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

# ---- hosts that vanish -----------------------------------------------------------------------

# hears RANK BEGIN PATTERN: waits until a rank has said whom it lost
hears()
{
	await "$OUT/rank.$1" "$3" "${PIDS[$1]}" || return 1
	echo "# rank $1, after $(($(now_ms) - $2)) ms: $(grep -oE -- "$3" "$OUT/rank.$1" | head -n 1)"
}

# vanish HOW: gamma vanishes; every rank elsewhere says which rank of gamma it lost, and ends with an error
vanish()
{
	local begin i rc=0
	ENVIRONMENT=("${SOON[@]}")
	start_ranks 2 ep-bench moe --launched "${LONG[@]}"
	await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
	begin=$(now_ms)
	case $1 in
	frozen) bed_freeze gamma ;;
	off) bed_unplug gamma 1 && bed_freeze gamma ;;
	killed) bed_kill gamma ;;
	esac
	for i in 0 1 2 3; do
		hears "$i" "$begin" 'rank [45] on node 2 is lost|commands failed, first number [0-9]* to rank [45]:|rank [45] at [0-9.:]* \(node gamma\) was lost' || rc=1
	done
	for i in 0 1 2 3; do
		wait "${PIDS[i]}"
		[ $? = 1 ] || { echo "rank $i did not fail" && rc=1; }
	done
	echo "# all have ended after $(($(now_ms) - begin)) ms"
	return "$rc"
}

# The cable stays out for longer than the deadlines: both sides say whom they lost.
cable_out()
{
	local begin i rc=0
	ENVIRONMENT=("${SOON[@]}")
	start_ranks 2 ep-bench moe --launched "${LONG[@]}"
	await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
	begin=$(now_ms)
	bed_unplug beta 1
	for i in 0 1; do
		hears "$i" "$begin" 'rank [23] on node 1 is lost|commands failed, first number [0-9]* to rank [23]:' || rc=1
	done
	for i in 2 3; do
		hears "$i" "$begin" 'rank [01] on node 0 is lost|commands failed, first number [0-9]* to rank [01]:' || rc=1
	done
	return "$rc"
}

# ---- the guide -------------------------------------------------------------------------------

# A server for ssh(1) on every host, and a key that is welcome on all. Packages and programs are here already: commands 1 and 2 of the page.
ssh_hosts()
{
	local host
	for host in dropbear ssh; do
		command -v "$host" >/dev/null || { echo "no $host here (packages dropbear-bin, openssh-client)" && return 77; }
	done
	ssh-keygen -q -t ed25519 -N '' -f "$BED/key" || return 1
	for host in "${BED_HOSTS[@]}"; do
		dropbearkey -t ed25519 -f "$BED/$host.hostkey" >/dev/null 2>&1 || return 1
		# Where a login finds the programs: this server's PATH has not even /usr/local/bin.
		# shellcheck disable=SC2016
		bed_on "$host" bash -c 'umask 077; mkdir -p .ssh && cp "$1/key" .ssh/id_ed25519 && cp "$1/key.pub" .ssh/authorized_keys &&
			printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n" >.ssh/config && printf "export PATH=%q\n" "$PATH" >.bashrc' \
			bash "$BED" || return 1
		bed_on "$host" dropbear -F -E -s -p 22 -P /run/dropbear.pid -r "$BED/$host.hostkey" >"$OUT/dropbear.$host" 2>&1 </dev/null &
		await_port "$host" || return 1
	done
}

await_port()
{
	local turn
	for turn in {1..250}; do
		! bed_on "$1" grep -q ':0016 .* 0A ' /proc/net/tcp || return 0
		sleep 0.05
	done
	echo "$1: nobody listens on port 22 after $turn looks"
	return 1
}

# page_run NUMBER HOST BG PATTERN COMMAND
page_run()
{
	local file=$OUT/page.$1.$2 rc=0
	echo "$2\$ $5"
	if [ "$3" = '&' ]; then
		bed_on "$2" bash -c "exec env $5" >"$file" 2>&1 &
		BEHIND+=("$!"$'\t'"$2"$'\t'"$5")
		[ "$4" = . ] || await "$file" "$4" $! || return 1
		return 0
	fi
	bed_on "$2" timeout -k 5 "$LIMIT" bash -c "$5" >"$file" 2>&1 || rc=$?
	sed "s/^/    $2 | /" "$file"
	[ "$rc" = 0 ] || { echo "$2: exit status $rc of: $5" && return 1; }
	if [ "$4" = '^$' ]; then
		[ ! -s "$file" ] || { echo "$2: wants nothing said by: $5" && return 1; }
	else
		grep -Pzoq "(?m)$4" "$file" || { echo "$2: wants '$4' of: $5" && return 1; }
	fi
}

# The commands of docs/guides/hosts.md, as they stand there.
guide()
{
	local number host bg pattern command one pid ran=0 rc=0
	ssh_hosts || return
	BEHIND=()
	awk -v mark=hosts -f "$BED_TREE/tests/page_commands.awk" "$BED_TREE/docs/guides/hosts.md" >"$OUT/commands" || return 1
	while IFS=$'\t' read -r number host bg pattern command <&4; do
		[ "$host" != no ] || continue
		[ "$host" != both ] || host="alpha beta"
		for one in $host; do
			page_run "$number" "$one" "$bg" "$pattern" "$command" || return 1
		done
		ran=$((ran + 1))
	done 4<"$OUT/commands"
	for one in "${BEHIND[@]}"; do
		IFS=$'\t' read -r pid host command <<<"$one"
		[[ $command != "ep-fabric run"* ]] || bed_on "$host" pkill -TERM -f '^ep-fabric run'
		wait "$pid" || { echo "$host: exit status $? of: $command" && rc=1; }
	done
	grep -q '# wrong: 0' "$OUT"/page.9.alpha || { cat "$OUT"/page.9.* && rc=1; }
	echo "# $ran commands of docs/guides/hosts.md"
	[ "$ran" -ge 6 ] && return "$rc"
}

# ---- all of them -----------------------------------------------------------------------------

why=$(bed_why_not)
if [ -n "$why" ]; then
	echo "$why"
	exit 77
fi
trap end_cases EXIT
trap 'exit 143' TERM
run_case moe-2-embedded embedded 2 1
run_case moe-3-embedded embedded 3 1
run_case moe-2-daemons with_daemons 2 1
run_case moe-3-daemons with_daemons 3 1
run_case transfers transfers 2 2
run_case target-killed target_vanishes 2 1 killed
run_case target-unplugged target_vanishes 2 1 unplugged
run_case connections connections_of_daemons 2 2
run_case launchers launchers 2 1
run_case torchrun torchrun_itself 2 1
run_case launch-ends-all launcher_ends_all 2 1
run_case launch-secret launcher_keeps_secret 2 1
run_case launch-addresses addresses 2 2
run_case launch-same-command same_command 2 1
run_case guide guide 2 1
run_case cable-replugged cable_replugged 2 1
run_case cable-one-of-two one_of_two_cables 2 2
run_case cable-out cable_out 2 1
run_case mtu-1280 mtu_1280 2 1
run_case loss-delay loss_and_delay 2 1
run_case connections-reset connections_reset 2 1
run_case encrypted encrypted 2 1
run_case apart apart 2 2
run_case why why_sees 2 1
run_case strangers strangers 3 1
run_case host-frozen vanish 3 1 frozen
run_case host-off vanish 3 1 off
run_case host-killed vanish 3 1 killed
wait
exit 0
