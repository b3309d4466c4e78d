#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ep-top on a terminal (tmux) beside a job on two daemons.

Compares each number on every screen with --json of the same instances and with the job's known traffic; presses every key of the help and
checks its effect; resizes from 1 x 1 up; recordings; metrics, also over HTTP; then stalls the job in four ways, each of which the first
screen must name within 2 seconds. Run by meson as: test_top.py EP-TOP EP-FABRIC TOP-JOB DASHBOARD. Exit status 77 with the reason if there
is no tmux. Leaves no process behind.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from top_terminal import PATIENCE_S, Job, SLOW, Terminal, blocks_of, check, ep_top, fail, squeeze

EP_TOP, EP_FABRIC, TOP_JOB, DASHBOARD = sys.argv[1:5]
NAMED_S = 2.0 * SLOW  # excluding time that the machine did not run us
MOST_SLEEPS = 40  # of ep-top, in a second with ten readings

# Counter of each title: screen, class, title, row. Repeated here on purpose.
SHOWN = {
    "nics": ("nic", ["INSTANCE", "DEVICE", "PORT", "CORE", "LINK", "UP"],
             {"TX": "bytes_tx", "RX": "bytes_rx", "MSG-TX": "messages_tx", "MSG-RX": "messages_rx",
              "RETRANS": "retransmits", "DROPPED": "packets_dropped", "ERRORS": "errors"}),
    "cores": ("core", ["INSTANCE", "CORE", "NUMA", "BUSY"],
              {"COMMANDS": "cmds_dequeued", "REQUESTS": "wrs_posted", "ARRIVALS": "arrivals", "SIGNALS": "signals_applied",
               "PUT-REMOTE": "put_bytes_remote_node", "PUT-LOCAL": "put_bytes_same_node", "GET": "get_bytes",
               "DEFERRED": "cmds_deferred", "NO-CREDIT": "credit_stalls", "SQ-FULL": "queue_full_stalls",
               "FAILED": "cmds_failed"}),
    "rings": ("ring", ["INSTANCE", "RANK", "RING", "CORE", "GPU"],
              {"PUSHED": "cmds_pushed_seen", "TAKEN": "cmds_dequeued", "RETIRED": "cmds_retired", "FAILED": "cmds_failed",
               "DEFERRED": "deferred", "FULL": "ring_full_seen"}),
    "ranks": ("rank", ["INSTANCE", "RANK", "CORE", "STATE"], {"PID": "pid"}),
    "peers": ("peer", ["INSTANCE", "PEER", "CORE", "STATE"],
              {"COMMANDS": "cmds", "SENT": "bytes_sent", "SIG-SENT": "signals_sent", "SIG-APPL": "signals_applied",
               "NO-CREDIT": "stalls_no_credit", "SQ-FULL": "stalls_queue_full", "NO-LANE": "stalls_lane_down", "DEFERRED": "deferred"}),
    "lanes": ("lane", ["INSTANCE", "LANE", "PEER", "NIC", "CORE", "STATE"],
              {"REQUESTS": "wrs_posted", "SENT": "bytes_posted", "COMPLETED": "completions", "ERRORS": "errors",
               "REPLAYS": "replays", "EPOCH": "epoch"}),
}
SCREENS = ["waiting", "nics", "cores", "rings", "ranks", "peers", "lanes", "jobs", "instances", "calls", "endpoints"]
FIRST_TITLES = ["WHAT WHO", "INSTANCE DEVICE", "INSTANCE CORE NUMA", "INSTANCE RANK RING", "INSTANCE RANK CORE STATE",
                "INSTANCE PEER", "INSTANCE LANE", "JOB WORLD", "INSTANCE WRITER", "INSTANCE RANK FOR-RANK CALL",
                "INSTANCE ENDPOINT PEER"]


# ---- numbers ------------------------------------------------------------------------------------

def read(job):
    return json.loads(ep_top("--stats-dir", job.dir, "--once", "--json"))


