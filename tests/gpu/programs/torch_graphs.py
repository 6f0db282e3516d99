# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Works in CUDA graphs: captures a training step, replays it, and captures it again now and then."""

import program
from torch_common import GIB, add_tensors, make_deterministic, mlp

import torch

WIDTH = 1024
REPLAYS = 20 # in each step
STEPS_PER_CAPTURE = 8


class Trainer:
    def __init__(self, layers, batch):
        self.model = mlp(WIDTH, layers)
        self.inputs = torch.zeros(batch, WIDTH, device="cuda")
        self.loss = torch.zeros((), device="cuda")
        self.graph = None

    def step(self):
        loss = (self.model(self.inputs) - self.inputs.roll(1, 1)).square().mean()
        gradients = torch.autograd.grad(loss, list(self.model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.model.parameters(), gradients):
                parameter.sub_(gradient, alpha=1e-2)
            self.inputs.copy_(self.inputs.roll(1, 0))
            self.loss.copy_(loss)

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.step() # cuBLAS and the allocator warm up outside of the capture
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()


def main():
    arguments = program.options(__doc__, steps=40, extra=[("--gib", 2.0), ("--layers", 12)])
    make_deterministic()
    trainer = Trainer(arguments.layers, 256)
    generator = torch.Generator(device="cuda").manual_seed(2)
    store = torch.randn(int(arguments.gib * arguments.scale * GIB / 4 / WIDTH), WIDTH, device="cuda",
                        generator=generator)
    digest = program.Digest()
    for step in program.paced(arguments):
        if step % STEPS_PER_CAPTURE == 0:
            trainer.capture()
        begin = step * 256 % (store.shape[0] - 256)
        trainer.inputs.copy_(store[begin:begin + 256])
        for _ in range(REPLAYS):
            trainer.graph.replay()
        store[begin:begin + 256] = trainer.inputs
        digest.add(trainer.loss.cpu().numpy())
    add_tensors(digest, [*trainer.model.parameters(), store])
    digest.finish()


main()
