#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Usage: tests/documents/sentences.py [TREE]

Lists every sentence that a user can meet, each with its file and line, for somebody who reads the language alone: the texts
in the commands, the agent and the libraries, those of the Python package, the manual pages and the README.
"""

import ast
import pathlib
import re
import sys

TREE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
TREE = TREE if TREE.is_dir() else TREE.parents[2]
LEAST_WORDS = 3
LITERALS = re.compile(r'(?:(?<![\w\'])(?:R"\((?P<raw>.*?)\)"|"(?P<plain>(?:[^"\\\n]|\\.)*)")\s*)+', re.DOTALL)
LITERAL = re.compile(r'R"\((?P<raw>.*?)\)"|"(?P<plain>(?:[^"\\\n]|\\.)*)"', re.DOTALL)
COMMENT = re.compile(r"^\s*(?://.*|#include.*)$", re.MULTILINE)


def of_cpp(text):
    text = COMMENT.sub("", text)
    for run in LITERALS.finditer(text):
        joined = "".join(raw or plain for raw, plain in LITERAL.findall(run.group()))
        yield text.count("\n", 0, run.start()) + 1, joined.replace("\\n", "\n").replace('\\"', '"')


def of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def of_page(text):
    """The paragraphs of a manual page, without fonts."""
    paragraph, first = [], 1
    for number, line in enumerate([*text.splitlines(), ".PP"], 1):
        font = re.match(r"\.(?:BR?|IR?|RB|BI) (.*)", line)
        if font:
            line = re.sub(r'(?<!\\)[" ]*"[" ]*', "", font.group(1))
        if line.startswith((".", "'")):
            yield first, " ".join(paragraph)
            paragraph, first = [], number + 1
        else:
            paragraph.append(re.sub(r"\\f[BIRP]|\\&", "", line).replace("\\-", "-"))


def of_markdown(text):
    text = re.sub(r"^```.*?^```", lambda block: "\n" * block.group().count("\n"), text, flags=re.M | re.S)
    for match in re.finditer(r"[^\n]+(?:\n[^\n|`#-][^\n]*)*", text):
        yield text.count("\n", 0, match.start()) + 1, match.group()


SOURCES = [(of_cpp, folder, ending) for folder in ("src", "agent", "cli", "include") for ending in ("cpp", "hpp", "c", "h")]
SOURCES += [(of_python, "agent", "py"), (of_page, "cli/man", "[157]"), (of_markdown, "", "README.md"), (of_markdown, "cli/guides", "md")]


def main():
    for reader, folder, ending in SOURCES:
        files = [TREE / ending] if not folder else sorted((TREE / folder).rglob(f"*.{ending}"))
        for file in files:
            for line, text in reader(file.read_text(encoding="utf-8")):
                if reader is not of_cpp:  # there a line's end within a text is one that the user sees
                    text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
                for sentence in re.split(r"(?<=[.?!:;]) +|\n+", text):
                    if len(re.findall(r"[A-Za-z]{2,}", sentence)) >= LEAST_WORDS:
                        print(f"{file.relative_to(TREE)}:{line}: {' '.join(sentence.split())}")


main()
