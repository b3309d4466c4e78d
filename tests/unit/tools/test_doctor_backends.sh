#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   test_doctor_backends.sh EP_FABRIC PLUGIN
#
# What `ep-fabric doctor` says of the ways onto the fabric, with the variables that programs are started with.
set -u
fabric=$1 plugin=$2 failed=0
root=$(cd "$(dirname "$0")/../../.." && pwd)
unset NCCL_NET_PLUGIN PYTHONPATH LD_PRELOAD LD_LIBRARY_PATH
theirs=$(mktemp -d) || exit 1
trap 'rm -rf "$theirs"' EXIT
mkdir -p "$theirs/deep_ep"
touch "$theirs/deep_ep/__init__.py"

# says CHECK TEXT SETTING...: the line of that check must hold the text
says()
{
	local check=$1 text=$2
	shift 2
	if env "$@" "$fabric" doctor 2>&1 | grep -E "^[a-zA-Z]+ +$check " | grep -qF "$text"; then
		echo "ok $check: $text"
	else
		echo "not ok $check: no '$text' with $*"
		env "$@" "$fabric" doctor 2>&1 | grep -E "^[a-zA-Z]+ +$check "
		failed=1
	fi
}

says nccl "is not in the loader's paths" A=1
says nccl 'can use the fabric: NCCL_NET_PLUGIN=epf' "LD_LIBRARY_PATH=$(dirname "$plugin")"
says nccl 'use the fabric: NCCL_NET_PLUGIN=ucx,epf' "LD_LIBRARY_PATH=$(dirname "$plugin")" NCCL_NET_PLUGIN=ucx,epf
says nccl "use the fabric: NCCL_NET_PLUGIN=$plugin" "NCCL_NET_PLUGIN=$plugin"
says nccl 'a plug-in that the loader does not find' NCCL_NET_PLUGIN=epf
says nccl "is not in the loader's paths" NCCL_NET_PLUGIN=epfx
says shim 'not preloaded' A=1
says deep_ep 'is ours' "PYTHONPATH=/nonexistent:$root/tools/python:$theirs"
says deep_ep 'is another one' "PYTHONPATH=$theirs:$root/tools/python"
says deep_ep 'no deep_ep in PYTHONPATH' A=1
exit $failed
