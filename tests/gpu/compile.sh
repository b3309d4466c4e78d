#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles device code for every supported architecture, without a GPU:
#
#   compile.sh MODE ROOT
#
# MODE cuda:  nvcc, for sm_80, sm_90 and sm_100, every kernels/**/*.cu that the build does not compile in the same way (kernels/meson.build)
#      hip:   Debian's hipcc, host and device side, gfx90a and gfx940
#      clang: clang-19 alone, device side, without HIP headers or libraries: gfx942, and gfx950 if supported; then assembles the result and, with
#             lld-19, links the code objects of libepf-ll. Also checks the machine code for the 16-byte store of system scope. Without clang-19, clang-14
#             compiles for gfx90a.
# Prints TAP; exit 77 with the reason if the compiler of a mode is missing. Run by meson (suite headers).
set -u
mode=$1
root=$2
cd "$root" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
count=0
failed=0

# result STATUS NAME: one line of TAP; after a failure, the log first
result()
{
	count=$((count + 1))
	if [ "$1" = 0 ]; then
		echo "ok $count - $2"
	else
		sed 's/^/# /' "$tmp/log"
		echo "not ok $count - $2"
		failed=1
	fi
}

# Sources for both vendors' compilers; the examples are CUDA only, and bench/gin.cu needs NCCL's headers.
portable()
{
	find kernels -name '*.cu' -not -path '*/examples/*' ! -name gin.cu | sort
}

# same HEADER OURS=THEIRS...: compares our constants with the vendor's header; compiler flags in $abi_flags
same()
{
	local header=$1 pair
	shift
	{
		echo "#include <$header>"
		echo "#include \"$abi_ours\""
		for pair in "$@"; do
			echo "_Static_assert((long)(${pair%%=*}) == (long)(${pair#*=}), \"$pair\");"
		done
	} >"$tmp/abi.c"
	# shellcheck disable=SC2086
	gcc -std=gnu17 $abi_flags -I. -fsyntax-only "$tmp/abi.c" >"$tmp/log" 2>&1
	result $? "$mode: numbers of $abi_ours, $# compared with $header"
}

cuda_abi()
{
	abi_ours=fabric/gpu/cuda_lib.h
	abi_flags="-I$1"
	[ -f "$1/cuda.h" ] || return 0
	same cuda.h EPF_CU_OUT_OF_MEMORY=CUDA_ERROR_OUT_OF_MEMORY EPF_CU_NO_DEVICE=CUDA_ERROR_NO_DEVICE EPF_CU_NOT_READY=CUDA_ERROR_NOT_READY \
		EPF_CU_PEER_ALREADY_ENABLED=CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED EPF_CU_NOT_SUPPORTED=CUDA_ERROR_NOT_SUPPORTED \
		EPF_CU_ATTR_WARP_SIZE=CU_DEVICE_ATTRIBUTE_WARP_SIZE EPF_CU_ATTR_MULTIPROCESSORS=CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT \
		EPF_CU_ATTR_MAJOR=CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR EPF_CU_ATTR_MINOR=CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR \
		EPF_CU_ATTR_HOST_REGISTER=CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED \
		EPF_CU_ATTR_VMM=CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED \
		EPF_CU_ATTR_POSIX_FD=CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED \
		EPF_CU_ATTR_RDMA_VMM=CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED \
		EPF_CU_ATTR_RDMA=CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED \
		EPF_CU_ATTR_FLUSH_WRITES=CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS \
		EPF_CU_ATTR_WRITES_ORDERING=CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING \
		EPF_CU_ATTR_DMA_BUF=CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED EPF_CU_REGISTER_PORTABLE=CU_MEMHOSTREGISTER_PORTABLE \
		EPF_CU_REGISTER_DEVICEMAP=CU_MEMHOSTREGISTER_DEVICEMAP EPF_CU_REGISTER_READ_ONLY=CU_MEMHOSTREGISTER_READ_ONLY \
		EPF_CU_IPC_LAZY_PEER=CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS EPF_CU_STREAM_NON_BLOCKING=CU_STREAM_NON_BLOCKING \
		EPF_CU_EVENT_NO_TIMING=CU_EVENT_DISABLE_TIMING EPF_CU_ALLOCATION_PINNED=CU_MEM_ALLOCATION_TYPE_PINNED \
		EPF_CU_HANDLE_POSIX_FD=CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR EPF_CU_LOCATION_DEVICE=CU_MEM_LOCATION_TYPE_DEVICE \
		EPF_CU_ACCESS_READ_WRITE=CU_MEM_ACCESS_FLAGS_PROT_READWRITE EPF_CU_RANGE_DMA_BUF=CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD \
		EPF_CU_POINTER_MEMORY_TYPE=CU_POINTER_ATTRIBUTE_MEMORY_TYPE EPF_CU_POINTER_DEVICE=CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL \
		EPF_CU_POINTER_RANGE_START=CU_POINTER_ATTRIBUTE_RANGE_START_ADDR EPF_CU_POINTER_RANGE_BYTES=CU_POINTER_ATTRIBUTE_RANGE_SIZE \
		EPF_CU_MEMORY_DEVICE=CU_MEMORYTYPE_DEVICE EPF_CU_FLUSH_TARGET_CONTEXT=CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX \
		EPF_CU_FLUSH_TO_OWNER=CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER EPF_CU_FLUSH_TO_ALL=CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES \
		EPF_CU_FLUSH_OPTION_HOST=CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST EPF_CU_SRC_ORDER_STREAM=CU_MEMCPY_SRC_ACCESS_ORDER_STREAM \
		'sizeof(struct epf_cu_allocation)=sizeof(CUmemAllocationProp)' 'sizeof(struct epf_cu_access)=sizeof(CUmemAccessDesc)' \
		'offsetof(struct epf_cu_allocation, location)=offsetof(CUmemAllocationProp, location)' \
		'offsetof(struct epf_cu_allocation, flags.rdma)=offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)' \
		'sizeof(struct epf_cu_copy_attributes)=sizeof(CUmemcpyAttributes)' \
		'offsetof(struct epf_cu_copy_attributes, flags)=offsetof(CUmemcpyAttributes, flags)' 'sizeof(struct epf_cu_ipc)=sizeof(CUipcMemHandle)'
}

