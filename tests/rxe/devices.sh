# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# In the rxe guest: the four RDMA devices and what can be done to them. Pair A is rxe0-rxe1, pair B is
# rxe2-rxe3; node 0 has the even ones, node 1 the odd ones. Each pair is a veth pair in the one network namespace,
# with IPv6 link-local addresses (GID index 0), so traffic really crosses it and tc and link-down act on it.
# Sourced by the jobs; must never be sourced on a host, so it looks first.

rxe_in_guest()
{
	grep -q rxe_guest /proc/cmdline || { echo "devices.sh: this is not the rxe guest" >&2 && return 1; }
}

# Neighbours are permanent because nobody answers a solicitation that netem drops; a link that went down forgets them.
rxe_neighbours()
{
	local n peer
	for n in 0 1 2 3; do
		peer=$((n ^ 1))
		ip -6 neigh replace "fe80::ff:fe00:$((peer + 1))" lladdr "02:00:00:00:00:0$((peer + 1))" \
			dev "veth$n" nud permanent 2>/dev/null
	done
}

# rxe_setup [MTU]: all four, up. 4200 carries RDMA packets of 4096 bytes, the fewest for the emulated CPU.
rxe_setup()
{
	local mtu=${1:-4200} n file
	rxe_in_guest || return 1
	for file in default all; do
		echo 0 >/proc/sys/net/ipv6/conf/$file/accept_dad
		echo 0 >/proc/sys/net/ipv6/conf/$file/accept_ra
	done
	ip link set lo up
	for n in 0 2; do
		ip link add "veth$n" mtu "$mtu" address "02:00:00:00:00:0$((n + 1))" type veth \
			peer name "veth$((n + 1))" mtu "$mtu" address "02:00:00:00:00:0$((n + 2))" || return 1
		ip link set "veth$n" up
		ip link set "veth$((n + 1))" up
	done
	rxe_neighbours
	for n in 0 1 2 3; do
		rdma link add "rxe$n" type rxe netdev "veth$n" || return 1
	done
}

# rxe_cable END: a fifth device, rxe4, on the network NIC whose cable leads to another guest (guest.sh --cable): 10.9.0.1 and
# 10.9.0.2. Neighbours are permanent: a guest that is stalled answers no solicitation either.
rxe_cable()
{
	local other=$((3 - $1))
	rxe_in_guest || return 1
	echo "guest$1" >/proc/sys/kernel/hostname
	ip link set eth0 mtu 1500 up && ip addr add "10.9.0.$1/24" dev eth0 || return 1
	ip neigh replace "10.9.0.$other" lladdr "02:00:00:00:01:0$other" dev eth0 nud permanent || return 1
	rdma link add rxe4 type rxe netdev eth0
}

# rxe_netem WHAT...: both directions of both pairs, e.g. "loss 1%"; rxe_netem alone: nothing any more
rxe_netem()
{
	local n
	for n in 0 1 2 3; do
		if [ $# -gt 0 ]; then
			tc qdisc replace dev "veth$n" root netem limit 20000 "$@" || return 1
		else
			tc qdisc del dev "veth$n" root 2>/dev/null
		fi
	done
	return 0
}

# What netem saw and dropped since it was set; what it changed, it does not count.
rxe_netem_counts()
{
	local n
	for n in 0 1 2 3; do
		tc -s qdisc show dev "veth$n" | awk -v dev="veth$n" '/Sent/ {
			printf "    netem %s: %s packets sent, %s dropped\n", dev, $4, $7 + 0 }'
	done
}

# rxe_down PAIR, rxe_up PAIR: A or B. Down is seen at once by both ends: a veth carrier follows its peer.
rxe_down()
{
	case $1 in
	A) ip link set veth0 down ;;
	B) ip link set veth2 down ;;
	esac
}

rxe_up()
{
	case $1 in
	A) ip link set veth0 up ;;
	B) ip link set veth2 up ;;
	esac
	rxe_neighbours
}
