# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Trains under torch.compile with cold caches: kernels are compiled, loaded and tuned while the program may sleep.

Compiles anew for several shapes, so that compiling goes on through the run.
"""

import os
import tempfile

CACHES = tempfile.TemporaryDirectory(prefix="gpu-sleep-compile-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(CACHES.name, "inductor")
os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHES.name, "triton")

import program # noqa: E402
from torch_common import GIB, add_tensors, make_deterministic, mlp # noqa: E402

import torch # noqa: E402
import torch._inductor.config # noqa: E402

WIDTH = 1024
BATCHES = (256, 192, 320)


def make_compilation_deterministic():
    """Choices by timing would differ from run to run. The names of these settings differ between versions."""
    for name, value in (("deterministic", True), ("benchmark_kernel", False), ("max_autotune", False)):
        if hasattr(torch._inductor.config, name):
            setattr(torch._inductor.config, name, value)
    if hasattr(torch._inductor.config.triton, "autotune_pointwise"):
        torch._inductor.config.triton.autotune_pointwise = False


def main():
    arguments = program.options(__doc__, steps=30, extra=[("--gib", 2.0), ("--layers", 6)])
    make_deterministic()
    make_compilation_deterministic()
    model = mlp(WIDTH, arguments.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = torch.empty(int(arguments.gib * arguments.scale * GIB / 4 / WIDTH), WIDTH, device="cuda")
    generator = torch.Generator(device="cuda").manual_seed(2)
    store.normal_(generator=generator)
    compiled = torch.compile(lambda x: (model(x) - x.roll(1, 1)).square().mean(), dynamic=False)
    digest = program.Digest()
    for step in program.paced(arguments):
        batch = BATCHES[step * len(BATCHES) // arguments.steps]
        begin = step * batch % (store.shape[0] - batch)
        loss = compiled(store[begin:begin + batch].clone())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.add(loss.detach().cpu().numpy())
    add_tensors(digest, [*model.parameters(), store])
    digest.finish()


main()
