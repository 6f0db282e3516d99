# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Where the agent and the commands of this installation are. An installation has another file in place of this one; in
the source tree there is nothing beside the package."""

import pathlib
from typing import Optional

LIBRARIES: Optional[pathlib.Path] = None
COMMANDS: Optional[pathlib.Path] = None