def exact(job):
    """The counters of the instances equal the job's known traffic."""
    limit = time.monotonic() + PATIENCE_S
    while True:
        time.sleep(1.2)  # blocks are refreshed a few times per second
        top = read(job)
        cores = [b["values"] for _, b in blocks_of(top, "core")]
        commands = sum(v["cmds_dequeued"] for v in cores)
        sent = sum(v["put_bytes_remote_node"] + v["put_bytes_same_node"] for v in cores)
        if (commands, sent) == (job.ranks * (job.puts + 1), job.ranks * job.puts * job.bytes) or time.monotonic() > limit:
            break
    check(commands == job.ranks * (job.puts + 1), f"{commands} commands, {job.ranks} x {job.puts + 1} were given")
    check(sent == job.ranks * job.puts * job.bytes, f"{sent} bytes, {job.ranks * job.puts} x {job.bytes} were sent")
    for _, ring in blocks_of(top, "ring"):
        check(ring["values"]["cmds_dequeued"] == job.puts + 1, f"ring {ring['labels']}: {ring['values']['cmds_dequeued']}")
    peers = [b["values"] for _, b in blocks_of(top, "peer")]
    lanes = [b["values"] for _, b in blocks_of(top, "lane")]
    by_peer = sum(v["cmds"] for v in peers), sum(v["bytes_sent"] for v in peers), sum(v["bytes_posted"] for v in lanes)
    check(by_peer == (job.ranks * job.puts, sent, sent), f"commands and bytes by peer, bytes by lane: {by_peer}; {job.ranks * job.puts} puts, {sent} bytes")
    raised = sum(v["signals_sent"] for v in peers), sum(v["signals_applied"] for v in peers)
    check(raised[0] == raised[1] == sum(v["signals_applied"] for v in cores), f"signals sent and applied by peer: {raised}")
    stalls = sum(v["stalls_no_credit"] + v["stalls_queue_full"] + v["stalls_lane_down"] for v in peers)
    check(stalls == sum(v["cmds_deferred"] for v in cores), f"{stalls} stalls by peer, {[v['cmds_deferred'] for v in cores]} commands set aside")
    check(all(v["step_ns"] and v["queue_delay_ns"] for v in cores), f"histograms: {[v['step_ns'] for v in cores]}")
    print(f"# {commands} commands and {sent} bytes, exact, also by peer and by lane")
    return top


def table(text, first_titles):
    """Returns titles and lines of the table on a screen."""
    lines = text.rstrip("\n").split("\n")
    bare = [squeeze(re.sub("[v^]", " ", line)) for line in lines]  # without the mark of the sorted column
    at = next((i for i, line in enumerate(bare) if line.startswith(first_titles)), None)
    if at is None:
        return [], []
    titles = bare[at].split()
    rows = [re.sub(r"\[[|-]* *\]", " ", line).split() for line in lines[at + 1:-1] if line.strip()]
    return titles, rows


def compare(name, titles, lines, fixed, rows, before, after):
    """Returns what is wrong with a table, or None, and how many numbers were compared."""
    if not len(lines) == len(before) == len(after):
        return f"{name}: {len(lines)} lines, {len(before)} in --json", 0
    check(all(t in titles for t in [*fixed, *rows]), f"{name}: titles {titles}")
    n = 0
    for line, (instance, old), (_, new) in zip(lines, before, after):
        if line[0] != instance:
            return f"{name}: {line[0]} is not {instance}", 0
        for title, row in rows.items():
            low, high, shown = old["values"][row], new["values"][row], line[titles.index(title)]
            good = shown == "-" if low is None else shown.isdigit() and low <= int(shown) <= high
            if not good:
                return f"{name}: {title} is {shown}, --json says {low} and then {high}", 0
            n += 1
    return None, n


