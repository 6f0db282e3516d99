#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Sleeps of a program whose weights were started in host memory, on a real GPU: how long those take that leave the weights
where they are, and the wakes, beside those that go deep or to files, and whether each bit of each result is right. Last
it sleeps at level 2, whose wake has zeros there.

Usage: live_sleep.py --build DIR [--gib 4] [--json FILE]. Exit status 0 when each bit is right, and a plain sleep copies
nothing of the weights.
"""

import ctypes
import os
import sys
import tempfile

import gpu_commands
import live_memory

REFUSED = 12  # as gpu_sleep.h has it


def program(options):
    """Runs under gpu-run."""
    import torch

    work = live_memory.Work(torch, options.gib)

    def command(name, *words):
        process, seconds = gpu_commands.on_process(options.build, name, str(os.getpid()), *words)
        report = process["report"]
        devices = report["devices"]
        return {"command": " ".join([name, *words]), "seconds": seconds, "state": process["state"],
                "in_place": sum(tag["in_place_bytes"] for tag in report["tags"]),
                "copied": sum(device["copied_bytes"] for device in devices),
                "relocated": sum(device["relocated_bytes"] for device in devices),
                "steps": [device.get("steps") for device in devices]}

    placed = live_memory.bytes_from_host(gpu_commands.on_process(options.build, "gpu-ps", str(os.getpid()))[0]["report"])
    figures = {"gpu": torch.cuda.get_device_name(0), "bytes": work.bytes, "placed": placed, "rounds": []}
    checks = {"started in host memory": placed >= work.bytes, "right at first": work.is_whole()}
    with tempfile.TemporaryDirectory() as directory:
        in_files = ["--store", "file", "--dir", directory]
        for sleeps in [[[]], [[]], [["--deep"]], [[], ["--deep"]], [in_files], [[], in_files], [[]]]:
            slept = [command("gpu-sleep", *words) for words in sleeps]
            woken = command("gpu-wake")
            figures["rounds"].append([*slept, woken])
            name = ", then ".join(" ".join(words[:2]) or "plain" for words in sleeps)
            stays = [each["in_place"] for each in slept]
            expected = [0 if words else placed for words in sleeps]
            checks[f"{name}: what sleeps in place"] = stays == expected
            if not sleeps[0]:
                checks[f"{name}: copies little"] = slept[0]["copied"] < work.bytes / 10
            for _ in range(5):
                work.step()
            checks[f"{name}: right, and where it was"] = work.is_whole() and woken["in_place"] == placed
    command("gpu-sleep")
    read = ctypes.CDLL(None).gpu_sleep_read_kept
    weight = ctypes.c_void_p(work.weights[0].data_ptr())
    checks["what sleeps in place is not read"] = read(weight, ctypes.c_size_t(1), ctypes.create_string_buffer(1)) == REFUSED
    checks["level 2 gives it back"] = command("gpu-sleep", "--level", "2", "--yes")["in_place"] == 0
    checks["and wakes where it was"] = command("gpu-wake")["in_place"] == placed and not any(map(torch.any, work.weights))
    return gpu_commands.finish(options, figures, checks)


def main():
    parser = gpu_commands.parser(__doc__)
    parser.add_argument("--gib", type=float, default=4, help="of weights")
    os.environ.setdefault("GPU_SLEEP_LIVE_BYTES", "weights=1TiB")
    return gpu_commands.under_gpu_run(parser, program)


if __name__ == "__main__":
    sys.exit(main())
