# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Tags, as a program gives them that may run without gpu-run."""

import contextlib
import ctypes


@contextlib.contextmanager
def tagged(tag):
    """Memory that is allocated inside has this tag, if the agent is there."""
    agent = ctypes.CDLL(None)
    is_there = hasattr(agent, "gpu_sleep_push_tag")
    if is_there and agent.gpu_sleep_push_tag(tag.encode()) != 0:
        raise RuntimeError("the tag was refused")
    try:
        yield
    finally:
        if is_there:
            agent.gpu_sleep_pop_tag()