def numbers_are_those_of_json(term, job):
    top = exact(job)
    compared = 0
    term.wait("rates", lambda t: "rates  F1" in t)
    term.press("r", "totals", lambda t: "totals  F1" in t)
    for number, (name, first) in enumerate(zip(SCREENS, FIRST_TITLES), 1):
        text = term.press("1234567890e"[number - 1], name, lambda t, f=first: any(squeeze(x).startswith(f) for x in t.split("\n")))
        if name not in SHOWN:
            continue
        cls, fixed, rows = SHOWN[name]
        limit = time.monotonic() + PATIENCE_S
        while True:
            # Heartbeats may change some numbers: the screen must lie between two readings.
            before = blocks_of(read(job), cls)
            time.sleep(0.4)
            text = term.text()
            wrong, n = compare(name, *table(text, first), fixed, rows, before, blocks_of(read(job), cls))
            if not wrong:
                break
            check(time.monotonic() < limit, f"{wrong}:\n{text}")
        compared += n
    jobs = term.press("8", "jobs", lambda t: "top-job" in t)
    line = next(squeeze(x) for x in jobs.split("\n") if x.startswith("top-job"))
    words = line.split()
    check(words[1:4] == ["4", "2", "4"] and words[7] == str(job.ranks * (job.puts + 1)) and
          words[8] == str(job.ranks * job.puts * job.bytes), f"jobs: {line}")
    check("1204 in all" in jobs and "1228800 bytes in all" in jobs, f"header: {jobs}")
    print(f"# {compared} numbers on the screens are those of --json")


# ---- keys ---------------------------------------------------------------------------------------

def ring_numbers(text):
    _, lines = table(text, "INSTANCE RANK RING")
    return [line[1] for line in lines]


def cursor_rank(term):
    """Returns the rank of the line under the cursor, from its details."""
    text = term.press("Enter", "details", lambda t: "cmds_pushed_seen" in t)
    rank = re.search(r"^rank +(\d+)", text, re.M)[1]
    term.press("Escape", "back", lambda t: "INSTANCE RANK RING" in squeeze(t))
    return rank


def moving(term):
    rings = ring_numbers(term.press("4", "four rings", lambda t: "INSTANCE RANK RING" in squeeze(t) and len(ring_numbers(t)) == 4))
    for keys, at in (("Home", 0), ("Down", 1), ("j", 2), ("Up", 1), ("k", 0), ("End", 3), ("Home", 0), ("NPage", 3), ("PPage", 0)):
        term.keys(keys)
        time.sleep(0.1)
        check(cursor_rank(term) == rings[at], f"{keys}: the cursor is not on line {at}")
    term.press("Right", "one column on", lambda t: "INSTANCE" not in t)
    term.press("Left", "back again", lambda t: "INSTANCE" in t)
    return rings


def searching(term, rings):
    term.press("F3", "prompt", lambda t: "Search: _" in t)
    term.press("n o d e 1 Enter", "found", lambda t: "Search:" not in t)
    first = cursor_rank(term)
    check(first in ("2", "3"), f"F3 node1: rank {first}")
    term.keys("n")
    time.sleep(0.2)
    second = cursor_rank(term)
    check({first, second} == {"2", "3"}, f"n: {first}, then {second}")
    term.press("/", "prompt", lambda t: "Search: _" in t)
    term.press("z z Enter", "not found", lambda t: "not found: zz" in t)
    term.press("F4", "prompt", lambda t: "Filter: _" in t)
    term.press("n o d e 0 Enter", "two lines", lambda t: "filter 'node0': 2 of 4" in t)
    term.press("\\", "prompt", lambda t: "Filter: node0_" in t)
    term.press("BSpace BSpace BSpace BSpace BSpace Enter", "all lines",
               lambda t: "Filter:" not in t and ring_numbers(t) == rings)


def sorting(term, rings):
    down = sorted(rings, key=int)
    for keys, want in (("F6 Down Down Enter", down), ("I", down[::-1]), ("I", down), (".", rings), ("s Down Down Enter", down)):
        term.press(keys, str(want), lambda t, w=want: "Sort by" not in t and ring_numbers(t) == w)
    term.press(">", "by ring", lambda t: "RINGv" in t)
    term.press("<", "by rank", lambda t: "RANKv" in t)
    term.press(".", "unsorted", lambda t: "RANKv" not in t)
    term.press("c", "columns", lambda t: "[x] INSTANCE" in t)
    term.press("Enter Escape", "a column less", lambda t: "[x]" not in t and "INSTANCE" not in t)
    term.press("c Enter Escape", "and back", lambda t: "[x]" not in t and "INSTANCE" in t)


