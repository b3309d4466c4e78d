# SPDX-License-Identifier: Apache-2.0
"""The daemons of a soak: two fabrics of two nodes each, one whose NIC keeps the order and one whose NIC does not. Node 0 of each lives as long as the soak, which shows
whether it grows; the others are killed, drained and started again. With two builds, each serves one of the fabrics."""
import os
import select
import signal
import subprocess
import threading
import time

from plan import FABRICS, NODES

READY_S = 60
# No timeout of the fabric ends anything here, so a rank learns of a loss only from an engine or a daemon that saw it, and a slow machine changes nothing. Cuts are found within 20 ms.
PATIENCE = ("peer-timeout=1h", "peer-silence=0", "wait-timeout=1h", "service-timeout=60s", "bootstrap-timeout=600s", "emu-retry-timeout=60s", "tcp-timeout=60s")
SETTINGS = PATIENCE + ("nic=emu", "emu-links=2", "lanes-per-peer=2", "emu-link-timeout=20ms", "service-grace=100ms")
OF_FABRIC = {"ordered": (), "unordered": ("emu-order=unordered", "emu-delay=20us", "emu-reorder=0.02", "emu-duplicate=0.02", "emu-drop=0.01")}


def options(settings):
    return [f"--{s}" for s in settings]


class Daemon:
    """One daemon of a fabric."""

    def __init__(self, folder, node, settings, build):
        self.folder, self.node, self.settings, self.build = folder, node, settings, build
        self.name = f"node{node}"
        self.socket = os.path.join(folder, f"{self.name}.sock")
        self.log = os.path.join(folder, f"{self.name}.log")
        self.process = None
        self.drained_at = 0.0  # when its last draining ended
        self.rests = []  # what it held whenever nothing ran, since it was started
        self.start()

    def start(self):
        ready, theirs = os.pipe()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([self.build.fabric, "run", "--instance", self.name, "--ready-fd", str(theirs), "--runtime-dir", self.folder, "--stats-dir", self.folder]
                                            + options(self.settings), stderr=log, pass_fds=(theirs,), start_new_session=True)
        os.close(theirs)
        if not select.select([ready], [], [], READY_S)[0] or not os.read(ready, 1):
            raise RuntimeError(f"{self.socket}: the daemon is not ready: see {self.log}")
        os.close(ready)
        self.rests = []

    def kill(self):
        self.process.kill()
        self.process.wait()

    def drain(self):
        """Ends after its last job; returns its exit status. Until then it refuses new ranks."""
        self.drained_at = float("inf")
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait()
        self.drained_at = time.monotonic()
        return status

    def held(self):
        """Bytes of memory, descriptors and threads of the process."""
        pid = self.process.pid
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            status = dict(line.split(":", 1) for line in f)
        return {"memory": 1024 * (int(status["RssAnon"].split()[0]) + int(status["RssShmem"].split()[0])), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
                "threads": int(status["Threads"])}


class Fabric:
    """The daemons of one fabric. `link` is the one that cuts meet; the other one carries on. `lock` is held by who starts ranks, or ends and starts a daemon."""

    def __init__(self, root, name, build):
        folder = os.path.join(root, name)
        os.mkdir(folder)
        self.name, self.folder, self.link = name, folder, 0
        self.lock = threading.Lock()
        self.daemons = [Daemon(folder, node, SETTINGS + OF_FABRIC[name], build) for node in range(NODES)]

    def set_link(self, daemon, up):
        subprocess.run([daemon.build.fabric, "link", "--runtime-dir", self.folder, "--instance", daemon.name, "--link", str(self.link), "--up" if up else "--down"],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def leftovers(self):
        """Files that no daemon and no log accounts for, when no job runs."""
        known = {f"{d.name}{end}" for d in self.daemons for end in (".sock", ".log", ".stats", ".lock")}
        return sorted(set(os.listdir(self.folder)) - known)


def start(root, builds):
    return {name: Fabric(root, name, build) for name, build in zip(FABRICS, builds)}
