#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What it costs programs that never use CUDA to be started in a login environment with the agent, beside the agent
itself and gpu-run: the least and the median of the time from before the start until the end is known, and the ratio of
the least to that of the program alone. The last program binds 20,000 symbols at its start; then it looks up one with
dlsym() a million times.

Usage: start_cost.py BUILD_DIRECTORY [RUNS]
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PROGRAMS = [["/bin/true"], ["/bin/sh", "-c", ":"], ["/usr/bin/python3", "-c", "pass"]]


LIBRARIES, FUNCTIONS = 40, 500


def build_large_program(directory):
    """Returns its file, and that of the program that looks up symbols."""
    def compile_c(file, text, *options):
        source = directory / f"{file}.c"
        source.write_text(text)
        subprocess.run(["cc", "-O1", "-o", directory / file, source, *options, "-Wl,-z,now", f"-Wl,-rpath,{directory}"], check=True)
        return str(directory / file)

    libraries = []
    for library in range(LIBRARIES):
        functions = "".join(f"int f_{library}_{i}(int x) {{ return x + {i}; }}\n" for i in range(FUNCTIONS))
        libraries.append(compile_c(f"lib{library}.so", functions, "-shared", "-fPIC"))
    names = [f"f_{library}_{i}" for library in range(LIBRARIES) for i in range(FUNCTIONS)]
    user = "".join(f"int {name}(int);\n" for name in names) + f"int use(int x) {{ return {' + '.join(f'{name}(x)' for name in names)}; }}\n"
    libraries.insert(0, compile_c("libuser.so", user, "-shared", "-fPIC", *libraries))
    large = compile_c("large", "int use(int); int main(int count, char** words) { return words && count > 9 ? use(1) : 0; }", *libraries)
    looking = compile_c("look_ups", """#include <dlfcn.h>
        int main(void) { for (int i = 0; i < 1000000; ++i) if (!dlsym(RTLD_DEFAULT, "getppid")) return 1; return 0; }""")
    return large, looking


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
    scratch = tempfile.TemporaryDirectory()
    large, looking = build_large_program(pathlib.Path(scratch.name))
    for program in [*PROGRAMS, [large], [looking]]:
        times = {way: [] for way in ways}
        for _ in range(runs if program != [looking] else runs // 10):  # in turn, so that whatever else the machine does meets all of them
            for way, (prefix, environment) in ways.items():
                times[way].append(milliseconds(prefix + program, environment))
        print(" ".join(program))
        for way, taken in times.items():
            ratio = min(taken) / min(times["alone"])
            print(f"  {way:15} {min(taken):7.3f} ms  median {statistics.median(taken):7.3f} ms  x {ratio:.2f}")


main()
