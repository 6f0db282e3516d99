#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What a program is told while it sleeps deeply is what the driver would tell it.

Calls about what is alive and done are answered in place of the driver, as it answered them awake. Those about what is none,
or is destroyed, are held, for nobody but the driver knows. The program deep_answers makes them all; with touches that fail,
so that what is held does not reach the driver. Then no other entry point is answered; a thread that polls without pause
wakes nothing, with touches that wake; pools heed synchronisations that were answered; with a second context ends are held;
and a context that has failed does not go deep.

Usage: deep_answers.py --build DIR [--seconds N]. --seconds: how long the polling process sleeps each time. Exit status: 0
when all is as it must be.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import gpu_commands

NULL_POLLS = {"cuStreamQuery", "cuStreamQuery_ptsz", "cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize"}
MISSING = "-1"
HELD = "802" # CUDA_ERROR_SYSTEM_NOT_READY, which calls return that are to wait for nobody


class Failed(Exception):
    pass


class Program:
    """deep_answers under gpu-run, and the commands for it."""

    def __init__(self, build, *arguments):
        self.bin = build / "bin"
        self.process = subprocess.Popen([self.bin / "gpu-run", "--", self.bin / "deep_answers", *arguments],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def read(self):
        """Its next line; none: it has ended."""
        return self.process.stdout.readline().strip()

    def await_ready(self):
        """All its lines until then; none: it has ended before."""
        lines = []
        for line in iter(self.read, ""):
            if line == "ready":
                return lines
            lines.append(line)
        return None

    def ask(self, line=""):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def command(self, name, *words):
        done, answer, _ = gpu_commands.run(self.bin.parent, name, str(self.process.pid), *words, timeout=60)
        return done, (answer.get("processes") or [{}])[0].get("report", {})

    def fall_asleep(self, on_touch):
        done, _ = self.command("gpu-sleep", "--deep", "--on-touch", on_touch)
        if done.returncode != 0 or not self.is_deep():
            raise Failed(f"does not fall asleep: {done.returncode} {done.stderr}")

    def wake(self):
        done, _ = self.command("gpu-wake")
        if done.returncode != 0:
            raise Failed(f"does not wake: {done.returncode} {done.stderr}")

    def is_deep(self):
        return self.command("gpu-ps")[1].get("deep", False)


def compare(build):
    """Makes all calls in one deep sleep, with touches that fail; yields what is wrong or left out, case by case."""
    with Program(build, "--compare") as program:
        awake = dict(line.split(" ", 1)[::-1] for line in program.await_ready())
        program.fall_asleep("fail")
        deep = {}
        line = program.ask()
        while line not in ("done", ""):
            status, name = line.split(" ", 1)
            deep[name] = status
            line = program.read()
        for name, status in awake.items():
            if MISSING in (status, deep.get(name)):
                yield name, "left out", "this driver lacks it"
            elif name not in deep:
                yield name, "FAILED", "the program has ended by it, or before"
            elif deep[name] != status:
                yield name, "FAILED", f"is {deep[name]} and not {status}"
            else:
                yield name, "ok", "held" if status == HELD else status
        yield "all of these", "ok" if program.is_deep() else "FAILED", "without waking it"


def check_all_others(build):
    """With touches that fail, so that who is not answered does not reach the driver."""
    with Program(build, "--all") as program:
        program.await_ready()
        program.fall_asleep("fail")
        answered = {}
        line = program.ask()
        while line not in ("done", ""):
            name, status = line.split()
            answered[name] = int(status)
            line = program.read()
        if line != "done":
            raise Failed("the program has ended")
        if answered != dict.fromkeys(NULL_POLLS, 0):
            raise Failed(f"answered: {answered}")
        if not program.is_deep():
            raise Failed("it has woken")


def check_polling(build, seconds):
    with Program(build, "--poll") as program:
        program.await_ready()
        for _ in range(3):
            program.fall_asleep("wake")
            before = int(program.ask().split()[0])
            time.sleep(seconds)
            polls, failures = map(int, program.ask().split())
            if not program.is_deep():
                raise Failed(f"it has woken after {polls - before} polls")
            if polls == before or failures != 0:
                raise Failed(f"{polls - before} polls while it slept, {failures} failures")
            program.wake()


def check_pool(build):
    with Program(build, "--pool") as program:
        (awake,) = program.await_ready()
        program.fall_asleep("wake")
        if program.ask() != "0" or not program.is_deep():
            raise Failed("the synchronisation is not answered")
        program.wake()
        found = program.ask()
        if found != awake:
            raise Failed(f"the pool reserves {found} bytes, and {awake} after one that was made awake")


def check_capture_mode(build):
    with Program(build, "--capture-mode") as program:
        program.await_ready()
        program.fall_asleep("wake")
        if program.ask() != "0 0" or not program.is_deep():
            raise Failed("its change is not answered with what it was")
        program.wake()
        found = program.ask()
        if found != "0 2":
            raise Failed(f"afterwards the driver says {found}")


def check_contexts(build):
    with Program(build, "--contexts") as program:
        program.await_ready()
        program.fall_asleep("fail")
        answer = program.ask()
        if answer != HELD or not program.is_deep():
            raise Failed(f"its end is answered with {answer or 'nothing'}")


def check_failed_context(build):
    """As it is, once it has been noticed, and with memory to put to sleep or without, it is refused."""
    with Program(build, "--fail") as program:
        program.await_ready()
        for noticed in (False, True):
            done, _ = program.command("gpu-sleep", "--deep", "--on-touch", "wake")
            if done.returncode == 0 or program.is_deep():
                raise Failed("it sleeps deeply")
            if "failed" not in done.stderr:
                raise Failed(f"refused without the reason: {done.stderr}")
            answer = program.ask()
            if answer in ("", "0"):
                raise Failed(f"its synchronisation says {answer or 'nothing'}, noticed before: {noticed}")


def checks(build, options):
    yield from compare(build)
    for name, check in (("no other entry point is answered", check_all_others),
                        ("who polls without pause wakes nothing", lambda build: check_polling(build, options.seconds)),
                        ("pools heed a synchronisation that was answered", check_pool),
                        ("a thread's capture mode changes at once", check_capture_mode),
                        ("beside another context no end is put off", check_contexts),
                        ("a context that has failed does not go deep", check_failed_context)):
        try:
            check(build)
            yield name, "ok", ""
        except Failed as error:
            yield name, "FAILED", str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1)
    options = parser.parse_args()
    counts = {"ok": 0, "left out": 0, "FAILED": 0}
    with tempfile.TemporaryDirectory() as directory:
        os.environ.setdefault("GPU_SLEEP_SIM_STATE", f"{directory}/devices") # how the simulated driver's processes meet
        try:
            for name, how, why in checks(options.build, options):
                counts[how] += 1
                print(f"{how:8} {name}: {why}", flush=True)
        except (Failed, subprocess.TimeoutExpired) as error:
            print(f"FAILED: {error}")
            return 1
    print(", ".join(f"{count} {how}" for how, count in counts.items()))
    return int(counts["FAILED"] > 0 or counts["ok"] == 0)


if __name__ == "__main__":
    sys.exit(main())
