# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A terminal for tests: what a program writes to it becomes the text of a screen. It knows the control sequences that
the commands use, and notes any other."""

import re
import unicodedata

SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Terminal:
    def __init__(self, lines, columns):
        self.unknown = []         # sequences and control characters that it does not know
        self.has_scrolled = False
        self.is_alternate = False
        self.has_cursor = True
        self.wraps = True
        self.main = None          # the screen that the alternate one hides
        self.rest = ""
        self.resize(lines, columns)

    def resize(self, lines, columns):
        self.lines, self.columns = lines, columns
        self.cells = [[" "] * columns for _ in range(lines)]
        self.line = self.column = 0

    def text(self):
        """The lines of the screen."""
        return ["".join(line).rstrip() for line in self.cells]

    def feed(self, data):
        data = self.rest + data
        self.rest = ""
        at = 0
        while at < len(data):
            if data[at] != "\x1b":
                self.put(data[at])
                at += 1
                continue
            match = SEQUENCE.match(data, at)
            if match:
                self.obey(*match.groups())
                at = match.end()
            elif len(data) - at < 12:
                self.rest = data[at:]
                return
            else:
                self.unknown.append(data[at:at + 12])
                at += 1

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.line += 1
            if self.line == self.lines:
                self.has_scrolled, self.line = True, self.lines - 1
        elif ord(character) < 32 or unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp"):
            self.unknown.append(character)
        else:
            if self.column >= self.columns and self.wraps:
                self.unknown.append("a line that wraps")
            self.cells[self.line][min(self.column, self.columns - 1)] = character
            self.column = min(self.column + 1, self.columns)

    def obey(self, private, numbers, letter):
        at = min(self.column, self.columns - 1)
        if (private, letter) == ("", "H") and not numbers:
            self.line = self.column = 0
        elif (private, numbers, letter) == ("", "", "K"):
            self.cells[self.line][at:] = [" "] * (self.columns - at)
        elif (private, numbers, letter) == ("", "", "J"):
            self.cells[self.line][at:] = [" "] * (self.columns - at)
            for line in range(self.line + 1, self.lines):
                self.cells[line] = [" "] * self.columns
        elif private and letter in "hl" and numbers in ("25", "7", "1049"):
            self.set_mode(numbers, letter == "h")
        else:
            self.unknown.append(f"ESC [ {private}{numbers}{letter}")

    def set_mode(self, number, is_set):
        if number == "25":
            self.has_cursor = is_set
        elif number == "7":
            self.wraps = is_set
        elif is_set != self.is_alternate:
            self.is_alternate = is_set
            hidden = (self.cells, self.line, self.column)
            if is_set:
                self.main = hidden
                self.resize(self.lines, self.columns)
            else:
                self.cells, self.line, self.column = self.main
