# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The Python package inside of a program with an agent; python_package_test.py runs it with each way to have one."""

import asyncio
import contextlib
import ctypes
import io
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import threading
import time
import unittest
import unittest.mock

import torch_stand_in
from torch_stand_in import BYTES, Tensor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "agent/python"))
import gpu_sleep  # noqa: E402

SECONDS = 20  # that nothing takes


def tagged(tag, device=0):
    """The tag as gpu-ps shows it; None where there is none."""
    return next((each for each in gpu_sleep.status().tags if (each.tag, each.device) == (tag, device)), None)


def in_thread(work):
    """Runs it on a thread of its own; raises what it raises."""
    failures = []

    def run():
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for failure in failures:
        raise failure


def in_worker(region):
    """In a process that multiprocessing has spawned, of what its parent has entered."""
    assert Tensor().pool is None
    with region:
        Tensor()
    assert tagged("spawned").allocated_bytes == BYTES
    try:
        region.__exit__()
    except gpu_sleep.InvalidArgument:
        return
    sys.exit("no exception")


class Case(unittest.TestCase):
    def setUp(self):
        self.tensors = []
        self.addCleanup(lambda: [tensor.free() for tensor in self.tensors])
        self.addCleanup(gpu_sleep.wake)

    def tensor(self, device=None):
        self.tensors.append(Tensor(device))
        return self.tensors[-1]

    def tensors_of(self, *tags):
        for tag in tags:
            with gpu_sleep.tag(tag):
                yield self.tensor()

    def callback(self, decorator, function):
        decorator(function)
        self.addCleanup(gpu_sleep.remove_callback, function)


class Regions(Case):
    def test_innermost_tag_counts(self):
        outer = gpu_sleep.tag("outer")
        with outer:
            self.tensor()
            with gpu_sleep.tag("inner"):
                self.tensor()
                with outer:
                    self.tensor()
                self.tensor()
            with outer:
                self.tensor()
            self.tensor()
        untagged = self.tensor()
        self.assertIsNone(untagged.pool)
        self.assertEqual(tagged("outer").allocated_bytes, 4 * BYTES)
        self.assertEqual(tagged("inner").allocated_bytes, 2 * BYTES)
        self.check_pools("oioioo", self.tensors[:-1])
        self.assertFalse(torch_stand_in.in_use)

    def check_pools(self, letters, tensors):
        """A letter for the tag of each tensor: its pool, which is that of no other, is where its memory goes back."""
        for letter in set(letters):
            pools = [{tensor.pool for each, tensor in zip(letters, tensors) if (each == letter) == alike}
                     for alike in (True, False)]
            self.assertFalse(pools[0] & pools[1])

    def test_is_of_its_thread_and_takes_over_a_pool(self):
        both = threading.Barrier(2)
        region = gpu_sleep.tag("threads")

        def work():
            with region:
                both.wait()
                self.tensor()
                both.wait()

        other = threading.Thread(target=work)
        with region:
            in_thread(lambda: self.assertIsNone(self.tensor().pool))
            other.start()
            both.wait()
            self.tensor()
            both.wait()
        other.join()
        self.assertEqual(tagged("threads").allocated_bytes, 2 * BYTES)
        pools = {tensor.pool for tensor in self.tensors if tensor.pool}
        self.assertEqual(len(pools), 2)
        with region:
            self.assertIn(self.tensor().pool, pools)

    def test_covers_devices(self):
        torch_stand_in.enter(1)
        torch_stand_in.enter(0)
        with gpu_sleep.tag("outer"):
            self.tensor(0)
            self.tensor(1)
            with gpu_sleep.tag("inner", devices=[1]):
                self.tensor(0)
                self.tensor(1)
        for tag in ("outer", "inner"):
            for device in (0, 1):
                self.assertEqual(tagged(tag, device).allocated_bytes, BYTES)
        self.check_pools("ooii", self.tensors)
        self.tensors.pop().free()
        self.assertIsNone(tagged("inner", 1))

    def test_decorates(self):
        gpu_sleep.tag("decorated")(self.tensor)()
        self.assertEqual(tagged("decorated").allocated_bytes, BYTES)

    def test_leaves_nothing_when_it_is_not_entered(self):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:native,expandable_segments:True"
        try:
            with self.assertRaisesRegex(gpu_sleep.InvalidArgument, "expandable"):
                gpu_sleep.tag("expandable").__enter__()
        finally:
            del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
        with unittest.mock.patch.dict(torch_stand_in.settings, expandable_segments=True):
            with self.assertRaisesRegex(gpu_sleep.InvalidArgument, "expandable"):
                gpu_sleep.tag("expandable").__enter__()
        with self.assertRaises(gpu_sleep.InvalidArgument):
            gpu_sleep.tag("no tag").__enter__()
        with self.assertRaises(ZeroDivisionError), gpu_sleep.tag("left"):
            1 / 0
        self.assertIsNone(self.tensor().pool)
        with self.assertRaises(gpu_sleep.InvalidArgument):  # nor a tag of the agent's
            gpu_sleep._agent.call("gpu_sleep_pop_tag")

    def test_ends_where_it_began(self):
        outer, inner = gpu_sleep.tag("outer"), gpu_sleep.tag("inner")
        with outer, inner:
            for leave in (lambda: outer.__exit__(), lambda: in_thread(inner.__exit__)):
                with self.assertRaises(gpu_sleep.InvalidArgument):
                    leave()

    def test_child_of_fork_leaves_it(self):
        with gpu_sleep.tag("parent"), gpu_sleep.hold():
            self.tensor()
            child = os.fork()
            if child == 0:
                self.addCleanup(os._exit, 1)  # unless it comes to its end
        if child == 0:
            with contextlib.suppress(gpu_sleep.NoAgent):
                gpu_sleep.status()
                os._exit(2)
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        gpu_sleep.sleep(tags="parent")  # no hold is left

    def test_is_not_of_a_spawned_worker(self):
        region = gpu_sleep.tag("spawned")
        with region:
            worker = multiprocessing.get_context("spawn").Process(target=in_worker, args=(region,))
            worker.start()
        worker.join(SECONDS)
        self.assertEqual(worker.exitcode, 0)


