# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The Python package on the simulated driver: in a program under gpu-run, in one that loads the agent itself, in one
that has none, and in one that commands other processes.

Usage: python_package_test.py BUILD
"""

import http.client
import importlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

BUILD = pathlib.Path(sys.argv.pop())
HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "agent/python"
AGENT = BUILD / "lib/libgpu-sleep-agent.so.0"
UNDER_GPU_RUN = [str(BUILD / "bin/gpu-run"), "--"]
SECONDS = 60
PATH = os.environ["PATH"]

sys.path.insert(0, str(PACKAGE))
try:
    import gpu_sleep  # noqa: E402
except ImportError as failure:
    if failure.name != "_ctypes":
        raise
    print("skipped: this Python has no ctypes")
    sys.exit(77)


def environment(**more):
    """Without the commands on PATH: a program that has an agent finds them beside it."""
    return {**os.environ, "PATH": PATH, "PYTHONPATH": f"{PACKAGE}:{HERE}", "GPU_SLEEP_SIM_MEMORY": str(128 << 20), **more}


def run(arguments, prefix=(), **more):
    return subprocess.run([*prefix, sys.executable, *arguments], env=environment(**more), text=True, timeout=SECONDS * 5,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Program:
    """A program in Python under gpu-run that has memory of two tags. Each line that it is told is run."""

    BEGIN = """
        import ctypes, os, sys, threading, time
        import gpu_sleep, torch_stand_in
        torch_stand_in.install()
        with gpu_sleep.tag("weights"):
            weights = torch_stand_in.Tensor()
        with gpu_sleep.tag("cache"):
            cache = torch_stand_in.Tensor()
        with_lock = ctypes.PyDLL("libcuda.so.1")
        told = []
        print("ready", flush=True)
        for line in sys.stdin:
            exec(line)
            print("done", flush=True)
    """

    def __init__(self, *options):
        self.process = subprocess.Popen(
            [UNDER_GPU_RUN[0], *options, "--", sys.executable, "-c", textwrap.dedent(self.BEGIN)], text=True,
            env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def begin(self, line):
        print(line, file=self.process.stdin, flush=True)

    def answer(self):
        return self.process.stdout.readline().strip()

    def tell(self, line):
        self.begin(line)
        return self.answer()


class Package(unittest.TestCase):
    def setUp(self):
        signal.alarm(SECONDS)  # nobody hangs
        os.environ["PATH"] = f"{BUILD / 'bin'}:{PATH}"

    def check(self, done):
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_knows_the_codes(self):
        tree = HERE.parents[1]
        numbers = re.findall(r"GPU_SLEEP_ERROR_\w+ = (\d+)", (tree / "include/gpu_sleep/gpu_sleep.h").read_text())
        self.assertEqual({1, *gpu_sleep.errors._CODES}, set(map(int, numbers)))
        words = (tree / "cli/man/gpu-ps.1").read_text().partition(".SS Words of error.code")[2]
        self.assertLessEqual({*gpu_sleep.errors._CODES.values(), *gpu_sleep.errors._CLASSES},
                             set(re.findall(r"^\.B (\w+)$", words, re.MULTILINE)))

    def test_under_gpu_run(self):
        signal.alarm(SECONDS * 5)
        self.check(run([str(HERE / "python_package_program.py")], UNDER_GPU_RUN))

    def test_with_an_agent_of_its_own(self):
        signal.alarm(SECONDS * 5)
        self.check(run([str(HERE / "python_package_program.py")], GPU_SLEEP_AGENT=str(AGENT)))

    def test_finds_a_loaded_agent_wherever_it_is(self):
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory, "renamed.so")
            copy.write_bytes(AGENT.read_bytes())
            program = f"import ctypes, os; ctypes.CDLL('{copy}'); os.unlink('{copy}'); import gpu_sleep"
            self.check(run(["-c", program + "; assert gpu_sleep.asleep_bytes() == 0"], GPU_SLEEP_AGENT="/nowhere"))

    def test_of_two_agents_one_works(self):
        """A copy under another name and soname, which is used first."""
        program = """
            import ctypes, sys, gpu_sleep
            copy = ctypes.CDLL(sys.argv[1])
            assert copy.gpu_sleep_sleep(1, None, 1000) == 0
            try:
                gpu_sleep.sleep()
            except gpu_sleep.Refused as failure:
                assert "another copy of the agent" in str(failure), failure
            else:
                sys.exit("no exception")
            assert copy.gpu_sleep_sleep(1, None, 1000) == 0
            gpu_sleep.Process(__import__("os").getpid()).sleep()  # the copy answers
        """
        with tempfile.TemporaryDirectory() as directory:
            copy = pathlib.Path(directory, "renamed.so")
            copy.write_bytes(AGENT.read_bytes().replace(gpu_sleep._agent.SONAME.encode(), b"libgpu-sleep-aged.so.00"))
            self.check(run(["-c", textwrap.dedent(program), str(copy)], GPU_SLEEP_AGENT=str(AGENT), PATH=os.environ["PATH"]))

    def test_without_an_agent(self):
        program = """
            import sys, gpu_sleep
            assert "torch" not in sys.modules
            for call in (lambda: gpu_sleep.tag("a").__enter__(), gpu_sleep.sleep, gpu_sleep.wake, gpu_sleep.status,
                         gpu_sleep.asleep_bytes, lambda: gpu_sleep.hold().__enter__(), lambda: gpu_sleep.on_sleep(print)):
                try:
                    call()
                except gpu_sleep.NoAgent as failure:
                    assert failure.code == "no_agent"
                else:
                    sys.exit("no exception")
        """
        for named in ("", "/nowhere", "libc.so.6"):
            self.check(run(["-c", textwrap.dedent(program)], GPU_SLEEP_AGENT=named, LD_LIBRARY_PATH=""))

    def test_warns_where_torch_comes_within_a_tag(self):
        program = """
            import sys, warnings, gpu_sleep, torch_stand_in
            build = gpu_sleep.tag("weights")(torch_stand_in.install)
            with warnings.catch_warnings(record=True) as caught:
                for _ in range(2):
                    with gpu_sleep.tag("weights"):
                        torch_stand_in.install()
                del sys.modules["torch"]
                build()
            assert all("import torch before the first tag" in str(each.message) for each in caught), caught
            assert [each.filename for each in caught] == ["<string>", "<string>"], caught
            del sys.modules["torch"]
            warnings.simplefilter("error")
            try:
                with gpu_sleep.tag("weights"):
                    torch_stand_in.install()
                    raise KeyError
            except KeyError:
                pass
        """
        self.check(run(["-W", "always", "-c", textwrap.dedent(program)], GPU_SLEEP_AGENT=str(AGENT)))

    def test_without_a_driver(self):
        program = """
            import sys, gpu_sleep
            gpu_sleep.policy("a", "preserve")
            with gpu_sleep.tag("a"):
                for call in (gpu_sleep.sleep, gpu_sleep.wake):
                    try:
                        call()
                    except gpu_sleep.NoDriver:
                        continue
                    sys.exit("no exception")
        """
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "libcuda.so.1").touch()  # nor one that this machine has
            self.check(run(["-c", textwrap.dedent(program)], GPU_SLEEP_AGENT=str(AGENT), LD_LIBRARY_PATH=directory))

    def test_runs_commands(self):
        names = {path.stem[4:] for path in (HERE.parents[1] / "cli/man").glob("gpu-*.1")} - {"sleep-http"}  # which wheels lack
        self.assertEqual(set(importlib.import_module("gpu_sleep.__main__").COMMANDS), names)
        for arguments, status, said in (([], 0, "gpu-COMMAND"), (["--help"], 0, "gpu-COMMAND"), (["ps", "--version"], 0, "(protocol"),
                                        (["ps", "--no-such"], 2, "--no-such"), (["nothing"], 2, "'nothing' is not one of run")):
            done = run(["-m", "gpu_sleep", *arguments], PATH=os.environ["PATH"])
            self.assertEqual((done.returncode, said in done.stdout), (status, True), done.stdout)
        self.assertEqual(run(["-m", "gpu_sleep", "ps"], PATH="/nowhere").returncode, 1)

    def test_a_notebook_without_an_agent(self):
        program = """
            import types
            import gpu_sleep, torch_stand_in
            torch_stand_in.install()
            tensors = [torch_stand_in.Tensor() for _ in range(3)]
            gpu_sleep.load_ipython_extension(types.SimpleNamespace(register_magic_function=lambda *its: print(its[2])))
        """
        done = run(["-c", textwrap.dedent(program)], GPU_SLEEP_AGENT="")
        self.check(done)
        for part in ("gpu_state", "gpu_sleep", "gpu_wake", "12,582,912 bytes (12 MiB) of this kernel cannot sleep", "gpu-enable user"):
            self.assertIn(part, done.stdout)

    def test_a_notebook_before_it_uses_the_gpu(self):
        program = "import gpu_sleep; print(gpu_sleep._notebook.state())"
        self.assertIn("starts when CUDA is first used", run(["-c", program], UNDER_GPU_RUN).stdout)
        self.assertIn("gpu-enable user", run(["-c", program], GPU_SLEEP_AGENT="").stdout)

    def test_with_an_agent_that_is_too_old(self):
        program = """
            import sys, gpu_sleep._agent
            gpu_sleep._agent._NEEDED_API_VERSION = 1000
            try:
                gpu_sleep.wake()
            except gpu_sleep.Error as failure:
                assert failure.code == "protocol_mismatch"
            else:
                sys.exit("no exception")
        """
        self.check(run(["-c", textwrap.dedent(program)], GPU_SLEEP_AGENT=str(AGENT)))

    def test_ends_asleep(self):
        program = """
            import gpu_sleep, torch_stand_in
            torch_stand_in.install()
            gpu_sleep.on_sleep(print)
            with gpu_sleep.tag("a"):
                tensor = torch_stand_in.Tensor()
            gpu_sleep.sleep()
        """
        for prefix, more in ((UNDER_GPU_RUN, {}), ((), {"GPU_SLEEP_AGENT": str(AGENT)})):
            self.check(run(["-c", textwrap.dedent(program)], prefix, **more))

    def test_ends_within_a_region_and_a_callback_that_is_late(self):
        program = """
            import sys, threading, gpu_sleep, torch_stand_in
            torch_stand_in.install()
            gpu_sleep.on_wake(lambda event: threading.Event().wait())
            gpu_sleep._callbacks._SECONDS_AT_EXIT = 0.1
            sys.kept = gpu_sleep._regions._thread  # ends after its module
            gpu_sleep.tag("open").__enter__()
            tensor = torch_stand_in.Tensor()
            gpu_sleep.sleep()
            gpu_sleep.wake(timeout=0.5)
        """
        done = run(["-c", textwrap.dedent(program)], UNDER_GPU_RUN)
        self.check(done)
        self.assertRegex(done.stdout, r"\A[^\n]*still runs[^\n]*\n\Z")

    def test_a_child_of_fork_that_begins_with_cuda_is_free_to_sleep(self):
        program = """
            import os, sys, gpu_sleep, torch_stand_in
            with gpu_sleep.hold(), gpu_sleep.inhibit():
                child = os.fork()
                if child == 0:
                    torch_stand_in.install()
                    gpu_sleep.sleep(timeout=2)
                    gpu_sleep.wake()
                    gpu_sleep.Process(os.getpid()).sleep()
                    os._exit(0)
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        self.check(run(["-c", textwrap.dedent(program)], UNDER_GPU_RUN))

    @unittest.skipUnless((BUILD / "bin/gpu-sleep-http").exists(), "libmicrohttpd is missing")
    def test_is_called_by_name(self):
        with Program() as program, tempfile.TemporaryDirectory() as directory:
            def ask(route, body=""):
                connection = http.client.HTTPConnection("door")
                with socket.socket(socket.AF_UNIX) as connection.sock:
                    connection.sock.connect(path)
                    connection.request("POST", f"/{route}", body)
                    return json.loads(connection.getresponse().read())

            def add(name):
                return ask("collective_rpc", json.dumps({"method": name, "args": [1, 2]}))

            path = f"{directory}/door"
            program.tell("add = type('', (), {'__hash__': None, '__call__': lambda self, said: sum(said['args'])})()")
            for name in ("add", "also", "add"):
                program.tell(f"gpu_sleep.on_call('{name}')(add)")
            program.tell("gpu_sleep.on_call('flush_cache')(lambda said: 1 / 0)")
            with subprocess.Popen([BUILD / "bin/gpu-sleep-http", str(program.pid), "--http", path], stdout=subprocess.PIPE) as door:
                door.stdout.readline()
                self.assertEqual([add(name)["results"] for name in ("add", "also")], [[3], [3]])
                self.assertIn("ZeroDivisionError: division by zero", ask("flush_cache")["error"]["message"])
                program.tell("gpu_sleep.on_call('also')(lambda said: float('nan'))")
                self.assertIn("ValueError", add("also")["error"]["message"])
                program.tell("gpu_sleep.remove_callback(add)")
                self.assertIn("no callback named", add("add")["error"]["message"])
                door.terminate()

    def test_a_sleep_fails_where_python_is_not_to_be_had(self):
        with Program() as program:
            program.tell("gpu_sleep.on_sleep(told.append); gpu_sleep.on_wake(told.append)")
            process = gpu_sleep.Process(program.pid)
            process.sleep(tags="cache")
            # It waits at the gate, with Python's lock.
            program.begin("with_lock.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4 << 20))")
            while process.status().gate.waiting_threads == 0:
                time.sleep(0.01)
            with self.assertRaises(gpu_sleep.TimedOut):
                process.sleep(timeout=0.5)
            self.assertEqual(process.status().state, "partial")
            self.assertEqual(process.wake()[0].state, "awake")
            self.assertEqual(program.answer(), "done")
            # The late one, its end without tags, and that of the wake.
            program.tell("assert [event.level for event in told] == [1, 1, 0, 0], told")
            self.assertEqual(process.sleep()[0].state, "asleep")
            self.assertEqual(process.wake()[0].state, "awake")

    def test_commands_other_processes(self):
        with Program("--name", "package-test") as program:
            process = gpu_sleep.Process("package-test")
            slept = process.sleep(2, tags=["cache"], timeout=30, options=["--on-touch", "fail"])
            self.assertEqual([(each.pid, each.state, each.changed) for each in slept], [(program.pid, "partial", True)])
            status = process.status()
            self.assertEqual(status.tags, gpu_sleep.processes(program.pid)[0].tags)
            self.assertEqual((status.pid, status.name, status.captures), (program.pid, "package-test", True))
            tags = {tag.tag: tag for tag in status.tags}
            self.assertEqual((tags["cache"].state, tags["cache"].dropped_bytes), ("asleep", 4 << 20))
            self.assertEqual((tags["weights"].state, tags["weights"].resident_bytes), ("awake", 4 << 20))
            self.assertIn(program.pid, [each.pid for each in gpu_sleep.processes()])
            with process.inhibit(seconds=60), self.assertRaises(gpu_sleep.Inhibited):
                process.sleep()
            self.assertEqual(process.wake(["cache"], wait=1)[0].state, "awake")
            program.tell("gpu_sleep.on_sleep(lambda event: 1 / 0)")
            with self.assertRaisesRegex(gpu_sleep.Refused, "ZeroDivisionError: division by zero"):
                process.sleep()
            with self.assertRaises(gpu_sleep.UnknownTag):
                process.sleep(tags="nobody")
            with self.assertRaises(gpu_sleep.InvalidArgument):
                process.sleep(options=["--level", "9"])
        for name in ("", "-1", "a\0b", "a\ud800b"):
            with self.assertRaises(gpu_sleep.InvalidArgument):
                gpu_sleep.processes(name)
        for wrong in (process.status, process.wake, lambda: gpu_sleep.processes("package-test")):
            with self.assertRaises(gpu_sleep.NoProcess):
                wrong()

    def test_leaves_no_inhibitor(self):
        with Program("--name", "package-test") as program, Program("--name", "package-test") as other:
            os.kill(other.pid, signal.SIGSTOP)
            with self.assertRaises(gpu_sleep.Error), gpu_sleep.Process("package-test").inhibit():
                self.fail("one of the processes could not be asked")
            process = gpu_sleep.Process(program.pid)
            self.assertFalse(process.status().inhibited)
            with self.assertRaises(KeyError), process.inhibit():
                os.kill(program.pid, signal.SIGSTOP)  # it cannot be asked to release
                raise KeyError


if __name__ == "__main__":
    unittest.main()
