# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A model server that switch_bench.py switches to and from. It knows nothing of sleeping, but how to read its weights again.

It reads its weights from the files of a directory, and then one command a line from standard input; each is answered with
one JSON object a line: `generate`, `reload`, `quit`. With --make it makes the files instead, and ends.

Two kinds of model: `torch`, that of tests/support/llama.py, and `plain`, memory that is only read, which needs no package
and runs on the simulated driver too.
"""

import argparse
import ctypes
import json
import os
import random
import sys
import time
import zlib

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))

from agent_tags import tagged  # noqa: E402

TOKENS = 8
FILES = 4
PLAIN_BYTES = {"0.6B": 1_192 << 20, "8B": 16_060 << 20}


class TorchModel:
    def __init__(self, options):
        from llama import SHAPES, Llama

        self.directory = options.weights
        self.model = Llama(SHAPES[options.shape], options.scale, options.device)
        self.prompt = self.model.prompt(1)
        self.bytes = self.model.bytes()

    def make(self):
        self.model.fill()
        self.model.save(self.directory)

    def load(self):
        self.model.load(self.directory)

    def answer(self):
        return self.model.answer(self.prompt, TOKENS)


class PlainModel:
    PIECE = 256 << 20

    def __init__(self, options):
        self.cuda, self.directory = ctypes.CDLL("libcuda.so.1"), options.weights
        self.bytes = int(PLAIN_BYTES[options.shape] * options.scale) // FILES // 4096 * 4096 * FILES
        self.sample = ctypes.create_string_buffer(4096)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        with tagged("weights"):
            self.places = [self.allocate(self.bytes // FILES) for _ in range(FILES)]
        self.key = self.allocate(4096) # what no file has
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.key), random.Random(2).randbytes(4096), ctypes.c_size_t(4096))

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} gave {status}")

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def make(self):
        piece = random.Random(1).randbytes(min(1 << 20, self.bytes // FILES))
        for number in range(FILES):
            with open(os.path.join(self.directory, f"{number}.bin"), "wb") as file:
                for at in range(0, self.bytes // FILES, len(piece)):
                    file.write(piece[: min(len(piece), self.bytes // FILES - at)])

    def load(self):
        for number, place in enumerate(self.places):
            with open(os.path.join(self.directory, f"{number}.bin"), "rb") as file:
                for at in range(0, self.bytes // FILES, self.PIECE):
                    data = file.read(self.PIECE)
                    self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(place + at), data, ctypes.c_size_t(len(data)))

    def answer(self):
        """Its tokens are sums of what its memory holds here and there."""
        token = self.read(self.key, 0)
        for number in range(TOKENS):
            place = self.places[number % FILES] + (self.bytes // FILES - 4096) * number // TOKENS
            token = self.read(place, token)
            yield token

    def read(self, place, token):
        self.call("cuMemcpyDtoH_v2", self.sample, ctypes.c_uint64(place), ctypes.c_size_t(4096))
        return zlib.crc32(self.sample.raw, token)


def generate(model):
    start = time.perf_counter()
    tokens, times = [], []
    for token in model.answer():
        tokens.append(token)
        times.append(time.perf_counter() - start)
    return {"tokens": tokens, "first_token_s": times[0], "total_s": times[-1]}


def reload(model):
    start = time.perf_counter()
    model.load()
    return {"load_s": time.perf_counter() - start}


def main():
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("torch", "plain"), default="torch")
    parser.add_argument("--shape", choices=PLAIN_BYTES, required=True)
    parser.add_argument("--weights", required=True, help="the directory of their files")
    parser.add_argument("--scale", type=float, default=1, help="of the model's size")
    parser.add_argument("--device", default="cuda", help="of the torch model")
    parser.add_argument("--make", action="store_true", help="make the files")
    options = parser.parse_args()
    model = (TorchModel if options.model == "torch" else PlainModel)(options)
    if options.make:
        model.make()
        return
    begun = time.perf_counter() - began
    loaded = reload(model)
    print(json.dumps({"ready": True, "bytes": model.bytes, "begin_s": begun, **loaded}), flush=True)
    commands = {"generate": generate, "reload": reload}
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(json.dumps(commands[line.strip()](model)), flush=True)


main()