class Sleeping(Case):
    def test_takes_tags_and_brings_them_back(self):
        weights, cache = self.tensors_of("weights", "cache")
        gpu_sleep.sleep(tags=["weights", "cache"])
        gpu_sleep.sleep(tags="cache")
        self.assertEqual(gpu_sleep.asleep_bytes(), 2 * BYTES)
        gpu_sleep.wake("weights")
        self.assertEqual(gpu_sleep.asleep_bytes(), BYTES)
        self.assertEqual(gpu_sleep.status().state, "partial")
        self.assertGreaterEqual(gpu_sleep.status().gpu_bytes, BYTES)  # a number whatever the state
        gpu_sleep.wake(wait=0.1)
        self.assertEqual([weights.bytes(), cache.bytes()], [b"\7" * BYTES] * 2)

    def test_drops_at_level_2_what_is_not_preserved(self):
        kept, part, span, gone = self.tensors_of("kept", "part", "span", "gone")
        gpu_sleep.policy("kept", "preserve")
        gpu_sleep.policy("gone", "offload", refillable=True)
        gpu_sleep.preserve(part)
        gpu_sleep.preserve((span.data_ptr() + 1, 3))
        gpu_sleep.sleep(2)
        gpu_sleep.wake()
        self.assertEqual(kept.bytes(), b"\7" * BYTES)
        self.assertEqual(part.bytes(), b"\7" * BYTES)
        self.assertEqual(span.bytes(), b"\0\7\7\7" + bytes(BYTES - 4))
        self.assertEqual(gone.bytes(), bytes(BYTES))
        self.assertTrue(tagged("gone").refillable and tagged("gone").needs_refill)
        gpu_sleep.mark_refilled("gone")
        self.assertFalse(tagged("gone").needs_refill)

    def test_pauses_at_level_0(self):
        list(self.tensors_of("paused"))
        this = gpu_sleep.Process(os.getpid())
        if not gpu_sleep.status().captures:
            for pause in (gpu_sleep.sleep, this.sleep):
                with self.assertRaisesRegex(gpu_sleep.Error, "gpu-run"):
                    pause(level=0)
            return
        for pause in (gpu_sleep.sleep, this.sleep):
            pause(level=0)
            self.assertEqual([each.state for each in gpu_sleep.processes(os.getpid())], ["paused"])
            self.assertEqual((gpu_sleep.status().gate.state, gpu_sleep.asleep_bytes()), ("shut", 0))
            gpu_sleep.wake()
            self.assertEqual(gpu_sleep.status().state, "awake")

    def test_lets_programs_derive_from_its_errors(self):
        class Labelled:
            def __init_subclass__(cls, label, **rest):
                super().__init_subclass__(**rest)
                cls.label = label

        class Own(gpu_sleep.Error, Labelled, code="unknown_tag", label="own"):
            pass

        self.assertEqual((Own.code, Own.label), ("unknown_tag", "own"))
        with self.assertRaises(gpu_sleep.UnknownTag) as caught:
            gpu_sleep.sleep(tags="nobody")
        self.assertNotIsInstance(caught.exception, Own)

    def test_says_what_is_wrong(self):
        (tensor,) = self.tensors_of("one")
        with self.assertRaisesRegex(TypeError, "name tags by tags="):
            gpu_sleep.sleep("one")
        for wrong, kind in (
            (lambda: gpu_sleep.sleep(3), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(-1), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(0, tags="one"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(0x101), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(tags="nobody"), gpu_sleep.UnknownTag),
            (lambda: gpu_sleep.sleep(tags=[]), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(tags="one,one"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(tags="one\0"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(tags=b"one"), TypeError),
            (lambda: gpu_sleep.sleep(deep=True, tags="one"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(timeout=0), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(timeout=1e12), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(timeout=-1), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.sleep(tags="\udc80"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.wake(wait=float("nan")), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.wake(timeout=0), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.tag(7), TypeError),
            (lambda: gpu_sleep.policy("one", "burn"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.preserve((id(self), 1)), gpu_sleep.NotOwned),
            (lambda: gpu_sleep.preserve((tensor.data_ptr(), 0)), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.preserve((-1, 1)), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.preserve("weights"), TypeError),
            (lambda: gpu_sleep.mark_refilled("nobody"), gpu_sleep.UnknownTag),
            (lambda: gpu_sleep.Process(1.5), TypeError),
            (lambda: gpu_sleep.Process("--help"), gpu_sleep.InvalidArgument),
            (lambda: gpu_sleep.Process(os.getpid()).sleep(options="--dry-run"), TypeError),
            (lambda: gpu_sleep.on_sleep(None), TypeError),
            (lambda: gpu_sleep.on_wake(asyncio.sleep), TypeError),
            (lambda: gpu_sleep.on_wake(type(self).tensors_of), TypeError),
        ):
            with self.assertRaises(kind) as caught:
                wrong()
            if isinstance(caught.exception, gpu_sleep.Error):
                self.assertEqual(caught.exception.code, kind.code)
                self.assertTrue(str(caught.exception))
        for wrong in (gpu_sleep.sleep, gpu_sleep.wake):
            with self.assertRaisesRegex(TypeError, "a time limit must be a number of seconds, not str"):
                wrong(timeout="5s")
        self.assertEqual(gpu_sleep.asleep_bytes(), 0)

    def test_wakes_once_there_is_room(self):
        (tensor,) = self.tensors_of("sleeper")
        gpu_sleep.sleep(tags="sleeper")
        others = []
        with gpu_sleep.tag("others"), self.assertRaises(MemoryError):
            while True:
                others.append(Tensor())
        began = time.monotonic()
        with self.assertRaisesRegex(gpu_sleep.OutOfDeviceMemory, r"; what PyTorch's .* torch\.cuda\.empty_cache\(\)"):
            gpu_sleep.wake(wait=1.2)
        self.assertGreaterEqual(time.monotonic() - began, 1.2)
        interrupt = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        interrupt.start()
        with self.assertRaises(KeyboardInterrupt):
            gpu_sleep.wake(wait=SECONDS)
        self.assertLess(time.monotonic() - began, SECONDS)
        self.assertEqual(gpu_sleep.asleep_bytes(), BYTES)
        for other in others:
            other.free()
        gpu_sleep.wake()
        self.assertEqual(tensor.bytes(), b"\7" * BYTES)

    def test_waits_for_a_hold(self):
        list(self.tensors_of("held"))
        hold = gpu_sleep.hold()
        with hold:
            with hold:
                pass
            with self.assertRaises(gpu_sleep.TimedOut):
                gpu_sleep.sleep(timeout=0.2)
        gpu_sleep.sleep(timeout=10)

    def test_refuses_others_while_inhibited(self):
        list(self.tensors_of("inhibited"))
        this = gpu_sleep.Process(os.getpid())
        with gpu_sleep.inhibit():
            self.assertTrue(gpu_sleep.status().inhibited)
            with self.assertRaises(gpu_sleep.Inhibited):
                this.sleep()
            gpu_sleep.sleep()
        self.assertEqual(this.wake()[0].state, "awake")

    def test_comes_from_two_threads(self):
        tensors = list(self.tensors_of("first", "second"))

        def work(tag):
            for _ in range(10):
                gpu_sleep.sleep(tags=tag)
                gpu_sleep.wake(tag)

        other = threading.Thread(target=work, args=("first",))
        other.start()
        work("second")
        other.join()
        self.assertEqual([tensor.bytes() for tensor in tensors], [b"\7" * BYTES] * 2)


class Callbacks(Case):
    def test_are_told_and_refill(self):
        kept, dropped = self.tensors_of("kept", "dropped")
        gpu_sleep.policy("dropped", "discard", refillable=True)
        told = []

        def refill(event):
            told.append(event)
            dropped.fill_(5)
            gpu_sleep.mark_refilled("dropped")

        self.callback(gpu_sleep.on_sleep, told.append)
        self.callback(gpu_sleep.on_wake, refill)
        gpu_sleep.sleep(tags=["kept", "dropped"])
        gpu_sleep.wake()
        self.assertEqual(told, [gpu_sleep.Event(1, ("dropped", "kept"), ("dropped",), False),
                                gpu_sleep.Event(0, ("dropped", "kept"), ("dropped",), False)])
        self.assertEqual([kept.bytes(), dropped.bytes()], [b"\7" * BYTES, b"\5" * BYTES])
        self.assertFalse(tagged("dropped").needs_refill)

    def test_refuse(self):
        list(self.tensors_of("one"))
        told = []

        def refuse(event):
            told.append("asked")
            raise reason

        self.callback(gpu_sleep.on_wake, told.append)
        for called_off in ([], [gpu_sleep.Event(0, (), (), False)]):
            for reason in (ValueError("not now"), SystemExit("not now")):
                told.clear()
                gpu_sleep.on_sleep(refuse)
                with self.assertLogs("gpu_sleep"), self.assertRaisesRegex(gpu_sleep.Refused, "not now") as caught:
                    gpu_sleep.sleep()
                gpu_sleep.remove_callback(refuse)
                self.assertIs(caught.exception.__cause__, reason)
                self.assertIn(f"refused: {type(reason).__name__}: not now", str(caught.exception))
                self.assertEqual(told, ["asked", *called_off])
                self.assertEqual(gpu_sleep.asleep_bytes(), 0)
            self.callback(gpu_sleep.on_sleep, lambda event: None)  # one that ran is told

    def test_may_not_sleep(self):
        list(self.tensors_of("one"))
        self.callback(gpu_sleep.on_sleep, lambda event: gpu_sleep.sleep())
        with self.assertLogs("gpu_sleep"), self.assertRaises(gpu_sleep.Refused) as caught:
            gpu_sleep.sleep()
        self.assertIsInstance(caught.exception.__cause__, gpu_sleep.Refused)

    def test_that_fail_after_a_wake_have_not_refilled(self):
        list(self.tensors_of("dropped"))

        def fail(event):
            gpu_sleep.mark_refilled("dropped")
            raise ValueError("no file")

        self.callback(gpu_sleep.on_wake, fail)
        gpu_sleep.sleep(2)
        with self.assertLogs("gpu_sleep"):
            (woken,) = gpu_sleep.Process(os.getpid()).wake()
        self.assertIn("failed: ValueError: no file", "\n".join(woken.notes))
        self.assertTrue(tagged("dropped").needs_refill)

    def test_have_threads_that_work_for_them(self):
        (dropped,) = self.tensors_of("dropped")

        def refill():
            with gpu_sleep.enlist():
                dropped.fill_(5)

        self.callback(gpu_sleep.on_wake, lambda event: in_thread(refill))
        gpu_sleep.sleep(2)
        gpu_sleep.wake(timeout=SECONDS)
        self.assertEqual(dropped.bytes(), b"\5" * BYTES)
        self.assertFalse(any("callback" in note for note in gpu_sleep.status().notes))
        with self.assertRaises(gpu_sleep.InvalidArgument):
            refill()

    def test_have_the_time_of_the_wake(self):
        list(self.tensors_of("dropped"))
        finish, ended = threading.Event(), threading.Event()

        def take_long(event):
            finish.wait(SECONDS)
            gpu_sleep.mark_refilled("dropped")
            ended.set()

        self.callback(gpu_sleep.on_wake, take_long)
        gpu_sleep.sleep(2)
        with self.assertLogs("gpu_sleep"):
            gpu_sleep.wake(timeout=3)
        self.assertFalse(ended.is_set())
        self.assertTrue(tagged("dropped").needs_refill)
        finish.set()
        self.assertTrue(ended.wait(SECONDS))


class Graphs(Case):
    def captured(self, *arguments, **more):
        """A graph, and the pool of what is allocated in its capture."""
        graph = torch_stand_in.CUDAGraph()
        with gpu_sleep.cuda_graph(graph, *arguments, **more):
            return graph, self.tensor().pool

    def test_have_a_pool_of_their_own_and_the_tag_of_the_region(self):
        with gpu_sleep.tag("outer"), gpu_sleep.tag("graphs"):
            before = self.tensor()
            graph, pool = self.captured()
            other, others = self.captured()
            after = self.tensor()
        self.assertEqual(before.pool, after.pool)
        self.assertEqual(len({before.pool, pool, others}), 3)
        self.assertEqual(tagged("graphs").allocated_bytes, 4 * BYTES)
        self.assertFalse(torch_stand_in.in_use)
        self.assertEqual(self.captured(tag="graphs", pool=graph.pool())[1], pool)

    def test_leave_their_pool_to_later_ones(self):
        graph, pool = self.captured(tag="passing")
        sharing, _ = self.captured(tag="passing", pool=graph.pool())
        del graph
        self.assertNotEqual(self.captured(tag="passing")[1], pool)
        del sharing
        with gpu_sleep.tag("passing"):
            self.assertNotEqual(self.tensor().pool, pool)
        self.assertIn(pool, [self.captured(tag="passing")[1] for _ in range(2)])
        self.assertNotEqual(self.captured(tag="another")[1], pool)

    def test_keep_a_pool_whose_others_end_as_they_take_it(self):
        graph, pool = self.captured(tag="taken")
        handle, others = graph.pool(), [graph]
        del graph
        keep_for = gpu_sleep._graphs._Pool.keep_for

        def after_the_others(its, graph):
            others.clear()
            keep_for(its, graph)

        with unittest.mock.patch.object(gpu_sleep._graphs._Pool, "keep_for", after_the_others):
            lives = self.captured(tag="taken", pool=handle)
        self.assertEqual(lives[1], pool)
        self.assertNotEqual(self.captured(tag="taken")[1], pool)

    def test_share_a_pool_by_a_handle(self):
        handle = torch_stand_in.graph_pool_handle()
        graphs, pools = zip(*(self.captured(tag="sharing", pool=handle) for _ in range(3)))
        self.assertEqual(len(set(pools)), 1)
        with self.assertRaises(gpu_sleep.InvalidArgument):
            self.captured(tag="another", pool=handle)
        self.assertNotEqual(self.captured(tag="sharing")[1], pools[0])
        del graphs
        self.assertNotIn(self.captured(tag="another", pool=handle)[1], pools)

    def test_have_a_tag_in_any_case(self):
        self.captured()
        self.assertEqual(tagged("default").allocated_bytes, BYTES)

    def test_hold_sleeps_back(self):
        with gpu_sleep.cuda_graph(torch_stand_in.CUDAGraph()), self.assertRaises(gpu_sleep.TimedOut):
            gpu_sleep.sleep(timeout=0.2)

    def test_are_of_one_tag(self):
        with gpu_sleep.cuda_graph(torch_stand_in.CUDAGraph(), tag="one"):
            with gpu_sleep.tag("one"):
                self.tensor()
            with self.assertRaisesRegex(gpu_sleep.InvalidArgument, "'one' is being captured"), gpu_sleep.tag("two"):
                pass
            with self.assertRaises(gpu_sleep.InvalidArgument):
                self.captured()
            self.tensor()
        self.assertEqual(tagged("one").allocated_bytes, 2 * BYTES)

    def test_end_as_they_began(self):
        graph, _ = self.captured(tag="one")
        ended = self.captured(tag="one")[0].pool()
        made = len(torch_stand_in.MemPool.made)
        with self.assertRaises(TypeError), gpu_sleep.cuda_graph(object()):
            pass
        self.assertEqual(len(torch_stand_in.MemPool.made), made)
        for wrong in (dict(tag="two", pool=graph.pool()), dict(tag="one", pool=ended), dict(tag="no tag")):
            with self.assertRaises(gpu_sleep.InvalidArgument):
                self.captured(**wrong)
        with self.assertRaises(ZeroDivisionError), gpu_sleep.tag("left"):
            with gpu_sleep.cuda_graph(torch_stand_in.CUDAGraph()):
                1 / 0
        self.assertFalse(torch_stand_in.in_use)
        with self.assertRaises(gpu_sleep.InvalidArgument):  # no tag of the agent's is left
            gpu_sleep._agent.call("gpu_sleep_pop_tag")
        gpu_sleep.sleep()  # nor a hold


class Shell:
    """IPython's, as far as magics go."""

    def __init__(self):
        self.magics = {}

    def register_magic_function(self, function, magic_kind="line", magic_name=None):
        self.magics[magic_name] = function

    def run(self, name, line=""):
        """What the magic prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            self.magics[name](line)
        return printed.getvalue()


class Description(unittest.TestCase):
    def test_names_all_functions(self):
        named = re.findall(r"\w+", gpu_sleep.__doc__)
        self.assertEqual([name for name in gpu_sleep.__all__ if name.islower() and name not in named], [])


class Notebook(Case):
    def test_shows_sleeps_and_wakes(self):
        list(self.tensors_of("weights", "cache"))
        shell = Shell()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            gpu_sleep.load_ipython_extension(shell)
        self.assertIn("cache on device 0: awake, 4 MiB of 4 MiB on the GPU, 0 MiB kept", printed.getvalue())
        self.assertIn("cache on device 0: asleep, 0 MiB of 4 MiB on the GPU, 0 MiB kept", shell.run("gpu_sleep", "2 cache"))
        self.assertIn("cache on device 0: awake, needs refill", shell.run("gpu_wake"))
        self.assertIn("dropped, which reads as zero after the wake: cache\n", shell.run("gpu_sleep", "2 cache"))
        self.assertIn("weights on device 0: asleep, 0 MiB of 4 MiB on the GPU, 4 MiB kept", shell.run("gpu_sleep"))
        self.assertIn("partial", shell.run("gpu_wake", "weights"))
        self.assertEqual(shell.run("gpu_wake"), shell.run("gpu_state"))
        self.assertEqual(gpu_sleep.asleep_bytes(), 0)
        with self.assertRaises(gpu_sleep.UnknownTag) as caught:
            shell.run("gpu_sleep", "nobody")
        self.assertEqual(caught.exception._render_traceback_(), [f"UnknownTag: {caught.exception}"])

    def test_says_what_it_cannot_move(self):
        (weights,) = self.tensors_of("weights")
        self.assertNotIn("cannot sleep", gpu_sleep._notebook.state())
        gpu_sleep.sleep()
        self.assertNotIn("cannot sleep", gpu_sleep._notebook.state())
        gpu_sleep.wake()
        gpu_sleep._agent.call("gpu_sleep_keep_on_gpu", ctypes.c_void_p(weights.data_ptr()))
        self.assertIn(("pinned", BYTES), [(each.kind, each.bytes) for each in gpu_sleep.status().residual])
        self.assertNotIn("cannot sleep", gpu_sleep._notebook.state())
        self.tensor()
        if gpu_sleep.status().captures:
            self.assertNotIn("cannot sleep", gpu_sleep._notebook.state())
        else:
            self.assertIn(f"{BYTES:,} bytes (4 MiB) of this kernel cannot sleep", gpu_sleep._notebook.state())


torch_stand_in.install()
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs in its background without one
    unittest.main()
