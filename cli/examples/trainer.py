# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Trains a model and generates with it, in turns, on one GPU: gpu-run -- python3 trainer.py

While it generates, what only training needs (the optimizer's state) sleeps. While it trains, the cache sleeps, and its
contents are dropped.
"""

import gpu_sleep
import torch

SIZE, LAYERS, BATCH, TURNS, STEPS = 4096, 8, 64, 3, 10


def free_mib():
    return torch.cuda.mem_get_info()[0] >> 20


def train(model, optimizer):
    for _ in range(STEPS):
        loss = model(torch.randn(BATCH, SIZE, device="cuda")).square().mean()
        loss.backward()
        with gpu_sleep.tag("train"):  # the first step allocates the optimizer's state
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)  # gradients have no tag: they are freed
    torch.cuda.empty_cache()
    return loss.item()


def generate(model, cache):
    with torch.no_grad():
        cache.copy_(model(torch.randn(BATCH, SIZE, device="cuda")))
    torch.cuda.empty_cache()  # a wake cannot use memory that PyTorch's allocator caches


def main():
    with gpu_sleep.tag("weights"):
        model = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE, device="cuda") for _ in range(LAYERS)))
    with gpu_sleep.tag("kv_cache"):
        cache = torch.zeros(BATCH, SIZE, device="cuda")
    gpu_sleep.policy("kv_cache", "discard", refillable=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    for turn in range(TURNS):
        gpu_sleep.sleep(tags=["kv_cache"])
        loss = train(model, optimizer)
        gpu_sleep.sleep(tags=["train"])
        gpu_sleep.wake(tags=["kv_cache"])  # reads as zeros
        print(f"turn {turn}: loss {loss:.3g}; {free_mib()} MiB are free to generate", flush=True)
        generate(model, cache)
        gpu_sleep.mark_refilled("kv_cache")
        gpu_sleep.wake(tags=["train"])


if __name__ == "__main__":
    main()
