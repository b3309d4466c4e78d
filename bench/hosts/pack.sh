#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Packs what run.sh needs on a machine where nothing can be built or installed: pack.sh BUILD FOLDER. The programs look for their libraries in lib/, so BUILD is a release build with
# -Dc_link_args='-Wl,-rpath,$ORIGIN/../lib'. There: FOLDER/bench/hosts/run.sh FOLDER/build [ROUNDS [SECONDS]].
set -eu
root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
build=$(readlink -f "${1:?usage: pack.sh BUILD FOLDER}") to=${2:?usage: pack.sh BUILD FOLDER}

mkdir -p "$to"/{bench/hosts,tests/hosts,build/tools,build/bench,build/bin,build/lib}
cp "$root"/bench/hosts/{run.sh,summary.py} "$to/bench/hosts/"
cp "$root"/tests/hosts/{bed.sh,enter} "$to/tests/hosts/"
cp "$build/tools/ep-fabric" "$to/build/tools/"
cp "$build"/bench/{ep-bench,pingpong} "$to/build/bench/"

# libraries PROGRAM: those that are not of libc
libraries()
{
	ldd "$1" | awk '/=> \// && $1 !~ /^lib(c|m|pthread|dl|rt)\.so/ { print $3 }' | xargs -r cp -L -t "$to/build/lib"
}
readelf -d "$to/build/bench/ep-bench" | grep -q 'R.*PATH.*ORIGIN/../lib' || echo "pack.sh: ep-bench does not look for its libraries in lib/: see the head of this file" >&2
libraries "$build/bench/ep-bench"
libraries "$build/tools/ep-fabric"
for name in ip iperf3; do
	command -v "$name" >/dev/null || { echo "pack.sh: no $name here" >&2 && continue; }
	cp -L "$(command -v "$name")" "$to/build/lib/$name.program"
	libraries "$(command -v "$name")"
	# shellcheck disable=SC2016 # expanded over there
	printf '#!/bin/sh\nlib=$(dirname "$(readlink -f "$0")")/../lib\nLD_LIBRARY_PATH=$lib exec "$lib/%s.program" "$@"\n' "$name" >"$to/build/bin/$name"
	chmod +x "$to/build/bin/$name"
done
du -sh "$to"
