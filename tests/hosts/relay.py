#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bad cable: copies frames between two network interfaces, late, and not all of them. For kernels without netem, too.

Usage: relay.py [--loss P] [--delay-ms MS] [--seed N] --ready FILE INTERFACE INTERFACE. Ends with SIGTERM, and prints what it did. A frame's fate is drawn
from the seed, in the order of arrival. At their other ends both interfaces must make whole frames, as a wire has them: relay.py --no-offload INTERFACE
switches checksum and segmentation offload off.
"""
import argparse
import array
import collections
import fcntl
import random
import select
import signal
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_OUTGOING = 4
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SIOCETHTOOL = 0x8946
OFFLOADS = {"tso": 0x1F, "gso": 0x24, "checksums": 0x17}  # ETHTOOL_S*; segmentation needs the last


def no_offload(name):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in OFFLOADS.values():
            value = array.array("I", [command, 0])
            fcntl.ioctl(s, SIOCETHTOOL, struct.pack("16sP", name.encode(), value.buffer_info()[0]))


def open_interface(name):
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
    s.bind((name, 0))
    s.setblocking(False)
    return s


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--loss", type=float, default=0)
    p.add_argument("--delay-ms", type=float, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--ready")
    p.add_argument("--no-offload")
    p.add_argument("interfaces", nargs="*")
    a = p.parse_args()
    if a.no_offload:
        no_offload(a.no_offload)
        return 0
    ends = [open_interface(name) for name in a.interfaces]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    draw = random.Random(a.seed)
    late = collections.deque()  # (due, socket, frame), in order of due: one delay for all
    done = {"relayed": 0, "dropped": 0, "too long": 0}
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    with open(a.ready, "w", encoding="ascii"):
        pass
    while not stop:
        wait = max(0, late[0][0] - time.monotonic()) if late else 0.2
        for s in select.select(ends, [], [], wait)[0]:
            for _ in range(64):
                try:
                    frame, where = s.recvfrom(65600)
                except BlockingIOError:
                    break
                except OSError:  # the interface is down
                    break
                if where[2] == PACKET_OUTGOING:
                    continue
                if draw.random() < a.loss:
                    done["dropped"] += 1
                else:
                    late.append((time.monotonic() + a.delay_ms / 1000, other[s], frame))
        now = time.monotonic()
        while late and late[0][0] <= now:
            _, s, frame = late.popleft()
            try:
                s.send(frame)
                done["relayed"] += 1
            except OSError:
                done["too long"] += 1
    print("relay: " + ", ".join(f"{n} {what}" for what, n in done.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
