# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Shares a tensor with a process of its own by CUDA IPC, as PyTorch's queues do; both work at it in turns."""

import program
from torch_common import GIB, add_tensors, learn, make_deterministic, mlp

import torch

WIDTH = 1024
SHARED = 1 << 22 # elements


def partner(requests, answers):
    """Adds to what is shared, with memory of its own besides."""
    shared = requests.get()
    own = torch.full((SHARED,), 3, device="cuda", dtype=torch.int64)
    answers.put("ready")
    while (step := requests.get()) is not None:
        own.add_(step)
        shared.add_(own)
        torch.cuda.synchronize()
        answers.put(step)
    del shared


def main():
    arguments = program.options(__doc__, steps=60, extra=[("--gib", 1.0)])
    make_deterministic()
    layers = max(1, round(arguments.gib * arguments.scale * GIB / (WIDTH * WIDTH * 12)))
    model = mlp(WIDTH, layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    shared = torch.arange(SHARED, device="cuda", dtype=torch.int64)
    context = torch.multiprocessing.get_context("spawn")
    requests, answers = context.SimpleQueue(), context.SimpleQueue()
    other = context.Process(target=partner, args=(requests, answers), daemon=True)
    other.start()
    requests.put(shared)
    answers.get()
    digest = program.Digest()
    for step in program.paced(arguments):
        requests.put(step)
        inputs = torch.randn(256, WIDTH, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
        loss = learn(model, optimizer, inputs)
        answers.get()
        shared.mul_(5).remainder_(1_000_003)
        torch.cuda.synchronize()
        digest.add(loss.cpu().numpy())
    add_tensors(digest, [*model.parameters(), shared])
    requests.put(None)
    other.join()
    digest.finish()


if __name__ == "__main__":
    main()
