#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# xfer.py between two hosts over TCP: NIXL's UCX back end and ours through the same agents, alternating. The hosts are two network namespaces of this machine
# (tests/hosts/bed.sh; needs root). Usage: [PYTHON=FILE] hosts.sh BUILD WHEEL [OPTION OF xfer.py]..., with a release build; WHEEL is what tools/frameworks/fetch.py
# nixl-1.5 WHEEL makes, PYTHON the interpreter that it is for (python3).
set -u
HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source=tests/hosts/bed.sh
. "$HERE/../../tests/hosts/bed.sh"

BUILD=$(readlink -f "${1:?usage: hosts.sh BUILD WHEEL [OPTION]...}")
WHEEL=$(readlink -f "${2:?usage: hosts.sh BUILD WHEEL [OPTION]...}")
shift 2
why=$(bed_why_not)
[ -z "$why" ] || { echo "$why" && exit 77; }
PROGRAM=("$(command -v "${PYTHON:-python3}")" "$HERE/xfer.py" --wheel "$WHEEL" --plugin "$BUILD/tools/nixl/libplugin_EPF.so")
BED_KEEP="$BUILD $WHEEL"
# UCX sees one machine and would find ways past the cable. Where there are GPUs, NIXL wants one more from the caller: UCX_TLS=tcp,cuda_copy.
export UCX_TLS=${UCX_TLS:-tcp} UCX_NET_DEVICES=eth1 EPF_NIC=tcp
BED_PASS="UCX_TLS UCX_NET_DEVICES EPF_NIC EPF_SOCKET_IFNAME EPF_LANES_PER_PEER EPF_CORE_IDLE EPF_CORE_IDLE_AFTER EPF_TCP_CONGESTION"
trap bed_end EXIT
bed_begin 2 1 || exit 1
bed_on beta "${PROGRAM[@]}" --target 4712 "$@" >/dev/null &
TARGET=$!
bed_on alpha "${PROGRAM[@]}" --peer beta:4712 "$@"
RC=$?
[ "$RC" = 0 ] || kill "$TARGET"
wait "$TARGET"
exit "$RC"
