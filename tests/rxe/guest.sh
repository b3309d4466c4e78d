#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command in a machine with RDMA devices: a QEMU guest without KVM, Debian's 6.1 kernel, soft-RoCE.
#
#   guest.sh [OPTION]... COMMAND [ARGUMENT]...
#     --dir DIR        below a build directory: where the kernel, the initramfs and the runs are kept (default: build/rxe of the source tree)
#     --timeout S      end of the guest after that many seconds (default 120), exit status 124
#     --memory MIB     of the guest (default 1024)
#     --cpus N         of the guest (default 2)
#     --mtu BYTES      of the devices (default 4200); 0: no devices are made
#     --prepare        only fetch and pack what a run needs
#     --cable N,NET    a network NIC whose other end another guest has: N is 1 here and 2 there, or the other way round, and
#                      NET the same at both, like 127.1.2: they meet by UDP on loopback, where what nobody reads is lost, as on a wire
#     --run NAME       the directory of the run, instead of `last`; with two of them two guests run at once
#     --monitor        takes commands of QEMU's monitor from the pipe monitor.in in that directory, and answers in monitor.out
#
# The command sees the host's files read-only at their own paths and in the same working directory, as root, with four devices
# (devices.sh) and nothing of the host's network. What it may write: /dev/shm, /run (TMPDIR is /run/tmp), and
# $RXE_OUT, which stays on the host below --dir as the directory `last`. Its output and exit status are ours.
# Exit status 77 with a reason where no guest can run, 125 when the guest ended without one, or came to a standstill.
#
# Needs qemu-system-x86; the kernel and busybox-static come from apt-get download when they are not installed, which
# takes no rights. It writes below --dir only.
set -uo pipefail
export LC_ALL=C

HERE=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
DIR=
TIMEOUT=120
MEMORY=1024
CPUS=2
MTU=4200
PREPARE=no
CABLE=
NAME=
MONITOR=no
KERNEL_WORDS="console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=on \
audit=0 apparmor=0 cryptomgr.notests rcupdate.rcu_expedited=1 nowatchdog rxe_guest"
MODULES=(virtio_pci 9pnet_virtio 9p crc32_generic crc32_pclmul rdma_rxe veth sch_netem virtio_net)

die()
{
	printf 'guest.sh: %s\n' "$*" >&2
	exit 1
}

no_guest()
{
	printf 'no guest can run here: %s\n' "$*"
	exit 77
}

# ---- what a run needs ---------------------------------------------------------------------------

# fetch PACKAGE: its files below $DIR/fetched, through apt-get download
fetch()
{
	local deb
	if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
		no_guest "$1 is not installed, and there is no apt-get to fetch it with"
	fi
	mkdir -p "$DIR/fetch" "$DIR/fetched" || die "cannot write below $DIR"
	(cd "$DIR/fetch" && rm -f ./*.deb && apt-get -q download "$1") >"$DIR/fetch.log" 2>&1 ||
		no_guest "apt-get download $1 failed: $(tail -n 1 "$DIR/fetch.log")"
	for deb in "$DIR"/fetch/*.deb; do
		dpkg-deb -x "$deb" "$DIR/fetched" || die "$deb cannot be unpacked"
	done
	rm -rf "$DIR/fetch"
}

find_busybox()
{
	local path
	for path in /bin/busybox /usr/bin/busybox "$DIR/fetched/bin/busybox" "$DIR/fetched/usr/bin/busybox"; do
		if [ -x "$path" ] && ! ldd "$path" >/dev/null 2>&1; then
			BUSYBOX=$path
			return 0
		fi
	done
	return 1
}

# Debian's 6.1 kernels with rdma_rxe, the last one. Sets IMAGE, RELEASE and MODULE_ROOT.
find_kernel()
{
	local root image
	for root in "" "$DIR/fetched"; do
		for image in "$root"/boot/vmlinuz-6.1.*; do
			RELEASE=${image##*/vmlinuz-}
			# Of a kernel fetched earlier, for fewer modules, only those were kept.
			if [ -r "$image" ] && [ -e "$root/lib/modules/$RELEASE/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko" ] &&
				[ -e "$root/lib/modules/$RELEASE/kernel/drivers/net/virtio_net.ko" ]; then
				IMAGE=$image
				MODULE_ROOT=$root/lib/modules/$RELEASE
			fi
		done
	done
	RELEASE=${IMAGE##*/vmlinuz-}
	[ -n "$IMAGE" ]
}

# The package behind Debian's linux-image-amd64, which itself holds nothing.
kernel_package()
{
	apt-cache depends linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-6\.1\./ { print $2; exit }'
}

# number FILE OFFSET BYTES: a little-endian number out of a file
number()
{
	od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '
}

# The ELF kernel out of a bzImage: its header says where it lies. Booted so, it saves half the boot: the emulated CPU
# does not unpack it.
extract_kernel()
{
	local start length magic unpack
	start=$((($(number "$1" 497 1) + 1) * 512 + $(number "$1" 584 4)))
	length=$(number "$1" 588 4)
	magic=$(od -A n -t x1 -j "$start" -N 4 "$1" | tr -d ' ')
	case $magic in
	fd377a58) unpack=xz ;;
	28b52ffd) unpack=zstd ;;
	1f8b*) unpack=gzip ;;
	*) no_guest "$1 is packed in a way this script does not know ($magic)" ;;
	esac
	command -v "$unpack" >/dev/null || no_guest "$unpack is not installed"
	# Behind the packed kernel stand four bytes with its size, which the unpackers complain about.
	tail -c "+$((start + 1))" "$1" | head -c "$length" | "$unpack" -dc >"$2.new" 2>/dev/null
	[ "$(od -A n -t x1 -N 4 "$2.new" | tr -d ' ')" = 7f454c46 ] || no_guest "no kernel was found in $1"
	mv "$2.new" "$2"
}

