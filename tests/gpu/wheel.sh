#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The wheel ep-fabric (tools/package/wheel) as its users have it, on a machine with two or more GPUs (nixl: one): installed by pip without network, and unmodified
# programs that get nothing but EPF_BACKEND and `ep-fabric exec --` in front.
#
#   tests/gpu/wheel.sh --wheels DIR [--deepep DIR] [--deepep-tests DIR] [--nixl DIR] [--out DIR] [--only REGEX] [--list]
#
# --wheels        what tools/package/wheel makes
# --deepep        a folder with deep_ep_cpp*.so, the package deep_ep, and DeepEP's tests/, all of v1.2.1: for the part nvshmem
# --deepep-tests  a folder with DeepEP's test_low_latency.py and its utils.py: for the part deep_ep
# --nixl          what tools/frameworks/fetch.py nixl-gpu-1.5 DIR makes: for the part nixl
# --out           where logs and the table go (./gpu-results/wheel)
# --only          runs the parts whose name matches; --list names them all
#
# Parts: deep_ep (DeepEP's test on our kernels, though DeepEP itself may be installed), nvshmem (its test on its own kernels, NVLink off: every byte by
# the fabric), nccl (PyTorch's collectives, NVLink and shared memory off; NCCL must say that it took the fabric), nixl (agents with GPU memory).
# Exit 0: all was right; 1: something was wrong; 77: no GPU, or no wheel.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
wheels="" deepep="" tests="" nixl="" site="" out=$PWD/gpu-results/wheel list=0 gpus=2
# shellcheck disable=SC2034 # parts.sh reads them
only=. failed=0 suite="the wheel" part_width=10 shown='^ep-fabric exec\|bandwidth\|Using network\|^# \|^ok'
while [ $# -gt 0 ]; do
	case $1 in
	--wheels) wheels=$2 && shift ;;
	--deepep) deepep=$2 && shift ;;
	--deepep-tests) tests=$2 && shift ;;
	--nixl) nixl=$2 && shift ;;
	--out) out=$2 && shift ;;
	--only)
		# shellcheck disable=SC2034
		only=$2 && shift
		;;
	--list) list=1 ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
if [ "$list" = 0 ]; then
	need_gpu ""
	open_table
	trap 'exit 1' TERM INT
	unset EPF_LIBRARY EPF_LL_LIBRARY LD_LIBRARY_PATH PYTHONPATH
	site=$out/site
	rm -rf "$site" "$out"/*.log
	if ! python3 -m pip install -q --disable-pip-version-check --no-index --no-deps --target "$site" "$wheels"/ep_fabric-*.whl; then
		say "no wheel in '$wheels' that pip takes: --wheels"
		exit 77
	fi
	say "# $(hardware), $(python3 --version), $(PYTHONPATH=$site "$site/bin/ep-fabric" version | head -n 1)"
fi
ranks=$((gpus > 1 ? gpus : 2))

# over BACKEND NAME LIMIT SETTING... -- COMMAND...: a part: the program over a back end
over()
{
	settings_of "${@:4}"
	part "$2" "$3" env PYTHONUNBUFFERED=1 "PYTHONPATH=$site${deepep:+:$deepep}" "EPF_BACKEND=$1" ${settings[@]+"${settings[@]}"} "$site/bin/ep-fabric" exec -- "${options[@]}"
}

if [ "$list" = 1 ] || [ -n "$tests" ]; then
	over deep_ep deep_ep 120 -- python3 "$tests/test_low_latency.py" --num-processes "$ranks"
fi
if [ "$list" = 1 ] || [ -n "$deepep" ]; then
	over nvshmem nvshmem 180 NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo -- python3 "$deepep/tests/test_low_latency.py" --num-processes "$ranks" --disable-nvlink
fi
over nccl nccl 120 NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO -- \
	python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$root/tests/gpu/nccl_patterns.py" --backend nccl --most 1048576 --rounds 2
if [ -e "$out/nccl.log" ] && ! grep -qai 'using network epf' "$out/nccl.log"; then
	failed=1
	result nccl "WRONG: NCCL did not take the fabric"
fi
if [ "$list" = 1 ] || [ -n "$nixl" ]; then
	part nixl 200 python3 "$root/tests/gpu/p2p_nixl.py" --wheel "$nixl" --plugin "$site/epf/lib/nixl/libplugin_EPF.so" --gpu "0,$((gpus > 1))"
fi
end
