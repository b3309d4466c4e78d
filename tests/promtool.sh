#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# promtool.sh DIR: prints the path of promtool for tests/proc/test_top.py: the installed one, else Debian's, unpacked below DIR.
#
# It does not install the package prometheus, which would start a service: apt-get download needs no rights, and only the program is
# unpacked. Called by tests/stages.sh. Exit status 77 with the reason if promtool is not available. Writes below DIR only.
set -euo pipefail
DIR=$1
DEB=$DIR/fetch

cannot()
{
	printf 'no promtool: %s\n' "$*"
	exit 77
}

if command -v promtool; then
	exit 0
fi
if [ ! -x "$DIR/usr/bin/promtool" ]; then
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		cannot "it is not installed, and there is no apt-get to download it"
	fi
	rm -rf "$DEB"
	mkdir -p "$DEB"
	(cd "$DEB" && timeout 300 apt-get -q download prometheus) >"$DIR/fetch.log" 2>&1 ||
		cannot "apt-get download prometheus failed: $(tail -n 1 "$DIR/fetch.log")"
	dpkg-deb --fsys-tarfile "$DEB"/prometheus_*.deb | tar -x -C "$DIR" ./usr/bin/promtool
	rm -rf "$DEB"
fi
"$DIR/usr/bin/promtool" --version >"$DIR/version" 2>&1 || cannot "$DIR/usr/bin/promtool does not run here: $(tail -n 1 "$DIR/version")"
printf '%s\n' "$DIR/usr/bin/promtool"
