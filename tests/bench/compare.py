#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Usage: tests/bench/compare.py [--check] OLD.json NEW.json

Prints each figure of two files of scripts/bench (bench.json), old and new, with the ratio of new to old. A figure is
marked `slower` if it got worse by more than the noise: every new sample is worse than every old one, and the values
differ by more than 3 %; 10 % where a run has one sample alone. `faster` likewise. Ratios that are to be looked at
beside others ("x" without a bound) are not judged.

    --check     end with 1 if a figure got slower
"""

import argparse
import dataclasses
import json
import pathlib
import sys

LEAST_CHANGE = 0.03
LEAST_CHANGE_OF_ONE = 0.10
LINKS = ("link to host", "link to device")
LEAST_CHANGE_OF_LINK = 0.05


@dataclasses.dataclass(frozen=True)
class Figure:
    value: float
    unit: str
    samples: tuple
    is_judged: bool = True
    more_is_better: bool = False


def figures_in(path):
    """Figures of all programs, by program and name. Source: figures.cpp; Google Benchmark's JSON."""
    found = {}
    for program, document in json.loads(pathlib.Path(path).read_text(encoding="utf-8")).items():
        for figure in document.get("figures", []):
            unit = figure["unit"]
            found[program, figure["name"]] = Figure(
                figure["value"], unit, tuple(figure["samples"]), unit != "x" or "target" in figure, unit.endswith("/s"))
        for run in document.get("benchmarks", []):
            found[program, run["name"]] = Figure(run["real_time"], run["time_unit"], (run["real_time"],))
    return found


def verdict(old, new):
    """`slower`, `faster`, or nothing for what the noise may have done."""
    if not (old.is_judged and new.is_judged) or old.unit != new.unit or old.value <= 0 or new.value <= 0:
        return ""
    worse, better = (old, new) if old.more_is_better else (new, old)
    is_worse = worse.value > better.value
    above, below = (worse, better) if is_worse else (better, worse)
    has_one = min(len(old.samples), len(new.samples)) == 1
    if above.value / below.value < 1 + (LEAST_CHANGE_OF_ONE if has_one else LEAST_CHANGE):
        return ""
    if min(above.samples) <= max(below.samples):
        return ""
    return "slower" if is_worse else "faster"


def warnings(old, new):
    for key in sorted(old.keys() & new.keys()):
        ratio = new[key].value / old[key].value if key[1] in LINKS and old[key].value > 0 else 1
        if abs(ratio - 1) > LEAST_CHANGE_OF_LINK:
            yield f"the {key[1]} is {ratio:.2f} times what it was: the machine is another, or busy"
    for only, where in ((old.keys() - new.keys(), "old"), (new.keys() - old.keys(), "new")):
        if only:
            yield f"{len(only)} figures are in the {where} file alone"


def compare(old, new):
    """The lines to print, and how many figures got slower."""
    lines = []
    slower = 0
    program = None
    for key in [key for key in new if key in old]:
        if key[0] != program:
            program = key[0]
            lines.append(program)
        a, b = old[key], new[key]
        mark = verdict(a, b)
        slower += mark == "slower"
        ratio = f"{b.value / a.value:8.2f}" if a.value > 0 else f"{'-':>8}"
        lines.append(f"  {key[1]:<56} {a.value:>10.4g} -> {b.value:>10.4g} {b.unit:<5} {ratio}  {mark}".rstrip())
    return lines + [f"note: {sentence}" for sentence in warnings(old, new)], slower


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("old")
    parser.add_argument("new")
    options = parser.parse_args()
    lines, slower = compare(figures_in(options.old), figures_in(options.new))
    print("\n".join(lines))
    print(f"{slower} slower" if slower else "nothing got slower")
    return 1 if options.check and slower else 0


if __name__ == "__main__":
    sys.exit(main())
