#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints a TCP port of this machine that a program may listen on later. It lies below the range that the kernel takes the ports of connections from, if that
leaves room: tests open thousands of connections, and a port that the kernel gives to bind(2) is in that range, so one of them may have taken it when the program comes to it."""
import random
import socket

FIRST = 10000


def free_port():
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first_of_connections = int(f.read().split()[0])
    while True:
        port = random.randrange(FIRST, max(first_of_connections, FIRST + 1000))
        with socket.socket() as s:
            try:
                s.bind(("", port))
            except OSError:
                continue
            return port


if __name__ == "__main__":
    print(free_port())
