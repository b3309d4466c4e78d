# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# shellcheck disable=SC2034 # ENVIRONMENT and BED_HOSTS are for job_kit.sh
# Cases of jobs.sh: faults that a job survives, and hosts that vanish.

# ---- a job survives --------------------------------------------------------------------------

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

# ---- a host vanishes -------------------------------------------------------------------------

# hears RANK BEGIN PATTERN: waits until a rank's error names the rank that it lost
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
