# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Trains a residual network with AdamW: many allocations of all sizes, all of them read and written in each step.

--gib is the memory for parameters, gradients and the optimizer's state, times --scale.
"""

import program
from torch_common import GIB, add_tensors, learn, make_deterministic, mlp

import torch

WIDTH = 2048
BYTES_PER_LAYER = WIDTH * WIDTH * 16 # parameter, gradient and two moments, four bytes each


def main():
    arguments = program.options(__doc__, steps=40, extra=[("--gib", 3.0), ("--batch", 512)])
    make_deterministic()
    layers = max(1, round(arguments.gib * arguments.scale * GIB / BYTES_PER_LAYER))
    model = mlp(WIDTH, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator(device="cuda").manual_seed(2)
    digest = program.Digest()
    for step in program.paced(arguments):
        inputs = torch.randn(arguments.batch, WIDTH, device="cuda", generator=generator)
        # Every other time gradients are freed and allocated again, too.
        loss = learn(model, optimizer, inputs, set_to_none=step % 2 == 0)
        digest.add(loss.cpu().numpy())
    add_tensors(digest, model.parameters())
    add_tensors(digest, (value for state in optimizer.state.values() for value in state.values()
                         if isinstance(value, torch.Tensor)))
    digest.finish()


main()