def pausing(term):
    for key in ("Space", "p", "Z"):
        text = term.press(key, "paused", lambda t: "PAUSED" in t)
        time.sleep(1.2)
        check(text.split("\n")[0] == term.lines()[0], f"{key}: the clock goes on")
        if key == "p":
            term.press("F5", "read once", lambda t, b=text: t.split("\n")[0] != b.split("\n")[0] and "PAUSED" in t)
        term.press(key, "goes on", lambda t: "PAUSED" not in t)
    for key in ("r", "t"):
        before = "totals  F1" in term.text()
        term.press(key, "the other of rates and totals", lambda t, b=before: ("totals  F1" in t) != b)
    term.press("d", "prompt", lambda t: "Seconds between readings: 0.2_" in t)
    term.press("BSpace BSpace BSpace 0 Enter", "refused", lambda t: "0.1 to 3600" in t)
    term.press("d", "prompt", lambda t: "Seconds between readings: 0.2_" in t)
    term.press("BSpace 5 Enter", "taken", lambda t: "Seconds" not in t)
    term.press("d Escape", "0.5 now", lambda t: "Seconds" not in t)
    header = term.text().split("\n")[0]
    check("instances 2" in header, f"header: {header}")
    term.press("#", "no header", lambda t: "instances 2 (" not in t)
    term.press("#", "header", lambda t: "instances 2 (" in t)


def setup_file():
    return os.path.join(os.environ["XDG_CONFIG_HOME"], "ep-fabric", "top.json")


def setting_up(term):
    """Changes each line of the setup; it is shown and saved."""
    has_colours = "\x1b[3" in term.text(escapes=True)
    term.press("F2", "setup", lambda t: "Seconds between readings: 0.5" in t and "[x] Column INSTANCE of rings" in t)
    for keys, seen in (("Right", "readings: 1\n"), ("Left", "readings: 0.5\n"), ("Left", "readings: 0.2\n"), ("Enter", "readings: 0.5\n"),
                       ("Down Enter", "[ ] Totals instead"), ("Enter", "[x] Totals instead"), ("Down Space", "[ ] Colours"),
                       ("j Right", "Sort rings by: INSTANCE"), ("Right", "Sort rings by: RANK"), ("Left Left", "Sort rings by: (unsorted)"),
                       ("Enter Enter", "Sort rings by: RANK"), ("Down Enter", "[x] Sort rings the other way"),
                       ("End Enter", "[ ] Column LANE of rings"), ("k k Enter", "[ ] Column FOR-RANK of rings"), ("k Enter Enter", "[x] Column WAIT of rings"),
                       ("Tab", "Column STATE of ranks"), ("BTab BTab", "Column REQUESTS of cores"), ("Tab", "[ ] Column LANE of rings")):
        term.press(keys, seen, lambda t, s=seen: s in t)
    check(not os.path.exists(setup_file()), "the setup is written before it is left")
    text = term.press("Escape", "kept", lambda t: "setup: kept in " in t and "STREAM" in t)
    titles, lines = table(text, "INSTANCE RANK RING")
    check("LANE" not in titles and "FOR-RANK" not in titles and "STREAM" in titles, f"columns: {titles}")
    ranks = [int(line[1]) for line in lines]
    check(ranks == [3, 2, 1, 0], f"sorted the other way: {ranks}")
    check(has_colours and not re.search(r"\x1b\[[0-9;]*\b[34][0-9]\b", term.text(escapes=True)), "colours off")
    with open(setup_file(), encoding="utf-8") as f:
        kept = json.load(f)
    check(kept == {"schema": "epf.top.setup/1", "delay_seconds": 0.5, "totals": True, "colours": False,
                   "screens": {"rings": {"sort": "RANK", "invert": True, "hidden": ["FOR-RANK", "LANE"]}}}, f"kept: {kept}")
    before = os.stat(setup_file())
    # The message of the first time may still be there: the file says when it is kept again.
    term.press("F2 Down Down Enter F2", "colours again", lambda t: "setup: kept in " in t and os.stat(setup_file()).st_mtime_ns != before.st_mtime_ns)
    check("\x1b[3" in term.text(escapes=True), "colours on")
    before = os.stat(setup_file())
    term.press("F2 Home q", "left as it is", lambda t: "Setup:" not in t and "kept" not in t)
    check(os.stat(setup_file()).st_mtime_ns == before.st_mtime_ns and os.listdir(os.path.dirname(setup_file())) == ["top.json"],
          "nothing changed: nothing written")
    term.press(". I", "unsorted", lambda t: "INSTANCE RANK RING" in squeeze(t))


