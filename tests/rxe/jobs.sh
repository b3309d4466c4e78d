#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The jobs of the rxe guest, run in it by guest.sh: jobs.sh GROUP[,GROUP...] BUILD, where BUILD is a build directory with tests. Each job ends as
# one line of $RXE_OUT/results (pass|fail, name, detail), in the form of tests/lib.sh, with its output beside it; tests/expected.txt
# has their names. Exit status 0 when all of the group passed.
#
# EPF_TEST_LONG=1 runs the long forms; HOOKS=DIR names a build directory with test hooks, which some of them need.
# RXE_ONLY=REGEX runs only the jobs of the group whose names match.
# RXE_NIC=emu runs the same jobs on the software NIC: to tell a fault of this harness from one of the verbs NIC.
# shellcheck disable=SC2317 # most functions are called by name, through job
set -uo pipefail

HERE=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
# shellcheck source=tests/rxe/devices.sh
. "$HERE/devices.sh"
# shellcheck source=tests/rxe/jobs_speed.sh
. "$HERE/jobs_speed.sh"
# shellcheck source=tests/rxe/jobs_deploy.sh
. "$HERE/jobs_deploy.sh"
rxe_in_guest || exit 1
GROUPS_GIVEN=${1:?jobs.sh GROUP BUILD}
BUILD=${2:?jobs.sh GROUP BUILD}
LONG=${EPF_TEST_LONG:-0}
export RXE_DEVICES=$HERE/devices.sh
BENCH=$BUILD/bench/ep-bench
NIC=${RXE_NIC:-verbs}
FAILED=0

# DeepSeek-V3's rows, experts and top-k with few tokens: the emulated CPU moves some 30 MB a second.
SHAPE=(--ranks 4 --nodes 2 --hidden 7168 --topk 8 --experts 256 --tokens 16 --quiet)
# The NIC of each node's daemon.
NICS=(--set "nic=$NIC" --set 0:nic-device=rxe0 --set 1:nic-device=rxe1)
# Both of its NICs.
TWO_NICS=(--set "nic=$NIC" --set "0:nic-device=rxe0,rxe2" --set "1:nic-device=rxe1,rxe3")

# ---- how jobs run and count ---------------------------------------------------------------------

