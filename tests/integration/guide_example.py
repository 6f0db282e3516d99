# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Runs the example of the guide for PyTorch as it stands there, without PyTorch.

Usage: guide_example.py TREE
"""

import pathlib
import re
import sys

import torch_stand_in

TREE = pathlib.Path(sys.argv[1])
BYTES = torch_stand_in.BYTES


page = (TREE / "cli/guides/pytorch.md").read_text(encoding="utf-8")
example = re.search(r"^```python$\n(.*?)^```$", page, re.MULTILINE | re.DOTALL).group(1)
sys.path.insert(0, str(TREE / "agent/python"))
torch_stand_in.install()
names = {"build_model": torch_stand_in.Tensor, "build_cache": torch_stand_in.Tensor, "train": torch_stand_in.Tensor,
         "generate": lambda: None}
exec(compile(example, "the example of the guide", "exec"), names)
assert names["model"].bytes() == b"\7" * BYTES
assert names["cache"].bytes() == bytes(BYTES)
print("done")
