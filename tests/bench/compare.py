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
import json
import pathlib
import sys

LEAST_CHANGE = 1.03
LEAST_CHANGE_OF_ONE = 1.10
LEAST_CHANGE_OF_LINK = 0.05


def figures_in(path):
    """Figures of all programs, by program and name. Source: figures.cpp; Google Benchmark's JSON."""
    found = {}
    for program, document in json.loads(pathlib.Path(path).read_text(encoding="utf-8")).items():
        for figure in document.get("figures", []):
            found[program, figure["name"]] = figure
        for run in document.get("benchmarks", []):
            found[program, run["name"]] = {"value": run["real_time"], "unit": run["time_unit"], "samples": [run["real_time"]]}
    return found


def verdict(old, new):
    """`slower`, `faster`, or nothing for what the noise may have done."""
    is_judged = all(figure["value"] > 0 and (figure["unit"] != "x" or "target" in figure) for figure in (old, new))
    if not is_judged or old["unit"] != new["unit"]:
        return ""
    below, above = sorted((old, new), key=lambda figure: figure["value"])
    has_one = min(len(old["samples"]), len(new["samples"])) == 1
    if above["value"] / below["value"] < (LEAST_CHANGE_OF_ONE if has_one else LEAST_CHANGE):
        return ""
    if min(above["samples"]) <= max(below["samples"]):
        return ""
    more_is_better = new["unit"].endswith("/s")
    return "slower" if (new is above) != more_is_better else "faster"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("old")
    parser.add_argument("new")
    options = parser.parse_args()
    old, new = figures_in(options.old), figures_in(options.new)
    both = [key for key in new if key in old]
    slower = 0
    for program, name in both:
        a, b = old[program, name], new[program, name]
        mark = verdict(a, b)
        slower += mark == "slower"
        ratio = b["value"] / a["value"] if a["value"] > 0 else float("nan")
        print(f"{program} {name:<56} {a['value']:>10.4g} -> {b['value']:>10.4g} {b['unit']:<5} {ratio:8.2f}  {mark}".rstrip())
        if name.startswith("link to ") and abs(ratio - 1) > LEAST_CHANGE_OF_LINK:
            print(f"note: the {name} is {ratio:.2f} times what it was: the machine is another, or busy")
    print(f"note: {len(old) - len(both)} figures are in the old file alone, {len(new) - len(both)} in the new one")
    print(f"{slower} slower" if slower else "nothing got slower")
    return 1 if options.check and slower else 0


if __name__ == "__main__":
    sys.exit(main())
