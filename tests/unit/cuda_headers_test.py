# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Holds what includes cuda.h against other versions of it: one that lacks what came after CUDA 12.4, and one that has
more. Each is a copy of the toolkit's own, from which names were taken or to which some were added.

Usage: cuda_headers_test.py CMAKE COMPILER INCLUDE_DIRECTORIES SOURCE_DIRECTORY BUILD_DIRECTORY
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop())
SOURCE = pathlib.Path(sys.argv.pop())
INCLUDES = sys.argv.pop().split(";")
COMPILER = sys.argv.pop()
CMAKE = sys.argv.pop()

# What cuda.h 12.4 lacks of the intercepted entry points, and the types that came with them.
LATER = """cuCtxCreate_v4 cuCtxSynchronize_v2 cuGreenCtxStreamCreate cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz
cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz cuMemDiscardBatchAsync
cuMemDiscardBatchAsync_ptsz cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz cuMemcpy3DBatchAsync
cuMemcpy3DBatchAsync_ptsz cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz cuMemcpyBatchAsync
cuMemcpyBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz
cuCtxGetDevice_v2 cuCtxRecordEvent cuCtxWaitEvent cuDeviceGetHostAtomicCapabilities cuDeviceGetP2PAtomicCapabilities
cuEventElapsedTime_v2 cuGreenCtxGetId cuKernelGetLibrary cuLogsCurrent cuLogsDumpToFile cuLogsDumpToMemory
cuLogsRegisterCallback cuLogsUnregisterCallback cuMemGetDefaultMemPool cuMemGetMemPool cuMemSetMemPool
cuStreamGetDevice cuStreamGetDevice_ptsz cuTensorMapEncodeIm2colWide""".split()
LATER_BESIDES = """CUDA_MEMCPY3D_BATCH_OP CUctxCreateParams CUmemDecompressParams CUmemcpy3DOperand CUmemcpyAttributes
CU_MEMCPY_OPERAND_TYPE_POINTER""".split()
# The member of CUmemPoolProps that was added later, in the place of bytes without a name.
POOL_USAGE = re.compile(r"unsigned short usage;.*\n\s*unsigned char reserved\[54\];")
ADDED = ["cuFutureSubmit", "cuMemAlloc_v3"]


class CudaHeaders(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def enterContext(self, manager):  # Python 3.11 has it
        value = manager.__enter__()
        self.addCleanup(manager.__exit__, None, None, None)
        return value

    def make_header(self, taken, added):
        """A directory with a copy of cuda.h that lacks the one names and declares the others."""
        text = next(pathlib.Path(each, "cuda.h") for each in INCLUDES
                    if pathlib.Path(each, "cuda.h").exists()).read_text(encoding="utf-8")
        for name in taken:
            text = re.sub(rf"\b{name}\b", f"taken_{name}", text)
        if taken:
            text, count = POOL_USAGE.subn("unsigned char reserved[56];", text)
            self.assertEqual(count, 1)
        text += "".join(f'extern "C" CUresult CUDAAPI {name}(int value);\n' for name in added)
        header = self.directory / "include" / "cuda.h"
        header.parent.mkdir(exist_ok=True)
        header.write_text(text, encoding="utf-8")
        return header.parent

    def declare(self, *first):
        """Makes declared_entry_points.hpp as the build does, and returns what the build says."""
        includes = ";".join([*map(str, first), *INCLUDES])
        made = subprocess.run([CMAKE, f"-DCOMPILER={COMPILER}", f"-DINCLUDES={includes}",
                               f"-DLIST={SOURCE}/agent/hooks/entry_points.hpp",
                               f"-DOUTPUT={self.directory}/declared/declared_entry_points.hpp",
                               "-P", f"{SOURCE}/agent/hooks/declared_entry_points.cmake"],
                              capture_output=True, text=True, check=True)
        return made.stderr

    def compile(self, target, sources, include):
        """Compiles them all as one, as `target` is, with the directory's cuda.h; the errors."""
        commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
        command = next(each for each in commands if f"/{target}.dir/" in each["command"])
        flags = [flag for flag in shlex.split(command["command"])
                 if re.match("-[DIWfs]", flag) and not flag.endswith("/declared")]
        together = self.directory / f"{target}.cpp"
        together.write_text("".join(f'#include "{source}"\n' for source in sorted(sources)), encoding="utf-8")
        return subprocess.run([COMPILER, "-fsyntax-only", f"-I{self.directory}/declared", *flags,
                               *(f"-isystem{each}" for each in [include, *INCLUDES]), str(together)],
                              capture_output=True, text=True, check=False, cwd=command["directory"]).stderr

    def compile_hooks(self, include):
        return self.compile("gpu_sleep_hooks", (SOURCE / "agent/hooks").glob("*.cpp"), include)

    def test_an_older_one_builds_and_what_it_lacks_is_named(self):
        older = self.make_header(LATER + LATER_BESIDES, [])
        said = self.declare(older)
        self.assertIn("cuda.h is older than the list of entry points. Built without: " + " ".join(sorted(LATER)) + "\n",
                      said)
        self.assertNotIn("Not intercepted", said)
        self.assertEqual(self.compile_hooks(older), "")
        self.assertEqual(self.compile("gpu_sleep_driver", (SOURCE / "src/driver").glob("*.cpp"), older), "")
        self.assertEqual(self.compile("gpu-sleep-agent", (SOURCE / "agent/intercepted").glob("*.cpp"), older), "")

    def test_a_newer_one_builds_and_what_it_has_besides_is_named(self):
        newer = self.make_header([], ADDED)
        said = self.declare(newer)
        self.assertIn("cuda.h is newer than the list of entry points. Not intercepted: " + " ".join(ADDED) + "\n", said)
        self.assertNotIn("Built without", said)
        self.assertEqual(self.compile_hooks(newer), "")

    def test_this_one_lacks_nothing_and_a_list_for_another_is_noticed(self):
        self.assertEqual(self.declare(), "")
        errors = self.compile_hooks(self.make_header(["cuMemBatchDecompressAsync"], []))
        self.assertIn("cuMemBatchDecompressAsync", errors)


if __name__ == "__main__":
    unittest.main()