def setups(job):
    """The next ep-top starts with the saved setup; a broken file is reported in a line; options take precedence."""
    term = Terminal(["--stats-dir", job.dir, "--screen", "rings"])
    text = term.wait("as it was left", lambda t: "totals  F1" in t and "RANK^" in t)
    check("FOR-RANK" not in text, f"columns: {text}")
    term.press("d", "its time", lambda t: "Seconds between readings: 0.5_" in t)
    term.press("F10", "back", lambda t: "Seconds" not in t)
    term.press("q", "ends", lambda t: "ENDED 0" in t)
    term = Terminal(["--stats-dir", job.dir, "--screen", "rings", "-d", "0.2", "--sort", "RING"])
    term.wait("the option's column", lambda t: "RINGv" in t)
    term.press("F2", "and time", lambda t: "Seconds between readings: 0.2" in t)
    term.press("F10 q", "ends", lambda t: "ENDED 0" in t)
    once = ep_top("--stats-dir", job.dir, "--once", "--screen", "rings")
    check("FOR-RANK" in once, "what is printed does not depend on the setup")
    for broken, line in (("{\n\n", "setup: line "), ('{"schema":"epf.top.setup/1","delay_seconds":0}', 'setup: "delay_seconds" must be 0.1 to 3600')):
        with open(setup_file(), "w", encoding="utf-8") as f:
            f.write(broken)
        term = Terminal(["--stats-dir", job.dir, "--screen", "rings"])
        text = term.wait("what is wrong", lambda t, s=line: s in t and "defaults are used" in t and "FOR-RANK" in t)
        check("RANK^" not in text, f"defaults: {text}")
        term.press("r", "the line goes with a key", lambda t: "defaults are used" not in t)
        term.press("q", "ends", lambda t: "ENDED 0" in t)
        with open(setup_file(), encoding="utf-8") as f:
            check(f.read() == broken, "a broken file is left as it is")
    os.unlink(setup_file())
    term = Terminal(["--stats-dir", job.dir], env={"XDG_CONFIG_HOME": "/proc/none"})
    term.wait("first screen", lambda t: "1 waiting" in t)
    term.press("F2 Enter Escape", "not kept", lambda t: "setup: not kept: " in t)
    term.press("q", "ends", lambda t: "ENDED 0" in t)
    term.end()
    print("# the setup is saved; a broken file is reported")


def every_key(term):
    rings = moving(term)
    searching(term, rings)
    sorting(term, rings)
    pausing(term)
    setting_up(term)
    for i, first in enumerate(FIRST_TITLES[4:] + FIRST_TITLES[:4]):
        term.press("Tab", first, lambda t, f=first: any(squeeze(x).startswith(f) for x in t.split("\n")))
    for first in reversed(FIRST_TITLES[:3]):
        term.press("BTab", first, lambda t, f=first: any(squeeze(x).startswith(f) for x in t.split("\n")))
    for key in ("F1", "h", "?"):
        text = term.press(key, "help", lambda t: "Reading does not disturb" in t)
        term.press("Escape", "back", lambda t: "Reading does not disturb" not in t)
    # Every key of the help must be pressed by this test.
    pressed = "1 9 0 e Tab Shift-Tab Up Down PgUp PgDn Home End j k Left Right Enter Esc F3 / n F4 \\ F6 s < > . I c F2 r t Space p Z [ ] d F5 # F1 h ? F10 q Ctrl-C".split()
    named = [w for line in text.split("\n")[2:18] if not line.startswith("   ")
             for w in re.findall(r"[^\s,]+", re.split(r"\s{2,}", line.strip())[0])]
    check(len(named) > 25, f"the help names only {named}")
    for word in named:
        check(word in pressed or word == "..", f"the help names {word!r}, which is not tested")


