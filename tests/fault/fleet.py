# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A fleet on one machine: programs share eight simulated GPUs, of which they need more than there is. Jobs end and others
arrive; some have timers; passes of gpu-reclaim run as a timer starts them; meanwhile Slurm's calls (a prolog that makes room,
SIGTSTP, SIGCONT) and those of controllers (gpu-switch, gpu-wake --make-room) meet random commands, of which a quarter are
killed. Four programs share the mounts of a container: its agents' sockets are its own.

Usage: fleet.py BUILD [--programs 200] [--commands 1500] [--seed 1] [--threads 8]

Before that, prints what commands cost for each program, and whole, while there are 10, 50 and 200 (RESULTS.md, "A fleet on one
machine"). Ends as random_commands.py does, and with 1 if a program gets no room for a minute, or a command takes 2 s for all.
"""

import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import random_commands  # noqa: E402
from random_commands import MIB, PATIENCE, Failure  # noqa: E402

GPUS = 8
CROWD = 4  # programs of a container
SIZES = (10, 50, 200)
MOST = 2000  # milliseconds of a pass
MEASURED = {"gpu-ps": ["gpu-ps"], "gpu-ps --json": ["gpu-ps", "--json"], "gpu-ps --prometheus": ["gpu-ps", "--prometheus"],
            "gpu-reclaim, all stay": ["gpu-reclaim", "--idle", "10h"], "gpu-reclaim, sleeps too": ["gpu-reclaim", "--idle", "1ms"]}
SOCKETS = "/tmp/gpu-sleep-0"


class Arriving(random_commands.Program):
    """A program that starts once it has made room. Others may take the room before it does, which ends it."""

    def start(self):
        end = time.monotonic() + PATIENCE
        while True:
            self.make_room()
            try:
                return super().start()
            except (Failure, OSError) as failure:
                if not self.may_fail(failure) or time.monotonic() > end:
                    raise
            self.run.counts["arrived without room"] += 1
            self.process.kill()
            self.process.wait(PATIENCE)

    def may_fail(self, failure):
        return "OUT_OF_MEMORY" in str(failure)


class Job(Arriving):
    SIZES = [1, 2]

    def __init__(self, run, number, dice):
        self.run, self.gpu = run, number % GPUS
        super().__init__(run.build, {**run.environment, "TEST_GPU": str(self.gpu)}, number, dice)

    def options(self):
        return ["--on-stop", "sleep", "--stop-grace", "2s", *(["--idle", "200ms"] if self.number % CROWD == 0 else [])]

    def place(self):
        return ["nsenter", f"--mount=/proc/{self.run.containers[self.number // CROWD].pid}/ns/mnt", "--"]

    def make_room(self):
        """A prolog, as Slurm has it."""
        self.run.ask("gpu-reclaim", "--gpu", self.gpu, "--need", "24MiB", "--wait", "5s", "--config", self.run.awake)

    def read(self):
        try:
            return super().read()
        except Failure as failure:
            if "has not answered" not in str(failure):
                raise
            raise Failure(f"{failure}:\n{self.run.ask('gpu-ps', '--long').stdout}") from None

    def check(self):
        begin = time.monotonic()
        super().check()
        self.run.longest = max(self.run.longest, time.monotonic() - begin)


class Fleet(random_commands.Run):
    def __init__(self, options, scratch):
        self.containers = [self.new_container() for _ in range(-(-options.programs // CROWD))]
        self.longest = 0
        self.awake = scratch / "awake.toml"
        self.wanted, options.programs = options.programs, 0
        super().__init__(options, scratch)
        self.environment |= {"GPU_SLEEP_SIM_DEVICES": str(GPUS), "GPU_SLEEP_SIM_MEMORY": str(max(48, 8 * self.wanted // GPUS) * MIB)}
        print("| |", " | ".join(MEASURED), "|")
        for size in (*(size for size in SIZES if size < self.wanted), self.wanted):
            self.add_programs(size)
            self.measure()
        threading.Thread(target=self.reclaim, daemon=True).start()

    def new_program(self, number, dice):
        return Job(self, number, dice)

    @staticmethod
    def new_container():
        holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", f"mkdir -p {SOCKETS}; mount -t tmpfs -o mode=700 none {SOCKETS}; echo; exec cat"],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()
        return holder

    def measure(self):
        """Prints a row of RESULTS.md. Of the passes, the one that puts most to sleep takes longest; of the others the shortest counts."""
        count, cells = len(self.programs), []
        for name, words in MEASURED.items():
            times = []
            for _ in range(3):
                begin = time.monotonic()
                self.ask(*words)
                times.append(1000 * (time.monotonic() - begin))
            taken = max(times) if "1ms" in words else min(times)
            cells.append(f"{taken / count:.2f} ms ({taken:.0f} ms)")
            if min(times) > MOST:
                self.failures.append(f"{name} took {min(times):.0f} ms for {count} programs")
        print(f"| {count} programs | {' | '.join(cells)} |", flush=True)

    def choice(self, dice, target):
        words = dice.choice([super().choice(dice, target), ["gpu-switch", target, "--wait", "1s"], ["gpu-ps", "--prometheus"],
                             ["gpu-wake", target, "--make-room", "--min-awake", "0s"], ["gpu-reclaim", "--need", "16MiB", "--config", self.awake]])
        if "--deep" in words:  # agents that see each other's sockets alone keep room free for what the driver restores
            return self.choice(dice, target)
        return [*words, "--gpu", str(dice.randrange(GPUS))] if "--need" in words else words

    def one(self, dice):
        if dice.random() < 0.1:
            program = dice.choice(self.programs)
            self.meet(program, "programs suspended", lambda: program.stop(signal.SIGTSTP, dice.random()))
        super().one(dice)

    def reclaim(self):
        """A timer."""
        while True:
            self.ask("gpu-reclaim", "--idle", "100ms")
            time.sleep(0.5)

    def finish(self):
        for program in self.programs:
            if not self.failures:
                program.check()
                program.end()
        print(f"the longest wait for memory and a check: {self.longest:.1f} s")


if __name__ == "__main__":
    random_commands.main(Fleet, "nsenter", commands=1500, programs=200, threads=8)
