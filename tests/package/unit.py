#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the command of an installed unit as systemd would, inside a root directory, and listens for what it reports to the manager.

Usage: unit.py ROOT UNIT. Taken from the unit: User, Group, Environment, RuntimeDirectory and its mode, ExecStart, WatchdogSec. Ready must
come before status can be asked, SIGTERM must end it in order, and the socket must be what the group may use.
"""
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys

LONGEST_WAIT_S = 60


def read_unit(path):
    values = {}
    with open(path, encoding="utf-8") as f:
        for line in f:
            if "=" in line and not line.startswith("#"):
                name, value = line.strip().split("=", 1)
                values.setdefault(name, []).append(value)
    return values


def number_of(path, name):
    with open(path, encoding="utf-8") as f:
        return next(int(line.split(":")[2]) for line in f if line.split(":")[0] == name)


def main(root, unit):
    values = read_unit(root + unit)
    uid = number_of(f"{root}/etc/passwd", values["User"][0])
    gid = number_of(f"{root}/etc/group", values["Group"][0])
    runtime = f"/run/{values['RuntimeDirectory'][0]}"
    os.makedirs(root + runtime, exist_ok=True)
    os.chown(root + runtime, uid, gid)
    os.chmod(root + runtime, int(values["RuntimeDirectoryMode"][0], 8))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    address = f"{root}/run/notify"
    listener.bind(address)
    os.chmod(address, 0o777)
    listener.settimeout(LONGEST_WAIT_S)
    env = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": f"{int(values['WatchdogSec'][0])}000000", "PATH": "/usr/bin:/bin"}
    for line in values.get("Environment", []):
        env.update(pair.split("=", 1) for pair in shlex.split(line))

    def become():
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
        os.umask(int(values["UMask"][0], 8))

    # pylint: disable=subprocess-popen-preexec-fn
    daemon = subprocess.Popen(shlex.split(values["ExecStart"][0]), env=env, preexec_fn=become)
    try:
        said = listener.recv(4096).decode()
        assert "READY=1" in said and "WATCHDOG=1" in said, said
        found = os.stat(f"{root}{runtime}/node.sock")
        assert stat.S_IMODE(found.st_mode) == 0o660 and found.st_gid == gid, oct(found.st_mode)
        asked = subprocess.run(["chroot", root, "ep-fabric", "status"], env={"PATH": "/usr/sbin:/usr/bin:/bin"},
                               capture_output=True, text=True, check=False)
        assert asked.returncode == 0 and "serving" in asked.stdout, asked.stdout + asked.stderr
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(LONGEST_WAIT_S) == 0, "no end in order"
        while "STOPPING=1" not in said:
            said = listener.recv(4096).decode()
        assert os.listdir(root + runtime) == [], os.listdir(root + runtime)
        print("ready, asked, ended")
    finally:
        if daemon.poll() is None:
            daemon.kill()
        os.unlink(address)
        os.rmdir(root + runtime)


if __name__ == "__main__":
    main(*sys.argv[1:])
