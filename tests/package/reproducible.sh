#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the packages twice, from copies of the tree at paths of different length and with another umask, time zone and language, and compares them
# byte for byte: reproducible.sh WORK-DIR. Takes two whole builds.
set -euo pipefail

ROOT=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
mkdir -p "$1"
WORK=$(cd "$1" && pwd)
SOURCE_DATE_EPOCH=$(git -C "$ROOT" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for copy in one another-and-longer; do
	rm -rf "${WORK:?}/$copy" && mkdir -p "$WORK/$copy/tree"
	git -C "$ROOT" ls-files -z | tar -C "$ROOT" --null -T - -cf - | tar -C "$WORK/$copy/tree" -xf -
done
"$WORK/one/tree/tools/package/build" "$WORK/one/out"
(umask 077 && TZ=Asia/Tokyo LANG=C.UTF-8 "$WORK/another-and-longer/tree/tools/package/build" "$WORK/another-and-longer/out")
(cd "$WORK/one/out" && sha256sum -- *) >"$WORK/sums"
cat "$WORK/sums"
(cd "$WORK/another-and-longer/out" && sha256sum --check --quiet "$WORK/sums")
rm -rf "$WORK/one" "$WORK/another-and-longer"
