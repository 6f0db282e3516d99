# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Unmodified programs in containers that podman starts, with the agent that `gpu-enable containers` describes.

Usage: containers_test.py BUILD

In namespaces of its own: /etc and /run are seen by nobody else, and all processes end with the test. The image is a directory
with this machine's C library, a program and the simulated driver. No registry is asked.
"""

import contextlib
import functools
import importlib.util
import json
import operator
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append("/usr/lib/python3/dist-packages")  # where Debian has them, for another Python too
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from started import becomes_true  # noqa: E402
yaml = importlib.import_module("yaml") if importlib.util.find_spec("yaml") else None

BUILD = pathlib.Path(sys.argv[1]).resolve()
CACHE = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
SYSROOT = pathlib.Path(re.search(r"(?m)^GPU_SLEEP_SYSROOT:\w+=(.*)$", CACHE).group(1) or "/none")
SOURCES = pathlib.Path(__file__).resolve().parents[2]
INSIDE = "GPU_SLEEP_CONTAINERS_TEST"  # set in the namespaces, to the test's directory
MACHINE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
SKIPS = os.environ.get("GPU_SLEEP_REQUIRE_RIGHTS") != "1"  # where something is missing; else the test fails
SECONDS = 60
USER = 471
DEVICE = ["--device", "gpu-sleep.io/agent=all"]
CONTAINER_OPTIONS = ["--network", "none", "--log-driver", "k8s-file", "--tmpfs", "/tmp", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
SIMULATED = {"GPU_SLEEP_SIM_DEVICES": "1", "GPU_SLEEP_SIM_MEMORY": str(1 << 30)}

# Wraps a call as profilers and limiters do.
INTERPOSER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int cuMemAlloc_v2(unsigned long long* address, unsigned long size) {
    int (*next)(unsigned long long*, unsigned long) = (int (*)(unsigned long long*, unsigned long))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    write(2, "wrapped\n", 8);
    return next(address, size);
}
"""
# Uses a driver as a program of that C library would.
MUSL_PROGRAM = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
    printf("%d\n", init ? init(0) : -1);
    fflush(stdout);
    return getchar() == EOF;
}
"""


def run(*command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=SECONDS, **options)


def checked(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def compile_c(compiler, text, *arguments):
    checked(compiler, "-x", "c", "-w", "-", "-x", "none", *arguments, input=text)


def mount(*arguments):
    checked("mount", *arguments)


def copy_with_libraries(file, root, place):
    (root / place).mkdir(parents=True, exist_ok=True)
    shutil.copy(file, root / place)
    for library in re.findall(r"(/\S+) \(0x", run("ldd", str(file)).stdout):
        copy = root / library.lstrip("/")
        if not copy.exists() and not library.startswith(str(BUILD)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, copy)


class Machine:
    """What the test sees of this one: an installation, an image, and an ordinary user."""

    def __init__(self, scratch):
        self.scratch = scratch
        mount("--make-rprivate", "/")
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(scratch))
        layers = [scratch / name for name in ("upper", "work", "empty")]
        for layer in layers:
            layer.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/etc,upperdir={layers[0]},workdir={layers[1]}", "/etc")
        mount("-t", "tmpfs", "tmpfs", "/run")
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
        with open("/etc/passwd", "a", encoding="utf-8") as users:
            users.write(f"alice:x:{USER}:{USER}::{scratch}/alice:/bin/sh\n")
        self.prefix = scratch / "prefix"
        checked("cmake", "--install", str(BUILD), "--prefix", str(self.prefix))
        self.image = scratch / "image"
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run", "simulated", "root"):
            (self.image / folder).mkdir(parents=True)
        (self.image / "tmp").chmod(0o1777)
        copy_with_libraries(BUILD / "bin/demo_program", self.image, "bin")
        for name in ("libm.so.6", "libpthread.so.0", "libdl.so.2"):  # which every image with glibc has
            copy_with_libraries(f"/lib/x86_64-linux-gnu/{name}", self.image, "lib/x86_64-linux-gnu")
        for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(BUILD / "simulated" / library, self.image / "simulated")
        compile_c("cc", INTERPOSER, "-shared", "-fPIC", "-o", str(self.image / "simulated/interposer.so"))
        self.state = scratch / "gpus"  # by which processes share GPUs
        self.state.touch()
        self.state.chmod(0o666)

    def command(self, *words, user=0):
        """A command on the host."""
        variables = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": f"{BUILD}/simulated", **SIMULATED, "GPU_SLEEP_SIM_STATE": str(self.state)}
        return run("setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups",
                   str(self.prefix / "bin" / words[0]), *words[1:], env=variables)

    def done(self, *words, **options):
        """What a command on the host says, which must end well."""
        told = self.command(*words, **options)
        assert told.returncode == 0, told.stderr
        return told.stdout

    def podman(self, user=0):
        home = self.scratch / ("alice" if user else "root")
        for folder in (home, home / "run"):
            folder.mkdir(exist_ok=True)
            os.chown(folder, user, user)
        return ["env", "-i", f"PATH={os.environ['PATH']}", f"HOME={home}", f"XDG_RUNTIME_DIR={home}/run",
                "setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups",
                "podman", "--root", f"{home}/storage", "--runroot", f"{home}/run/containers", "--tmpdir", f"{home}/run/tmp",
                "--storage-driver", "vfs", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]


class Container:
    """A program in a container, which is removed at the end."""

    def __init__(self, name, *options, program=("demo_program", "16", "4"), image=None, user=0, device=True, common=CONTAINER_OPTIONS):
        self.podman, self.name = MACHINE_HERE.podman(user), name
        variables = {"LD_LIBRARY_PATH": "/simulated", **SIMULATED}
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*self.podman, "run", "--interactive", "--name", name, *common, *(DEVICE if device else []),
             *(word for item in variables.items() for word in ("--env", "=".join(item))), *options, "--rootfs", str(image or MACHINE_HERE.image), *program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        """Also of one that has ended."""
        run(*self.podman, "rm", "--force", "--time", "0", self.name)
        self.process.communicate(timeout=SECONDS)
        self.errors.close()

    def said(self):
        self.errors.seek(0)
        return self.errors.read()

    def answer(self, command=None):
        if command:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"{self.name} ended: {self.said()}"
        return answer

    def pid(self):
        return checked(*self.podman, "inspect", "--format", "{{.State.Pid}}", self.name).strip()

    def execute(self, *words, **options):
        return run(*self.podman, "exec", *words, **options)


MACHINE_HERE = None


@contextlib.contextmanager
def begun(*words, **options):
    """A container whose program has said that it is ready."""
    with Container(*words, **options) as container:
        container.answer()
        yield container


class Containers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        MACHINE_HERE.done("gpu-enable", "containers")

    @classmethod
    def tearDownClass(cls):
        MACHINE_HERE.done("gpu-enable", "containers", "--off")

    def check_cycle(self, container, target, user=0):
        """What the program has on the GPU is the same after a sleep and a wake."""
        before = container.answer("checksum")
        slept = MACHINE_HERE.done("gpu-sleep", "--json", target, user=user)
        self.assertGreaterEqual(json.loads(slept)["processes"][0]["report"]["devices"][0]["moved_bytes"], 20 << 20)
        MACHINE_HERE.done("gpu-wake", target, user=user)
        self.assertEqual(container.answer("checksum"), before)

    def test_by_pid_by_name_and_from_inside(self):
        with begun("llama", "--env", "GPU_SLEEP_NAME=model") as container:
            for target in (container.pid(), "model"):
                self.check_cycle(container, target)
            listed = container.execute("llama", "gpu-ps", "--json")
            self.assertEqual(json.loads(listed.stdout)["processes"][0]["pid"], 1, listed.stderr)
            self.assertEqual(container.execute("llama", "gpu-sleep", "1").returncode, 0)
            self.assertEqual(container.said(), "")

    def test_its_user_and_nobody_else(self):
        with begun("users", "--user", f"{USER}:{USER}", "--read-only") as container:
            self.check_cycle(container, container.pid(), user=USER)
            self.assertEqual(MACHINE_HERE.command("gpu-sleep", container.pid(), user=USER + 1).returncode, 5)

    def test_a_user_without_privileges_starts_it(self):
        own = MACHINE_HERE.scratch / "own_image"
        checked("cp", "-a", str(MACHINE_HERE.image), str(own))
        checked("chown", "-R", f"{USER}:{USER}", str(own))
        try:
            with begun("rootless", image=own, user=USER) as container:
                for user in (USER, 0):
                    self.check_cycle(container, container.pid(), user=user)
                self.assertEqual(MACHINE_HERE.command("gpu-sleep", container.pid(), user=USER + 1).returncode, 5)
        finally:
            run(*MACHINE_HERE.podman(USER), "system", "migrate")  # ends its process that keeps the namespace

    def test_what_the_image_and_the_user_set_stays(self):
        """The program's own LD_PRELOAD wraps a call of the driver, and the agent has the call behind it."""
        with begun("wrapped", "--env", "LD_PRELOAD=/simulated/interposer.so") as container:
            self.check_cycle(container, container.pid())
            self.assertRegex(container.said(), r"\A(wrapped\n)+\Z")
        with begun("out", "--env", "GPU_SLEEP_DISABLE=1") as container:
            self.assertEqual(MACHINE_HERE.command("gpu-sleep", container.pid()).returncode, 3)

    def test_a_program_with_privileges_has_no_agent(self):
        """Its user, who has others, could command it by variables."""
        image = MACHINE_HERE.scratch / "privileged"
        shutil.copytree(MACHINE_HERE.image, image)
        for library in (image / "simulated").iterdir():
            shutil.copy(library, image / "lib/x86_64-linux-gnu")  # where such a program looks
        (image / "bin/demo_program").chmod(0o4755)
        with begun("privileged", "--user", f"{USER}:{USER}", image=image) as container:
            own = pathlib.Path("/proc", container.pid())
            self.assertIn(f"Uid:\t{USER}\t0", (own / "status").read_text())
            self.assertIn("libgpu-sleep-login", (own / "maps").read_text())
            self.assertNotIn("libgpu-sleep-agent", (own / "maps").read_text())
            self.assertEqual(container.said(), "")

    def test_programs_that_come_later(self):
        with begun("later") as container:
            second = subprocess.Popen([*container.podman, "exec", "--interactive", "--env", "GPU_SLEEP_NAME=second", "later", "demo_program", "16", "4"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.assertTrue(second.stdout.readline())
            MACHINE_HERE.done("gpu-sleep", "second")
            second.communicate("quit\n", timeout=SECONDS)

    def test_uninstalling_wakes_it_and_takes_the_device_back(self):
        """Not where another installation lies: where containers have the agent, too."""
        description = pathlib.Path("/etc/cdi/gpu-sleep.json")
        mount("-t", "tmpfs", "tmpfs", "/usr/local")
        self.addCleanup(checked, "umount", "/usr/local")
        self.addCleanup(MACHINE_HERE.command, "gpu-enable", "containers")
        checked("cmake", "--install", str(BUILD), "--prefix", "/usr/local")
        with begun("left") as container:
            pid = container.pid()
            MACHINE_HERE.done("gpu-sleep", pid)
            for prefix, state in (("/usr/local", "asleep"), (str(MACHINE_HERE.prefix), "awake")):
                done = run(str(SOURCES / "scripts/uninstall"), "--keep-files", prefix)
                self.assertEqual(done.returncode, 0, done.stderr)
                listed = MACHINE_HERE.command("gpu-ps", "--json", pid)
                self.assertEqual(json.loads(listed.stdout)["processes"][0]["state"], state, done.stderr)
                self.assertEqual(description.exists(), state == "asleep")

    @unittest.skipIf(SKIPS and not shutil.which("jq"), "jq is missing")
    def test_deep_sleeps_need_a_profile_that_says_so(self):
        lists = {"allowed": pathlib.Path("/usr/share/containers/seccomp.json").read_text(), "denied": '{"defaultAction": "SCMP_ACT_ALLOW"}'}
        for name, text in lists.items():
            (MACHINE_HERE.scratch / name).write_text(checked("jq", "-f", str(MACHINE_HERE.prefix / "share/gpu-sleep/seccomp.jq"), input=text))
        shared = ["--pid", "host", "--volume", f"{MACHINE_HERE.state}:/gpus", "--env", "GPU_SLEEP_SIM_STATE=/gpus"]
        with begun("filtered", *shared) as container:
            slept = MACHINE_HERE.command("gpu-sleep", "--deep", container.pid())
            self.assertEqual(slept.returncode, 1)
            self.assertIn("a filter restricts the system calls", slept.stderr)
        # With a timer the agent's helper does it, into which the container's /etc/ld.so.preload brings its library.
        for profile, timer in (("allowed", []), ("denied", ["--env", "GPU_SLEEP_IDLE=100", "--env", "GPU_SLEEP_IDLE_DEEP=1"])):
            with begun(profile, *shared, *timer, "--security-opt", f"seccomp={MACHINE_HERE.scratch / profile}") as container:
                before = container.answer("checksum")
                pid = container.pid()
                if not timer:
                    MACHINE_HERE.done("gpu-sleep", "--deep", pid)
                listed = functools.partial(MACHINE_HERE.command, "gpu-ps", "--json", pid)
                self.assertTrue(becomes_true(lambda: json.loads(listed().stdout)["processes"][0]["report"]["deep"]), container.said())
                # The helper would be idle, too, and sleep instead of answering.
                self.assertNotIn("gpu-sleep-outside", MACHINE_HERE.command("gpu-ps", "--json").stdout)
                MACHINE_HERE.done("gpu-wake", pid)
                self.assertEqual(container.answer("checksum"), before)
                self.assertEqual(container.said(), "")

    def test_a_c_library_that_is_too_old(self):
        """The agent asks for a version that no C library has yet."""
        scratch = MACHINE_HERE.scratch
        agent, kept = MACHINE_HERE.prefix / "lib/libgpu-sleep-agent.so", scratch / "agent"
        agent.rename(kept)
        self.addCleanup(kept.rename, agent)
        script = scratch / "versions"
        script.write_text("GLIBC_2.99 { global: newer; };")
        compile_c("cc", "int newer(void) { return 0; }", "-shared", "-fPIC", "-nostdlib", "-o", str(scratch / "libc.so.6"), "-Wl,-soname,libc.so.6",
                  f"-Wl,--version-script={script}")
        compile_c("cc", "int newer(void); int older(void) { return newer(); }", "-shared", "-fPIC", "-nostdlib", "-o", str(agent),
                  str(scratch / "libc.so.6"))
        with begun("old") as container:
            container.answer("checksum")
            self.assertRegex(container.said(), r"\Agpu-sleep: this process cannot be put to sleep: .*GLIBC_2\.99' not found.*\n\Z")
            self.assertEqual(MACHINE_HERE.command("gpu-sleep", container.pid()).returncode, 3)
            self.assertRegex(MACHINE_HERE.command("gpu-doctor", container.pid()).stdout, r"it is glibc 2\.\d+, and the agent needs 2\.99")

    @unittest.skipUnless(SYSROOT.is_dir(), "the build is linked for this system's glibc")
    def test_the_oldest_c_library(self):
        """Of the image's files the C library alone is another."""
        image = MACHINE_HERE.scratch / "oldest"
        shutil.copytree(MACHINE_HERE.image, image)
        for library in list(image.glob("lib*/**/*.so*")):
            library.unlink()
            if (SYSROOT / library.relative_to(image)).exists():
                shutil.copy(SYSROOT / library.relative_to(image), library)
        with begun("oldest", "--env", "GPU_SLEEP_NAME=oldest", image=image) as container:
            with open(f"/proc/{container.pid()}/maps", encoding="utf-8") as maps:
                self.assertIn("libgpu-sleep-agent", maps.read())
            self.check_cycle(container, container.pid())
            self.assertEqual(container.execute("oldest", "gpu-sleep", "1").returncode, 0)
            self.assertEqual(container.said(), "")

    @unittest.skipIf(SKIPS and not shutil.which("musl-gcc"), "musl-gcc is missing")
    def test_another_c_library(self):
        image = MACHINE_HERE.scratch / "musl"
        for folder in ("tmp", "proc", "sys", "dev", "etc", "run", "lib", "bin"):
            (image / folder).mkdir(parents=True)
        shutil.copy("/usr/lib/x86_64-linux-musl/libc.so", image / "lib/ld-musl-x86_64.so.1")
        compile_c("musl-gcc", MUSL_PROGRAM, "-o", str(image / "bin/program"))
        compile_c("musl-gcc", "int cuInit(unsigned flags) { return flags; }", "-shared", "-fPIC", "-o", str(image / "lib/libcuda.so.1"))
        with Container("musl", image=image, program=("program",)) as container:
            self.assertEqual(container.answer(), "0")
            self.assertEqual(container.said(), "")
            self.assertEqual(MACHINE_HERE.command("gpu-sleep", container.pid()).returncode, 3)
            self.assertIn("it is musl, and the agent needs the GNU C library", MACHINE_HERE.command("gpu-doctor", container.pid()).stdout)


# Of a model server: its memory, at each request but for /health.
MODEL_SERVER = """
import http.server, sys
sys.path.insert(0, "/model")
from gpu_memory import GpuMemory
memory = GpuMemory(8 << 20)
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"well" if self.path == "/health" else str(memory.is_intact()).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Server).serve_forever()
"""


@unittest.skipIf(SKIPS and not (yaml and shutil.which("nginx")), "PyYAML or nginx is missing")
class Kubernetes(unittest.TestCase):
    """The containers of cli/kubernetes by podman, with the users, privileges, mounts and commands that the files say. Its images
    are this machine; `gpu-sleep` has an installation, and `server` a command of that name."""

    FOLDER = SOURCES / "cli/kubernetes"
    # Of Kubernetes 1.34, which Debian's package does not know yet.
    NEWER_FIELDS = {("V1PodSpec", "resourceClaims"), ("V1ResourceRequirements", "claims")}

    def make_images(self):
        self.scratch = pathlib.Path(tempfile.mkdtemp(dir=MACHINE_HERE.scratch))
        self.scratch.chmod(0o755)
        self.images = {name: self.image(name) for name in ("gpu-sleep", "server", "nginx")}
        checked("cmake", "--install", str(BUILD), "--prefix", str(self.images["gpu-sleep"] / "usr/local"))
        server = self.images["server"] / "usr/bin/serve"
        server.write_text("#!/usr/bin/python3\n" + MODEL_SERVER)
        server.chmod(0o755)
        (self.images["server"] / "model").mkdir()
        shutil.copy(SOURCES / "tests/support/gpu_memory.py", self.images["server"] / "model")

    def image(self, name):
        layers = [self.scratch / f"{name}.{layer}" for layer in ("upper", "work", "image")]
        for layer in layers:
            layer.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={layers[0]},workdir={layers[1]}", str(layers[2]))
        self.addCleanup(checked, "umount", str(layers[2]))
        shutil.copytree(MACHINE_HERE.image / "simulated", layers[2] / "simulated")
        return layers[2]

    @staticmethod
    def read(file):
        return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))

    def volume(self, volume, contents, place):
        folder = self.scratch / ("volumes" if "hostPath" in volume else place) / volume["name"]
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o755 if volume["name"] in ("configuration", "history") else 0o777)
            for name, text in contents.items() if "configMap" in volume else ():
                (folder / name).write_text(text)
        return folder

    def start(self, pod, name, contents=None, network="none", options=(), place="volumes", **environment):
        container = next(each for each in pod.get("initContainers", []) + pod["containers"] if each["name"] == name)
        security = {**pod.get("securityContext", {}), **container["securityContext"]}
        variables = {each["name"]: each["value"] for each in container.get("env", [])} | environment
        volumes = {volume["name"]: self.volume(volume, contents, place) for volume in pod["volumes"]}
        options = [*options, "--cap-drop", "all", *(f"--cap-add={each}" for each in security["capabilities"].get("add", []))]
        options += ["--user", f"{security['runAsUser']}:{security.get('runAsGroup', 0)}", "--network", network, "--log-driver", "k8s-file"]
        options += ["--security-opt", "no-new-privileges"] if security["allowPrivilegeEscalation"] is False else []
        options += ["--read-only", "--read-only-tmpfs=false"] if security.get("readOnlyRootFilesystem") else []
        options += ["--pid", "host"] if pod.get("hostPID") else []
        options += [word for item in variables.items() for word in ("--env", "=".join(item))]
        for each in container["volumeMounts"]:
            source = volumes[each["name"]] / each.get("subPath", "")
            options += ["--volume", f"{source}:{each['mountPath']}{':ro' if each.get('readOnly') else ''}"]
        started = Container(name, *options, program=[*container["command"], *container.get("args", [])], image=self.images[container["image"]],
                            device=False, common=["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"])
        self.addCleanup(started.__exit__)
        return started

    @staticmethod
    def ask(container, path, port, *more):
        pid = run(*container.podman, "inspect", "--format", "{{.State.Pid}}", container.name).stdout.strip() or "0"  # not yet
        return run("nsenter", "--net", "--target", pid, "curl", "--silent", "--max-time", str(SECONDS), "--write-out", " %{http_code}",
                   *more, f"http://127.0.0.1:{port}{path}").stdout

    def becomes_true(self, condition, *containers):
        self.assertTrue(becomes_true(condition), [container.said() for container in containers])

    def start_server(self, place="volumes", **environment):
        """With its proxy; what asks it by both."""
        pod = self.read(self.FOLDER / "server/server.yaml")[0]["spec"]["template"]["spec"]
        brings = self.start(pod, "gpu-sleep", place=place, CONTROLLERS="127.0.0.2")
        self.assertEqual(brings.process.wait(SECONDS), 0, brings.said())
        brings.__exit__()
        server = self.start(pod, "inference-server", place=place, **environment)
        self.becomes_true((self.scratch / place / "run/http").exists, server)
        proxy = self.start(pod, "proxy", network="container:inference-server", place=place)
        probe = pod["containers"][0]["readinessProbe"]["httpGet"]
        self.becomes_true(lambda: self.ask(server, probe["path"], probe["port"]) == "well 200", server, proxy)
        return server, proxy, lambda path, *more: self.ask(server, path, probe["port"], *more)

    def start_node(self, *names, idle):
        node = self.read(self.FOLDER / "node/daemonset.yaml")[0]["spec"]["template"]["spec"]
        configuration = (self.FOLDER / "node/gpu-sleep.toml").read_text()
        self.assertIn('"15m"', configuration)
        return [self.start(node, name, {"gpu-sleep.toml": configuration.replace("15m", idle)}, PAUSE="0.2") for name in names]

    @staticmethod
    def states():
        return [process["state"] for process in json.loads(MACHINE_HERE.command("gpu-ps", "--json").stdout)["processes"]]

    def test_a_server_and_its_node(self):
        self.make_images()
        *_, ask = self.start_server()
        self.assertIn(" 403", ask("/sleep", "--request", "POST"))
        self.assertRegex(ask("/sleep", "--request", "POST", "--interface", "127.0.0.2"), " 200$")
        self.assertEqual(self.states(), ["asleep"])
        self.assertEqual(ask("/generate"), "True 200")
        self.assertEqual(self.states(), ["awake"])
        reclaim, metrics = self.start_node("reclaim", "metrics", idle="100ms")
        self.becomes_true(lambda: self.states() == ["asleep"], reclaim)
        written = self.scratch / "volumes/metrics/gpu_sleep.prom"
        self.becomes_true(lambda: written.exists() and 'state="asleep"} 1\n' in written.read_text(), metrics)
        self.becomes_true((self.scratch / "volumes/history/history").exists, reclaim)
        self.assertEqual(ask("/generate"), "True 200")
        for container in (reclaim, metrics):
            self.assertEqual(container.said(), "")

    def test_a_pod_evicted_while_asleep(self):
        """It leaves no error, and the node and the next pod go on."""
        self.make_images()
        server, proxy, _ = self.start_server()
        reclaim, metrics = self.start_node("reclaim", "metrics", idle="100ms")
        self.becomes_true(lambda: self.states() == ["asleep"], reclaim)
        for container in (proxy, server):
            checked(*container.podman, "stop", "--time", "1", container.name)
            container.__exit__()
        self.assertEqual(self.states(), [])
        written = self.scratch / "volumes/metrics/gpu_sleep.prom"
        self.becomes_true(lambda: written.exists() and "gpu_sleep_processes{" not in written.read_text(), metrics)
        *_, ask = self.start_server("next")
        self.assertEqual(ask("/generate"), "True 200")
        for container in (reclaim, metrics):
            self.assertEqual(container.said(), "")

    def test_a_node_daemon_that_dies_in_the_middle(self):
        """Of a sleep: the server loses nothing, and the next one puts it to sleep."""
        self.make_images()
        *_, ask = self.start_server(GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:300ms")
        reclaim, = self.start_node("reclaim", idle="100ms")
        pid = json.loads(MACHINE_HERE.done("gpu-ps", "--json"))["processes"][0]["pid"]
        self.becomes_true(lambda: "this is the state before" in MACHINE_HERE.command("gpu-ps", str(pid)).stdout, reclaim)
        reclaim.__exit__()
        self.assertEqual(ask("/generate"), "True 200")
        reclaim, = self.start_node("reclaim", idle="100ms")
        self.becomes_true(lambda: self.states() == ["asleep"], reclaim)
        self.assertEqual(ask("/generate"), "True 200")

    def test_two_servers_take_turns(self):
        """In namespaces of their own for processes. The GPU has 24 MiB, and a server needs more than a half."""
        self.make_images()
        pod = self.patched("turns")["spec"]["template"]["spec"]
        command = pod["containers"][0]["command"]
        command[command.index("--need") + 1] = "12MiB"
        servers = []
        for name, idle in (("first", "300ms"), ("second", "1h")):  # the second sleeps for the first alone
            command[command.index("--idle") + 1] = idle
            pod["initContainers"][0]["name"] = f"{name}-agent"
            self.assertEqual(self.start(pod, f"{name}-agent", place=name).process.wait(SECONDS), 0)
            pod["containers"][0]["name"] = name
            servers.append(self.start(pod, name, place=name, options=["--volume", f"{MACHINE_HERE.state}:/gpus"], GPU_SLEEP_SIM_STATE="/gpus",
                                      GPU_SLEEP_SIM_MEMORY=str(24 << 20), GPU_SLEEP_MIN_AWAKE="0"))
        for _ in range(2):
            for server in servers:
                self.becomes_true(lambda: self.ask(server, "/generate", 8001) == "True 200", *servers)

    def patched(self, base):
        """The deployment of `server`, with the patch of `base`."""
        deployment = self.read(self.FOLDER / "server/server.yaml")[0]
        patch, = self.read(self.FOLDER / base / "kustomization.yaml")[0]["patches"]
        for operation in yaml.safe_load(patch["patch"]):
            *folders, last = (int(word) if word.isdigit() else word for word in operation["path"].split("/")[1:])
            place = functools.reduce(operator.getitem, folders, deployment)
            place[last] = operation["value"]
        return deployment

    @unittest.skipIf(SKIPS and not importlib.util.find_spec("kubernetes"), "python3-kubernetes is missing")
    def test_the_bases(self):
        """They fit the schemas of Debian's package, and kubectl renders them, if it is here."""
        for kustomization in self.FOLDER.glob("*/kustomization.yaml"):
            with self.subTest(kustomization.parent.name):
                self.check_schemas(self.documents_of(kustomization))

    def documents_of(self, kustomization):
        if shutil.which("kubectl"):
            return list(yaml.safe_load_all(checked("kubectl", "kustomize", str(kustomization.parent))))
        files = [kustomization.parent / name for name in self.read(kustomization)[0]["resources"]]
        return [document for file in files if file.is_file() for document in self.read(file)]

    def check_schemas(self, documents):
        models = importlib.import_module("kubernetes.client.models")
        for document in documents:
            name = "V1" + document["kind"]
            if hasattr(models, name):  # it is older than resource claims
                self.check_schema(models, name, document)

    def check_schema(self, models, kind, value):
        kind, _, inner = kind.partition("(") if kind.startswith("dict") else (kind, "", "")
        if kind.startswith("list["):
            for each in value:
                self.check_schema(models, kind[5:-1], each)
        elif kind == "dict":
            for each in value.values():
                self.check_schema(models, inner[:-1].split(", ")[1], each)
        elif hasattr(models, kind):
            model = getattr(models, kind)
            known = {field: model.openapi_types[name] for name, field in model.attribute_map.items()}
            for field, each in value.items():
                if (kind, field) not in self.NEWER_FIELDS:
                    self.assertIn(field, known, kind)
                    self.check_schema(models, known[field], each)
        else:
            self.assertIn(type(value), {"str": [str], "int": [int], "bool": [bool], "object": [str, int]}[kind], value)


class Guide(unittest.TestCase):
    """The commands of the guide, where `nvidia.com/gpu` brings the simulated driver, and IMAGE is this test's."""

    def test_it_runs(self):
        commands = MACHINE_HERE.scratch / "commands"
        commands.mkdir()
        script(commands / "sudo", 'exec "$@"')
        script(commands / "podman", f"""
            [[ $1 == run ]] || exec {shlex.join(MACHINE_HERE.podman())} "$@"
            exec {shlex.join(MACHINE_HERE.podman())} run --interactive {shlex.join(CONTAINER_OPTIONS)} "${{@:2:$#-3}}" \\
                --rootfs {MACHINE_HERE.image} demo_program 16 4""")
        nvidia = pathlib.Path("/etc/cdi/nvidia.json")
        nvidia.parent.mkdir(exist_ok=True)
        variables = {"LD_LIBRARY_PATH": "/simulated", **SIMULATED}
        nvidia.write_text(json.dumps({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [
            {"name": "all", "containerEdits": {"env": ["=".join(item) for item in variables.items()]}}]}))
        self.addCleanup(nvidia.unlink)
        text = (SOURCES / "cli/guides/containers.md").read_text(encoding="utf-8")
        blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        self.assertEqual(len(blocks), 5)
        # The guide's prefix is /usr/local. A program may take a moment to begin.
        begun = 'until gpu-ps llama > /dev/null 2>&1; do sleep 0.1; done\n'
        blocks = [block.replace("/usr/local/", f"{MACHINE_HERE.prefix}/") + (begun if block.startswith("podman") else "") for block in blocks]
        try:
            done = run("timeout", str(SECONDS), "bash", "-e", input="".join(blocks),
                       env={"PATH": f"{commands}:{MACHINE_HERE.prefix}/bin:{os.environ['PATH']}"})
            self.assertEqual(done.returncode, 0, done.stderr)
        finally:
            run(*MACHINE_HERE.podman(), "rm", "--force", "--time", "0", "--all")
        for said in ("llama is asleep", "llama is awake", "1  0     llama"):
            self.assertIn(said, done.stdout)


def script(file, text):
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


class Description(unittest.TestCase):
    FILE = pathlib.Path("/etc/cdi/gpu-sleep.json")

    def test_it_is_written_and_taken_back(self):
        for _ in range(2):
            told = MACHINE_HERE.done("gpu-enable", "containers")
            self.assertIn(str(self.FILE), told)
        described = json.loads(self.FILE.read_text())
        self.assertEqual({key: described[key] for key in ("cdiVersion", "kind")}, {"cdiVersion": "0.3.0", "kind": "gpu-sleep.io/agent"})
        device, = described["devices"]
        self.assertEqual((device["name"], device["containerEdits"].keys()), ("all", {"mounts"}))
        for each in device["containerEdits"]["mounts"]:
            self.assertTrue(os.path.isfile(each["hostPath"]), each)
            self.assertIn("ro", each["options"])
        self.assertIn(str(self.FILE), MACHINE_HERE.command("gpu-enable", "--show").stdout)
        MACHINE_HERE.done("gpu-enable", "containers", "--off")
        self.assertFalse(self.FILE.parent.exists())
        self.assertIn("containers: not enabled", MACHINE_HERE.command("gpu-enable", "--show").stdout)

    def test_what_is_in_the_way(self):
        self.assertEqual(MACHINE_HERE.command("gpu-enable", "containers", user=USER).returncode, 5)
        preload = MACHINE_HERE.prefix / "lib/gpu-sleep.preload"
        preload.chmod(0o600)
        told = MACHINE_HERE.command("gpu-enable", "containers")
        preload.chmod(0o644)
        self.assertEqual(told.returncode, 2)
        self.assertIn(f"may not read {preload}", told.stderr)
        self.FILE.parent.mkdir()
        self.addCleanup(shutil.rmtree, self.FILE.parent)
        for text in ("{}", "[]", '{"kind": "vendor.com/gpu"}', "no JSON"):
            self.FILE.write_text(text)
            for off in ([], ["--off"]):
                self.assertEqual(MACHINE_HERE.command("gpu-enable", "containers", *off).returncode, 2)
            self.assertEqual(self.FILE.read_text(), text)

    def test_an_image_of_a_system(self):
        root = MACHINE_HERE.scratch / "system"
        root.mkdir()
        told = MACHINE_HERE.done("gpu-enable", "containers", "--root", str(root))
        self.assertTrue((root / "etc/cdi/gpu-sleep.json").is_file())
        self.assertIn("install gpu-sleep there, too", told)
        self.assertFalse(self.FILE.exists())


def begin():
    """In the namespaces: the tests, unless podman runs nothing here."""
    global MACHINE_HERE
    MACHINE_HERE = Machine(pathlib.Path(os.environ[INSIDE]))
    try:
        with Container("probe", program=("demo_program", "--help"), device=False) as probe:
            works = probe.process.wait(SECONDS) is not None and "OCI" not in probe.said()
            why = probe.said()
    except AssertionError as error:
        works, why = False, str(error)
    if not works:
        print(f"skipped: podman runs no container here, which may be one: {why}")
        sys.exit(77)
    del sys.argv[1]
    unittest.main()


if __name__ == "__main__":
    if INSIDE in os.environ:
        begin()
    missing = [tool for tool in ("cc", "podman", "runc", "setpriv", "unshare") if not shutil.which(tool)]
    if missing or os.geteuid() != 0:
        print(f"skipped: {', '.join(missing)} is missing" if missing else "skipped: only root")
        sys.exit(77 if SKIPS else 1)
    if subprocess.run([*MACHINE, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: this process may not make namespaces")
        sys.exit(77 if SKIPS else 1)
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        status = subprocess.run([*MACHINE, sys.executable, *sys.argv], env={**os.environ, INSIDE: directory}).returncode
    for folder in sorted(pathlib.Path("/sys/fs/cgroup").rglob("libpod_parent*/**"), reverse=True):
        with contextlib.suppress(OSError):  # it is somebody else's
            folder.rmdir()
    sys.exit(status)
