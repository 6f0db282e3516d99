# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Trains from a DataLoader with worker processes, forked after CUDA was initialised, and pinned batches."""

import program
from torch_common import GIB, add_tensors, learn, make_deterministic, mlp

import torch

WIDTH = 2048
BATCH = 256


class Samples(torch.utils.data.Dataset):
    """Random rows, each from its own seed: the same whichever worker makes it."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(index))


def main():
    arguments = program.options(__doc__, steps=60, extra=[("--gib", 2.0), ("--workers", 4)])
    make_deterministic()
    layers = max(1, round(arguments.gib * arguments.scale * GIB / (WIDTH * WIDTH * 12)))
    model = mlp(WIDTH, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    torch.cuda.synchronize()
    per_epoch = max(1, arguments.steps // 3) # three times over, so that workers come and go
    loader = torch.utils.data.DataLoader(Samples(per_epoch * BATCH), batch_size=BATCH, pin_memory=True,
                                         num_workers=arguments.workers, multiprocessing_context="fork")
    batches = iter(loader)
    digest = program.Digest()
    for _ in program.paced(arguments):
        inputs = next(batches, None)
        if inputs is None:
            batches = iter(loader)
            inputs = next(batches)
        inputs = inputs.cuda(non_blocking=True)
        loss = learn(model, optimizer, inputs)
        digest.add(loss.cpu().numpy())
    add_tensors(digest, model.parameters())
    digest.finish()


main()
