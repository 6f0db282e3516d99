#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A thread that is cancelled in a call of the driver, or jumps out of it, fares under gpu-run as it does without.

Each case runs the program interrupted_calls twice: without gpu-run, where nothing sleeps, and under it, where the call is held,
or a sleep is under way. What the program says must be the same. A real driver does not always survive that a thread leaves a
wait within it: a later call ends the program, now and then. So a case is left out if the program has ended without gpu-run,
too, or under it by the driver's own message; then it has to have said the same before. A call that is held has not reached the driver, and is never left out.

Usage: interrupted_calls.py --build DIR [--case TEXT]... [--patience SECONDS]. Exit status: 0 when no case failed.
"""

import argparse
import concurrent.futures
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

import gpu_commands

MOMENT = 0.3
FUTEX_ABORT = "The futex facility returned an unexpected error code"
TRIES = 6 # to see how the driver itself fares: it may go either way


class Failed(Exception):
    pass


class Program:
    """interrupted_calls, and what it has said."""

    patience = 0 # seconds

    def __init__(self, build, prefix, way, place):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*prefix, build / "bin" / "interrupted_calls", way, place], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.said, self.lines = [], queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.await_line("start")

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def await_line(self, asked):
        try:
            line = self.lines.get(timeout=self.patience)
        except queue.Empty:
            line = "hangs"
        if line is None:
            line = f"ended by {self.process.wait()}"
        self.said.append(f"{asked}: {line}")
        if line == "hangs" or line.startswith("ended by"):
            raise EOFError

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        self.await_line(line)

    def end(self):
        self.process.stdin.close()
        try:
            self.said.append(f"ended by {self.process.wait(self.patience)}")
        except subprocess.TimeoutExpired:
            self.said.append("hangs at its end")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def is_lost_by_driver(self):
        """Driver 580 may abort, with or without gpu-run, once a thread has left one of its waits."""
        self.errors.seek(0)
        return self.process.returncode == -signal.SIGABRT and FUTEX_ABORT in self.errors.read()


class Stage:
    """Programs of a case, and commands for them, which do nothing where the programs run without gpu-run."""

    def __init__(self, build, way, place, count, group):
        self.build, self.group = build, group
        prefix = [build / "bin" / "gpu-run", "--group", group, "--"] if group else []
        self.programs = [Program(build, prefix, way, place) for _ in range(count)]

    def words(self, verb, *words):
        return [self.build / "bin" / verb, *(["--group", self.group] if len(self.programs) > 1 else
                                             [str(self.programs[0].process.pid)]), *words]

    def is_lost(self):
        """Whether one has ended, or is about to: a process that dumps its core does not answer any more."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            if any(program.process.poll() is not None for program in self.programs):
                return True
            time.sleep(0.05)
        return False

    def command(self, verb, *words, status=0):
        if self.group:
            done = subprocess.run(self.words(verb, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=60, check=False)
            if done.returncode != status:
                if self.is_lost():
                    raise EOFError
                raise Failed(f"{verb} {' '.join(words)} ended with {done.returncode}: {done.stdout}")

    def start(self, verb, *words):
        """What waits for its end, and whether it has come to an end already."""
        if not self.group:
            return lambda: None, lambda: False
        child = subprocess.Popen(self.words(verb, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        def finish():
            output, _ = child.communicate(timeout=60)
            if child.returncode != 0:
                if self.is_lost():
                    raise EOFError
                raise Failed(f"{verb} {' '.join(words)} ended with {child.returncode}: {output}")
        return finish, lambda: child.poll() is not None

    def await_report(self, wanted):
        """Waits until what the first program's agent reports is as wanted."""
        deadline = time.monotonic() + Program.patience
        while self.group:
            _, answer, _ = gpu_commands.run(self.build, "gpu-ps", str(self.programs[0].process.pid))
            if any(wanted(process.get("report", {})) for process in answer["processes"]):
                return
            if time.monotonic() > deadline:
                raise Failed(f"its call is not held: {answer}")

    def check_through_a_cycle(self):
        for program in self.programs:
            program.ask("check")
        self.command("gpu-sleep")
        self.command("gpu-wake")
        for program in self.programs:
            program.ask("check")


def is_held(report):
    return report.get("gate", {}).get("waiting_threads", 0) > 0


def interrupt_in_driver(program):
    program.ask("go")
    time.sleep(MOMENT)
    program.ask("interrupt")
    program.ask("join")
    program.ask("release")


def while_it_waits(stage):
    """In the driver."""
    interrupt_in_driver(*stage.programs)
    stage.check_through_a_cycle()


def while_it_is_held(stage, *how):
    """At the gate."""
    program, = stage.programs
    stage.command("gpu-sleep", *how)
    program.ask("go")
    stage.await_report(is_held)
    time.sleep(MOMENT)
    program.ask("interrupt")
    time.sleep(MOMENT)
    stage.command("gpu-wake")
    program.ask("join")
    stage.check_through_a_cycle()


def while_it_is_held_deep(stage):
    while_it_is_held(stage, "--deep")


def amid_a_capture(stage):
    """Which it leaves open: no sleep comes between, and another thread ends it."""
    program, = stage.programs
    interrupt_in_driver(program)
    stage.command("gpu-sleep", "--timeout", "500ms", status=4)
    program.ask("end capture")
    stage.check_through_a_cycle()


def amid_a_joint_sleep(stage):
    """Which waits for this program's own work."""
    first, second = stage.programs
    first.ask("go")
    finish, is_over = stage.start("gpu-sleep")
    time.sleep(MOMENT)
    if is_over():
        raise Failed("the sleep did not wait for the program's work")
    first.ask("interrupt")
    first.ask("join")
    first.ask("release")
    finish()
    stage.command("gpu-wake")
    stage.check_through_a_cycle()


def held_amid_a_joint_sleep(stage):
    """Which waits for the other program's work: calls are held, and let through one at a time."""
    first, second = stage.programs
    second.ask("busy")
    finish, is_over = stage.start("gpu-sleep")
    time.sleep(MOMENT)
    first.ask("go")
    time.sleep(MOMENT)
    first.ask("interrupt")
    if is_over():
        raise Failed("the sleep did not wait for the other program's work")
    second.ask("release")
    finish()
    stage.command("gpu-wake")
    first.ask("join")
    stage.check_through_a_cycle()


CASES = [(f"{way} in {place}, {name}", way, place, count, play)
         for way in ("cancel", "jump")
         for place, name, count, play in (
             ("stream", "while it waits", 1, while_it_waits),
             ("event", "while it waits", 1, while_it_waits),
             ("copy", "while it is held", 1, while_it_is_held),
             ("copy", "while it is held deep", 1, while_it_is_held_deep),
             ("relaxed-capture", "amid a capture", 1, amid_a_capture),
             ("own-capture", "amid a capture", 1, amid_a_capture),
             ("stream", "amid a joint sleep", 2, amid_a_joint_sleep),
             ("copy", "held amid a joint sleep", 2, held_amid_a_joint_sleep))]


def perform(build, way, place, count, play, group):
    """What the programs have said, whether all have ended rightly, and whether the driver has ended one."""
    stage = Stage(build, way, place, count, group)
    try:
        play(stage)
        for program in stage.programs:
            program.end()
    except EOFError:
        pass # it is in what the program has said
    finally:
        for program in stage.programs:
            program.kill()
    said = [program.said for program in stage.programs]
    return (said, all(lines[-1] == "ended by 0" for lines in said),
            any(program.is_lost_by_driver() for program in stage.programs))


def agree(one, other, survive):
    """Of programs that do not survive only what they have said before is compared."""
    return all(a == b if survive else all(x == y for x, y in zip(a[:-1], b[:-1])) for a, b in zip(one, other))


def try_case(build, number):
    """How it went, and why."""
    _, *case = CASES[number]
    may_be_lost = case[1] != "copy"
    try:
        found, survives, is_of_driver = perform(build, *case, f"interrupted-{os.getpid()}-{number}")
        for _ in range(TRIES):
            expected, may_survive, _ = perform(build, *case, "")
            if survives == may_survive or not may_be_lost:
                break
    except Failed as error:
        return "FAILED", str(error)
    told = f"without gpu-run: {expected}; under it: {found}"
    if not agree(found, expected, survives and may_survive):
        return "FAILED", told
    if survives and may_survive:
        return "ok", ""
    may_be_lost &= is_of_driver or not may_survive
    return ("left out" if may_be_lost else "FAILED"), told


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--case", action="append", default=[], help="only cases whose name has this in it")
    parser.add_argument("--patience", type=float, default=30, help="for an answer; the stream is busy for at most 10 s")
    options = parser.parse_args()
    Program.patience = options.patience
    chosen = [number for number, (name, *_) in enumerate(CASES)
              if not options.case or any(text in name for text in options.case)]
    counts = {"ok": 0, "left out": 0, "FAILED": 0}
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(4) as pool:
        os.environ.setdefault("GPU_SLEEP_SIM_STATE", f"{directory}/devices") # how the simulated driver's processes meet
        for number, (how, why) in zip(chosen, pool.map(lambda number: try_case(options.build, number), chosen)):
            counts[how] += 1
            print(f"{how:8} {CASES[number][0]}{': ' if why else ''}{why}", flush=True)
    print(", ".join(f"{count} {how}" for how, count in counts.items()))
    return int(counts["FAILED"] > 0 or counts["ok"] == 0)


if __name__ == "__main__":
    sys.exit(main())
