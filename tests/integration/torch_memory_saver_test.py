# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""The stand-in for torch_memory_saver on the simulated driver, as its callers call it, in both hook modes.

Usage: torch_memory_saver_test.py BUILD
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv.pop()).resolve()
HERE = pathlib.Path(__file__).resolve().parent
AGENT = HERE.parents[1] / "agent"
SECONDS = 120

try:
    import ctypes  # noqa: F401
except ImportError:
    print("skipped: this Python has no ctypes")
    sys.exit(77)

# As in the environment of torch_memory_saver_program.py: a parent that has PyTorch need not have the GPU.
PARENT = """
import subprocess, sys, types
sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(cuda="12.8"))
import torch_memory_saver
with torch_memory_saver.configure_subprocess():
    sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""


class Saver(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.site = pathlib.Path(scratch.name)
        (cls.site / "torch_memory_saver").symlink_to(AGENT / "torch_memory_saver/torch_memory_saver")
        (cls.site / "gpu_sleep").mkdir()
        for file in (AGENT / "python/gpu_sleep").glob("*.py"):
            (cls.site / "gpu_sleep" / file.name).symlink_to(file)
        installed = cls.site / "gpu_sleep/_installed.py"  # as pip's
        installed.unlink()
        installed.write_text(f"import pathlib\nLIBRARIES, COMMANDS = map(pathlib.Path, {[str(BUILD / 'lib'), str(BUILD / 'bin')]})\n")
        (cls.site / "libgpu-sleep-agent.so").symlink_to(BUILD / "lib/libgpu-sleep-agent.so")
        for mode in ("preload", "torch"):
            name = f"torch_memory_saver_hook_mode_{mode}"
            (cls.site / f"{name}_cu12.abi3.so").symlink_to(BUILD / f"lib/{name}.abi3.so")

    def environment(self, **more):
        libraries = f"{os.environ['LD_LIBRARY_PATH']}:{BUILD / 'stand_in_runtime'}"
        return {**os.environ, "PYTHONPATH": f"{self.site}:{HERE}", "GPU_SLEEP_SIM_MEMORY": str(128 << 20),
                "TMPDIR": str(self.site), "GPU_SLEEP_SIM_STATE": str(self.site / "devices"), "LD_LIBRARY_PATH": libraries, **more}

    def run_function(self, name, mode, prefix=(), **more):
        parent = ["-c", PARENT] if mode == "preload" else []
        done = subprocess.run([*prefix, sys.executable, *parent, str(HERE / "torch_memory_saver_program.py"), name, mode],
                              env=self.environment(**more), text=True, timeout=SECONDS, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_in_both_modes(self):
        for name in ("sglang", "tags", "regions", "devices", "overlapping", "failures", "others_word", "backups",
                     "kept_copies", "retained", "dynamo", "residents", "disk", "disk_of_two_threads", "graphs", "wrong_use"):
            for mode in ("preload", "torch"):
                with self.subTest(function=name, mode=mode):
                    self.run_function(name, mode)

    def test_a_hook_mode_of_its_own(self):
        self.run_function("own_mode", "torch")

    def test_without_an_agent(self):
        self.run_function("no_agent", "torch", GPU_SLEEP_AGENT="/nowhere")

    def test_preloading_comes_too_late(self):
        self.run_function("late", "torch")

    def test_loaded_late_into_what_enters_containers(self):
        """When the environment is no longer where the kernel put it."""
        program = """
            import ctypes, os, sys
            os.environ.update({f"MORE{number}": "" for number in range(100)}, LD_PRELOAD="/lib/libgpu-sleep-login.so")
            ctypes.CDLL(sys.argv[1])
            sys.exit(bool(ctypes.CDLL(None).getenv(b"LD_PRELOAD")))
        """
        podman = self.site / "podman"
        podman.symlink_to(sys.executable)
        library = self.site / "torch_memory_saver_hook_mode_preload_cu12.abi3.so"
        done = subprocess.run([podman, "-c", "if True:" + program, library], env=self.environment(), timeout=SECONDS)
        self.assertEqual(done.returncode, 0)

    def test_a_whole_process(self):
        self.run_function("slime", "preload", TMS_INIT_ENABLE="yes", TMS_INIT_ENABLE_CPU_BACKUP="1")

    def test_the_preloaded_library_brings_the_agent(self):
        self.run_function("intercepted", "preload", GPU_SLEEP_CAPTURE="1")

    def test_under_gpu_run(self):
        for mode in ("preload", "torch"):
            self.run_function("intercepted", mode, [str(BUILD / "bin/gpu-run"), "--"])

    def test_finds_the_agent_by_whatever_name(self):
        copy = self.site / "copy-of-gpu-sleep-agent.so"
        copy.write_bytes((BUILD / "lib/libgpu-sleep-agent.so.0").read_bytes())
        self.run_function("intercepted", "preload", GPU_SLEEP_CAPTURE="1", LD_PRELOAD=str(copy))
        self.run_function("sglang", "torch", GPU_SLEEP_AGENT=str(copy))

    def test_configures_children(self):
        program = """
            import os, sys, types, torch_memory_saver
            sys.modules["torch"] = types.SimpleNamespace(version=types.SimpleNamespace(cuda="12.8"))
            os.environ["LD_PRELOAD"] = "other"
            with torch_memory_saver.configure_subprocess():
                library, other = os.environ["LD_PRELOAD"].split(":")
                assert other == "other" and b"TMS_INIT_ENABLE_DISK_BACKUP" in open(library, "rb").read()
            assert os.environ.pop("LD_PRELOAD") == "other"
            try:
                with torch_memory_saver.configure_subprocess():
                    os.environ["LD_PRELOAD"] = "mine"
            except AssertionError:
                sys.exit()
            sys.exit("somebody changed it, and nobody says so")
        """
        done = subprocess.run([sys.executable, "-c", "if True:" + program], env=self.environment(), timeout=SECONDS)
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
