#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Megatron-core trains on CPU tensors on two hosts (tests/hosts/bed.sh), one rank each, over TCP: losses and gradient norms are those of its all-gather in every digit, and rows crossed
# the NIC. Run by meson: hosts.sh LIBEPF LIBEPF-LL EP-FABRIC. Needs root, and the packages (FRAMEWORKS); else exit status 77 with the reason.
set -u
# shellcheck source=tests/hosts/bed.sh
. "$(dirname "$(readlink -f "$0")")/../hosts/bed.sh"

libepf=$(readlink -f "$1")
libepf_ll=$(readlink -f "$2")
fabric=$(readlink -f "$3")
packages=$(readlink -f "${FRAMEWORKS:-/nowhere}")
[ -d "$packages/megatron" ] || { echo "no Megatron-core and PyTorch here: tools/frameworks/fetch.py cpu FOLDER, FRAMEWORKS=FOLDER" && exit 77; }
why=$(bed_why_not)
[ -z "$why" ] || { echo "$why" && exit 77; }

out=$(mktemp -d "${TMPDIR:-/tmp}/epf-test-training-XXXXXX")
trap 'bed_end; rm -rf "$out"' EXIT
export BED_KEEP="$out $packages ${fabric%/*/*} ${PYTHONPYCACHEPREFIX-}" BED_PATH=
bed_begin 2 1 || exit 1

# The folder in which gloo's processes meet is seen by both hosts; statistics stay on each.
TMPDIR=$out GLOO_SOCKET_IFNAME=eth1 EPF_STATS_DIR=/run/epf EPF_LIBRARY=$libepf EPF_LL_LIBRARY=$libepf_ll OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore PYTHONPATH=$BED_TREE/tools/python:$packages \
	TORCH_CPP_LOG_LEVEL=ERROR BED=$BED timeout $((600 * ${LIMIT_TIMES:-1})) /usr/bin/python3 "$BED_TREE/bench/frameworks/train_megatron.py" --hosts alpha,beta --rsh "$BED_HERE/enter" \
	--dispatchers flex,allgather --ranks 2 --hidden 128 --ffn 64 --seq 32 --vocab 256 --steps 5 | tee "$out/said"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
grep -q 'losses and gradient norms of allgather and flex: equal in every digit' "$out/said" || { echo "losses or gradient norms differ" && exit 1; }
bytes=$(bed_on alpha "$fabric" stats --dead --json --stats-dir /run/epf | /usr/bin/python3 -c '
import json, sys
print(sum(b["values"].get("put_bytes_remote_node") or 0 for one in json.load(sys.stdin)["instances"] for b in one["blocks"]))')
echo "# $bytes bytes from host alpha over TCP"
[ "${bytes:-0}" -gt 0 ]
