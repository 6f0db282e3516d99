# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""That the benchmarks run on the simulated driver, where their times mean nothing, and say what they are asked for; that
the plain algorithm and models that take turns keep every byte; and that a figure which got slower is noticed.

Usage: bench_test.py TREE BUILD-DIR
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve()
TREE = pathlib.Path(sys.argv.pop()).resolve()
STEPS = ["populate", "pin", "await_host", "fingerprint", "copy", "create", "map", "access", "unmap", "release"]
IN_SMALL = ("--repeats", "1")
sys.dont_write_bytecode = True
sys.path.insert(0, str(TREE / "tests" / "bench"))

import compare  # noqa: E402


class Benchmarks(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name) / "figures.json"

    def figures(self, *command):
        """What the command has written, and its figures by their names."""
        subprocess.run([*command, "--json", self.path], stdout=subprocess.DEVNULL, timeout=800, check=True)
        document = json.loads(self.path.read_text(encoding="utf-8"))
        for figure in document["figures"]:
            self.assertLessEqual({"name", "unit", "value", "samples"}, figure.keys())
        return document, {figure["name"]: figure["value"] for figure in document["figures"]}

    def test_every_case_of_sleep_bench(self):
        document, found = self.figures(BUILD / "bin" / "sleep_bench", "--scale", "0.002", "--first-sleeps", "1", "--pause", "0",
                                       *IN_SMALL)
        works = ("8B model", "40 GiB, all kept", "105 GiB, 1 of them written", "1.2 GB model",
                 "8B model, host memory prepared", "8B model, deep")
        for name in ("link to host", "8B model: all changed / first sleep", "per tensor, retained / ours: wake",
                     "awake, a launch: retained / not", "two 8B models: switch by a command and a request",
                     "8B model: deep wake / the driver alone", "3 deep sleepers of 1 GiB: the longest of those",
                     *(f"{work}: {what}" for work in works
                       for what in ("first sleep", "later sleep, unchanged", "wake", "wake at once"))):
            self.assertGreater(found[name], 0, name)
        self.assertLess(found["8B model: held by the agent, of the same"], 1.2)
        parts = {each["name"]: each["parts"] for each in document["breakdowns"]}
        for each in parts.values():
            self.assertEqual(list(each), STEPS)
        for step in ("populate", "pin", "fingerprint", "copy", "unmap", "release"):
            self.assertGreater(parts["8B model: first sleep"][step], 0, step)
        for step in ("fingerprint", "copy", "create", "map", "access"):
            self.assertGreater(parts["8B model: wake"][step], 0, step)

    def test_interception_bench(self):
        _, found = self.figures(BUILD / "bin" / "gpu-run", "--", BUILD / "bin" / "interception_bench", *IN_SMALL)
        self.assertLessEqual({"one passage, 1 thread", "an empty launch", "allocate and free 2.00 MiB"}, found.keys())

    def test_coder_bench(self):
        _, found = self.figures(BUILD / "bin" / "coder_bench", "--scale", "0.002", *IN_SMALL)
        self.assertLess(found["bf16: size"], 0.71)
        self.assertEqual(found["random: size"], 1)
        for name in ("16.06 GB of bf16: measure", "fp32: decode, launches of 64 MiB", "out, copied by 64 MiB",
                     "in just after a release, straight by 64 MiB"):
            self.assertGreater(found[name], 0, name)

    def test_models_that_take_turns(self):
        _, found = self.figures(TREE / "tests" / "bench" / "switch_bench.py", "--build", BUILD, "--model", "plain",
                                "--scale", "0.004", "--switches", "3", "--directory", self.path.parent)
        for way in ("both", "cold", "host", "touch", "reload", "tmpfs", "deep"):
            self.assertGreater(found[f"{way}: switch to 8B"], 0)

    def test_what_is_beyond_the_noise(self):
        for unit, old, new, verdict in (("s", [1, 1.01, 1.02], [1.1, 1.11, 1.12], "slower"), ("s", [2, 2, 2], [1, 1, 1], "faster"),
                                        ("s", [1, 1.01, 1.2], [1.1, 1.15, 1.16], ""), ("s", [1, 1, 1], [1.02, 1.02, 1.02], ""),
                                        ("s", [1], [1.08], ""), ("s", [1], [1.2], "slower"),
                                        ("GB/s", [50, 51, 52], [40, 41, 42], "slower"), ("x", [4, 4, 4], [8, 8, 8], "")):
            figures = [{"unit": unit, "samples": samples, "value": samples[len(samples) // 2]} for samples in (old, new)]
            self.assertEqual(compare.verdict(*figures), verdict, (unit, old, new))

    def test_the_script_notices_what_got_slower(self):
        old, new = self.path.with_name("old.json"), BUILD / "bench.json"
        figure = {"name": "1.2 GB model: wake", "unit": "s", "samples": [1e-9] * 3, "value": 1e-9}
        old.write_text(json.dumps({"sleep_bench": {"figures": [figure]}}), encoding="utf-8")
        done = subprocess.run([TREE / "scripts" / "bench", "--build-dir", BUILD, "--cases", "small", "--compare", old, "--check",
                               "sleep_bench"], capture_output=True, text=True, timeout=200, check=False)
        self.assertRegex(done.stdout, r"1\.2 GB model: wake +1e-09 -> .* slower")
        self.assertEqual(done.returncode, 1, done.stderr)
        done = subprocess.run([TREE / "tests" / "bench" / "compare.py", "--check", new, new], capture_output=True, text=True,
                              check=False)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (0, "nothing got slower"))


if __name__ == "__main__":
    unittest.main()
