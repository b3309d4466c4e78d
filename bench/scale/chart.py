#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of docs/reference/scale.md, and line charts of tables there and in bench/RESULTS.md.

Usage: chart.py tables FILE...       prints rows of the page's tables, from what `ep-bench scale --json` wrote
       chart.py draw ROOT [--check]  draws docs/img/KIND-NAME.svg from the table behind each comment "chart: KIND NAME; TITLE", KIND being scale or xfer; with --check:
                                     exit status 1 if a picture is not what its table says

The first column of a table is what the others, drawn as lines, depend on; both axes are logarithmic. Standard library only.
"""
import json
import math
import os
import re
import sys

PAGES = ("docs/reference/scale.md", "bench/RESULTS.md")
MARK = re.compile(r"<!-- chart: ((?:scale|xfer) \S+); (.*?) -->\n((?:\|.*\n)+)")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 70, 56, 190, 46
COLOURS = ["#2f6fb7", "#8fb4de", "#c2571a", "#e8ab84", "#3b8f4e", "#9a5fb0"]
STYLE = """
  .page { fill: #ffffff } text { fill: #1f2830 } .dim { fill: #57636f } .axis { stroke: #c3ccd5 } .name { font-weight: 600 }
  @media (prefers-color-scheme: dark) { .page { fill: #14181d } text { fill: #e5eaef } .dim { fill: #a5b0bb } .axis { stroke: #3c4651 } }
"""
CAUSES = ["sender", "queue out", "way", "queue in", "receiver"]


def rows_of(report):
    """Prints the rows of a report: times, then what engines hold."""
    cells = [str(report["ranks"])]
    for phase in report["phases"][-2:]:
        slow = phase["slowest_sender_out_way_in_receiver"]
        cause = max(range(len(slow)), key=lambda i: slow[i])
        cells += [f"{phase['time_us']:,.0f}", f"{phase['wire_us']:,.0f}", f"{phase['cpu_us']:,.0f}", f"{phase['commands']:,.0f}",
                  f"{phase['p99_us']:,.0f}, {CAUSES[cause]}"]
    held = [str(report["ranks"]), f"{report['queue_pairs_per_node']:,}"]
    held += [f"{report[key] / 2**20:,.2f}" for key in ("engine_bytes_joined", "engine_bytes")]
    held += [f"{report['engine_bytes'] / report['ranks'] / 8 * report['engines_per_node']:,.0f}"]
    held += [f"{report[key] / 2**20:,.2f}" for key in ("signal_bytes_per_rank", "ll_bytes_per_rank")]
    joined = sum(report[key] for key in ("join_world_s", "join_describe_s", "join_connect_s"))
    held += [f"{joined / report['nodes'] / report['engines_per_node'] * 1e3:,.2f}", f"{report['description_bytes'] / 1e6:,.2f}"]
    return "| " + " | ".join(cells) + " |", "| " + " | ".join(held) + " |"


def read(text):
    """{name: (title, [column], [[number]])}; a column whose name ends with a star is not drawn."""
    found = {}
    for name, title, table in MARK.findall(text):
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().split("\n")]
        keep = [i for i, column in enumerate(lines[0]) if not column.endswith("*")]
        numbers = [[float(row[i].replace(",", "")) for i in keep] for row in lines[2:]]
        found[name] = title, [lines[0][i] for i in keep], numbers
    return found


def ticks(low, high):
    return [10**e for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def draw(page, title, columns, rows):
    marks = ticks(min(v for row in rows for v in row[1:] if v > 0), max(v for row in rows for v in row[1:]))
    low, high = math.log10(marks[0]), math.log10(marks[-1])
    first, last = math.log2(rows[0][0]), math.log2(rows[-1][0])

    def x(ranks):
        return LEFT + (math.log2(ranks) - first) / (last - first) * (WIDTH - LEFT - RIGHT)

    def y(value):
        return TOP + (high - math.log10(value)) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-labelledby="t"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="t">{title}</title>',
        f"<!-- Made by bench/scale/chart.py from {page}; do not edit. -->",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text class="name" x="20" y="28" font-size="15">{title}</text>',
    ]
    for mark in marks:
        out.append(f'<line class="axis" x1="{LEFT}" y1="{y(mark):.1f}" x2="{WIDTH - RIGHT}" y2="{y(mark):.1f}"/>')
        out.append(f'<text class="dim" x="{LEFT - 8}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:,.12g}</text>')
    for row in rows:
        out.append(f'<text class="dim" x="{x(row[0]):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{row[0]:.0f}</text>')
    out.append(f'<text class="dim" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{columns[0]}</text>')
    for i, column in enumerate(columns[1:], 1):
        colour = COLOURS[(i - 1) % len(COLOURS)]
        points = " ".join(f"{x(row[0]):.1f},{y(row[i]):.1f}" for row in rows if row[i] > 0)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>')
        out.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{TOP + 22 * (i - 1)}" width="12" height="12" rx="2" fill="{colour}"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 34}" y="{TOP + 11 + 22 * (i - 1)}">{column}</text>')
    return "\n".join(out + ["</svg>", ""])


def main(what, *arguments):
    if what == "tables":
        reports = []
        for path in arguments:
            with open(path, encoding="utf-8") as f:
                reports.append(rows_of(json.load(f)))
        print("\n".join([row[0] for row in reports] + [""] + [row[1] for row in reports]))
        return 0
    root, check = arguments[0], list(arguments[1:]) == ["--check"]
    charts, wrong = {}, []
    for page in PAGES:
        with open(os.path.join(root, page), encoding="utf-8") as f:
            found = read(f.read())
        wrong += [] if found else [f"{page} has no table with a chart"]
        charts.update({name: (page, *chart) for name, chart in found.items()})
    for name, chart in charts.items():
        path = os.path.join(root, "docs", "img", f"{name.replace(' ', '-')}.svg")
        if check:
            with open(path, encoding="utf-8") as f:
                wrong += [] if f.read() == draw(*chart) else [f"{path} is not what its table says: run bench/scale/chart.py draw ."]
            continue
        with open(path, "w", encoding="utf-8") as f:
            f.write(draw(*chart))
    print("\n".join(wrong) or f"{len(charts)} charts")
    return len(wrong) > 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("tables", "draw"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
