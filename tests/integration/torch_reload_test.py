# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu_sleep.torch.reload on stand-ins for PyTorch and for the package safetensors: which bytes go where, and what is
refused. tests/gpu/torch_reload.py has the real ones, and measures.

Usage: torch_reload_test.py TREE
"""

import array
import concurrent.futures
import contextlib
import json
import math
import pathlib
import random
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

TREE = pathlib.Path(sys.argv.pop())
sys.path.insert(0, str(TREE / "agent/python"))
try:
    import gpu_sleep
except ImportError as failure:
    if failure.name != "_ctypes":
        raise
    print("skipped: this Python has no ctypes")
    sys.exit(77)

SIZES = {"uint8": 1, "bfloat16": 2, "float32": 4, "int64": 8}
NAMES = {"uint8": "U8", "bfloat16": "BF16", "float32": "F32", "int64": "I64"}


class Device:
    def __init__(self, type, index):
        self.type, self.index = type, index

    def __str__(self):
        return f"{self.type}:{self.index}"

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


class Tensor:
    """A tensor of bytes in host memory, whatever its device. One with `holes` is not contiguous."""

    def __init__(self, shape, dtype="uint8", device=Device("cuda", 0), memory=None, first=0, holes=False):
        self.shape, self.dtype, self.device, self.first, self.holes = tuple(shape), dtype, device, first, holes
        self.memory = array.array("B", bytes(self.nbytes)) if memory is None else memory

    @property
    def nbytes(self):
        return self.numel() * self.element_size()

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return SIZES[self.dtype]

    def data_ptr(self):
        return self.memory.buffer_info()[0] + self.first

    def is_contiguous(self):
        return not self.holes

    def detach(self):
        return self

    def reshape(self, count):
        assert count == -1 and not self.holes
        return Tensor([self.numel()], self.dtype, self.device, self.memory, self.first)

    def view(self, dtype):
        assert len(self.shape) == 1
        return Tensor([self.nbytes // SIZES[dtype]], dtype, self.device, self.memory, self.first)

    def __getitem__(self, part):
        assert self.dtype == "uint8" and len(self.shape) == 1
        first, last, _ = part.indices(self.numel())
        return Tensor([last - first], "uint8", self.device, self.memory, self.first + first)

    def bytes(self):
        return self.memory[self.first:self.first + self.nbytes].tobytes()

    def copy_(self, source, non_blocking=False):
        assert (self.shape, self.dtype) == (source.shape, source.dtype)
        queue.append((self, source))
        if not non_blocking or self.device.type == "cpu":
            run_copies(len(queue))

    def fill_from(self, source):
        self.memory[self.first:self.first + self.nbytes] = array.array("B", source.bytes())


queue = []  # of copies: done as late as they may be, so that a source that is used again too early spoils them


def run_copies(count):
    for target, source in queue[:count]:
        target.fill_from(source)
    queue[:count] = [(target, target) for target, _ in queue[:count]]  # so that events keep their places


class Event:
    def record(self):
        self.place = len(queue)

    def synchronize(self):
        run_copies(self.place)


class Stream:
    @staticmethod
    def synchronize():
        run_copies(len(queue))


class SafetensorError(Exception):
    pass


@contextlib.contextmanager
def safe_open(path, framework):
    assert framework == "pt"
    if b"data_offsets" not in pathlib.Path(path).read_bytes()[8:]:
        raise SafetensorError("no header")
    yield


def install():
    cuda = types.SimpleNamespace(Event=Event, device=lambda device: contextlib.nullcontext(),
                                 current_stream=lambda device: Stream)
    sys.modules["torch"] = types.SimpleNamespace(
        Tensor=Tensor, cuda=cuda, no_grad=contextlib.nullcontext, **{name: name for name in SIZES},
        empty=lambda shape, dtype, device=Device("cpu", 0), pin_memory=False: Tensor(
            [shape] if isinstance(shape, int) else shape, dtype, device))
    sys.modules["safetensors"] = types.SimpleNamespace(safe_open=safe_open, SafetensorError=SafetensorError)


def contents(*tensors):
    """Random bytes for each."""
    return [random.Random(17 + i).randbytes(tensor.nbytes) for i, tensor in enumerate(tensors)]


def write(path, tensors, values):
    """A file of the tensors by name, in this order."""
    header, first = {"__metadata__": {"format": "pt"}}, 0
    for (name, tensor), value in zip(tensors.items(), values):
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [first, first + len(value)]}
        first += len(value)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(values))
    return path


class Reload(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        piece, gpu_sleep.torch._PIECE = gpu_sleep.torch._PIECE, 1000
        self.addCleanup(setattr, gpu_sleep.torch, "_PIECE", piece)

    def check(self, tensors, values):
        for (name, tensor), value in zip(tensors.items(), values):
            self.assertEqual(tensor.bytes(), value, name)

    def refuses(self, pattern, tensors, path, **more):
        with self.assertRaisesRegex(gpu_sleep.InvalidArgument, pattern):
            gpu_sleep.torch.reload(tensors, path, **more)
        self.assertFalse(any(any(tensor.bytes()) for tensor in tensors.values()))

    def test_fills_each_tensor(self):
        other = Device("cuda", 1)
        tensors = {"long": Tensor([7, 3001], "bfloat16"), "empty": Tensor([0, 3]), "number": Tensor([], "int64", other),
                   "short": Tensor([13], "float32"), "host": Tensor([1500], device=Device("cpu", 0)),
                   "holes": Tensor([40, 50], "bfloat16", holes=True), "last": Tensor([100_000], device=other)}
        values = contents(*tensors.values())
        path = write(self.directory / "model.safetensors", tensors, values)
        shuffled = dict(sorted(tensors.items()))
        module = types.SimpleNamespace(state_dict=lambda: {**shuffled, "extra": "no tensor"})
        for where in (path, str(path), self.directory, [path]):
            for tensor in tensors.values():
                tensor.copy_(Tensor(tensor.shape, tensor.dtype))
            self.assertEqual(gpu_sleep.torch.reload(module, where), sum(map(len, values)))
            self.check(tensors, values)

    def test_reads_several_files(self):
        tensors = {name: Tensor([2500]) for name in "abc"}
        values = contents(*tensors.values())
        write(self.directory / "1.safetensors", {"a": tensors["a"]}, values)
        write(self.directory / "2.safetensors", {"b": tensors["b"], "c": tensors["c"]}, values[1:])
        gpu_sleep.torch.reload(tensors, self.directory)
        self.check(tensors, values)
        write(self.directory / "3.safetensors", {"a": tensors["a"]}, values)
        with self.assertRaisesRegex(gpu_sleep.InvalidArgument, "'a' is in .*1.safetensors and in .*3.safetensors"):
            gpu_sleep.torch.reload(tensors, self.directory)
        index = self.directory / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}}))
        for where in (self.directory, index):
            gpu_sleep.torch.reload(tensors, where)
        self.check(tensors, values)

    def test_one_name_of_the_same_memory_suffices(self):
        embedding = Tensor([50, 50])
        tensors = {"embedding": embedding, "head": embedding, "view": Tensor([2500], memory=embedding.memory)}
        values = contents(embedding)
        gpu_sleep.torch.reload(tensors, write(self.directory / "x", {"head": embedding}, values))
        self.check(tensors, values * 3)

    def test_a_slow_read_does_not_hold_up_the_others(self):
        tensors = {"a": Tensor([100_000])}
        values = contents(*tensors.values())
        path = write(self.directory / "x", tensors, values)
        read, begun, is_ahead = gpu_sleep.torch._Buffer.read, [], threading.Event()

        def slow_at_first(buffer, descriptor, piece):
            begun.append(piece)
            if len(begun) > 2:
                is_ahead.set()
            if piece is begun[0]:
                self.assertTrue(is_ahead.wait(20))
            read(buffer, descriptor, piece)

        with unittest.mock.patch.object(gpu_sleep.torch._Buffer, "read", slow_at_first), \
                unittest.mock.patch("os.sched_getaffinity", lambda process: {0, 1}):
            gpu_sleep.torch.reload(tensors, path)
        self.check(tensors, values)

    def test_reads_no_more_after_a_failure(self):
        tensors = {"a": Tensor([100_000])}
        path = write(self.directory / "x", tensors, contents(*tensors.values()))
        submit, submitted, begun = concurrent.futures.ThreadPoolExecutor.submit, [], []

        def note(executor, read, descriptor, piece):
            submitted.append(piece)
            return submit(executor, read, descriptor, piece)

        def fail(buffer, descriptor, piece):
            begun.append(piece)
            time.sleep(0.2)
            raise OSError("the disk is gone")

        with unittest.mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", note), \
                unittest.mock.patch.object(gpu_sleep.torch._Buffer, "read", fail), \
                unittest.mock.patch("os.sched_getaffinity", lambda process: {0}), self.assertRaises(OSError):
            gpu_sleep.torch.reload(tensors, path)
        self.assertLess(len(begun), len(submitted))

    def test_says_what_differs(self):
        tensors = {name: Tensor([10]) for name in ("a", "b")}
        values = contents(*tensors.values())
        path = write(self.directory / "x", {"a": tensors["a"], "c": tensors["b"]}, values)
        self.refuses("the files have no b; the model has no c", tensors, path)
        gpu_sleep.torch.reload(tensors, path, strict=False)
        self.assertEqual(tensors["a"].bytes(), values[0])
        self.refuses("shape .10,. in the model, and .5, 2.", {"a": Tensor([10])},
                     write(self.directory / "y", {"a": Tensor([5, 2])}, values))
        self.refuses("float32 in the model, and U8", {"a": Tensor([10], "float32")},
                     write(self.directory / "z", {"a": Tensor([10])}, values))
        self.refuses("meta", {"a": Tensor([10], device=Device("meta", 0))}, self.directory / "z")
        self.refuses("no safetensors files", tensors.fromkeys([]), tempfile.mkdtemp(dir=self.directory))

    def test_says_what_is_no_file(self):
        broken = self.directory / "broken"
        broken.write_bytes(b"no header at all")
        with self.assertRaises(gpu_sleep.Error) as caught:
            gpu_sleep.torch.reload({"a": Tensor([10])}, broken)
        self.assertEqual(caught.exception.code, "io_failed")
        with self.assertRaises(FileNotFoundError):
            gpu_sleep.torch.reload({}, self.directory / "nowhere")
        with self.assertRaises(TypeError):
            gpu_sleep.torch.reload(7, broken)

    def test_says_that_a_file_has_become_shorter(self):
        tensors = {"a": Tensor([100_000])}
        path = write(self.directory / "x", tensors, contents(*tensors.values()))
        path.write_bytes(path.read_bytes()[:50_000])
        with self.assertRaisesRegex(gpu_sleep.Error, "shorter"):
            gpu_sleep.torch.reload(tensors, path)

    def test_names_the_tags_that_it_refilled(self):
        tensors = {"a": Tensor([10])}
        path = write(self.directory / "x", tensors, contents(*tensors.values()))
        told = []
        mark, gpu_sleep.torch.mark_refilled = gpu_sleep.torch.mark_refilled, told.append
        self.addCleanup(setattr, gpu_sleep.torch, "mark_refilled", mark)
        gpu_sleep.torch.reload(tensors, path, tags=["weights", "more"])
        gpu_sleep.torch.reload(tensors, path, tags=())
        self.assertEqual(told, ["weights", "more"])


if __name__ == "__main__":
    install()
    unittest.main()
