# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Jobs on the hosts of a case: starting them, waiting for their words, reading their reports. Sourced by jobs.sh, which has set BUILD, LIMIT and, for each
# case, HOSTS, BED_HOSTS and OUT.

# shellcheck disable=SC2034 # for the cases
SMALL=(--tokens 32 --hidden 512 --experts 24 --topk 4 --quiet)
# Long enough for a fault in the middle; a job of this size takes some seconds.
LONG=(--tokens 128 --hidden 1024 --experts 24 --topk 4 --rounds 64)
# What "within 3 s" needs: a host that says nothing is given up after these. TCP keepalives go out once a second, so a tcp-timeout of 1 s loses idle connections too.
SOON=(EPF_TCP_TIMEOUT=1500ms EPF_PEER_TIMEOUT=1s EPF_PEER_SILENCE=1500ms)
# For faults that a job survives: no deadline of the product may end it on a slow machine.
PATIENT=(EPF_PEER_TIMEOUT=60s EPF_PEER_SILENCE=0 EPF_TCP_TIMEOUT=60s)

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

# says FILE WORDS: the words stand in it
says()
{
	grep -qE -- "$2" "$1" || { cat "$1" && echo "$1 does not say '$2'" && return 1; }
}
