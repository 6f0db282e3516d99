# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Where pip has put the agent and the commands: in lib and bin of a directory above the package, the nearest that has
them, in an environment as in a home directory. Not resolved: an installer may have linked the package's files."""

import pathlib
from typing import Optional

_HERE = pathlib.Path(__file__).absolute().parent
_PREFIX: Optional[pathlib.Path] = next(
    (above for above in _HERE.parents if (above / "lib/libgpu-sleep-agent.so").is_file()), None)
LIBRARIES: Optional[pathlib.Path] = _PREFIX / "lib" if _PREFIX else None
COMMANDS: Optional[pathlib.Path] = _PREFIX / "bin" if _PREFIX else None
