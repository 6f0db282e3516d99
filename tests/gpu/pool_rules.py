#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What memory pools do, with the agent and without, beside what a real driver was seen to do.

Runs pool_rules and compares its lines with the recorded ones: without the agent as they are, under gpu-run in words, but
for the lines of which agent/intercepted/POOLS.md says why they differ.

Usage: pool_rules.py --build DIR [--without] [--record]. Exit status: 0 when all is as it must be. --without leaves the
agent out; --record writes what a real driver prints, instead of comparing it.
"""

import argparse
import difflib
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent

# Line by line: what the driver prints, and the agent instead. Found in any section.
EARLY = [
    "the stream is there, cuStreamSynchronize of another stream",
    "the stream is there, cuStreamSynchronize of the null stream",
    "the stream is there, cuEventSynchronize of an event before the free",
]


def as_with_agent(line):
    """The line that a program under gpu-run prints where a driver prints `line`."""
    if any(line.startswith(f"  {name}:") for name in EARLY):
        return line.replace("reserved 96M", "reserved 32M")
    waits = "the stream is not there, and the other waits for it: grows: no"
    small = "20M and 1100 after those: grows: no"
    if waits in line or small in line:
        return line.replace("grows: no", "grows: yes")
    return line


def expected_with_agent(lines):
    section = ""
    for line in lines:
        if not line.startswith("  "):
            section = line
        if section.startswith("cuMemFree of") and line.startswith(("  freed:", "  synchronised:")):
            line = line.replace("used 96M, at", "used 32M, at")
        yield as_with_agent(line)


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout.splitlines()


def differs(name, expected, found):
    lines = list(difflib.unified_diff(list(expected), found, "expected", name, lineterm="", n=1))
    print("\n".join(lines) if lines else f"{name}: as expected, {len(found)} lines")
    return bool(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    programs = options.build / "bin"
    exact, words = HERE / "pool_rules.exact.txt", HERE / "pool_rules.txt"
    if options.record:
        for path, more in ((exact, ["--exact"]), (words, [])):
            path.write_text("\n".join(run([programs / "pool_rules", *more])) + "\n")
        return 0
    failed = differs("without the agent", exact.read_text().splitlines(), run([programs / "pool_rules", "--exact"]))
    if not options.without:
        found = run([programs / "gpu-run", "--", programs / "pool_rules"])
        failed |= differs("with the agent", expected_with_agent(words.read_text().splitlines()), found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
