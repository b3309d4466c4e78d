#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
#   test_doctor_backends.sh EP_FABRIC PLUGIN
#
# What `ep-fabric doctor` says of the ways onto the fabric, with the variables that programs are started with; and what `ep-fabric exec`, and a rank of
# `ep-fabric launch`, set for a program by the one variable EPF_BACKEND.
set -u
fabric=$1 plugin=$2 failed=0
root=$(cd "$(dirname "$0")/../../.." && pwd)
unset NCCL_NET_PLUGIN NCCL_GIN_PLUGIN NCCL_RMA_PLUGIN NCCL_GIN_TYPE PYTHONPATH EP_DISABLE_GIN LD_PRELOAD LD_LIBRARY_PATH EPF_BACKEND EPF_NIC EPF_SERVICE
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

says nccl "is not in the loader's paths; programs on NCCL can use it by EPF_BACKEND=nccl ep-fabric exec, or NCCL_NET_PLUGIN=" A=1
says nccl 'can use the fabric: NCCL_NET_PLUGIN=epf' "LD_LIBRARY_PATH=$(dirname "$plugin")"
says nccl 'use the fabric: NCCL_NET_PLUGIN=ucx,epf' "LD_LIBRARY_PATH=$(dirname "$plugin")" NCCL_NET_PLUGIN=ucx,epf
says nccl "use the fabric: NCCL_NET_PLUGIN=$plugin" "NCCL_NET_PLUGIN=$plugin"
says nccl 'a plug-in that the loader does not find' NCCL_NET_PLUGIN=epf
says nccl "is not in the loader's paths" NCCL_NET_PLUGIN=epfx
says shim 'not preloaded' A=1
says deep_ep 'is ours' "PYTHONPATH=/nonexistent:$root/tools/python:$theirs"
says deep_ep 'is another one' "PYTHONPATH=$theirs:$root/tools/python"
says deep_ep 'no deep_ep in PYTHONPATH' A=1

# gives COMMAND TEXT SETTING...: what a program that is run so prints must hold the text; an empty one: it must not run
gives()
{
	local command=$1 text=$2 out rc
	shift 2
	# shellcheck disable=SC2086
	out=$(env "$@" "$fabric" $command env 2>&1)
	rc=$?
	if { [ -n "$text" ] && [ "$rc" = 0 ] && grep -qF -- "$text" <<<"$out"; } || { [ -z "$text" ] && [ "$rc" != 0 ]; }; then
		echo "ok $command: ${text:-refused} with $*"
	else
		printf 'not ok %s: no "%s" with %s, status %d\n%s\n' "$command" "$text" "$*" "$rc" "$out"
		failed=1
	fi
}

tools=$(cd "$(dirname "$plugin")/.." && pwd)
for command in 'exec --' 'launch --hosts 127.0.0.1 --'; do
	gives "$command" PATH= A=1
	gives "$command" "NCCL_NET_PLUGIN=$tools/nccl/libnccl-net-epf.so" EPF_BACKEND=nccl
	gives "$command" "NCCL_GIN_PLUGIN=$tools/nccl/libnccl-net-epf.so" EPF_BACKEND=nccl
	gives "$command" "NCCL_RMA_PLUGIN=$tools/nccl/libnccl-net-epf.so" EPF_BACKEND=nccl
	gives "$command" NCCL_GIN_TYPE=2 EPF_BACKEND=nccl
	gives "$command" "LD_PRELOAD=$tools/shim/libepf-deepep.so" EPF_BACKEND=nvshmem
done
gives 'exec --' NCCL_NET_PLUGIN=mine EPF_BACKEND=nccl NCCL_NET_PLUGIN=mine
gives 'exec --' "NCCL_NET_PLUGIN=$tools/nccl/libnccl-net-epf.so" EPF_BACKEND=nccl NCCL_NET_PLUGIN=epf
gives 'exec --' LD_LIBRARY_PATH=/before EPF_BACKEND=nccl LD_LIBRARY_PATH=/before
gives 'exec --backend=nccl --' "NCCL_NET_PLUGIN=$tools/nccl/libnccl-net-epf.so" A=1
gives 'exec --' '' EPF_BACKEND=mine
gives 'exec --' CUDA_MODULE_LOADING=EAGER EPF_BACKEND=nvshmem
if "$fabric" exec env | grep -q NCCL_; then
	echo "not ok exec: a back end without EPF_BACKEND"
	failed=1
fi
says backend 'EPF_BACKEND=none (the variables of programs decide); ep-fabric exec can use: ' A=1
says backend 'EPF_BACKEND=nccl; ep-fabric exec can use: ' EPF_BACKEND=nccl
# Away from everything else: nothing is usable, and what is chosen is missing.
cp "$fabric" "$theirs/ep-fabric"
fabric=$theirs/ep-fabric
says backend 'ep-fabric exec can use: none; not: deep_ep without deep_ep, nvshmem without libepf-deepep.so, nccl without libnccl-net-epf.so' A=1
says nccl "is not in the loader's paths: programs on NCCL cannot use the fabric" A=1
for backend in deep_ep nvshmem nccl; do
	says backend "EPF_BACKEND=$backend needs " EPF_BACKEND=$backend
	gives 'exec --' '' EPF_BACKEND=$backend
done
# Where it is installed.
mkdir -p "$theirs/bin" "$theirs/lib" "$theirs/share/ep-fabric/python/deep_ep"
mv "$fabric" "$theirs/bin/ep-fabric"
fabric=$theirs/bin/ep-fabric
touch "$theirs/lib/libnccl-net-epf.so"
gives 'exec --' "PYTHONPATH=$theirs/bin/../share/ep-fabric/python:/before" EPF_BACKEND=deep_ep PYTHONPATH=/before
gives 'exec --' EP_DISABLE_GIN=1 EPF_BACKEND=deep_ep
gives 'exec --' EP_DISABLE_GIN=0 EPF_BACKEND=deep_ep EP_DISABLE_GIN=0
gives 'exec --' "NCCL_NET_PLUGIN=$theirs/bin/../lib/libnccl-net-epf.so" EPF_BACKEND=nccl
# NCCL takes no such path, and would use its own networks without an error.
for name in 'with,comma' "$(printf 'x%.0s' {1..240})"; do
	mkdir -p "$theirs/$name/nccl" && cp "$fabric" "$theirs/$name/ep-fabric" && touch "$theirs/$name/nccl/libnccl-net-epf.so"
	if out=$("$theirs/$name/ep-fabric" exec --backend=nccl env 2>&1) || ! grep -qF 'NCCL takes no plug-in whose path' <<<"$out"; then
		printf 'not ok exec: a path that NCCL does not take\n%s\n' "$out"
		failed=1
	fi
done
exit $failed
