# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A model server that can be put to sleep: the model of programs/llama_plain.py, which decodes in a CUDA graph.

Its weights live under the tag `weights` and its static KV cache under `kv_cache`; it knows nothing else of sleeping. It
reads one command a line on standard input and answers with one JSON object a line on standard output: `generate`, `made`,
`quit`.
"""

import argparse
import ctypes
import json
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "programs"), str(HERE.parents[1] / "agent/python")]

import torch  # noqa: E402

import gpu_sleep  # noqa: E402
import llama_plain  # noqa: E402


class Made:
    """Counts what CUPTI says was made in this process: modules loaded, linked, graphs instantiated."""

    CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
    # (domain, callback id) as in cupti_callbacks.h and cupti_driver_cbid.h
    WATCHED = {(3, 6): "modules", (3, 18): "graphs", (1, 365): "linked"}

    def __init__(self):
        self.counts = dict.fromkeys(self.WATCHED.values(), 0)
        self.callback = self.CALLBACK(self.count)
        cupti = ctypes.CDLL("libcupti.so.13")
        subscriber = ctypes.c_void_p()
        status = cupti.cuptiSubscribe(ctypes.byref(subscriber), self.callback, None)
        for domain, which in self.WATCHED:
            status = status or cupti.cuptiEnableCallback(1, subscriber, domain, which)
        if status != 0:
            raise RuntimeError(f"CUPTI gave {status}")

    def count(self, _, domain, which, __):
        self.counts[self.WATCHED[domain, which]] += 1


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    made = Made()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with gpu_sleep.tag("weights"):
        model = llama_plain.build_model(options.layers, options.context)
    with gpu_sleep.tag("kv_cache"):
        cache = llama_plain.build_cache(model, options.batch)
    generator = llama_plain.Generator(model, cache, options.batch)
    generator.capture()

    def generate():
        torch.cuda.synchronize()
        start = time.perf_counter()
        generator.generate(1, 0)
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        return {"tokens": generator.generate(options.tokens, 0).tolist(), "first_token_s": first}

    commands = {"generate": generate, "made": lambda: made.counts}
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(json.dumps(commands[line.strip()]()), flush=True)


main()
