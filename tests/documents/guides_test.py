# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Runs the commands of the README and of the guides, and the examples, as they stand there.

Usage: guides_test.py TREE BUILD

They run on a machine of their own: namespaces with a /tmp, /etc, /usr/local and network that nobody else sees, where the
build is installed in /usr/local. One simulated GPU of 80 MiB stands for one of 80 GiB: of what is run, each GiB is a MiB.
PROGRAMS stand for those that the guides start, and COMMANDS for those of other projects. What needs more than that is in
UNRUN: bash checks its syntax alone.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

TREE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TREE / "tests/support"))
import own_machine  # noqa: E402
from own_machine import mount  # noqa: E402
from started import becomes_true  # noqa: E402

GUIDES = sorted(TREE.glob("cli/guides/*.md"))
HOME = pathlib.Path("/tmp/home")  # a clone, and where the commands run
MORE = str(1 << 30)  # bytes of GPU memory, for programs that need not share it
SECONDS = 60

# Each begins a block, and is followed by what the block needs.
UNRUN = {
    ("README.md", "scripts/demo"): "minutes; other tests run it",
    **{("containers.md", begin): "podman; integration.containers runs it" for begin in ("sudo gpu-enable", "podman", "gpu-sleep", "jq")},
    **{("kubernetes.md", begin): "Kubernetes; integration.containers runs its containers" for begin in ("cmake", "kubectl")},
    ("slurm.md", "scontrol suspend"): "Slurm; integration.slurm runs it",
    ("slurm.md", "/etc/slurm/gpu-sleep/suspend"): "the same",
    ("slurm.md", "sbatch"): "the same",
    ("lsf.md", "bsub -q low"): "LSF",
    ("lsf.md", "bsub -q high"): "LSF",
    ("openpbs.md", "runuser"): "OpenPBS",
    ("openpbs.md", "qsig"): "OpenPBS",
    ("openpbs.md", "qmgr"): "OpenPBS",
    ("pytorch.md", "python3 -m sglang"): "SGLang, slime and verl",
    ("hangs.md", "gdb -p"): "gdb, and the right to trace",
}

PROGRAMS = ["serve.py", "serve_a.py", "serve_b.py", "train.py", "ipykernel_launcher.py", "vllm.py"]
DONE = "#!/bin/sh\n"
COMMANDS = {
    "sudo": DONE + 'exec "$@"\n',
    "srun": DONE + 'exec "$@"\n',
    # In the namespaces all is of one user, who is called root.
    "nginx": DONE + 'PATH=/usr/sbin:/usr/bin exec nginx -g "user root;" "$@"\n',
    "vllm": DONE + f"exec python3 {HOME}/vllm.py\n",
    # Each unit that is named has to be installed.
    "systemctl": "#!/bin/bash\nfor word; do\n    [[ $word != *.service && $word != *.timer ]] || cat {/usr/local/lib,/etc}/systemd/system/$word 2>/dev/null |\n"
                 "        grep -q . || { echo \"there is no unit $word\" >&2; exit 1; }\ndone\n",
    **{name: DONE for name in ("journalctl", "nvidia-smi", "pip")},
}
CLONE = {"build": DONE, "packaging/wheel": DONE + "echo dist/gpu_sleep.whl\n"}  # in scripts


