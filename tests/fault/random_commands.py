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

PATIENCE = 60  # seconds in which everything ends on a machine that is busy
STATUSES = {0, 1, 3, 4, 7, 8, 9}
MIB = 1 << 20


class Failure(Exception):
    pass


class Program:
    """One program, with everything it holds, and the lock of the thread that talks to it."""

    SIZES = [1, 2, 6]  # of an allocation, in 2 MiB

    def __init__(self, build, environment, number, dice):
        self.build, self.environment, self.number, self.dice = build, environment, number, dice
        self.lock = threading.Lock()
        self.is_stopped = self.is_killed = False
        self.start()

    def start(self):
        self.is_killed = self.is_ready = False
        words = [self.build / "bin/gpu-run", "--name", f"random{self.number}", "--on-touch", "wake", *self.options(), "--",
                 self.build / "bin/intercepted_program_linked"]
        self.process = subprocess.Popen([*self.place(), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                                        stderr=subprocess.DEVNULL, env=self.environment)
        self.read()
        self.is_ready = True
        self.sums = {}
        for kind in self.dice.choices(["plain", "async", "pool", "vmm2", "segments", "alias"], k=4):
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
        if not result[0] and not self.is_killed:
            raise Failure(f"program {self.process.pid} has ended with {self.process.wait(PATIENCE)}")
        return result[0].strip()

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        answer = self.read()
        if not answer.startswith("ok") and not self.is_killed:
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
        self.is_killed, self.is_ready = True, False
        self.process.kill()
        self.process.wait(PATIENCE)
        self.start()

    def end(self):
        self.process.stdin.close()
        if self.process.wait(PATIENCE) != 0:
            raise Failure(f"program {self.process.pid} has ended with {self.process.returncode}")


class Run:
    def __init__(self, options, scratch):
        self.build = options.build
        self.environment = {**os.environ, "LD_LIBRARY_PATH": str(options.build / "simulated"),
                            "GPU_SLEEP_SIM_STATE": str(scratch / "devices"), "GPU_SLEEP_SIM_DEVICES": "1",
                            "GPU_SLEEP_SIM_MEMORY": str(1 << 30), "GPU_SLEEP_SIM_CONTEXT_BYTES": str(MIB)}
        self.scratch = scratch
        (scratch / "awake.toml").write_text('[reclaim]\nmin-awake = "0s"\n', encoding="utf-8")
        self.left = options.commands
        self.counts = collections.Counter()
        self.failures = []
        self.lock = threading.Lock()
        self.programs = [self.new_program(i, random.Random(f"{options.seed} program {i}")) for i in range(options.programs)]

    def new_program(self, number, dice):
        return Program(self.build, self.environment, number, dice)

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
        if dice.random() < 0.25:
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
        if luck < 0.01 and program.lock.acquire(blocking=False):  # the others' commands lose their target
            try:
                program.kill()
                self.counts["programs killed"] += 1
            finally:
                program.lock.release()
        elif luck < 0.02 and program.lock.acquire(blocking=False):
            try:
                program.process.send_signal(signal.SIGSTOP)
                time.sleep(dice.random())
                program.process.send_signal(signal.SIGCONT)
                self.counts["programs stopped"] += 1
            finally:
                program.lock.release()
        self.command(dice, program)
        if dice.random() < 0.3 and program.lock.acquire(blocking=False):
            try:
                program.check()
                self.counts["checked"] += 1
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
                listed = json.loads(subprocess.run(
                    [self.build / "bin/gpu-ps", str(program.process.pid), "--json"], env=self.environment,
                    capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)["processes"][0]
                if listed["state"] != "awake":
                    raise Failure(f"program {program.process.pid} is {listed['state']} after its work")
                program.end()
        left = [path.name for path in (self.scratch / "files").glob("*")] if not self.failures else []
        if left:
            subprocess.run([self.build / "bin/gpu-snapshot", "clean", self.scratch / "files"], env=self.environment, check=True)


def go_apart():
    """Starts this program again, where it meets no other processes and may mount a small disk."""
    build = pathlib.Path(sys.argv[1]).resolve()
    under = build if str(build).startswith("/tmp/") else pathlib.Path("/")
    script = ('exec 9<"$0" && mount -t tmpfs none /tmp && case "$0" in /tmp/*) mkdir -p "$0" && '
              'mount --no-canonicalize --bind /proc/self/fd/9 "$0";; esac && exec 9<&- && exec "$@"')
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount",
             "sh", "-c", script, str(under)]
    if subprocess.run([*words, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("not run: there is no permission to make namespaces")
        sys.exit(1 if os.environ.get("GPU_SLEEP_REQUIRE_RIGHTS") else 77)
    os.execvp(words[0], [*words, sys.executable, "-c", pathlib.Path(__file__).read_text(), str(build), "--apart", *sys.argv[2:]])


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--commands", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--apart", action="store_true")
    options = parser.parse_args()
    if not options.apart:
        go_apart()
    go(Run, options)


if __name__ == "__main__":
    main()
