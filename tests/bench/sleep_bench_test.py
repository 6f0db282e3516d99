# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What sleep_bench says on the simulated driver: that its cases can be chosen, that its figures can be drawn and
compared, and that the plain algorithm beside which they stand brings every byte back.

Usage: sleep_bench_test.py TREE BUILD-DIR
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve()
TREE = pathlib.Path(sys.argv.pop()).resolve()
BENCH = BUILD / "bin" / "sleep_bench"
MIB = 1 << 20
STEPS = ["populate", "pin", "await_host", "fingerprint", "copy", "create", "map", "access", "unmap", "release"]


class Server:
    """`sleep_bench --serve`, to which lines are told."""

    def __enter__(self):
        self._process = subprocess.Popen([BENCH, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_):
        self._process.communicate("quit\n", timeout=30)

    def ask(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def free(self):
        return int(self.ask("memory").split()[0])


class PerTensor(unittest.TestCase):
    def check_cycles(self, host):
        with Server() as server:
            server.ask(f"per-tensor {host}")
            self.assertEqual(server.ask(f"hold-tensors kept {5 * MIB} {MIB + 512} {70 * MIB}"), "ok")
            self.assertEqual(server.ask(f"hold-tensors dropped {3 * MIB}"), "ok")
            awake = server.free()
            for _ in range(2):
                self.assertGreater(float(server.ask("sleep-tensors")), 0)
                self.assertGreaterEqual(server.free() - awake, 79 * MIB)
                self.assertGreater(float(server.ask("wake-tensors")), 0)
                self.assertEqual(server.free(), awake)
                self.assertEqual(server.ask("check-tensors"), "ok")
            # What changed between two sleeps comes back changed, also where a copy of the last one is left.
            server.ask("change 1")
            self.assertIn("is not what it was", server.ask("check-tensors"))
            server.ask("sleep-tensors")
            server.ask("wake-tensors")
            self.assertIn("is not what it was", server.ask("check-tensors"))

    def test_contents_come_back(self):
        self.check_cycles("given_back")

    def test_contents_come_back_by_way_of_retained_memory(self):
        self.check_cycles("retained")


class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls._directory.cleanup)
        cls.path = pathlib.Path(cls._directory.name) / "sleep_bench.json"
        done = subprocess.run([BENCH, "--cases", "size,model,training", "--scale", "0.002", "--repeats", "1", "--first-sleeps",
                               "1", "--pause", "0", "--json", cls.path], capture_output=True, text=True, timeout=100, check=True)
        cls.out, cls.err = done.stdout, done.stderr
        cls.document = json.loads(cls.path.read_text(encoding="utf-8"))
        cls.figures = {figure["name"]: figure for figure in cls.document["figures"]}

    def test_only_those_run_that_were_asked_for(self):
        self.assertEqual([line.split(":")[0] for line in self.err.splitlines()], ["model", "training", *(f"size-{gib}" for gib in (1, 4, 16, 64, 100))])
        self.assertNotIn("1.2 GB model: wake", self.figures)

    def test_growth_stands_in_series(self):
        points = [figure["at"] for figure in self.document["figures"] if figure.get("series") == "wake"]
        self.assertEqual(len(points), 5)
        self.assertEqual(points, sorted(points))

    def test_steps_are_told_and_those_that_must_take_time_do(self):
        breakdowns = {each["name"]: each for each in self.document["breakdowns"]}
        for each in breakdowns.values():
            self.assertEqual(list(each["parts"]), STEPS)
            self.assertGreater(each["seconds"], 0)
        first = breakdowns["100.0 GiB: first sleep"]["parts"]
        for step in ("populate", "pin", "fingerprint", "copy", "unmap", "release"):
            self.assertGreater(first[step], 0, step)
        wake = breakdowns["100.0 GiB: wake"]["parts"]
        for step in ("fingerprint", "copy", "create", "map", "access"):
            self.assertGreater(wake[step], 0, step)
        self.assertEqual((wake["unmap"], wake["release"], first["create"]), (0, 0, 0))
        self.assertIn("Where the time goes", self.out)

    def test_what_changed_is_less_than_all(self):
        self.assertIn("8B model: all changed / first sleep", self.figures)
        self.assertLess(self.figures["8B model: held by the agent, of the same"]["value"], 1.2)

    def run_script(self, *arguments):
        old = pathlib.Path(self._directory.name) / "old.json"
        figure = {"name": "1.2 GB model: wake", "unit": "s", "samples": [1e-9] * 3, "value": 1e-9}
        old.write_text(json.dumps({"sleep_bench": {"figures": [figure]}}), encoding="utf-8")
        return subprocess.run([TREE / "scripts" / "bench", "--build-dir", BUILD, "--cases", "small", "--compare", old, *arguments,
                               "sleep_bench"], capture_output=True, text=True, timeout=100, check=False)

    def test_the_script_compares_and_fails_if_asked_to(self):
        done = self.run_script("--check")
        self.assertRegex(done.stdout, r"1\.2 GB model: wake +1e-09 -> .* slower")
        self.assertEqual(done.returncode, 1, done.stderr)

    def test_its_figures_can_be_drawn(self):
        bench = pathlib.Path(self._directory.name) / "bench.json"
        bench.write_text(json.dumps({"sleep_bench": self.document}), encoding="utf-8")
        svg = bench.with_suffix(".svg")
        done = subprocess.run([sys.executable, TREE / "tests" / "bench" / "plot.py", bench, svg], capture_output=True, text=True,
                              timeout=60, check=True)
        self.assertEqual(len(done.stdout.splitlines()), 3)
        self.assertIn("<svg", svg.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
