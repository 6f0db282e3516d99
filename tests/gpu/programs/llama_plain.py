# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Generates with a Llama-shaped model of random weights: static cache, greedy decoding in a CUDA graph.

--layers of 32 are the shape of Llama-3-8B (16 GB); --scale multiplies them.
"""

import program
from torch_common import add_tensors, make_deterministic

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

HEADS, KEY_VALUE_HEADS, HEAD_SIZE = 32, 8, 128


def build_model(layers, context):
    config = LlamaConfig(hidden_size=HEADS * HEAD_SIZE, intermediate_size=14336, num_hidden_layers=layers,
                         num_attention_heads=HEADS, num_key_value_heads=KEY_VALUE_HEADS, vocab_size=128256,
                         max_position_embeddings=context, torch_dtype="bfloat16", attn_implementation="sdpa")
    with torch.device("cuda"):
        return LlamaForCausalLM(config).eval().requires_grad_(False)


def build_cache(model, batch):
    cache = StaticCache(config=model.config, max_cache_len=model.config.max_position_embeddings)
    cache.early_initialization(batch, KEY_VALUE_HEADS, HEAD_SIZE, torch.bfloat16, torch.device("cuda"))
    return cache


class Generator:
    def __init__(self, model, cache, batch):
        self.model, self.cache, self.batch = model, cache, batch
        with torch.device("cuda"):
            self.columns = torch.arange(model.config.max_position_embeddings)
            self.ids = torch.zeros(batch, 1, dtype=torch.long)
            self.position = torch.zeros(1, dtype=torch.long)
            self.prompt = torch.randint(0, model.config.vocab_size, (batch, 1))
        self.graph = None

    def token(self):
        """One token for each sequence; everything stays on the device."""
        mask = torch.where(self.columns <= self.position, 0.0, float("-inf")).to(torch.bfloat16)
        mask = mask.view(1, 1, 1, -1).expand(self.batch, 1, 1, -1)
        logits = self.model(input_ids=self.ids, attention_mask=mask, position_ids=self.position.view(1, 1),
                            past_key_values=self.cache, use_cache=True).logits
        self.ids.copy_(logits[:, -1:].argmax(-1))
        self.position.add_(1)

    def rewind(self, shift):
        self.ids.copy_((self.prompt + shift) % 128256)
        self.position.zero_()
        for layer in self.cache.layers:
            if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
                layer.cumulative_length.zero_()

    def capture(self):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.rewind(0)
                self.token()
        torch.cuda.current_stream().wait_stream(stream)
        self.rewind(0)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.token()

    def generate(self, tokens, shift):
        self.rewind(shift)
        out = []
        for _ in range(tokens):
            self.graph.replay()
            out.append(self.ids.clone())
        return torch.cat(out, 1)


@torch.no_grad()
def main():
    arguments = program.options(__doc__, steps=12, extra=[("--layers", 8), ("--batch", 8), ("--context", 2048),
                                                          ("--tokens", 48)])
    make_deterministic()
    torch.set_default_dtype(torch.bfloat16)
    layers = max(1, round(arguments.layers * arguments.scale))
    model = build_model(layers, arguments.context)
    generator = Generator(model, build_cache(model, arguments.batch), arguments.batch)
    generator.capture()
    digest = program.Digest()
    for step in program.paced(arguments):
        digest.add(generator.generate(arguments.tokens, step).cpu().numpy())
    add_tensors(digest, [t for layer in generator.cache.layers for t in (layer.keys, layer.values)])
    digest.finish()


if __name__ == "__main__":
    main()
