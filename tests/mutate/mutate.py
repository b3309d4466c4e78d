#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes the product in small ways, one at a time, and shows which tests notice.

  mutate.py check                     every row of table.toml matches its file exactly once and names tests that exist
  mutate.py run [OPTION...]           applies each row in a copy of the tree, rebuilds, runs the row's tests, prints what caught it
  mutate.py rules FILE...             prints rows that the rules below make of a file, to be chosen from and put into table.toml

Options of run:
  --work DIR        where the copy and its builds lie; kept between runs, so that the next one compiles less (default: a temporary directory)
  --part N --seed S a random 1/N of the rows; the seed is printed
  --only TEXT       rows whose file or change contains TEXT (several: any of them)
  --json FILE       writes the results there
  --table FILE      rows from there
  --all-tests       goes on behind the first test that notices: shows every test that does

Exit status 0: every row was caught, or the table says why it need not be. README.md explains the table.
"""
import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TABLE = os.path.join(HERE, "table.toml")
CLASSES = {"bounds", "rights", "keys", "ordering", "wrap", "credits", "replay", "duplicates", "memory order", "kernels", "unlock", "deadline",
           "state"}
FIELDS = {"class", "find", "put", "tests", "rule", "why"}
# Builds by the prefix of a test's name. Hooks are in, for tests that need them; a release holds none.
BUILDS = {
    "": ["-Doptimization=1", "-Ddebug=false"],
    "hooks": ["-Doptimization=1", "-Ddebug=false", "-Dtest_hooks=true"],
    "asan": ["-Doptimization=1", "-Dc_args=-g1", "-Db_lundef=false", "-Db_sanitize=address,undefined"],
    "tsan": ["-Doptimization=1", "-Dc_args=-g1 -Wno-tsan", "-Db_lundef=false", "-Db_sanitize=thread"],
}
# A test that hangs has noticed, too. Not a verdict on speed: so many times what the unchanged tree took, and never less than a minute and a half.
LIMIT_TIMES, LIMIT_LEAST = 20, 90
# A fuzzer, as fuzz:NAME: as many inputs as tests/expected.txt says, from its seeds on, with clang and its sanitizers.
FUZZ_INSTRUMENT = "-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined"
BUILDS["fuzz"] = ["-Dfuzz=true", "-Dtests=enabled", "-Doptimization=1", "-Ddebug=false", "-Db_lundef=false", f"-Dc_args={FUZZ_INSTRUMENT}",
                  "-Dc_link_args=-fsanitize=address,undefined"]
COMPILER = "build"  # as a test: the tree with this change does not compile (a static assertion)


class Row:
    def __init__(self, path, number, fields):
        self.path, self.number = path, number
        self.kind, self.find, self.put = fields["class"], fields["find"], fields["put"]
        self.tests, self.rule, self.why = fields.get("tests", "").split(), fields.get("rule", ""), fields.get("why", "")

    def line(self, text):
        return text.count("\n", 0, text.index(self.find)) + 1

    def brief(self):
        squeeze = lambda s: " ".join(s.split())
        return f"{squeeze(self.find)}  ->  {squeeze(self.put) or '(nothing)'}"


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def load_table(path=TABLE):
    with open(path, "rb") as f:
        table = tomllib.load(f)
    return [Row(path, i, fields) for path, rows in table.items() for i, fields in enumerate(rows)], table


def known_tests(root):
    """Names in the meson files, also those that a loop makes."""
    names = {COMPILER, *(line.split()[1] for line in read(os.path.join(root, "tests/expected.txt")).splitlines() if line.startswith("fuzz "))}
    for folder, _, files in os.walk(os.path.join(root, "tests")):
        if "meson.build" in files:
            names.update(re.findall(r"'(?:test_)?(\w+)'", read(os.path.join(folder, "meson.build"))))
    return names


def check():
    rows, table = load_table()
    tests, bad, seen = known_tests(ROOT), 0, set()

    def say(row, text):
        nonlocal bad
        bad += 1
        print(f"{row.path} row {row.number + 1}: {text}: {row.brief()}")

    for path, entries in table.items():
        for fields in entries:
            if unknown := set(fields) - FIELDS:
                print(f"{path}: unknown field {', '.join(sorted(unknown))}")
                bad += 1
    for row in rows:
        where = os.path.join(ROOT, row.path)
        n = read(where).count(row.find) if os.path.isfile(where) else 0
        if n != 1:
            say(row, f"the text is there {n} times, not once")
        if row.find == row.put or row.kind not in CLASSES:
            say(row, "changes nothing" if row.find == row.put else f"no such class: {row.kind}")
        if not row.tests and not row.why:
            say(row, "names neither a test nor a reason")
        for test in row.tests:
            build, _, name = test.rpartition(":")
            if build not in BUILDS or name not in tests:
                say(row, f"there is no test {test}")
        if (row.path, row.find, row.put) in seen:
            say(row, "stands twice")
        seen.add((row.path, row.find, row.put))
    by_hand = sum(not r.rule for r in rows)
    print(f"# {len(rows)} changes in {len(table)} files, {by_hand} by hand, {len(rows) - by_hand} by rules;"
          f" {sum(bool(r.why) for r in rows)} that nothing need notice")
    return bad == 0


class Tree:
    """A copy of the tree, with its builds. Nothing else is ever changed."""

    def __init__(self, work):
        self.root = os.path.join(work, "tree")
        self.work, self.tests, self.took = work, {}, {}
        self.copy()

    def copy(self):
        listed = subprocess.run(["git", "-C", ROOT, "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard", "-z"],
                                check=True, capture_output=True).stdout.decode().split("\0")
        files = {f for f in listed if f and os.path.isfile(os.path.join(ROOT, f))}
        for f in files:
            source, target = os.path.join(ROOT, f), os.path.join(self.root, f)
            if os.path.isfile(target) and read_bytes(source) == read_bytes(target):
                continue
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(source, target)
        for folder, _, names in os.walk(self.root):
            for name in names:
                if os.path.relpath(os.path.join(folder, name), self.root) not in files:
                    os.unlink(os.path.join(folder, name))

    def build_dir(self, build):
        return os.path.join(self.work, "build-" + (build or "plain"))

    def configure(self, build):
        where = self.build_dir(build)
        if build in self.tests:
            return
        if not os.path.isfile(os.path.join(where, "build.ninja")):
            shutil.rmtree(where, ignore_errors=True)
            cc = {"CC": "clang-14"} if build == "fuzz" else {}
            must(["meson", "setup", where, self.root, "-Dcuda=disabled", "-Dhip=disabled", *BUILDS[build]], cc)
        must(["ninja", "-C", where, "build.ninja"])
        intro = {kind: json.loads(read(os.path.join(where, "meson-info", f"intro-{kind}.json"))) for kind in ("tests", "targets")}
        files = {t["id"]: t["filename"] for t in intro["targets"]}
        self.tests[build] = {}
        if build == "fuzz":
            self.add_fuzzers(where)
            return
        for test in intro["tests"]:
            needs = [os.path.relpath(f, where) for dep in test["depends"] for f in files[dep]]
            self.tests[build].setdefault(test["name"], (needs, test["cmd"], test["env"], test["workdir"]))

    def add_fuzzers(self, where):
        for line in read(os.path.join(self.root, "tests/expected.txt")).splitlines():
            if line.startswith("fuzz "):
                _, name, runs = line.split()[:3]
                target = f"tests/fuzz/{name}"
                corpus = os.path.join(self.work, "corpus-" + name)
                cmd = ["sh", "-c", 'rm -rf "$1" && mkdir "$1" && exec "$2" -runs="$3" -seed=1 -timeout=60 -error_exitcode=1 -rss_limit_mb=1024 '
                       '-artifact_prefix="$TMPDIR/" "$1" "$4"', "sh", corpus, os.path.join(where, target), runs,
                       os.path.join(self.root, "tests/fuzz/seeds", name)]
                self.tests["fuzz"][name] = ([target], cmd, {}, self.work)

    def compile(self, build, names):
        needs = sorted({n for name in names for n in self.tests[build][name][0]})
        done = subprocess.run(["ninja", "-C", self.build_dir(build), *needs], capture_output=True, text=True, check=False)
        return done.returncode == 0, done.stdout[-3000:]

    def run(self, build, name, limit=None):
        """Returns whether the test passed, and how it ended."""
        _, cmd, env, workdir = self.tests[build][name]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
            with open(os.path.join(scratch, "output"), "w+", encoding="utf-8", errors="replace") as out:
                process = subprocess.Popen(cmd, env={**os.environ, **env, "TMPDIR": scratch}, cwd=workdir or self.build_dir(build), stdout=out,
                                           stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
                try:
                    status = process.wait(limit)
                    how = f"exit status {status}" if status >= 0 else f"signal {-status}"
                except subprocess.TimeoutExpired:
                    status, how = 1, f"did not end in {limit:.0f} s"
                finally:
                    kill_group(process)
                self.took.setdefault((build, name), time.monotonic() - begin)
        return status in (0, 77), how

    def baseline(self, wanted):
        """Builds and runs every test unchanged: one that fails then says nothing."""
        for build in sorted({b for b, _ in wanted}):
            self.configure(build)
            names = sorted(n for b, n in wanted if b == build)
            for name in names:
                if name not in self.tests[build]:
                    raise SystemExit(f"mutate: there is no test {name} in this build")
            good, output = self.compile(build, names)
            if not good:
                raise SystemExit(f"mutate: the unchanged tree does not build:\n{output}")
            for name in names:
                passed, how = self.run(build, name)
                if not passed:
                    raise SystemExit(f"mutate: {name} fails in the unchanged tree: {how}")
                print(f"    unchanged: {(build + ':') if build else ''}{name} passes in {self.took[build, name]:.1f} s", flush=True)


def read_bytes(path):
    with open(path, "rb") as f:
        return f.read()


def kill_group(process):
    """The test's own session, which it may have left children in."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()


