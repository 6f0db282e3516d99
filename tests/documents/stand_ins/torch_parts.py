# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What examples/trainer.py needs of PyTorch besides tags: memory where PyTorch would take it, and no arithmetic."""

import contextlib
import sys
import types

import torch_stand_in
from torch_stand_in import Tensor


class Result:
    """What a model gives: it can become a loss, whose gradients appear when it goes backward."""

    def __init__(self, parameters):
        self.parameters = parameters

    def square(self):
        return self

    mean = square

    def backward(self):
        for parameter in self.parameters:
            parameter.grad = Tensor()

    def item(self):
        return 0.0


class Parameter(Tensor):
    grad = None


class Linear:
    def __init__(self, inputs, outputs, device):
        assert device == "cuda"
        self.weight = Parameter()


class Sequential:
    def __init__(self, *layers):
        self.layers = layers

    def parameters(self):
        return [layer.weight for layer in self.layers]

    def __call__(self, batch):
        for parameter in self.parameters():
            assert parameter.values() == {7}
        return Result(self.parameters())


class Adam:
    def __init__(self, parameters, lr):
        self.parameters, self.state = parameters, []

    def step(self):
        if not self.state:
            self.state = [Tensor() for _ in self.parameters]
        for tensor in self.state:
            assert tensor.values() == {7}

    def zero_grad(self, set_to_none):
        for parameter in self.parameters:
            parameter.grad.free()
            parameter.grad = None


class Cache(Tensor):
    def copy_(self, result):
        assert self.values() == {0}  # a sleep has dropped it
        self.fill_(7)


def install():
    torch_stand_in.install()
    torch = sys.modules["torch"]
    torch.nn = types.SimpleNamespace(Linear=Linear, Sequential=Sequential)
    torch.optim = types.SimpleNamespace(Adam=Adam)
    torch.no_grad = contextlib.nullcontext
    torch.randn = torch.zeros = lambda *shape, device: Cache()
    torch.cuda.mem_get_info = torch_stand_in.memory_info