# nvCOMP's headers are in its wheel (nvidia/libnvcomp/include): EPF_NVCOMP_INCLUDE=DIR compares ours with them.
nvcomp_abi()
{
	[ -n "${EPF_NVCOMP_INCLUDE:-}" ] || return 0
	abi_ours=fabric/gpu/nvcomp.h
	abi_flags="-I$1 -I$EPF_NVCOMP_INCLUDE"
	same nvcomp/ans.h EPF_NVCOMP_MAJOR=NVCOMP_VER_MAJOR EPF_NVCOMP_CANNOT_EXPAND=nvcompErrorCannotDecompress EPF_NVCOMP_CHAR=NVCOMP_TYPE_CHAR \
		EPF_NVCOMP_BITS=NVCOMP_TYPE_BITS EPF_NVCOMP_BACKEND_DEFAULT=NVCOMP_DECOMPRESS_BACKEND_DEFAULT EPF_NVCOMP_RANS=nvcomp_rANS \
		'sizeof(struct epf_nvcomp_compress)=sizeof(nvcompBatchedANSCompressOpts_t)' \
		'sizeof(struct epf_nvcomp_expand)=sizeof(nvcompBatchedANSDecompressOpts_t)' \
		'offsetof(struct epf_nvcomp_compress, reserved)=offsetof(nvcompBatchedANSCompressOpts_t, reserved)' \
		'offsetof(struct epf_nvcomp_compress, histogram)=offsetof(nvcompBatchedANSCompressOpts_t, histogram_reduction_log2)' \
		'offsetof(struct epf_nvcomp_expand, skip_validate)=offsetof(nvcompBatchedANSDecompressOpts_t, skip_validate)' \
		'sizeof(struct epf_nvcomp_align)=sizeof(nvcompAlignmentRequirements_t)' \
		'offsetof(struct epf_nvcomp_align, temp)=offsetof(nvcompAlignmentRequirements_t, temp)' \
		'sizeof(struct epf_nvcomp_properties)=sizeof(nvcompProperties_t)' 'sizeof(int)=sizeof(nvcompStatus_t)'
}

hip_abi()
{
	abi_ours=fabric/gpu/hip_lib.h
	abi_flags=-D__HIP_PLATFORM_AMD__
	same hip/hip_runtime_api.h EPF_HIP_OUT_OF_MEMORY=hipErrorOutOfMemory EPF_HIP_NOT_READY=hipErrorNotReady \
		EPF_HIP_PEER_ALREADY_ENABLED=hipErrorPeerAccessAlreadyEnabled EPF_HIP_NOT_SUPPORTED=hipErrorNotSupported \
		EPF_HIP_ATTR_MAJOR=hipDeviceAttributeComputeCapabilityMajor EPF_HIP_ATTR_MINOR=hipDeviceAttributeComputeCapabilityMinor \
		EPF_HIP_ATTR_MULTIPROCESSORS=hipDeviceAttributeMultiprocessorCount EPF_HIP_ATTR_WARP_SIZE=hipDeviceAttributeWarpSize \
		EPF_HIP_REGISTER_PORTABLE=hipHostRegisterPortable EPF_HIP_REGISTER_MAPPED=hipHostRegisterMapped \
		EPF_HIP_STREAM_NON_BLOCKING=hipStreamNonBlocking EPF_HIP_EVENT_NO_TIMING=hipEventDisableTiming \
		EPF_HIP_COPY_DEFAULT=hipMemcpyDefault EPF_HIP_POINTER_HOST=HIP_POINTER_ATTRIBUTE_HOST_POINTER \
		EPF_HIP_POINTER_DEVICE=HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL EPF_HIP_IPC_LAZY_PEER=hipIpcMemLazyEnablePeerAccess \
		'sizeof(struct epf_hip_ipc)=sizeof(hipIpcMemHandle_t)'
}

