#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages twice, from new copies of the tree, with build folders of their own and another umask, time zone and language, and compares them
# byte for byte: reproducible.sh WORK-DIR. Takes two whole builds. Both copies lie at the same path: nvcc names functions by the path of
# their source, and nothing else here depends on it.
set -euo pipefail

ROOT=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
mkdir -p "$1"
WORK=$(cd "$1" && pwd)
SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# packages OUT: from a new copy
packages()
{
	rm -rf "${WORK:?}/tree" && mkdir -p "$WORK/tree"
	git -C "$ROOT" ls-files -z | tar -C "$ROOT" --null -T - -cf - | tar -C "$WORK/tree" -xf -
	"$WORK/tree/tools/package/build" "$WORK/$1"
}

rm -rf "${WORK:?}/one" "$WORK/two"
packages one
(umask 077 && TZ=Asia/Tokyo LANG=C.UTF-8 packages two)
(cd "$WORK/one" && sha256sum -- *) >"$WORK/sums"
cat "$WORK/sums"
(cd "$WORK/two" && sha256sum --check --quiet "$WORK/sums")
rm -rf "$WORK/tree" "$WORK/one" "$WORK/two"