# ---- sizes and colours --------------------------------------------------------------------------

def sizes(job):
    term = Terminal(["--stats-dir", job.dir, "-d", "0.1"])
    term.wait("first screen", lambda t: "1 waiting" in t)
    for width, height in ((1, 1), (2, 2), (10, 3), (20, 4), (40, 5), (80, 24), (9, 60), (400, 4), (500, 200), (120, 30)):
        term.tmux("resize-window", "-x", str(width), "-y", str(height))
        for key in ("4", "Enter", "Escape", "F6", "Escape", "F2", "End", "Escape", "h", "Escape", "1", "3"):
            term.keys(key)
        time.sleep(0.15)
        check("ENDED" not in term.text(), f"{width} x {height}: it has ended")
    term.wait("whole again", lambda t: "PUT-REMOTE" in t)
    check("\x1b[3" in term.text(escapes=True), "no colours")
    term.press("F10", "ends", lambda t: "ENDED 0" in t)
    for args, env in ((["-C"], {}), ([], {"NO_COLOR": "1"})):
        term = Terminal(["--stats-dir", job.dir, *args], env=env)
        term.wait("first screen", lambda t: "1 waiting" in t)
        check(not re.search(r"\x1b\[[0-9;]*\b[34][0-9]\b", term.text(escapes=True)), f"{args} {env}: colours")
        term.press("q", "ends", lambda t: "ENDED 0" in t)
    term = Terminal(["--stats-dir", job.dir])
    term.wait("first screen", lambda t: "1 waiting" in t)
    term.press("C-c", "ends", lambda t: "ENDED" in t)
    term.end()


# ---- recordings and metrics ---------------------------------------------------------------------

def recordings(job, scratch):
    path = os.path.join(scratch, "job.top")
    batch = ep_top("--stats-dir", job.dir, "--batch", "-n", "3", "-d", "0.2", "--record", path, "--screen", "cores")
    check(batch.count("cores: 2 lines") == 3 and batch.count(", rates") == 2, f"--batch: {batch}")
    last = json.loads(ep_top("--replay", path, "--once", "--json"))
    lines = [json.loads(x) for x in ep_top("--replay", path, "--json").splitlines()]
    check(len(lines) == 3 and lines[2]["realtime_ns"] == last["realtime_ns"], "--replay --json: three records")
    refused = os.path.join(scratch, "refused")
    done = subprocess.run([EP_TOP, "--stats-dir", job.dir, "--record", refused], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=PATIENCE_S)
    check(done.returncode == 1 and "no terminal" in done.stderr and done.stderr.count("\n") == 1 and not os.path.exists(refused),
          "--record without a terminal says why in one line, and makes no file")
    check(blocks_of(last, "ring") and blocks_of(lines[0], "core")[0][1]["values"]["cmds_dequeued"] == 301 * 2, "replayed numbers")
    term = Terminal(["--replay", path, "-d", "0.2"])
    term.wait("its end", lambda t: "the recording has ended" in t)
    term.press("[", "the second record", lambda t: "record 2/3" in t and "PAUSED" in t)
    term.press("[ [", "the first record", lambda t: "record 1/3" in t)
    term.press("]", "the second again", lambda t: "record 2/3" in t)
    term.press("3", "cores", lambda t: "PUT-REMOTE" in t)
    term.press("q", "ends", lambda t: "ENDED 0" in t)
    term.end()


