#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# TCP between two hosts: iperf3, UCX's perftest, a bare ping-pong and the fabric, alternating in one run, between two network namespaces of this machine (tests/hosts/bed.sh; needs
# root), or over loopback where there can be none, which it says. Usage: run.sh BUILD [ROUNDS [SECONDS]], with a release build. Prints each figure as it comes, then medians, ratios,
# cores per GB/s (CPU time of both ends, sender and receiver together, over bytes moved), and the load at the beginning and the end: with other work on the machine the ratios mean little.
# RANKS: ranks on each host, several in a row for moe with each of them (1, and 4 where there are 8 CPUs). BUDGET: seconds after which no measurement begins (no limit).
#
# BUILD: a build tree, or a folder that has been carried here with tools/ep-fabric, bench/ep-bench and bench/pingpong, and with ip and iperf3 in bin/ if this machine has none
# (pack.sh). Packages: iperf3, ucx-utils; what is not installed is left out, by name.
set -u
HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/hosts/bed.sh
. "$HERE/../../tests/hosts/bed.sh"

BUILD=$(readlink -f "${1:?usage: run.sh BUILD [ROUNDS [SECONDS]]}")
ROUNDS=${2:-5}
SECONDS_EACH=${3:-2}
BUDGET=${BUDGET:-1000000}
LIMIT=120
LARGE=1048576
OUT=$(mktemp -d "${TMPDIR:-/tmp}/epf-bench-hosts-XXXXXX") || exit 1
BED_KEEP="$BUILD $OUT"
BED_PATH=$BUILD/tools:$BUILD/bench:$BUILD/bin
PATH=$PATH:$BUILD/bin
PORT=20000

have()
{
	command -v "$1" >/dev/null && return 0
	grep -qx "# left out: $1 ($2) is not installed" "$OUT/left-out" 2>/dev/null || echo "# left out: $1 ($2) is not installed" | tee -a "$OUT/left-out"
	return 1
}

# step FUNCTION...: one measurement, if there is time for it
step()
{
	if [ "$SECONDS" -ge "$BUDGET" ]; then
		echo "# no time left for $2" | tr -d "'"
	else
		"$@"
	fi
}

# on HOST COMMAND...: over there, or here where everything goes over loopback
on()
{
	if [ "$BEDS" = 1 ]; then
		bed_on "$@"
	else
		shift
		PATH=$BED_PATH:$PATH "$@"
	fi
}

# pair SERVER CLIENT: both ends, as commands of a shell on beta and alpha; the client's output is in $OUT/client. CPU: seconds of CPU time of both ends
pair()
{
	local server TIMEFORMAT='%U %S'
	{ time on beta timeout -k 5 "$LIMIT" sh -c "exec $1" >"$OUT/server" 2>&1; } 2>"$OUT/server.cpu" &
	server=$!
	sleep 0.5
	{ time on alpha timeout -k 5 "$LIMIT" sh -c "exec $2" >"$OUT/client" 2>&1; } 2>"$OUT/client.cpu" || { cat "$OUT/client" "$OUT/server" >&2; }
	wait "$server"
	CPU=$(cat "$OUT/server.cpu" "$OUT/client.cpu" | tr ' ' '\n' | awk '{ s += $1 } END { print s }')
}

# figure NAME VALUE [BYTES]: one measurement; with the bytes that were moved in it, cores per GB/s as well
figure()
{
	[ -n "$2" ] || { echo "# $1: no figure" >&2 && return; }
	printf '%s %s %s\n' "$1" "$2" "$([ -z "${3-}" ] || awk -v c="$CPU" -v b="$3" 'BEGIN { if (b > 0) print c / (b / 1e9) }')" | tee -a "$OUT/figures"
}

