# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What live.py measures: a decoder that replays a captured graph for each token, and the ways in which serving engines have
its weights lie in host memory."""

import time

import llama
import torch
import torch.nn.functional as F

EMBEDDING = "model.embed_tokens.weight"
PROMPT = 128  # tokens before those that are decoded
WINDOW = 256  # positions that a decoding step attends to, seen or not
LONG_PROMPT = 2048


class OnGpu(dict):
    """Weights by name, which the GPU has, or of which gpu-sleep sees to where they lie."""

    def finish(self):
        """After the last weight of a pass."""


class InPlace(OnGpu):
    """The GPU reads those of `names` across the link, in page-locked memory."""

    def __init__(self, weights, names, host):
        super().__init__(weights)
        for name in names:
            self[name] = _tensor_of_gpu(host[name])


class CopiedIn(OnGpu):
    """Those of `names` are copied into a buffer when they are needed, by the stream that needs them. The embedding, of which
    a pass reads a row, stays on the GPU."""

    def __init__(self, weights, names, host):
        super().__init__(weights)
        self._host = {name: host[name] for name in names if name != EMBEDDING}
        self._buffers = {weights[name].shape: torch.empty_like(weights[name]) for name in self._host}

    def __getitem__(self, name):
        if name not in self._host:
            return super().__getitem__(name)
        buffer = self._buffers[self._host[name].shape]
        return buffer.copy_(self._host[name], non_blocking=True)


class Prefetched(OnGpu):
    """While a layer computes, a second stream copies the next one into one of two buffers, in turn. The first layer has one
    of its own, and is copied behind the last, for the next pass. The head counts as a layer; the embedding stays."""

    def __init__(self, weights, names, host):
        super().__init__(weights)
        self._layers, self._of, self._slots = {}, {}, ({}, {}, {})
        for name in names:
            if name != EMBEDDING:
                layer, _, short = name.removeprefix("model.layers.").partition(".") if ".layers." in name else ("head", "", name)
                self._of[name] = layer, short
                self._layers.setdefault(layer, []).append((short, host[name]))
        self._order = list(self._layers)
        if len(self._order) < 2:
            raise ValueError("too little is offloaded for copying a layer ahead")
        for number, layer in enumerate(self._order):
            for short, weight in self._layers[layer]:
                self._slot(number).setdefault(short, torch.empty(weight.shape, dtype=weight.dtype, device="cuda"))
        self._stream, self._copied, self._current = torch.cuda.Stream(), None, None
        self._fetch(0)
        torch.cuda.synchronize()

    def _slot(self, number):
        return self._slots[1 + number % 2 if number else 0]

    def _fetch(self, number):
        self._stream.wait_stream(torch.cuda.current_stream())  # whoever used the buffer before
        with torch.cuda.stream(self._stream):
            for short, weight in self._layers[self._order[number]]:
                self._slot(number)[short].copy_(weight, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def __getitem__(self, name):
        if name not in self._of:
            return super().__getitem__(name)
        layer, short = self._of[name]
        number = self._order.index(layer)
        if layer != self._current:
            self._current = layer
            if number:
                torch.cuda.current_stream().wait_event(self._copied)
            self._fetch((number + 1) % len(self._order))
        return self._slot(number)[short]

    def finish(self):
        torch.cuda.current_stream().wait_stream(self._stream)
        self._current = None


def _tensor_of_gpu(pinned):
    """The page-locked tensor as one of the GPU, which has it at the same address."""
    storage = torch._C._construct_storage_from_data_pointer(
        pinned.data_ptr(), torch.device("cuda", torch.cuda.current_device()), pinned.numel() * pinned.element_size())
    return torch.empty(0, dtype=pinned.dtype, device="cuda").set_(storage, 0, pinned.shape, pinned.stride())


class HostCopies:
    """Page-locked copies of weights, made when they are first asked for."""

    def __init__(self, weights):
        self._weights, self._copies = weights, {}

    def __getitem__(self, name):
        if name not in self._copies:
            weight = self._weights[name]
            self._copies[name] = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=True).copy_(weight)
        return self._copies[name]


class Decoder(llama.Llama):
    """Decodes the answer to a prompt, greedily, one token a step."""

    def __init__(self):
        super().__init__(llama.SHAPES["8B"], context=LONG_PROMPT)
        self.fill()
        self.own = OnGpu(self.weights)
        self.total = self.bytes()
        self._at = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._token = torch.zeros_like(self._at)
        self._positions = torch.arange(WINDOW, device="cuda")
        self._answer = torch.zeros(WINDOW, dtype=torch.int64, device="cuda")
        self._mask = self._first = None
        self.use(self.own)

    def sizes(self):
        """Whole layers first, as engines offload them, and last the embedding, of which a step reads one row."""
        embedding, *others = super().sizes()
        return [*others, embedding]

    def first(self, budget):
        """Names of the first weights, until they have so many bytes."""
        names, size = [], 0
        for name, weight in self.own.items():
            if size < budget:
                names.append(name)
                size += weight.numel() * weight.element_size()
        return names

    def read_by_a_step(self, names):
        """Bytes."""
        return sum(self.own[name].numel() * self.own[name].element_size() for name in names if name != EMBEDDING)

    def use(self, weights):
        """Captures a step with these weights. Where that cannot be, or is slower, steps are launched one by one."""
        self.weights = weights
        self.read_prompt()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.synchronize()
        self.step = None  # gives back the memory of the graph before
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
            self.step = graph.replay
        except RuntimeError as error:
            print(f"not captured: {error}", flush=True)
            self.step = self._step
        if isinstance(weights, Prefetched):  # of which a graph was seen to copy and to compute in turn
            self.step = min((self.step, self._step), key=lambda step: self._seconds_of(step, 3))

    # ---- A pass

    def forward(self, tokens, at):
        following = super().forward(tokens, at)
        self.weights.finish()
        return following

    def rotate(self, x, at):
        if isinstance(at, int):
            return super().rotate(x, at)
        half = x.shape[-1] // 2
        return x * self.cos[at] + torch.cat((-x[..., half:], x[..., :half]), -1) * self.sin[at]

    def attend(self, x, layer, at):
        if isinstance(at, int):
            return super().attend(x, layer, at)
        s, name = self.shape, f"model.layers.{layer}.self_attn."

        def project(which, heads):
            return F.linear(x, self.weights[f"{name}{which}_proj.weight"]).view(heads, 1, s["head"])

        queries = self.rotate(project("q", s["heads"]), at).view(1, s["kv_heads"], -1, s["head"])
        keys, values = self.cache[0, layer], self.cache[1, layer]
        keys.index_copy_(1, at, self.rotate(project("k", s["kv_heads"]), at))
        values.index_copy_(1, at, project("v", s["kv_heads"]))
        out = F.scaled_dot_product_attention(queries, keys[None, :, :WINDOW], values[None, :, :WINDOW], attn_mask=self._mask)
        return F.linear(out.reshape(1, -1), self.weights[f"{name}o_proj.weight"])

    def _step(self):
        self._mask = (self._positions <= self._at).view(1, 1, 1, WINDOW)
        following = self.forward(self._token, self._at)
        self._answer.index_copy_(0, self._at, following)
        self._token.copy_(following)
        self._at.add_(1)

    # ---- Answers

    def read_prompt(self):
        self._first = self.forward(torch.tensor(self.prompt(1, PROMPT), device="cuda"), 0)
        self.rewind()

    def rewind(self):
        """To the end of the prompt."""
        self._token.copy_(self._first)
        self._at.fill_(PROMPT)

    def answer_of(self, tokens):
        """What that many steps after the prompt have decoded, and bits of all that they computed, on the GPU."""
        end = PROMPT + tokens
        return torch.cat((self._first, self._answer[PROMPT:end])), self._bits(end)

    def _bits(self, end):
        return self.cache[..., :end, :].clone(memory_format=torch.contiguous_format).view(torch.int16)

    def decode(self, tokens):
        """Returns the answer, and the seconds of its steps."""
        self.read_prompt()
        self.step()
        took = self._seconds_of(self.step, tokens)
        return self.answer_of(tokens), took

    def _seconds_of(self, step, tokens):
        self.rewind()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(tokens):
            step()
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def read_long_prompt(self):
        """Returns the answer, and the seconds to it."""
        tokens = torch.tensor(self.prompt(2, LONG_PROMPT), device="cuda")
        for _ in range(2):  # the first may load modules
            torch.cuda.synchronize()
            start = time.perf_counter()
            following = self.forward(tokens, 0)
            torch.cuda.synchronize()
            took = time.perf_counter() - start
        return (following, self._bits(LONG_PROMPT)), took


def same(answer, other):
    """Whether the tokens are the same, and whether each bit is."""
    return torch.equal(answer[0], other[0]), torch.equal(answer[1], other[1])
