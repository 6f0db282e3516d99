# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu-ps --watch on a terminal: what it shows, and that it leaves the terminal as it was however it ends.

Usage: watch_test.py BINARIES
"""

import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import started  # noqa: E402
from terminal import Terminal  # noqa: E402

BINARIES = pathlib.Path(sys.argv.pop())
PATIENCE = 30
HOSTILE = "\x1b[2Jhostile\u202e\u200b name of a program that never ends and never will"


class Host(started.Host):
    def __init__(self, name, command="integration_host"):
        super().__init__(BINARIES, name=command, GPU_SLEEP_NAME=name)

    def command(self, name, *arguments):
        subprocess.run([BINARIES / name, str(self.pid), *arguments], check=True, stdout=subprocess.DEVNULL)


class Watch:
    """gpu-ps --watch on a terminal of its own, started as a shell does: one without a parent in its session would not
    be stopped."""

    def __init__(self, *arguments, lines=24, columns=80, term="xterm", interval="100ms"):
        self.master, slave = pty.openpty()
        self.terminal = Terminal(lines, columns)
        self.output = ""
        self.set_size(lines, columns)
        self.terminal.feed("a line of the shell\r\n")
        told, tells = os.pipe()
        self.shell = subprocess.Popen(
            [BINARIES / "gpu-ps", f"--watch={interval}", *arguments], stdin=slave, stdout=slave, stderr=slave,
            env={**os.environ, "TERM": term}, preexec_fn=lambda: self.be_shell(tells), pass_fds=[tells])
        os.close(slave)
        os.close(tells)
        self.pid = int(os.read(told, 20))
        os.close(told)

    @staticmethod
    def be_shell(tells):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            for number in (signal.SIGTTOU, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL) # nohup and `&` have them ignored
            return
        def take_terminal(number, frame):
            os.tcsetpgrp(0, os.getpid() if number == signal.SIGUSR1 else child)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, take_terminal)
        os.write(tells, str(child).encode())
        os.closerange(1, 1024)
        _, status = os.waitpid(child, 0)
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))

    def signal(self, number):
        os.kill(self.pid, number)

    def is_stopped(self):
        return pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def set_size(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, lines, columns):
        self.terminal.resize(lines, columns)
        self.set_size(lines, columns)

    def read(self, limit=0.05):
        """Takes what has come. False at the end."""
        if not select.select([self.master], [], [], limit)[0]:
            return True
        try:
            data = os.read(self.master, 65536)
        except OSError: # the command has closed its side
            data = b""
        text = data.decode("utf-8", "replace")
        self.output += text
        self.terminal.feed(text)
        return bool(data)

    def text(self):
        return "\n".join(self.terminal.text())

    def wait_for(self, what, limit=PATIENCE):
        patience = started.Patience(limit)
        while not what():
            assert self.read(), f"it has ended:\n{self.output}"
            assert not patience.is_over(), f"the screen is\n{self.text()}"

    def type(self, keys, shows):
        """Its first line is to show that then."""
        os.write(self.master, keys)
        self.wait_for(lambda: shows in self.terminal.text()[0])

    def wait_for_frames(self, count):
        before = self.output.count("\x1b[H")
        self.wait_for(lambda: self.output.count("\x1b[H") >= before + count)

    def wait_for_end(self):
        patience = started.Patience(PATIENCE)
        while self.read():
            assert not patience.is_over(), f"it goes on:\n{self.text()}"
        status = self.shell.wait(PATIENCE) # before the terminal goes, which would hang up on it
        os.close(self.master)
        return status


class OnATerminal(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.hosts = [Host("watched-small"), Host("watched-" + "l" * 56)]
        cls.small, cls.large = cls.hosts
        cls.small.tell("alloc weights 4194304 0")
        cls.large.tell("alloc weights 33554432 0")

    @classmethod
    def tearDownClass(cls):
        for host in cls.hosts:
            host.end()

    def row(self, watch, host):
        """The line of a process; its cells are told apart by two spaces."""
        return next((line for line in watch.terminal.text() if re.match(rf" *{host.process.pid}  ", line)), None)

    def watch(self, *arguments, host=None, **more):
        """One that shows the host by now."""
        watch = Watch(*arguments, **more)
        watch.wait_for(lambda: self.row(watch, host or self.small))
        return watch

    def choose(self, watch, host, key=b"j"):
        for _ in range(100): # others may be listed, too
            os.write(watch.master, key)
            watch.wait_for_frames(2)
            if f">{host.process.pid} " in watch.text():
                return
        self.fail(f"{host.process.pid} is not chosen:\n{watch.text()}")

    def end(self, watch):
        watch.signal(signal.SIGTERM)
        self.assertEqual(watch.wait_for_end(), 128 + signal.SIGTERM)

    def check_left_whole(self, watch):
        self.assertFalse(watch.terminal.is_alternate)
        self.assertTrue(watch.terminal.has_cursor)
        self.assertTrue(watch.terminal.wraps)
        self.assertEqual(watch.terminal.text()[0], "a line of the shell")

    def check_frames(self, watch):
        """Nothing that steers it otherwise, no clearing before it is drawn."""
        self.assertEqual(watch.terminal.unknown, [])
        self.assertFalse(watch.terminal.has_scrolled)
        self.assertNotIn("\x1b[2J", watch.output)

    def test_shows_each_process_in_a_line_of_eighty_columns(self):
        watch = Watch()
        watch.wait_for(lambda: "awake" in (self.row(watch, self.large) or "") and self.row(watch, self.small))
        self.assertRegex(watch.terminal.text()[0], r"^\d+ processes, \d+ asleep.*; GPU ")
        row = self.row(watch, self.large)
        self.assertRegex(row, r"watched-l+\.\.\.  awake  +\S+  +32\.0 MiB")
        self.assertLess(watch.text().index(row), watch.text().index(self.row(watch, self.small))) # most memory first
        self.assertLessEqual(max(map(len, watch.terminal.text())), 80)
        watch.wait_for_frames(3)
        self.check_frames(watch)
        self.end(watch)
        self.check_left_whole(watch)

    def test_shows_what_changes_and_wakes_nobody(self):
        self.small.command("gpu-sleep")
        watch = Watch("--sort", "host")
        watch.wait_for(lambda: "asleep" in (self.row(watch, self.small) or ""))
        watch.wait_for_frames(5)
        watch.wait_for(lambda: re.search(r"asleep .*4\.00 MiB", self.row(watch, self.small) or ""))
        self.small.command("gpu-wake")
        watch.wait_for(lambda: "awake" in (self.row(watch, self.small) or ""))
        self.end(watch)

    def test_follows_the_size(self):
        watch = self.watch("--sort", "name")
        for lines, columns in ((10, 60), (3, 40), (2, 10), (1, 2), (40, 200)):
            watch.wait_for_frames(1)
            watch.resize(lines, columns)
            watch.wait_for_frames(2)
            watch.terminal.unknown.clear() # what was drawn for the size before
            watch.terminal.has_scrolled = False
            watch.wait_for_frames(2)
            self.check_frames(watch)
        watch.wait_for(lambda: "watched-" + "l" * 56 in watch.text())
        self.end(watch)

    def test_says_how_many_lines_there_is_no_room_for(self):
        watch = Watch(lines=4)
        watch.wait_for(lambda: re.search(r"^\.\.\. \d+ lines below", watch.text(), re.MULTILINE))
        self.check_frames(watch)
        self.end(watch)

    def test_is_drawn_at_once_after_a_change_of_size(self):
        watch = self.watch(interval="1h")
        watch.resize(30, 100)
        watch.wait_for_frames(1)
        self.end(watch)

    def test_leaves_the_terminal_whole_by_each_signal_that_ends_it(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number):
                watch = self.watch()
                self.assertTrue(watch.terminal.is_alternate)
                self.assertFalse(watch.terminal.has_cursor)
                if number == signal.SIGINT:
                    os.write(watch.master, b"\x03") # as a person types it
                else:
                    watch.signal(number)
                self.assertEqual(watch.wait_for_end(), 128 + number)
                self.check_left_whole(watch)

    def test_gives_the_terminal_back_while_it_is_stopped(self):
        watch = self.watch()
        for _ in range(2):
            os.write(watch.master, b"\x1a") # as a person types it
            watch.wait_for(lambda: watch.is_stopped() and not watch.terminal.is_alternate)
            self.check_left_whole(watch)
            watch.signal(signal.SIGCONT)
            watch.wait_for(lambda: watch.terminal.is_alternate and self.row(watch, self.small))
        self.check_frames(watch)
        self.end(watch)
        self.check_left_whole(watch)

    def hand_terminal_over(self, watch, number):
        """The shell takes it (SIGUSR1), or gives it back (SIGUSR2), and has done so at the end."""
        os.kill(watch.shell.pid, number)
        group = watch.shell.pid if number == signal.SIGUSR1 else watch.pid
        watch.wait_for(lambda: os.tcgetpgrp(watch.master) == group)

    def stop_unseen(self, watch):
        """As nobody can handle; the shell takes the terminal then, with settings of its own."""
        watch.signal(signal.SIGSTOP)
        watch.wait_for(watch.is_stopped)
        self.hand_terminal_over(watch, signal.SIGUSR1)
        settings = termios.tcgetattr(watch.master)
        settings[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(watch.master, termios.TCSANOW, settings)

    def takes_keys(self, watch):
        return termios.tcgetattr(watch.master)[3] & (termios.ECHO | termios.ICANON) == 0

    def test_takes_the_terminal_again_after_a_stop_that_it_does_not_see(self):
        watch = Watch()
        watch.wait_for(lambda: self.row(watch, self.small) and self.takes_keys(watch))
        self.stop_unseen(watch)
        self.assertFalse(self.takes_keys(watch))
        self.hand_terminal_over(watch, signal.SIGUSR2)
        watch.signal(signal.SIGCONT) # fg
        watch.wait_for(lambda: self.takes_keys(watch))
        watch.wait_for_frames(2)
        os.write(watch.master, b"q")
        self.assertEqual(watch.wait_for_end(), 0)
        self.check_left_whole(watch)

    def test_leaves_the_screen_to_the_shell_in_the_background(self):
        watch = Watch()
        watch.wait_for(lambda: self.row(watch, self.small) and self.takes_keys(watch))
        self.stop_unseen(watch)
        watch.signal(signal.SIGCONT) # bg
        watch.wait_for(lambda: not watch.terminal.is_alternate)
        self.check_left_whole(watch)
        os.write(watch.master, b"w\n") # the shell's to read
        time.sleep(0.5)
        self.assertFalse(watch.is_stopped())
        self.hand_terminal_over(watch, signal.SIGUSR2)
        watch.signal(signal.SIGCONT) # fg
        watch.wait_for(lambda: watch.terminal.is_alternate and self.row(watch, self.small))
        self.stop_unseen(watch)
        watch.signal(signal.SIGCONT)
        watch.wait_for(lambda: not watch.terminal.is_alternate)
        self.end(watch)
        self.assertFalse(watch.terminal.is_alternate)

    def test_scrolls_to_the_chosen_line(self):
        watch = Watch("--sort", "name", lines=7)
        watch.wait_for(lambda: "awake" in watch.text())
        self.choose(watch, self.small)
        self.check_frames(watch)
        self.end(watch)

    def test_shows_one_process_with_its_tags_and_ends_with_it(self):
        host = Host("watched-alone")
        host.tell("alloc weights 4194304 0")
        watch = Watch(str(host.process.pid))
        watch.wait_for(lambda: re.search(r"awake +weights +GPU 0", watch.text()))
        host.end()
        self.assertEqual(watch.wait_for_end(), 3)
        self.assertFalse(watch.terminal.is_alternate)
        self.assertTrue(watch.terminal.has_cursor)
        self.assertIn("gpu-ps: ", watch.text())

    def test_hostile_names_do_not_steer_it(self):
        host = Host("", HOSTILE) # without a name its command is shown
        host.tell("alloc weights 4194304 0")
        watch = Watch()
        watch.wait_for(lambda: "?[2Jhostile??" in (self.row(watch, host) or ""))
        watch.wait_for_frames(2)
        self.check_frames(watch)
        self.end(watch)
        host.end()

    def test_obeys_keys_and_echoes_none(self):
        watch = self.watch("--sort", "name")
        self.assertIn("GPU 0: ", watch.text())
        watch.type(b"s", "choose a process first")
        self.choose(watch, self.small, b"\x1b[B")
        os.write(watch.master, b"s")
        chosen = rf" *>{self.small.process.pid}  watched-small  +asleep"
        watch.wait_for(lambda: re.search(chosen, re.sub(r"(>\d+)  +\S+", r"\1", watch.text())))
        self.assertIn("is asleep at level 1", watch.terminal.text()[0])
        watch.type(b"w", "is awake after")
        self.check_frames(watch)
        self.assertEqual(termios.tcgetattr(watch.master)[3] & (termios.ECHO | termios.ICANON), 0)
        os.write(watch.master, b"q")
        self.assertEqual(watch.wait_for_end(), 0)
        self.check_left_whole(watch)

    def test_asks_before_a_sleep_that_drops(self):
        host = Host("watched-0") # the first of its name
        host.tell("alloc cache 4194304 0")
        host.tell("policy cache discard 1")
        watch = self.watch("--sort", "name", host=host)
        self.choose(watch, host)
        watch.type(b"s", "drops 4.00 MiB: go on?")
        os.write(watch.master, b"n")
        watch.wait_for(lambda: watch.terminal.text()[0] == "nothing was changed")
        watch.type(b"s", "go on?")
        watch.type(b"y", "is asleep")
        watch.signal(signal.SIGTERM)
        watch.wait_for_end()
        host.end()

    def test_is_plain_where_a_terminal_can_do_no_more(self):
        watch = Watch(str(self.small.process.pid), term="dumb")
        watch.wait_for(lambda: watch.output.count("PID") >= 2)
        self.assertNotIn("\x1b", watch.output)
        self.end(watch)


if __name__ == "__main__":
    unittest.main()
