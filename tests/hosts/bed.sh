# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Hosts made of namespaces, for tests and for `quickstart demo --hosts`. Each host has its own network, PIDs, mounts (/dev/shm, /tmp, /run, /root, /proc,
# /sys), IPC and host name, so that nothing but its cables connects it to another: without separate PIDs and mounts the software NIC would
# reach the other "host" through /proc, and a test would prove nothing. Needs root. Sourced; the caller sets `trap bed_end EXIT`.
#
#   bed_why_not             prints why there can be no hosts here, or nothing
#   bed_begin HOSTS CABLES  makes hosts alpha, beta, gamma, delta, as many, connected by CABLES switches: eth1 of each host is on the first, eth2 on the second
#   bed_on HOST COMMAND...  runs a command on a host, in /root
#   bed_unplug HOST CABLE, bed_plug HOST CABLE, bed_mtu BYTES
#   bed_relay HOST CABLE OPTION...   lets every frame of a cable pass through relay.py, which delays and drops; bed_unrelay ends it
#   bed_freeze HOST, bed_kill HOST   stops all processes of a host; ends them all, and its network with them
#   bed_end                 ends every host; 1: processes of this machine are left stopped, BED_LEFT
#
# Host I (from 1) has 10.77.CABLE.I and fd77:CABLE::I on each cable, and /etc/hosts has the names with the first cable's IPv4 address. A program that is started
# through bed_on keeps the caller's descriptors; the caller's environment is not passed on, except BED_PASS (names).

BED_NAMES=(alpha beta gamma delta)
# shellcheck disable=SC2034 # for the scripts that source this file
BED_HERE=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
BED_TREE=$(cd "$BED_HERE/../.." && pwd)

bed_why_not()
{
	local why
	if [ "$(id -u)" != 0 ]; then
		echo "hosts made of namespaces need root"
		return
	fi
	for why in ip unshare nsenter setpriv mount; do
		command -v "$why" >/dev/null || { echo "no program $why (packages iproute2, util-linux, mount)" && return; }
	done
	why=$(unshare --net --mount --uts --ipc --pid --fork --mount-proc sh -c \
		'mount -t tmpfs none /run && mount -t sysfs none /sys && ip link add eth1 type veth peer name eth2 && ip link add switch1 type bridge' 2>&1) ||
		echo "no namespaces with a network of their own: ${why##*$'\n'}"
}

# bed_ready PID: waits until a new process has its namespaces and has set them up
bed_ready()
{
	local turn
	for turn in {1..500}; do
		[ ! -e "$BED/ready.$1" ] || return 0
		kill -0 "$2" 2>/dev/null || break
		sleep 0.02
	done
	echo "bed: $1 did not start (${turn} looks)" >&2
	return 1
}

# What PID 1 of a host does: mounts, then nothing but to reap. Folders that tests need keep their place: the tree and the build, wherever they are.
# shellcheck disable=SC2016 # expanded by the host's own shell
BED_INIT='
set -e
name=$1 bed=$2
shift 2
hostname "$name"
# The root of a host is private, so that nothing of it reaches the machine.
fd=20
for keep in "$@"; do
	eval "exec $fd<\"\$keep\""
	fd=$((fd + 1))
done
mount --bind "$bed/hosts" /etc/hosts
for path in /dev/shm /run /root /tmp; do
	[ ! -d "$path" ] || mount -t tmpfs -o mode=1777 none "$path"
done
chmod 700 /root
mount -t sysfs none /sys
fd=20
for keep in "$@"; do
	mkdir -p "$keep" && mount -c --bind "/proc/self/fd/$fd" "$keep"
	eval "exec $fd<&-"
	fd=$((fd + 1))
done
ip link set lo up
: >"$bed/ready.$name"
set +e
while :; do
	sleep 1000 &
	wait $!
done'

