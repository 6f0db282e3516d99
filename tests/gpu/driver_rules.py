#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The rules of the driver API that the simulated driver and a real one must both keep.

Runs each case of the program driver_rules on the libcuda.so.1 that the loader finds, each in a process of its own: an
error that loses the context, or a case that hangs and is killed, harms no other. Prints a line a case, and what failed.

Usage: driver_rules.py PROGRAM [--case TEXT]... [--under COMMAND] [--timeout SECONDS]. --case: only cases whose name has
TEXT in it. --under: each started by the command, such as gpu-run. Exit status: 0 when no case failed. Needs nothing of the build
but PROGRAM.
"""

import argparse
import os
import re
import resource
import shlex
import signal
import subprocess
import sys


def names(program):
    """The cases that are not hidden. Catch2 2 has an option for the names alone, 3 has another; each prints no name where
    it does not know one."""
    for options in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        done = subprocess.run([program, *options, "[driver_rules]"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=60, check=False)
        found = [line.strip() for line in done.stdout.splitlines() if line.strip().startswith("Driver: ")]
        if found:
            return found
    sys.exit(f"{program} lists no cases:\n{done.stdout}")


def run(command, name, timeout):
    """How the case ended: "ok", "skipped" or "FAILED: why", and its output."""
    pattern = re.sub(r"([\\,\[\]\"*~])", r"\\\1", name)
    child = subprocess.Popen([*command, pattern], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        output, _ = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # and the processes that it started
        output, _ = child.communicate()
        return f"FAILED: not over after {timeout} s", output
    if "skipped: " in output:
        return "skipped", output
    if child.returncode == 0 and "No test cases matched" not in output and "No tests ran" not in output:
        return "ok", output
    return f"FAILED: status {child.returncode}", output


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--under", default="", metavar="COMMAND")
    parser.add_argument("--timeout", type=float, default=60)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # some end by a signal, with a whole GPU's addresses mapped
    command = [*shlex.split(options.under), options.program]
    ended = {"ok": 0, "skipped": 0, "FAILED": 0}
    for name in names(options.program):
        if options.case and not any(text in name for text in options.case):
            continue
        how, output = run(command, name, options.timeout)
        ended[how.partition(":")[0]] += 1
        print(f"{how:8} {name}", flush=True)
        if how.startswith("FAILED"):
            print(output, flush=True)
    print(", ".join(f"{count} {how}" for how, count in ended.items()))
    return int(ended["FAILED"] > 0 or sum(ended.values()) == 0)


if __name__ == "__main__":
    sys.exit(main())
