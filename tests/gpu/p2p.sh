#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Point-to-point endpoints with GPU memory between two processes: every byte checked first, then rates beside cuMemcpyPeer(), and beside NIXL's UCX back end
# where a wheel is carried. On two GPUs if there are two, else both processes on one.
#
#   [PYTHON=FILE] tests/gpu/p2p.sh [--build DIR] [--out DIR] [--wheel DIR] [--nvcomp DIR] [--rounds N] [--only REGEX] [--list] [--fake]
#
# --build   a build tree, or a folder with libepf.so.0 and libplugin_EPF.so; shared libraries that they need and this machine lacks in DIR/lib (build)
# --out     where logs and the table go (./gpu-results/p2p)
# --wheel   what tools/frameworks/fetch.py nixl-gpu-1.5 DIR makes: for the parts nixl*; NumPy is needed too
# --nvcomp  the folder of libnvcomp.so.6 (of the wheel nvidia-libnvcomp-cu13 or -cu12: nvidia/libnvcomp/lib64): for the parts coder, which needs
#           bench/bench-coder of the build, and compress
# --rounds  timed repetitions of a row (15)
# --only    runs the parts whose name matches; --list names them all
# --fake    the fake GPU instead: checks this script where there is none
#
# Parts: correct, correct-one (both processes on GPU 0), speed, speed-one; xfer, xfer-read (ep-bench xfer, where the build
# has it: 16,000 blocks of 4 KiB); nixl, nixl-one (agents with VRAM, every byte compared), nixl-speed, nixl-speed-one (beside
# UCX, alternating); coder (nvCOMP by itself), compress (GPU memory compressed over the software NIC). Each part has a deadline.
# PYTHON names the interpreter that the wheel is for (python3).
# Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed, never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=build out=$PWD/gpu-results/p2p wheel="" nvcomp="" rounds=15 list=0 fake=()
# shellcheck disable=SC2034 # parts.sh reads them
only=. suite="point to point" part_width=12 last=25 shown='^# \|^ *[0-9]'
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--wheel) wheel=$2 && shift ;;
	--nvcomp) nvcomp=$2 && shift ;;
	--rounds) rounds=$2 && shift ;;
	--only)
		# shellcheck disable=SC2034
		only=$2 && shift
		;;
	--list) list=1 ;;
	--fake) fake=(--fake) ;;
	*) sed -n '/^#   .PYTHON/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
gpus=$((1 + list)) # the names of all parts
[ "${#fake[@]}" != 0 ] || [ "$list" = 1 ] || need_gpu "--fake checks this script"
open_table
trap 'exit 1' TERM INT
libepf=$(find_built libepf.so.0) || [ "$list" = 1 ] || { say "no libepf.so.0 in '$build': --build" && exit 1; }
plugin=$(find_built libplugin_EPF.so)
[ "${#fake[@]}" = 0 ] || plugin=$build/tests/nixl/libplugin_EPF.so # its fake GPU is within reach
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONUNBUFFERED=1

python=${PYTHON:-python3}
cases=("$python" "$root/tests/gpu/p2p_cases.py" --libepf "$libepf" --rounds "$rounds" "${fake[@]}")
two=0,$((gpus > 1 ? 1 : 0))
[ "$list" = 1 ] || say "# $(hardware), GPUs $two"
part correct 300 "${cases[@]}" correct --devices "$two"
[ "$gpus" = 1 ] || part correct-one 300 "${cases[@]}" correct --devices 0,0
part speed 200 "${cases[@]}" speed --devices "$two"
[ "$gpus" = 1 ] || part speed-one 200 "${cases[@]}" speed --devices 0,0
bench=$(find_built ep-bench)
if [ "$list" = 1 ] || [ -n "$bench" ]; then
	blocks=("$bench" xfer --gpu "${two/,/:}" --gpu-backend "$([ "${#fake[@]}" = 0 ] && echo cuda || echo fake)")
	part xfer 60 "${blocks[@]}"
	part xfer-read 60 "${blocks[@]}" --read
fi
nixl_parts()
{
	local suffix=$1 devices=$2
	part "nixl$suffix" 200 "$python" "$root/tests/gpu/p2p_nixl.py" --wheel "$wheel" --plugin "$plugin" --gpu "$devices" "${fake[@]}"
	[ "${#fake[@]}" != 0 ] ||
		part "nixl-speed$suffix" 300 "$python" "$root/bench/nixl/xfer.py" --wheel "$wheel" --plugin "$plugin" --rounds 3 --gpu "$devices"
}

if [ "$list" = 1 ] || { [ -n "$wheel" ] && [ -n "$plugin" ]; }; then
	nixl_parts "" "$two"
	[ "$gpus" = 1 ] || nixl_parts -one 0,0
fi
coder=$(find_built bench-coder)
if [ -n "$nvcomp" ]; then
	[ -e "$nvcomp/libnvcomp.so.6" ] || { say "no libnvcomp.so.6 in '$nvcomp': --nvcomp" && exit 1; }
	export LD_LIBRARY_PATH=$nvcomp:$LD_LIBRARY_PATH EPF_LOG=info
	[ -z "$coder" ] || part coder 120 "$coder" --device 0 --backend "$([ "${#fake[@]}" = 0 ] && echo cuda || echo fake)" --rounds $((rounds * 10))
	part compress 400 "${cases[@]}" compress --devices "$two"
elif [ "$list" = 1 ]; then
	wanted coder || true
	wanted compress || true
fi
end
