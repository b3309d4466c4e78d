#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Strangers at the ports of a job: strangers.py HOST CONNECTIONS. Scans the ports of a host, and does to each open one what strangers do: random bytes, half of a first
message and then silence, the end of the stream after half of it, one byte at a time, and in the end as many connections as asked for, over all ports together, which say
nothing and stay until the limit of descriptors makes room. Prints one line with the counts. Run by jobs.sh."""
import errno
import os
import random
import resource
import select
import socket
import sys

HELLO = b"EPFT\x02\x00\x00\x00" + bytes(32)
AT_ONCE = 1000


def scan(host, ports):
    """The ports that accept a connection."""
    found, waiting, ports = [], {}, iter(ports)
    poll = select.epoll()
    done = False
    while waiting or not done:
        while not done and len(waiting) < AT_ONCE:
            port = next(ports, None)
            if port is None:
                done = True
                break
            s = socket.socket()
            s.setblocking(False)
            rc = s.connect_ex((host, port))
            if rc == 0:
                found.append(port)
            elif rc == errno.EINPROGRESS:
                poll.register(s, select.EPOLLOUT)
                waiting[s.fileno()] = (s, port)
                continue
            s.close()
        for fd, _ in poll.poll(1):
            s, port = waiting.pop(fd)
            if s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.append(port)
            poll.unregister(fd)
            s.close()
    return sorted(found)


def say(s, data):
    try:
        s.sendall(data)
    except OSError:
        pass


def crowd(host, ports, count):
    """Connections that say nothing; the oldest are closed when this end has no descriptors left."""
    kept = []
    for i in range(count):
        while True:
            try:
                kept.append(socket.create_connection((host, ports[i % len(ports)])))
                break
            except OSError as e:
                if e.errno != errno.EMFILE or not kept:
                    raise
                for s in kept[: len(kept) // 2]:
                    s.close()
                del kept[: len(kept) // 2]
    return kept


def main():
    host, count = sys.argv[1], int(sys.argv[2])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    random.seed(7)
    ports = [p for p in scan(host, range(1024, 65536)) if str(p) not in sys.argv[3:]]
    if not ports:
        sys.exit("no port is open")
    stay = []
    for port in ports:
        for length in (1, 7, 40, 160):
            with socket.create_connection((host, port)) as s:
                say(s, random.randbytes(length))
        with socket.create_connection((host, port)) as s:
            say(s, HELLO[:20])
            s.shutdown(socket.SHUT_WR)
        silent, slow = socket.create_connection((host, port)), socket.create_connection((host, port))
        say(silent, HELLO[:20])
        stay += [silent, slow]
        for byte in HELLO[:-1]:
            slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            say(slow, bytes([byte]))
    stay += crowd(host, ports, count)
    print(f"{len(ports)} open ports, {7 * len(ports) + count} connections of strangers besides the scan, {len(stay)} at the end at once", flush=True)
    os._exit(0)


main()
