# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""What is installed for Prometheus and Grafana fits what gpu-ps writes; Prometheus's own tool is asked where it is there.

Usage: installed_test.py TREE BINARIES
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BINARIES = pathlib.Path(sys.argv.pop())
TREE = pathlib.Path(sys.argv.pop())
RULES = TREE / "cli/monitoring/gpu-sleep.rules.yml"
DASHBOARD = json.loads((TREE / "cli/monitoring/gpu-sleep-dashboard.json").read_text(encoding="utf-8"))
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
NAMED = re.compile(r"\b(?:gpu_sleep|node)_[a-z_]+\b")
# Of the node exporter: when a file of metrics was written.
OF_OTHERS = {"node_textfile_mtime_seconds"}
VARIABLES = {"$__rate_interval": "5m", "$__range": "1d", "$instance": ".*", "$user": ".*"}


def written():
    """The names of all samples that gpu-ps can write, and its families."""
    output = subprocess.run([BINARIES / "gpu-ps", "--prometheus", "--user", "65534"], check=True, capture_output=True,
                            text=True).stdout
    families = dict(re.findall(r"^# TYPE (\S+) (\S+)$", output, re.MULTILINE))
    return {name + suffix for name, kind in families.items() for suffix in SUFFIXES.get(kind, ("",))}, set(families)


def expressions():
    """All expressions of the dashboard."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True)


class Installed(unittest.TestCase):
    def test_rules_name_what_is_written(self):
        lines = RULES.read_text(encoding="utf-8").splitlines()
        found = {name for line in lines if "expr:" in line for name in NAMED.findall(line.replace("gpu_sleep\\\\.prom", ""))}
        self.assertGreater(len(found), 5)
        self.assertEqual(found - written()[0] - OF_OTHERS, set())

    def test_the_dashboard_names_what_is_written(self):
        variables = [variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable]
        found = {name for text in expressions() + variables for name in NAMED.findall(text)}
        self.assertGreater(len(found), 10)
        self.assertEqual(found - written()[0], set())

    def test_the_manual_names_what_is_written(self):
        page = (TREE / "cli/man/gpu-ps.1").read_text(encoding="utf-8")
        section = page[page.index(".SH METRICS"):page.index(".SH EXIT STATUS")]
        self.assertEqual(set(NAMED.findall(re.sub(r"\\f[BIP]", "", section))), written()[1])

    def test_panels_are_whole(self):
        panels = DASHBOARD["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        places = set()
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24)
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(places & cells, panel["title"])
            places |= cells
        known = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval", "__range"}
        self.assertLessEqual(set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all"}, known)

    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
    def test_prometheus_takes_the_rules_and_they_fire(self):
        checked = promtool("check", "rules", RULES)
        self.assertEqual(checked.returncode, 0, checked.stderr)
        cases = (TREE / "tests/monitoring/alerts_test.yml").read_text(encoding="utf-8")
        alerts = set(re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8")))
        self.assertEqual(set(re.findall(r"alertname: (\w+)", cases)), alerts)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(cases.replace("[RULES]", f"['{RULES}']"))
            file.flush()
            tested = promtool("test", "rules", file.name)
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)

    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
    def test_prometheus_takes_the_dashboards_expressions(self):
        rules = []
        for number, expression in enumerate(expressions()):
            for variable, value in VARIABLES.items():
                expression = expression.replace(variable, value)
            rules.append({"record": f"expression:{number}", "expr": expression})
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, file) # which is YAML, too
            file.flush()
            checked = promtool("check", "rules", file.name)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    unittest.main()