def must(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    if done.returncode:
        raise SystemExit(f"mutate: {' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def split(test):
    build, _, name = test.rpartition(":")
    return build, name


def try_row(tree, row, all_tests):
    """Returns the tests that noticed, with how they ended."""
    where = os.path.join(tree.root, row.path)
    text = read(where)
    if text.count(row.find) != 1:
        raise SystemExit(f"mutate: {row.path}: not there exactly once: {row.brief()}")
    caught = []
    try:
        with open(where, "w", encoding="utf-8") as f:
            f.write(text.replace(row.find, row.put))
        tests = [t for t in row.tests if t != COMPILER]
        for test in tests or [COMPILER]:
            build, name = split(test)
            tree.configure(build)
            names = [name] if name != COMPILER else sorted(n for b, n in tree.took if b == build)[:1]
            good, output = tree.compile(build, names)
            if not good:
                note = COMPILER if COMPILER in row.tests else "DOES NOT BUILD"
                return [(note, output)]
            if name == COMPILER:
                continue
            passed, how = tree.run(build, name, max(LIMIT_LEAST, LIMIT_TIMES * tree.took.get((build, name), 0)))
            if not passed:
                caught.append((test, how))
                if not all_tests:
                    break
    finally:
        with open(where, "w", encoding="utf-8") as f:
            f.write(text)
    return caught


def run(args):
    rows, _ = load_table(args.table)
    if args.only:
        rows = [r for r in rows if any(t in r.path or t in r.find or t in r.put for t in args.only)]
    if args.part:
        seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
        print(f"# a random 1/{args.part} of {len(rows)} changes: --part {args.part} --seed {seed}")
        rows = random.Random(seed).sample(rows, -(-len(rows) // args.part))
    rows.sort(key=lambda r: r.path)
    work = args.work or tempfile.mkdtemp(prefix="mutate-")
    results = []
    try:
        tree = Tree(os.path.abspath(work))
        tree.baseline({split(t) for r in rows for t in r.tests if t != COMPILER})
        for number, row in enumerate(rows, 1):
            begin = time.monotonic()
            line = row.line(read(os.path.join(ROOT, row.path)))
            # A row that says why it need not be noticed is run as well, if it names tests: the sentence may have become wrong.
            caught = try_row(tree, row, args.all_tests)
            names = " ".join(name for name, _ in caught)
            verdict = "invalid" if names == "DOES NOT BUILD" else "caught" if caught else "harmless" if row.why else "SURVIVED"
            results.append({"file": row.path, "line": line, "class": row.kind, "rule": row.rule, "find": row.find, "put": row.put,
                            "verdict": verdict, "by": names, "how": caught[0][1][-500:] if caught else "", "why": row.why,
                            "seconds": round(time.monotonic() - begin, 1)})
            print(f"{number:4}/{len(rows)} {verdict:8} {names or '-':22} {row.kind:12} {row.path}:{line}  {row.brief()}"
                  f"  ({results[-1]['seconds']} s)", flush=True)
            if args.json:
                with open(args.json, "w", encoding="utf-8") as f:
                    json.dump(results, f, indent=1)
    finally:
        if not args.work:
            shutil.rmtree(work, ignore_errors=True)
    return summary(results)


def summary(results):
    count = lambda key, value: sum(r[key] == value for r in results)
    print(f"\n{'class':14}{'changes':>8}{'caught':>8}{'harmless':>9}{'survived':>9}")
    for kind in sorted({r["class"] for r in results}):
        some = [r["verdict"] for r in results if r["class"] == kind]
        print(f"{kind:14}{len(some):8}{some.count('caught'):8}{some.count('harmless'):9}{some.count('SURVIVED') + some.count('invalid'):9}")
    bad = count("verdict", "SURVIVED") + count("verdict", "invalid")
    print(f"# {len(results)} changes: {count('verdict', 'caught')} caught, {count('verdict', 'harmless')} harmless by the table's reason, "
          f"{bad} survived or did not build")
    for r in results:
        if r["verdict"] in ("SURVIVED", "invalid"):
            print(f"not ok - {r['verdict']}: {r['file']}:{r['line']}: {' '.join(r['find'].split())} -> {' '.join(r['put'].split())}")
    return bad == 0


# Rules: name, class, pattern, replacement. One line of code at a time; comments, preprocessor lines and declarations are left out.
RULES = [
    ("limit", "bounds", r" >= ", " > "),
    ("limit", "bounds", r" > ", " >= "),
    ("limit", "bounds", r" < ", " <= "),
    ("limit", "bounds", r" <= ", " < "),
    ("equal", "state", r" == ", " != "),
    ("equal", "state", r" != ", " == "),
    ("either", "state", r" \|\| ", " && "),
    ("either", "state", r" && ", " || "),
    ("not", "state", r"!(?=[a-z(])", ""),
    ("one", "wrap", r" \+ 1\b", ""),
    ("one", "wrap", r" - 1\b", ""),
    ("sign", "wrap", r" \+ ", " - "),
    ("sign", "wrap", r" - ", " + "),
    ("step", "wrap", r"\+\+;", ";"),
    ("step", "wrap", r"--;", ";"),
    ("gather", "credits", r" \+= ", " = "),
    ("gather", "credits", r" -= ", " = "),
    ("order", "memory order", r"EPF_LOAD_ACQUIRE", "EPF_LOAD_RELAXED"),
    ("order", "memory order", r"EPF_STORE_RELEASE", "EPF_STORE_RELAXED"),
    ("drop", "state", r"^(\t+)(?!return|break|continue|goto|struct|uint|int |unsigned|const)[a-z][^;={]*\([^;]*\);$", r"\1;"),
    ("drop", "state", r"^(\t+)[a-z][^;(]* \|?= [^;]*;$", r"\1;"),
]


# Statistics, hints to the CPU, and test hooks.
NOT_CHANGED = re.compile(r"EPF_PROBE|epf_flight_note|EPF_COUNT|prefetch|EPF_HOOKED|epf_(dbg|info|warn|note)|static_assert|assert\(")


def rules(files):
    for path in files:
        text = read(os.path.join(ROOT, path))
        lines = text.split("\n")
        print(f'"{path}" = [')
        in_comment = False
        for at, line in enumerate(lines):
            in_comment |= line.lstrip().startswith("/*")
            if in_comment or line.startswith(("#", "static", "EPF_", "enum", "struct")) or not line.startswith("\t"):
                in_comment &= "*/" not in line
                continue
            if NOT_CHANGED.search(line):
                continue
            for name, kind, pattern, put in RULES:
                changed = re.sub(pattern, put, line, count=1)
                if changed == line:
                    continue
                first, last = at, at + 1
                while text.count("\n".join(lines[first:last])) > 1:  # more lines around it until it is the only one
                    first, last = first - (last - at > 1), last + 1
                find = "\n".join(lines[first:last])
                new = "\n".join(lines[first:at] + [changed] + lines[at + 1:last])
                print(f"  {{ class = {json.dumps(kind)}, rule = {json.dumps(name)}, tests = \"\", find = {json.dumps(find)}, put = {json.dumps(new)} }},")
        print("]")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a test that hangs ends with this program
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "run", "rules"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--table", default=TABLE)
    parser.add_argument("--work")
    parser.add_argument("--part", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", action="append")
    parser.add_argument("--json")
    parser.add_argument("--all-tests", action="store_true")
    args = parser.parse_args()
    if args.what == "rules":
        rules(args.files)
        return 0
    return 0 if (check() if args.what == "check" else run(args)) else 1


if __name__ == "__main__":
    sys.exit(main())