# iperf NAME OPTION...: GB/s
iperf()
{
	local name=$1 line
	shift
	have iperf3 iperf3 || return 0
	pair "iperf3 -s -1 -p $PORT" "iperf3 -c $SERVER -p $PORT -J -l 1M -t $SECONDS_EACH $*"
	line=$(python3 -c 'import json, sys
e = json.load(open(sys.argv[1]))["end"]
got = [e["sum_received"]] + ([e["sum_received_bidir_reverse"]] if "sum_received_bidir_reverse" in e else [])
print(sum(s["bits_per_second"] for s in got) / 8e9, sum(s["bytes"] for s in got))' "$OUT/client")
	figure "$name" "${line% *}" "${line#* }"
}

# ucx NAME SIZE: million messages a second, or GB/s of large ones
ucx()
{
	local n=$3 line
	have ucx_perftest ucx-utils || return 0
	pair "env UCX_TLS=tcp UCX_NET_DEVICES=$DEVICE ucx_perftest -p $PORT" "env UCX_TLS=tcp UCX_NET_DEVICES=$DEVICE ucx_perftest -f -v -p $PORT -t ucp_put_bw -s $2 -n $n -w 100 $SERVER"
	line=$(tail -n 1 "$OUT/client" | awk -F, -v size="$2" -v n="$n" '{ print $8 / 1e6, $8 * size / 1e9, n * size }')
	# shellcheck disable=SC2086
	set -- "$1" "$2" $line
	if [ "$2" = "$LARGE" ]; then
		figure "$1" "$4" "$5"
	else
		figure "$1" "$3"
	fi
}

# p2p NAME COLUMN OPTIONS [BYTES]: a column of the table of ep-bench p2p between the two hosts
p2p()
{
	local value
	pair "env EPF_NIC=tcp ep-bench p2p --server --port $PORT $SET" "env EPF_NIC=tcp ep-bench p2p --port $PORT $SET $3 $SERVER"
	grep -q '^# wrong: 0' "$OUT/client" || { cat "$OUT/client" >&2 && echo "# $1: not right" && return 1; }
	value=$(awk -v c="$2" '$1 ~ /^[0-9]+$/ { print $c }' "$OUT/client" | tail -n 1)
	case $1 in
	*GB/s*) value=$(awk -v v="$value" 'BEGIN { print v * 1048576 / 1e9 }') ;; # perftest's MB are 2^20 bytes
	esac
	figure "$1" "$value" "${4-}"
}

# pingpong NAME poll|block: round trip, us
pingpong()
{
	pair "pingpong $PORT 64 5000 $2" "pingpong $PORT 64 5000 $2 $SERVER"
	figure "$1" "$(cat "$OUT/client")"
}

