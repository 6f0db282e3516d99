# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A model of the Llama family in plain PyTorch, with random weights, that answers for one sequence.

Written out, and without transformers, so that a process with it starts as fast as one can: on the machine of RESULTS.md
the import of transformers alone takes 10 s. Weights have the names that such models have in safetensors files.
"""

import contextlib
import glob
import os
import random

import torch
import torch.nn.functional as F

from agent_tags import tagged

# Shapes of Qwen3-0.6B and Llama-3-8B.
SHAPES = {
    "0.6B": dict(hidden=1024, intermediate=3072, layers=28, heads=16, kv_heads=8, head=128, vocabulary=151936, tied=True),
    "8B": dict(hidden=4096, intermediate=14336, layers=32, heads=32, kv_heads=8, head=128, vocabulary=128256, tied=False),
}
THETA = 500_000.0
FILES = 4 # for each model, as large ones come
WEIGHTS = "weights" # the tag of what can be read again; all else has the tag that needs no name


class Llama:
    """`scale` is of the number of layers. Its weights are undefined until load() or make()."""

    def __init__(self, shape, scale=1.0, device="cuda", context=1024):
        self.shape, self.device = shape, device
        self.layers = max(1, round(shape["layers"] * scale))
        self.head = "model.embed_tokens.weight" if shape["tied"] else "lm_head.weight"
        with self.place_for_weights():
            self.weights = {name: torch.empty(size, dtype=torch.bfloat16, device=device) for name, size in self.sizes()}
        half = torch.arange(0, shape["head"], 2, dtype=torch.float32, device=device) / shape["head"]
        angles = torch.outer(torch.arange(context, dtype=torch.float32, device=device), THETA ** -half)
        self.cos, self.sin = (torch.cat((f(angles), f(angles)), 1).bfloat16() for f in (torch.cos, torch.sin))
        self.cache = torch.zeros(2, self.layers, shape["kv_heads"], context, shape["head"], dtype=torch.bfloat16, device=device)

    @contextlib.contextmanager
    def place_for_weights(self):
        if self.device != "cuda":
            yield
            return
        self.pool = torch.cuda.MemPool()
        with tagged(WEIGHTS), torch.cuda.use_mem_pool(self.pool):
            yield

    def sizes(self):
        s = self.shape
        queries, keys = s["heads"] * s["head"], s["kv_heads"] * s["head"]
        yield "model.embed_tokens.weight", (s["vocabulary"], s["hidden"])
        for i in range(self.layers):
            for name, size in (("input_layernorm", (s["hidden"],)), ("self_attn.q_proj", (queries, s["hidden"])),
                               ("self_attn.k_proj", (keys, s["hidden"])), ("self_attn.v_proj", (keys, s["hidden"])),
                               ("self_attn.o_proj", (s["hidden"], queries)), ("post_attention_layernorm", (s["hidden"],)),
                               ("mlp.gate_proj", (s["intermediate"], s["hidden"])),
                               ("mlp.up_proj", (s["intermediate"], s["hidden"])),
                               ("mlp.down_proj", (s["hidden"], s["intermediate"]))):
                yield f"model.layers.{i}.{name}.weight", size
        yield "model.norm.weight", (s["hidden"],)
        if not s["tied"]:
            yield "lm_head.weight", (s["vocabulary"], s["hidden"])

    def bytes(self):
        return sum(w.numel() * w.element_size() for w in self.weights.values())

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    # ---- Weights

    def fill(self, seed=1):
        """Random weights, the same for the same seed on the same kind of device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for weight in self.weights.values():
            if weight.dim() == 1:
                weight.fill_(1)
            else:
                weight.normal_(0, 0.02, generator=generator)

    def save(self, directory):
        from safetensors.torch import save_file

        parts, before = [{} for _ in range(FILES)], 0
        for name, weight in self.weights.items():
            parts[before * FILES // self.bytes()][name] = weight
            before += weight.numel() * weight.element_size()
        for number, part in enumerate(parts):
            if part:
                save_file(part, os.path.join(directory, f"{number}.safetensors"))

    def load(self, directory):
        from safetensors import safe_open

        missing = dict(self.weights)
        for path in sorted(glob.glob(os.path.join(directory, "*.safetensors"))):
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():
                    missing.pop(name).copy_(file.get_tensor(name))
        if missing:
            raise SystemExit(f"no file in {directory} has {', '.join(missing)}")
        self.synchronize()

    # ---- Answers

    @staticmethod
    def normal(x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

    def rotate(self, x, at):
        half = x.shape[-1] // 2
        span = slice(at, at + x.shape[-2])
        return x * self.cos[span] + torch.cat((-x[..., half:], x[..., :half]), -1) * self.sin[span]

    def attend(self, x, layer, at):
        s, count = self.shape, x.shape[0]
        name = f"model.layers.{layer}.self_attn."

        def project(which, heads):
            return F.linear(x, self.weights[f"{name}{which}_proj.weight"]).view(count, heads, s["head"]).transpose(0, 1)

        queries = self.rotate(project("q", s["heads"]), at)
        keys, values = self.cache[0, layer], self.cache[1, layer]
        keys[:, at : at + count] = self.rotate(project("k", s["kv_heads"]), at)
        values[:, at : at + count] = project("v", s["kv_heads"])
        each = s["heads"] // s["kv_heads"]
        keys, values = (c[:, : at + count].repeat_interleave(each, 0)[None] for c in (keys, values))
        out = F.scaled_dot_product_attention(queries[None], keys, values, is_causal=count > 1)
        return F.linear(out[0].transpose(0, 1).reshape(count, -1), self.weights[f"{name}o_proj.weight"])

    def forward(self, tokens, at):
        """The token after `tokens`, of which the first stands at `at`."""
        w = self.weights
        x = F.embedding(tokens, w["model.embed_tokens.weight"])
        for i in range(self.layers):
            name = f"model.layers.{i}."
            x = x + self.attend(self.normal(x, w[f"{name}input_layernorm.weight"]), i, at)
            y = self.normal(x, w[f"{name}post_attention_layernorm.weight"])
            y = F.silu(F.linear(y, w[f"{name}mlp.gate_proj.weight"])) * F.linear(y, w[f"{name}mlp.up_proj.weight"])
            x = x + F.linear(y, w[f"{name}mlp.down_proj.weight"])
        return F.linear(self.normal(x[-1:], w["model.norm.weight"]), w[self.head]).argmax(-1)

    def answer(self, prompt, length):
        """Yields `length` tokens, one by one, each when it is known. `prompt`: a list of tokens."""
        with torch.no_grad():
            tokens, at = torch.tensor(prompt, device=self.device), 0
            for _ in range(length):
                following = self.forward(tokens, at)
                yield int(following)
                tokens, at = following, at + len(tokens)

    def prompt(self, seed, length=128):
        chosen = random.Random(seed)
        return [chosen.randrange(self.shape["vocabulary"]) for _ in range(length)]
