#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's chart: draws two tables of bench/RESULTS.md as an SVG.

Usage: chart.py ROOT           writes docs/img/results.svg
       chart.py ROOT --check   exit status 1 if the file differs from what the table says

One table follows the comment "chart: low latency"; its cells read "ours / theirs = ratio". Each row listed in ROWS becomes a group of
bars. The other follows "chart: training"; each row becomes a bar: its first cell names it and says whether it is ours, its second begins
with a ratio. Standard library only.
"""
import os
import re
import sys

# First two columns of a row, and how the chart names it.
ROWS = [
    ("128, 256", "one launch, default (sums at the sender)", "128 tokens, one launch"),
    ("128, 256", "hook, default (sums at the sender)", "128 tokens, with hook"),
    ("8, 256", "one launch, default (row by row)", "8 tokens, one launch"),
    ("8, 256", "hook, default (row by row)", "8 tokens, with hook"),
]
CALLS = ["dispatch", "combine", "both"]
LOW_LATENCY, TRAINING = "<!-- chart: low latency -->", "<!-- chart: training -->"
WIDTH, LEFT, BAR, GAP, GROUP = 920, 280, 9, 5, 20
STYLE = """
  .page { fill: #ffffff } text { fill: #1f2830 } .dim { fill: #57636f } .ours { fill: #2f6fb7 } .theirs { fill: #a9b4bf } .name { font-weight: 600 } .axis { stroke: #c3ccd5 }
  @media (prefers-color-scheme: dark) { .page { fill: #14181d } text { fill: #e5eaef } .dim { fill: #a5b0bb } .ours { fill: #6ea8e6 } .theirs { fill: #5d6873 } .axis { stroke: #3c4651 } }
"""


def rows_behind(text, mark):
    """Yields the cells of each row of the table behind a comment."""
    if text.count(mark) != 1:
        sys.exit(f"bench/RESULTS.md: {text.count(mark)} comments '{mark}', one is needed")
    for line in text.split(mark)[1].strip().split("\n")[2:]:
        if not line.startswith("|"):
            break
        yield [cell.strip() for cell in line.strip("|").split("|")]


def low_latency(text):
    """{(tokens and experts, form): [(ours, theirs, ratio) of dispatch, combine, both]}"""
    table, above = {}, ""
    for cells in rows_behind(text, LOW_LATENCY):
        above = cells[0] or above
        pairs = [re.match(r"([\d.]+) / ([\d.]+) = \**([\d.]+)", cell) for cell in cells[2:5]]
        if all(pairs):
            table[above, cells[1]] = [(float(p[1]), float(p[2]), p[3]) for p in pairs]
    missing = [row[:2] for row in ROWS if row[:2] not in table]
    if missing:
        sys.exit(f"bench/RESULTS.md has no row {missing}")
    return table


def training(text):
    """[(dispatcher, time of a step in times of allgather's)]"""
    return [(cells[0].replace("`", ""), re.match(r"\**([\d.]+)", cells[1])[1]) for cells in rows_behind(text, TRAINING)]


def draw_low_latency(table, y):
    """Returns elements, and where they end."""
    longest = max(max(ours, theirs) for row in ROWS for ours, theirs, _ in table[row[:2]])
    scale = (WIDTH - LEFT - 170) / longest
    out, top = [], y - 4
    for tokens, form, name in ROWS:
        out.append(f'<text class="name" x="20" y="{y + 13}">{name}</text>')
        for call, (ours, theirs, ratio) in zip(CALLS, table[tokens, form]):
            out.append(f'<text class="dim" x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{call}</text>')
            out.append(f'<rect class="ours" x="{LEFT}" y="{y}" width="{ours * scale:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'<rect class="theirs" x="{LEFT}" y="{y + BAR}" width="{theirs * scale:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'<text x="{LEFT + max(ours, theirs) * scale + 8:.1f}" y="{y + 13}">{ours:.1f} / {theirs:.1f} us = {ratio}</text>')
            y += 2 * BAR + GAP
        y += GROUP - GAP
    out.append(f'<line class="axis" x1="{LEFT}" y1="{top}" x2="{LEFT}" y2="{y - 12}"/>')
    return out, y


def draw_training(table, y):
    """Returns elements, and where they end."""
    scale = (WIDTH - LEFT - 170) / max(float(ratio) for _, ratio in table)
    out, top = [], y - 4
    for name, ratio in table:
        out.append(f'<text class="dim" x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{name}</text>')
        out.append(f'<rect class="{"ours" if name.endswith("ours") else "theirs"}" x="{LEFT}" y="{y + 2}" width="{float(ratio) * scale:.1f}" height="{2 * BAR - 4}" rx="2"/>')
        out.append(f'<text x="{LEFT + float(ratio) * scale + 8:.1f}" y="{y + 13}">{ratio}</text>')
        y += 2 * BAR + GAP
    out.append(f'<line class="axis" x1="{LEFT}" y1="{top}" x2="{LEFT}" y2="{y}"/>')
    return out, y


def heading(title, legend, y):
    """Returns a panel's title and legend: [(class of its bars, name)] and a sentence."""
    out, x = [f'<text class="name" x="20" y="{y + 26}" font-size="15">{title}</text>'], 20
    *names, sentence = legend
    for kind, name in names:
        out.append(f'<rect class="{kind}" x="{x}" y="{y + 38}" width="12" height="12" rx="2"/><text class="dim" x="{x + 18}" y="{y + 49}">{name}</text>')
        x += 40 + 7 * len(name)
    return [*out, f'<text class="dim" x="{x}" y="{y + 49}">{sentence}</text>']


def draw(text):
    calls, steps = "Low-latency dispatch and combine, us a call: EP fabric and DeepEP v1.2.1", "A training step with Megatron-core's token dispatchers, of allgather's time"
    out = heading(calls, [("ours", "EP fabric"), ("theirs", "DeepEP v1.2.1"), "two H200 over NVLink, hidden 7168, top-8 of 256 experts, FP8 dispatch; shorter is better"], 0)
    bars, y = draw_low_latency(low_latency(text), 64)
    out += bars + heading(steps, [("ours", "EP fabric"), ("theirs", "others"), "two H200, two layers of DeepSeek-V3's width, 16 experts, top-8, 4,096 tokens a rank"], y)
    bars, y = draw_training(training(text), y + 64)
    height = y + 16
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="t"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="t">{calls}. {steps}</title>',
        "<!-- Made by tools/docs/chart.py from bench/RESULTS.md; do not edit. -->",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    return "\n".join(head + out + bars + ["</svg>", ""])


def main(root, *options):
    picture = os.path.join(root, "docs", "img", "results.svg")
    with open(os.path.join(root, "bench", "RESULTS.md"), encoding="utf-8") as f:
        results = f.read()
    text = draw(results)
    if list(options) == ["--check"]:
        with open(picture, encoding="utf-8") as f:
            if f.read() == text:
                print(f"{len(ROWS)} rows, {len(ROWS) * len(CALLS)} pairs of bars; {len(training(results))} dispatchers")
                return 0
        print("docs/img/results.svg is not what bench/RESULTS.md says: run tools/docs/chart.py .")
        return 1
    if options:
        sys.exit(__doc__)
    with open(picture, "w", encoding="utf-8") as f:
        f.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