# iperfs NAME COUNT: so many iperf3 at once, each a process with one stream in each direction at each end, as many as moe has ranks on a host
iperfs()
{
	local i servers="" clients="" at
	have iperf3 iperf3 || return 0
	for ((i = 0; i < $2; i++)); do
		at=$((PORT + 100 + i))
		servers+="iperf3 -s -1 -p $at >/dev/null & "
		clients+="iperf3 -c $SERVER -p $at -J -l 1M -t $SECONDS_EACH --bidir >$OUT/iperf.$i & "
	done
	pair "sh -c '${servers}wait'" "sh -c '${clients}wait'"
	at=$(python3 -c 'import json, sys
ends = [json.load(open(f))["end"] for f in sys.argv[1:]]
got = [e[k] for e in ends for k in ("sum_received", "sum_received_bidir_reverse")]
print(sum(s["bits_per_second"] for s in got) / 8e9, sum(s["bytes"] for s in got))' "$OUT"/iperf.[0-9]*)
	rm -f "$OUT"/iperf.[0-9]*
	figure "$1" "${at% *}" "${at#* }"
}

# moe NAME MODE TOKENS RANKS OPTION...: bytes between the hosts over the time of dispatch and combine, GB/s. CPU time is of both phases, kernels and copies within a host included
moe()
{
	local name=$1 mode=$2 tokens=$3 ranks=$4 time bytes kernel all rate cores
	shift 4
	BED_PASS='' timeout "$LIMIT" env EPF_NIC=tcp "$BUILD/tools/ep-fabric" launch --hosts "$HOSTS" --launch-rsh "$RSH" -n "$ranks" -- \
		"$BUILD/bench/ep-bench" moe --launched --quiet --mode "$mode" --tokens "$tokens" --hidden 7168 --experts 32 --topk 8 --rounds "$([ "$mode" = ht ] && echo 7 || echo 13)" "$@" >"$OUT/client" 2>&1
	grep -q '# wrong: 0' "$OUT/client" || { cat "$OUT/client" >&2 && echo "# $name: not right" && return 1; }
	read -r time bytes kernel all < <(awk -v m="$mode" '$3 == m && ($4 == "dispatch" || $4 == "combine") { t += $6; b += $7 }
		/own threads/ { for (i = 1; i <= NF; i++) if ($i == "us") { if (n++ < 2) k += $(i - 1); else a += $(i - 1) } }
		END { print t, b, k, a }' "$OUT/client")
	CPU=$(awk -v a="$all" 'BEGIN { print a / 1e6 }')
	figure "$name GB/s" "$(awk -v t="$time" -v b="$bytes" 'BEGIN { if (t) print b / t / 1e3 }')" "$bytes"
	# The upper bound that this machine sets: the wire at iperf3's rate, or all CPUs running only the ranks' kernels (plain C here; their waits, which may step the engine,
	# are in it) and iperf3's work for these bytes, whichever takes longer. It leaves out the copies of rows that stay on their host.
	read -r rate cores < <(awk -v n="iperf3-both-ways$([ "$ranks" = 1 ] || echo "-x$ranks")" '$1 == n { r = $3; c = $4 } END { print r, c }' "$OUT/figures")
	[ -n "$cores" ] || return 0
	figure "$name-bound GB/s" "$(awk -v b="$bytes" -v k="$kernel" -v r="$rate" -v c="$cores" -v n="$(nproc)" \
		'BEGIN { wire = b / r / 1e3; cpu = (k + b * c / 1e3) / n; print b / (wire > cpu ? wire : cpu) / 1e3 }')"
}

why=$(bed_why_not)
trap 'bed_end; rm -rf "$OUT"' EXIT
if [ -z "$why" ]; then
	BEDS=1 SERVER=beta DEVICE=eth1 HOSTS=alpha,beta RSH=$BED_HERE/enter where="two hosts made of namespaces"
	bed_begin 2 1 || exit 1
else
	BEDS=0 SERVER=127.0.0.1 DEVICE=lo HOSTS=127.0.0.1,127.0.0.2 RSH=$OUT/rsh where="loopback ($why)"
	printf '#!/bin/sh\nshift\nexec sh -c "$*"\n' >"$RSH" && chmod +x "$RSH"
fi
EPF_SECRET_FILE=$([ "$BEDS" = 1 ] && echo "$BED" || echo "$OUT")/job.secret
export EPF_SECRET_FILE
(umask 077 && head -c 32 /dev/urandom | base64 >"$EPF_SECRET_FILE")
RANKS=${RANKS:-$([ "$(nproc)" -lt 8 ] && echo 1 || echo 1 4)}
BED_PASS=EPF_SECRET_FILE
echo "# $where, $(nproc) CPUs, load $(cut -d' ' -f1-3 /proc/loadavg), $(uname -sr), $("$BUILD/tools/ep-fabric" version | head -n 1)"
puts=$((SECONDS_EACH * 1500)) small=$((SECONDS_EACH * 200000))
for ((round = 1; round <= ROUNDS; round++)); do
	echo "# round $round of $ROUNDS"
	SET=
	step iperf "iperf3 GB/s"
	step p2p "put-1MiB GB/s" 4 "--test bw --op put -s $LARGE -n $puts" $((puts * LARGE))
	SET="--set wire-encryption=yes"
	step p2p "put-1MiB-encrypted GB/s" 4 "--test bw --op put -s $LARGE -n $puts" $((puts * LARGE))
	SET=
	step ucx "ucx-put-1MiB GB/s" "$LARGE" "$puts"
	step iperf "iperf3-2-streams GB/s" -P 2
	step p2p "put_signal-64B M/s" 5 "--test bw --op put_signal -s 64 -n $small"
	step ucx "ucx-put-64B M/s" 64 "$small"
	SET="--set wire-encryption=yes"
	step p2p "put_signal-64B-encrypted M/s" 5 "--test bw --op put_signal -s 64 -n $small"
	SET="--set progress=caller"
	step p2p "round-trip-polling us" 5 "--test lat -s 64 -n 5000"
	SET=
	step p2p "round-trip-sleeping us" 5 "--test lat -s 64 -n 5000"
	for how in poll block; do
		step pingpong "bare-$how us" "$how"
	done
	step iperf "iperf3-both-ways GB/s" --bidir
	for ranks in $RANKS; do
		by=$([ "$ranks" = 1 ] || echo "-x$ranks")
		[ "$ranks" = 1 ] || step iperfs "iperf3-both-ways$by GB/s" "$ranks"
		step moe "moe-ll$by" ll 128 "$ranks"
		step moe "moe-ht$by" ht 1024 "$ranks"
		step moe "moe-ll-bf16$by" ll 128 "$ranks" --dispatch=bf16
		step moe "moe-ht-bf16$by" ht 1024 "$ranks" --dispatch=bf16
	done
done
echo "# load at the end: $(cut -d' ' -f1-3 /proc/loadavg)"
python3 "$HERE/summary.py" "$OUT/figures"
