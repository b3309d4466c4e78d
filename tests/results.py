#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluates meson's test data for the stages of `tools/quickstart test`.

  results.py targets BUILD SUITE...        the ninja targets of the tests of these suites, without tests of a suite given as -SUITE
  results.py labelled BUILD SUITE          the tests of one suite
  results.py count LOG.json [AGAIN]        one result line per single test (cmocka or TAP), see lib.sh; with AGAIN, programs that may run again are
                                           written to that file instead, each with its seed: NAME<tab>[EPF_SEED=n]
  results.py again LOG.json [SEED]         the same for the second run of one program with that seed
  results.py sources BUILD ROOT FILE...    reports C files that no target of the build compiles
  results.py coverage PERCENT FILE         reads llvm-cov's export; fails if FILE's line coverage is lower
  results.py bench FORM FILE               checks the output of `ep-bench FORM --json`

A failed program never becomes a pass, whatever it printed; a pass in the second run is marked as such.
"""
import json
import math
import os
import re
import sys

CMOCKA_OK = re.compile(r"^\[ +OK \] (\S+)")
CMOCKA_BAD = re.compile(r"^\[  FAILED  \] (\S+)$")
CMOCKA_SKIP = re.compile(r"^\[  SKIPPED \] (\S+)$")
AGAIN = "only when run again"  # tests/lib.sh looks for it
SHOWN, SHOWN_SAID, BEFORE, AFTER = 40, 80, 6, 3  # lines of a failure: its end, its messages, and lines around them
# Fields that `ep-bench FORM --json` must have, and those that must be above 0. Speeds are not judged.
BENCH_FIELDS = {
    "moe": ("wrong", "dispatch_us", "combine_us"),
    "core": ("wrong", "engine_commands_per_second", "baseline_rte_ring_elements_per_second"),
    "core-service": ("wrong", "added_round_trip_ns", "service_to_embedded"),
    "p2p-service": ("wrong", "added_us", "service_to_embedded"),
    "jobs": ("wrong", "p50_to_alone", "p99_to_alone"),
    "empty": ("wrong", "added_ns"),
}
BENCH_POSITIVE = {
    "empty": ("bare_ns", "fabric_ns"),
    "core-service": ("embedded_commands_per_second", "service_commands_per_second", "service_round_trip_ns", "commands"),
    "p2p-service": ("embedded_us", "service_us", "embedded_bytes_per_second", "service_bytes_per_second"),
    "jobs": ("p50_us", "p99_us", "bulk_bytes_per_second"),
}
# A sanitizer's report, or a crashed process; signals as tests print them, bit 7 of a wait status means a core file.
FINDING = re.compile(r"Sanitizer|runtime error:|Segmentation fault|core dumped|SIG(?:ABRT|BUS|FPE|ILL|SEGV)"
                     r"|ended (?:with|by) (?:signal|wait status) (?:4|6|7|8|11|132|134|135|136|139|0x4|0x6|0x7|0x8|0xb|0x8[4678b])\b")
SEED = re.compile(r"\b([A-Z][A-Z_]*_SEED=(?:0x[0-9a-f]+|\d+))\b")
VIRTUAL_CLOCK = {"prop", "hooks"}  # suites in which a seed replays everything, including time
# Failure messages of cmocka, TAP, the tests' checks, Python and the sanitizers, and seeds.
SAYS_WHY = re.compile(r"^\[ +(?:ERROR|LINE) +\]|^not ok\b|^FAIL|: .* is false \(|^Traceback|^\w*Error\b|Sanitizer|runtime error:|Assertion|_SEED=")
TAP = re.compile(r"^(not )?ok\b *\d* *-? *([^#]*)(# *(?:SKIP|skip) *(.*))?")


def load_intro(build, what):
    with open(os.path.join(build, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


def targets(build, suites):
    """Prints the files of every target that the suites' tests depend on."""
    by_id = {t["id"]: t["filename"] for t in load_intro(build, "targets")}
    wanted, left_out = set(), {s[1:] for s in suites if s.startswith("-")}
    for test in load_intro(build, "tests"):
        names = {s.split(":")[-1] for s in test["suite"]}
        if names & set(suites) and not names & left_out:
            for dep in test["depends"]:
                wanted.update(os.path.relpath(f, build) for f in by_id[dep])
    print("\n".join(sorted(wanted)))


