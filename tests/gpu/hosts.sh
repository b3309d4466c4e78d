#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# GPU memory over TCP, on a machine with GPUs, preferably two: two hosts made of namespaces (tests/hosts/bed.sh) where this runs as root and they can be made, else two
# processes over loopback. Host alpha uses the second GPU and beta the first.
#
#   tests/gpu/hosts.sh --build DIR [--out DIR] [--rounds N] [--backend NAME] [--only REGEX] [--seconds N] [--list]
#
# --build    a folder with libepf.so.0, libepf-ll.so.0, ep-fabric, ep-bench and gpupipe, or a build tree with them
# --out      where logs and the table go (./gpu-results/hosts)
# --rounds   rounds of what is compared, alternating (3)
# --backend  of the GPU: auto, cuda, hip; fake checks this script where there is no GPU, without the calls of deep_ep
# --only     parts whose name matches; --list prints the names
# --seconds  no part begins later (540), so that all of it ends within ten minutes
#
# Parts: p2p-SIZE, put and notification of so many bytes, everything compared; rate, puts by GPU kernels beside a bare pipeline of copies and a socket (bench/hosts/gpupipe.c) and
# iperf3, in the same minutes; ll and ht, the calls of deep_ep.Buffer between two nodes with NVLink off. Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is
# printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" out=$PWD/gpu-results/hosts rounds=3 backend=auto only=. list=0 begin_before=540
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--rounds) rounds=$2 && shift ;;
	--backend) backend=$2 && shift ;;
	--only) only=$2 && shift ;;
	--seconds) begin_before=$2 && shift ;;
	--list) list=1 ;;
	*) sed -n '/^#   tests/,/^# Parts/p' "$0" && exit 2 ;;
	esac
	shift
