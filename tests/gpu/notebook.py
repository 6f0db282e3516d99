#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A notebook's kernel is found idle, sleeps, and answers its next cell.

The kernel is ipykernel, driven by jupyter_client, where both are installed; otherwise Python's own interactive interpreter
behind a pipe, which keeps its names between cells in the same way. It runs under gpu-run and knows nothing of sleeping. The
pass is that of a timer: gpu-reclaim without a terminal and with an empty environment.

Usage: notebook.py --build DIR [--cells torch|plain] [--kernel any|ipykernel] [--json FILE]. Exit status 0 when all is right.
"""

import argparse
import code
import contextlib
import io
import json
import os
import subprocess
import sys
import time

import gpu_commands

IDLE = "2s"
PATIENCE = 60
CELLS = {
    "torch": ("import torch; x = torch.arange(1 << 28, device='cuda', dtype=torch.float32); x.mul_(2); torch.cuda.synchronize()",
              "print(int(x[12345]), float(x[-1]))"),
    "plain": ("import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); c = ctypes.c_void_p(); a = ctypes.c_uint64();"
              "n = ctypes.c_size_t(64 << 20); b = ctypes.create_string_buffer(64);"
              "print(cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0), cuda.cuCtxSetCurrent(c),"
              " cuda.cuMemAlloc_v2(ctypes.byref(a), n), cuda.cuMemsetD8_v2(a, ctypes.c_ubyte(77), n), cuda.cuCtxSynchronize())",
              "print(cuda.cuMemcpyDtoH_v2(b, a, ctypes.c_size_t(64)), b.raw.decode())"),
}
ANSWERS = {"torch": "24690 536870912.0", "plain": "0 " + "M" * 64}


def interpret():
    """Cells as JSON texts, one a line; what each prints, likewise."""
    console = code.InteractiveInterpreter({"__name__": "__main__"})
    for line in sys.stdin:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            console.runsource(json.loads(line), symbol="exec")
        print(json.dumps(printed.getvalue()), flush=True)


class Console:
    name = "the interactive interpreter (no ipykernel here)"

    def __init__(self, gpu_run):
        self.process = subprocess.Popen([*gpu_run, sys.executable, os.path.abspath(__file__), "--interpret"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def run(self, cell):
        self.process.stdin.write(json.dumps(cell) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()


class Notebook:
    name = "ipykernel"

    def __init__(self, gpu_run):
        from jupyter_client import KernelManager
        from jupyter_client.kernelspec import KernelSpec

        self.manager = KernelManager()
        words = [*gpu_run, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager._kernel_spec = KernelSpec(argv=words, display_name="gpu", language="python")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self.pid = int(self.run("import os; print(os.getpid())"))

    def run(self, cell):
        printed = []

        def hear(message):
            content = message["content"]
            printed.append(content.get("text") or "\n".join(content.get("traceback", [])))

        self.client.execute_interactive(cell, timeout=PATIENCE, output_hook=hear)
        return "".join(printed)

    def end(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def has_ipykernel():
    try:
        import ipykernel  # noqa: F401
        import jupyter_client  # noqa: F401
    except ImportError:
        return False
    return True


def state(options, pid):
    return gpu_commands.on_process(options.build, "gpu-ps", str(pid))[0]["state"]


def reclaim(options, pid):
    """One pass as a timer makes it. Whether it put the process to sleep."""
    environment = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ} # of the tests' own driver
    done = subprocess.run([os.path.join(options.build, "bin", "gpu-reclaim"), "--idle", IDLE, "--json", str(pid)],
                          env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True, check=True)
    return json.loads(done.stdout)["processes"][0]["report"]["changed"]


def check(options, kernel):
    first, second = CELLS[options.cells]
    begun = time.monotonic()
    printed = kernel.run(first)
    if "Error" in printed:
        raise SystemExit(f"the first cell: {printed}")
    at_once = reclaim(options, kernel.pid)
    deadline = time.monotonic() + PATIENCE
    while not (slept := reclaim(options, kernel.pid)) and time.monotonic() < deadline:
        time.sleep(0.5)
    idle_after = time.monotonic() - begun
    asleep = state(options, kernel.pid)
    start = time.monotonic()
    answer = kernel.run(second).strip()
    seconds = time.monotonic() - start
    checks = {"who has just worked is left alone": not at_once, "it is found idle": slept, "it sleeps": asleep == "asleep",
              "its next cell is answered": answer == ANSWERS[options.cells],
              "it is awake then": state(options, kernel.pid) == "awake"}
    return checks, {"kernel": kernel.name, "asleep_after_seconds": idle_after, "next_cell_seconds": seconds, "answer": answer}


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--cells", choices=CELLS, default="torch")
    parser.add_argument("--kernel", choices=("any", "ipykernel"), default="any")
    parser.add_argument("--interpret", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.interpret:
        return interpret()
    gpu_run = [os.path.join(os.path.abspath(options.build), "bin", "gpu-run"), "--"]
    kernel = (Notebook if options.kernel == "ipykernel" or has_ipykernel() else Console)(gpu_run)
    try:
        checks, figures = check(options, kernel)
    finally:
        kernel.end()
    return gpu_commands.finish(options, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
