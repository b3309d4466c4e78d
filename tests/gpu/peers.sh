#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# How fast: deep_ep in both modes beside DeepEP, NVIDIA's NCCL EP and NIXL EP on two GPUs, on the same batches, alternating in one process group. DeepEP V2's
# package has the name of ours, so elastic.sh (part speed) measures its ElasticBuffer in separate processes.
#
#   tests/gpu/peers.sh --build DIR [--out DIR] [--ranks N] [--only REGEX] [--deepep DIR] [--clients DIR] [--nixl DIR]
#
# --build     a folder with libepf.so.0 and libepf-ll.so.0, or a build tree with them
# --out       where logs and the table go (./gpu-results/peers)
# --ranks     processes, each with a GPU (all GPUs)
# --only      parts whose name matches: ll, ht
# --deepep    DeepEP v1.2.1's package with its compiled module
# --clients   a folder made by tools/frameworks/nccl_clients.py: NCCL EP and its NCCL, which is put in place of PyTorch's while this runs
# --nixl      a wheel nixl-cu13 unpacked, whose nixl_ep_cu13 has a module for this PyTorch (1.4.0: PyTorch 2.11)
#
# Each part has a limit and a log. Exit 0: BF16 outputs were right, FP8 ones are only timed; 1: something was wrong; 77: no GPU. Speed is printed and never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build="" out=$PWD/gpu-results/peers ranks="" only=. deepep="" clients="" nixl=""
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--ranks) ranks=$2 && shift ;;
	--only) only=$2 && shift ;;
	--deepep) deepep=$(realpath "$2") && shift ;;
	--clients) clients=$(realpath "$2") && shift ;;
	--nixl) nixl=$(realpath "$2") && shift ;;
	*) sed -n '/^#   tests/,/^# Each/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck disable=SC2034 # parts.sh reads them
suite="deep_ep beside its peers" shown='^# peers'
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
# shellcheck source=tests/gpu/clients.sh
. "$root/tests/gpu/clients.sh"
need_gpu ""
[ "$gpus" -gt 1 ] || { say "one GPU: each rank needs its own" && exit 77; }
open_table
find_libraries
export TORCH_NCCL_ENABLE_MONITORING=0 EPF_GPU_TIMEOUT=${EPF_GPU_TIMEOUT:-10s} PEERS_PORT=$((20000 + RANDOM % 10000))
export PYTHONPATH=$root/tools/python${PYTHONPATH:+:$PYTHONPATH}
settings=()
if [ -n "$clients" ]; then
	unpack_clients "$clients"
	replace_nccl
	client_settings
	settings=("${client_base[@]}" "PYTHONPATH=$PYTHONPATH:$at" "LD_LIBRARY_PATH=$(client_libraries "${EPF_LIBRARY%/*}")" NCCL_IB_DISABLE=1)
fi
take_ranks
for mode in ll ht; do
	part "$mode" 180 env ${settings[@]+"${settings[@]}"} python3 "$root/tests/gpu/ll_cases.py" "peers-$mode" --ranks "$ranks" --sums auto --limit 170 ${deepep:+--deepep "$deepep"} ${nixl:+--nixl "$nixl"} \
		${clients:+--nccl-ep}
done
end
