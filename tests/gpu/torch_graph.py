#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu_sleep.cuda_graph() with PyTorch itself: a graph's memory has the tag, sleeps and wakes, and is nobody else's.

Usage: torch_graph.py --build DIR. Exit status: 0 when all is as it must be.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "agent/python"))
import gpu_sleep  # noqa: E402

WORDS = 16 << 20
SPARE = 16 << 20  # what the driver may take meanwhile


class Graphs(unittest.TestCase):
    def setUp(self):
        import torch

        self.torch = torch
        self.addCleanup(gpu_sleep.wake)

    def filled(self, value):
        return self.torch.full((WORDS,), value, dtype=self.torch.int32, device="cuda")

    def capture(self, source, **more):
        """A graph that doubles `source` and adds 1, and its result."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with gpu_sleep.cuda_graph(graph, **more):
            doubled = source * 2
            result = doubled + 1
            del doubled
        return graph, result

    def check(self, graph, source, result, value):
        source.fill_(value)
        graph.replay()
        self.torch.cuda.synchronize()
        self.assertTrue(bool((result == 2 * value + 1).all()))

    def test_memory_sleeps_by_tag_and_is_nobody_elses(self):
        with gpu_sleep.tag("graphs"):
            source = self.filled(1)
            graph, result = self.capture(source)
            others = [self.filled(9) for _ in range(4)]
        self.check(graph, source, result, 3)
        self.assertTrue(all(bool((other == 9).all()) for other in others))
        tags = {tag.tag: tag for tag in gpu_sleep.status().tags}
        self.assertGreaterEqual(tags["graphs"].allocated_bytes, 7 * 4 * WORDS)
        self.torch.cuda.synchronize()
        free = self.torch.cuda.mem_get_info()[0]
        gpu_sleep.sleep(tags="graphs")
        self.assertGreaterEqual(self.torch.cuda.mem_get_info()[0] - free, 7 * 4 * WORDS - SPARE)
        gpu_sleep.wake()
        self.assertTrue(bool((result == 7).all()))
        self.check(graph, source, result, 5)
        self.assertTrue(all(bool((other == 9).all()) for other in others))

    def test_pool_is_shared_and_left_to_later_ones(self):
        source = self.filled(1)
        graph, result = self.capture(source, tag="passing")
        sharing, more = self.capture(source, tag="passing", pool=graph.pool())
        self.assertEqual(tuple(graph.pool()), tuple(sharing.pool()))
        self.check(graph, source, result, 3)
        self.check(sharing, source, more, 4)
        pool = tuple(graph.pool())
        del graph, sharing, result, more
        again, result = self.capture(source, tag="passing")
        self.assertEqual(tuple(again.pool()), pool)
        self.check(again, source, result, 6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return unittest.main(argv=[sys.argv[0], "-v"])
    build = os.path.abspath(options.build)
    command = [sys.executable, os.path.abspath(__file__), "--inside"]
    loads = dict(os.environ, GPU_SLEEP_AGENT=os.path.join(build, "lib", "libgpu-sleep-agent.so"),
                 PATH=os.path.join(build, "bin") + ":" + os.environ["PATH"])
    results = []
    for way, words, environment in (("under gpu-run", [os.path.join(build, "bin", "gpu-run"), "--", *command], None),
                                    ("loaded by the package", command, loads)):
        print(f"== {way}", flush=True)
        results.append(subprocess.run(words, env=environment, check=False).returncode)
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
