# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What compare.py calls slower, and what plot.py draws.

Usage: bench_scripts_test.py
"""

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import compare  # noqa: E402
import plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def figure(samples, unit="s", **more):
    return {"unit": unit, "samples": samples, "value": sorted(samples)[len(samples) // 2], **more}


def bench(**figures):
    return {"sleep_bench": {"figures": [{"name": name, **value} for name, value in figures.items()]}}


def point(series, axis, at, value):
    return {"name": f"{series} {at}", **figure([value]), "series": series, "axis": axis, "at": at}


class Scratch(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.addCleanup(self._directory.cleanup)

    def path(self, name, document=None):
        path = pathlib.Path(self._directory.name) / name
        if document is not None:
            path.write_text(json.dumps(document), encoding="utf-8")
        return path


class Compare(Scratch):
    def verdict(self, old, new):
        figures = [compare.figures_in(self.path(f"{i}.json", bench(it=value))) for i, value in enumerate((old, new))]
        return compare.verdict(*(found["sleep_bench", "it"] for found in figures))

    def test_what_is_beyond_the_noise(self):
        self.assertEqual(self.verdict(figure([1.0, 1.01, 1.02]), figure([1.1, 1.11, 1.12])), "slower")
        self.assertEqual(self.verdict(figure([1.1, 1.11, 1.12]), figure([1.0, 1.01, 1.02])), "faster")

    def test_what_is_within_the_noise(self):
        self.assertEqual(self.verdict(figure([1.0, 1.01, 1.2]), figure([1.1, 1.15, 1.16])), "")  # samples overlap
        self.assertEqual(self.verdict(figure([1.0, 1.0, 1.0]), figure([1.02, 1.02, 1.02])), "")  # hardly
        self.assertEqual(self.verdict(figure([1.0]), figure([1.08])), "")
        self.assertEqual(self.verdict(figure([1.0]), figure([1.2])), "slower")

    def test_rates_are_better_when_higher_and_ratios_are_not_judged(self):
        self.assertEqual(self.verdict(figure([50, 51, 52], "GB/s"), figure([40, 41, 42], "GB/s")), "slower")
        self.assertEqual(self.verdict(figure([40, 41, 42], "GB/s"), figure([50, 51, 52], "GB/s")), "faster")
        self.assertEqual(self.verdict(figure([4, 4, 4], "x"), figure([8, 8, 8], "x")), "")
        self.assertEqual(self.verdict(figure([1, 1, 1], "x", target=1.1), figure([2, 2, 2], "x", target=1.1)), "slower")

    def test_figures_that_cannot_be_compared_are_not(self):
        self.assertEqual(self.verdict(figure([1, 1, 1]), figure([9, 9, 9], "MiB")), "")
        self.assertEqual(self.verdict(figure([0, 0, 0]), figure([9, 9, 9])), "")

    def test_it_reads_google_benchmark(self):
        path = self.path("g.json", {"codec_bench": {"benchmarks": [{"name": "e", "real_time": 3, "time_unit": "ns"}]}})
        self.assertEqual(compare.figures_in(path)["codec_bench", "e"].value, 3)

    def run_it(self, *arguments):
        done = subprocess.run([sys.executable, HERE / "compare.py", *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_it_fails_only_if_asked_to(self):
        old = self.path("old.json", bench(a=figure([1, 1, 1]), b=figure([1, 1, 1])))
        new = self.path("new.json", bench(a=figure([2, 2, 2]), c=figure([1, 1, 1])))
        status, out = self.run_it(old, new)
        self.assertEqual(status, 0)
        self.assertRegex(out, r"a +1 -> +2 s +2\.00  slower")
        self.assertIn("1 figures are in the old file alone", out)
        self.assertEqual(self.run_it("--check", old, new)[0], 1)
        self.assertEqual(self.run_it("--check", new, new)[0], 0)

    def test_it_says_that_the_machine_is_another(self):
        documents = [{"sleep_bench": {"figures": [{"name": "link to host", **figure([rate], "GB/s")}]}} for rate in (55, 25)]
        status, out = self.run_it(self.path("old.json", documents[0]), self.path("new.json", documents[1]))
        self.assertEqual(status, 0)
        self.assertIn("the link to host is 0.45 times what it was", out)


class Plot(Scratch):
    def test_a_straight_line_is_found(self):
        line = plot.fit([(x, 0.5 + 0.25 * x) for x in (1, 4, 16, 64, 100)])
        self.assertAlmostEqual(line.base, 0.5)
        self.assertAlmostEqual(line.slope, 0.25)
        self.assertAlmostEqual(plot.farthest(line, [(8, 2.5)])[0], 0)

    def test_the_farthest_figure_is_told(self):
        line = plot.Line(0, 1)
        share, at = plot.farthest(line, [(1, 1), (2, 4), (10, 11)])
        self.assertAlmostEqual(share, 0.5)
        self.assertEqual(at, 2)

    def test_one_figure_is_a_level_line(self):
        self.assertEqual(plot.fit([(3, 7)]), plot.Line(7, 0))

    def test_the_drawing_has_every_figure_and_a_line_for_each_series(self):
        figures = [point(series, axis, at, (at + 1) * factor)
                   for axis in ("GiB", "thousand <ranges>") for series, factor in (("first", 2), ("wake", 1))
                   for at in (1, 4, 16)]
        source = self.path("bench.json", {"sleep_bench": {"figures": figures}, "codec_bench": {"benchmarks": []}})
        target = self.path("plot.svg")
        printed = io.StringIO()
        sys.argv = ["plot.py", str(source), str(target)]
        with contextlib.redirect_stdout(printed):
            self.assertEqual(plot.main(), 0)
        self.assertEqual(len(printed.getvalue().splitlines()), 4)
        self.assertIn("first: 2.0000 s + 2.00000 s per GiB; at most 0.0 % away", printed.getvalue())
        root = xml.etree.ElementTree.parse(target).getroot()
        self.assertEqual(len([line for line in root.iter(f"{SVG}line") if line.get("class") == "fit"]), 4)
        self.assertEqual(len(list(root.iter(f"{SVG}circle"))), 12)

    def test_without_series_it_says_so(self):
        sys.argv = ["plot.py", str(self.path("bench.json", bench(a=figure([1])))), "none.svg"]
        with self.assertRaisesRegex(SystemExit, "has no series"):
            plot.main()


if __name__ == "__main__":
    unittest.main()
