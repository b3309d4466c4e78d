#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults in the middle of a Megatron training on CPU tensors, as its user meets them: a rank killed, stopped, or late; a link of the NIC cut.

Usage: test_faults.py libepf.so libepf-ll.so ep-fabric. Skipped without the packages (FRAMEWORKS). Ranks 0 and 1 share a node, rank 2 is another one.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from packages import HERE, ROOT, environment, preloaded, run, start

ENVIRONMENT = environment(sys.argv[1:3])
FABRIC = sys.argv[3]
RANKS, STEPS, VICTIM, AT = 3, 5, 1, 2
NODES = "aab"
SECONDS = 600    # limit of everything that is waited for
DEADLINE = f"{8 * int(os.environ.get('LIMIT_TIMES', '1'))}s"  # EPF_GPU_TIMEOUT of the case in which it passes: ranks that wait occupy their CPUs
LINKS = ["--emu-links=2", "--lanes-per-peer=2", "--emu-link-timeout=20ms"]


class Job:
    """The rank processes of one training, their logs, and what ep-fabric says of it."""

    def __init__(self, fault, timeout="600s", service=None, steps=STEPS):
        self._folder = tempfile.TemporaryDirectory()  # pylint: disable=consider-using-with
        self.folder, self.ranks = self._folder.name, []
        for rank in range(RANKS):
            env = {**ENVIRONMENT, "EPF_STATS_DIR": self.folder, "EPF_GPU_TIMEOUT": timeout, "EPF_NODE": NODES[rank]}
            if service:
                env.update(EPF_SERVICE=service[NODES[rank]])
            self.ranks.append(start(f"{HERE}/faults_rank.py", [str(rank), self.folder, fault, str(steps)], env, self._log(rank)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.ranks:
            child.kill()  # a stopped one, too
            child.join()
        self._folder.cleanup()

    def _log(self, rank):
        return f"{self.folder}/{rank}.log"

    def said(self, rank):
        if not os.path.exists(self._log(rank)):
            return ""
        with open(self._log(rank), encoding="utf-8") as f:
            return f.read()

    def until(self, what, holds):
        """Waits until holds() is true; returns its value. A rank that ends badly meanwhile is a failure."""
        ends = time.monotonic() + SECONDS
        while not (value := holds()):
            bad = [r for r, child in enumerate(self.ranks) if child.exitcode]
            assert (not bad or bad == [VICTIM]) and time.monotonic() < ends, f"waiting for {what}: ranks {bad} ended badly\n" + "\n".join(
                self.said(r)[-2000:] for r in range(RANKS))
            time.sleep(0.1)
        return value

    def reached(self, step):
        self.until(f"step {step}", lambda: all(f"step {step}\n" in self.said(r) for r in range(RANKS)))

    def why(self, *wanted):
        """Waits until `ep-fabric why` says all of these."""
        def said():
            text = subprocess.run([FABRIC, "why", f"--stats-dir={self.folder}"], capture_output=True, text=True, check=False).stdout
            return text if all(w in text for w in wanted) else ""
        print("# " + self.until(wanted, said).replace("\n", "\n# "))

    def losses(self):
        """Waits for the end; returns the losses."""
        for rank, child in enumerate(self.ranks):
            child.join(SECONDS)
            assert child.exitcode == 0, f"rank {rank}: {child.exitcode}\n{self.said(rank)[-2000:]}"
        with open(f"{self.folder}/result.json", encoding="ascii") as f:
            return json.load(f)["flex"]["losses"]

    def all_name_the_victim(self, says=""):
        for rank, child in enumerate(self.ranks):
            if rank == VICTIM:
                continue
            child.join(SECONDS)
            errors = [line for line in self.said(rank).splitlines() if "EpfError" in line]
            assert child.exitcode and errors and f"rank {VICTIM} " in errors[-1] and says in errors[-1], (rank, child.exitcode, self.said(rank)[-2000:])
            print(f"# {errors[-1]}")


expected = []  # losses of an undisturbed run


def undisturbed():
    with Job("none") as job:
        expected.extend(job.losses())
    assert len(expected) == STEPS and len(set(expected)) == STEPS, expected


def a_killed_rank_is_named():
    with Job("kill") as job:  # by the engine: no deadline passes within the test
        job.reached(AT)
        job.all_name_the_victim("is lost")


def a_stopped_rank_is_shown_and_goes_on():
    with Job("stop") as job:
        job.reached(AT)
        job.why(f"CAUSE rank {VICTIM} (process {job.ranks[VICTIM].pid}", "is stopped by a signal or a debugger", f"waits for kernels of rank {VICTIM}")
        os.kill(job.ranks[VICTIM].pid, signal.SIGCONT)
        assert job.losses() == expected


def a_stopped_rank_is_named_at_the_deadline():
    with Job("stop", DEADLINE) as job:
        job.reached(AT)
        job.all_name_the_victim()


def a_late_rank_is_shown():
    with Job("late") as job:
        job.reached(AT)
        job.why(f"a kernel of rank 0 waits for kernels of rank {VICTIM}")
        with open(f"{job.folder}/go", "w", encoding="ascii"):
            pass
        assert job.losses() == expected


@contextlib.contextmanager
def daemons(folder):
    """Runs a daemon for each node, with two links between them; gives their sockets."""
    names = sorted(set(NODES))
    children = [subprocess.Popen([FABRIC, "run", f"--instance={name}", f"--runtime-dir={folder}", f"--stats-dir={folder}", *LINKS]) for name in names]
    try:
        ends = time.monotonic() + SECONDS
        while not all(os.path.exists(f"{folder}/{name}.sock") for name in names):
            assert time.monotonic() < ends and not any(child.poll() for child in children), "a daemon does not start"
            time.sleep(0.05)
        yield {name: f"{folder}/{name}.sock" for name in names}
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(SECONDS)


def link(folder, up):
    subprocess.run([FABRIC, "link", "--up" if up else "--down", "--link=1", "--instance=a", f"--runtime-dir={folder}"], check=True)


def counted(folder, counter):
    said = subprocess.run([FABRIC, "stats", "--json", f"--stats-dir={folder}"], capture_output=True, text=True, check=True).stdout
    return sum(block["values"].get(counter) or 0 for one in json.loads(said)["instances"] for block in one["blocks"] if block["class"] == "core")


def a_link_is_cut():
    """One of two links is down during a step in the middle, and back for the rest."""
    with tempfile.TemporaryDirectory() as folder, daemons(folder) as service, Job("paced", service=service) as job:
        def go(step):
            with open(f"{job.folder}/{step}", "w", encoding="ascii"):
                pass

        for step in range(STEPS):
            job.reached(step)
            if step == AT:
                link(folder, False)
            if step == AT + 1:
                failovers, pause = counted(folder, "failovers"), counted(folder, "failover_max_ns")
                link(folder, True)
            go(step)
        assert job.losses() == expected
        print(f"# failovers {failovers}, longest pauses together {pause / 1e6:.1f} ms")
        assert failovers > 0 and pause > 0


if __name__ == "__main__":
    preloaded({**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{ROOT}/bench/frameworks"}, "torch" if os.path.exists("/dev/nvidiactl") else "on_cpu")
    run([undisturbed, a_killed_rank_is_named, a_stopped_rank_is_shown_and_goes_on, a_stopped_rank_is_named_at_the_deadline, a_late_rank_is_shown, a_link_is_cut])
