#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What is inside the packages of tools/package/build: contents.sh PACKAGES-DIR; prints one line a case, as install.sh does. Needs no root.
# Cases are called by their names.
# shellcheck disable=SC2317
set -uo pipefail
export LC_ALL=C

DEBS=$(cd "$1" && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
for deb in "$DEBS"/*.deb; do
	dpkg-deb -x "$deb" "$WORK/root" || exit 1
done

# has FILE COMMAND PATTERN: what readelf says of a file
has()
{
	readelf -W "$2" "$1" 2>/dev/null | grep "$3" >/dev/null || { echo "${1#"$WORK/root"}: no $3" && return 1; }
}

# Each program and library: position-independent, relocations read-only and bound at start, no executable stack; some function of each has a stack protector.
hardened()
{
	local file n=0 rc=0 odd
	while read -r file; do
		n=$((n + 1))
		has "$file" -h 'Type: *DYN' && has "$file" -l GNU_RELRO && has "$file" -d 'BIND_NOW\|FLAGS_1.*NOW' && has "$file" -l 'GNU_STACK.* RW ' || rc=1
		nm -D "$file" | grep 'U __stack_chk_fail' >/dev/null || { echo "${file#"$WORK/root"}: no stack protector" && rc=1; }
	done < <(grep -rlP --exclude='*.a' '\A\x7fELF' "$WORK/root")
	[ "$n" -ge 8 ] || { echo "only $n programs and libraries" && rc=1; }
	nm -D "$WORK"/root/usr/bin/ep-fabric | grep '__.*_chk@' >/dev/null || { echo "ep-fabric: no fortified function" && rc=1; }
	odd=$(find "$WORK/root" -perm /6000 -o -type f -perm /022)
	[ -z "$odd" ] || { echo "setuid, setgid, or writable by others: $odd" && rc=1; }
	return $rc
}

# The bill names the three packages with the digests they have, and what they link.
bill()
{
	python3 - "$DEBS" <<'PROGRAM'
import glob, hashlib, json, os, sys
(bill,) = glob.glob(sys.argv[1] + "/*.spdx.json")
with open(bill, encoding="utf-8") as f:
    said = json.load(f)
digest = {p["packageFileName"]: p["checksums"][0]["checksumValue"] for p in said["packages"] if "packageFileName" in p}
for deb in glob.glob(sys.argv[1] + "/*.deb"):
    with open(deb, "rb") as f:
        assert digest.pop(os.path.basename(deb)) == hashlib.sha256(f.read()).hexdigest(), deb
assert not digest, digest
names = {p["name"] for p in said["packages"]}
assert {"libc6", "libsodium23", "libjansson4", "libinih1", "libzstd1", "libstdc++6"} <= names, names
ids = {p["SPDXID"] for p in said["packages"]} | {"SPDXRef-DOCUMENT"}
assert all({r["spdxElementId"], r["relatedSpdxElement"]} <= ids for r in said["relationships"])
PROGRAM
}

for name in hardened bill; do
	if "$name" >"$WORK/log" 2>&1; then
		printf 'ok %s\n' "$name"
	else
		printf 'FAIL %s: %s\n' "$name" "$(tail -n 3 "$WORK/log" | tr '\n' ' ')"
	fi
done
