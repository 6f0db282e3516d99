# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Runs the PyTorch example of gpu-sleep(7) as it stands there, without PyTorch.

Usage: manual_example.py TREE
"""

import pathlib
import re
import sys

import torch_stand_in

TREE = pathlib.Path(sys.argv[1])
BYTES = torch_stand_in.BYTES


class Model:
    def to(self, device):
        assert device == "cuda"
        self.weights = torch_stand_in.Tensor()
        return self


page = (TREE / "cli/man/gpu-sleep.7").read_text(encoding="utf-8")
example = re.search(r"^\.SH PYTORCH$.*?^\.nf$\n(.*?)^\.fi$", page, re.MULTILINE | re.DOTALL).group(1).replace("\\", "")
sys.path.insert(0, str(TREE / "agent/python"))
torch_stand_in.install()
names = {"build_model": Model, "build_cache": lambda model: torch_stand_in.Tensor(), "train": torch_stand_in.Tensor,
         "generate": lambda: None}
exec(compile(example, "the example of gpu-sleep(7)", "exec"), names)
assert names["model"].weights.bytes() == b"\7" * BYTES
assert names["cache"].bytes() == bytes(BYTES)
print("done")
