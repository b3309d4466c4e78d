#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The packages of tools/package/build on a clean Debian root: they install with apt, the pages and the programs are there, a job runs from
# the installed files, the unit's own command serves under its user and notifies the service manager, and purging leaves nothing.
#
#   install.sh PACKAGES-DIR WORK-DIR [ROOT.TAR]   prints one line a case, "ok NAME", "skip NAME" (its tool is not here) or "FAIL NAME: why"; exit 77 where no root can be made
#   install.sh --root ROOT.TAR                     only makes such a root
#
# Needs root, and mmdebstrap with Debian's archive, or a root that was made by it before. It lies below WORK-DIR and is removed at the end.
# Cases are called by their names.
# shellcheck disable=SC2317

set -uo pipefail
export LC_ALL=C

# debian_root FOLDER or ROOT.TAR: what the packages depend on is there from the start, so that afterwards only our own files differ, and nothing is fetched.
debian_root()
{
	mmdebstrap --variant=apt --quiet --skip=cleanup/apt/lists --aptopt='APT::Install-Recommends "false"' --dpkgopt=force-unsafe-io \
		--include=adduser,libsodium23,libjansson4,libinih1,libzstd1,libncursesw6,libmicrohttpd12 bookworm "$1"
}

if [ "$1" = --root ]; then
	# Under another name until it is whole.
	debian_root "$2.part.tar" && mv "$2.part.tar" "$2"
	exit
fi

DEBS=$(cd "$1" && pwd)
mkdir -p "$2" && WORK=$(cd "$2" && pwd)
HERE=$(dirname "$(readlink -f "$0")")
NEW=$WORK/root
TAR=${3:-}
FAILED=0

[ "$(id -u)" = 0 ] || { echo "only root can make a Debian root" && exit 77; }
[ -n "$TAR" ] || command -v mmdebstrap >/dev/null || { echo "mmdebstrap is not here" && exit 77; }

in_root()
{
	chroot "$NEW" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"
}

clean()
{
	umount -l "$NEW/proc" "$NEW/dev/shm" "$NEW/tmp/debs" 2>/dev/null
	mountpoint -q "$NEW/proc" || rm -rf "$NEW"
}

# case_of NAME COMMAND...
case_of()
{
	local name=$1
	shift
	"$@" >"$WORK/case.log" 2>&1
	case $? in
	0) printf 'ok %s\n' "$name" ;;
	77) printf 'skip %s\n' "$name" ;;
	*)
		FAILED=1
		printf 'FAIL %s: %s\n' "$name" "$(tail -n 3 "$WORK/case.log" | tr '\n' ' ')"
		;;
	esac
}

# What is there, but for what every installation of anything leaves: lists, caches, logs, backups of the account files.
files_of()
{
	(cd "$NEW" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./var/cache -o -path ./var/log \
		-o -path ./var/lib/apt -o -path ./var/lib/dpkg -o -path ./var/lib/systemd \) -prune -o -print | grep -v '^\./etc/.*-$' |
		grep -v -e '^./etc/ld.so.cache$' -e '^./run/adduser$' | sort)
}

accounts_of()
{
	cut -d: -f1 "$NEW/etc/passwd" "$NEW/etc/group" | sort
}

# ---- cases --------------------------------------------------------------------------------------

installs()
{
	files_of >"$WORK/before"
	accounts_of >"$WORK/accounts-before"
	in_root sh -c 'apt-get -q -y install --no-install-recommends /tmp/debs/*.deb'
}

has_pages()
{
	local page
	for page in man8/ep-fabric.8 man7/epf.7 man7/epf-errors.7 man5/ep-fabric.conf.5 man5/epf-counters.5 man1/ep-bench.1 man1/ep-top.1 man3/libepf.3; do
		[ -s "$NEW/usr/share/man/$page.gz" ] || { echo "no $page" && return 1; }
	done
}

programs_speak()
{
	in_root ep-fabric version && in_root ep-fabric config --changed && in_root ep-fabric doctor
}

config_is_read()
{
	in_root ep-fabric config --changed | grep -q '^runtime-dir  *= /run/ep-fabric .*(/etc/ep-fabric.conf:' || { in_root ep-fabric config --changed && return 1; }
}

a_job_runs()
{
	in_root ep-bench moe --both --ranks 4 --nodes 2 --tokens 16 --hidden 1024 --experts 32 --mode ll --set runtime-dir=/tmp --quiet
}

unit_serves()
{
	python3 "$HERE/unit.py" "$NEW" /lib/systemd/system/ep-fabric.service
}

unit_is_sound()
{
	[ -s "$NEW/lib/systemd/system/ep-fabric.service" ] || { echo "no unit" && return 1; }
	command -v systemd-analyze >/dev/null || return 77
	local said
	said=$(systemd-analyze verify --man=no --root="$NEW" ep-fabric.service 2>&1 | grep -i 'ep-fabric.service') || return 0
	echo "$said"
	return 1
}

purge_leaves_nothing()
{
	in_root apt-get -q -y purge ep-fabric libepf libepf-dev || return
	files_of >"$WORK/after"
	accounts_of >"$WORK/accounts-after"
	diff "$WORK/before" "$WORK/after" && diff "$WORK/accounts-before" "$WORK/accounts-after"
}

clean
make_root()
{
	if [ -n "$TAR" ]; then
		mkdir -p "$NEW" && tar -C "$NEW" -xf "$TAR"
	else
		debian_root "$NEW"
	fi
}

make_root >"$WORK/root.log" 2>&1 || {
	clean
	echo "no Debian root can be made here: $(tail -n 1 "$WORK/root.log")"
	exit 77
}
trap clean EXIT
if ! mount -t proc proc "$NEW/proc" || ! mount -t tmpfs -o size=2G tmpfs "$NEW/dev/shm"; then
	echo "nothing can be mounted here"
	exit 77
fi
cp /etc/resolv.conf "$NEW/etc/resolv.conf" 2>/dev/null
mkdir -p "$NEW/tmp/debs"
cp "$DEBS"/*.deb "$NEW/tmp/debs/"

case_of "install" installs
case_of "manual pages" has_pages
case_of "programs" programs_speak
case_of "configuration" config_is_read
case_of "job" a_job_runs
case_of "unit file" unit_is_sound
case_of "unit serves" unit_serves
case_of "purge" purge_leaves_nothing
exit "$FAILED"
