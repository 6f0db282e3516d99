#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What it costs programs that never use CUDA to be started in a login environment with the agent, beside the agent
itself and gpu-run: the least and the median of the time from before the start until the end is known, and the ratio of
the least to that of the program alone.

Usage: start_cost.py BUILD_DIRECTORY [RUNS]
"""

import os
import pathlib
import statistics
import sys
import time

PROGRAMS = [["/bin/true"], ["/bin/sh", "-c", ":"], ["/usr/bin/python3", "-c", "pass"]]


def milliseconds(command, environment):
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        sys.exit(f"{command[0]} ended with {status}")
    return (time.perf_counter() - start) * 1e3


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 400
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ways = {
        "alone": ([], plain),
        "in a login": ([], {**plain, "LD_PRELOAD": f"{build}/lib/libgpu-sleep-login.so", "GPU_SLEEP_CAPTURE": "1"}),
        "with the agent": ([], {**plain, "LD_PRELOAD": f"{build}/lib/libgpu-sleep-agent.so"}),
        "and --audit": ([], {**plain, "LD_PRELOAD": f"{build}/lib/libgpu-sleep-agent.so",
                             "LD_AUDIT": f"{build}/lib/libgpu-sleep-audit.so"}),
        "by gpu-run": ([f"{build}/bin/gpu-run", "--"], plain),
    }
    for program in PROGRAMS:
        times = {way: [] for way in ways}
        for _ in range(runs):  # in turn, so that whatever else the machine does meets all of them
            for way, (prefix, environment) in ways.items():
                times[way].append(milliseconds(prefix + program, environment))
        print(" ".join(program))
        for way, taken in times.items():
            ratio = min(taken) / min(times["alone"])
            print(f"  {way:15} {min(taken):7.3f} ms  median {statistics.median(taken):7.3f} ms  x {ratio:.2f}")


main()
