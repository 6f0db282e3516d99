# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A model server that can be put to sleep: a Llama-shaped model with random weights, decoding in a CUDA graph.

Its weights live under the tag `weights` and its static KV cache under `kv_cache`; it knows nothing else of sleeping
but how to fill its weights again. It reads one command a line on standard input and answers with one JSON object a
line on standard output: `generate`, `made`, `preserve-buffers`, `save FILE`, `refill-from FILE`, `quit`.
"""

import argparse
import ctypes
import json
import sys
import time

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache


class Agent:
    """The few functions of gpu_sleep.h that a server needs."""

    class Event(ctypes.Structure):
        _fields_ = [("struct_size", ctypes.c_size_t), ("level", ctypes.c_int), ("tag_count", ctypes.c_size_t),
                    ("tags", ctypes.POINTER(ctypes.c_char_p)), ("dropped_tag_count", ctypes.c_size_t),
                    ("dropped_tags", ctypes.POINTER(ctypes.c_char_p))]

    CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Event), ctypes.c_void_p)

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.gpu_sleep_last_error.restype = ctypes.c_char_p
        self.callbacks = []
        allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "gpu_sleep_torch_malloc", "gpu_sleep_torch_free")
        self.allocator = allocator
        self.pools = {}

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.gpu_sleep_last_error().decode())

    def tagged(self, tag):
        """A context manager: what PyTorch allocates inside lies under `tag`."""
        agent = self

        class Scope:
            def __enter__(self):
                if tag not in agent.pools:
                    agent.pools[tag] = torch.cuda.MemPool(agent.allocator.allocator())
                agent.check(agent.lib.gpu_sleep_push_tag(tag.encode()))
                self.scope = torch.cuda.use_mem_pool(agent.pools[tag])
                self.scope.__enter__()

            def __exit__(self, *error):
                self.scope.__exit__(*error)
                agent.check(agent.lib.gpu_sleep_pop_tag())

        return Scope()

    def preserve(self, tensor):
        self.check(self.lib.gpu_sleep_preserve(ctypes.c_void_p(tensor.data_ptr()),
                                               ctypes.c_size_t(tensor.numel() * tensor.element_size())))

    def after_wake(self, function):
        """`function(dropped_tags)` runs when memory is back; what it raises is reported."""

        def call(event, _):
            try:
                dropped = [event.contents.dropped_tags[i].decode() for i in range(event.contents.dropped_tag_count)]
                function(dropped)
                return 0
            except Exception as error:
                print(f"after-wake callback: {error}", file=sys.stderr)
                return 1

        callback = Agent.CALLBACK(call)
        self.callbacks.append(callback)
        self.check(self.lib.gpu_sleep_add_callback(None, callback, None, 0, None))


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


class Server:
    def __init__(self, agent, layers, batch, context, tokens):
        self.agent, self.batch, self.tokens = agent, batch, tokens
        config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers,
                             num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
                             max_position_embeddings=context, torch_dtype="bfloat16", attn_implementation="sdpa")
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        with agent.tagged("weights"), torch.device("cuda"):
            self.model = LlamaForCausalLM(config).eval().requires_grad_(False)
        with agent.tagged("kv_cache"):
            self.cache = StaticCache(config=config, max_cache_len=context)
            self.cache.early_initialization(batch, 8, 128, torch.bfloat16, torch.device("cuda"))
        self.agent.check(agent.lib.gpu_sleep_set_policy(b"weights", 0, 1))
        self.columns = torch.arange(context, device="cuda")
        self.ids = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
        self.position = torch.zeros(1, dtype=torch.long, device="cuda")
        self.prompt = torch.randint(0, config.vocab_size, (batch, 1), device="cuda")
        self.weights_file = None
        agent.after_wake(self.refill)
        self.capture()

    def step(self):
        """One token for each sequence; everything stays on the device, so a graph can hold it."""
        mask = torch.where(self.columns <= self.position, 0.0, float("-inf")).to(torch.bfloat16)
        mask = mask.view(1, 1, 1, -1).expand(self.batch, 1, 1, -1)
        logits = self.model(input_ids=self.ids, attention_mask=mask, position_ids=self.position.view(1, 1),
                            past_key_values=self.cache, use_cache=True).logits
        self.ids.copy_(logits[:, -1:].argmax(-1))
        self.position.add_(1)

    def rewind(self):
        self.ids.copy_(self.prompt)
        self.position.zero_()
        for layer in self.cache.layers:
            if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
                layer.cumulative_length.zero_()

    @torch.no_grad()
    def capture(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.rewind()
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self.rewind()
        self.graph = torch.cuda.CUDAGraph()
        self.agent.check(self.agent.lib.gpu_sleep_hold())
        try:
            with torch.cuda.graph(self.graph):
                self.step()
        finally:
            self.agent.check(self.agent.lib.gpu_sleep_resume())

    @torch.no_grad()
    def generate(self):
        self.rewind()
        torch.cuda.synchronize()
        start = time.perf_counter()
        out = []
        for i in range(self.tokens):
            self.graph.replay()
            out.append(self.ids.clone())
            if i == 0:
                torch.cuda.synchronize()
                first = time.perf_counter() - start
        torch.cuda.synchronize()
        total = time.perf_counter() - start
        tokens = torch.cat(out, 1).cpu()
        return {"tokens": tokens.tolist(), "first_token_s": first, "total_s": total}

    def preserve_buffers(self):
        count = 0
        for buffer in self.model.buffers():
            self.agent.preserve(buffer)
            count += 1
        return {"preserved": count}

    def save(self, path):
        save_file({name: p for name, p in self.model.named_parameters()}, path)
        return {"saved": path}

    def refill_from(self, path):
        self.weights_file = path
        return {"refill": path}

    @torch.no_grad()
    def refill(self, dropped):
        if "weights" not in dropped:
            return
        if self.weights_file is None:
            raise RuntimeError("no weights file")
        with safe_open(self.weights_file, framework="pt", device="cpu") as file:
            for name, parameter in self.model.named_parameters():
                parameter.copy_(file.get_tensor(name))
        torch.cuda.synchronize()
        self.agent.check(self.agent.lib.gpu_sleep_mark_refilled(b"weights"))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    made = Made()
    server = Server(Agent(options.agent), options.layers, options.batch, options.context, options.tokens)
    commands = {"generate": server.generate, "made": lambda: made.counts,
                "preserve-buffers": server.preserve_buffers, "save": server.save,
                "refill-from": server.refill_from}
    parameters = sum(p.numel() for p in server.model.parameters())
    print(json.dumps({"ready": True, "parameters": parameters}), flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "quit":
            break
        print(json.dumps(commands[words[0]](*words[1:])), flush=True)


main()
