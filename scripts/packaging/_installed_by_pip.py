# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Where pip has put the agent and the commands: below a directory above the package, the nearest that has them, in an
environment as in a home directory. Not resolved: an installer may have linked the package's files."""

import pathlib
from typing import Optional

_HERE = pathlib.Path(__file__).absolute().parent
LIBRARIES: Optional[pathlib.Path] = next(
    (place for place in (above / "libexec/gpu-sleep" for above in _HERE.parents) if place.is_dir()), None)
COMMANDS: Optional[pathlib.Path] = LIBRARIES.parents[1] / "bin" if LIBRARIES else None