def labelled(build, suite):
    for test in load_intro(build, "tests"):
        if suite in {s.split(":")[-1] for s in test["suite"]}:
            print(test["name"])


def cases(output):
    """Returns the single tests of a program: lists of names that passed, failed, were skipped (with reason)."""
    good, bad, skipped = [], [], []
    for line in output.splitlines():
        if m := CMOCKA_OK.match(line):
            good.append(m[1])
        elif m := CMOCKA_BAD.match(line):
            if m[1] not in bad:
                bad.append(m[1])
        elif m := CMOCKA_SKIP.match(line):
            if m[1] not in [name for name, _ in skipped]:
                skipped.append((m[1], "skipped by the test"))
        elif m := TAP.match(line):
            name = m[2].strip()
            if m[3]:
                skipped.append((name, m[4] or "no reason given"))
            else:
                (bad if m[1] else good).append(name)
    return good, bad, skipped


def suites_of(entry):
    return entry["name"].split(" / ")[0].split(":")[-1].split("+")  # project:suite+suite / name


def stage_of(entry):
    """The stage that a program's results count for: $STAGE, or with $SUITES_ARE_STAGES its first suite, which is the name of its folder's stage."""
    return suites_of(entry)[0] if os.environ.get("SUITES_ARE_STAGES") else os.environ["STAGE"]


def record(stage, result, name, detail=""):
    detail = " ".join(detail.split())
    with open(os.environ["RESULTS"], "a", encoding="utf-8") as f:
        f.write(f"{stage}\t{result}\t{name}\t{detail}\n")
    if result != "pass":
        print(f"    {'FAIL' if result == 'fail' else 'skip'}  {name}: {detail}")


def seeds(output):
    return sorted(set(SEED.findall(output)))


def may_run_again(entry, output):
    """True for a test on the machine's clock that failed or was too slow; never after a crash or a sanitizer's finding, or with several seeds, of which a
    second run could replay only one."""
    return (entry["result"] in ("FAIL", "TIMEOUT") and entry["returncode"] in (1, -9, -15) and not VIRTUAL_CLOCK.intersection(suites_of(entry))
            and not FINDING.search(output) and len(seeds(output)) < 2)


def said_why(lines):
    """Returns the numbers of the lines with messages, and of some around them; the first ones if there are too many."""
    shown = set()
    for i, line in enumerate(lines):
        if SAYS_WHY.search(line):
            more = shown | set(range(max(0, i - BEFORE), min(len(lines), i + AFTER + 1)))
            if len(more) > SHOWN_SAID:
                break
            shown = more
    return shown


def show_failure(entry, output, log):
    """Prints the command, the failure messages, and the end of the output, which may be a daemon's long log."""
    lines = output.splitlines()
    shown = said_why(lines) | set(range(max(0, len(lines) - SHOWN), len(lines)))
    print(f"        | again: {' '.join(entry['command'])}")
    if len(shown) < len(lines):
        print(f"        | ({len(shown)} of {len(lines)} lines; all of them in {log})")
    last = -1
    for i in sorted(shown):
        if i != last + 1:
            print(f"        | ... ({i - last - 1} lines)")
        print(f"        | {lines[i]}")
        last = i


