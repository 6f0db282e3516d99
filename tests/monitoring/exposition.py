#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Usage: exposition.py FILE

Checks that a file has metrics in the text format of Prometheus, more strictly than a server does: each family has HELP
and TYPE once, before its samples and all in one place; no two samples are the same; names and units are as the
conventions have them; counters and histograms are whole. Prints each finding and fails if there is any.
Source: Prometheus, "Exposition formats" and "Metric and label naming".
"""

import math
import re
import sys

NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)")
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')
COMMENT = re.compile(rf"# (HELP|TYPE) ({NAME}) (.+)")
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count")}
NOT_BASE_UNITS = ("_ms", "_milliseconds", "_minutes", "_kib", "_mib", "_gib", "_kilobytes", "_megabytes")


class Family:
    def __init__(self, name):
        self.name, self.kind, self.has_help, self.samples = name, None, False, {}


def labels_of(text):
    """The labels between braces as a dictionary, or nothing if they are not well-formed."""
    labels, at = {}, 0
    while at < len(text):
        match = LABEL.match(text, at)
        if not match or match.group(1) in labels:
            return None
        labels[match.group(1)], at = match.group(2), match.end()
    return None if text.endswith(",") else labels


def family_of(families, sample):
    """The family that a sample's name belongs to."""
    for name, family in families.items():
        if sample in [name + suffix for suffix in SUFFIXES.get(family.kind, ("",))]:
            return family
    return None


def parse(text):
    """The families by name, and what is wrong with the lines."""
    families, problems, current = {}, [], None
    if text and not text.endswith("\n"):
        problems.append("the last line has no end")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], 1):
        wrong = lambda what: problems.append(f"line {number}: {what}: {line}")
        if comment := COMMENT.fullmatch(line):
            kind, name, rest = comment.groups()
            if current is None or current.name != name:
                if name in families:
                    wrong("a family in two places")
                current = families.setdefault(name, Family(name))
            if current.samples or (current.has_help if kind == "HELP" else current.kind):
                wrong("late, or said twice")
            if kind == "HELP":
                current.has_help = True
            else:
                current.kind = rest
            continue
        match = SAMPLE.fullmatch(line)
        labels = labels_of(match.group(2) or "") if match else None
        if labels is None:
            wrong("not a sample")
            continue
        family = family_of(families, match.group(1))
        if family is None or family is not current:
            wrong("not in its family")
            continue
        key = (match.group(1), tuple(sorted(labels.items())))
        if key in family.samples:
            wrong("there already")
        try:
            family.samples[key] = float(match.group(3))
        except ValueError:
            wrong("not a number")
    return families, problems


def check_histogram(family):
    """Its buckets rise to +Inf, which is its count; there is a sum."""
    rows = {}
    for (name, labels), value in family.samples.items():
        rest = tuple(label for label in labels if label[0] != "le")
        row = rows.setdefault(rest, {"buckets": []})
        if name.endswith("_bucket"):
            row["buckets"].append((float(dict(labels)["le"]), value))
        else:
            row[name[len(family.name):]] = value
    for labels, row in rows.items():
        buckets = row["buckets"]
        bounds, counts = [bound for bound, _ in buckets], [count for _, count in buckets]
        if bounds != sorted(set(bounds)) or counts != sorted(counts) or not bounds or bounds[-1] != math.inf:
            yield f"{family.name}{dict(labels)}: buckets that do not rise to +Inf"
        elif row.get("_count") != counts[-1] or "_sum" not in row:
            yield f"{family.name}{dict(labels)}: no sum, or a count that is not that of +Inf"


def check(text):
    """What is wrong with `text`."""
    families, problems = parse(text)
    for name, family in families.items():
        if not family.has_help or family.kind not in ("gauge", "counter", "histogram"):
            problems.append(f"{name}: no HELP, or no known TYPE")
        if (family.kind == "counter") != name.endswith("_total"):
            problems.append(f"{name}: counters, and only they, end in _total")
        if name.endswith(NOT_BASE_UNITS):
            problems.append(f"{name}: not a base unit")
        if family.kind in ("counter", "histogram") and any(value < 0 for value in family.samples.values()):
            problems.append(f"{name}: less than zero")
        if family.kind == "histogram":
            problems += check_histogram(family)
    return problems


def main(arguments):
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__.strip())
        return 2
    with open(arguments[0], encoding="utf-8", newline="\n") as file:
        text = file.read()
    problems = check(text)
    print("\n".join(problems or [f"{len(parse(text)[0])} families"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
