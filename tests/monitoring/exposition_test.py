# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The strict check of metrics finds what is wrong with them."""

import unittest

from exposition import check

GOOD = """# HELP a_bytes Bytes.
# TYPE a_bytes gauge
a_bytes{x="1"} 1
a_bytes{x="2\\"\\\\"} 2
# HELP b_total Counts.
# TYPE b_total counter
b_total 3
# HELP c_seconds Times.
# TYPE c_seconds histogram
c_seconds_bucket{le="0.1"} 1
c_seconds_bucket{le="+Inf"} 2
c_seconds_sum{} 1.5
c_seconds_count{} 2
"""
# What is replaced, and by what.
FAULTS = {
    "there already": ('x="2\\"\\\\"', 'x="1"'),
    "a family in two places": ("# HELP c_seconds", "# HELP a_bytes"),
    "not in its family": ('a_bytes{x="1"}', 'other{x="1"}'),
    "not a number": ("} 2\n# HELP b", "} two\n# HELP b"),
    "not a sample": ('{x="1"}', '{x=1}'),
    "no HELP, or no known TYPE": ("# HELP b_total Counts.\n", ""),
    "counters, and only they, end in _total": ("b_total", "b"),
    "not a base unit": ("c_seconds", "c_milliseconds"),
    "buckets that do not rise to +Inf": ('{le="0.1"} 1', '{le="0.1"} 3'),
    "no sum, or a count that is not that of +Inf": ("c_seconds_count{} 2", "c_seconds_count{} 1"),
    "less than zero": ("b_total 3", "b_total -3"),
    "late, or said twice": ("# TYPE a_bytes gauge\n", "# TYPE a_bytes gauge\n# TYPE a_bytes gauge\n"),
}


class Exposition(unittest.TestCase):
    def test_takes_what_is_right(self):
        self.assertEqual(check(GOOD), [])
        self.assertEqual(check(""), [])

    def test_finds_what_is_wrong(self):
        for finding, (old, new) in FAULTS.items():
            with self.subTest(finding):
                self.assertIn(old, GOOD)
                self.assertIn(finding, "\n".join(check(GOOD.replace(old, new))))
        self.assertTrue(check(GOOD[:-1]))


if __name__ == "__main__":
    unittest.main()