cuda()
{
	local nvcc source arch
	nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "no nvcc here: device code not compiled for CUDA"; exit 77; }
	cuda_abi "$(dirname "$nvcc")/../include"
	nvcomp_abi "$(dirname "$nvcc")/../include"
	for source in $(find kernels -name '*.cu' ! -name ll_kernels.cu ! -name ht_kernels.cu ! -name pack_kernels.cu ! -name bench.cu ! -name gin.cu | sort); do
		for arch in 80 90 100; do
			"$nvcc" -std=c++17 -O3 -arch=sm_$arch -Werror all-warnings -Xcompiler -Wall -Xcompiler -Werror -I. -cubin \
				"$source" -o "$tmp/out" >"$tmp/log" 2>&1
			result $? "cuda sm_$arch $source"
		done
	done
}

hip()
{
	local source arch
	PATH=$PATH:/opt/rocm/bin
	command -v hipcc >/dev/null || { echo "no hipcc here: device code not compiled for HIP"; exit 77; }
	hip_abi
	for source in $(portable); do
		for arch in gfx90a gfx940; do
			hipcc --offload-arch=$arch -std=c++17 -O3 -Wall -Werror -Wno-missing-braces -include hip/hip_runtime.h -I. -x hip -c "$source" \
				-o "$tmp/out" >"$tmp/log" 2>&1
			result $? "hip $arch $source"
		done
	done
}

# { 0 } initialises whatever it is in C, which these sources also are.
hip_flags=(-x hip -nogpuinc -nogpulib --cuda-device-only -std=c++17 -Wall -Werror -Wno-missing-braces -I.)

# What most machines have; to assembly, because only then limits of the GPU count.
clang14()
{
	local source
	command -v clang-14 >/dev/null || { echo "neither clang-19 nor clang-14 here: device code not compiled for AMD"; exit 77; }
	for source in $(portable); do
		clang-14 "${hip_flags[@]}" -O1 --offload-arch=gfx90a -S "$source" -o "$tmp/out.s" >"$tmp/log" 2>&1
		result $? "clang-14 gfx90a $source"
	done
}

clang()
{
	local source arch archs=gfx942
	if ! command -v clang-19 >/dev/null; then
		clang14
		return
	fi
	if echo | clang-19 -x c -target amdgcn-amd-amdhsa -mcpu=gfx950 -nogpulib -S -o /dev/null - 2>/dev/null; then
		archs+=" gfx950"
	else
		echo "# gfx950: not known to this clang-19, skipped"
	fi
	for source in $(portable); do
		for arch in $archs; do
			clang-19 "${hip_flags[@]}" -O3 --offload-arch="$arch" \
				-S "$source" -o "$tmp/out.s" >"$tmp/log" 2>&1 &&
				clang-19 -target amdgcn-amd-amdhsa -mcpu="$arch" -x assembler -c "$tmp/out.s" -o "$tmp/out.o" >>"$tmp/log" 2>&1
			result $? "clang-19 $arch $source"
			[ -s "$tmp/out.s" ] || continue
			# What packs rows sends no commands.
			[[ $source = kernels/pack/* ]] || grep -q 'global_store_dwordx4 .* sc0 sc1' "$tmp/out.s"
			result $? "clang-19 $arch $source: commands are 16-byte stores of system scope"
			grep -q 'wavefront_size: *64' "$tmp/out.s"
			result $? "clang-19 $arch $source: waves of 64"
		done
	done
	# shellcheck disable=SC2086
	hip_bundle gfx90a $archs
}

# hip_bundle ARCH...: the code objects of libepf-ll must contain each kernel that it loads
hip_bundle()
{
	local flags=("${hip_flags[@]}" -O3 "${@/#/--offload-arch=}") name
	if ! clang-19 "${flags[@]}" /dev/null -o "$tmp/probe" >/dev/null 2>&1; then
		echo "# no lld-19 here: code objects not linked, skipped"
		return
	fi
	clang-19 "${flags[@]}" kernels/ll/ll_kernels.cu -o "$tmp/bundle" >"$tmp/log" 2>&1
	result $? "clang-19 code objects of kernels/ll/ll_kernels.cu"
	while read -r name; do
		[ "$(grep -aoF "$name.kd" "$tmp/bundle" 2>/dev/null | wc -l)" -ge $# ]
		result $? "clang-19 code objects have the kernel $name"
	done < <(grep -o '_ZN9ep_fabric[A-Za-z0-9_]*' kernels/ll/ll_gpu.c)
}

case $mode in
cuda | hip | clang) $mode ;;
*) echo "compile.sh: no mode $mode" >&2 && exit 1 ;;
esac
echo "1..$count"
[ "$count" -gt 0 ] && [ "$failed" = 0 ]
