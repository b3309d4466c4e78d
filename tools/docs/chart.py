#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's chart: draws a table of bench/RESULTS.md as an SVG.

Usage: chart.py ROOT           writes docs/img/results.svg
       chart.py ROOT --check   exit status 1 if the file differs from what the table says

The table follows the comment "chart: low latency"; its cells read "ours / theirs = ratio". Each row listed in ROWS becomes a group of
bars. Standard library only.
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
MARK = "<!-- chart: low latency -->"
WIDTH, LEFT, BAR, GAP, GROUP = 920, 280, 9, 5, 20
STYLE = """
  .page { fill: #ffffff } text { fill: #1f2830 } .dim { fill: #57636f } .ours { fill: #2f6fb7 } .theirs { fill: #a9b4bf } .name { font-weight: 600 } .axis { stroke: #c3ccd5 }
  @media (prefers-color-scheme: dark) { .page { fill: #14181d } text { fill: #e5eaef } .dim { fill: #a5b0bb } .ours { fill: #6ea8e6 } .theirs { fill: #5d6873 } .axis { stroke: #3c4651 } }
"""


def read(path):
    """{(tokens and experts, form): [(ours, theirs, ratio) of dispatch, combine, both]}"""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count(MARK) != 1:
        sys.exit(f"{path}: {text.count(MARK)} comments '{MARK}', one is needed")
    table, above = {}, ""
    for line in text.split(MARK)[1].strip().split("\n")[2:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        above = cells[0] or above
        pairs = [re.match(r"([\d.]+) / ([\d.]+) = \**([\d.]+)", cell) for cell in cells[2:5]]
        if all(pairs):
            table[above, cells[1]] = [(float(p[1]), float(p[2]), p[3]) for p in pairs]
    return table


def draw(table):
    missing = [row[:2] for row in ROWS if row[:2] not in table]
    if missing:
        sys.exit(f"bench/RESULTS.md has no row {missing}")
    longest = max(max(ours, theirs) for row in ROWS for ours, theirs, _ in table[row[:2]])
    scale = (WIDTH - LEFT - 170) / longest
    out, y = [], 64
    for tokens, form, name in ROWS:
        out.append(f'<text class="name" x="20" y="{y + 13}">{name}</text>')
        for call, (ours, theirs, ratio) in zip(CALLS, table[tokens, form]):
            out.append(f'<text class="dim" x="{LEFT - 10}" y="{y + 13}" text-anchor="end">{call}</text>')
            out.append(f'<rect class="ours" x="{LEFT}" y="{y}" width="{ours * scale:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'<rect class="theirs" x="{LEFT}" y="{y + BAR}" width="{theirs * scale:.1f}" height="{BAR}" rx="2"/>')
            out.append(f'<text x="{LEFT + max(ours, theirs) * scale + 8:.1f}" y="{y + 13}">{ours:.1f} / {theirs:.1f} us = {ratio}</text>')
            y += 2 * BAR + GAP
        y += GROUP - GAP
    height = y + 4
    title = "Low-latency dispatch and combine, us a call: EP fabric and DeepEP v1.2.1"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="t"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f'<title id="t">{title}</title>',
        "<!-- Made by tools/docs/chart.py from bench/RESULTS.md; do not edit. -->",
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="name" x="20" y="26" font-size="15">{title}</text>',
        '<rect class="ours" x="20" y="38" width="12" height="12" rx="2"/><text class="dim" x="38" y="49">EP fabric</text>',
        '<rect class="theirs" x="110" y="38" width="12" height="12" rx="2"/><text class="dim" x="128" y="49">DeepEP v1.2.1</text>',
        '<text class="dim" x="240" y="49">two H200 over NVLink, hidden 7168, top-8 of 256 experts, FP8 dispatch; shorter is better</text>',
        f'<line class="axis" x1="{LEFT}" y1="60" x2="{LEFT}" y2="{height - 16}"/>',
    ]
    return "\n".join(head + out + ["</svg>", ""])


def main(root, *options):
    picture = os.path.join(root, "docs", "img", "results.svg")
    text = draw(read(os.path.join(root, "bench", "RESULTS.md")))
    if list(options) == ["--check"]:
        with open(picture, encoding="utf-8") as f:
            if f.read() == text:
                print(f"{len(ROWS)} rows, {len(ROWS) * len(CALLS)} pairs of bars")
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
