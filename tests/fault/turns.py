# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Servers that do not all fit the simulated GPU answer requests that come at random. Meanwhile servers are killed and end by
themselves, commands are killed in the middle, and passes of gpu-reclaim meet processes that sleep, wake and exit.

Usage: turns.py BUILD [--programs 8] [--room-for 3] [--commands 160] [--by commands|requests] [--calm] [--seed 1]

The commands are requests here: each compares all of its server's bytes, and writes a part of them anew. Room for it is made by
a controller, by commands, or by the agents for the requests themselves. Ends as random_commands.py does, and with 1 if a request
waited longer than (servers - 1) * (min-awake + 1 s).
"""

import json
import pathlib
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fleet  # noqa: E402
import random_commands  # noqa: E402
from random_commands import MIB, Failure  # noqa: E402

CONTEXT = 1  # MiB, which are there also while a server sleeps
SERVER = 8  # MiB: four allocations of 2
ENDS_ONE_IN = 40  # requests
WORK, REST = 1, 5  # seconds: now and then nobody asks for so long that a pass finds all idle, whose steps are 2 s


class Server(fleet.Arriving):
    KINDS, SIZES = ["plain"], [1]

    def __init__(self, run, number, dice):
        self.run, self.process, self.last_asked, self.is_busy = run, None, 0, False
        super().__init__(run.build, run.environment, number, dice)

    def options(self):
        return ["--make-room", "--min-awake", f"{self.run.min_awake}s"] if self.run.by_requests else []

    def make_room(self):
        self.is_killed = False
        if self.run.by_requests:
            self.run.ask("gpu-run", "--need", f"{SERVER + 2 * CONTEXT}MiB", "--min-awake", "0s", "true")
        else:
            self.run.make_room(self, self.run.states())

    def may_fail(self, failure):
        return self.is_killed or super().may_fail(failure)

    def work(self):
        self.check()
        number = self.dice.choice(list(self.sums))
        self.sums[number] = self.ask(f"fill {number} {self.dice.randrange(1, 1 << 30)}")

    def kill_amid(self):
        """Whatever it does."""
        if self.process and self.process.poll() is None:
            self.is_killed = True
            self.process.kill()

    def end(self):
        try:
            super().end()
        except (Failure, OSError):
            if not self.is_killed:
                raise


class Turns(random_commands.Run):
    KILLED = 0.67

    @staticmethod
    def add_options(parser):
        parser.add_argument("--room-for", type=int, default=3, help="of the servers, at a time")
        parser.add_argument("--by", choices=["commands", "requests"], default="commands", help="who makes room")
        parser.add_argument("--min-awake", type=float, default=0.3, help="seconds, by requests")
        parser.add_argument("--pause", type=float, default=0.05, help="seconds between two requests of a thread, on average")
        parser.add_argument("--calm", action="store_true", help="nothing is killed, and nobody interferes")

    def __init__(self, options, scratch):
        self.by_requests, self.room_for, self.pause, self.is_calm = options.by == "requests", options.room_for, options.pause, options.calm
        self.min_awake = options.min_awake if self.by_requests else 0
        self.queue, self.waits, self.is_over = [], [], False
        options.threads = servers = options.programs
        options.programs = 0
        super().__init__(options, scratch)
        # There is half a server's room besides, for what kernels take for a moment.
        self.environment["GPU_SLEEP_SIM_MEMORY"] = str((servers * CONTEXT + self.room_for * SERVER + SERVER // 2) * MIB)
        self.add_programs(servers)
        self.begin = time.monotonic()
        others = [] if self.is_calm else [(self.interfere, 0.15), (self.reclaim, 0.2), (self.kill_one, 1)]
        self.others = [threading.Thread(target=self.repeat, args=(act, mean)) for act, mean in others]
        for other in self.others:
            other.start()
        if not self.by_requests:
            threading.Thread(target=self.control, daemon=True).start()

    def new_program(self, number, dice):
        return Server(self, number, dice)

    def repeat(self, act, mean):
        dice = random.Random(f"{self.seed} {act.__name__}")
        try:
            while not self.is_over and not self.failures:
                time.sleep(2 * mean * dice.random())
                act(dice)
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            self.failures.append(str(failure))

    def one(self, dice):
        if not self.is_calm and (into := (time.monotonic() - self.begin) % (WORK + REST)) > WORK:
            time.sleep(WORK + REST - into)
        time.sleep(2 * self.pause * dice.random())
        # There are as many threads as servers.
        server = next(each for each in dice.sample(self.programs, len(self.programs)) if each.lock.acquire(blocking=False))
        try:
            self.request(server)
            if not self.is_calm and dice.randrange(ENDS_ONE_IN) == 0:
                server.end()
                server.start()
                self.counts["servers ended"] += 1
        finally:
            server.lock.release()

    def request(self, server):
        """Until it is answered: a server that is killed meanwhile starts again."""
        while True:
            begin = server.last_asked = time.monotonic()
            server.is_busy = True
            self.queue.append(server)
            try:
                server.work()
                return self.waits.append(time.monotonic() - begin)
            except (Failure, OSError):
                if not server.is_killed:
                    raise
            finally:
                self.queue.remove(server)
                server.is_busy = False
            server.start()

    def control(self):
        """Makes room by commands for the server whose request has waited longest."""
        while not self.failures:
            time.sleep(0.005)
            for server in self.queue[:1]:
                states = self.states()
                if states.get(server.process.pid) != "awake":
                    self.make_room(server, states)
                    self.ask("gpu-wake", server.process.pid, "--quiet")  # it may meet others on its way: it is tried again

    def states(self):
        return {each["pid"]: each.get("state") for each in json.loads(self.ask("gpu-ps", "--json").stdout)["processes"]}

    def make_room(self, server, states):
        """Puts those to sleep that were asked longest ago, until there is room for the server."""
        awake = [each for each in self.programs if each is not server and states.get(each.process.pid) not in (None, "asleep")]
        left = len(awake)
        for each in sorted(awake, key=lambda each: (each.is_busy, each.last_asked)):
            if left < self.room_for or each.is_busy:
                break
            if self.ask("gpu-sleep", each.process.pid, "--quiet").returncode == 0:
                self.counts["sleeps for room"] += 1
                left -= 1

    def choice(self, dice, target):
        files = ["--store", "file", "--dir", self.scratch / "files"]
        return dice.choice([["gpu-sleep", target], ["gpu-sleep", target, *files], ["gpu-sleep", target, "--store", "host"], ["gpu-wake", target]])

    def interfere(self, dice):
        self.command(dice, dice.choice(self.programs))

    def reclaim(self, _):
        passed = self.ask("gpu-reclaim", "--idle", "10ms", "--json")
        self.counts["sleeps by passes"] += passed.stdout.count('"changed": true')

    def kill_one(self, dice):
        dice.choice(self.programs).kill_amid()
        self.counts["servers killed"] += 1

    def finish(self):
        """Every server has all its bytes in the end."""
        self.is_over = True
        for other in self.others:
            other.join()
        for server in self.programs:
            if not self.failures:
                self.request(server)
                server.end()
        if self.failures:
            return
        most = (len(self.programs) - 1) * (self.min_awake + 1)
        waits = sorted(self.waits)
        print(f"{len(waits)} requests to {len(self.programs)} servers, room for {self.room_for}: median wait {waits[len(waits) // 2]:.3f} s, "
              f"longest {waits[-1]:.3f} s of at most {most:.1f} s")
        if waits[-1] > most:
            self.failures.append("a request waited too long")


if __name__ == "__main__":
    random_commands.main(Turns, commands=160, programs=8)
