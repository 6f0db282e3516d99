# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Compares agent/hooks/entry_points.hpp with the toolkit's cuda.h, so that a new entry point is noticed: every one that
the header declares, those of older versions among them, is in exactly one of the lists.

Usage: entry_points_test.py COMPILER INCLUDE_DIRECTORY LIST
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

LIST = pathlib.Path(sys.argv.pop())
INCLUDES = sys.argv.pop()
COMPILER = sys.argv.pop()

HEADERS = '#include <cuda.h>\n#include <cudaProfiler.h>\n'
LISTS = {"GPU_SLEEP_OWN_HOOKS", "GPU_SLEEP_SUBMITTING", "GPU_SLEEP_TAKING", "GPU_SLEEP_ASKING",
         "GPU_SLEEP_HARMLESS"}


def declared(source):
    """The names of all functions of the driver in the C++ text, as the preprocessor leaves it."""
    with tempfile.TemporaryDirectory() as directory:
        file = pathlib.Path(directory, "all.cpp")
        file.write_text(source, encoding="utf-8")
        text = subprocess.run([COMPILER, "-E", "-P", "-D__CUDA_API_VERSION_INTERNAL",
                               "-D__CUDA_API_VERSION_INTERNAL_ODR", f"-I{INCLUDES}", str(file)],
                              capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", text))


def listed(text):
    """Each list's names."""
    macros = re.findall(r"^#define (GPU_SLEEP_\w+)\(X\)((?:.*\\\n)*.*)$", text, re.MULTILINE)
    return {name: re.findall(r"\bX\((\w+)\)", body) for name, body in macros if name in LISTS}


def findings(lists, header):
    """What is wrong with the lists, line by line."""
    counts = collections.Counter(name for names in lists.values() for name in names)
    for name in sorted(header - counts.keys()):
        yield f"{name} is in cuda.h and in no list: say what it touches"
    for name in sorted(counts.keys() - header):
        yield f"{name} is in a list and not in cuda.h"
    for name in sorted(name for name, count in counts.items() if count > 1):
        yield f"{name} is listed {counts[name]} times"


class EntryPoints(unittest.TestCase):
    lists = listed(LIST.read_text(encoding="utf-8"))

    def test_each_is_listed_once(self):
        self.assertEqual(self.lists.keys(), LISTS)
        header = declared(HEADERS)
        self.assertGreater(len(header), 500)
        self.assertEqual(list(findings(self.lists, header)), [])

    def assert_one(self, found, name):
        found = list(found)
        self.assertEqual(len(found), 1, found)
        self.assertIn(name, found[0].split())

    def test_a_new_one_is_noticed(self):
        header = declared(HEADERS + "CUresult CUDAAPI cuBrandNew_v7(int value);\n")
        self.assert_one(findings(self.lists, header), "cuBrandNew_v7")

    def test_one_that_went_is_noticed(self):
        header = declared(HEADERS) - {"cuMemAlloc_v2"}
        self.assert_one(findings(self.lists, header), "cuMemAlloc_v2")

    def test_one_listed_twice_is_noticed(self):
        lists = self.lists | {"GPU_SLEEP_TAKING": [*self.lists["GPU_SLEEP_TAKING"], "cuInit"]}
        self.assert_one(findings(lists, declared(HEADERS)), "cuInit")


if __name__ == "__main__":
    unittest.main()
