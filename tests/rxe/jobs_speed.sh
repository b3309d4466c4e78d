# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Group speed of jobs.sh: rates of RDMA writes by the fabric, by the bare post loop (ep-bench rawverbs) and by perftest's
# ib_write_bw, between the same two devices, alternating. Sourced by jobs.sh. It prints ratios, medians of pairs, and judges bytes only:
# the promised 85 % of the bare loop, and of the bare loop 95 % of ib_write_bw, are for a reader of a quiet machine's long form (EPF_TEST_LONG=1). The short
# form shows that each job runs and that its bytes arrive: one round, and of perftest one small and one large size.

# As much in flight as soft-RoCE carries without losing packets on the emulated CPU.
SPEED_DEPTH=64
SPEED_LIST=16
SPEED_SIZES="16 256 1024 4096 7168"

# perftest of the host, or unpacked by perftest.sh
find_perftest()
{
	local unpacked=${BUILD%/*}/rxe/perftest/usr
	if command -v ib_write_bw >/dev/null; then
		PERFTEST=(ib_write_bw)
	elif [ -x "$unpacked/bin/ib_write_bw" ]; then
		PERFTEST=(env "LD_LIBRARY_PATH=$unpacked/lib/$(uname -m)-linux-gnu" "$unpacked/bin/ib_write_bw")
	else
		return 1
	fi
}

# against ENGINE OPTION...: the fabric against the bare loop in the same two processes
against()
{
	limited "$BENCH" p2p --nic "$NIC" --against rawverbs -d rxe0,rxe1 -x 0 -t "$SPEED_DEPTH" -l "$SPEED_LIST" \
		--engine "$1" --timeout-s "$JOB_LIMIT" "${@:2}" || return
}

# ratios: "16:0.93 256:0.95" out of a table of against, for the line of the result
ratios()
{
	awk '/^ [0-9]/ { printf "%s%s B %.2f", n++ ? ", " : "", $1, $5 } END { print "" }'
}

speed_fabric()
{
	local out=$RXE_OUT/speed-fabric-$1.out rc
	against "$@" >"$out" 2>"$out.err"
	rc=$?
	cat "$out" "$out.err"
	[ "$rc" = 0 ] && grep -qx '# wrong: 0' "$out" && echo "# result: fabric/bare $(ratios <"$out")"
}

# rate_of SERVER... -- CLIENT...: message rate in Mpps out of the client's table; both find each other at port 18515
rate_of()
{
	local -a server=()
	local pid turn rate
	while [ "$1" != -- ]; do
		server+=("$1") && shift
	done
	shift
	timeout -k 2 30 "${server[@]}" >"$RXE_OUT/speed-server.out" 2>&1 &
	pid=$!
	for turn in {1..200}; do
		# The port in the kernel's list of listeners.
		! grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || break
		sleep 0.05
	done
	timeout -k 2 30 "$@" 127.0.0.1 >"$RXE_OUT/speed-client.out" 2>&1
	wait "$pid"
	rate=$(awk 'NF == 5 && $1 ~ /^[0-9]+$/ { print $5 }' "$RXE_OUT/speed-client.out")
	if [ -z "$rate" ]; then
		echo "no rate after $turn looks at the port: $*" >&2
		cat "$RXE_OUT/speed-server.out" "$RXE_OUT/speed-client.out" >&2
		return 1
	fi
	printf '%s\n' "$rate"
}

# perftest_pair SIZE WRITES 0|1: one rate of each program, and their ratio; 1: ours first. Lists on both sides: with -l ib_write_bw posts lists.
perftest_pair()
{
	local -a letters=(-x 0 -s "$1" -n "$2" -t "$SPEED_DEPTH" -l "$SPEED_LIST" -Q "$SPEED_LIST" -F)
	local theirs ours
	[ "$3" = 0 ] || ours=$(bare_rate "${letters[@]}") || return 1
	theirs=$(rate_of "${PERFTEST[@]}" -d rxe1 "${letters[@]}" -- "${PERFTEST[@]}" -d rxe0 "${letters[@]}") || return 1
	[ "$3" = 1 ] || ours=$(bare_rate "${letters[@]}") || return 1
	awk -v theirs="$theirs" -v ours="$ours" 'BEGIN { printf "%s %s %.4f\n", theirs, ours, ours / theirs }'
}

bare_rate()
{
	rate_of "$BENCH" rawverbs -d rxe1 "$@" --use_old_post_send -- "$BENCH" rawverbs -d rxe0 "$@" --use_old_post_send
}

# speed_perftest PAIRS WRITES: medians over PAIRS of a rate of each program, and of their ratios. Alternating, and each first in every
# other pair; nothing is left out but pairs in which a program gave up. WRITES of up to 1 KiB a run, fewer of larger ones: a
# run has to be many times what a lost packet costs, 67 ms.
speed_perftest()
{
	local pairs=$1 writes=$2 size n have failures=0 line note=""
	local file=$RXE_OUT/speed-perftest.rates
	printf ' #bytes   #writes  ib_write_bw[Mpps]   bare[Mpps]   bare/ib_write_bw   smallest   largest   (medians of %s pairs)\n' "$pairs"
	for size in $SPEED_SIZES; do
		: >"$file"
		n=$((size <= 1024 ? writes : writes / 4))
		while have=$(wc -l <"$file") && [ "$have" -lt "$pairs" ]; do
			# Either program gives up when soft-RoCE fails its connection, as it does now and then when packets are lost.
			perftest_pair "$size" "$n" $((have % 2)) >>"$file" || failures=$((failures + 1))
			[ "$failures" -le 5 ] || return 1
		done
		line=$(awk -v size="$size" -v n="$n" '
			function median(of, k, i, j, t) {
				for (i = 2; i <= k; i++)
					for (j = i; j > 1 && of[j] < of[j - 1]; j--) { t = of[j]; of[j] = of[j - 1]; of[j - 1] = t }
				return k % 2 ? of[(k + 1) / 2] : (of[k / 2] + of[k / 2 + 1]) / 2
			}
			{ theirs[NR] = $1; ours[NR] = $2; ratio[NR] = $3 }
			END {
				printf " %-8d %-8d %-19.6f %-12.6f %-18.3f", size, n, median(theirs, NR), median(ours, NR), median(ratio, NR)
				printf " %-10.3f %.3f\n", ratio[1], ratio[NR] # sorted by now
			}' "$file")
		echo "$line"
		note+="${note:+, }$(awk '{ printf "%s B %.2f", $1, $5 }' <<<"$line")"
	done
	[ "$failures" = 0 ] || note+=", $failures pairs failed and were run again"
	echo "# result: bare/ib_write_bw $note"
}

# speed_table FABRIC PERFTEST: the three figures of each size side by side, out of the logs of both jobs, one process and one thread on each side, RDMA write in
# lists. Two rates of the bare loop: the one measured in turn with the fabric, and the one measured in turn with ib_write_bw.
speed_table()
{
	[ -s "$1" ] && [ -s "$2" ] || return 0
	echo "    #bytes   fabric[Mpps]   bare[Mpps]   fabric/bare   bare[Mpps]   ib_write_bw[Mpps]   bare/ib_write_bw"
	awk '!/^ [0-9]/ { next }
		FNR == NR { fabric[$1] = $3; bare[$1] = $4; ratio[$1] = $5; next }
		$1 in ratio { printf "    %-9s %-14s %-12s %-13s %-12s %-19s %s\n", $1, fabric[$1], bare[$1], ratio[$1], $4, $3, $5 }' "$1" "$2"
}

group_speed()
{
	# ib_write_bw wants whole lists.
	local writes=2048 pairs=7 rounds=5 bare=8192
	job speed-fabric 600 speed_fabric caller -n "$writes" --rounds "$rounds"
	# With the engine on a separate thread; the two emulated CPUs are the kernel's too.
	job speed-fabric-thread 300 speed_fabric thread -n "$writes" --rounds "$rounds"
	if find_perftest; then
		job speed-perftest 900 speed_perftest "$pairs" "$bare"
		speed_table "$RXE_OUT/speed-fabric-caller.out" "$RXE_OUT/speed-perftest.log"
	else
		result skip speed-perftest "ib_write_bw is not installed (Debian: perftest) and was not fetched"
	fi
}
