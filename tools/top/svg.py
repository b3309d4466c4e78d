#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A picture (SVG) of a terminal, from what `tmux capture-pane -p -e` prints.

For docs/img/ep-top.svg, see docs/guides/ep-top.md; nobody calls it in a build. It knows the colours that ep-top uses and must never fetch anything:
the picture names a font family and holds text.

  tmux capture-pane -p -e | tools/top/svg.py --title "ep-top" > docs/img/ep-top.svg
"""
import argparse
import re
import sys
from html import escape

WIDTH, HEIGHT, PAD, BAR = 8.4, 18, 12, 28
BACK, FORE = "#1e1e2e", "#cdd6f4"
COLOURS = {30: "#1e1e2e", 31: "#f38ba8", 32: "#a6e3a1", 33: "#f9e2af", 36: "#89dceb", 37: "#cdd6f4"}


class Pen:
    """Attributes in force: they go on from line to line."""

    def __init__(self):
        self.fore, self.back, self.bold, self.dim, self.reverse = None, None, False, False, False

    def change(self, code):
        if code == 0:
            self.__init__()
        elif code in (1, 2, 7):
            self.bold, self.dim, self.reverse = self.bold or code == 1, self.dim or code == 2, self.reverse or code == 7
        elif code in (22, 27):
            self.bold, self.dim = (False, False) if code == 22 else (self.bold, self.dim)
            self.reverse = self.reverse and code != 27
        elif 30 <= code <= 39:
            self.fore = COLOURS.get(code)
        elif 40 <= code <= 49:
            self.back = COLOURS.get(code - 10)

    def colours(self):
        """Of text and ground; no ground: None."""
        return (self.back or BACK, self.fore or FORE) if self.reverse else (self.fore or FORE, self.back)

    def pieces(self, line):
        """Texts of a line, the pen being as it is for each."""
        for part in re.split(r"(\x1b\[[0-9;]*m)", line):
            if not part.startswith("\x1b["):
                if part:
                    yield part
                continue
            for code in part[2:-1].split(";"):
                self.change(int(code or 0))


def draw(lines, title, columns):
    width = round(columns * WIDTH + 2 * PAD)
    height = round(len(lines) * HEIGHT + 2 * PAD + BAR)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">',
           f"<title>{escape(title)}</title>",
           f'<rect width="{width}" height="{height}" rx="8" fill="{BACK}"/>',
           f'<text x="{width / 2:.0f}" y="19" fill="#7f849c" font-family="sans-serif" font-size="13" text-anchor="middle">{escape(title)}</text>',
           '<g font-family="ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" xml:space="preserve">']
    pen = Pen()
    for row, line in enumerate(lines):
        x, y = 0, BAR + PAD + row * HEIGHT
        for text in pen.pieces(line):
            text = text[:columns - x]
            ink, ground = pen.colours()
            left, length = PAD + x * WIDTH, len(text) * WIDTH
            if ground:
                out.append(f'<rect x="{left:.1f}" y="{y - 1}" width="{length:.1f}" height="{HEIGHT}" fill="{ground}"/>')
            if text.strip():
                more = ' font-weight="bold"' if pen.bold else ""
                more += ' opacity="0.6"' if pen.dim else ""
                # Blanks in front are left to the place: not every viewer keeps them.
                blanks = len(text) - len(text.lstrip())
                text = text.strip()
                out.append(f'<text x="{left + blanks * WIDTH:.1f}" y="{y + 13}" textLength="{len(text) * WIDTH:.1f}" '
                           f'lengthAdjust="spacingAndGlyphs" fill="{ink}"{more}>{escape(text)}</text>')
            x += round(length / WIDTH)
        ground = pen.colours()[1]
        if ground and x < columns:  # the terminal's rest of a coloured line
            out.append(f'<rect x="{PAD + x * WIDTH:.1f}" y="{y - 1}" width="{(columns - x) * WIDTH:.1f}" height="{HEIGHT}" fill="{ground}"/>')
    return "\n".join([*out, "</g>", "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--title", default="ep-top", help="above the picture, and its name")
    options = parser.parse_args()
    lines = sys.stdin.read().rstrip("\n").split("\n")
    while len(lines) > 2 and not lines[-2].strip():  # free lines between the table and the last line
        del lines[-2]
    columns = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines)
    sys.stdout.write(draw(lines, options.title, columns))


if __name__ == "__main__":
    main()
