# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A model server that switch_bench.py switches to and from. It knows nothing of sleeping, but how to read its weights again.

It reads its weights from the files of a directory, and then one command a line from standard input; each is answered with
one JSON object a line: `generate`, `reload`, `quit`. With --make it makes the files instead, and ends.

Two kinds of model: `torch`, a transformers model of the Llama class in bf16, and `plain`, memory that is only read, which
needs no package and runs on the simulated driver too.
"""

import argparse
import contextlib
import ctypes
import glob
import json
import os
import random
import sys
import time
import zlib

PROMPT, TOKENS = 128, 8
FILES = 4 # for each model, as large models come
WEIGHTS = "weights" # the tag of what can be read again; all else has the tag that needs no name

# Shapes of Qwen3-0.6B and Llama-3-8B. `scale` divides the number of layers.
SHAPES = {
    "0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                 num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True),
    "8B": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, head_dim=128, vocab_size=128256, tie_word_embeddings=False),
}
PLAIN_BYTES = {"0.6B": 1_192 << 20, "8B": 16_060 << 20}


@contextlib.contextmanager
def tagged(tag):
    """Memory that is allocated inside has this tag, if the agent is there."""
    agent = ctypes.CDLL(None)
    is_there = hasattr(agent, "gpu_sleep_push_tag")
    if is_there and agent.gpu_sleep_push_tag(tag.encode()) != 0:
        raise RuntimeError("the tag was refused")
    try:
        yield
    finally:
        if is_there:
            agent.gpu_sleep_pop_tag()


def files_of(directory, suffix):
    found = sorted(glob.glob(os.path.join(directory, f"*.{suffix}")))
    if not found:
        raise SystemExit(f"there are no weights in {directory}")
    return found


class TorchModel:
    SUFFIX = "safetensors"

    def __init__(self, options):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        self.torch, self.device, self.directory = torch, options.device, options.weights
        shape = dict(SHAPES[options.shape])
        shape["num_hidden_layers"] = max(1, round(shape["num_hidden_layers"] * options.scale))
        config = LlamaConfig(**shape, max_position_embeddings=4096, attn_implementation="sdpa")
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            self.model = LlamaForCausalLM(config).eval().requires_grad_(False)
        with self.place_for_weights():
            self.model.to_empty(device=self.device)
        if shape["tie_word_embeddings"]:
            self.model.lm_head.weight = self.model.model.embed_tokens.weight
        # What no file has: the frequencies of the positions.
        self.model.model.rotary_emb = type(self.model.model.rotary_emb)(config=config, device=self.device)
        prompt = random.Random(1)
        self.prompt = torch.tensor([[prompt.randrange(shape["vocab_size"]) for _ in range(PROMPT)]], device=self.device)

    @contextlib.contextmanager
    def place_for_weights(self):
        torch = self.torch
        if self.device != "cuda":
            yield
            return
        self.pool = torch.cuda.MemPool()
        with tagged(WEIGHTS), torch.cuda.use_mem_pool(self.pool):
            yield

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def parameters(self):
        return dict(self.model.named_parameters())

    def make(self):
        """Random weights, the same each time: as files of about the same size."""
        from safetensors.torch import save_file

        torch = self.torch
        generator = torch.Generator(self.device).manual_seed(1)
        parts, part, size = [], {}, 0
        parameters = self.parameters()
        most = sum(p.numel() for p in parameters.values()) / FILES
        for name, parameter in parameters.items():
            if parameter.dim() == 1:
                parameter.fill_(1)
            else:
                parameter.normal_(0, 0.05, generator=generator)
            part[name] = parameter
            size += parameter.numel()
            if size >= most:
                parts, part, size = [*parts, part], {}, 0
        for number, each in enumerate(parts + ([part] if part else [])):
            save_file({name: p.data for name, p in each.items()}, os.path.join(self.directory, f"{number}.{self.SUFFIX}"))

    def load(self):
        from safetensors import safe_open

        parameters = self.parameters()
        with self.torch.no_grad():
            for path in files_of(self.directory, self.SUFFIX):
                with safe_open(path, framework="pt", device="cpu") as file:
                    for name in file.keys():
                        parameters.pop(name).copy_(file.get_tensor(name))
        if parameters:
            raise SystemExit(f"no file has {', '.join(parameters)}")
        self.synchronize()

    def generate(self, told):
        with self.torch.no_grad():
            ids, past, out = self.prompt, None, []
            for _ in range(TOKENS):
                step = self.model(input_ids=ids, past_key_values=past, use_cache=True)
                past, ids = step.past_key_values, step.logits[:, -1:].argmax(-1)
                out.append(int(ids))
                told()
        return out

    def bytes(self):
        return sum(p.numel() * p.element_size() for p in self.parameters().values())


class PlainModel:
    SUFFIX = "bin"
    PIECE = 256 << 20

    def __init__(self, options):
        self.cuda, self.directory = ctypes.CDLL("libcuda.so.1"), options.weights
        self.size = int(PLAIN_BYTES[options.shape] * options.scale) // FILES // 4096 * 4096 * FILES
        self.sample = ctypes.create_string_buffer(4096)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        with tagged(WEIGHTS):
            self.places = [self.allocate(self.size // FILES) for _ in range(FILES)]
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
        piece = random.Random(1).randbytes(min(1 << 20, self.size // FILES))
        for number in range(FILES):
            with open(os.path.join(self.directory, f"{number}.{self.SUFFIX}"), "wb") as file:
                for at in range(0, self.size // FILES, len(piece)):
                    file.write(piece[: min(len(piece), self.size // FILES - at)])

    def load(self):
        for place, path in zip(self.places, files_of(self.directory, self.SUFFIX)):
            with open(path, "rb") as file:
                for at in range(0, self.size // FILES, self.PIECE):
                    data = file.read(self.PIECE)
                    self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(place + at), data, ctypes.c_size_t(len(data)))

    def generate(self, told):
        """Its words are sums of what its memory holds here and there."""
        out = []
        word = self.read(self.key, 0)
        for number in range(TOKENS):
            place = self.places[number % FILES] + (self.size // FILES - 4096) * number // TOKENS
            word = self.read(place, word)
            out.append(word)
            told()
        return out

    def read(self, place, word):
        self.call("cuMemcpyDtoH_v2", self.sample, ctypes.c_uint64(place), ctypes.c_size_t(4096))
        return zlib.crc32(self.sample.raw, word)

    def bytes(self):
        return self.size


def generate(model):
    start = time.perf_counter()
    times = []
    tokens = model.generate(lambda: times.append(time.perf_counter() - start))
    return {"tokens": tokens, "first_token_s": times[0], "total_s": times[-1]}


def reload(model):
    start = time.perf_counter()
    model.load()
    return {"load_s": time.perf_counter() - start}


def main():
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("torch", "plain"), default="torch")
    parser.add_argument("--shape", choices=SHAPES, required=True)
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
    print(json.dumps({"ready": True, "bytes": model.bytes(), "begin_s": begun, **loaded}), flush=True)
    commands = {"generate": generate, "reload": reload}
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(json.dumps(commands[line.strip()](model)), flush=True)


main()
