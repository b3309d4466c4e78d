#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# perftest.sh DIR: makes sure that ib_write_bw (Debian: perftest) can run in the rxe guest, for jobs_speed.sh: where it is not
# installed, its files and those of libpci3 are unpacked below DIR/perftest, by apt-get download, which takes no rights.
# Exit status 77 with a reason where that cannot be. It must never install anything.
set -uo pipefail
export LC_ALL=C
DIR=${1:?perftest.sh DIR}/perftest

! command -v ib_write_bw >/dev/null || exit 0
[ ! -x "$DIR/usr/bin/ib_write_bw" ] || exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "perftest is not installed, and there is no apt-get"
	exit 77
fi
mkdir -p "$DIR/fetch" || exit 1
(cd "$DIR/fetch" && timeout 120 apt-get -q download perftest libpci3) >"$DIR/fetch.log" 2>&1 ||
	{ echo "apt-get download perftest failed: $(tail -n 1 "$DIR/fetch.log")" && exit 77; }
for deb in "$DIR"/fetch/libpci3*.deb "$DIR"/fetch/perftest*.deb; do
	dpkg-deb -x "$deb" "$DIR" || exit 1
done
rm -rf "$DIR/fetch" "${DIR:?}/usr/share"
