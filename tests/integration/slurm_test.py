# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Slurm with the scripts of cli/examples/slurm: suspended jobs, room for new ones, preemption, and bad luck.

Usage: slurm_test.py TREE BUILD

With GPU_SLEEP_TEST_LONG=1 also what takes too long for CI. One node, on a machine of its own, with munge. Its GPU has 80 MiB, and a job 50 MiB: each GiB of the scripts is a MiB here.
"""

import contextlib
import copy
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

TREE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
sys.path.insert(0, str(TREE / "tests/support"))
import own_machine  # noqa: E402
import started  # noqa: E402
from gpu_memory import GpuMemory  # noqa: E402
from started import SECONDS, becomes_true  # noqa: E402

FOLDER = pathlib.Path("/tmp/slurm")
SCRIPTS = pathlib.Path("/etc/slurm/gpu-sleep")
ALL, SIZE = 80 << 20, 50 << 20
SIMULATED = {"LD_LIBRARY_PATH": f"{BUILD}/simulated", "GPU_SLEEP_SIM_DEVICES": "1", "GPU_SLEEP_SIM_MEMORY": str(ALL),
             "GPU_SLEEP_SIM_STATE": str(FOLDER / "gpus")}
only_long = unittest.skipUnless(os.environ.get("GPU_SLEEP_TEST_LONG") == "1", "of scripts/test --long")
SLOW, SLOWER = (f"GPU_SLEEP_SIM_DELAY=cuMemcpyDtoHAsync:{time}" for time in ("300ms", "1s"))  # several of which make a sleep
CONFIGURATION = f"""
ClusterName=test
SlurmctldHost={own_machine.NAME}
AuthInfo=socket={FOLDER}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={FOLDER}/state
SlurmdSpoolDir={FOLDER}/spool
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmdPidFile={FOLDER}/slurmd.pid
SlurmctldLogFile={FOLDER}/slurmctld.log
SlurmdLogFile={FOLDER}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={own_machine.NAME} CPUs=2 Gres=gpu:1,shard:4
PartitionName=low Nodes=ALL PriorityTier=1 OverSubscribe=FORCE:1
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=FORCE:1
Include {SCRIPTS}/settings.conf
"""


def work(name):
    """A job: uses the GPU until the file NAME.end is there, and counts how often."""
    (FOLDER / f"{name}.pid").write_text(str(os.getpid()), encoding="ascii")
    memory = GpuMemory(int(os.environ.get("JOB_SIZE", SIZE)))
    uses = 0
    while not (FOLDER / f"{name}.end").exists():
        if not memory.is_intact():
            sys.exit("damaged")
        uses += 1
        (FOLDER / f"{name}.new").write_text(str(uses), encoding="ascii")
        (FOLDER / f"{name}.new").rename(FOLDER / f"{name}.uses")
        while (FOLDER / f"{name}.idle").exists():
            time.sleep(0.02)
        time.sleep(0.02)
    print("intact")


def run(*command, **more):
    return subprocess.run([*map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS, **more)


def write_command(name, text):
    path = pathlib.Path("/usr/local/bin") / name
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


class Machine:
    """The node, from the start of its daemons on."""

    def __init__(self):
        self.daemons = []  # which end with the machine
        for folder in (FOLDER, FOLDER / "state", FOLDER / "spool"):
            folder.mkdir()
        own_machine.install(BUILD, "/etc")
        SCRIPTS.parent.mkdir(exist_ok=True)
        shutil.copytree("/usr/local/share/doc/gpu-sleep/examples/slurm", SCRIPTS)
        variables = " ".join(f"{name}={value}" for name, value in SIMULATED.items())
        self.edit("prolog", "60GiB", "60MiB")
        self.edit("prolog", "--idle 1m", "--idle 100ms")
        for name in ("gpu-reclaim", "gpu-run"):  # Slurm's scripts have an environment of their own
            write_command(name, f'#!/bin/sh\n{variables} exec {BUILD}/bin/{name} "$@"\n')
        (SCRIPTS.parent / "slurm.conf").write_text(CONFIGURATION, encoding="ascii")
        (SCRIPTS.parent / "gres.conf").write_text("Name=gpu File=/dev/zero\nName=shard Count=4\n", encoding="ascii")
        os.environ.update({**SIMULATED, "SLURM_CONF": str(SCRIPTS.parent / "slurm.conf")})
        key = FOLDER / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.start("munged", "--foreground", f"--key-file={key}", *(f"--{name}={FOLDER}/munge{ending}" for name, ending in (
            ("socket", ".sock"), ("pid-file", ".pid"), ("seed-file", ".seed"), ("log-file", ".log"))))
        assert becomes_true((FOLDER / "munge.sock").exists)
        self.start("slurmctld", "-D")
        self.daemon = self.start("slurmd", "-D")
        self.is_up()
        driver = ctypes.CDLL(f"{BUILD}/simulated/libcuda.so.1")
        context = ctypes.c_void_p()
        for status in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), driver.cuCtxSetCurrent(context)):
            assert status == 0
        self.driver = driver
        self.all = self.free()

    def start(self, *command):
        self.daemons.append(started.start(command, FOLDER))
        return self.daemons[-1]

    @staticmethod
    def is_up():
        assert becomes_true(lambda: run("sinfo", "-h", "-o", "%t").stdout.strip() in ("idle", "alloc", "mix")), started.logs(FOLDER)

    @staticmethod
    def edit(script, old, new):
        text = (SCRIPTS / script).read_text(encoding="utf-8")
        assert old in text
        (SCRIPTS / script).write_text(text.replace(old, new), encoding="utf-8")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self.driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value


class Job:
    def __init__(self, name, *options, partition="low", command=()):
        self.name, self.output = name, FOLDER / f"{name}.out"
        program = [*command, sys.executable, pathlib.Path(__file__).resolve(), TREE, BUILD, "work", name]
        said = run("sbatch", "--parsable", f"--chdir={FOLDER}", f"--partition={partition}", "--gres=shard:1", f"--output={self.output}",
                   "--cpus-per-task=2", *options, "--wrap", "exec " + " ".join(map(str, program)))
        assert said.returncode == 0, said.stdout
        self.id = said.stdout.strip()

    def task(self, number):
        """Of an array whose name has $SLURM_ARRAY_TASK_ID."""
        task = copy.copy(self)
        task.name, task.id = self.name.replace("$SLURM_ARRAY_TASK_ID", str(number)), f"{self.id}_{number}"
        return task

    def says(self, field):
        return re.search(rf"\b{field}=(\S+)", run("scontrol", "show", "job", self.id).stdout).group(1)

    def uses(self):
        with contextlib.suppress(FileNotFoundError):
            return int((FOLDER / f"{self.name}.uses").read_text(encoding="ascii"))
        return 0

    def works(self):
        uses = self.uses()
        return becomes_true(lambda: self.uses() > uses + 1)

    def pid(self):
        return int((FOLDER / f"{self.name}.pid").read_text(encoding="ascii"))

    def is_stopped(self):
        return pathlib.Path(f"/proc/{self.pid()}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "T"

    def is_in(self, state):
        return becomes_true(lambda: self.says("JobState") == state)

    def end(self):
        (FOLDER / f"{self.name}.end").touch()

    def ends_right(self):
        self.end()
        return self.is_in("COMPLETED") and self.output.read_text(encoding="utf-8").endswith("intact\n")


class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.machine = Machine()

    def tearDown(self):
        run("scancel", "--user=root")
        self.check(becomes_true(lambda: not run("squeue", "-h").stdout.strip()))
        self.assertTrue(becomes_true(lambda: self.machine.free() == self.machine.all))

    def job(self, name, *options, **more):
        job = Job(name, *options, **more)
        self.check(job.works())
        return job

    def check(self, condition):
        if not condition:
            self.fail(started.logs(FOLDER))

    def edit(self, script, old, new):
        """Until the test ends."""
        self.addCleanup((SCRIPTS / script).write_text, (SCRIPTS / script).read_text(encoding="utf-8"), encoding="utf-8")
        self.machine.edit(script, old, new)

    def scontrol(self, *words):
        self.assertEqual(run("scontrol", *words).stdout, "")

    def has_no_memory(self):
        """But for contexts."""
        return self.machine.free() > self.machine.all - SIZE // 2

    @staticmethod
    def stands_still(job):
        uses = job.uses()
        time.sleep(0.2)
        return job.uses() == uses

    def is_suspended(self, job):
        """It does nothing, and its memory is free."""
        self.check(becomes_true(job.is_stopped))
        self.check(self.has_no_memory())
        self.assertTrue(self.stands_still(job))

    def goes_on(self, job):
        self.check(job.works())
        self.assertFalse(self.has_no_memory())
        self.check(job.ends_right())

    def test_a_suspended_job_frees_its_memory(self):
        job = self.job("plain", f"--job-name='\"$(touch {FOLDER}/owned)`touch {FOLDER}/owned`\n;")  # a hostile name
        self.assertFalse(self.has_no_memory())
        own_machine.mount("-t", "tmpfs", "-o", "ro", "tmpfs", "/tmp/gpu-sleep-0")  # so that its agent cannot be reached
        said = run(SCRIPTS / "suspend", "suspend", job.id)
        run("umount", "/tmp/gpu-sleep-0")
        self.assertEqual((said.returncode, job.says("JobState")), (3, "RUNNING"), said.stdout)
        self.scontrol("suspend", job.id)
        self.is_suspended(job)
        self.scontrol("resume", job.id)
        self.goes_on(job)
        self.assertFalse((FOLDER / "owned").exists())

    @only_long
    def test_a_grace_time_that_is_too_short_is_said(self):
        self.edit("task_prolog", "1500ms", "100ms")  # Slurm grants 2 s
        job = self.job("slow", f"--export=ALL,{SLOW}")
        self.scontrol("suspend", job.id)
        self.check(becomes_true(job.is_stopped))
        self.assertFalse(self.has_no_memory())
        self.assertIn("SIGTSTP: stopped awake", job.output.read_text(encoding="utf-8"))
        self.scontrol("resume", job.id)
        self.goes_on(job)
        # Slurm stops it while it goes to sleep.
        job = self.job("optimist", f"--export=ALL,{SLOWER}", command=("gpu-run", "--on-stop=sleep", "--stop-grace=60s", "--"))
        self.scontrol("suspend", job.id)
        self.check(becomes_true(job.is_stopped))
        self.scontrol("resume", job.id)
        self.goes_on(job)
        self.assertIn("SIGTSTP: ", job.output.read_text(encoding="utf-8"))

    def suspend(self, *words, status=0):
        said = run(SCRIPTS / "suspend", *words)
        self.assertEqual(said.returncode, status, said.stdout)
        return said.stdout

    @only_long
    def test_a_job_that_sleeps_first_needs_no_grace_time(self):
        job = self.job("patient", f"--export=ALL,{SLOWER}")
        self.suspend("suspend", job.id)
        self.is_suspended(job)
        self.suspend("resume", job.id)
        self.goes_on(job)
        for words, status in ((("suspend", "4711"), 1), (("resume", "4711"), 1), (("suspend", f"$(touch {FOLDER}/owned)"), 1), ((), 2)):
            self.suspend(*words, status=status)
        self.assertFalse((FOLDER / "owned").exists())

    @only_long
    def test_an_array_of_which_a_part_is_suspended(self):
        array = Job("part$SLURM_ARRAY_TASK_ID", f"--export=ALL,JOB_SIZE={ALL // 4}", "--array=1-3%2", "--cpus-per-task=1")  # the third has not begun
        one, two = array.task(1), array.task(2)
        self.check(one.works() and two.works())
        self.suspend("suspend", one.id)
        self.check(becomes_true(one.is_stopped) and two.works())
        self.assertIn(f"{one.id} was suspended before", self.suspend("suspend", array.id))
        for task in one, two:
            self.is_suspended(task)
        self.suspend("resume", two.id)
        self.check(two.works())
        self.suspend("resume", array.id)
        self.check(one.works() and two.works() and one.ends_right() and two.ends_right())

    def test_a_job_that_ends_between_look_up_and_call(self):
        command = pathlib.Path("/usr/local/bin/gpu-sleep")
        self.addCleanup(command.symlink_to, BUILD / "bin/gpu-sleep")
        self.addCleanup(command.unlink)
        job = self.job("brief")
        runs = f"[ -e /proc/{job.pid()} ] || squeue -h -t running -j {job.id} | grep -q ." # which Slurm notices later
        write_command(command.name, f"#!/bin/sh\ntouch {FOLDER}/brief.end\nwhile {runs}; do sleep 0.1; done\n"
                                    f'exec {BUILD}/bin/gpu-sleep "$@"\n')
        said = self.suspend("suspend", job.id, status=1)
        self.assertIn(f"there is no process in the group 'job{job.id}'", said)
        self.assertIn("Job/step already completing or completed", said)
        self.check(job.ends_right())

    @only_long
    def test_a_prolog_makes_room_among_idle_programs(self):
        (FOLDER / "notebook.idle").touch()
        with open(FOLDER / "notebook.out", "w", encoding="utf-8") as output:
            notebook = subprocess.Popen(["gpu-run", "--", sys.executable, __file__, TREE, BUILD, "work", "notebook"], stdout=output)
        self.addCleanup(notebook.wait, SECONDS)
        self.addCleanup(notebook.kill)
        self.assertTrue(becomes_true(lambda: not self.has_no_memory()))
        job = self.job("prolog")
        self.check(job.ends_right())
        (FOLDER / "notebook.idle").unlink()
        (FOLDER / "notebook.end").touch()
        self.assertEqual(notebook.wait(SECONDS), 0)
        self.assertEqual((FOLDER / "notebook.out").read_text(encoding="utf-8"), "intact\n")

    def test_a_job_starts_whatever_is_wrong_with_the_commands(self):
        self.edit("prolog", "-k 5 60", "-k 1 1")
        self.edit("task_prolog", "timeout 10", "timeout 1")
        commands = [pathlib.Path("/usr/local/bin") / name for name in ("gpu-reclaim", "gpu-run")]
        for command in commands:
            self.addCleanup(write_command, command.name, command.read_text(encoding="utf-8"))
        for number, text in enumerate(("#!/bin/sh\nexec sleep 1000\n", "#!/bin/sh\nulimit -c 0; kill -SEGV $$\n", None)):  # the last is an upgrade
            for command in commands:
                command.unlink()
                if text:
                    write_command(command.name, text)
            self.check(self.job(f"broken{number}").ends_right())

    def preempt(self, name, *command):
        low = self.job(f"low{name}")
        high = self.job(f"high{name}", partition="high", command=command)
        self.assertEqual(low.says("JobState"), "SUSPENDED")
        self.check(high.ends_right())
        self.goes_on(low)

    def test_two_jobs_that_do_not_fit_together(self):
        self.preempt("prolog")

    @only_long
    def test_two_jobs_without_a_prolog(self):
        self.edit("prolog", "timeout", "true")
        self.preempt("recipe", "gpu-run", "--need=60MiB", "--wait=1m", "--")

    def test_an_epilog_leaves_nothing_behind(self):
        job = self.job("files")
        folder = pathlib.Path("/var/tmp/gpu-sleep-root")
        folder.mkdir(0o700)
        self.assertEqual(run("gpu-sleep", "--group", f"job{job.id}", "--dir", folder).returncode, 0)
        self.assertTrue(list(folder.iterdir()))
        os.kill(job.pid(), signal.SIGKILL)
        self.check(becomes_true(lambda: not list(folder.iterdir())))
        if not own_machine.has_users():
            return
        sockets = pathlib.Path("/tmp/gpu-sleep-65534")
        sockets.mkdir(0o700)
        for name in ("1-2.sock", "1-2.sock.state", "history"):
            (sockets / name).touch()
        shutil.chown(sockets, 65534, 65534)
        self.assertEqual(run(SCRIPTS / "epilog", env={**os.environ, "SLURM_JOB_USER": "nobody", "SLURM_JOB_UID": "65534"}).returncode, 0)
        self.assertEqual([file.name for file in sockets.iterdir()], ["history"])

    @only_long
    def test_a_node_daemon_that_dies(self):
        for name, options in ("orphan", ()), ("midway", (f"--export=ALL,{SLOW}",)):  # the second while the job goes to sleep
            with self.subTest(name):
                job = self.job(name, *options)
                self.scontrol("suspend", job.id)
                self.assertTrue(becomes_true(lambda: self.stands_still(job) if options else self.has_no_memory()))
                self.assertEqual(self.has_no_memory(), not options)
                self.machine.daemon.kill()
                self.machine.daemon.wait(SECONDS)
                self.is_suspended(job)
                self.machine.daemon = self.machine.start("slurmd", "-D")
                self.machine.is_up()
                self.scontrol("resume", job.id)
                self.goes_on(job)


if __name__ == "__main__":
    if sys.argv[3:4] == ["work"]:
        work(*sys.argv[4:])
        sys.exit()
    own_machine.enter("cmake", "munged", "slurmctld", "slurmd", "sbatch", kept=(TREE, BUILD))
    del sys.argv[1:3]
    unittest.main()
