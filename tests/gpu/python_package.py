#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The Python package with PyTorch itself, under gpu-run and with an agent that the package loads.

Usage: python_package.py --build DIR. Exit status: 0 when all is as it must be.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import threading
import unittest

TREE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE / "agent/python"))
import gpu_sleep  # noqa: E402
import gpu_sleep.vllm  # noqa: E402

MIB = 1 << 20
SPARE = 16 * MIB  # what the driver may take meanwhile


class Case(unittest.TestCase):
    def tag(self, name):
        return next((each for each in gpu_sleep.status().tags if each.tag == name), None)

    def setUp(self):
        import torch

        self.torch = torch
        self.addCleanup(gpu_sleep.wake)

    def tensor(self, value, mib=64):
        return self.torch.full((mib * MIB // 4,), value, dtype=self.torch.int32, device="cuda")


class Regions(Case):
    def test_memory_sleeps_by_tag(self):
        with gpu_sleep.tag("weights"):
            weights = self.tensor(1)
            with gpu_sleep.tag("cache"):
                cache = self.tensor(2)
        other = self.tensor(3)
        self.torch.cuda.synchronize()
        free = self.torch.cuda.mem_get_info()[0]
        gpu_sleep.sleep(tags=["weights", "cache"])
        self.assertGreaterEqual(self.torch.cuda.mem_get_info()[0] - free, 128 * MIB - SPARE)
        self.assertGreaterEqual(self.tag("weights").kept_bytes, 64 * MIB)
        gpu_sleep.wake(["weights"])
        gpu_sleep.wake()
        for tensor, value in ((weights, 1), (cache, 2), (other, 3)):
            self.assertTrue(bool((tensor == value).all()))

    def test_freed_memory_goes_back(self):
        region = gpu_sleep.tag("again")
        with region:
            first = self.tensor(1)
        address = first.data_ptr()
        del first
        outside = self.tensor(2)
        self.assertNotEqual(outside.data_ptr(), address)
        with region:
            self.assertEqual(self.tensor(3).data_ptr(), address)

    def test_threads(self):
        tensors = {}

        def work(name):
            with gpu_sleep.tag(name):
                tensors[name] = self.tensor(len(tensors))

        threads = [threading.Thread(target=work, args=(name,)) for name in ("left", "right", "left")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertGreaterEqual(self.tag("left").allocated_bytes, 64 * MIB)
        self.assertGreaterEqual(self.tag("right").allocated_bytes, 64 * MIB)

    def test_trains_with_its_weights_in_a_region(self):
        torch = self.torch
        torch.manual_seed(1)
        with gpu_sleep.tag("model"):
            model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        inputs = torch.randn(64, 1024, device="cuda")
        before = [each.clone() for each in model.parameters()]
        for _ in range(3):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            trained = [each.detach().clone() for each in model.parameters()]
            gpu_sleep.sleep(tags=["model"])
            gpu_sleep.wake()
            self.assertTrue(all(map(torch.equal, trained, model.parameters())))
        self.assertFalse(any(map(torch.equal, before, trained)))

    def test_callbacks(self):
        heard = []
        allowed = [False]

        @gpu_sleep.on_sleep
        def asleep(event):
            heard.append("sleep")
            if not allowed[0]:
                raise ValueError("not now")

        @gpu_sleep.on_wake
        def awake(event):
            heard.append("wake")
            held.fill_(5)
            self.torch.cuda.synchronize()

        self.addCleanup(gpu_sleep.remove_callback, asleep)
        self.addCleanup(gpu_sleep.remove_callback, awake)
        with gpu_sleep.tag("callbacks"):
            held = self.tensor(4)
        with self.assertRaises(gpu_sleep.Refused):
            gpu_sleep.sleep(tags=["callbacks"])
        self.assertTrue(bool((held == 4).all()))
        allowed[0] = True
        gpu_sleep.sleep(2, tags=["callbacks"])
        gpu_sleep.wake()
        self.assertTrue(bool((held == 5).all()))
        self.assertEqual(heard, ["sleep", "sleep", "wake"])

    def test_trainer_of_the_examples(self):
        """Its optimizer sleeps while it generates, and goes on from the same state."""
        done = subprocess.run([sys.executable, str(TREE / "cli/examples/trainer.py")], stdout=subprocess.PIPE, text=True, timeout=600,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)
        losses = [float(loss) for loss in re.findall(r"^turn \d: loss (\S+); \d+ MiB", done.stdout, re.MULTILINE)]
        self.assertEqual(len(losses), 3)
        self.assertLess(losses[2], losses[0])

    def test_example_of_the_guide(self):
        """With a model of 8 billion parameters."""
        torch, batch, context = self.torch, 8, 2048
        sys.path.insert(0, os.path.join(TREE, "tests/gpu/programs"))
        import llama_plain

        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.bfloat16)
        page = (TREE / "cli/guides/pytorch.md").read_text(encoding="utf-8")
        example = re.search(r"^```python$\n(.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1)
        names = {"gpu_sleep": gpu_sleep, "build_model": lambda: llama_plain.build_model(32, context),
                 "build_cache": lambda: llama_plain.build_cache(names["model"], batch)}

        @torch.no_grad()
        def generate():
            if "generator" not in names:
                names["generator"] = llama_plain.Generator(names["model"], names["cache"], batch)
                names["generator"].capture()
            tokens.append(names["generator"].generate(16, 1).tolist())
            names["free"] = torch.cuda.mem_get_info()[0]

        def train():
            caches = [each for layer in names["cache"].layers for each in (layer.keys, layer.values)]
            tagged = [*names["model"].parameters(), *caches]
            held = sum(each.numel() * each.element_size() for each in tagged)
            self.assertGreater(torch.cuda.mem_get_info()[0] - names["free"], 0.99 * held)
            self.assertEqual(self.tag("kv_cache").kept_bytes, 0)
            self.assertTrue(bool((self.tensor(1) == 1).all()))

        tokens = []
        self.addCleanup(names.clear)
        names.update(generate=generate, train=train)
        exec(compile(example, "the example of the guide", "exec"), names)
        self.assertEqual(tokens[0], tokens[1])
        self.assertFalse(self.tag("kv_cache").needs_refill)


class Graphs(Case):
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
            source = self.tensor(1)
            graph, result = self.capture(source)
            others = [self.tensor(9) for _ in range(4)]
        self.check(graph, source, result, 3)
        self.assertTrue(all(bool((other == 9).all()) for other in others))
        self.assertGreaterEqual(self.tag("graphs").allocated_bytes, 7 * 64 * MIB)
        self.torch.cuda.synchronize()
        free = self.torch.cuda.mem_get_info()[0]
        gpu_sleep.sleep(tags="graphs")
        self.assertGreaterEqual(self.torch.cuda.mem_get_info()[0] - free, 7 * 64 * MIB - SPARE)
        gpu_sleep.wake()
        self.assertTrue(bool((result == 7).all()))
        self.check(graph, source, result, 5)
        self.assertTrue(all(bool((other == 9).all()) for other in others))

    def test_pool_is_shared_and_left_to_later_ones(self):
        source = self.tensor(1)
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


class Vllm(Case):
    """The allocator that stands in for vLLM's own, in which the engine's tags are entered again and again."""

    def setUp(self):
        super().setUp()
        self.allocator = gpu_sleep.vllm.Allocator.get_instance()

    def mapped(self, tag):
        return sum(each.bytes for each in self.allocator.status() if each.tag == tag and each.state == "awake")

    def test_freed_memory_of_an_entry_goes_back(self):
        free = self.torch.cuda.mem_get_info()[0]
        with self.allocator.use_memory_pool("workspace"):
            small = self.tensor(1)
        with self.allocator.use_memory_pool("workspace"):
            large = self.tensor(2, 128)
        del small
        with self.allocator.use_memory_pool("workspace"):
            pass
        self.assertEqual(self.mapped("workspace"), 128 * MIB)
        self.assertLess(free - self.torch.cuda.mem_get_info()[0], 128 * MIB + SPARE)
        self.allocator.sleep(offload_tags="workspace")
        self.allocator.wake_up()
        self.assertTrue(bool((large == 2).all()))
        del large
        with self.allocator.use_memory_pool("workspace"):
            pass
        self.assertEqual(self.mapped("workspace"), 0)

    def test_a_wake_by_tags_wakes_the_engines_own(self):
        tensors = {}
        for tag in ("runtime", None, "kv_cache"):
            with self.allocator.use_memory_pool(tag):
                tensors[tag or self.allocator.default_tag] = self.tensor(3)
        self.allocator.sleep(offload_tags=tuple(tensors))
        self.allocator.wake_up(tags=["weights"])
        self.assertEqual([self.mapped(tag) for tag in tensors], [64 * MIB, 64 * MIB, 0])
        self.allocator.wake_up(tags=["kv_cache"])
        self.assertTrue(all(bool((tensor == 3).all()) for tensor in tensors.values()))

    def test_graphs_are_captured_into_its_pool(self):
        torch = self.torch
        source = self.tensor(1)
        graphs = []
        for _ in range(2):
            graph = torch.cuda.CUDAGraph()
            with self.allocator.use_cudagraph_pool((0, 99)) as pool:
                with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream()):
                    constant = torch.empty_like(source)  # which no replay writes, so that its contents have to be kept
                    graphs.append((graph, source * 2 + constant, constant))
            constant.fill_(5)
        self.assertGreater(self.mapped("cudagraph"), 0)
        self.allocator.sleep(offload_tags="cudagraph")
        self.assertEqual(self.mapped("cudagraph"), 0)
        self.allocator.wake_up(tags=["kv_cache"])
        for graph, result, _ in graphs:
            graph.replay()
            self.assertTrue(bool((result == 7).all()))
        before = self.mapped("cudagraph")
        del graph, result, constant, graphs[:]
        self.allocator.release_cudagraph_pool((0, 99))
        self.assertLess(self.mapped("cudagraph"), before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        return unittest.main(argv=[sys.argv[0], "-v"])
    build = os.path.abspath(options.build)
    command = [sys.executable, os.path.abspath(__file__), "--inside"]
    gpu_run = [os.path.join(build, "bin", "gpu-run"), "--"]
    loads = dict(os.environ, GPU_SLEEP_AGENT=os.path.join(build, "lib", "libgpu-sleep-agent.so.0"),
                 PATH=os.path.join(build, "bin") + ":" + os.environ["PATH"])
    results = []
    for way, words, environment in (("under gpu-run", gpu_run + command, None), ("loaded by the package", command, loads)):
        print(f"== {way}", flush=True)
        results.append(subprocess.run(words, env=environment, check=False).returncode)
    return int(any(results))


if __name__ == "__main__":
    sys.exit(main())
