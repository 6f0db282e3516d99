# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu_sleep.vllm on the simulated driver and a stand-in for vLLM, and, where its sources are given, on vLLM's own classes.

Usage: vllm_test.py BUILD [SOURCES [VERSION]]: SOURCES is a folder with vllm/device_allocator/sleep_mode_backend.py and
cumem.py, and vllm/v1/worker/gpu_worker.py if it is to be had, of vLLM's VERSION: 0.29 (the default) or 0.30. Run it so
before a change of agent/python/gpu_sleep/*vllm*: CI has no vLLM.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCES, VERSION = sys.argv[2:3], (sys.argv[3:] or ["0.29"])[0]
HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "agent/python"
AGENT = str(BUILD / "lib/libgpu-sleep-agent.so.0")
UNDER_GPU_RUN = [str(BUILD / "bin/gpu-run"), "--"]
SECONDS = 240


class Vllm(unittest.TestCase):
    def run_python(self, *arguments, prefix=(), **more):
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run(
                [*prefix, sys.executable, *map(str, arguments)], text=True, timeout=SECONDS, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env={
                    **os.environ, "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": f"{PACKAGE}:{HERE}",
                    "LD_LIBRARY_PATH": str(BUILD / "simulated"), "GPU_SLEEP_SIM_MEMORY": str(128 << 20),
                    "GPU_SLEEP_SIM_STATE": f"{directory}/devices", **more})
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_under_gpu_run(self):
        self.run_python(HERE / "vllm_program.py", "0.30", prefix=UNDER_GPU_RUN)

    def test_with_an_agent_of_its_own(self):
        self.run_python(HERE / "vllm_program.py", "0.29", GPU_SLEEP_AGENT=AGENT)

    def test_without_vllm_or_agent(self):
        self.run_python("-c", "import sys, gpu_sleep.vllm as its; its.register(); assert not {'torch', 'vllm'} & {*sys.modules}; "
                        "import vllm_stand_in; vllm_stand_in.install('0.30'); its.register(); "
                        "assert its.Backend().state() == 'RUNNING' and not its.Backend.is_supported()", GPU_SLEEP_AGENT="")

    @unittest.skipUnless(SOURCES, "no sources of vLLM were given")
    def test_on_its_own_classes(self):
        self.run_python(HERE / "vllm_program.py", VERSION, *SOURCES, prefix=UNDER_GPU_RUN)


if __name__ == "__main__":
    try:
        import ctypes  # noqa: F401
    except ImportError:
        print("skipped: this Python has no ctypes")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