now_ms()
{
	local t=${EPOCHREALTIME//[.,]/}
	printf '%s\n' $((t / 1000))
}

# result pass|fail|skip NAME DETAIL
result()
{
	printf '%s\t%s\t%s\n' "$1" "$2" "$3" >>"$RXE_OUT/results"
	printf '    %-5s %s: %s\n' "$1" "$2" "$3"
	[ "$1" != fail ] || FAILED=1
}

# job NAME LIMIT_S COMMAND...: one check; its output goes to NAME.log, which is shown when it fails; of one that passes,
# its lines "# result: ..." are
job()
{
	local name=$1 limit=$2 start rc log note
	shift 2
	[[ $name =~ ${RXE_ONLY:-.} ]] || return 0
	log=$RXE_OUT/${name//[^A-Za-z0-9]/-}.log
	dmesg --clear
	start=$(now_ms)
	limit=$((limit * 3 * ${LIMIT_TIMES:-1})) # what is given is for a machine without other work, several times what it takes there
	JOB_LIMIT=$limit "$@" >"$log" 2>&1
	rc=$?
	start=$(($(now_ms) - start))
	if [ "$rc" = 0 ]; then
		note=$(sed -n 's/^# result: /; /p' "$log" | tr -d '\n')
		result pass "$name" "$((start / 1000)).$((start % 1000 / 100)) s$note"
		return 0
	fi
	# What was wrong is said before the logs of the daemons, which are long.
	[ "$(wc -l <"$log")" -le 60 ] || grep -A 4 ' is false' "$log" | head -n 30 | sed 's/^/        | /'
	tail -n 60 "$log" | sed 's/^/        | /'
	dmesg | tail -n 20 | sed 's/^/        | kernel: /'
	[ "$rc" != 124 ] || rc="124, not within its $limit s"
	result fail "$name" "exit status $rc"
	return 1
}

limited()
{
	timeout -k 5 "$JOB_LIMIT" "$@"
}

# counter NAME: sum of a counter of the soft-RoCE devices
counter()
{
	cat /sys/class/infiniband/rxe[0-3]/ports/1/hw_counters/"$1" 2>/dev/null | awk '{ sum += $1 } END { print sum + 0 }'
}

# Packets that went into the veth pairs.
packets()
{
	cat /sys/class/net/veth[0-3]/statistics/tx_packets | awk '{ sum += $1 } END { print sum + 0 }'
}

# crossing COMMAND...: it must succeed, and with the verbs NIC its traffic must have crossed the pairs
crossing()
{
	local before rc
	before=$(packets)
	"$@"
	rc=$?
	before=$(($(packets) - before))
	echo "packets over the veth pairs: $before"
	[ "$rc" = 0 ] || return "$rc"
	[ "$NIC" != verbs ] || [ "$before" -ge 100 ] || { echo "too few: this was another NIC" && return 1; }
}

# ---- groups -------------------------------------------------------------------------------------

# The contract's suite (tools/prove, by tests/unit/nic/test_nic*.c) between two devices.
group_nic()
{
	job nic-conformance 120 crossing conformance test_nic
	job nic-limits 120 crossing conformance test_nic_limits
	job nic-fail 120 crossing conformance test_nic_fail
	job nic-device 120 conformance test_verbs_device
	[ "$LONG" != 1 ] || job nic-prove 120 crossing prove
	job nic-prove-hosts 120 crossing prove_hosts
	job nic-endpoints 120 crossing endpoints
	job nic-nccl 120 crossing nccl test_nccl ring_in_every_version
	job nic-gin 120 crossing nccl test_gin every_version
}

# nccl PROGRAM CASE: NCCL's calls through the plug-in, and kernels' requests, by ranks with a device each (stage proc has all cases over other NICs)
nccl()
{
	EPF_NIC=$NIC PLAY_DEVICES=rxe0,rxe1 EPF_SOCKET_IFNAME=lo limited "$BUILD/tests/proc/$1" "$BUILD/tools/nccl/libnccl-net-epf.so" "$2"
}

# Point-to-point endpoints of two processes, each with its own device (stage p2p has the same test over other NICs).
endpoints()
{
	limited "$BUILD/tests/unit/test_p2p_nic" "$NIC" "socket-ifname=lo nic-device=rxe0" nic-device=rxe1
}

# The same checks as their users run them: two devices of one host; then two programs that find each other.
prove()
{
	limited "$BUILD/tools/ep-fabric" nics --prove "--nic=$NIC" --nic-device=rxe0 --peer-device=rxe1
}

prove_hosts()
{
	local rc waits
	limited "$BUILD/tools/ep-fabric" nics --prove --wait "--nic=$NIC" --nic-device=rxe1 &
	waits=$!
	limited "$BUILD/tools/ep-fabric" nics --prove=127.0.0.1 "--nic=$NIC" --nic-device=rxe0
	rc=$?
	wait "$waits" && return "$rc"
}

# conformance PROGRAM: over the devices only; the others ran on the host
conformance()
{
	EPF_TEST_NIC=verbs EPF_TEST_VERBS_DEVICES=rxe0,rxe1 EPF_TEST_VERBS_LINK=veth0 \
		EPF_TEST_VERBS_LINK_UP="bash -c '. $HERE/devices.sh; rxe_neighbours'" limited "$BUILD/tests/unit/$1"
}

# moe OPTION...: dispatch and combine between two daemons, every byte checked
moe()
{
	local out rc
	out=$(mktemp) || return 1
	limited "$BENCH" moe --service "${SHAPE[@]}" "${NICS[@]}" --timeout-s "$JOB_LIMIT" "$@" >"$out"
	rc=$?
	cat "$out"
	[ "$rc" = 0 ] && grep -qx '# wrong: 0' "$out"
}

group_moe()
{
	job moe-ll-fp8 120 crossing moe --mode ll --dispatch fp8
	job moe-ht-bf16 120 crossing moe --mode ht --dispatch bf16
	if [ "$LONG" = 1 ]; then
		job moe-ll-bf16 120 crossing moe --mode ll --dispatch bf16
		job moe-ht-fp8 120 crossing moe --mode ht --dispatch fp8
		job moe-unordered 120 crossing moe --mode ll --set verbs-order=unordered --order unordered
	fi
	job moe-two-nics 120 both_pairs moe --mode ht "${TWO_NICS[@]}"
}

# both_pairs COMMAND...: as crossing, and each pair must have carried a fair share
both_pairs()
{
	local a b c d
	a=$(pair_packets 0 1) b=$(pair_packets 2 3)
	crossing "$@" || return 1
	c=$(pair_packets 0 1) d=$(pair_packets 2 3)
	echo "# result: $((c - a)) packets over pair A, $((d - b)) over pair B"
	[ "$NIC" != verbs ] || { [ $((c - a)) -gt $(((d - b) / 10)) ] && [ $((d - b)) -gt $(((c - a) / 10)) ]; } ||
		{ echo "one pair did it all" && return 1; }
}

pair_packets()
{
	cat /sys/class/net/veth{"$1","$2"}/statistics/tx_packets | awk '{ sum += $1 } END { print sum + 0 }'
}

# calls MODE: low latency (ll) or high throughput (ht), both in the long form
calls()
{
	[ "$LONG$1" = 0ht ] || crossing moe --mode ll --dispatch fp8 || return 1
	[ "$LONG$1" = 0ll ] || crossing moe --mode ht --dispatch bf16
}

# disturbed MODE WHAT COUNTER...: calls while netem does WHAT, which must be seen in the kernel's COUNTERs
disturbed()
{
	# shellcheck disable=SC2178
	local mode=$1 what=$2 c before after=0
	local -a counters=("${@:3}")
	# shellcheck disable=SC2086,SC2128
	rxe_netem $what || return 1
	before=$(seen "${counters[@]}")
	calls "$mode" || after=failed
	rxe_netem_counts
	for c in duplicate_request out_of_seq_request rcvd_seq_err completer_retry_err retry_exceeded_err; do
		echo "    $c $(counter "$c")"
	done
	[ "$after" != failed ] || { rxe_netem && return 1; }
	after=$(seen "${counters[@]}")
	rxe_netem
	[ ${#counters[@]} = 0 ] || echo "# result: ${counters[*]} +$((after - before))"
	[ "$NIC" != verbs ] || [ ${#counters[@]} = 0 ] || [ "$after" -gt "$before" ] ||
		{ echo "netem disturbed nothing" && return 1; }
}

# seen COUNTER...: their sum
seen()
{
	local c sum=0
	for c in "$@"; do
		case $c in
		dropped) sum=$((sum + $(rxe_netem_counts | awk '{ sum += $(NF - 1) } END { print sum + 0 }'))) ;;
		*) sum=$((sum + $(counter "$c"))) ;;
		esac
	done
	echo "$sum"
}

# No jitter: it reorders, and soft-RoCE answers reordering with storms of retransmissions.
group_netem()
{
	job netem-loss-1 120 disturbed ll "loss 1%" dropped
	job netem-loss-5 120 disturbed ht "loss 5%" dropped
	job netem-duplicate-2 120 disturbed ht "duplicate 2%" duplicate_request
	job netem-corrupt-1 120 disturbed ll "corrupt 1%" out_of_seq_request completer_retry_err
	job netem-delay 120 delayed 5 2
	job netem-unordered 120 disturbed_unordered
}

# delayed MS MOE_MS: no transfer is faster than the delay: so netem delays what we send
delayed()
{
	local without with
	without=$(fastest) || return 1
	rxe_netem delay "$1ms" || return 1
	with=$(fastest) && rxe_netem delay "$2ms" && calls ll || without=failed
	rxe_netem
	[ "$without" != failed ] || return 1
	echo "# result: fastest of 40 transfers of 8 bytes $without us, with the delay $with us"
	[ "$NIC" != verbs ] || [ "$with" -ge "${1}000" ] || { echo "want at least ${1}000 us with the delay" && return 1; }
}

# The shortest way of 8 bytes from one device to the other, in whole microseconds.
fastest()
{
	limited "$BENCH" p2p "${NICS[@]}" -n 40 -s 8 --json | awk -F '[:, ]+' '$2 == "\"min_us\"" { print int($3); found = 1 }
		END { exit !found }'
}

# The scheme for unordered NICs over both, with packets lost and doubled.
disturbed_unordered()
{
	local rc=0
	rxe_netem loss 1% duplicate 1% || return 1
	both_pairs moe --mode ll "${TWO_NICS[@]}" --set verbs-order=unordered --order unordered || rc=1
	rxe_netem_counts
	[ "$(seen dropped)" -gt 0 ] || [ "$NIC" != verbs ] || { echo "netem dropped nothing" && rc=1; }
	rxe_netem
	return "$rc"
}

# ---- link down and up ---------------------------------------------------------------------------

DAEMONS=/run/epf-rxe

# Two daemons that outlive jobs. What decides how soon a lost node is noticed are the defaults.
start_daemons()
{
	local n
	mkdir -m 700 "$DAEMONS" && head -c 32 /dev/urandom | od -A n -t x1 | tr -d ' \n' >"$DAEMONS/secret" || return 1
	chmod 600 "$DAEMONS/secret"
	for n in 0 1; do
		"$BUILD/tools/ep-fabric" run --instance="node$n" --runtime-dir="$DAEMONS" --stats-dir="$DAEMONS" \
			--fabric-secret-file="$DAEMONS/secret" --nic="$NIC" --nic-device="rxe$n,rxe$((n + 2))" --service-grace=100ms \
			--emu-retry-timeout=200ms 2>"$RXE_OUT/daemon$n.log" &
		DAEMON[n]=$!
	done
	for n in $(seq 600); do
		[ ! -S "$DAEMONS/node0.sock" ] || [ ! -S "$DAEMONS/node1.sock" ] || return 0
		sleep 0.1
	done
	echo "the daemons do not serve after 60 s"
	tail -n 20 "$RXE_OUT"/daemon?.log
	return 1
}

same_daemons()
{
	kill -0 "${DAEMON[0]}" && kill -0 "${DAEMON[1]}"
}

# ranks NAME OPTION...: four rank processes on the two daemons, each with its own end: NAME.N.end has exit status
# and time. What ep-bench would read through its pipe, the complaint in it, goes to NAME.N.said.
ranks()
{
	local name=$1 n
	shift
	RANKS=()
	export EPF_SECRET=rxe-guest-rxe-guest EPF_RENDEZVOUS=127.0.0.1:29555
	limited "$BUILD/tools/ep-fabric" bootstrap serve --world=4 --job=ep-bench >"$RXE_OUT/$name.bootstrap.log" 2>&1 &
	RANKS+=($!)
	for n in 0 1 2 3; do
		(
			export EPF_RANK=$n EPF_WORLD_SIZE=4 EP_BENCH_DAEMONS=$DAEMONS EP_BENCH_FD=3 EPF_JOB=$name
			limited "$BENCH" moe-rank "${SHAPE[@]}" --timeout-s "$JOB_LIMIT" --set "nic=$NIC" --set service-timeout=60s "$@" \
				3>"$RXE_OUT/$name.$n.said" 2>&1
			echo "$? $(now_ms)" >"$RXE_OUT/$name.$n.end"
		) &
		RANKS+=($!)
	done
}

# whole_job NAME: all four end with 0 within the limit
whole_job()
{
	local name=$1 n rc=0
	ranks "$name" --mode ll
	wait "${RANKS[@]}"
	for n in 0 1 2 3; do
		read -r status _ <"$RXE_OUT/$name.$n.end"
		[ "$status" = 0 ] || { echo "rank $n ended with $status: $(tr -cd '[:print:]' <"$RXE_OUT/$name.$n.said")" && rc=1; }
	done
	same_daemons || { echo "a daemon ended" && rc=1; }
	[ "$rc" = 0 ] || tail -n 15 "$RXE_OUT"/daemon?.log
	return "$rc"
}

cut_links()
{
	if [ "$NIC" = emu ]; then
		"$BUILD/tools/ep-fabric" link --runtime-dir="$DAEMONS" --down
	else
		rxe_down A
		rxe_down B
	fi
}

mend_links()
{
	[ "$NIC" = emu ] || { rxe_up A && rxe_up B; }
}

# under_way NAME: waits for the progress reports of all ranks: the first round is through
under_way()
{
	local n
	for n in $(seq 2100); do
		[ "$(stat -c %s "$RXE_OUT/$1".[0-3].said 2>/dev/null | awk '$1 >= 64 { n++ } END { print n + 0 }')" != 4 ] || return 0
		sleep 0.1
	done
	echo "the job did not start"
	return 1
}

# just_or_more N: a pattern for N (one digit), and on a busy machine for N or more
just_or_more()
{
	if [ "${LIMIT_TIMES:-1}" = 1 ]; then echo "$1"; else echo "\\([$1-9]\\|[1-9][0-9][0-9]*\\)"; fi
}

# One of two links goes down in the middle of a job and comes back: nothing is wrong, nobody ends before its time, and each end counts one failover
# and one recovery.
flap_job()
{
	local rc=0 out pid before
	out=$(mktemp) || return 1
	before=$(pair_packets 0 1)
	moe --mode ll --rounds 6 "${TWO_NICS[@]}" >"$out" 2>&1 &
	pid=$!
	while [ $(($(pair_packets 0 1) - before)) -lt 200 ] && kill -0 "$pid" 2>/dev/null; do
		sleep 0.1
	done
	rxe_down A
	sleep 0.5
	rxe_up A
	wait "$pid" || rc=1
	cat "$out"
	sed -n 's/^# failovers/# result: failovers/p' "$out"
	# Beside busy loops there were 4 of each once: why is not known.
	grep -q "^# failovers $(just_or_more 2) recoveries $(just_or_more 2) " "$out" || { echo "want one failover and one recovery at each end" && rc=1; }
	return "$rc"
}

# Both links go down for good in the middle of a job: each rank ends with an error that names a rank of the other node.
cut_job()
{
	local n down end status said other last=0 rc=0
	ranks cut --mode ll --rounds 64
	under_way cut || rc=1
	down=$(now_ms)
	cut_links
	wait "${RANKS[@]}"
	sleep 0.3
	for n in 0 1 2 3; do
		read -r status end <"$RXE_OUT/cut.$n.end"
		said=$(tr -cd '[:print:]' <"$RXE_OUT/cut.$n.said")
		echo "rank $n: exit status $status $((end - down)) ms after the cut: $said"
		[ $((end - down)) -le "$last" ] || last=$((end - down))
		[ "$status" = 1 ] || { echo "want exit status 1" && rc=1; }
		other=$((1 - n / 2))
		grep -qE "rank [$((other * 2))$((other * 2 + 1))] on node $other is lost: .*\[EPF-4(09|11)\]|commands failed, .* to rank [$((other * 2))$((other * 2 + 1))][,:] .*\[EPF-4(01|09|11)\]" \
			<<<"$said" || { echo "want a rank of node $other named" && rc=1; }
	done
	mend_links
	echo "# result: ranks ended within $last ms of the cut"
	same_daemons || { echo "a daemon ended" && rc=1; }
	[ "$rc" = 0 ] || tail -n 15 "$RXE_OUT"/daemon?.log
	return "$rc"
}

group_link()
{
	start_daemons || { result fail link-daemons "they did not start" && return; }
	job link-before 120 whole_job before
	job link-flap 120 flap_job
	job link-cut 120 cut_job
	job link-after 120 whole_job after
	kill "${DAEMON[@]}"
	wait "${DAEMON[@]}"
	unset EPF_SECRET EPF_RENDEZVOUS # of this group only
	job link-again 200 limited "$BUILD/tests/rxe/rxe_again"
}

# ---- what goes wrong for one job, with another beside it ----

# One program for all, so that daemons and the job beside start once; each case is a result.
group_fault()
{
	local log=$RXE_OUT/faults.log name detail
	job faults 200 limited "$BUILD/tests/rxe/rxe_faults"
	grep '^# case ' "$log" >"$log.cases"
	while IFS=: read -r name detail; do
		result pass "fault-${name#\# case }" "${detail# }"
	done <"$log.cases"
}

# ---- many commands, every byte looked at ---------------------------------------------------------

# A lost packet is sent again soon; but a lane must outlive the time for which this machine keeps the guest from running, or the good link fails
# while the other one is cut: 33 ms, six times.
FAST=(verbs-timeout=13 verbs-retries=6)

# flapping BUILD OPTION...: one that was ended in the middle of a flap has left a link down
flapping()
{
	rxe_up A && rxe_up B
	limited "$1/tests/rxe/rxe_soak" --rails 2 "${@:2}" "${FAST[@]}"
}

# Packets that come twice, since an acknowledgement was lost, are the devices' to drop and count; work that would come twice is the engine's.
soaked()
{
	local rc twice
	rxe_netem loss 1% || return 1
	twice=$(counter duplicate_request)
	flapping "$BUILD" "$@"
	rc=$?
	rxe_netem_counts
	twice=$(($(counter duplicate_request) - twice))
	echo "# result: $(seen dropped) packets lost, $twice that came twice dropped by the devices"
	[ "$(seen dropped)" -gt 0 ] || { echo "netem dropped nothing" && rc=1; }
	[ "$twice" -gt 0 ] || { echo "no packet came twice" && rc=1; }
	rxe_netem
	return "$rc"
}

group_soak()
{
	if [ "$LONG" = 1 ]; then
		job soak 6000 soaked --commands 3000000 --flaps 50
	else
		job soak 200 soaked --commands 100000 --flaps 4
	fi
	job flap-once 60 flapping "$BUILD" --flaps 1
}

# Nothing but flaps, one after the other.
group_flaps()
{
	job flaps-50 2400 flapping "$BUILD" --flaps 50
}

# The engine broken on purpose, in the ranks: what is sent again without asking arrives twice and is dropped; when it is not dropped, that is seen, or the
# job fails. Four engines on two emulated CPUs take 25 s for a flap, so of those that are only counted there are as many as rxe_soak asks for duplicates of.
group_broken()
{
	job soak-wrong 2400 flapping "$HOOKS" --hook keep --flaps 50
	job soak-replayed 2400 flapping "$HOOKS" --hook all --flaps 30
}

# In each of the two guests of two.sh.
group_two()
{
	local name=guest-stopped
	[ "${RXE_END:?only in the guests of two.sh}" = 1 ] || name=guest-goes-on
	rxe_cable "$RXE_END" || { result fail "$name" "no device on the cable" && return; }
	job "$name" 200 between_guests
}

between_guests()
{
	EPF_SECRET=rxe-guest-rxe-guest limited "$BUILD/tests/rxe/rxe_two" "$RXE_END"
}

run_group()
{
	local start
	start=$(now_ms)
	case $1 in
	nic | moe | netem | link | fault | soak | flaps | broken | speed | deploy | two) "group_$1" ;;
	*) result fail "group $1" "there is none; there are: nic, moe, netem, link, fault, soak, flaps, broken, speed, deploy, and two of two.sh" ;;
	esac
	start=$(($(now_ms) - start))
	printf '    group %s: %s.%s s\n' "$1" "$((start / 1000))" "$((start % 1000 / 100))"
}

mkdir -p "${TMPDIR:-/tmp}"
: >"$RXE_OUT/results"
for group in ${GROUPS_GIVEN//,/ }; do
	run_group "$group"
done
exit "$FAILED"
