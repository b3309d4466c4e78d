#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Every header stands alone: one line that includes it must compile without a warning.
#
#   check.sh MODE ROOT [C flags of the libraries the internal headers use...]
#
# MODE c17, c17-clang, cxx17, aarch64, cuda, hip: the public and the shared-layout headers, in each
# language that includes them. MODE internal: every other header, in the C the project is written in.
# Prints TAP; exit 77 with the reason when the compiler of a mode is not installed. Tables that are
# included with a macro (*_keys.h) are no headers in this sense. Run by meson (suite headers).
set -u
mode=$1
root=$2
shift 2

compiler_of()
{
	case $1 in
	c17 | internal) echo gcc ;;
	c17-clang) command -v clang-14 clang | head -n 1 ;;
	cxx17) echo g++ ;;
	aarch64) echo aarch64-linux-gnu-gcc ;;
	cuda) PATH=$PATH:/usr/local/cuda/bin command -v nvcc || echo nvcc ;;
	hip) PATH=$PATH:/opt/rocm/bin command -v hipcc || echo hipcc ;;
	*) return 1 ;;
	esac
}

strict=(-Wall -Wextra -Wundef -Wcast-align -Werror)
case $mode in
c17 | c17-clang | aarch64) flags=(-x c -std=c17 "${strict[@]}" -Wstrict-prototypes) suffix=c ;;
cxx17) flags=(-x c++ -std=c++17 "${strict[@]}") suffix=cc ;;
cuda) flags=(-x cu -std=c++17 -arch=sm_90 -Werror all-warnings -Xcompiler -Wall -Xcompiler -Werror) suffix=cu ;;
hip) flags=(-x hip -std=c++17 -Wall -Werror) suffix=hip ;;
internal) flags=(-x c -std=gnu17 -D_GNU_SOURCE "${strict[@]}" -Wno-unused-parameter -Wno-missing-field-initializers "$@") suffix=c ;;
*) echo "check.sh: no mode $mode" >&2 && exit 1 ;;
esac
[ "$mode" != internal ] || [ "$(uname -m)" != x86_64 ] || flags+=(-mssse3)

compiler=$(compiler_of "$mode")
if ! command -v "${compiler:-clang}" >/dev/null; then
	echo "no ${compiler:-clang} here: $mode headers not compiled"
	exit 77
fi

cd "$root" || exit 1
# Public: what users and device code include. kernels/*.h are public where they exist.
public()
{
	find queues -name 'epf_*.h'
	find fabric/client/epf.h fabric/p2p/epf_p2p.h kernels -maxdepth 1 -name 'epf*.h'
}
headers=$(public)
if [ "$mode" = internal ]; then
	# Those of tools/nixl are C++, and the plug-in is what includes them.
	headers=$(find queues fabric bootstrap kernels tools bench tests -name '*.h' ! -path 'tools/nixl/*' | grep -vxF "$headers")
fi
# Device-only headers have their own language.
[ "$mode" != cuda ] || headers+=$'\n'$(find kernels -name 'epf*.cuh')

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
failed=0
count=0

# includes NAME ACTION HEADER...: compiles a file that includes the headers; one line of TAP
includes()
{
	local name=$1 action=$2
	shift 2
	count=$((count + 1))
	{
		printf '#include "%s"\n' "$@"
		echo 'extern int epf_header_alone;'
	} >"$tmp/one.$suffix"
	if "$compiler" "${flags[@]}" -I. "$action" "$tmp/one.$suffix" -o "$tmp/one.o" >"$tmp/log" 2>&1; then
		echo "ok $count - $mode $name"
	else
		sed 's/^/# /' "$tmp/log"
		echo "not ok $count - $mode $name"
		failed=1
	fi
}

# nvcc compiles for the host what has been compiled for the device. That takes most of its time, so it is done once, for all headers.
action=-c
[ "$mode" != cuda ] || action=-cubin
mapfile -t headers < <(printf '%s\n' "$headers" | grep -v '_keys\.h$' | sort)
for header in "${headers[@]}"; do
	includes "$header" "$action" "$header"
done
[ "$mode" != cuda ] || includes "all of them, host and device" -c "${headers[@]}"
echo "1..$count"
[ "$count" -gt 0 ] && [ "$failed" = 0 ]