done
suite="GPU memory over TCP" part_width=14
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
# shellcheck source=tests/hosts/bed.sh
. "$root/tests/hosts/bed.sh"
gpus=$((1 + list)) # the names of all parts
[ "$backend" = fake ] || [ "$list" = 1 ] || need_gpu "--backend fake checks this script"
open_table
if [ "$list" = 0 ]; then
	build=$(realpath -m "${build:-.}")
	for name in libepf.so.0 ep-bench gpupipe; do
		find_built "$name" >/dev/null || { say "no $name in '$build': --build" && exit 1; }
	done
	bench=$(find_built ep-bench) pipe=$(find_built gpupipe) libepf=$(find_built libepf.so.0)
	export LD_LIBRARY_PATH=${libepf%/*}:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# ---- hosts -----------------------------------------------------------------------------------

beds=0
# shellcheck disable=SC2317 # called by a trap
leave_hosts()
{
	[ "$beds" = 0 ] || bed_end
	leave_nothing
}
trap leave_hosts EXIT
why=$(bed_why_not)
if [ "$list" = 0 ] && [ -z "$why" ]; then
	beds=1
	BED_KEEP="$build $out"
	bed_begin 2 1 || exit 1
	server=beta
	(umask 077 && head -c 32 /dev/urandom | base64 >"$BED/job.secret")
	export EPF_SECRET_FILE=$BED/job.secret
	BED_PASS="EPF_SECRET_FILE LD_LIBRARY_PATH CUDA_MODULE_LOADING"
else
	server=127.0.0.1
fi
# Kernels that wait must not keep others from being loaded.
export CUDA_MODULE_LOADING=EAGER

on()
{
	local host=$1
	shift
	if [ "$beds" = 1 ]; then bed_on "$host" "$@"; else "$@"; fi
}

# pair LIMIT NAME SERVER-COMMAND -- CLIENT-COMMAND: both ends, output in $out/NAME.server and $out/NAME.log. rc: the client's status, or the server's
pair()
{
	local limit=$1 name=$2 there=() pid
	shift 2
	while [ "$1" != -- ]; do there+=("$1") && shift; done
	shift
	on beta timeout -k 5 "$limit" "${there[@]}" >"$out/$name.server" 2>&1 &
	pid=$!
	on alpha timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
	rc=$?
	[ "$rc" = 0 ] || kill "$pid" 2>/dev/null
	wait "$pid" || rc=$((rc ? rc : $?))
}

port=21000
gpu=(--gpu --gpu-backend "$backend" --nic tcp)

# p2p NAME OPTION...: of ep-bench between the hosts; rc 0 only if nothing is wrong
p2p()
{
	local name=$1
	shift
	port=$((port + 1))
	pair 90 "$name" "$bench" p2p --server --port "$port" "${gpu[@]}" -- "$bench" p2p --port "$port" "${gpu[@]}" "$@" "$server"
	[ "$rc" != 0 ] || grep -qx '# wrong: 0' "$out/$name.log" || rc=1
}

# told NAME TEXT: a line of the table by rc
told()
{
	if [ "$rc" = 0 ]; then
		result "$1" "ok${2:+, $2}"
	elif [ "$rc" = 77 ]; then
		result "$1" "skipped: $(tail -n 1 "$out/$1.log")"
	else
		failed=1
		result "$1" "WRONG: status $rc"
		tail -n 20 "$out/$1".log "$out/$1".server 2>/dev/null | sed 's/^/    /' | tee -a "$log"
	fi
}

# last COLUMN FILE: of the last row of a table of ep-bench
last()
{
	awk -v c="$1" '$1 ~ /^[0-9]+$/ { v = $c } END { print v }' "$2"
}

if [ "$list" = 0 ]; then
	where="two hosts made of namespaces"
	[ "$beds" = 1 ] || where="loopback: $why"
	say "# $(hardware), GPU back end $backend, $where, load $(cut -d' ' -f1-3 /proc/loadavg)"
fi

# ---- right bytes -----------------------------------------------------------------------------

for size in 8 7168 65536 1048576; do
	wanted "p2p-$size" || continue
	p2p "p2p-$size" --op put_signal --test lat -s "$size" -n 200 --warps 4
	told "p2p-$size" "typical $(last 5 "$out/p2p-$size.log") us"
done
if wanted p2p-get; then
	p2p p2p-get --op get --test lat -s 65536 -n 200 --warps 4
	told p2p-get "typical $(last 5 "$out/p2p-get.log") us"
fi
if wanted p2p-signals; then
	p2p p2p-signals --op put_signal --test lat -s 7168 -n 200 --warps 4 --signals gpu
	told p2p-signals "signals in GPU memory, typical $(last 5 "$out/p2p-signals.log") us"
fi

# ---- beside a bare pipeline ------------------------------------------------------------------

# rate NAME VALUE: a figure in GB/s
rate()
{
	echo "$1 $2" >>"$out/rates"
}

if wanted rate; then
	: >"$out/rates"
	bytes=1048576 count=$([ "$backend" = fake ] && echo 200 || echo 4000)
	for ((round = 1; round <= rounds && failed == 0; round++)); do
		p2p rate --op put --test bw -s "$bytes" -n "$count"
		[ "$rc" = 0 ] && rate put "$(awk -v v="$(last 4 "$out/rate.log")" 'BEGIN { print v * 1048576 / 1e9 }')"
		[ "$rc" = 0 ] || break
		p2p rate --op put --test bw -s 7168 -n "$count"
		[ "$rc" = 0 ] && rate put-7168 "$(awk -v v="$(last 4 "$out/rate.log")" 'BEGIN { print v * 1048576 / 1e9 }')"
		[ "$rc" = 0 ] || break
		port=$((port + 1))
		pair 60 rate "$pipe" "$port" "$backend" 0 "$bytes" "$count" -- "$pipe" "$port" "$backend" $((gpus > 1)) "$bytes" "$count" "$server"
		[ "$rc" = 0 ] || break
		rate pipeline "$(cat "$out/rate.log")"
		command -v iperf3 >/dev/null || continue
		port=$((port + 1))
		on beta timeout 30 iperf3 -s -1 -p "$port" >/dev/null 2>&1 &
		sleep 0.5
		on alpha timeout 30 iperf3 -c "$server" -p "$port" -J -l 1M -t 2 >"$out/rate.iperf3"
		rate iperf3 "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["end"]["sum_received"]["bits_per_second"] / 8e9)' "$out/rate.iperf3")"
	done
	told rate ""
	python3 - "$out/rates" <<'PY' | tee -a "$log"
import collections, statistics, sys
v = collections.defaultdict(list)
for line in open(sys.argv[1]):
    name, value = line.split()
    v[name].append(float(value))
for name, x in v.items():
    print(f"    {name:10} {statistics.median(x):8.3f} GB/s ({min(x):.3f} to {max(x):.3f} in {len(x)} rounds)")
for name in ("pipeline", "iperf3"):
    r = [a / b for a, b in zip(v["put"], v[name])]
    if r:
        print(f"    put / {name:10} {statistics.median(r):.3f} ({min(r):.3f} to {max(r):.3f})")
PY
fi

# ---- calls of deep_ep ------------------------------------------------------------------------

# calls NAME PART OPTION...: two ranks on two nodes, over loopback: their processes share a folder
calls()
{
	local name=$1 what=$2
	shift 2
	wanted "$name" || return 0
	[ "$backend" != fake ] || { result "$name" "skipped: needs a GPU" && return 0; }
	python3 -c 'import torch' 2>/dev/null || { result "$name" "skipped: no PyTorch" && return 0; }
	bounded 100 "$out/$name.log" env EPF_NIC=tcp EPF_GPU_TIMEOUT=10s EPF_LIBRARY="$libepf" EPF_LL_LIBRARY="$(find_built libepf-ll.so.0)" \
		PYTHONPATH="$root/tools/python${PYTHONPATH:+:$PYTHONPATH}" python3 "$root/tests/gpu/ll_cases.py" "$what" --ranks 2 --nodes 0,1 --limit 90 --quick "$@"
	told "$name" "$took s"
	grep '^# \|tokens.* SMs' "$out/$name.log" | sed 's/^/    /' | tee -a "$log"
}
calls ll smoke,table,random --commands --cases 20
calls ll-speed speed --commands
calls ht ht-table
calls ht-random ht-random --cases 20
[ "$gpus" -lt 2 ] || calls ht-speed ht-speed
end