def make_machine():
    """Inside: the file systems, what is installed."""
    mount("-t", "tmpfs", "tmpfs", "/var/log")
    own_machine.overlay("/etc", "/usr/local")
    for name in ("prometheus", "slurm"):
        pathlib.Path("/etc", name).mkdir(exist_ok=True)
    with open("/etc/passwd", "a", encoding="utf-8") as users:
        users.write("alice:x:471:471::/nowhere:/bin/sh\n")
    for name, text in COMMANDS.items():
        write(HOME / "bin" / name, text)
    for name, text in CLONE.items():
        write(HOME / "scripts" / name, text)
    (HOME / "build").mkdir()
    (HOME / "build/release").symlink_to(BUILD)
    for name in PROGRAMS:
        shutil.copy(HERE / "stand_ins/program.py", HOME / name)
    for name in ("serve", "train"):
        write(HOME / name, "#!/usr/bin/env python3\n" + (HERE / "stand_ins/program.py").read_text(encoding="utf-8"))
    os.environ.update({
        "HOME": str(HOME), "PATH": f"{HOME}/bin:/usr/local/bin:{os.environ['PATH']}", "LD_LIBRARY_PATH": f"{BUILD}/simulated",
        "PYTHONPATH": f"/usr/local/share/gpu-sleep/python:{TREE}/tests/integration:{HERE}/stand_ins",
        "GPU_SLEEP_SIM_DEVICES": "1", "GPU_SLEEP_SIM_MEMORY": str(80 << 20), "GPU_SLEEP_SIM_STATE": "/tmp/gpus", "TMPDIR": "/tmp",
        "SLURM_JOB_ID": "471", "SLURM_JOB_GPUS": "0", "LSB_JOBID": "471", "PBS_JOBID": "471"})
    for name in ("GPU_SLEEP_NAME", "PKG_CONFIG_PATH"):
        os.environ.pop(name, None)
    subprocess.run(["cmake", "--install", BUILD, "--prefix", "/usr/local"], check=True, stdout=subprocess.DEVNULL)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def blocks_of(document, language="sh"):
    return re.findall(rf"^```{language}$\n(.*?)^```$", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def reason_not_to_run(document, block):
    return next((why for (name, begin), why in UNRUN.items() if name == document.name and block.startswith(begin)), None)


def states():
    """The state of each process, by its name, or that of its script."""
    listing = subprocess.run(["gpu-ps", "--json"], stdout=subprocess.PIPE, check=True, timeout=SECONDS).stdout
    return {process["display_name"].split()[-1]: process.get("state") for process in json.loads(listing)["processes"]}


def eventually(condition, what):
    assert becomes_true(condition), f"waited in vain: {what}"


class Terminal:
    """A shell, in which a command that fails ends it; at the end all that it has started is ended."""

    def __init__(self, **environment):
        self.log = tempfile.TemporaryFile("w+")
        self.shell = subprocess.Popen(["bash"], cwd=HOME, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log,
                                      text=True, start_new_session=True)
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.communicate()
        self.log.close()
        eventually(lambda: not states(), "the programs end")

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def run(self, block):
        self.number += 1
        script, done = (pathlib.Path(f"/tmp/{self.number}.{ending}") for ending in ("sh", "done"))
        for path in (script, done):
            path.unlink(missing_ok=True)
        block = in_a_terminal_of_its_own(block)
        write(script, block.replace("GiB", "MiB"))
        before = len(self.said())
        self.shell.stdin.write(f"set -e; . {script} < /dev/null; touch {done}\n")
        self.shell.stdin.flush()
        eventually(lambda: done.exists() or self.shell.poll() is not None, f"{block}\n{self.said()}")
        assert done.exists(), f"{block}\n{self.said()}"
        if "vllm serve" in block:
            eventually(lambda: subprocess.run(["curl", "-sf", "localhost:8000/health"]).returncode == 0, "vLLM is ready")
        for name in self.started(block):
            eventually(lambda: name in states(), f"{name} runs\n{self.said()}")
        return self.said()[before:]

    @staticmethod
    def started(block):
        """The names of the programs that a block leaves running under gpu-run."""
        for line in block.splitlines():
            if "gpu-run" in line and re.search(r"&\s*(#.*)?$", line):
                yield (re.search(r"--name (\S+)", line) or re.search(r"-- (?:python3 |\./)(\S+)", line)).group(1)


def in_a_terminal_of_its_own(block):
    """A program that a block ends with goes on while the guide does, in another terminal."""
    return re.sub(r"(?m)^((?:srun |GPU_SLEEP_LOG=debug )?gpu-run [^&\n#]*|vllm serve (?:[^&\n]|\\\n)*?)(#.*)?\n\Z", r"\1 &\n", block)


class Guides(unittest.TestCase):
    def run_guide(self, name, after=(), terminal=None, **environment):
        """Runs the blocks of a guide one after another. `after` has what to check behind the block that begins so."""
        after, guide = dict(after), TREE / "cli/guides" / name
        with contextlib.ExitStack() as stack:
            terminal = terminal or stack.enter_context(Terminal(**environment))
            for block in blocks_of(guide):
                said = "" if reason_not_to_run(guide, block) else terminal.run(block)
                for begin in [begin for begin in after if block.startswith(begin)]:
                    after.pop(begin)(said)
        self.assertFalse(after, "a block is not there any more")

    def state_is(self, name, state):
        return lambda said: self.assertEqual(states().get(name), state, said)

    def test_every_block_is_shell(self):
        used = set()
        for document in [TREE / "README.md", *GUIDES]:
            for block in blocks_of(document):
                checked = subprocess.run(["bash", "-n"], input=block, text=True, stderr=subprocess.PIPE)
                self.assertEqual((checked.returncode, checked.stderr), (0, ""), block)
                used |= {key for key in UNRUN if key[0] == document.name and block.startswith(key[1])}
        self.assertEqual(used, UNRUN.keys())
        for name in CLONE:
            self.assertTrue(os.access(TREE / "scripts" / name, os.X_OK))

    def test_readme(self):
        quick_start, = blocks_of(TREE / "README.md", "console")
        with Terminal() as terminal:
            commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", quick_start, re.MULTILINE)
            self.assertEqual(len(commands), 3)
            for command, output in commands:
                self.assertEqual(shape(terminal.run(command + "\n")), shape(output))
        with Terminal() as terminal:
            blocks = [block for block in blocks_of(TREE / "README.md") if not reason_not_to_run(TREE / "README.md", block)]
            self.assertEqual(len(blocks), 1)  # two servers
            terminal.run(blocks[0])
            self.assertEqual(states(), {"a": "asleep", "b": "awake"})
            terminal.run("curl -sf localhost:8000/generate")
            self.assertEqual(states(), {"a": "awake", "b": "asleep"})

    def test_notebooks(self):
        def notebook_starts(said):
            # A new login has the agent.
            terminal.run("systemctl is-enabled gpu-reclaim.timer")
            terminal.run(". /etc/profile.d/gpu-sleep.sh; python3 -m ipykernel_launcher &\npython3 train.py &")
            eventually(lambda: len(states()) == 2, "the notebook and another program have the agent")

        with Terminal(GPU_SLEEP_SIM_MEMORY=MORE) as terminal:
            self.run_guide("notebooks.md", {"scripts/build": notebook_starts,
                                            "sudo gpu-ps": lambda said: self.assertIn("1h host", said)}, terminal)
            self.assertFalse(pathlib.Path("/etc/profile.d/gpu-sleep.sh").exists())
            for number, configuration in enumerate(blocks_of(TREE / "cli/guides/notebooks.md", "toml")):
                write(HOME / f"{number}.toml", configuration)
                terminal.run(f"gpu-reclaim --dry-run --config {HOME}/{number}.toml")
        for document in GUIDES:
            for block in blocks_of(document, "python"):
                compile(block, document.name, "exec")

    def test_sharing(self):
        def switched(said):
            self.assertEqual((states()["a"], states()["b"]), ("awake", "asleep"), said)

        self.run_guide("sharing.md", {"gpu-run --name a": switched, "gpu-switch b": self.state_is("b", "asleep"),
                                      "curl -X POST": self.state_is("c", "awake")})

    @unittest.skipUnless(shutil.which("nginx", path="/usr/sbin:/usr/bin"), "nginx is missing")
    def test_proxy(self):
        self.run_guide("proxy.md", {"curl -X POST": self.state_is("serve.py", "awake")})

    def test_units_of_two_servers(self):
        examples = pathlib.Path("/usr/local/share/doc/gpu-sleep/examples")
        units = [examples / f"serve-{name}.service" for name in "ab"]
        if shutil.which("systemd-analyze"):
            said = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
            self.assertNotIn("serve-", said)
        with Terminal() as terminal:
            for unit in units:
                lines = dict(line.split("=", 1) for line in unit.read_text().splitlines() if line.startswith("Exec"))
                terminal.run(lines["ExecStart"] + " &\n" + lines["ExecStartPost"])
            self.assertEqual(states(), {"a": "asleep", "b": "awake"})

    def test_pytorch(self):
        tagged = ("import time, gpu_sleep, torch_stand_in\ntorch_stand_in.install()\n"
                  "for tag in ('weights', 'kv_cache'):\n    with gpu_sleep.tag(tag): torch_stand_in.Tensor()\ntime.sleep(3600)\n")
        program = HOME / "train.py"
        self.addCleanup(program.write_text, program.read_text())
        program.write_text(tagged)
        self.run_guide("pytorch.md", {"gpu-sleep train.py": self.state_is("train.py", "awake")})

    def test_trainer(self):
        program = "import torch_parts; torch_parts.install(); import trainer; trainer.STEPS = trainer.LAYERS = 2; trainer.main()"
        with Terminal(GPU_SLEEP_SIM_MEMORY=MORE, PYTHONPATH=f"{os.environ['PYTHONPATH']}:{TREE}/cli/examples") as terminal:
            said = terminal.run(f"timeout {SECONDS} gpu-run -- python3 -c '{program}'")
        self.assertEqual(len(re.findall(r"^turn \d: loss 0; \d+ MiB are free to generate$", said, re.MULTILINE)), 3, said)

    def test_vllm(self):
        self.run_guide("vllm.md", {"gpu-sleep llm": self.state_is("llm", "awake")}, GPU_SLEEP_SIM_MEMORY=MORE)

    def test_c(self):
        with Terminal() as terminal:
            self.run_guide("c.md", {"mkfifo": lambda said: eventually(lambda: re.search(r"^\d+$", terminal.said(), re.MULTILINE), "the server answers"),
                                    "gpu-sleep server": self.state_is("server", "asleep")}, terminal)
            answers = re.findall(r"^\d{10,}$", terminal.said(), re.MULTILINE)
        self.assertTrue(len(answers) == 2 and answers[0] == answers[1], answers)

    def test_cmake(self):
        """The guide's lines for CMake build the example, which then finds the driver."""
        lines, = blocks_of(TREE / "cli/guides/c.md", "cmake")
        write(HOME / "own/CMakeLists.txt", "cmake_minimum_required(VERSION 3.16)\nproject(server CXX)\n"
              f"add_executable(server {TREE}/cli/examples/server.cpp)\n{lines}")
        with Terminal() as terminal:
            said = terminal.run("cmake -S own -B own/build > /dev/null\ncmake --build own/build > /dev/null\necho sum | own/build/server\n")
        self.assertRegex(said, r"(?m)^\d+$")

    def test_jobs(self):
        self.run_guide("jobs.md", {"gpu-ps --user alice": lambda said: self.assertIn("asleep", said)}, GPU_SLEEP_SIM_MEMORY=MORE)

    def test_slurm(self):
        self.run_guide("slurm.md", {"srun": self.state_is("train", "awake")})

    def test_jupyterhub(self):
        """All but the hub, which integration.jupyterhub starts."""
        with Terminal() as terminal:
            terminal.run("gpu-run --name kernel -- python3 -m ipykernel_launcher &\n")
            self.run_guide("jupyterhub.md", (), terminal)

    def test_lsf_and_openpbs(self):
        """What needs neither."""
        for name in ("lsf.md", "openpbs.md"):
            self.run_guide(name, GPU_SLEEP_SIM_MEMORY=MORE)

    def test_monitoring(self):
        with Terminal() as terminal:
            terminal.run("gpu-run --name llama -- python3 serve.py\n")
            self.run_guide("monitoring.md", {"gpu-ps  ": lambda said: self.assertIn("llama", said),
                                             "sudo gpu-ps --prometheus": lambda said: self.assertIn("gpu_sleep_", said)}, terminal)

    def test_hangs(self):
        with Terminal() as terminal:
            terminal.run("gpu-run --name llama -- python3 serve.py\n")
            self.run_guide("hangs.md", (), terminal)


def shape(output):
    """An output without its numbers, the widths that they cause, and the name of the GPU."""
    output = re.sub(r"(GPU )N? ?.*?(?=  )|\b\d+(?:\.\d+)?(?: (?:[KMGT]iB|B|ms|s)\b)?", "N", re.sub(r"(?<=GPU 0 )\S.*?(?=  )", "NAME", output))
    return [line.split() for line in output.splitlines()]


if __name__ == "__main__":
    own_machine.enter("c++", "curl", "pkg-config", kept=(TREE, BUILD))
    make_machine()
    del sys.argv[1:3]
    unittest.main()
