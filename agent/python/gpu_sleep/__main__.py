# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""python -m gpu_sleep COMMAND [ARGUMENT...]: runs the command gpu-COMMAND of this installation, even if it is not
on the path."""

import os
import sys

from typing import NoReturn

from ._processes import command_file
from .errors import Error

COMMANDS = ("run", "ps", "sleep", "wake", "switch", "reclaim", "inhibit", "enable", "doctor", "snapshot")


def _fail(why: object, status: int) -> NoReturn:
    print(f"python -m gpu_sleep: {why}", file=sys.stderr)
    sys.exit(status)


def main() -> None:
    command = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if command in ("-h", "--help"):
        print(f"{__doc__}\nCOMMAND is one of {', '.join(COMMANDS)}; each has --help.")
        return
    if command not in COMMANDS:
        _fail(f"{command!r} is not one of {', '.join(COMMANDS)}", 2)
    try:
        file = command_file(f"gpu-{command}")
        os.execv(file, [file, *sys.argv[2:]])
    except (Error, OSError) as failure:
        _fail(failure, 1)


if __name__ == "__main__":
    main()
