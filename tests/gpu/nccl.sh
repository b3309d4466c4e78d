#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# PyTorch's NCCL over the plug-in (docs/guides/nccl.md), next to NCCL's own sockets: all-reduce, all-gather, reduce-scatter, all-to-all, send and receive,
# broadcast, each result checked, between the GPUs of this machine with NVLink and shared memory off, so that every byte goes through the network interface.
#
#   tests/gpu/nccl.sh [--build DIR] [--out DIR] [--ranks N] [--most BYTES] [--rounds N] [--limit SECONDS] [--only REGEX] [--list] [--cpu]
#
# --build   a build tree, or a folder with libnccl-net-epf.so; shared libraries that it needs and this machine lacks (libsodium, libinih) in DIR/lib (build)
# --out     where logs, results (JSON) and the table go (./gpu-results/nccl)
# --ranks   processes: one per GPU by default, at most 8
# --most    the largest message (67108864)
# --rounds  calls in a timed series (10)
# --limit   upper bound of every part's time limit
# --only    runs the parts whose name matches; --list names them all
# --cpu     gloo on CPU tensors instead of NCCL, to check this script without a GPU
#
# Parts: headers (our constants against NCCL's installed headers), sockets, sockets16 (16 of them, by 4 threads), epf, epf-mtu (packets of
# 64 KiB), gpu-memory (NCCL hands GPU memory to the plug-in), reorder (a NIC that reorders,
# duplicates and loses; results only), lanes (lanes that fail), tcp, ranks8 (8 ranks on the GPUs there are, under MPS), killed (a rank dies: the others are told).
# Each part has a deadline. Exit 0: all parts that ran did as they should; 77: no GPU. Speed is printed, never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=build out=$PWD/gpu-results/nccl ranks="" most=67108864 rounds=10 longest=600 list=0 cpu=0
# shellcheck disable=SC2034 # parts.sh reads them
only=. suite="NCCL over the plug-in" part_width=12
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--most) most=$2 && shift ;;
	--rounds) rounds=$2 && shift ;;
	--limit) longest=$2 && shift ;;
	--only)
		# shellcheck disable=SC2034
		only=$2 && shift
		;;
	--list) list=1 ;;
	--cpu) cpu=1 ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"

backend=nccl gpus=0
if [ "$cpu" = 1 ]; then
	backend=gloo ranks=${ranks:-2}
elif [ "$list" = 0 ]; then
	need_gpu "--cpu checks this script"
	ranks=${ranks:-$((gpus > 8 ? 8 : gpus))}
