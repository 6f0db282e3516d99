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
import shutil
import subprocess
import sys
import unittest

BUILD = pathlib.Path(sys.argv.pop())
SOURCE = pathlib.Path(sys.argv.pop())
INCLUDES = sys.argv.pop().split(";")
COMPILER = sys.argv.pop()
CMAKE = sys.argv.pop()

LIST = SOURCE / "agent/hooks/entry_points.txt"
# What cuda.h 12.4 lacks: entry points, and the types that came with them.
LATER = sorted(re.findall(r"(\w+)\+", LIST.read_text(encoding="utf-8")))
LATER_BESIDES = """CUDA_MEMCPY3D_BATCH_OP CUctxCreateParams CUmemDecompressParams CUmemcpy3DOperand CUmemcpyAttributes
CU_MEMCPY_OPERAND_TYPE_POINTER""".split()
# The member of CUmemPoolProps that was added later, in the place of bytes without a name.
POOL_USAGE = re.compile(r"unsigned short usage;.*\n\s*unsigned char reserved\[54\];")
ADDED = ["cuFutureSubmit", "cuMemAlloc_v3"]


class CudaHeaders(unittest.TestCase):
    def setUp(self):
        self.directory = BUILD / "cuda_headers" / self.id()  # the same in every clone, for the compiler cache
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)

    def make_header(self, taken, added):
        """A directory with a copy of cuda.h that lacks the one names and declares the others."""
        text = next(pathlib.Path(each, "cuda.h") for each in INCLUDES
                    if pathlib.Path(each, "cuda.h").exists()).read_text(encoding="utf-8")
        if taken:
            text = re.sub(rf"\b({'|'.join(taken)})\b", r"taken_\1", text)
            text, count = POOL_USAGE.subn("unsigned char reserved[56];", text)
            self.assertEqual(count, 1)
        text += "".join(f'extern "C" CUresult CUDAAPI {name}(int value);\n' for name in added)
        header = self.directory / "include" / "cuda.h"
        header.parent.mkdir()
        header.write_text(text, encoding="utf-8")
        return header.parent

    def declare(self, *first):
        """Makes declared_entry_points.hpp as the build does; what that says, and what it made."""
        made = self.directory / "declared" / "declared_entry_points.hpp"
        includes = ";".join([*map(str, first), *INCLUDES])
        said = subprocess.run([CMAKE, f"-DCOMPILER={COMPILER}", f"-DINCLUDES={includes}", f"-DLIST={LIST}",
                               f"-DOUTPUT={made}", "-P", f"{SOURCE}/agent/hooks/declared_entry_points.cmake"],
                              capture_output=True, text=True, check=True).stderr
        return said, made.read_text(encoding="utf-8")

    def compile(self, target, patterns, *first, without=()):
        """Compiles the sources as one, as those of `target`, with the directory's cuda.h; the errors."""
        commands = json.loads((BUILD / "compile_commands.json").read_text(encoding="utf-8"))
        command = next(each for each in commands if f"/{target}.dir/" in each["command"])
        flags = [flag for flag in shlex.split(command["command"])
                 if re.match("-[DIWfs]", flag) and not flag.endswith("/declared")]
        together = self.directory / "together.cpp"
        together.write_text("".join(f'#include "{source.relative_to(SOURCE)}"\n' for pattern in patterns
                                    for source in sorted(SOURCE.glob(pattern)) if source.name not in without), encoding="utf-8")
        cache = ["ccache"] if shutil.which("ccache") else []
        return subprocess.run([*cache, COMPILER, f"-I{self.directory}/declared", *flags, f"-I{SOURCE}",
                               *(f"-isystem{each}" for each in [*first, *INCLUDES]),
                               '-DGPU_SLEEP_FATBIN="/dev/null"', '-DGPU_SLEEP_BLOCK_CODE_FATBIN="/dev/null"', "-c", str(together), "-o", str(self.directory / "together.o")],
                              capture_output=True, text=True, check=False, cwd=command["directory"]).stderr

    def test_an_older_one_builds_and_what_it_lacks_is_named(self):
        older = self.make_header(LATER + LATER_BESIDES, [])
        said, _ = self.declare(older)
        self.assertIn("cuda.h is older than the list of entry points. Built without: " + " ".join(LATER) + "\n", said)
        self.assertNotIn("Not intercepted", said)
        self.assertEqual(self.compile("gpu_sleep_hooks", ["agent/hooks/*.cpp"], older), "")
        # These name a file in their assembler: the compiler cache takes no such source.
        binary = ("fingerprint_key.cpp", "block_coder.cpp")
        sources = ["src/driver/*.cpp", "agent/intercepted/*.cpp", "agent/sharing/*.cpp"]
        self.assertEqual(self.compile("gpu-sleep-agent", sources, older, without=binary), "")
        self.assertEqual(self.compile("gpu-sleep-agent", [f"src/driver/{each}" for each in binary], older), "")

    def test_with_a_newer_one_the_product_is_built_and_its_tests_are_not(self):
        said, made = self.declare()
        self.assertEqual(said, "")
        self.assertEqual(self.compile("unit_tests", ["tests/unit/entry_points_test.cpp"]), "")
        newer = self.make_header([], ADDED)
        said, made_of_newer = self.declare(newer)
        named = " ".join(ADDED)
        self.assertIn(f"cuda.h is newer than the list of entry points. Not intercepted: {named}\n", said)
        self.assertNotIn("Built without", said)
        self.assertEqual(made_of_newer, f'{made}#define GPU_SLEEP_UNCLASSED "{named}"\n')
        self.assertIn(f"cuda.h declares {named}, of no class: write each into agent/hooks/entry_points.txt",
                      self.compile("unit_tests", ["tests/unit/entry_points_test.cpp"], newer))


if __name__ == "__main__":
    unittest.main()
