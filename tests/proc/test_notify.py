#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon's messages to a service manager over NOTIFY_SOCKET (sd_notify(3)), by path and by abstract name.

Usage: test_notify.py EP-FABRIC. A listener acts as systemd: READY only when the socket serves, WATCHDOG within its period, STOPPING before
the exit; a daemon without its manager serves all the same.
"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

WATCHDOG_S = 0.6
LONGEST_WAIT_S = 60


class Daemon:
    def __init__(self, program, folder, address, watchdog_pid=None):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.listener.bind("\0" + address[1:] if address.startswith("@") else address)
        self.listener.settimeout(LONGEST_WAIT_S)
        env = dict(os.environ, NOTIFY_SOCKET=address, WATCHDOG_USEC=str(int(WATCHDOG_S * 1e6)))
        env.pop("WATCHDOG_PID", None)
        if watchdog_pid:
            env["WATCHDOG_PID"] = str(watchdog_pid)
        self.folder = folder
        self.process = subprocess.Popen(
            [program, "run", "--instance=n", f"--runtime-dir={folder}", f"--stats-dir={folder}"],
            env=env, stderr=subprocess.PIPE)

    def hear(self):
        """Returns the next datagram as a dictionary."""
        return dict(line.split("=", 1) for line in self.listener.recv(4096).decode().splitlines())

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LONGEST_WAIT_S)
        log = self.process.stderr.read().decode()
        self.process.stderr.close()
        assert status == 0, f"exit status {status}:\n{log}"
        return log


def it_is_ready_alive_and_stopping(program, folder, address):
    d = Daemon(program, folder, address)
    first = d.hear()
    assert first["READY"] == "1", first
    assert os.path.exists(f"{folder}/n.sock"), "ready before there is a socket"
    assert first["STATUS"] == "serves, 0 jobs, 0 clients, 0 ranks lost so far", first
    beats = 0
    begun = time.monotonic()
    while beats < 5:
        beats += d.hear().get("WATCHDOG") == "1"
    # A busy machine delays single beats: only their sum is judged, generously.
    assert time.monotonic() - begun < 5 * 20 * WATCHDOG_S
    d.process.send_signal(signal.SIGTERM)
    seen = []
    while "STOPPING" not in (said := d.hear()):
        seen.append(said)
        assert len(seen) < 20, seen
    d.end()


def another_process_watchdog_is_not_ours(program, folder, address):
    d = Daemon(program, folder, address, watchdog_pid=1)
    for _ in range(4):
        said = d.hear()
        assert "WATCHDOG" not in said, said
    d.end()


def a_manager_that_is_gone_is_not_missed(program, folder, address):
    d = Daemon(program, folder, address)
    assert d.hear()["READY"] == "1"
    d.listener.close()
    time.sleep(3 * WATCHDOG_S)
    assert d.process.poll() is None
    d.end()


def a_manager_that_never_was_is_one_line(program, folder):
    done = subprocess.Popen(
        [program, "run", "--instance=n", f"--runtime-dir={folder}", f"--stats-dir={folder}", "--ready-fd=1"],
        env=dict(os.environ, NOTIFY_SOCKET="/nonexistent/notify"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout.read(1) == b"r"
    done.send_signal(signal.SIGTERM)
    _, log = done.communicate(timeout=LONGEST_WAIT_S)
    assert done.returncode == 0 and log.count(b"/nonexistent/notify") == 1, log


def main(program):
    cases = 0
    with tempfile.TemporaryDirectory(prefix="epf-notify-") as top:
        for number, (case, abstract) in enumerate((
                (it_is_ready_alive_and_stopping, False), (it_is_ready_alive_and_stopping, True),
                (another_process_watchdog_is_not_ours, False), (a_manager_that_is_gone_is_not_missed, False))):
            folder = f"{top}/{number}"
            os.mkdir(folder, 0o750)
            case(program, folder, f"@epf-{os.getpid()}-{number}" if abstract else f"{top}/{number}.notify")
            cases += 1
        os.mkdir(f"{top}/last", 0o750)
        a_manager_that_never_was_is_one_line(program, f"{top}/last")
    print(f"{cases + 1} cases")


if __name__ == "__main__":
    main(sys.argv[1])
