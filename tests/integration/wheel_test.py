# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The wheel of a build folder: installed by pip into a fresh environment without a network, used on the simulated driver,
beside another version in another environment, and taken away again.

Usage: wheel_test.py BUILD [WHEELS]: the wheels of a release, in the directory WHEELS, in place of those of the build folder.
"""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipfile

BUILD, *WHEELS = (pathlib.Path(each).resolve() for each in sys.argv[1:])
TREE = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 120
NEWEST_LIBRARY = (2, 36) # what is built beside a later one asks for symbols that the wheel may not
VERSION = re.search(r"VERSION ([\d.]+) LANGUAGES", (TREE / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)
VERSIONS = (VERSION, "99.0")
FOUND = "import gpu_sleep; assert gpu_sleep.asleep_bytes() == 0; gpu_sleep.processes(); print(gpu_sleep.__file__)"


def run(*arguments, **more):
    """What it prints, as it must succeed."""
    done = subprocess.run([str(each) for each in arguments], text=True, timeout=SECONDS, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, cwd="/", **more)
    assert done.returncode == 0, f"{arguments} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def packaging():
    """scripts/packaging/wheel, as a module."""
    loader = importlib.machinery.SourceFileLoader("wheel", str(TREE / "scripts/packaging/wheel"))
    wheel = importlib.util.module_from_spec(importlib.util.spec_from_loader("wheel", loader))
    loader.exec_module(wheel)
    return wheel


def bundled_pip():
    """The wheel of pip that Python has for new environments."""
    import ensurepip  # which may be missing

    places = (sysconfig.get_config_var("WHEEL_PKG_DIR") or "/", pathlib.Path(ensurepip.__file__).parent / "_bundled")
    return next(wheel for place in places for wheel in pathlib.Path(place).glob("pip-*.whl"))


def missing():
    """Why this cannot run here."""
    for module in ("ctypes", "venv", "ensurepip"):
        if subprocess.run([sys.executable, "-c", f"import {module}"], stderr=subprocess.DEVNULL).returncode != 0:
            return f"this Python has no {module}"
    return next((f"{tool} is missing" for tool in ("cmake", "readelf", "strip") if not shutil.which(tool)), None)


class Environment:
    """A virtual environment, and what is run in it as after its activation. One pip, beside them, is for all."""

    pip_path = None

    def __init__(self, directory):
        self.directory = directory
        run(sys.executable, "-m", "venv", "--without-pip", directory)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HOME": f"{directory}.home"}
        self.before = self.files()

    def files(self):
        return {path for path in self.directory.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts}

    def pip(self, *arguments):
        run(self.directory / "bin/python", "-m", "pip", *arguments, env={**self.environment, "PYTHONPATH": self.pip_path})

    def run(self, program, *arguments):
        return run(shutil.which(program, path=str(self.directory / "bin")), *arguments, env=self.environment)


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        library = tuple(int(part) for part in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."))
        if library > NEWEST_LIBRARY:
            raise unittest.SkipTest("what is built here asks for a later C library than the wheel may")
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.scratch = pathlib.Path(directory.name)
        Environment.pip_path = str(cls.scratch / "pip")
        with zipfile.ZipFile(bundled_pip()) as pip:
            pip.extractall(Environment.pip_path)
        cls.environments = []
        for version in VERSIONS:
            cls.environments.append(Environment(cls.scratch / version))
            cls.environments[-1].pip("install", "--no-index", cls.wheel("gpu_sleep", version))

    @classmethod
    def wheel(cls, name, version, *options):
        if WHEELS and version == VERSION:
            (wheel,) = WHEELS[0].glob(f"{name}-{version}-*.whl")
            return shutil.copy(wheel, cls.scratch)
        printed = run(TREE / "scripts/packaging/wheel", cls.scratch, "--build", BUILD, "--version", version, "--level", "1", *options)
        return printed.splitlines()[-1]  # after what it leaves out

    def test_runs_commands_and_package(self):
        for environment in self.environments:
            for prefix in (["gpu-run", "--"], ["python", "-m", "gpu_sleep", "run", "--"], []):
                with self.subTest(environment=environment.directory.name, prefix=prefix):
                    command, *arguments = [*prefix, "python", "-c", FOUND]
                    self.assertIn(str(environment.directory), environment.run(command, *arguments))
            self.assertTrue(os.access(environment.directory / "libexec/gpu-sleep/gpu-sleep-outside", os.X_OK))
            self.assertTrue((environment.directory / "share/doc/gpu-sleep/copyright").is_file())
        environment = self.environments[0]
        for command in (BUILD / "bin").glob("gpu-*"):
            left_out = command.name == "gpu-sleep-http" and packaging().foreign_libraries(command)
            if (TREE / f"cli/man/{command.name}.1").exists() and not left_out:
                self.assertIn(VERSION, environment.run(command.name, "--version"))
                self.assertTrue((environment.directory / f"share/man/man1/{command.name}.1").is_file())

    def test_is_a_plugin_of_vllm(self):
        program = ("import importlib.metadata as its; (plugin,) = its.distribution('gpu-sleep').entry_points; "
                   "plugin.load()(); print(plugin.group)")  # there is no vLLM, and that is no error
        for environment in self.environments:
            self.assertEqual(environment.run("python", "-c", program), "vllm.general_plugins\n")

    def test_installs_into_any_directory(self):
        first = self.environments[0]
        directory = self.scratch / "any"
        first.pip("install", "--no-index", "--target", directory, next(self.scratch.glob("gpu_sleep-0*.whl")))
        command = [directory / "bin/gpu-run", "--", first.directory / "bin/python", "-c", FOUND]
        for prefix in (command[:2], []):
            found = run(*prefix, *command[2:], env={**os.environ, "PYTHONPATH": str(directory)})
            self.assertIn(str(directory), found)

    def test_stands_in_for_torch_memory_saver(self):
        environment = Environment(self.scratch / "saver")
        wheel = self.wheel("gpu_sleep_torch_memory_saver", VERSION, "--torch-memory-saver")
        environment.pip("install", "--no-index", "--find-links", self.scratch, wheel)  # with what it needs
        packages = next(environment.directory.glob("lib*/python*/site-packages"))
        for cuda in ("_cu12", "_cu13", ""):  # of which callers try some
            self.assertTrue((packages / f"torch_memory_saver_hook_mode_preload{cuda}.abi3.so").is_file())
        self.assertEqual(list(packages.glob("gpu_sleep_torch*/entry_points.txt")), [])  # it is no plug-in
        environment.environment.update(
            PYTHONPATH=str(TREE / "tests/integration"), GPU_SLEEP_SIM_STATE=str(self.scratch / "devices"),
            LD_LIBRARY_PATH=f"{os.environ['LD_LIBRARY_PATH']}:{BUILD / 'stand_in_runtime'}", GPU_SLEEP_CAPTURE="1")
        program = str(TREE / "tests/integration/torch_memory_saver_program.py")
        environment.run("python", program, "sglang", "torch")
        environment.environment["LD_PRELOAD"] = str(packages / "torch_memory_saver_hook_mode_preload_cu12.abi3.so")
        environment.run("python", program, "intercepted", "preload")
        del environment.environment["LD_PRELOAD"]
        environment.pip("uninstall", "--yes", "gpu-sleep-torch-memory-saver", "gpu-sleep")
        self.assertEqual(environment.files() - environment.before, set())

    def test_two_versions_know_each_other(self):
        first, second = self.environments
        program = "import gpu_sleep, sys, torch_stand_in as s; s.install(); t = s.Tensor(); print(1, flush=True); sys.stdin.read()"
        inner = [second.directory / "bin/gpu-run", "--", second.directory / "bin/python", "-c", program]
        sleeper = subprocess.Popen(  # under the agents of both, of which the inner one counts
            [first.directory / "bin/gpu-run", "--", *inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**first.environment, "PYTHONPATH": str(TREE / "tests/integration")})
        try:
            self.assertEqual(sleeper.stdout.readline(), "1\n")
            maps = pathlib.Path(f"/proc/{sleeper.pid}/maps").read_text()
            self.assertIn(f"{second.directory}/libexec/gpu-sleep/libgpu-sleep-agent.so", maps)
            self.assertNotIn(f"{first.directory}/libexec/gpu-sleep/libgpu-sleep-agent.so", maps)
            for command, state in (("gpu-sleep", "asleep"), ("gpu-ps", "asleep"), ("gpu-wake", "awake"), ("gpu-ps", "awake")):
                answer = json.loads(first.run(command, "--json", str(sleeper.pid)))
                self.assertEqual(answer["processes"][0]["state"], state, command)
        finally:
            sleeper.communicate(timeout=SECONDS)
        self.assertEqual(sleeper.returncode, 0)

    def test_refuses_what_would_not_run_elsewhere(self):
        wheel = packaging()
        file = self.environments[0].directory / "bin/gpu-run"
        self.assertEqual(list(wheel.faults(file, wheel.glibc_of(BUILD))), [])
        files = [(file, "bin/gpu-run"), (TREE / "LICENSE", "LICENSE")]
        self.assertEqual(wheel.without_door(files, file), files)
        wheel.LIBRARIES.remove("libc.so.6")
        found = list(wheel.faults(file, (2, 2)))
        self.assertIn("links libc.so.6", found)
        self.assertEqual(wheel.without_door(files, file), files[1:])
        self.assertRegex("\n".join(found), r"asks for symbols of GLIBC_2\.25: .*\bgetrandom\b")

    def test_vanishes_without_leftovers(self):  # the last, by its name
        for environment in self.environments:
            environment.pip("uninstall", "--yes", "gpu-sleep")
            self.assertEqual(environment.files() - environment.before, set())


if __name__ == "__main__":
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
