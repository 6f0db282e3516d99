#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A PyTorch server, unmodified under gpu-run, while it sleeps: health checks are answered, requests wait or wake it.

Usage: server_health.py --build DIR [--json FILE]. Exit status: 0 when all is as it must be.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
import urllib.request

import gpu_commands

WIDTH = 4096
SHORT = 2.0 # seconds in which a health check is answered


def serve():
    """The server: one thread a request, as many servers have it."""
    import torch

    weights = torch.randn(WIDTH, WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    gpu_commands.serve(lambda path: "well" if path == "/health" else str(float((weights @ weights).abs().sum())))


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()

    def command(name, *words):
        subprocess.run([os.path.join(arguments.build, "bin", name), *words], check=True, stdout=subprocess.DEVNULL)

    server = subprocess.Popen([os.path.join(arguments.build, "bin", "gpu-run"), "--", sys.executable,
                               os.path.abspath(__file__), "--serve"], stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip()
    figures = {}
    checks = {}

    def ask(path, limit):
        start = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=limit) as reply:
            text = reply.read().decode()
        return text, time.monotonic() - start

    try:
        pid = str(server.pid)
        expected, _ = ask("/work", 60)
        command("gpu-sleep", pid)
        answers = []
        waiting = [threading.Thread(target=lambda: answers.append(ask("/work", 60))) for _ in range(3)]
        for thread in waiting:
            thread.start()
        time.sleep(1)
        health = [ask("/health", SHORT) for _ in range(10)]
        figures["health_seconds"] = max(seconds for _, seconds in health)
        checks["health checks are answered asleep"] = all(text == "well" for text, _ in health)
        checks["requests wait"] = not answers
        command("gpu-wake", pid)
        for thread in waiting:
            thread.join()
        checks["they are answered after waking"] = [text for text, _ in answers] == [expected] * len(waiting)
        command("gpu-sleep", pid, "--on-touch", "wake")
        text, figures["woken_request_seconds"] = ask("/work", 60)
        checks["a request wakes the server"] = text == expected
    finally:
        server.kill()
    return gpu_commands.finish(arguments, figures, checks)


if __name__ == "__main__":
    sys.exit(main())
