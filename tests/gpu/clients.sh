# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced after parts.sh by suites that run programs of a folder made by tools/frameworks/nccl_clients.py: puts the folder's NCCL in place of PyTorch's until the suite ends, because
# DeepEP V2 refuses two copies, and sets what those programs need. The suite sets root and out.

# Kernels are cached by the paths they are compiled with, so these are the same on every machine.
at=/tmp/epf-nccl-clients
replaced="" nvshmem=""

# (Called by a trap only.)
# shellcheck disable=SC2317
restore()
{
	[ -z "$replaced" ] || mv -f "$replaced.before" "$replaced"
	leave_nothing
}

# unpack_clients FOLDER: sets clients, and makes $at lead there
unpack_clients()
{
	clients=$(cd "$1" && pwd)
	python3 "${root:?}/tools/frameworks/nccl_clients.py" unpack "$clients" || exit 1
	ln -sfn "$clients" "$at"
	mkdir -p "${out:?}/jit"
	[ ! -d "$clients/jit" ] || cp -rn "$clients/jit/." "$out/jit/"
}

# replace_nccl: until the suite ends; also sets nvshmem
replace_nccl()
{
	local theirs
	theirs=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nccl").submodule_search_locations[0])')/lib/libnccl.so.2
	[ -f "$theirs" ] || { say "PyTorch brings no libnccl.so.2 ($theirs)" && exit 77; }
	[ -f "$theirs.before" ] || cp -p "$theirs" "$theirs.before"
	replaced=$theirs
	trap restore EXIT
	# By rename: a program that runs keeps the file that it has mapped.
	cp "$clients/nvidia/nccl/lib/libnccl.so.2" "$theirs.new" && mv -f "$theirs.new" "$theirs"
	nvshmem=$(python3 -c 'import importlib.util as u; print(u.find_spec("nvidia.nvshmem").submodule_search_locations[0])' 2>/dev/null)
}

# client_libraries FOLDER: prints LD_LIBRARY_PATH with a folder first
client_libraries()
{
	echo "$1:$at/nvidia/nccl/lib:$at/epf/lib:${nvshmem:-}/lib:${LD_LIBRARY_PATH:-}"
}

# client_settings: sets the array client_base, for env(1)
# shellcheck disable=SC2034 # the suite reads it
client_settings()
{
	local home=${CUDA_HOME:-/usr/local/cuda}
	client_base=("PYTHONPATH=$at/deepep:$at" "EP_NCCL_ROOT_DIR=$at/nvidia/nccl" "EP_JIT_CACHE_DIR=$out/jit" "CUDA_HOME=$home" "PATH=$home/bin:$PATH"
		"LD_LIBRARY_PATH=$(client_libraries "$at/nvidia/nccl/lib")" PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 PYTHONWARNINGS=ignore TORCH_NCCL_ENABLE_MONITORING=0)
}
