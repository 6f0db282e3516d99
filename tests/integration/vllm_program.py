# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu_sleep.vllm inside of a program with an agent; vllm_test.py runs it.

Usage: vllm_program.py VERSION [SOURCES]: of vLLM, and a folder with its own sources
"""

import os
import pathlib
import subprocess
import sys
import threading
import types
import unittest
import unittest.mock

import torch_stand_in
import vllm_stand_in
from torch_stand_in import BYTES, Tensor
from vllm_stand_in import config

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "agent/python"))
import gpu_sleep  # noqa: E402

VERSION, SOURCES = sys.argv[1], (sys.argv[2:] or [None])[0]
DIFFERENCES = vllm_stand_in.install(VERSION, SOURCES)
FULL, ZERO = {7}, {0}  # what a tensor may hold

# Takes all that is free of the GPU, or gives it back.
NEIGHBOUR = """
import sys, torch_stand_in
torch_stand_in.enter(0)
held = []
for line in sys.stdin:
    while line == "take\\n":
        try:
            held.append(torch_stand_in.Tensor())
        except AssertionError:
            break
    if line == "give\\n":
        while held:
            held.pop().free()
    print(len(held), flush=True)
"""


class Neighbour:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"})
        self.tell("give")

    def tell(self, what):
        """How many tensors it holds then."""
        print(what, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def end(self):
        self.process.communicate()


class Case(unittest.TestCase):
    def setUp(self):
        self.allocator = gpu_sleep.vllm.Allocator.get_instance()
        self.worker = self.new_worker(gpu_sleep.vllm.Worker)
        self.worker.load_model()
        self.worker.initialize_from_config(2)
        self.runner = self.worker.model_runner
        self.backend = vllm_stand_in.its_backend(self.worker)
        self.addCleanup(lambda: [tensor.free() for tensor in self.runner.tensors()])
        self.addCleanup(gpu_sleep.wake)

    def new_worker(self, kind, config=config()):
        return kind(config, local_rank=0, rank=0, distributed_init_method="")

    def neighbour(self):
        neighbour = Neighbour()
        self.addCleanup(neighbour.end)
        return neighbour

    def from_outside(self):
        return gpu_sleep.Process(os.getpid())

    def states(self):
        return {each.tag: each.state for each in self.backend.status()}

    def check_contents(self, weights=FULL, buffer=FULL, cache=FULL):
        model = self.runner.model
        self.assertEqual([tensor.values() for tensor in [*model.weights, model.buffer, *self.runner.cache]],
                         [weights, weights, buffer, cache, cache])

    def wakes_with(self, **contents):
        self.worker.wake_up()
        self.check_contents(**contents)

    def cycle(self, **contents):
        self.worker.sleep()
        self.wakes_with(**contents)


class Sleeping(Case):
    def try_refused_sleep(self):
        def refuse(event):
            raise ValueError("not now")

        gpu_sleep.on_sleep(refuse)
        with self.assertLogs("gpu_sleep"), self.assertRaisesRegex(RuntimeError, "not now"):
            self.worker.sleep(level=2)
        gpu_sleep.remove_callback(refuse)

    def test_level_1_keeps_weights(self):
        self.worker.sleep()
        self.assertEqual(self.states(), {"weights": "asleep", "kv_cache": "asleep"})
        self.wakes_with(cache=ZERO)
        self.assertFalse(any(each.needs_refill for each in self.backend.status()))

    def test_level_2_keeps_buffers(self):
        self.runner.model.buffer.fill_(9)
        self.worker.sleep(level=2)
        self.worker.wake_up(tags=["weights"])
        self.assertEqual(self.states(), {"weights": "awake", "kv_cache": "asleep"})
        self.worker.reload_weights()
        self.worker.wake_up(tags=["kv_cache"])
        self.check_contents(buffer={9}, cache=ZERO)
        self.assertFalse(any(each.needs_refill for each in self.backend.status()))

    def test_weights_are_filled_by_others(self):
        """As in each step of verl, and of NeMo-RL at level 1: new weights go into the model between two wakes."""
        for level, value in ((2, 8), (1, 9), (2, 10)):
            self.worker.sleep(level=level)
            self.worker.wake_up(tags=["weights"])
            for tensor in self.runner.model.weights:
                tensor.fill_(value)
            self.worker.wake_up(tags=["kv_cache"])
            self.check_contents(weights={value}, cache=ZERO)

    def test_level_0_is_no_sleep(self):
        self.worker.sleep(level=0)
        self.assertEqual(gpu_sleep.asleep_bytes(), 0)
        with self.assertRaises(gpu_sleep.InvalidArgument):
            self.backend.suspend(3)

    def test_is_suspended_until_all_is_awake(self):
        self.assertEqual(self.backend.state(), "RUNNING")
        self.worker.sleep()
        for tag in ("weights", "kv_cache"):
            self.assertEqual(self.backend.state(), "SUSPENDED")
            gpu_sleep.on_wake(seen := lambda event: states.append(self.backend.state()))
            states = []
            self.worker.wake_up([tag])
            gpu_sleep.remove_callback(seen)
            self.assertEqual(states, ["RESUMING"])
        self.assertEqual(self.backend.state(), "RUNNING")
        gpu_sleep.sleep(tags="weights")  # by whomever
        self.assertEqual(self.backend.state(), "SUSPENDED")

    def test_memory_is_free_at_once(self):
        before, _ = vllm_stand_in.memory_info()
        self.worker.sleep()
        self.assertGreaterEqual(vllm_stand_in.memory_info()[0], before + 5 * BYTES)

    def test_neighbour_takes_what_was_freed(self):
        neighbour = self.neighbour()
        stock = sys.modules["vllm.v1.worker.gpu_worker"].Worker
        plain = self.new_worker(stock)
        plain.model_runner, plain._sleep_mode_backend = self.runner, self.backend
        before, _ = vllm_stand_in.memory_info()
        for worker in (plain, self.worker):
            vllm_stand_in.at_synchronize[:] = [lambda: None, lambda: self.assertGreater(neighbour.tell("take"), 0)]
            if worker is plain:
                with self.assertRaises(AssertionError):
                    worker.sleep()
            else:
                worker.sleep()
            self.assertLess(vllm_stand_in.memory_info()[0], before)
            self.assertEqual(vllm_stand_in.at_synchronize, [])
            self.assertEqual(self.backend.state(), "SUSPENDED")
            neighbour.tell("give")
            worker.wake_up()
        self.check_contents(cache=ZERO)

    def test_wake_without_room_can_be_tried_again(self):
        neighbour = self.neighbour()
        self.worker.sleep()
        self.assertGreater(neighbour.tell("take"), 0)
        for tags in (None, ["weights"]):
            with self.assertRaises(RuntimeError) as caught:
                self.worker.wake_up(tags)
            self.assertEqual(caught.exception.code, "out_of_device_memory")
            self.assertEqual((self.backend.state(), gpu_sleep.asleep_bytes()), ("SUSPENDED", 5 * BYTES))
        neighbour.tell("give")
        self.wakes_with(cache=ZERO)

    def test_refused_sleep_has_changed_nothing(self):
        self.try_refused_sleep()
        self.assertEqual((self.backend.state(), gpu_sleep.asleep_bytes()), ("RUNNING", 0))
        self.check_contents()
        self.runner.model.buffer.fill_(9)
        self.cycle(buffer={9}, cache=ZERO)

    def test_policies_are_of_one_sleep(self):
        inhibited = []
        gpu_sleep.on_sleep(look := lambda event: inhibited.append(gpu_sleep.status().inhibited))
        self.worker.sleep()
        gpu_sleep.remove_callback(look)
        self.assertEqual(inhibited, [True])
        self.worker.wake_up()
        self.runner.cache[0].fill_(7)
        self.assertEqual({each.policy for each in self.backend.status()}, {"offload"})
        self.from_outside().sleep(options=["--force"])
        self.backend.resume()
        self.assertEqual(self.runner.cache[0].values(), FULL)

    def test_discards_and_leaves_what_sleeps(self):
        self.backend.discard(("kv_cache", "nobody"))
        self.assertEqual(self.states(), {"weights": "awake", "kv_cache": "asleep"})
        self.worker.sleep()
        self.backend.discard(("weights",))
        self.wakes_with(cache=ZERO)
        self.worker.sleep()
        self.worker.wake_up(["weights"])
        self.backend.discard(("weights",))
        self.wakes_with(weights=ZERO, cache=ZERO)
        self.worker.reload_weights()
        self.worker.sleep()
        gpu_sleep.wake()  # by whomever
        self.backend.discard(("weights",))
        self.wakes_with(weights=ZERO, cache=ZERO)

    def test_the_engines_own_tags_wake_with_any(self):
        own = {}
        for tag in ("workspace", "runtime", "mine"):
            with self.allocator.use_memory_pool(tag):
                own[tag] = Tensor()
            self.addCleanup(own[tag].free)
        awake = dict.fromkeys(own, "awake")
        for level in (1, 2):
            self.worker.sleep(level)
            self.backend.resume([])
            self.assertEqual(set(self.states().values()), {"asleep"})
            self.worker.wake_up(["weights"])
            self.assertEqual(self.states(), {"weights": "awake", "kv_cache": "asleep", **awake})
            self.assertEqual([each.values() for each in own.values()], [ZERO, FULL, FULL])  # scratch memory is dropped
            own["workspace"].fill_(7)
            self.worker.wake_up()
            self.assertFalse(any(each.needs_refill for each in self.backend.status() if each.tag in own))

    def test_the_allocator_wakes_them_as_well(self):
        for tag in ("workspace", None):
            with self.allocator.use_memory_pool(tag):
                own = Tensor()
            self.addCleanup(own.free)
        self.allocator.sleep(offload_tags=())
        self.allocator.wake_up([])
        self.assertEqual(set(self.states().values()), {"asleep"})
        self.allocator.wake_up(tags=["kv_cache"])
        self.assertEqual(self.states(), {"weights": "asleep", "kv_cache": "awake", "workspace": "awake", "vllm": "awake"})

    def test_keeps_after_others_woke_and_slept(self):
        self.worker.sleep(level=2)
        self.from_outside().wake(tags=["weights"])
        self.worker.reload_weights()
        self.cycle(cache=ZERO)
        self.worker.sleep(level=2)
        self.from_outside().wake()
        self.worker.reload_weights()
        self.from_outside().sleep(options=["--force"])
        self.cycle(cache=ZERO)

    def test_keeps_what_sleeps_already(self):
        self.worker.sleep()
        self.worker.sleep(level=2)
        self.wakes_with(cache=ZERO)
        for tensor in self.runner.cache:
            tensor.fill_(7)
        self.from_outside().sleep(options=["--force"])
        self.worker.sleep(level=2)
        self.wakes_with()

    def test_buffers_are_those_of_the_last_sleep(self):
        buffer = self.runner.model.buffer
        with self.allocator.use_memory_pool("weights"):
            draft = vllm_stand_in.Model()
        for tensor in (*draft.weights, draft.buffer):
            self.addCleanup(tensor.free)
        self.worker.get_draft_model = lambda: draft
        self.worker.sleep(level=2)
        self.from_outside().wake()
        self.assertEqual((draft.weights[0].values(), draft.buffer.values()), (ZERO, FULL))
        self.worker.reload_weights()
        buffer.fill_(9)
        self.wakes_with(buffer={9}, cache=ZERO)
        self.cycle(buffer={9}, cache=ZERO)

    def test_refused_sleep_saves_no_buffers(self):
        self.backend.discard(("kv_cache",))
        self.try_refused_sleep()
        self.runner.model.buffer.fill_(9)
        self.wakes_with(buffer={9}, cache=ZERO)

    def test_buffers_outlive_a_level_2_from_outside(self):
        self.from_outside().sleep(level=2, options=["--force"])
        self.wakes_with(weights=ZERO, cache=ZERO)

    def test_caches_of_pytorch_make_room(self):
        cached, calls = [], []

        def empty_cache():
            calls.append(len(cached))
            while cached:
                cached.pop().free()

        with unittest.mock.patch.object(sys.modules["torch"].cuda, "empty_cache", empty_cache):
            self.worker.sleep()
            self.worker.wake_up(["weights"])
            with self.assertRaises(AssertionError):
                while True:
                    cached.append(Tensor())
            self.worker.wake_up(["kv_cache"])
            self.worker.sleep()
            self.worker.wake_up(["weights"])
            calls.clear()
            self.worker.sleep()
            self.assertEqual(calls, [0])
            self.from_outside().sleep(options=["--force"])
            self.worker.sleep()
            self.assertEqual(calls, [0] if gpu_sleep.status().captures else [0, 0])  # a shut gate could hold it
            self.worker.wake_up()
            with gpu_sleep.tag("others"):
                others = Tensor()
            self.addCleanup(others.free)
            gpu_sleep.sleep(tags="others")
            calls.clear()
            self.worker.sleep()
            self.assertEqual(calls, [])  # what it gives back could be what sleeps
        self.wakes_with(cache=ZERO)

    def test_threads_measure_one_after_another(self):
        own = sys.modules[gpu_sleep.vllm.Worker.__module__]._others_left_out
        accelerator = sys.modules["torch"].accelerator
        measure, entered, leave = accelerator.get_memory_info, threading.Event(), threading.Event()

        def other():
            torch_stand_in.enter(0)
            with own():
                entered.set()
                leave.wait()

        thread = threading.Thread(target=other)
        with own():
            thread.start()
            self.assertFalse(entered.wait(0.5))
        leave.set()
        thread.join()
        self.assertIs(accelerator.get_memory_info, measure)

    def test_needs_its_worker(self):
        tags, self.allocator._tags = self.allocator._tags, {}
        with self.assertRaisesRegex(RuntimeError, "--worker-cls"):
            self.backend.suspend()
        self.allocator._tags = tags


class Allocating(Case):
    def test_pools_nest_and_are_entered_again(self):
        before = self.allocator.get_current_usage()
        self.assertEqual(before, 5 * BYTES)
        with self.allocator.use_memory_pool():
            with self.allocator.use_memory_pool("weights"), self.allocator.use_memory_pool():
                self.assertEqual(self.allocator.current_tag, self.allocator.default_tag)
            self.assertEqual(self.allocator.current_tag, self.allocator.default_tag)
            tensor = Tensor()
        untagged = Tensor()
        for each in (tensor, untagged):
            self.addCleanup(each.free)
        self.assertEqual(self.allocator.get_current_usage(), before + BYTES)
        self.allocator.sleep()
        self.assertEqual(untagged.values(), FULL)
        self.allocator.wake_up([self.allocator.default_tag])
        self.assertEqual((tensor.values(), gpu_sleep.asleep_bytes()), (FULL, 5 * BYTES))
        self.allocator.wake_up(["nobody"])
        self.allocator.wake_up([])
        self.assertEqual(gpu_sleep.asleep_bytes(), 5 * BYTES)
        self.allocator.wake_up()
        self.check_contents(weights=ZERO, cache=ZERO)

    def test_reentered_tags_give_back_what_was_freed(self):
        """As vLLM's workspace does, which grows while its old memory is in use."""
        before = self.allocator.get_current_usage()
        with unittest.mock.patch.object(torch_stand_in.MemPool, "caches", True):
            for frees_early in (True, False):
                with self.allocator.use_memory_pool("workspace"):
                    first = Tensor()
                    if frees_early:
                        first.free()
                with self.allocator.use_memory_pool("workspace"):
                    second = Tensor()
                if not frees_early:
                    self.assertEqual(self.allocator.get_current_usage(), before + 2 * BYTES)
                    first.free()
                with self.allocator.use_memory_pool("workspace"):
                    pass
                self.assertEqual(self.allocator.get_current_usage(), before + BYTES)
                self.assertEqual(second.values(), FULL)
                self.allocator.sleep(offload_tags=("workspace", "weights", "kv_cache"))
                self.allocator.wake_up()
                self.assertEqual(second.values(), FULL)
                second.free()
                with self.allocator.use_memory_pool("workspace"):
                    self.worker.sleep()  # what sleeps could have PyTorch wait
                self.worker.wake_up()
                with self.allocator.use_memory_pool("workspace"):
                    pass
                self.assertEqual(self.allocator.get_current_usage(), before)
                for tensor in self.runner.cache:
                    tensor.fill_(7)

    def test_graphs_have_a_tag_that_is_kept(self):
        made = []
        for _ in range(2):
            with self.allocator.use_cudagraph_pool((0, 99)) as pool:
                self.assertEqual(self.allocator.current_tag, self.allocator.cudagraph_tag)
                with torch_stand_in.graph(torch_stand_in.CUDAGraph(), pool=pool):
                    made.append(Tensor())
        self.assertEqual(made[0].pool.id, made[1].pool.id)
        with self.allocator.cudagraph_pool() as other, torch_stand_in.graph(torch_stand_in.CUDAGraph(), pool=other):
            made.append(Tensor())
        self.assertNotEqual(made[2].pool.id, pool)
        with self.allocator.use_memory_pool("weights"), self.allocator.use_cudagraph_pool((0, 99)):
            self.assertEqual(self.allocator.current_tag, "cudagraph")
        for level in (1, 2):
            self.worker.sleep(level)
            self.assertEqual(self.states()["cudagraph"], "asleep")
            self.worker.wake_up(["kv_cache"])
            self.assertEqual([tensor.values() for tensor in made], [FULL] * 3)
            self.worker.wake_up()
        used = self.allocator.get_current_usage()
        with unittest.mock.patch.object(torch_stand_in.MemPool, "caches", True):
            while made:
                made.pop().free()
            for released in ((0, 99), None):
                self.allocator.release_cudagraph_pool(released)
        self.assertEqual(self.allocator.get_current_usage(), used - 3 * BYTES)

    def test_a_tag_needs_no_memory(self):
        with self.allocator.use_memory_pool("empty"):
            pass
        self.allocator.wake_up(["empty"])
        self.worker.sleep()
        self.worker.wake_up()

    def test_goes_with_expandable_segments(self):
        given = "expandable_segments:True,max_split_size_mb:64"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = given
        self.addCleanup(os.environ.pop, "PYTORCH_CUDA_ALLOC_CONF")
        vllm_stand_in.configured.clear()
        with self.allocator.use_memory_pool("weights"), self.allocator.use_memory_pool("kv_cache"):
            pass
        self.assertEqual(vllm_stand_in.configured, ["expandable_segments:False,max_split_size_mb:64", given])
        self.assertEqual(os.environ["PYTORCH_CUDA_ALLOC_CONF"], given)

    def test_last_thread_restores_expandable_segments(self):
        given = "expandable_segments:True"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = given
        self.addCleanup(os.environ.pop, "PYTORCH_CUDA_ALLOC_CONF")
        entered, leave = threading.Event(), threading.Event()

        def other():
            torch_stand_in.enter(0)
            with self.allocator.use_memory_pool("weights"):
                entered.set()
                leave.wait()

        thread = threading.Thread(target=other)
        thread.start()
        entered.wait()
        with self.allocator.use_memory_pool("kv_cache"):
            leave.set()
            thread.join()
            self.assertEqual(os.environ["PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:False")
        self.assertEqual(os.environ["PYTORCH_CUDA_ALLOC_CONF"], given)

    def test_one_engine_to_a_process(self):
        with self.assertRaisesRegex(RuntimeError, "already has an engine"):
            self.new_worker(gpu_sleep.vllm.Worker).load_model()

    def test_leaves_other_backends_alone(self):
        stock = sys.modules["vllm.v1.worker.gpu_worker"].Worker
        pools = []
        self.addCleanup(setattr, stock, "_maybe_get_memory_pool_context", stock._maybe_get_memory_pool_context)
        stock._maybe_get_memory_pool_context = lambda worker, tag: pools.append(tag)
        for other in (config("cumem"), config(enabled=False)):
            self.new_worker(gpu_sleep.vllm.Worker, other)._maybe_get_memory_pool_context("weights")
        self.assertEqual(pools, ["weights"] * 2)


class Plugin(Case):
    def test_registers_once(self):
        gpu_sleep.vllm.register()
        older = types.ModuleType("without backends")
        with unittest.mock.patch.dict(sys.modules, {"vllm.device_allocator.sleep_mode_backend": older}):
            gpu_sleep.vllm.register()
        self.assertIs(type(self.backend), gpu_sleep.vllm.Backend)
        self.assertIsInstance(self.backend, sys.modules["vllm.device_allocator.sleep_mode_backend"].SleepModeBackend)
        self.assertTrue(self.backend.is_supported())

    def test_has_the_shape(self):
        own, real = gpu_sleep.vllm.Allocator, sys.modules["vllm.device_allocator.cumem"].CuMemAllocator
        for name in ("get_instance", "use_memory_pool", "sleep", "discard", "wake_up", "get_current_usage", "release_pools"):
            self.assertEqual(vllm_stand_in.parameters(getattr(own, name)), vllm_stand_in.parameters(getattr(real, name)), name)
        for own, real in ((gpu_sleep.vllm.Backend, gpu_sleep.vllm.Backend.__base__),
                          (gpu_sleep.vllm.Worker, gpu_sleep.vllm.Worker.__base__)):
            for name in vars(own).keys() - {"__init__", "load_model", "reload_weights"}:
                if hasattr(real, name) and callable(getattr(own, name)):
                    self.assertEqual(vllm_stand_in.parameters(getattr(own, name)), vllm_stand_in.parameters(getattr(real, name)))

    @unittest.skipUnless(SOURCES, "no sources of vLLM were given")
    def test_stand_in_is_as_the_sources(self):
        self.assertEqual(DIFFERENCES, [])


gpu_sleep.vllm.register()
if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
