#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/results.py: which failures are run once more and with which seed, what is shown of one, and that none becomes a pass. TAP.

  test_results.py RESULTS.py
"""
import json
import os
import subprocess
import sys
import tempfile

LOG = "".join(f"daemon: note {i}\n" for i in range(500))
SAID = "[  ERROR   ] --- rc < 0\n[   LINE   ] --- ../a.c:12: error: Failure!\n[  FAILED  ] bad\n"
OK = "[       OK ] good\n"
# name, suite, result, exit status, output; is it run again, and with which seed?
ENTRIES = (
    ("seeded", "proc", "FAIL", 1, f"# EPF_SEED=4711\n{OK}{SAID}{LOG}", "EPF_SEED=4711"),
    ("same_seed", "proc+threads", "FAIL", 1, f"# EPF_SEED=12\n{SAID}replay with EPF_SEED=12\n", "EPF_SEED=12"),
    ("no_seed", "unit", "FAIL", 1, f"{OK}{SAID}rank 0: signal 11: not there after 50 ms\nrank 1 ended with signal 9\n", ""),
    ("slow", "proc", "TIMEOUT", -15, OK, ""),
    ("virtual", "prop", "FAIL", 1, "FAILED: replay with EPF_SEED=3\n", None),
    ("virtual_too", "unit+hooks", "FAIL", 1, SAID, None),
    ("two_seeds", "proc", "FAIL", 1, "FAILED: replay with EPF_SEED=3\nFAILED: replay with EPF_SEED=4\n", None),
    ("crashed", "proc", "FAIL", -11, OK, None),
    ("rank_crashed", "proc", "FAIL", 1, f"{SAID}job a: rank 1 ended with signal 11 in step join\n", None),
    ("daemon_crashed", "proc", "FAIL", 1, f"{SAID}daemons: node0 ended with wait status 139\n{LOG}", None),
    ("finding", "proc", "FAIL", 1, f"{OK}==1==ERROR: AddressSanitizer: heap-use-after-free\n{SAID}", None),
    ("undefined", "proc", "FAIL", 1, f"{SAID}a.c:1:2: runtime error: signed integer overflow\n", None),
)
passed = True
number = 0


def check(good, name, detail):
    global passed, number
    number += 1
    passed &= good
    print(f"{'ok' if good else 'not ok'} {number} - {name}" + ("" if good else f"\n# {detail}"))


def run(program, folder, what, entries, *more, **environment):
    log = os.path.join(folder, "log.json")
    results = os.path.join(folder, "results")
    with open(log, "w", encoding="utf-8") as f:
        for name, suite, result, status, output, _ in entries:
            f.write(json.dumps({"name": f"ep-fabric:{suite} / {name}", "result": result, "returncode": status, "duration": 1.0,
                                "command": [name], "stdout": output, "stderr": ""}) + "\n")
    open(results, "w", encoding="utf-8").close()
    done = subprocess.run([sys.executable, program, what, log, *more], env={**os.environ, "RESULTS": results, "STAGE": "proc", **environment},
                          stdout=subprocess.PIPE, text=True, check=True)
    with open(results, encoding="utf-8") as f:
        return done.stdout, [line.rstrip("\n").split("\t") for line in f]


def targets(program, folder, *suites):
    """What of three programs is built for these suites, relative to the build directory."""
    built = [{"id": name, "filename": [os.path.join(folder, name)]} for name in ("quick", "slow", "other")]
    tests = [{"name": name, "depends": [name], "suite": [f"ep-fabric:{s}" for s in suites]}
             for name, suites in (("quick", ["unit"]), ("slow", ["unit", "slow"]), ("other", ["proc"]))]
    os.makedirs(os.path.join(folder, "meson-info"), exist_ok=True)
    for what, value in (("targets", built), ("tests", tests)):
        with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), "w", encoding="utf-8") as f:
            json.dump(value, f)
    return subprocess.run([sys.executable, program, "targets", folder, *suites], stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def main(program, folder):
    again = os.path.join(folder, "again")
    _, results = run(program, folder, "count", ENTRIES, again)
    with open(again, encoding="utf-8") as f:
        chosen = dict(line.rstrip("\n").split("\t") for line in f)
    for name, *_, want in ENTRIES:
        failed = any(r[1] == "fail" and r[2].split(":")[0] == name for r in results)
        check(chosen.get(name) == want and failed == (want is None), f"{name}: again: {want!r}", f"{chosen.get(name)!r}, failed: {failed}")
    shown, results = run(program, folder, "count", ENTRIES[:1])
    check("../a.c:12: error: Failure!" in shown and "EPF_SEED=4711" in shown and shown.count("\n") < 100, "why it failed is shown", shown)
    check(["proc", "fail", "seeded: bad", "FAIL in 1.0 s"] in results, "without a second run it has failed", results)
    check({r[0] for r in run(program, folder, "count", ENTRIES)[1]} == {"proc"}, "results count for the stage that runs", "another stage")
    _, results = run(program, folder, "count", ENTRIES, SUITES_ARE_STAGES="yes")
    stages = {r[2].split(":")[0]: r[0] for r in results}
    check(stages == {name: suite.split("+")[0] for name, suite, *_ in ENTRIES}, "or for the stage of their suite", stages)
    _, results = run(program, folder, "again", ENTRIES[:1], "EPF_SEED=4711")
    check([r[1] for r in results] == ["pass", "fail"], "what fails again has failed", results)
    second = ("seeded", "proc", "OK", 0, OK, None)
    _, results = run(program, folder, "again", (second,), "EPF_SEED=4711")
    check(results == [["proc", "pass", "seeded: good", "only when run again, with EPF_SEED=4711"]], "what passes says how", results)
    _, results = run(program, folder, "again", (second,), "")
    check(results == [["proc", "pass", "seeded: good", "only when run again"]], "and without a seed", results)
    built = targets(program, folder, "unit"), targets(program, folder, "unit", "-slow")
    check(built == (["quick", "slow"], ["quick"]), "what a suite needs, with and without those of another", built)
    print(f"1..{number}")
    return 0 if passed else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(sys.argv[1], temporary))