# bed_keep: folders of this machine that a host needs below a path that it replaces
bed_keep()
{
	local dir
	for dir in "$BED" "$BED_TREE" ${BED_KEEP-}; do
		case $dir/ in
		/dev/shm/* | /run/* | /root/* | /tmp/*) printf '%s\n' "$dir" ;;
		esac
	done
}

bed_begin()
{
	local hosts=$1 cables=$2 i name cable keep
	BED=$(mktemp -d "${TMPDIR:-/tmp}/epf-hosts-XXXXXX") || return 1
	export BED BED_PATH
	BED_HOSTS=("${BED_NAMES[@]:0:$hosts}")
	BED_CABLES=$cables
	BED_LEFT=
	declare -gA BED_PID=() BED_STOPPED=() # BED_STOPPED: by host, what bed_freeze has stopped outside of it
	printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >"$BED/hosts"
	for ((i = 1; i <= hosts; i++)); do
		printf '10.77.1.%d %s\n' "$i" "${BED_HOSTS[i - 1]}" >>"$BED/hosts"
	done
	# The switches are in a network namespace of their own: the machine's network is not touched.
	# shellcheck disable=SC2016 # expanded by that shell
	setpriv --pdeathsig KILL unshare --net sh -c ': >"$1"; exec sleep infinity' sh "$BED/ready.switch" </dev/null >/dev/null 2>&1 &
	BED_PID[switch]=$!
	bed_ready switch "${BED_PID[switch]}" || return 1
	for ((cable = 1; cable <= cables; cable++)); do
		bed_switch ip link add "switch$cable" type bridge && bed_switch ip link set "switch$cable" up || return 1
	done
	mapfile -t keep < <(bed_keep)
	for ((i = 1; i <= hosts; i++)); do
		name=${BED_HOSTS[i - 1]}
		setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
			bash -c "$BED_INIT" bash "$name" "$BED" "${keep[@]}" </dev/null >"$BED/$name.log" 2>&1 &
		BED_PID[$name.unshare]=$!
		bed_ready "$name" $! || { cat "$BED/$name.log" >&2 && return 1; }
		BED_PID[$name]=$(pgrep -P $!) || return 1
		echo "${BED_PID[$name]}" >"$BED/$name.pid"
		for ((cable = 1; cable <= cables; cable++)); do
			bed_cable "$name" "$i" "$cable" || return 1
		done
	done
}

bed_switch()
{
	nsenter -t "${BED_PID[switch]}" -n "$@"
}

# bed_cable HOST NUMBER CABLE
bed_cable()
{
	local port=$1.$3
	bed_switch ip link add "$port" type veth peer name "eth$3" netns "${BED_PID[$1]}" &&
		bed_switch ip link set "$port" master "switch$3" up &&
		bed_on "$1" ip addr add "10.77.$3.$2/24" dev "eth$3" &&
		bed_on "$1" ip addr add "fd77:$3::$2/64" dev "eth$3" nodad &&
		bed_on "$1" sh -c "echo 0 >/proc/sys/net/ipv6/conf/eth$3/accept_dad" && # its link-local address is there at once
		bed_on "$1" ip link set "eth$3" up
}

# The environment of a login, not the caller's.
bed_on()
{
	local host=$1 name pass=()
	shift
	for name in ${BED_PASS-}; do
		[ -z "${!name+set}" ] || pass+=("$name=${!name}")
	done
	nsenter -t "${BED_PID[$host]}" -m -u -i -n -p env -i -C /root HOME=/root USER=root SHELL=/bin/bash LANG=C.UTF-8 \
		PATH="${BED_PATH:+$BED_PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" "${pass[@]}" "$@"
}

# With its peer down, a veth has no carrier: what a host sees of an unplugged cable.
bed_unplug()
{
	bed_switch ip link set "$1.$2" down
}

bed_plug()
{
	bed_switch ip link set "$1.$2" up
}

bed_mtu()
{
	local host cable
	for ((cable = 1; cable <= BED_CABLES; cable++)); do
		for host in "${BED_HOSTS[@]}"; do
			bed_switch ip link set "$host.$cable" mtu "$1" && bed_on "$host" ip link set "eth$cable" mtu "$1" || return 1
		done
		bed_switch ip link set "switch$cable" mtu "$1" || return 1
	done
}

# In place of the cable between a host and its switch: host <-> relay <-> switch. The relay sees frames as they are on a wire, so offload is switched off at
# the other ends.
bed_relay()
{
	local host=$1 cable=$2 turn
	shift 2
	bed_switch ip link set "$host.$cable" nomaster &&
		bed_switch ip link add "r$cable.$host" type veth peer name "s$cable.$host" &&
		bed_switch ip link set "s$cable.$host" master "switch$cable" up && bed_switch ip link set "r$cable.$host" up || return 1
	bed_on "$host" python3 "$BED_HERE/relay.py" --no-offload "eth$cable" && bed_switch python3 "$BED_HERE/relay.py" --no-offload "s$cable.$host" || return 1
	rm -f "$BED/ready.relay"
	nsenter -t "${BED_PID[switch]}" -n python3 "$BED_HERE/relay.py" --ready "$BED/ready.relay" "$@" "$host.$cable" "r$cable.$host" \
		>"$BED/relay.log" 2>&1 </dev/null &
	BED_RELAY=($! "$host" "$cable")
	bed_ready relay $! || { cat "$BED/relay.log" && return 1; }
}

bed_unrelay()
{
	kill "${BED_RELAY[0]}" 2>/dev/null
	wait "${BED_RELAY[0]}"
	cat "$BED/relay.log"
	bed_switch ip link del "r${BED_RELAY[2]}.${BED_RELAY[1]}" && bed_switch ip link set "${BED_RELAY[1]}.${BED_RELAY[2]}" master "switch${BED_RELAY[2]}"
}

# bed_pids HOST: its processes, as this machine counts
bed_pids()
{
	find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/pid' -printf '%l %p\n' 2>/dev/null |
		awk -v ns="$(readlink "/proc/${BED_PID[$1]}/ns/pid")" '$1 == ns { split($2, part, "/"); print part[3] }'
}

# An nsenter(1) that sees its child stop would stop too, and continue the child when it is continued itself: it is stopped first.
bed_freeze()
{
	local pid parent pids outside=()
	mapfile -t pids < <(bed_pids "$1")
	for pid in "${pids[@]}"; do
		parent=$(awk '$1 == "PPid:" { print $2 }' "/proc/$pid/status" 2>/dev/null)
		[ "$(cat "/proc/$parent/comm" 2>/dev/null)" != nsenter ] || outside+=("$parent")
	done
	BED_STOPPED[$1]="${BED_STOPPED[$1]-} ${outside[*]}"
	kill -STOP "${outside[@]}" "${pids[@]}" 2>/dev/null
}

# bed_lives PID: it is there and no zombie
bed_lives()
{
	grep -qs '^State:.[^ZX]' "/proc/$1/status"
}

# bed_thaw HOST: resumes what bed_freeze stopped outside of the host, until it has ended, after the host was killed. An nsenter stops itself when it sees its child stopped,
# so one SIGCONT may not be enough. What does not end within 10 s is in BED_LEFT
bed_thaw()
{
	local pid turn
	for pid in ${BED_STOPPED[$1]-}; do
		for ((turn = 0; turn < 500; turn++)); do
			kill -CONT "$pid"
			bed_lives "$pid" || break
			sleep 0.02
		done
		[ "$turn" != 500 ] || BED_LEFT+=" $pid"
	done
	unset "BED_STOPPED[$1]"
}

bed_kill()
{
	kill -KILL "${BED_PID[$1]-}" "${BED_PID[$1.unshare]}" 2>/dev/null
	bed_thaw "$1"
	wait "${BED_PID[$1.unshare]}" 2>/dev/null
	unset "BED_PID[$1]" "BED_PID[$1.unshare]"
} 2>/dev/null # of the shell, which says that they were killed

bed_end()
{
	local host
	[ -n "${BED-}" ] || return 0
	for host in "${BED_HOSTS[@]}"; do
		[ -z "${BED_PID[$host.unshare]-}" ] || bed_kill "$host"
	done
	[ -z "${BED_RELAY-}" ] || kill "${BED_RELAY[0]}" 2>/dev/null
	[ -z "${BED_PID[switch]-}" ] || kill "${BED_PID[switch]}" 2>/dev/null
	wait "${BED_PID[switch]-}" 2>/dev/null
	rm -rf "$BED"
	BED=
	[ -z "$BED_LEFT" ]
}
