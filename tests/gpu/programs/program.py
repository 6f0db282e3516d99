# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What the programs share: options, pace, heartbeats and the digest. Nothing here knows of sleeping.

A program does the same work in the same steps each time that it runs, so its digest depends on nothing but --scale
and --steps. --seconds only stretches the run, by waiting after steps that were fast. --until FILE takes steps without a
rest until there is such a file; how many they were is told by the heartbeats.
"""

import argparse
import hashlib
import itertools
import os
import sys
import time


def options(description, steps, extra=()):
    """Reads --steps, --seconds, --scale and `extra`, which holds (name, default)."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--seconds", type=float, default=0, help="how long the steps take at least, together")
    parser.add_argument("--until", default="", help="a file that ends the steps, which are not counted then")
    parser.add_argument("--scale", type=float, default=1, help="of the memory that is used")
    for name, default in extra:
        parser.add_argument(name, type=type(default), default=default)
    return parser.parse_args()


def heartbeat(text):
    print(text, file=sys.stderr, flush=True)


def paced(arguments, agreed=lambda is_over: is_over):
    """The numbers of the steps, each with a heartbeat, none faster than --seconds asks for. With --until, they end once
    agreed(whether the file is there)."""
    shortest = arguments.seconds / arguments.steps
    for step in itertools.count():
        if agreed(os.path.exists(arguments.until)) if arguments.until else step == arguments.steps:
            return
        start = time.monotonic()
        heartbeat(f"step {step}")
        yield step
        time.sleep(max(0.0, shortest - (time.monotonic() - start)))


class Digest:
    """SHA-256 over all results."""

    def __init__(self):
        self.state = hashlib.sha256()

    def add(self, value):
        """Text, or a NumPy array."""
        self.state.update(value.encode() if isinstance(value, str) else value.reshape(-1).view("u1"))

    def finish(self):
        """Prints it as the last line of standard output."""
        print(self.state.hexdigest(), flush=True)
