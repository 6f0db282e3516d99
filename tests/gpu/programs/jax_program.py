# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""JAX: a jitted training step; memory comes from XLA's own allocator."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# Without these, the choice of kernels depends on timing.
os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") +
                           " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0").strip()

import program # noqa: E402

import jax # noqa: E402
import jax.numpy as jnp # noqa: E402
import numpy # noqa: E402

WIDTH = 2048


@jax.jit
def train(weights, inputs):
    def loss_of(layers):
        x = inputs
        for layer in layers:
            x = x + 0.1 * jnp.tanh(x @ layer)
        return jnp.mean((x - jnp.roll(inputs, 1, 1)) ** 2)

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return loss, [w - 0.1 * g for w, g in zip(weights, gradients)]


def main():
    arguments = program.options(__doc__, steps=60, extra=[("--layers", 32)])
    layers = max(1, round(arguments.layers * arguments.scale))
    keys = jax.random.split(jax.random.PRNGKey(1), layers)
    weights = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH ** 0.5 for key in keys]
    digest = program.Digest()
    for step in program.paced(arguments):
        inputs = jax.random.normal(jax.random.PRNGKey(1000 + step), (512, WIDTH))
        loss, weights = train(weights, inputs)
        digest.add(numpy.asarray(loss))
    for layer in weights:
        digest.add(numpy.ascontiguousarray(layer))
    digest.finish()


main()
