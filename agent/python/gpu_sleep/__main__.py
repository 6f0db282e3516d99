# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""python -m gpu_sleep COMMAND [ARGUMENT...]: runs the command gpu-COMMAND of this installation, where scripts are not
on the path. COMMAND is run, ps, sleep, wake, reclaim, inhibit, doctor or snapshot; each has --help."""

import os
import sys

from ._processes import command_file
from .errors import Error

COMMANDS = ("run", "ps", "sleep", "wake", "reclaim", "inhibit", "doctor", "snapshot")


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in ("-h", "--help"):
        print(__doc__)
        return
    if command not in COMMANDS:
        sys.exit(f"python -m gpu_sleep: {command!r} is none of {', '.join(COMMANDS)}" if command else __doc__)
    try:
        file = command_file(f"gpu-{command}")
        os.execv(file, [file, *sys.argv[2:]])
    except (Error, OSError) as failure:
        sys.exit(f"python -m gpu_sleep: {failure}")


if __name__ == "__main__":
    main()
