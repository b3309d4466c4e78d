#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs random jobs with random faults on long-lived daemons until it is stopped, and says whether anything was wrong and whether the daemons grew.

Usage: soak.py BUILD [--other BUILD] [--seed N] [--jobs N | --hours H | --stage] [--at-once N] [--folder DIR]

Every result is checked by the job itself; every rank that ends with an error must name a rank or daemon that was really lost. Now and then all jobs end, and the daemons'
memory, descriptors, threads and files are inspected. --stage: until every kind of fault has met a running job; in the long form, an hour. SIGINT or SIGTERM ends it after the jobs that run. Exit status 0: nothing failed, and nothing grew.
--other: one of the two fabrics runs daemons of that build, and each job is of either build; engines of different releases do not join each other. Folders of jobs that failed are kept.
"""
import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

import daemons
from job import Job
from plan import FAULTS, draw

REST, REST_OF_STAGE = 20, 5  # jobs between two inspections
STAGE_SEED, STAGE_LEAST, STAGE_MOST = 923, 10, 200
GROWS = 2 << 20  # bytes that a daemon's memory may rise by between the first and the last third of the inspections, or a twentieth of it
KEPT = 20        # folders of failed jobs that are kept


class Build:
    def __init__(self, folder):
        self.fabric, self.bench = os.path.join(folder, "tools/ep-fabric"), os.path.join(folder, "bench/ep-bench")
        for program in (self.fabric, self.bench):
            if not os.access(program, os.X_OK):
                sys.exit(f"soak: no {program}: give the build folder of meson")


class Soak:
    def __init__(self, args):
        self.args = args
        self.builds = [Build(b) for b in (args.build, args.other) if b]
        if args.folder:
            os.makedirs(args.folder, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="epf-soak-", dir=args.folder)
        self.fabrics = daemons.start(self.folder, (self.builds[0], self.builds[-1]))
        self.random = random.Random(args.seed)
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.running, self.failures, self.met = set(), [], {}
        self.begun = time.monotonic()
        self.next = 0
        self.rest_every = REST_OF_STAGE if args.stage else REST

    # ---- jobs ----

    def beside(self):
        with self.lock:
            return list(self.running)

    def is_over(self):
        if self.stopped.is_set() or (self.args.jobs and self.next >= self.args.jobs):
            return True
        if self.args.stage:
            return self.next >= STAGE_MOST or (self.next >= STAGE_LEAST and set(FAULTS) <= set(self.met))
        return bool(self.args.hours) and time.monotonic() - self.begun > 3600 * self.args.hours

    def work(self, until):
        """One of the threads that run jobs, up to the job number `until`."""
        while True:
            with self.lock:
                if self.is_over() or self.next >= until:
                    return
                plan = draw(self.args.seed, self.next)
                job = Job(plan, os.path.join(self.folder, f"job.{self.next}"), self.fabrics, self.builds[self.random.randrange(len(self.builds))])
                self.next += 1
                self.running.add(job)
            self.run(job)
            with self.lock:
                self.running.discard(job)

    def run(self, job):
        try:
            job.start()
            job.fault(self.beside)
            wrong = job.wait()
        except (OSError, RuntimeError) as e:
            wrong = str(e)
            job.end()
        with self.lock:
            kind = "none" if job.missed else job.plan.fault
            self.met[kind] = self.met.get(kind, 0) + 1
        if wrong:
            self.fail(f"{job.plan}: {wrong}", job.folder)
        else:
            shutil.rmtree(job.folder)

    def fail(self, text, folder=None):
        with self.lock:
            self.failures.append(text)
            keep = len(self.failures) <= KEPT
        print(f"FAIL {text}" + (f"; see {folder}" if folder and keep else ""), flush=True)
        if folder and not keep:
            shutil.rmtree(folder, ignore_errors=True)

    # ---- between jobs ----

    def rest(self):
        """Nothing runs: what do the daemons hold?"""
        seen = []
        for fabric in self.fabrics.values():
            for daemon in fabric.daemons:
                if daemon.process.poll() is not None:
                    self.fail(f"{daemon.name} of {fabric.name} has ended by itself, status {daemon.process.returncode}: see {daemon.log}")
                    daemon.start()
                    continue
                daemon.rests.append(self.settled(daemon))
                seen.append(f"{daemon.rests[-1]['memory'] / 1048576:.1f}/{daemon.rests[-1]['descriptors']}")
            if fabric.leftovers():
                self.fail(f"{fabric.folder}: files are left though no job runs: {' '.join(fabric.leftovers())}")
            fabric.link = self.random.randrange(2)
        print(f"# {time.monotonic() - self.begun:7.0f} s: {self.next} jobs, {len(self.failures)} failed; MiB/descriptors of the daemons: {' '.join(seen)}", flush=True)

    @staticmethod
    def settled(daemon):
        """What a daemon holds once it has cleaned up after its last job, which takes a moment."""
        held = daemon.held()
        for _ in range(100):
            time.sleep(0.1)
            last, held = held, daemon.held()
            if last == held and (not daemon.rests or held["descriptors"] <= daemon.rests[0]["descriptors"]):
                break
        return held

    def judge_growth(self):
        for fabric in self.fabrics.values():
            for daemon in fabric.daemons:
                rests = daemon.rests
                for what in ("descriptors", "threads"):
                    if rests and rests[-1][what] > rests[0][what]:
                        self.fail(f"{daemon.name} of {fabric.name} had {rests[0][what]} {what} at first, and has {rests[-1][what]}")
                if len(rests) < 6:
                    continue
                first, last = rests[1:1 + len(rests) // 3], rests[-(len(rests) // 3):]
                was, now = (statistics.median(r["memory"] for r in part) for part in (first, last))
                if now > was + max(GROWS, was / 20):
                    self.fail(f"{daemon.name} of {fabric.name} grew from {was / 1048576:.1f} to {now / 1048576:.1f} MiB in {len(rests)} inspections")

    def go(self):
        print(f"# soak: seed {self.args.seed}, folder {self.folder}", flush=True)
        while not self.is_over():
            threads = [threading.Thread(target=self.work, args=(self.next + self.rest_every,)) for _ in range(self.args.at_once)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.rest()
        self.judge_growth()
        for fabric in self.fabrics.values():
            for daemon in fabric.daemons:
                if daemon.drain():
                    self.fail(f"{daemon.name} of {fabric.name}: exit status {daemon.process.returncode} at the end: see {daemon.log}")
        if self.args.stage and set(FAULTS) - set(self.met):
            self.fail(f"{STAGE_MOST} jobs ended before these faults met them: {' '.join(sorted(set(FAULTS) - set(self.met)))}")
        met = ", ".join(f"{n} {kind}" for kind, n in sorted(self.met.items()))
        print(f"# soak: seed {self.args.seed}: {self.next} jobs in {time.monotonic() - self.begun:.0f} s ({met}); {len(self.failures)} failed")
        if not self.failures:
            shutil.rmtree(self.folder)
        return 1 if self.failures else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build")
    p.add_argument("--other")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    p.add_argument("--jobs", type=int, default=0)
    p.add_argument("--hours", type=float, default=0.0)
    p.add_argument("--at-once", type=int, default=2)
    p.add_argument("--stage", action="store_true")
    p.add_argument("--folder", default=None)
    args = p.parse_args()
    if args.stage:
        args.seed, args.stage = STAGE_SEED, not os.environ.get("EPF_TEST_LONG")
        args.hours = 0 if args.stage else 0.25
    soak = Soak(args)
    for signo in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signo, lambda *_: soak.stopped.set())
    return soak.go()


if __name__ == "__main__":
    sys.exit(main())
