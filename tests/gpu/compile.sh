#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Device code compiles for every architecture it is written for, without a GPU:
#
#   compile.sh MODE ROOT
#
# MODE cuda:  nvcc, every kernels/**/*.cu for sm_80, sm_90 and sm_100
#      hip:   Debian's hipcc, host and device side, gfx90a and gfx940
#      clang: clang-19 alone, device side, without any HIP header or library: gfx942, and gfx950 where it knows it; then the
#             assembler takes what came out. Also checks what must stand in the machine code: the 16-byte store, system scope.
# Prints TAP; exit 77 with the reason when the compiler of a mode is not there. Run by meson (suite headers).
set -u
mode=$1
root=$2
cd "$root" || exit 1
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
count=0
failed=0

# result STATUS NAME: one line of TAP, with the log in front of a failure
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

# Sources that both vendors' compilers take; examples are CUDA's.
portable()
{
	find kernels -name '*.cu' -not -path '*/examples/*' | sort
}

cuda()
{
	local nvcc source arch
	nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc) || { echo "no nvcc here: device code not compiled for CUDA"; exit 77; }
	for source in $(find kernels -name '*.cu' | sort); do
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
	for source in $(portable); do
		for arch in gfx90a gfx940; do
			hipcc --offload-arch=$arch -std=c++17 -O3 -Wall -Werror -include hip/hip_runtime.h -I. -x hip -c "$source" \
				-o "$tmp/out" >"$tmp/log" 2>&1
			result $? "hip $arch $source"
		done
	done
}

clang()
{
	local source arch archs=gfx942
	command -v clang-19 >/dev/null || { echo "no clang-19 here: device code not compiled for gfx942"; exit 77; }
	if echo | clang-19 -x c -target amdgcn-amd-amdhsa -mcpu=gfx950 -nogpulib -S -o /dev/null - 2>/dev/null; then
		archs+=" gfx950"
	else
		echo "# gfx950: not known to this clang-19, skipped"
	fi
	for source in $(portable); do
		for arch in $archs; do
			clang-19 -x hip --offload-arch="$arch" -nogpuinc -nogpulib --cuda-device-only -std=c++17 -O3 -Wall -Werror -I. \
				-S "$source" -o "$tmp/out.s" >"$tmp/log" 2>&1 &&
				clang-19 -target amdgcn-amd-amdhsa -mcpu="$arch" -x assembler -c "$tmp/out.s" -o "$tmp/out.o" >>"$tmp/log" 2>&1
			result $? "clang-19 $arch $source"
			[ -s "$tmp/out.s" ] || continue
			grep -q 'global_store_dwordx4 .* sc0 sc1' "$tmp/out.s"
			result $? "clang-19 $arch $source: commands are 16-byte stores of system scope"
			grep -q 'wavefront_size: *64' "$tmp/out.s"
			result $? "clang-19 $arch $source: waves of 64"
		done
	done
}

case $mode in
cuda | hip | clang) $mode ;;
*) echo "compile.sh: no mode $mode" >&2 && exit 1 ;;
esac
echo "1..$count"
[ "$count" -gt 0 ] && [ "$failed" = 0 ]
