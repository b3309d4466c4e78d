# SPDX-License-Identifier: Apache-2.0
"""A job of a soak: starts its ranks, brings its fault about, waits for their ends, and judges them. No verdict on time: LIMIT_S is against hanging."""
import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time

from daemons import PATIENCE

sys.path.append(f"{os.path.dirname(os.path.abspath(__file__))}/..")
from free_port import free_port  # noqa: E402

LIMIT_S = 600
NAMED = re.compile(r"\[EPF-\d+\]")
REFUSED = "[EPF-710]"


class Job:
    """Ranks as processes. `lost` has the ranks that a fault took, of this job's own fault or, with a daemon, of another job's."""

    def __init__(self, plan, folder, fabrics, build):
        self.plan, self.folder, self.build = plan, folder, build
        self.fabric = fabrics.get(plan.place)
        self.lost, self.began = set(), 0.0
        self.lock = threading.Lock()
        self.processes = []
        self.missed = plan.fault == "none"

    # ---- ranks ----

    def environment(self, rank, common):
        node = self.plan.node(rank)
        env = dict(os.environ, **common, EPF_RANK=str(rank), EPF_NODE=f"node{node}", EPF_LOCAL_RANK=str(sum(self.plan.node(r) == node for r in range(rank))))
        if self.fabric:
            env["EPF_SERVICE"] = self.fabric.daemons[node].socket
        return env

    def start(self):
        os.mkdir(self.folder)
        with self.fabric.lock if self.fabric else contextlib.nullcontext():
            self.began = time.monotonic()
            self.start_ranks()

    def start_ranks(self):
        stats = self.fabric.folder if self.fabric else self.folder
        common = {"EPF_SECRET": secrets.token_hex(32), "EPF_RENDEZVOUS": f"127.0.0.1:{free_port()}", "EPF_WORLD_SIZE": str(self.plan.ranks), "EPF_JOB": f"soak-{self.plan.number}",
                  "EPF_STATS_DIR": stats, "EPF_NIC": "tcp" if self.plan.place == "tcp" else "emu"}
        settings = [word for s in PATIENCE for word in ("--set", s)]
        for rank in range(self.plan.ranks):
            with open(self.output(rank), "wb") as out:
                self.processes.append(subprocess.Popen([self.build.bench, "moe", "--launched", "--timeout-s", str(LIMIT_S), *self.plan.arguments, *settings],
                                                       env=self.environment(rank, common), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                                       start_new_session=True))  # Ctrl-C is for the soak alone

    def output(self, rank):
        return os.path.join(self.folder, f"rank.{rank}")

    def runs(self):
        return any(p.poll() is None for p in self.processes)

    def lose_node(self, node):
        with self.lock:
            if self.runs():
                self.lost |= {r for r in range(self.plan.ranks) if self.plan.node(r) == node}

    # ---- faults ----

    def fault(self, beside):
        """Brings the fault about. beside: all jobs that run now, for a fault that meets a daemon."""
        plan = self.plan
        while not plan.early and self.runs() and not self.is_in_rounds():
            time.sleep(0.01)
        end = time.monotonic() + plan.after_s
        while time.monotonic() < end and self.runs():
            time.sleep(0.01)
        if plan.fault in ("none", "reset") or not self.runs():
            self.missed = plan.fault != "reset"
        elif plan.fault == "kill-rank":
            with self.lock:
                self.lost.add(plan.victim)
            self.processes[plan.victim].kill()
        elif plan.fault == "stop":
            self.stop_rank()
        elif plan.fault == "cut":
            self.cut()
        else:
            self.end_daemon(beside)

    def is_in_rounds(self):
        return " round " in self.said(0)

    def stop_rank(self):
        process = self.processes[self.plan.victim]
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.plan.for_s)
        process.send_signal(signal.SIGCONT)

    def cut(self):
        daemon = self.fabric.daemons[self.plan.victim]
        self.fabric.set_link(daemon, False)
        time.sleep(self.plan.for_s)
        self.fabric.set_link(daemon, True)

    def end_daemon(self, beside):
        daemon = self.fabric.daemons[self.plan.victim]
        with self.fabric.lock:
            if not self.runs():  # it has ended while another job's fault was at the daemon
                self.missed = True
                return
            if self.plan.fault == "kill-daemon":
                for job in beside():
                    if job.fabric is self.fabric:
                        job.lose_node(self.plan.victim)
                daemon.kill()
            elif daemon.drain():
                raise RuntimeError(f"{daemon.name} of {self.fabric.name}: drained, and its exit status was not 0: see {daemon.log}")
            daemon.start()

    # ---- the end ----

    def wait(self):
        """Waits for all ranks. Returns "", or what is wrong."""
        end = time.monotonic() + LIMIT_S + 60
        for process in self.processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                return self.hangs()
        return next(filter(None, map(self.judge, range(self.plan.ranks))), "")

    def hangs(self):
        """Names what waits for what, and ends the ranks."""
        stats = self.fabric.folder if self.fabric else self.folder
        with open(os.path.join(self.folder, "why"), "wb") as out:
            subprocess.run([self.build.fabric, "why", "--stats-dir", stats], stdout=out, stderr=subprocess.STDOUT, check=False, timeout=60)
        return f"ranks {self.end()} hang: see {self.folder}/why"

    def end(self):
        """Ends the ranks that still run; returns which did."""
        left = [r for r, p in enumerate(self.processes) if p.poll() is None]
        for r in left:
            self.processes[r].kill()
            self.processes[r].wait()
        return left

    def said(self, rank):
        with open(self.output(rank), encoding="utf-8", errors="replace") as f:
            return f.read()

    def judge(self, rank):
        """Returns "", or what is wrong with the end of a rank."""
        status = self.processes[rank].returncode
        text = self.said(rank)
        wrong = re.search(r"^# wrong: (\d+)$", text, re.M)
        if wrong and wrong.group(1) != "0":
            return f"rank {rank}: {wrong.group(1)} wrong results"
        if status == 0:
            return "" if wrong or rank else "rank 0 did not report"
        # Ranks that came while their daemon was draining, for this job's fault or another's: refused, and lost for the others.
        refused = {r for r in range(self.plan.ranks) if REFUSED in self.said(r) and self.fabric.daemons[self.plan.node(r)].drained_at >= self.began}
        if rank in refused:
            return ""
        lost = self.lost | refused
        if not lost:
            return f"rank {rank}: exit status {status} without a fault that explains it"
        if rank in self.lost and self.plan.fault == "kill-rank" and status == -signal.SIGKILL:
            return ""
        if status < 0 or not NAMED.search(text):
            return f"rank {rank}: exit status {status}, without an error that has a number"
        names = {f"rank {r}{end}" for r in lost - {rank} for end in " :"} | {f"daemon node{self.plan.node(r)} " for r in lost}
        return "" if any(name in text for name in names) else f"rank {rank}: its error names none of the ranks {sorted(lost)} that were lost"
