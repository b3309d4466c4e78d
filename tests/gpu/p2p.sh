#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Point-to-point endpoints with GPU memory between two processes: every byte checked first, then rates beside cuMemcpyPeer(), and beside NIXL's UCX back end
# where a wheel is carried. On two GPUs if there are two, else both processes on one.
#
#   tests/gpu/p2p.sh [--build DIR] [--out DIR] [--wheel DIR] [--rounds N] [--only REGEX] [--list] [--fake]
#
# --build   a build tree, or a folder with libepf.so.0 and libplugin_EPF.so; shared libraries that they need and this machine lacks in DIR/lib (build)
# --out     where logs and the table go (./gpu-results/p2p)
# --wheel   what tools/frameworks/fetch.py nixl-1.5 DIR makes: for the parts nixl-*; NumPy is needed too
# --rounds  timed repetitions of a row (15)
# --only    runs the parts whose name matches; --list names them all
# --fake    the fake GPU instead: checks this script where there is none
#
# Parts: correct, correct-one (both processes on GPU 0), speed, speed-one, nixl (xfer.py with VRAM). Each part has a deadline.
# Exit 0: all was right; 1: something was wrong; 77: no GPU. Speed is printed, never judged.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=build out=$PWD/gpu-results/p2p wheel="" rounds=15 list=0 fake=()
# shellcheck disable=SC2034 # parts.sh reads them
only=. suite="point to point" part_width=12
while [ $# -gt 0 ]; do
	case $1 in
	--build) build=$2 && shift ;;
	--out) out=$2 && shift ;;
	--wheel) wheel=$2 && shift ;;
	--rounds) rounds=$2 && shift ;;
	--only)
		# shellcheck disable=SC2034
		only=$2 && shift
		;;
	--list) list=1 ;;
	--fake) fake=(--fake) ;;
	*) sed -n '/^#   tests/,/^# Exit/p' "$0" && exit 2 ;;
	esac
	shift
done
# shellcheck source=tests/gpu/parts.sh
. "$root/tests/gpu/parts.sh"
trap leave_nothing EXIT
trap 'exit 1' TERM INT

gpus=1
if [ "${#fake[@]}" = 0 ] && [ "$list" = 0 ]; then
	if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
		echo "no GPU here (nvidia-smi lists none): $suite is skipped; --fake checks this script"
		exit 77
	fi
	gpus=$(nvidia-smi -L | wc -l)
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
log=$out/table.txt
: >"$log"
library="" plugin=""
for at in "$build" "$build/fabric"; do [ ! -e "$at/libepf.so.0" ] || library=$(cd "$at" && pwd)/libepf.so.0; done
for at in "$build" "$build/tools/nixl"; do [ ! -e "$at/libplugin_EPF.so" ] || plugin=$(cd "$at" && pwd)/libplugin_EPF.so; done
if [ "$list" = 0 ] && [ -z "$library" ]; then
	say "no libepf.so.0 in '$build': --build"
	exit 1
fi
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONUNBUFFERED=1

# part NAME LIMIT COMMAND...: its output's lines that begin with # are shown
part()
{
	local name=$1 limit=$2
	shift 2
	wanted "$name" || return 0
	bounded "$limit" "$out/$name.log" "$@"
	if [ "$rc" = 0 ]; then
		result "$name" "ok, $took s"
	else
		failed=1
		result "$name" "WRONG: status $rc after $took s"
		tail -n 25 "$out/$name.log" | cut -c1-300 | sed 's/^/    /' | tee -a "$log"
	fi
	grep -a '^# \|^[0-9]' "$out/$name.log" | cut -c1-220 | sed 's/^/    /' | tee -a "$log"
}

cases=(python3 "$root/tests/gpu/p2p_cases.py" --library "$library" --rounds "$rounds" "${fake[@]}")
two=0,$((gpus > 1 ? 1 : 0))
[ "$list" = 1 ] || say "# $(date -u +%FT%TZ), $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sort | uniq -c | sed 's/^ *//'), $(nproc) CPUs, GPUs $two"
part correct 300 "${cases[@]}" correct --devices "$two"
[ "$gpus" = 1 ] || part correct-one 300 "${cases[@]}" correct --devices 0,0
part speed 200 "${cases[@]}" speed --devices "$two"
[ "$gpus" = 1 ] || part speed-one 200 "${cases[@]}" speed --devices 0,0
if [ -n "$wheel" ] && [ -n "$plugin" ] && [ "${#fake[@]}" = 0 ]; then
	part nixl 400 python3 "$root/bench/nixl/xfer.py" --wheel "$wheel" --plugin "$plugin" --rounds 3 --gpu "$two"
elif [ "$list" = 1 ]; then
	wanted nixl || true
fi
end
