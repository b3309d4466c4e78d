#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Service between containers: daemons and clients in separate user, mount and PID namespaces that share only the socket's directory (and the
# network, for the rendezvous on loopback). No privileges: root drops all rights first. Two jobs of two ranks: on one daemon, and on two
# daemons in one container, because the software NIC needs one PID namespace.
#
#   svc_containers.sh EP-FABRIC SVC-CLIENT
#
# Exit status 77 with the reason if namespaces cannot be made.
set -u
export LC_ALL=C

die()
{
	printf 'svc_containers.sh: %s\n' "$*" >&2
	exit 1
}

# ---- inside a container ---------------------------------------------------------------------------

# The container sees /mnt/bin, /mnt/run (the shared directory) and an empty /tmp, nothing else of its creator's.
enter()
{
	local work=$1
	if ! { mount --make-rprivate / && mount -t tmpfs -o mode=755 none /mnt && mkdir /mnt/run /mnt/bin &&
		mount --bind "$work/run" /mnt/run && mount --bind "$work/bin" /mnt/bin &&
		mount -t tmpfs none /tmp; }; then
		die "the container cannot be made"
	fi
	[ ! -e "$work" ] || die "the container still sees $work"
	cd / || exit 1
	# It sees its own processes only.
	[ "$(cat /proc/sys/kernel/ns_last_pid)" -lt 1000 ] || die "the container sees other processes"
	printf '%s\n' "$(readlink /proc/self/ns/user) $(readlink /proc/self/ns/mnt) $(readlink /proc/self/ns/pid)" \
		>"/mnt/run/namespaces.$2"
	export XDG_RUNTIME_DIR=/tmp
}

# Runs the daemons until the shared directory has a file "stop", then sends SIGTERM; each must exit with 0.
inside_daemons()
{
	local i pids=() bad=0
	for i in 0 1; do
		/mnt/bin/ep-fabric run --instance "node$i" --runtime-dir /mnt/run --stats-dir /tmp --service-grace 100ms \
			2>"/mnt/run/node$i.log" &
		pids+=($!)
	done
	while [ ! -e /mnt/run/stop ]; do
		sleep 0.05
	done
	for i in "${pids[@]}"; do
		kill -TERM "$i"
		wait "$i" || bad=1
	done
	return "$bad"
}

if [ "${1:-}" = --inside ]; then
	enter "$2" "$3"
	case $4 in
	daemons) inside_daemons ;;
	client) EPF_SERVICE=/mnt/run/$5.sock exec /mnt/bin/svc_client "$6" "$7" "$8" ;;
	esac
	exit
fi

# ---- outside --------------------------------------------------------------------------------------

if [ "$(id -u)" = 0 ] && [ "${1:-}" != --plain ]; then
	command -v setpriv >/dev/null || { echo "no setpriv to drop root's rights"; exit 77; }
	work=$(mktemp -d /tmp/epf-containers-XXXXXX) || exit 1
	trap 'rm -rf "$work"' EXIT
	mkdir "$work/bin" "$work/home"
	cp "$1" "$work/bin/ep-fabric"
	cp "$2" "$work/bin/svc_client"
	cp "$0" "$work/bin/svc_containers.sh"
	chmod -R a+rX "$work"
	chown 65534:65534 "$work/home" || die "cannot give a directory away"
	setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \
		--pdeathsig keep env TMPDIR="$work/home" bash "$work/bin/svc_containers.sh" --plain "$work/bin/ep-fabric" "$work/bin/svc_client"
	exit
fi
[ "${1:-}" = --plain ] && shift
[ $# -eq 2 ] || die "usage: svc_containers.sh EP-FABRIC SVC-CLIENT"

if ! reason=$(unshare -Urmpf --mount-proc true 2>&1); then
	echo "no user namespaces without privilege here: $reason"
	exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/epf-containers-XXXXXX") || exit 1
pids=()
clean()
{
	local p
	touch "$work/run/stop"
	for p in ${pids[@]+"${pids[@]}"}; do
		kill "$p" 2>/dev/null
	done
	wait
	rm -rf "$work"
}
trap clean EXIT
mkdir "$work/bin" "$work/run"
chmod 750 "$work/run"
cp "$1" "$work/bin/ep-fabric"
cp "$2" "$work/bin/svc_client"
cp "$0" "$work/bin/svc_containers.sh" || die "cannot copy the programs"

container()
{
	exec unshare -Urmpf --mount-proc --kill-child bash "$work/bin/svc_containers.sh" --inside "$work" "$@"
}

# wait_for FILE SECONDS WHAT
wait_for()
{
	local i
	for ((i = 0; i < $2 * 20; i++)); do
		[ -e "$1" ] && return
		sleep 0.05
	done
	cat "$work"/run/*.log >&2
	die "$3"
}

container daemons daemons &
daemons=$!
pids+=("$daemons")
wait_for "$work/run/node0.sock" 20 "daemon node0 did not become ready"
wait_for "$work/run/node1.sock" 20 "daemon node1 did not become ready"

# job NAME INSTANCE-OF-RANK-0 INSTANCE-OF-RANK-1
job()
{
	local name=$1 rank clients=() address bad=0
	"$work/bin/ep-fabric" bootstrap serve --world 2 --job containers --listen 127.0.0.1:0 >"$work/boot.$name" 2>&1 &
	pids+=($!)
	local server=$!
	for ((rank = 0; rank < 200; rank++)); do
		address=$(grep -ohsE '127\.0\.0\.1:[0-9]+' "$work/boot.$name" | head -n 1)
		[ -n "$address" ] && break
		sleep 0.05
	done
	[ -n "$address" ] || die "no rendezvous: $(cat "$work/boot.$name")"
	for rank in 0 1; do
		container "client-$name-$rank" client "$([ "$rank" = 0 ] && echo "$2" || echo "$3")" "$rank" 2 "$address" \
			>"$work/out.$rank" 2>&1 &
		clients+=($!)
		pids+=($!)
	done
	for rank in 0 1; do
		wait "${clients[$rank]}" || { bad=1; echo "rank $rank of the job on $name failed" >&2; }
		sed 's/^/# /' "$work/out.$rank"
	done
	wait "$server" || bad=1
	if [ "$bad" = 1 ]; then
		cat "$work"/run/*.log >&2
		exit 1
	fi
}

job one-daemon node0 node0
job two-daemons node0 node1

# The namespaces of simultaneous containers all differ, from this script's as well.
apart()
{
	[ "$(cat "$@" | wc -w)" = 12 ] || die "not every container said what its namespaces are: $*"
	cat "$@" | tr ' ' '\n' | sort | uniq -d | grep -q . && die "namespaces are shared: $*"
}
readlink /proc/self/ns/user /proc/self/ns/mnt /proc/self/ns/pid >"$work/own"
for name in one-daemon two-daemons; do
	apart "$work/own" "$work/run/namespaces.daemons" "$work/run/namespaces.client-$name-0" \
		"$work/run/namespaces.client-$name-1"
done

touch "$work/run/stop"
wait "$daemons" || die "a daemon did not end in order: $(cat "$work"/run/*.log)"
for i in 0 1; do
	[ ! -e "$work/run/node$i.sock" ] || die "the socket of node$i is left"
done
echo "# containers: jobs on one and on two daemons right; daemons and 4 clients in separate namespaces, as user $(id -u)"
