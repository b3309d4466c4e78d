# SPDX-License-Identifier: Apache-2.0
"""Helpers of test_top.py: the job beside ep-top, ep-top on a terminal (tmux), and the time for which the machine did not run us.

The importing program's first arguments are EP-TOP EP-FABRIC TOP-JOB.
"""
import os
import subprocess
import sys
import threading
import time

EP_TOP, TOP_JOB = sys.argv[1], sys.argv[3]
SLOW = float(os.environ.pop("EPF_TEST_SLOW", "1"))  # more under a sanitizer
PATIENCE_S = 60.0 * SLOW
LOOK_S = 0.1  # longest time of a tmux capture on an idle machine


def fail(text):
    print(f"FAILED: {text}")
    raise SystemExit(1)


def check(good, text):
    if not good:
        fail(text)


def squeeze(line):
    return " ".join(line.split())


class Machine:
    """Time for which the machine did not run us: a sleeping thread sums up how late it wakes."""
    PERIOD_S, USUAL_S = 0.01, 0.005

    def __init__(self):
        self.late, self.woken = 0.0, time.monotonic()
        threading.Thread(target=self.sleep, daemon=True).start()

    def sleep(self):
        while True:
            self.woken = time.monotonic()
            time.sleep(self.PERIOD_S)
            took = time.monotonic() - self.woken
            if took > self.PERIOD_S + self.USUAL_S:
                self.late += took - self.PERIOD_S

    def stalled(self):
        overdue = time.monotonic() - self.woken - self.PERIOD_S
        return self.late + (overdue if overdue > self.USUAL_S else 0)


MACHINE = Machine()


class Job:
    def __init__(self):
        self.process = subprocess.Popen([TOP_JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        check(words[:1] == ["ready"], f"the job is not ready: {words}")
        self.dir = words[1]
        self.ranks, self.puts, self.bytes = int(words[3]), int(words[5]), int(words[7])

    def tell(self, words):
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        check(answer == words.split()[0], f"the job says {answer!r} to {words!r}")

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
        try:
            return self.process.wait(60 * SLOW)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return -1


class Terminal:
    """ep-top in a separate tmux; one at a time."""
    last = None
    count = 0

    def __init__(self, args, width=200, height=50, env=None):
        if Terminal.last:
            Terminal.last.end()
        Terminal.last = self
        Terminal.count += 1
        self.socket = f"epf-top-{os.getpid()}-{Terminal.count}"
        command = ["env"] + [f"{k}={v}" for k, v in (env or {}).items()] + [EP_TOP] + args
        self.tmux("-f", "/dev/null", "new-session", "-d", "-x", str(width), "-y", str(height),
                  " ".join("'" + w + "'" for w in command) + "; echo ENDED $?; sleep 600", check=True)

    def tmux(self, *args, **more):
        return subprocess.run(["tmux", "-L", self.socket, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=60, env={**os.environ, "LC_ALL": "C.UTF-8"}, **more)

    def text(self, escapes=False):
        return self.tmux("capture-pane", "-p", *(["-e"] if escapes else [])).stdout

    def lines(self):
        return self.text().rstrip("\n").split("\n")

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def wait(self, what, seen, seconds=PATIENCE_S):
        """Waits until seen(text) is true; returns the text. The seconds exclude captures and time that the machine did not run us."""
        limit, stalled = time.monotonic() + seconds, MACHINE.stalled()
        while True:
            begin = time.monotonic()
            text = self.text()
            if seen(text):
                return text
            limit += max(0.0, time.monotonic() - begin - LOOK_S)
            if time.monotonic() > limit + MACHINE.stalled() - stalled:
                fail(f"{what}: not seen within {seconds} s, besides {MACHINE.stalled() - stalled:.1f} s of stalled:\n{text}")
            time.sleep(0.05)

    def press(self, keys, what, seen):
        """Presses keys ("a b": two of them) and waits for their effect."""
        self.keys(*keys.split())
        return self.wait(f"{keys}: {what}", seen)

    def pid(self):
        out = self.tmux("list-panes", "-F", "#{pane_pid}").stdout.split()
        children = subprocess.run(["ps", "--ppid", out[0], "-o", "pid=,comm="], stdout=subprocess.PIPE, text=True).stdout
        return next(int(line.split()[0]) for line in children.splitlines() if "ep-top" in line)

    def end(self):
        self.tmux("kill-server")


def ep_top(*args, status=0):
    done = subprocess.run([EP_TOP, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    check(done.returncode == status, f"ep-top {args}: exit status {done.returncode}: {done.stderr}")
    return done.stdout


def blocks_of(top, cls):
    return [(i["instance"], b) for i in top["instances"] for b in i.get("blocks", []) if b["class"] == cls]
