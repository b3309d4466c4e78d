#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages and the wheels twice, from copies of the tree at two paths, with build folders, umask, time zone and language of their own, and
# compares them byte for byte: reproducible.sh WORK-DIR. Takes two whole builds, without a compiler cache, which would hand the first build's objects to
# the second. Keeps both outputs if they differ.
set -euo pipefail

ROOT=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
mkdir -p "$1"
WORK=$(cd "$1" && pwd)
SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct)
export SOURCE_DATE_EPOCH CCACHE_DISABLE=1
# build_all FOLDER: from a new copy in FOLDER/tree into FOLDER/out
build_all()
{
	rm -rf "${WORK:?}/$1" && mkdir -p "$WORK/$1/tree"
	git -C "$ROOT" ls-files -z | tar -C "$ROOT" --null -T - -cf - | tar -C "$WORK/$1/tree" -xf -
	"$WORK/$1/tree/tools/package/build" --build-dir "$WORK/$1/build" "$WORK/$1/out"
	"$WORK/$1/tree/tools/package/wheel" --build-dir "$WORK/$1/build" "$WORK/$1/out"
	rm -rf "$WORK/$1/tree" "$WORK/$1/build"
}

build_all one
(umask 077 && TZ=Asia/Tokyo LANG=C.UTF-8 build_all another/and/longer)
(cd "$WORK/one/out" && sha256sum -- *) >"$WORK/sums"
cat "$WORK/sums"
(cd "$WORK/another/and/longer/out" && sha256sum --check --quiet "$WORK/sums")
rm -rf "$WORK/one" "$WORK/another"
