#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Usage: tests/bench/picture.py sleep|live|fleet > tests/bench/NAME.svg

Draws RESULTS.md's times "Beside other ways", its speeds of "Running from host memory", or its costs of "A fleet on one machine"."""

import math
import pathlib
import re
import sys

RESULTS = pathlib.Path(__file__).with_name("RESULTS.md").read_text(encoding="utf-8")
LEFT, WIDTH, ROW = 290, 464, 20  # where bars begin; pixels
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" font-family="sans-serif" font-size="13">
<style>
text {{ fill: #1f2328; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }}
.paper {{ fill: #ffffff }} line {{ stroke: #d1d9e0 }} .other {{ fill: #8c959f }} .ours {{ fill: #1a7f37 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3; stroke: #0d1117 }}
.paper {{ fill: #0d1117 }} line {{ stroke: #30363d }} .other {{ fill: #7d8590 }} .ours {{ fill: #3fb950 }} }}
</style>
<rect class="paper" width="{0}" height="{1}" rx="6"/>"""


def row_of(beginning):
    return [cell.strip() for cell in re.search(rf"^\|{beginning}\|.*\|$", RESULTS, re.M).group().split("|")[2:-1]]


def text(x, y, content, more=""):
    return f'<text x="{x}" y="{y}"{more}>{content}</text>'


def draw(title, note, header, rows, first, unit):
    """Bars for the cells of these rows, by their names, on a scale whose lines have the powers of ten from `first` on."""
    tools, drawn, y = row_of(header), [], 66
    decade, least = WIDTH // (2 - first), 10.0 ** first
    for what in rows:
        drawn.append(text(16, y + 14, what, ' font-weight="bold"'))
        for tool, cell in zip(tools, row_of(f" {what} ")):
            y += ROW
            width = math.log10(float(cell.split()[0]) / least) * decade
            kind = "ours" if tool.startswith("gpu-") else "other"
            drawn += [text(LEFT - 8, y + 14, tool, ' text-anchor="end"'), text(round(LEFT + width + 6), y + 14, cell),
                      f'<rect class="{kind}" x="{LEFT}" y="{y + 3}" width="{width:.0f}" height="{ROW - 6}"/>']
        y += ROW + 12
    print(HEAD.format(860, y + 44))
    print(text(16, 26, title, ' font-size="16" font-weight="bold"'))
    print(text(16, 48, note))
    for power in range(first, 3):
        x = LEFT + (power - first) * decade
        print(f'<line x1="{x}" y1="66" x2="{x}" y2="{y}"/>', text(x, y + 15, f"{10 ** power:g}{unit}", ' text-anchor="middle"'))
    print(*drawn, text(LEFT, y + 34, "logarithmic: each line is ten times the one before it"), "</svg>", sep="\n")


def sleep():
    card = re.search(r"all columns in one run, on one (NVIDIA \w+)", RESULTS).group(1)
    kept, dropped = re.search(r"`model` is ([\d.]+ GB) .*?kept, and ([\d.]+ GiB) of cache", RESULTS, re.S).groups()
    draw(f"Sleep and wake of one process on one {card}, in seconds",
         f"{kept} of weights kept, {dropped} of cache dropped; the driver's checkpoint keeps all of it",
         r" \| gpu-sleep ", ("first sleep", "later sleep, nothing changed", "wake"), -2, " s")


def live():
    card = re.search(r"`scripts/bench live`[^|]*? one (NVIDIA \w+)", RESULTS).group(1)
    draw(f"Decoding while weights lie in host memory, on one {card}, in tokens a second",
         "8 billion parameters, one sequence; in brackets, of what the link allows for the bytes that a step reads",
         " offloaded ", re.findall(r"^\| (\d+ GB) \|", RESULTS, re.M), 0, "")


def fleet():
    draw("What a command costs for each program of a fleet, in milliseconds",
         "On two cores; in brackets, the whole command",
         r" \| gpu-ps ", re.findall(r"^\| (\d+ programs) \|", RESULTS, re.M), -1, " ms")


{"sleep": sleep, "live": live, "fleet": fleet}[sys.argv[1]]()
