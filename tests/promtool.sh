#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# promtool.sh DIR: puts Debian's promtool below DIR, for tests/proc/test_top.py, and prints its path; the one that is installed where there is one.
#
# The package prometheus is not installed: its service would start on a machine with an init system, and nobody asked for that.
# It is fetched by apt-get download, which takes no rights, and the one program is unpacked. Called by tests/stages.sh.
# Exit status 77 with the reason where it cannot be had. It writes below DIR only.
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
		cannot "it is not installed, and there is no apt-get to fetch it with"
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