def count_program(entry, log, again=None, second=None):
    program, stage = entry["name"].split(" / ")[-1], stage_of(entry)
    output = (entry.get("stdout") or "") + "\n" + (entry.get("stderr") or "")
    if again is not None and may_run_again(entry, output):
        show_failure(entry, output, log)
        seed = "".join(seeds(output))
        print(f"    again {program}: {entry['result']} after {entry['duration']:.1f} s{', now with ' if seed else ''}{seed}")
        again.append(f"{program}\t{seed}")
        return
    good, bad, skipped = cases(output)
    result = entry["result"]
    took = f"{entry['duration']:.1f} s"
    if result == "SKIP" or (result == "OK" and not good and skipped):
        said = [line for line in output.splitlines() if line.strip()]
        record(stage, "skip", program, skipped[0][1] if skipped else (said[-1] if said else "no reason given"))
        return
    for name in good or ([program] if result == "OK" else []):
        record(stage, "pass", f"{program}: {name}" if good else program, "" if second is None else f"{AGAIN}{', with ' if second else ''}{second}")
    for name, why in skipped:
        record(stage, "skip", f"{program}: {name}", why)
    if result == "OK" and not bad:
        print(f"    ok    {program}: {max(len(good), 1)} ({took})")
        for line in output.splitlines():
            if line.startswith("# "):
                print(f"          {line}")
    else:
        show_failure(entry, output, log)
        for name in bad:
            record(stage, "fail", f"{program}: {name}", f"{result} in {took}")
        if not bad:
            # So cmocka ends; tests/unit/thread_exit.c says which thread it was.
            crashed = " (of cmocka: a signal or a failed check in a thread other than the test's)" if entry["returncode"] == 255 else ""
            record(stage, "fail", program, f"{result}, exit status {entry['returncode']}{crashed}, after {took}")


def count(log, again_file=None, second=None):
    seen, again = [], [] if again_file else None
    with open(log, encoding="utf-8") as f:
        for line in f:
            if line.strip():
                entry = json.loads(line)
                seen.append(entry["name"].split(" / ")[-1])
                count_program(entry, log, again, second)
    if again_file:
        with open(again_file, "w", encoding="utf-8") as f:
            f.writelines(f"{line}\n" for line in again)
    with open(os.environ["RESULTS"] + ".ran", "w", encoding="utf-8") as f:
        f.write("\n".join(seen) + "\n")


def sources(build, root, files):
    """Every C file of the tree must belong to a target."""
    built = set()
    for target in load_intro(build, "targets"):
        for group in target["target_sources"]:
            built.update(os.path.realpath(s) for s in group["sources"])
    orphans = [f for f in files if os.path.realpath(os.path.join(root, f)) not in built]
    for f in orphans:
        print(f"{f}: no target of {build} compiles it; name it in its folder's meson.build")
    return 1 if orphans else 0


def coverage(percent, path):
    for entry in json.load(sys.stdin)["data"][0]["files"]:
        if os.path.realpath(entry["filename"]) == os.path.realpath(path):
            lines = entry["summary"]["lines"]
            print(f"{path}: {lines['covered']} of {lines['count']} lines, {lines['percent']:.1f} %, wanted {percent} %")
            return 0 if lines["count"] and lines["percent"] >= float(percent) else 1
    print(f"{path} is not part of the fuzzer's program")
    return 1


def numbers(value, path=""):
    """Yields every number in a JSON value with its field's name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value


def bench(form, path):
    with open(path, encoding="utf-8") as f:
        text = f.read()
    try:
        found = list(numbers(json.loads(text)))
    except ValueError as e:
        print(f"ep-bench {form} --json wrote no JSON: {e}")
        return 1
    fields = dict(found)
    bad = [f"{name} is {value}" for name, value in found if name == "wrong" and value != 0]
    if not found:
        bad.append("no number at all")
    if form == "moe":
        if not any("bytes" in name and value > 0 for name, value in found):
            bad.append("no byte moved")
    bad += [f"no field {name}" for name in BENCH_FIELDS.get(form, ()) if name not in fields]
    bad += [f"{name} is {value}" for name, value in found if not math.isfinite(value)]
    for name in BENCH_POSITIVE.get(form, ()):
        if fields.get(name, 0) <= 0:
            bad.append(f"{name} is {fields.get(name)}, must be above 0")
    print("\n".join(bad))
    return 1 if bad else 0


def main(argv):
    if argv[1:2] == ["targets"]:
        return targets(argv[2], argv[3:])
    if argv[1:2] == ["labelled"]:
        return labelled(argv[2], argv[3])
    if argv[1:2] == ["count"]:
        return count(argv[2], *argv[3:4])
    if argv[1:2] == ["again"]:
        return count(argv[2], second="".join(argv[3:4]))
    if argv[1:2] == ["sources"]:
        return sources(argv[2], argv[3], argv[4:])
    if argv[1:2] == ["coverage"]:
        return coverage(argv[2], argv[3])
    if argv[1:2] == ["bench"]:
        return bench(argv[2], argv[3])
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
