#!/bin/busybox sh
# shellcheck shell=dash
# SPDX-License-Identifier: Apache-2.0
#
# Process 1 of the rxe guest, from the initramfs that tests/rxe/guest.sh packs: loads the modules, builds a
# root out of the host's (read-only) with the guest's own /proc, /sys, /dev, /run, and one directory of
# the host's that can be written, at the path it has there. Runs that directory's `command`, leaves what it said in
# `output` and its exit status in `status`, and switches the machine off. Runs under busybox only; must never end without
# switching off.
export PATH=/bin

off()
{
	busybox sync
	busybox poweroff -f
	busybox sleep 60
}

give_up()
{
	echo "init: $*"
	off
}

# Commands of this file are busybox's own.
for name in mount umount mkdir modprobe chroot chmod cut mv usleep; do
	busybox ln -s busybox "/bin/$name"
done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
	modprobe "$module" || echo "init: module $module was not loaded"
done </modules

NINE=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o "$NINE,cache=loose,ro" root /root || give_up "no root file system of the host"
mount -t 9p -o "$NINE,cache=none" share /share || give_up "no directory to write to"
# places: where /share is to be seen, then directories that must stay visible where /dev and /run are covered.
{
	read -r out
	while read -r place; do
		mkdir -p "/keep$place"
		mount --bind "/root$place" "/keep$place" || give_up "the host has no $place"
	done
} </share/places

mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs -o mode=1777 shm /root/dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs -o mode=755 run /root/run
mkdir -p /root/run/tmp
chmod 1777 /root/run/tmp
while read -r place; do
	case $place in
	"$out") ;;
	/dev/* | /run/*) mkdir -p "/root$place" && mount --bind "/keep$place" "/root$place" ;;
	esac
done </share/places
mkdir -p "/root$out"
mount --bind /share "/root$out" || give_up "no $out"

# guest.sh looks whether our clock is sound, and says go or ends us.
cut -d ' ' -f 1 /proc/uptime >/share/uptime.new
mv /share/uptime.new /share/uptime
while [ ! -e /share/go ]; do
	usleep 50000
done
# From then on, that we have not come to a standstill.
while :; do
	cut -d ' ' -f 1 /proc/uptime >/share/uptime
	busybox sleep 2
done &

ulimit -l unlimited
chroot /root /bin/bash "$out/command" >/share/output 2>&1 </dev/null
echo $? >/share/status
off
