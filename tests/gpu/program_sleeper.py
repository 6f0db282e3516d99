# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Putting a running program to sleep and waking it, or moving its memory, again and again, by the commands."""

import collections
import json
import os
import random
import subprocess
import sys
import threading
import time

import gpu_commands

ASLEEP_SECONDS = (0.05, 0.3)
BETWEEN_SECONDS = (0.05, 0.5)
OK, NO_PROCESS, TIMED_OUT = 0, 3, 4 # exit statuses of the commands
MOVES = 0.75 # of what is done with a program, with --live
PROGRAM_BYTES = 8 << 30 # room on each GPU for a program that runs beside others
FILLING = threading.Lock()
NEVER = ("damaged", "driver_failed", "context_lost", "internal", "outcome_unknown") # errors of a move


def median(values):
    return sorted(values)[len(values) // 2] if values else 0.0


class Sleeper:
    """The commands, for all processes that have the name."""

    def __init__(self, options, name, program):
        self.options, self.name, self.program = options, name, program
        self.random = random.Random(options.seed)
        self.sleeps, self.wakes, self.slept, self.problems, self.late, self.cycles = [], [], 0, [], 0, 0
        self.ranges = 0
        self.residual = {}
        self.refusal, self.deep_cycles = "", 0
        self.bytes, self.moves, self.refused = {}, 0, collections.Counter()
        self.may_be_late = program.refuses_at_times or program.refuses_deep # once it is asleep

    def command(self, name, *words):
        done, answer, seconds = gpu_commands.run(self.options.build, name, *words)
        return done.returncode, answer, seconds, done.stderr.strip()

    def pids(self):
        """Those that hold memory which could sleep."""
        _, answer, _, _ = self.command("gpu-ps", self.name, "--timeout", "2s")
        found = []
        for process in answer["processes"]:
            report = process.get("report", {})
            pid = str(process["pid"])
            self.bytes[pid] = sum(tag["bytes"] for tag in report.get("tags", []))
            if self.bytes[pid] >= self.options.least:
                found.append(pid)
            for each in report.get("residual", []):
                self.residual[each["kind"]] = max(self.residual.get(each["kind"], 0), each["bytes"])
        return found

    def ask_to_sleep(self, *words):
        """What command() returns; plainly, once it has refused to sleep deeply, unless that was for the moment."""
        words = (*words, "--timeout", self.options.timeout, *self.program.sleep_options)
        if self.options.deep and (not self.refusal or self.program.refuses_at_times):
            done = self.command("gpu-sleep", *words, "--deep")
            late = self.may_be_late and "asleep, but not deeply" in done[3]
            if not late and "cannot sleep deeply" not in done[3]:
                return done
            self.refusal = done[3]
        return self.command("gpu-sleep", *words)

    def stay_asleep(self, reports):
        seconds = self.random.uniform(*self.program.asleep)
        if not any(report.get("deep") for report in reports):
            time.sleep(seconds)
            return
        self.deep_cycles += 1
        if self.random.random() >= self.options.fills or not FILLING.acquire(blocking=False): # another's filler is at work
            time.sleep(seconds)
            return
        command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fill_gpu.py")]
        if self.options.jobs > 1:
            command.append(str(self.options.jobs * PROGRAM_BYTES))
        try:
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
                taken = other.stdout.readline()
                time.sleep(seconds)
                other.stdin.close()
                if other.wait() != 0 or not taken:
                    self.problems.append("the other program could not fill the GPUs")
        finally:
            FILLING.release()

    def sleep(self, pid):
        """Whether it sleeps now; the bytes that the agent gave back, in how many ranges, and the report."""
        status, answer, seconds, errors = self.ask_to_sleep(pid, "--level", "1")
        process = answer["processes"][0] if answer["processes"] else {}
        report = process.get("report", {})
        # A deep sleep that is refused late leaves it asleep.
        is_left = self.may_be_late and process.get("state") == "asleep"
        if status == OK and (report.get("changed") or is_left):
            self.sleeps.append(seconds)
            return (True, sum(device["moved_bytes"] for device in report["devices"]),
                    sum(tag["ranges"] for tag in report["tags"]), report)
        if status == TIMED_OUT:
            self.late += 1
        elif status not in (OK, NO_PROCESS) and not self.has_failed(process): # it may just have ended
            self.problems.append(f"gpu-sleep {pid} ended with {status}: {errors}")
        return False, 0, 0, report

    def has_failed(self, process):
        """Whether the program's context has, as it is meant to."""
        return self.program.fails and "CUDA_ERROR_ASSERT" in json.dumps(process)

    def wake(self, pid):
        status, _, seconds, errors = self.command("gpu-wake", pid, "--wait", "20s")
        if status == OK:
            self.wakes.append(seconds)
        elif status != NO_PROCESS: # it may have ended asleep
            self.problems.append(f"gpu-wake {pid} ended with {status}: {errors}")

    def move(self, pid):
        """Moves so much, or all, to host memory or back."""
        command, *option = self.random.choice((("gpu-sleep", "--live", "--bytes"), ("gpu-wake", "--live-bytes")))
        if self.random.random() < 0.25:
            option.pop()
        else:
            option.append(f"{self.random.randint(1, self.bytes[pid])}B")
        status, answer, _, errors = self.command(command, pid, *option, "--timeout", self.options.timeout)
        processes = answer["processes"]
        report = processes[0].get("report", {}) if processes else {}
        self.moves += report.get("changed", False)
        if status == OK:
            self.refused["written meanwhile"] += any("did not move" in note for note in report.get("notes", []))
        elif status != NO_PROCESS: # it may just have ended
            codes = [process["error"]["code"] for process in processes if process.get("error")]
            reason = codes[0] if codes else f"status {status}"
            self.refused[reason] += 1
            if reason in NEVER and not self.has_failed(*processes):
                self.problems.append(f"{command} {pid} {' '.join(option)} ended with {status}: {errors}")

    def cycle(self, pids):
        outcomes = [(pid, *self.sleep(pid)) for pid in pids]
        asleep = [pid for pid, is_asleep, *_ in outcomes if is_asleep]
        if not asleep:
            return
        self.slept = max(self.slept, sum(bytes_ for _, _, bytes_, _, _ in outcomes))
        self.ranges = max(self.ranges, sum(ranges for *_, ranges, _ in outcomes))
        self.stay_asleep([report for *_, report in outcomes])
        for pid in asleep:
            self.wake(pid)
        self.cycles += len(asleep) == len(pids)

    def cycle_together(self):
        status, answer, seconds, errors = self.ask_to_sleep(self.name, "--tree")
        if status != OK:
            self.late += status == TIMED_OUT
            if status != NO_PROCESS: # one may just have ended
                self.problems.append(f"gpu-sleep --tree ended with {status}: {errors}")
            return
        reports = [process["report"] for process in answer["processes"]]
        self.sleeps.append(seconds)
        self.slept = max(self.slept, sum(device["moved_bytes"] for each in reports for device in each["devices"]))
        self.ranges = max(self.ranges, sum(tag["ranges"] for each in reports for tag in each["tags"]))
        self.stay_asleep(reports)
        status, _, seconds, errors = self.command("gpu-wake", self.name, "--tree", "--wait", "20s")
        if status != OK:
            self.problems.append(f"gpu-wake --tree ended with {status}: {errors}")
            return
        self.wakes.append(seconds)
        self.cycles += 1

    def run(self, running, deadline):
        """Sleeps and wakes until the program ends, or has had cycles enough."""
        most = min(self.program.most or self.options.most, self.options.most)
        while not running.is_over() and self.cycles < most and time.monotonic() < deadline:
            if len(self.problems) > 3:
                return
            if self.program.quiet and not running.quiet.acquire(timeout=0.2):
                continue
            pids = self.pids()
            if len(pids) < self.program.processes and self.program.quiet or not pids:
                time.sleep(0.1)
                continue
            if self.options.live and self.random.random() < MOVES:
                for pid in pids:
                    self.move(pid)
                self.cycles += 1
            elif self.program.together:
                if len(pids) == self.program.processes and not running.is_over():
                    self.cycle_together()
            else:
                self.cycle(pids)
            time.sleep(0 if self.program.quiet else self.random.uniform(*BETWEEN_SECONDS))