# module_files: modules.dep lines of our modules and all they need
module_lines()
{
	awk -v want="${MODULES[*]}" -F ': *' '
		{ need[$1] = $2; name = $1; sub(/.*\//, "", name); sub(/\.ko.*/, "", name); gsub(/-/, "_", name); at[name] = $1 }
		function add(file, n, i, part) {
			if (file in done)
				return
			done[file] = 1
			print file ": " need[file]
			n = split(need[file], part, " ")
			for (i = 1; i <= n; i++)
				add(part[i])
		}
		END {
			n = split(want, name_of, " ")
			for (i = 1; i <= n; i++)
				if (name_of[i] in at)
					add(at[name_of[i]])
		}' "$1"
}

pack_initramfs()
{
	local tree=$DIR/initramfs file to
	rm -rf "$tree"
	mkdir -p "$tree"/{bin,proc,sys,dev,root,share,keep} "$tree/lib/modules/$RELEASE" || die "cannot write below $DIR"
	cp "$BUSYBOX" "$tree/bin/busybox"
	ln -s busybox "$tree/bin/sh"
	install -m 755 "$HERE/init.sh" "$tree/init"
	printf '%s\n' "${MODULES[@]}" >"$tree/modules"
	to=$tree/lib/modules/$RELEASE
	# A package that was only unpacked has no list of dependencies yet.
	[ -s "$MODULE_ROOT/modules.dep" ] || "$BUSYBOX" depmod -b "${MODULE_ROOT%/lib/modules/*}" "$RELEASE" ||
		die "depmod of $MODULE_ROOT failed"
	module_lines "$MODULE_ROOT/modules.dep" >"$to/modules.dep"
	while IFS=: read -r file _; do
		install -m 644 -D "$MODULE_ROOT/$file" "$to/$file" || die "no module $file"
	done <"$to/modules.dep"
	(cd "$tree" && find . | "$BUSYBOX" cpio -o -H newc) >"$DIR/initramfs.new" 2>"$DIR/cpio.log" ||
		die "the initramfs was not packed: $(cat "$DIR/cpio.log")"
	# Of the modules that were fetched only these are kept: 4 MB of 400.
	if [ "$MODULE_ROOT" != "/lib/modules/$RELEASE" ]; then
		rm -rf "$MODULE_ROOT"
		mv "$to" "$MODULE_ROOT" || die "$MODULE_ROOT cannot be replaced"
	fi
	rm -rf "$tree"
	mv "$DIR/initramfs.new" "$DIR/initramfs.cpio"
}

# Everything once; again when what it is made of is newer. One process at a time.
prepare()
{
	[ "$(uname -m)" = x86_64 ] || no_guest "the guest is made for x86-64, this is $(uname -m)"
	command -v qemu-system-x86_64 >/dev/null || no_guest "qemu-system-x86_64 is not installed (Debian: qemu-system-x86)"
	mkdir -p "$DIR" || die "cannot make $DIR"
	DIR=$(cd "$DIR" && pwd)
	exec 9>"$DIR/lock"
	flock 9 || die "no lock in $DIR"
	if [ ! "$DIR/initramfs.cpio" -nt "$HERE/init.sh" ] || [ ! "$DIR/initramfs.cpio" -nt "$HERE/guest.sh" ] ||
		[ ! -e "$DIR/vmlinux" ]; then
		IMAGE=
		find_busybox || fetch busybox-static
		find_busybox || no_guest "busybox-static has no static busybox"
		if ! find_kernel; then
			[ -n "$(kernel_package)" ] || no_guest "no Debian 6.1 kernel with rdma_rxe is installed or known to apt"
			rm -rf "$DIR/fetched/lib/modules"
			fetch "$(kernel_package)"
			find_kernel || no_guest "$(kernel_package) has no kernel with rdma_rxe"
		fi
		extract_kernel "$IMAGE" "$DIR/vmlinux"
		pack_initramfs
	fi
	exec 9>&-
}

# ---- one run ------------------------------------------------------------------------------------

# For init.sh: where this directory is to be, and what must stay visible below /dev and /run, which are the guest's
# own. For the guest's shell: our working directory and search path, the devices, the command.
write_command()
{
	printf '%s\n' "$RUN" "${DIR%/*}" "$HERE" "$PWD" >"$RUN/places"
	{
		printf 'export PATH=%q HOME=%q LC_ALL=C TMPDIR=/run/tmp RXE_OUT=%q\n' "$PATH" "${HOME:-/root}" "$RUN"
		printf 'cd %q\n' "$PWD"
		if [ "$MTU" != 0 ]; then
			printf '. %q && rxe_setup %q || { echo "the devices were not made"; exit 125; }\n' \
				"$HERE/devices.sh" "$MTU"
		fi
		printf 'exec'
		printf ' %q' "$@"
		printf '\n'
	} >"$RUN/command"
}

# more_machine: what of QEMU's arguments is not the same for all guests, in MORE
more_machine()
{
	local end=${CABLE%%,*} net=${CABLE#*,}
	MORE=()
	if [ -n "$CABLE" ]; then
		MORE+=(-netdev "dgram,id=cable,local.type=inet,local.host=$net.$end,local.port=18516,remote.type=inet,remote.host=$net.$((3 - end)),remote.port=18516"
			-device "virtio-net-pci,netdev=cable,mac=02:00:00:00:01:0$end,romfile=")
	fi
	if [ "$MONITOR" = yes ]; then
		rm -f "$RUN"/monitor.*
		mkfifo "$RUN/monitor.in" "$RUN/monitor.out" || die "no pipes in $RUN"
		MORE+=(-chardev "pipe,id=monitor,path=${RUN//,/,,}/monitor" -mon chardev=monitor)
	fi
}

boot()
{
	timeout -k 5 "$TIMEOUT" qemu-system-x86_64 -M q35 -accel tcg,thread=multi,tb-size=256 -cpu max -smp "$CPUS" \
		-m "$MEMORY" -pidfile "$RUN/pid" -nodefaults -no-user-config -no-reboot -display none -serial "file:${RUN//,/,,}/console" \
		-kernel "$DIR/vmlinux" -initrd "$DIR/initramfs.cpio" \
		-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
		-device virtio-9p-pci,fsdev=root,mount_tag=root \
		-fsdev "local,id=share,path=${RUN//,/,,},security_model=none,multidevs=remap" \
		-device virtio-9p-pci,fsdev=share,mount_tag=share \
		"${MORE[@]}" -append "$KERNEL_WORDS" </dev/null >"$RUN/qemu.log" 2>&1 &
	QEMU=$!
}

# The kernel measures its clock's rate when it boots, and on a machine with much other work it can be wrong by far: then seconds are over in
# no time, and so are all time limits in the guest. True when its time since boot fits ours, and then it may go on.
clock_is_sound()
{
	local start=${EPOCHREALTIME//[.,]/} ours theirs
	while [ ! -s "$RUN/uptime" ] && kill -0 "$QEMU" 2>/dev/null; do
		sleep 0.05
	done
	theirs=$(tr -d . 2>/dev/null <"$RUN/uptime")0
	ours=$(((${EPOCHREALTIME//[.,]/} - start) / 1000))
	if [ "$((10#$theirs))" -gt $((ours * 5 / 4 + 1000)) ]; then
		echo "guest.sh: the guest's clock is wrong: $((10#$theirs)) ms since its boot of $ours; booted again" >&2
		return 1
	fi
	: >"$RUN/go"
}

# Up to three boots.
boot_soundly()
{
	local i
	for i in 1 2 3; do
		rm -f "$RUN/uptime" "$RUN/go"
		boot
		clock_is_sound && return 0
		[ "$i" = 3 ] || { kill "$QEMU" && wait "$QEMU"; } 2>/dev/null
	done
	: >"$RUN/go"
}

# A guest once hung with both CPUs busy, and neither its timers nor its own time limits fired; in another one khugepaged and `ip` hung in the kernel for half an
# hour. Ends a guest whose clock has not moved for STANDSTILL seconds, or whose kernel says that a task has been blocked for its 120 s.
STANDSTILL=$((120 * ${LIMIT_TIMES:-1}))
end_at_standstill()
{
	local last="" now still=0
	while sleep 2 && kill -0 "$QEMU"; do
		now=$(cat "$RUN/uptime")
		[ "$now" = "$last" ] || still=0
		last=$now
		still=$((still + 2))
		[ "$still" -lt "$STANDSTILL" ] || break
		grep -aqs 'INFO: task .* blocked for more than' "$RUN/console" && now=blocked && break
	done
	kill -0 "$QEMU" || return
	if [ "$now" = blocked ]; then
		echo "a task hangs in its kernel" >"$RUN/standstill"
	else
		echo "its clock did not move for $STANDSTILL s" >"$RUN/standstill"
	fi
	kill -9 "$(cat "$RUN/pid")"
}

# Removes what this run left, but for the last one, which is there to be looked at.
finish()
{
	[ -z "${WATCHER-}" ] || kill "$WATCHER" 2>/dev/null
	[ -z "${QEMU-}" ] || { kill "$QEMU" && wait "$QEMU"; } 2>/dev/null
	[ -z "$NAME" ] || return 0
	rm -rf "$DIR/last"
	mv "$RUN" "$DIR/last"
}

run()
{
	local rc tailer
	if [ -n "$NAME" ]; then
		RUN=$DIR/$NAME
		rm -rf "$RUN"
		mkdir -m 700 "$RUN" || die "cannot write below $DIR"
	else
		RUN=$(mktemp -d "$DIR/run.XXXXXX") || die "cannot write below $DIR"
	fi
	trap finish EXIT
	trap 'exit 143' TERM INT HUP
	: >"$RUN/output"
	write_command "$@"
	more_machine
	boot_soundly
	end_at_standstill >/dev/null 2>&1 </dev/null &
	WATCHER=$!
	tail -n +1 -s 0.1 -f --pid="$QEMU" "$RUN/output" &
	tailer=$!
	wait "$QEMU" 2>/dev/null # says nothing of a guest that was ended
	rc=$?
	QEMU=
	wait "$tailer"
	if [ -e "$RUN/standstill" ]; then
		rc=125
		echo "guest.sh: the guest came to a standstill: $(cat "$RUN/standstill")" >&2
	elif [ "$rc" = 0 ] && [ -s "$RUN/status" ]; then
		rc=$(cat "$RUN/status")
	elif [ "$rc" = 0 ]; then
		rc=125
		echo "guest.sh: the guest ended without an exit status" >&2
	elif [ "$rc" = 124 ] || [ "$rc" = 137 ]; then
		rc=124
		echo "guest.sh: the guest was ended after $TIMEOUT s" >&2
	fi
	if [ "$rc" != 0 ]; then
		tail -n 60 "$RUN/qemu.log" "$RUN/console" | tr -d '\r' | sed 's/^/guest | /' >&2
	fi
	exit "$rc"
}

while [ $# -gt 0 ]; do
	case $1 in
	--dir) DIR=${2:?--dir needs a directory} && shift ;;
	--timeout) TIMEOUT=${2:?--timeout needs seconds} && shift ;;
	--memory) MEMORY=${2:?--memory needs MiB} && shift ;;
	--cpus) CPUS=${2:?--cpus needs a number} && shift ;;
	--mtu) MTU=${2:?--mtu needs bytes} && shift ;;
	--prepare) PREPARE=yes ;;
	--cable) CABLE=${2:?--cable needs N,NET} && shift ;;
	--run) NAME=${2:?--run needs a name} && shift ;;
	--monitor) MONITOR=yes ;;
	-*) die "unknown option $1" ;;
	*) break ;;
	esac
	shift
done
DIR=${DIR:-$HERE/../../build/rxe}
[ "$PREPARE" = yes ] || [ $# -gt 0 ] || die "no command; see the head of this file"
prepare
[ "$PREPARE" = yes ] || run "$@"
