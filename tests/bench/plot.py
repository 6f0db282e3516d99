#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Usage: tests/bench/plot.py BENCH.json PLOT.svg

Draws how times grow, from the figures of scripts/bench that stand in a series: a row for each axis (GiB, ranges), in it a
panel for each series, with a straight line fitted to it. Prints each line, and how far the figure farthest from it is
away. The fit weighs relative distances, so that small figures count as much as large ones.
"""

import dataclasses
import json
import math
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 400, 330
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 40, 70
COLOURS = ("#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#b8860b", "#555555")


@dataclasses.dataclass
class Line:
    """`base` seconds, and `slope` more for each unit of the axis."""

    base: float
    slope: float

    def at(self, x):
        return self.base + self.slope * x


def series_in(document):
    """axis -> series -> [(at, seconds)], in order."""
    found = {}
    for program in document.values():
        for figure in program.get("figures", []):
            if "series" in figure:
                points = found.setdefault(figure["axis"], {}).setdefault(figure["series"], [])
                points.append((figure["at"], figure["value"]))
    return {axis: {name: sorted(points) for name, points in of.items()} for axis, of in found.items()}


def fit(points):
    """The line with the least sum of squares of relative distances."""
    weights = [1 / (y * y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points))
    if spread == 0:
        return Line(mean_y, 0)
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points)) / spread
    return Line(mean_y - slope * mean_x, slope)


def farthest(line, points):
    """The largest distance from the line, of what was measured, and where it is."""
    return max((abs(y - line.at(x)) / y, x) for x, y in points)


def described(axis, name, line, points):
    share, at = farthest(line, points)
    return f"{name}: {line.base:.4f} s + {line.slope:.5f} s per {axis}; at most {100 * share:.1f} % away, at {at:.4g}"


def ticks(most):
    """About five round numbers up to `most`."""
    step = 10 ** math.floor(math.log10(most / 5))
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def text(x, y, words, anchor="middle", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def panel(axis, name, points, colour):
    """The elements of one plot."""
    most_x = max(x for x, _ in points)
    most_y = 1.05 * max(y for _, y in points)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def to_x(x):
        return LEFT + (right - LEFT) * x / most_x

    def to_y(y):
        return bottom - (bottom - TOP) * y / most_y

    parts = [text((LEFT + right) / 2, 22, f"{name}: seconds over {axis}", size=14),
             f'<rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" height="{bottom - TOP}" fill="none" stroke="#999"/>']
    parts += [text(to_x(tick), bottom + 16, f"{tick:g}") for tick in ticks(most_x)]
    for tick in ticks(most_y):
        parts.append(f'<line x1="{LEFT}" x2="{right}" y1="{to_y(tick):.1f}" y2="{to_y(tick):.1f}" stroke="#eee"/>')
        parts.append(text(LEFT - 6, to_y(tick) + 4, f"{tick:g}", "end"))
    line = fit(points)
    share, at = farthest(line, points)
    # A line that begins below the foot of the plot is drawn from there.
    first = 0 if line.base >= 0 or line.slope <= 0 else -line.base / line.slope
    parts.append(f'<line class="fit" x1="{to_x(first):.1f}" y1="{to_y(line.at(first)):.1f}" x2="{to_x(most_x):.1f}" '
                 f'y2="{to_y(max(0, line.at(most_x))):.1f}" stroke="{colour}" stroke-dasharray="4 3"/>')
    parts += [f'<circle cx="{to_x(x):.1f}" cy="{to_y(y):.1f}" r="4" fill="{colour}"/>' for x, y in points]
    parts.append(text((LEFT + right) / 2, bottom + 40, f"{line.base:.4f} s + {line.slope:.5f} s per {axis}"))
    parts.append(text((LEFT + right) / 2, bottom + 58, f"at most {100 * share:.1f} % away, at {at:.4g}"))
    return parts


def drawing(found):
    columns = max(len(series) for series in found.values())
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * columns}" height="{HEIGHT * len(found)}" '
             'font-family="sans-serif">', '<rect width="100%" height="100%" fill="white"/>']
    for row, (axis, series) in enumerate(found.items()):
        for column, (name, points) in enumerate(series.items()):
            parts.append(f'<g transform="translate({WIDTH * column},{HEIGHT * row})">')
            parts += panel(axis, name, points, COLOURS[column % len(COLOURS)])
            parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def main():
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    found = series_in(json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
    if not found:
        sys.exit(f"{sys.argv[1]} has no series: the cases `size` and `ranges` of sleep_bench were not run")
    for axis, series in found.items():
        for name, points in series.items():
            print(described(axis, name, fit(points), points))
    pathlib.Path(sys.argv[2]).write_text(drawing(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