def metric_names(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


def dashboard(names):
    with open(DASHBOARD, encoding="utf-8") as f:
        board = json.load(f)
    used = set()
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            used |= set(re.findall(r"\bep_fabric_[a-z0-9_]+", target["expr"]))
    for variable in board["templating"]["list"]:
        used |= set(re.findall(r"\bep_fabric_[a-z0-9_]+", str(variable.get("query", ""))))
    check(len(used) > 10 and used <= names, f"the dashboard names metrics that do not exist: {sorted(used - names)}")
    print(f"# the dashboard names {len(used)} of {len(names)} metrics")


def get(url, method="GET"):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return answer.status, answer.headers.get("Content-Type"), answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, None, ""


def served(job):
    server = subprocess.Popen([EP_TOP, "--stats-dir", job.dir, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    line = server.stderr.readline()
    try:
        if "without libmicrohttpd" in line:
            print(f"# skipped: {line.strip()}")
            return
        url = "http://127.0.0.1:" + re.search(r":(\d+)$", line.strip())[1]
        status, kind, text = get(url + "/metrics")
        check(status == 200 and kind.startswith("text/plain; version=0.0.4"), f"/metrics: {status} {kind}")
        check(f'ep_fabric_ring_commands_dequeued_total{{instance="node0",core="1",ring="0",gpu="",rank="0"}} {job.puts + 1}\n' in text,
              "/metrics: no ring of rank 0")
        check(get(url + "/")[0] == 200 and get(url + "/other")[0] == 404, "other pages")
        check(get(url + "/metrics", "POST")[0] == 405, "POST is refused")
        check(get(url + "/metrics")[0] == 200, "and again")
    finally:
        server.terminate()
    check(server.wait(30) == 0, "--listen: SIGTERM ends it in order")


def metrics(job):
    text = ep_top("--stats-dir", job.dir, "--prometheus")
    for line in text.splitlines():
        check(re.fullmatch(r'# (HELP|TYPE) \S+ .+|[a-z_:]+(\{([a-z_]+="([^"\\]|\\.)*",?)*\})? [-+0-9.e]+', line), f"metrics: {line}")
    names = metric_names(text)
    check(len(names) == text.count("# TYPE ") == text.count("# HELP "), "a metric has one head")
    dashboard(names)
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")  # tests/promtool.sh
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        check(done.returncode == 0, f"promtool: {done.stdout}")
        check(not done.stdout.strip(), f"promtool: {done.stdout}")
        print(f"# promtool check metrics: no complaint about {len(names)} metrics")
        done = subprocess.run([promtool, "check", "metrics"], input=text + "# TYPE bad-name counter\nbad-name 1\n", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        check(done.returncode != 0, "promtool: accepts wrong metrics as well")
    else:
        print("# promtool check metrics: skipped, no promtool (tests/promtool.sh)")
    served(job)


# ---- cost ---------------------------------------------------------------------------------------

def cost(job):
    """Prints the CPU time of ep-top at ten readings per second; judges how often it wakes, which does not depend on the machine."""
    def ticks(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def sleeps(pid):
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", f.read(), re.M)[1])

    fast = Terminal(["--stats-dir", job.dir, "-d", "0.1"])
    fast.wait("first screen", lambda t: "1 waiting" in t)
    pid = fast.pid()
    before, slept, since = ticks(pid), sleeps(pid), time.monotonic()
    time.sleep(5)
    passed = time.monotonic() - since
    share, slept = (ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / passed, sleeps(pid) - slept
    fast.end()
    print(f"# {100 * share:.2f} % of a CPU at ten readings a second, {slept / passed:.0f} sleeps a second")
    check(1 <= slept <= MOST_SLEEPS * passed, f"ep-top sleeps {slept} times in {passed:.1f} s")


# ---- stalled jobs -------------------------------------------------------------------------------

def named(term, what, pattern):
    since = time.monotonic()
    text = term.wait(what, lambda t: re.search(pattern, t, re.M), NAMED_S)
    print(f"# {what}: on the screen after {time.monotonic() - since:.2f} s: {squeeze(re.search(pattern, text, re.M)[0])}")
    return text


def recovered(term):
    term.wait("recovered", lambda t: "nothing waits" in t and "health: OK" in t)


def stalls(job):
    term = Terminal(["--stats-dir", job.dir, "-d", "0.2"])
    recovered(term)
    job.tell("halt")
    job.tell("flood")
    named(term, "ring that is not drained", r"^follows +ring +0 +2 .* (no-credit|send-queue-full|not-arrived) .*")
    named(term, "and why", r"^CAUSE +fact .* engine-stopped .* node1 .*")
    by_peer = {b["labels"]["peer"]: b["values"] for i, b in blocks_of(read(job), "peer") if i == "node0"}
    check(by_peer[2]["stalls_no_credit"] + by_peer[2]["stalls_queue_full"] > 0, f"stalls for rank 2: {by_peer}")
    check(not by_peer[3]["stalls_no_credit"], f"stalls for rank 3: {by_peer}")
    job.tell("resume")
    job.tell("ebb")
    recovered(term)
    job.tell("go")
    time.sleep(1)  # some rounds, so that the last sender of a signal is known
    job.tell("stop 2")
    text = named(term, "stopped rank", r"^CAUSE +fact +2 .* process-stopped .*")
    check(re.search(r"^follows +rank +\d +2 .* signal-missing .* node\d +top-job", text, re.M) or
          term.wait("who waits", lambda t: re.search(r"^follows +rank +\d +2 .* signal-missing ", t, re.M), NAMED_S), "who waits for it")
    check("health: STUCK" in text, "the header says so")
    job.tell("cont 2")
    recovered(term)
    job.tell("down")
    named(term, "cut link", r"^CAUSE +fact .* link-down .* node0 .*")
    term.wait("who waits", lambda t: re.search(r"^follows +(ring|lane) .* (link-down|not-arrived) ", t, re.M), NAMED_S)
    job.tell("up")
    recovered(term)
    job.tell("halt")
    named(term, "stopped engine", r"^CAUSE +fact .* engine-stopped .* node1 .*")
    job.tell("resume")
    recovered(term)
    job.tell("kill")
    term.press("9", "instances", lambda t: re.search(r"^node0 +alive ", t, re.M) and not re.search(r"^node1 ", t, re.M))
    term.press("q", "ends", lambda t: "ENDED 0" in t)
    term.end()
    top = read(job)
    check([i["instance"] for i in top["instances"]] == ["node0"] and top["instances_left_out"] == 1, "node1 has exited and is left out")
    check('instance="node1"' not in ep_top("--stats-dir", job.dir, "--prometheus"), "metrics of an instance that has exited")
    check('ep_fabric_up{instance="node1"} 0\n' in ep_top("--stats-dir", job.dir, "--prometheus", "--dead"), "--prometheus --dead")
    term = Terminal(["--stats-dir", job.dir, "-d", "0.2", "--dead"])
    term.wait("first screen", lambda t: "1 waiting" in t)
    term.press("9", "instances", lambda t: re.search(r"^node1 +dead ", t, re.M))
    named(term, "final snapshot", r"^node1 +dead .*")
    term.press("4", "rings of both", lambda t: t.count("\nnode1 ") == 2)
    term.press("q", "ends", lambda t: "ENDED 0" in t)
    term.end()


def main():
    if not shutil.which("tmux"):
        print("# skipped: no tmux")
        return 77
    signal.signal(signal.SIGTERM, lambda *_: fail("terminated"))  # runs the clean-up below
    job, scratch = Job(), tempfile.mkdtemp(prefix="epf-top-")
    os.environ["XDG_CONFIG_HOME"] = os.path.join(scratch, "config")
    try:
        term = Terminal(["--stats-dir", job.dir, "-d", "0.2"])
        numbers_are_those_of_json(term, job)
        every_key(term)
        term.press("q", "ends", lambda t: "ENDED 0" in t)
        setups(job)
        sizes(job)
        recordings(job, scratch)
        metrics(job)
        cost(job)
        stalls(job)
    finally:
        if Terminal.last:
            Terminal.last.end()
        shutil.rmtree(scratch)
        status = job.end()
    check(status in (0, 1), f"the job ended with {status}")
    print("# ep-top: all good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
