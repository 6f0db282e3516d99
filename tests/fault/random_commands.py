# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Random commands meet programs on the simulated driver. A quarter of the commands are killed; programs are killed and
stopped; one directory for files has too little room. After each command its program answers as soon as it may, and
every so often each compares all its bytes with a checksum from its start.

Usage: random_commands.py BUILD [--commands 8000] [--seed 1] [--programs 4] [--threads 4]

Ends with 1 if bytes differ, a command or a program hangs, a command ends by a signal that nobody sent or with an unknown
status, or work was lost; with 77 where namespaces cannot be made. Runs in a pid namespace and with a /tmp of its own.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "tests/support"))
import own_machine  # noqa: E402

PATIENCE = 60  # seconds in which everything ends on a machine that is busy
STATUSES = {0, 1, 3, 4, 7, 8, 9}
MIB = 1 << 20


class Failure(Exception):
    pass


class Program:
    """One program, with everything it holds, and the lock of the thread that talks to it."""

    KINDS = ["plain", "async", "pool", "vmm2", "segments", "alias"]  # of its four allocations
    SIZES = [1, 2, 6]  # of one, in 2 MiB

    def __init__(self, build, environment, number, dice):
        self.build, self.environment, self.number, self.dice = build, environment, number, dice
        self.lock = threading.Lock()
        self.start()

    def start(self):
        self.is_ready = False
        words = [self.build / "bin/gpu-run", "--name", f"random{self.number}", "--on-touch", "wake", *self.options(), "--",
                 self.build / "bin/intercepted_program_linked"]
        self.process = subprocess.Popen([*self.place(), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        stderr=subprocess.DEVNULL, env=self.environment)
        self.read()
        self.is_ready = True
        self.sums = {}
        for kind in self.dice.choices(self.KINDS, k=4):
            number = self.ask(f"alloc {kind} {self.dice.choice(self.SIZES) * 2 * MIB}").split()[0]
            self.sums[number] = self.ask(f"fill {number} {self.dice.randrange(1, 1 << 30)}")

    def options(self):
        return []

    def place(self):
        """Words before the command that start it elsewhere."""
        return []

    def read(self):
        result = []
        reader = threading.Thread(target=lambda: result.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(PATIENCE)
        if not result:
            raise Failure(f"program {self.process.pid} has not answered for {PATIENCE} s")
        if not result[0]:
            raise Failure(f"program {self.process.pid} has ended with {self.process.wait(PATIENCE)}")
        return result[0].strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.read()
        if not answer.startswith("ok"):
            raise Failure(f"program {self.process.pid} answers '{answer}' to '{line}'")
        return answer[3:]

    def check(self):
        """Each byte, which wakes it, and that it never used memory that was not there."""
        for number, expected in self.sums.items():
            found = self.ask(f"hash {number}")
            if found != expected:
                raise Failure(f"program {self.process.pid}: memory {number} has {found}, not {expected}")
        if self.ask("faults") != "0 0":
            raise Failure(f"program {self.process.pid} has used memory that was not there")

    def kill(self):
        self.is_ready = False
        self.process.kill()
        self.process.wait(PATIENCE)
        self.start()

    def stop(self, number, seconds):
        self.process.send_signal(number)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def end(self):
        self.process.stdin.close()
        if self.process.wait(PATIENCE) != 0:
            raise Failure(f"program {self.process.pid} has ended with {self.process.returncode}")


class Run:
    KILLED = 0.25  # of the commands

    @staticmethod
    def add_options(parser):
        """Those that other runs have besides."""

    def __init__(self, options, scratch):
        self.build, self.seed = options.build, options.seed
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(options.build / "simulated"),
                            "GPU_SLEEP_SIM_STATE": str(scratch / "devices"), "GPU_SLEEP_SIM_DEVICES": "1",
                            "GPU_SLEEP_SIM_MEMORY": str(1 << 30), "GPU_SLEEP_SIM_CONTEXT_BYTES": str(MIB)}
        self.scratch = scratch
        (scratch / "awake.toml").write_text('[reclaim]\nmin-awake = "0s"\n', encoding="utf-8")
        self.left = options.commands
        self.counts = collections.Counter()
        self.failures = []
        self.lock = threading.Lock()
        self.programs = []
        self.add_programs(options.programs)

    def add_programs(self, count):
        for number in range(len(self.programs), count):
            self.programs.append(self.new_program(number, random.Random(f"{self.seed} program {number}")))

    def new_program(self, number, dice):
        return Program(self.build, self.environment, number, dice)

    def ask(self, *words):
        """What a command says that nobody kills."""
        done = subprocess.run([self.build / "bin" / words[0], *map(str, words[1:])], env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=PATIENCE, check=False)
        if done.returncode not in STATUSES:
            self.failures.append(f"'{words}' has ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done

    def choice(self, dice, target):
        """A command, weighted by how much there is to go wrong."""
        files = ["--store", "file", "--dir", self.scratch / dice.choice(["files", "files", "small"])]
        sleep = ["gpu-sleep", target]
        return dice.choice([
            sleep, sleep + files, sleep + ["--store", "host"], sleep + ["--deep"], sleep + ["--deep"] + files,
            sleep + ["--level", "0"], sleep + ["--dry-run"], sleep + ["--tags", "default"], sleep + ["--live"],
            sleep + ["--tree", "--deep"], sleep + ["--timeout", "50ms"], ["gpu-wake", target], ["gpu-wake", target],
            ["gpu-wake", target, "--tags", "default"], ["gpu-wake", target, "--timeout", "20ms"],
            ["gpu-ps", "--json"], ["gpu-ps", target, "--json"], ["gpu-reclaim", "--idle", "10ms"],
            ["gpu-reclaim", "--need", "64MiB", "--config", self.scratch / "awake.toml"], ["gpu-snapshot", "ls", self.scratch / "files"],
            ["gpu-doctor", target], ["gpu-wake", "--all"]])

    def command(self, dice, program):
        words = self.choice(dice, str(program.process.pid))
        may_lack_agent = not program.is_ready  # then a wake of tags is a wrong argument
        started = subprocess.Popen([self.build / "bin" / words[0], *words[1:]], env=self.environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        name = " ".join(str(word) for word in words)
        if dice.random() < self.KILLED:
            time.sleep(dice.choice([0.005, 0.02, 0.1]) * dice.random())
            started.send_signal(dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM]))
            self.counts["killed"] += 1
            accepted = None
        else:
            accepted = STATUSES | ({2} if may_lack_agent else set())
        try:
            _, errors = started.communicate(timeout=2 * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"'{name}' has not ended for {2 * PATIENCE} s") from None
        if accepted and started.returncode not in accepted:
            raise Failure(f"'{name}' has ended with {started.returncode}: {errors}")
        self.counts[f"{words[0]} {started.returncode}"] += 1

    def one(self, dice):
        program = dice.choice(self.programs)
        luck = dice.random()
        if luck < 0.01:  # the others' commands lose their target
            self.meet(program, "programs killed", program.kill)
        elif luck < 0.02:
            self.meet(program, "programs stopped", lambda: program.stop(signal.SIGSTOP, dice.random()))
        self.command(dice, program)
        if dice.random() < 0.3:
            self.meet(program, "checked", program.check)

    def meet(self, program, what, act):
        """Does it unless another thread talks to the program."""
        if program.lock.acquire(blocking=False):
            try:
                act()
                self.counts[what] += 1
            finally:
                program.lock.release()

    def work(self, seed):
        dice = random.Random(seed)
        try:
            while not self.failures:
                with self.lock:
                    if self.left == 0:
                        return
                    self.left -= 1
                self.one(dice)
        except (Failure, OSError) as failure:
            self.failures.append(str(failure))

    def finish(self):
        for program in self.programs:
            if not self.failures:
                program.check()
                listed = json.loads(self.ask("gpu-ps", program.process.pid, "--json").stdout)["processes"][0]
                if listed["state"] != "awake":
                    raise Failure(f"program {program.process.pid} is {listed['state']} after its work")
                program.end()
        left = [path.name for path in (self.scratch / "files").glob("*")] if not self.failures else []
        if left:
            self.ask("gpu-snapshot", "clean", self.scratch / "files")


def go(kind, options):
    scratch = pathlib.Path("/tmp")
    (scratch / "files").mkdir(mode=0o700)
    (scratch / "small").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m,mode=700", "none", scratch / "small"], check=True)
    run = kind(options, scratch)
    start = time.monotonic()
    threads = [threading.Thread(target=run.work, args=(f"{options.seed} thread {i}",)) for i in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        run.finish()
    except (Failure, OSError, subprocess.SubprocessError) as failure:
        run.failures.append(str(failure))
    print(f"{options.commands - run.left} commands in {time.monotonic() - start:.0f} s:",
          ", ".join(f"{name} {count}" for name, count in sorted(run.counts.items())))
    for failure in run.failures:
        print("FAILED:", failure)
    sys.exit(1 if run.failures else 0)


def main(kind, *tools, commands=8000, programs=4, threads=4):
    """Runs a `kind` apart from all other processes, where it may mount a small disk."""
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    kind.add_options(parser)
    for name, default in (("commands", commands), ("seed", 1), ("programs", programs), ("threads", threads)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    options.build = options.build.resolve()
    own_machine.enter(*tools, kept=(TREE, options.build))
    go(kind, options)


if __name__ == "__main__":
    main(Run)
