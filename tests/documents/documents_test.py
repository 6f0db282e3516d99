# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Holds the documents against the tree: links lead somewhere, commands and options that are shown exist, the exit
statuses and the modules are those of the code.

Usage: documents_test.py TREE
"""

import pathlib
import re
import subprocess
import sys
import unittest

TREE = pathlib.Path(sys.argv.pop())
DOCUMENTS = sorted([*TREE.glob("*.md"), *(path for folder in ("src", "agent", "cli", "tests") for path in TREE.glob(f"{folder}/**/*.md"))])
GUIDES = sorted(TREE.glob("cli/guides/*.md"))
PAGES = sorted(TREE.glob("cli/man/*.[157]"))
COMMANDS = sorted(path.stem for path in TREE.glob("cli/man/*.1"))
README_LINES = 90
ARCHITECTURE_WORDS = 2500
# Words as wc -w counts them. Each guide beyond the first eight may add 800 to what all documents have together.
WORDS = {"README.md": 900, "cli/man/gpu-sleep.7": 3800}
GUIDE_WORDS = 480
ADDED_WORDS = 800 * (len(GUIDES) - 8)
TOGETHER_WORDS = 4400 + ADDED_WORDS
WITH_MANUAL_WORDS = 24000 + ADDED_WORDS
COLUMNS = 100
TERMINAL_COLUMNS = 80
NO_COMMANDS = {"gpu-sleep", "gpu-sleep-metrics"}  # folders and a unit have these names

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")


def text_of(path):
    return path.read_text(encoding="utf-8")


def shown_in(text):
    """What a document shows as code: the lines of its blocks, and what stands between backquotes."""
    blocks = [line for block in FENCED.findall(text) for line in block.splitlines()]
    return blocks + CODE.findall(FENCED.sub("", text))


def printed_by(page):
    """The lines of a manual page, without fonts and quotes; a command that goes on in the next is one."""
    return re.sub(r'\\f[BIRP]|"', "", text_of(page).replace("\\-", "-").replace("\\e\n", "")).splitlines()


def options_of(command):
    """The options that the command's manual page describes, each in a line that begins with it, and those of all commands."""
    lines = [line for line in printed_by(TREE / "cli" / "man" / f"{command}.1") if line.startswith("-")]
    lines += [line for line in printed_by(TREE / "cli" / "man" / "gpu-sleep.7") if line.startswith("-h or ")]
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", "\n".join(lines)))


def options_used(line):
    """The options that the line gives to commands of ours: up to a comment, to `--`, to a semicolon, or to another command. Each
    with its command."""
    command = None
    for word in line.split():
        if pathlib.PurePath(word).name in COMMANDS:
            command = pathlib.PurePath(word).name
        elif word in ("--", "#", "&&", "|") or word.endswith(";"):
            command = None
        elif command and re.match("--?[a-z]", word):
            yield command, re.match("[a-z-]+", word).group()


