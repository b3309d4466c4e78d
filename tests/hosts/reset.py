#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resets TCP connections of this host from outside of their programs, as a firewall that forgets them would: watches an interface, and answers a segment with
a reset that carries the sequence number its receiver waits for, to both ends. A host ignores a reset whose number is out of date, as it is when more data was
under way, so every segment of the connection is answered until the program connects again.

Usage: reset.py --interface NAME [--not-port PORT] --times N. Resets a connection every BETWEEN_S until the program has connected N times; PORT is left alone.
Exit status 1 if it connected less often. Needs CAP_NET_RAW. IPv4 only.
"""
import argparse
import socket
import struct
import sys
import time

ETH_P_ALL = 3
ACK, RST, SYN, FIN = 0x10, 0x04, 0x02, 0x01
LIMIT_S = 60
BETWEEN_S = 0.1


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def reset_segment(src, dst, sport, dport, seq):
    head = struct.pack("!HHIIBBHHH", sport, dport, seq, 0, 5 << 4, RST, 0, 0, 0)
    pseudo = src + dst + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(head))
    return head[:16] + struct.pack("!H", checksum(pseudo + head)) + head[18:]


def parse(frame):
    """(source, destination, ports, seq, ack, flags, bytes) of a TCP segment, or None."""
    if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return None
    ihl = (frame[14] & 15) * 4
    total = struct.unpack("!H", frame[16:18])[0]
    tcp = frame[14 + ihl:]
    sport, dport, seq, ack, offset, flags = struct.unpack("!HHIIBB", tcp[:14])
    return frame[26:30], frame[30:34], sport, dport, seq, ack, flags, total - ihl - (offset >> 4) * 4


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--interface", required=True)
    p.add_argument("--not-port", type=int, default=0)
    p.add_argument("--times", type=int, required=True)
    a = p.parse_args()
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    watch.bind((a.interface, 0))
    watch.settimeout(1)
    send = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    chosen, connects, last = set(), 0, 0.0
    end = time.monotonic() + LIMIT_S
    while connects < a.times and time.monotonic() < end:
        try:
            seen = parse(watch.recv(65600))
        except TimeoutError:
            continue
        if not seen or a.not_port in seen[2:4]:
            continue
        src, dst, sport, dport, seq, ack, flags, length = seen
        connects += bool(chosen and flags & SYN and not flags & ACK)
        pair = tuple(sorted([(src, sport), (dst, dport)]))
        if flags & (SYN | FIN | RST) or not flags & ACK:
            continue
        if pair not in chosen:
            if time.monotonic() < last + BETWEEN_S:
                continue
            chosen.add(pair)
            last = time.monotonic()
        # What the sender of this segment has just said it waits for, and what its receiver waits for next if this segment arrives: either end that believes
        # its reset ends the connection for the other one, too.
        send.sendto(reset_segment(dst, src, dport, sport, ack), (socket.inet_ntoa(src), 0))
        send.sendto(reset_segment(src, dst, sport, dport, (seq + length) & 0xffffffff), (socket.inet_ntoa(dst), 0))
    print(f"reset {len(chosen)} connections, and saw {connects} new ones")
    return connects < a.times


if __name__ == "__main__":
    sys.exit(main())
