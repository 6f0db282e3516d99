# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the scripts beside it share: the built commands, gpu-sleep's Python packages with the built libraries, and as much
of the driver API as a neighbour on the GPU needs."""

import argparse
import contextlib
import ctypes
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def parser(document):
    """For the options of a script: --build, and --json, which finish() heeds."""
    made = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    made.add_argument("--json", help="file for the figures")
    return made


def under_gpu_run(parser, program):
    """Runs the script itself again under gpu-run, where it is program(options). Returns its exit status."""
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        return program(options)
    return subprocess.run([os.path.join(options.build, "bin", "gpu-run"), "--", sys.executable, os.path.abspath(sys.argv[0]),
                           *sys.argv[1:], "--program"], check=False).returncode


def finish(options, figures, checks):
    """Prints and writes what was found. Returns the exit status: 0 when all checks hold."""
    text = json.dumps({**figures, "checks": checks}, indent=1)
    print(text)
    if options.json:
        pathlib.Path(options.json).write_text(text, encoding="utf-8")
    return 0 if all(checks.values()) else 1


def serve(answer):
    """Answers each GET with answer(path), a text, in a thread of its own; says its port on standard output."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            text = answer(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def run(build, name, *words, timeout=None):
    """Runs a built command with --json. Returns what subprocess says of it, its answer ({"processes": []} where there is
    none), and the seconds from its start to its exit."""
    start = time.monotonic()
    done = subprocess.run([os.path.join(build, "bin", name), *words, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=timeout, check=False)
    seconds = time.monotonic() - start
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"processes": []}
    return done, answer, seconds


def on_process(build, name, pid, *words):
    """The same for a process, where the script ends if that fails: what is said of the process, and the seconds."""
    done, answer, seconds = run(build, name, pid, *words)
    if done.returncode != 0:
        raise SystemExit(f"{name} {pid} {' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return answer["processes"][0], seconds


@contextlib.contextmanager
def installed_packages(build):
    """For `with`: an environment in which Python finds gpu_sleep and the stand-in for torch_memory_saver as pip installs them,
    and the stand-in's libraries by hook mode."""
    import torch

    agent_tree, built = pathlib.Path(__file__).resolve().parents[2] / "agent", pathlib.Path(build).resolve() / "lib"
    major, agent = torch.version.cuda.partition(".")[0], "libgpu-sleep-agent.so.0"
    with tempfile.TemporaryDirectory() as directory:
        site = pathlib.Path(directory)
        for package in ("python/gpu_sleep", "torch_memory_saver/torch_memory_saver"):
            (site / pathlib.Path(package).name).symlink_to(agent_tree / package)
        (site / agent).symlink_to(built / agent)
        libraries = {}
        for mode in ("preload", "torch"):
            name = f"torch_memory_saver_hook_mode_{mode}"
            libraries[mode] = site / f"{name}_cu{major}.abi3.so"
            libraries[mode].symlink_to(built / f"{name}.abi3.so")
        yield {**os.environ, "PYTHONPATH": directory, "GPU_SLEEP_AGENT": str(site / agent)}, libraries


class Driver:
    """The driver, with a device's primary context."""

    def __init__(self, device=0):
        self.lib, self.context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.enter()

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} gave {status}")

    def enter(self):
        self.call("cuCtxSetCurrent", self.context)

    def free_and_total(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address