def table_rows(text, heading):
    """The rows of the table of which the first column has this heading, as lists of cells."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    for line in lines[start + 2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


class Documents(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for document in DOCUMENTS:
            for link in LINK.findall(text_of(document)):
                if re.match(r"[a-z]+:", link):
                    continue
                with self.subTest(document=str(document.relative_to(TREE)), link=link):
                    self.assertTrue((document.parent / link).exists())

    def test_paths_exist(self):
        for document in DOCUMENTS:
            for shown in shown_in(text_of(document)):
                word = shown.split()[0] if shown.split() else ""
                if re.fullmatch(r"(src|agent|cli|include|tests|scripts|\.ci)/[\w./-]+", word):
                    with self.subTest(document=str(document.relative_to(TREE)), path=word):
                        self.assertTrue((TREE / word).exists())

    def test_options_exist(self):
        """In what documents show as code, and wherever a manual page names a command with an option."""
        lines = [(document, line) for document in DOCUMENTS for line in shown_in(text_of(document))]
        lines += [(page, line) for page in PAGES for line in printed_by(page)]
        known = {command: options_of(command) for command in COMMANDS}
        for document, line in lines:
            for command, option in options_used(line):
                with self.subTest(document=str(document.relative_to(TREE)), line=line):
                    self.assertIn(option, known[command])

    def test_exit_statuses(self):
        of_the_code = set(re.findall(r"inline constexpr int \w+ = (\d+);", text_of(TREE / "src/base/error.hpp")))
        chapter = text_of(TREE / "cli/man/gpu-sleep.1").partition(".SH EXIT STATUS\n")[2].partition(".SH ")[0]
        self.assertTrue(of_the_code)
        self.assertEqual(of_the_code, set(re.findall(r"^\.B (\d+)$", chapter, re.MULTILINE)))

    def test_changes_begin_with_this_version(self):
        self.assertIn(f"VERSION {re.search(r'(?m)^## (.*)', text_of(TREE / 'CHANGELOG.md')).group(1)} LANGUAGES",
                      text_of(TREE / "CMakeLists.txt"))

    def test_figures_of_the_comparison(self):
        """What RESULTS.md measured of each tool is in the same cell of the README's table."""
        def rows(document):
            return {name: cells for name, *cells in table_rows(text_of(TREE / document), "| gpu-sleep")}

        shown, measured = rows("README.md"), rows("tests/bench/RESULTS.md")
        self.assertGreater(len(measured), 3)
        for name, figures in measured.items():
            for figure, cell in zip(figures, shown[name]):
                with self.subTest(row=name, figure=figure):
                    self.assertIn(figure, cell)

    def test_pictures_are_of_these_figures(self):
        for picture in (TREE / "tests/bench").glob("*.svg"):
            drawn = subprocess.run([sys.executable, TREE / "tests/bench/picture.py", picture.stem], capture_output=True, check=True).stdout
            self.assertEqual(drawn.decode(), text_of(picture), f"run tests/bench/picture.py {picture.stem} > {picture}")

    def test_documents_are_short(self):
        self.assertLessEqual(len(text_of(TREE / "README.md").splitlines()), README_LINES)
        self.assertTrue(GUIDES)
        limits = {**WORDS, **{str(guide.relative_to(TREE)): GUIDE_WORDS for guide in GUIDES}}
        words = {document: len(text_of(TREE / document).split()) for document in limits}
        for document, limit in limits.items():
            with self.subTest(document=document):
                self.assertLessEqual(words[document], limit)
        together = words["README.md"] + sum(words[str(guide.relative_to(TREE))] for guide in GUIDES)
        self.assertLessEqual(together, TOGETHER_WORDS)
        self.assertLessEqual(together + sum(len(text_of(page).split()) for page in PAGES), WITH_MANUAL_WORDS)

    def test_architecture_is_read_in_ten_minutes(self):
        read = re.sub(r"(?m)^(\| `.*\|)[\w, ]*\|$", r"\1", text_of(TREE / "src/ARCHITECTURE.md")) # the rest is for check-source
        words = [word for word in read.split() if re.search(r"\w", word)]
        self.assertLessEqual(len(words), ARCHITECTURE_WORDS)

    def test_architecture_shows_the_steps_of_a_sleep_and_a_wake(self):
        step = re.compile(r'\{"([^"]+)",\s*&\w+::\w+(?:,\s*(?:&\w+::(\w+)|nullptr))?')
        for operation in ("sleep", "wake"):
            steps = step.findall(text_of(TREE / f"agent/operations/{operation}_operation.cpp"))
            self.assertGreater(len(steps), 8)
            shown = [name + (f" / {undo.replace('_', ' ')}" if undo else "") for name, undo in steps]
            with self.subTest(operation=operation):
                self.assertIn("\n".join(["```", *shown, "```"]), text_of(TREE / "src/ARCHITECTURE.md"))

    def test_readme_and_guides_fit_a_terminal(self):
        for document in [TREE / "README.md", *GUIDES]:
            code = "".join(FENCED.findall(text_of(document))).splitlines()
            for line in text_of(document).splitlines():
                with self.subTest(document=document.name, line=line):
                    self.assertLessEqual(len(line), TERMINAL_COLUMNS if line in code else COLUMNS)

    def test_guides_say_for_whom_they_are_and_how_long_they_take(self):
        for guide in GUIDES:
            title, empty, first = text_of(guide).split("\n")[:3]
            with self.subTest(guide=guide.name):
                self.assertRegex(title, "^# ")
                self.assertRegex(first, r"^For .*\. Time: .*minutes")
                self.assertIn(f"](cli/guides/{guide.name})", text_of(TREE / "README.md"))

    def test_links_of_guides_hold_where_they_are_installed(self):
        """Guides and examples are installed side by side, without the rest of the tree."""
        for guide in GUIDES:
            for link in LINK.findall(text_of(guide)):
                with self.subTest(guide=guide.name, link=link):
                    self.assertRegex(link, r"^(\w+\.md|\.\./examples(/[\w.-]+)?)$")

    def test_commands_of_readme_and_guides_exist(self):
        for document in [TREE / "README.md", *GUIDES]:
            for shown in shown_in(text_of(document)):
                for word in re.findall(r"(?<![\w.-])gpu-[a-z]+(?:-[a-z]+)*(?![\w-]|\.[a-z])", shown):
                    with self.subTest(document=document.name, line=shown):
                        self.assertIn(word, {*COMMANDS, *NO_COMMANDS})


if __name__ == "__main__":
    unittest.main()
