#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# GPU rings in service mode: a daemon on the null NIC, which never loads a GPU driver, and a client with kernels. The whole path works; if the
# daemon is killed, a running kernel ends with an error; if a client is killed while its kernel pushes, the daemon reports it and serves the
# next one.
#
#   service.sh BUILD [BACKEND]
#
# BUILD holds bench/ep-bench and tools/ep-fabric, or both; BACKEND: gpu-backend, auto by default; fake runs it without a GPU. Run by
# tests/gpu/run.sh. Exit 0: right; 77: no GPU.
set -u
build=$1
backend=${2:-auto}
bench=$build/bench/ep-bench
fabric=$build/tools/ep-fabric
[ -x "$bench" ] || bench=$build/ep-bench
[ -x "$fabric" ] || fabric=$build/ep-fabric
dir=$(mktemp -d) || exit 1
daemon=
failed=0
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$dir"' EXIT
small=(--commands 2000000 --trips 5000)
[ "$backend" != fake ] || small=(--commands 20000 --trips 100)

start_daemon()
{
	"$fabric" run --instance gpu --runtime-dir="$dir" --nic=null --core-idle=spin >>"$dir/log" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do
		[ ! -S "$dir/gpu.sock" ] || return 0
		sleep 0.1
	done
	echo "not ok - no daemon"
	exit 1
}

# client PARTS COMMANDS: ep-bench through the daemon
client()
{
	timeout 120 "$bench" ring --gpu --gpu-backend "$backend" "${small[@]}" --parts "$1" ${2:+--commands "$2"} \
		--set service="$dir/gpu.sock" 2>&1
}

# expect TEXT NAME: $dir/out must contain TEXT
expect()
{
	if grep -qE "$1" "$dir/out"; then
		echo "ok - $2"
	else
		sed 's/^/# /' "$dir/out"
		echo "not ok - $2"
		failed=1
	fi
}

start_daemon
client re | tee "$dir/out"
rc=${PIPESTATUS[0]}
[ "$rc" != 77 ] || exit 77
expect '# wrong: 0' "whole path through a daemon"
grep -cE 'libcuda|libamdhip' "/proc/$daemon/maps" >"$dir/out"
expect '^0$' "the daemon has no GPU driver loaded"

# The client's child owns the GPU: killing the parent ends both, by the parent-death signal.
client e 20000000000 >"$dir/killed" 2>&1 &
job=$!
sleep 5
pkill -KILL -P "$(pgrep -P "$job" -f -- 'timeout 120')" 2>/dev/null || pkill -KILL -P "$job"
wait "$job"
sleep 1
tail -n 3 "$dir/log" | tee "$dir/out"
expect 'rank 0.*lost|process .*ended|ended without' "a client killed while its kernel pushes is reported"
client r | tee "$dir/out" | tail -n 1
expect '# wrong: 0' "the next client is served"

client e 20000000000 >"$dir/out" 2>&1 &
job=$!
sleep 5
kill -KILL "$daemon"
start=$SECONDS
wait "$job"
cat "$dir/out"
echo "# all ended $((SECONDS - start)) s after the daemon was killed: the kernel by its deadline of 20 s, then the rest"
expect 'daemon gpu at .* is gone' "a kernel whose daemon is killed ends with an error"
exit "$failed"