fi
open_table
trap 'exit 1' TERM INT
plugin=$(find_built libnccl-net-epf.so) || [ "$list" = 1 ] || { say "no libnccl-net-epf.so in '$build': --build" && exit 1; }
[ "$list" = 1 ] || build=$(cd "$build" && pwd)
export LD_LIBRARY_PATH=${plugin%/*}:$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONUNBUFFERED=1 TORCH_NCCL_ENABLE_MONITORING=0

# What every part has: no way between GPUs but the network interface.
base=(NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0 NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO "NCCL_DEBUG_SUBSYS=INIT,NET,ENV" EPF_LOG=note)
ours=(NCCL_NET_PLUGIN=epf EPF_CORE_IDLE=pause)

# part NAME LIMIT EXPECTED-TEXT SETTING... -- OPTION...: runs the patterns; the log must hold the text (which network NCCL has taken)
part()
{
	local name=$1 limit=$2 text=$3
	shift 3
	wanted "$name" || return 0
	settings_of "$@"
	[ "$limit" -le "$longest" ] || limit=$longest
	bounded "$limit" "$out/$name.log" env "${base[@]}" "${settings[@]}" python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
		"$root/tests/gpu/nccl_patterns.py" --backend "$backend" --most "$most" --rounds "$rounds" --json "$out/$name.json" "${options[@]}"
	if [ "$rc" = 0 ] && [ "$cpu" = 0 ] && ! grep -qa "$text" "$out/$name.log"; then
		failed=1
		result "$name" "WRONG: NCCL did not take this network: no '$text' in its log"
	elif [ "$rc" = 0 ]; then
		result "$name" "ok, $took s"
	else
		failed=1
		result "$name" "WRONG: status $rc after $took s"
		grep -a 'NET/epf\|WARN\|Error' "$out/$name.log" | head -n 20 | cut -c1-300 | sed 's/^/    /' | tee -a "$log"
		tail -n 15 "$out/$name.log" | cut -c1-300 | sed 's/^/    /' | tee -a "$log"
	fi
	grep -a '^# ' "$out/$name.log" | sed 's/^/    /' | tee -a "$log"
}

# Numbers that tools/nccl/abi.h repeats, in the headers that PyTorch's NCCL brings.
headers()
{
	local at pair name number bad=0
	wanted headers || return 0
	at=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])' 2>/dev/null)/include
	if [ ! -f "$at/nccl.h" ]; then
		result headers "skipped: no nccl.h beside PyTorch's NCCL"
		return 0
	fi
	for pair in ncclSuccess=0 ncclSystemError=2 ncclInternalError=3 ncclInvalidArgument=4 ncclInvalidUsage=5 ncclRemoteError=6 \
		NCCL_NET_DEVICE_HOST=0 NCCL_NET_DEVICE_GIN_PROXY=2; do
		name=${pair%=*} number=${pair#*=}
		grep -rhaE "\b$name\b *= *(0x)?[0-9]+" "$at" >"$out/headers.log" 2>/dev/null || continue # not in the headers of this release
		grep -qaE "\b$name\b *= *(0x)?0*$number\b" "$out/headers.log" || { say "    $name is not $number" && bad=1; }
	done
	[ "$bad" = 0 ] || failed=1
	result headers "$([ "$bad" = 0 ] && echo ok || echo WRONG), NCCL $(grep -aoE 'NCCL_(MAJOR|MINOR|PATCH) [0-9]+' "$at/nccl.h" | awk '{ printf "%s%s", s, $2; s = "." }')"
}

# A rank kills itself; the others must be told which process is lost, by a line in NCCL's log.
killed()
{
	wanted killed || return 0
	[ "$cpu" = 0 ] || return 0
	bounded 120 "$out/killed.log" env "${base[@]}" "${ours[@]}" python3 "$root/tests/gpu/nccl_killed.py" "$ranks"
	if [ "$rc" = 0 ] && grep -qa 'NET/epf : .*EPF-852' "$out/killed.log"; then
		result killed "ok, $took s: $(grep -a 'NET/epf : .*EPF-852' "$out/killed.log" | head -n 1 | sed 's/.*NET/NET/' | cut -c1-150)"
	else
		failed=1
		result killed "WRONG: $([ "$rc" = 0 ] && echo 'no line names the loss' || echo "status $rc")"
	fi
}

if [ "$list" = 0 ]; then
	say "# $(hardware), $ranks ranks"
	say "# $(python3 --version), torch $(python3 -c 'import torch; print(torch.__version__, *torch.cuda.nccl.version() if torch.cuda.is_available() else "")')"
fi
[ "$cpu" = 1 ] || headers
part sockets 500 'Using network Socket' NCCL_NET=Socket NCCL_NET_PLUGIN=none --
part sockets16 500 'Using network Socket' NCCL_NET=Socket NCCL_NET_PLUGIN=none NCCL_SOCKET_NTHREADS=4 NCCL_NSOCKS_PERTHREAD=4 --
part epf 500 'Using network epf' "${ours[@]}" --
part epf-mtu 500 'Using network epf' "${ours[@]}" EPF_EMU_MTU=65536 --
# Copies between GPUs by the software NIC, without NCCL's staging: wants memory that another process can open, so no VMM allocations.
part gpu-memory 500 'via NET/epf/0/GDRDMA' "${ours[@]}" EPF_NIC=emu NCCL_NET_GDR_LEVEL=SYS NCCL_CUMEM_ENABLE=0 CUDA_MODULE_LOADING=EAGER --
part reorder 300 'Using network epf' "${ours[@]}" EPF_EMU_ORDER=unordered EPF_EMU_REORDER=0.2 EPF_EMU_DUPLICATE=0.1 EPF_EMU_DROP=0.01 -- --no-times --most 1048576
part lanes 300 'Using network epf' "${ours[@]}" EPF_EMU_ERROR=0.0002 EPF_LANES_PER_PEER=8 -- --no-times --most 1048576
part tcp 500 'Using network epf' "${ours[@]}" EPF_NIC=tcp --
if [ "$cpu" = 0 ]; then
	ranks_before=$ranks ranks=8
	with_mps on
	part ranks8 500 'Using network epf' "${ours[@]}" TEST_HOST_PER_RANK=1 -- --no-times --most 1048576
	with_mps off
	ranks=$ranks_before
fi
killed
end
