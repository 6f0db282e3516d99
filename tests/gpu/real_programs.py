# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Puts real programs that know nothing of gpu-sleep to sleep at random moments, and compares what they compute.

Each program of tests/gpu/programs runs twice: plainly, and under `gpu-run`, where this script puts it to sleep and
wakes it again and again from outside. Both must print the same digest of all their results. The outcome is printed as a
table, and written as real_programs.md and real_programs.json with --out.

Exit status: 0 when every chosen program that this machine can run is right, 1 otherwise. With GPU_SLEEP_REQUIRE_GPU=1
a program for which a module or the time is missing counts as wrong; one that needs more GPUs does not.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from program_sleeper import ASLEEP_SECONDS, Sleeper, median

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "programs")
GIB = 1 << 30
ENDING_SECONDS = 60 # for a program that works without a rest
REQUIRED = os.environ.get("GPU_SLEEP_REQUIRE_GPU") == "1"


@dataclasses.dataclass
class Program:
    name: str
    source: str
    modules: tuple = ()
    arguments: tuple = ()
    environment: dict = dataclasses.field(default_factory=dict)
    build: tuple = () # the compiler's words before the source
    libraries: tuple = ()
    header: str = "" # of the toolkit, which not every one has
    gpus: int = 1
    ranks: int = 0 # processes that use GPUs; 0: as many as GPUs
    quiet: bool = False # put it to sleep only when it says "quiet"
    together: bool = False # all its processes as one, at any moment
    asleep: tuple = ASLEEP_SECONDS # at least and at most
    most: int = 0 # cycles; 0: as many as the options say
    seconds: float = 0 # how long its steps take at least under gpu-run, if longer than the options say
    tight: bool = False # works without a rest until it has slept often enough; then runs undisturbed for as many steps
    refuses_deep: bool = False # because of what the driver cannot checkpoint
    hangs_deep: bool = False # for the driver does not interrupt its kernels afterwards
    refuses_at_times: bool = False # while it shares memory, or is about to, or once a context has failed
    sleep_options: tuple = ()
    fails: bool = False # its contexts, of which gpu-sleep may complain

    @property
    def processes(self):
        return self.ranks or self.gpus


def torch_program(name, source=None, **settings):
    return Program(name, source or f"{name}.py", modules=("torch",) + settings.pop("modules", ()), **settings)


def cuda_program(name, source, *words, **settings):
    return Program(name, source, build=("nvcc", "-O3", "-std=c++20", "-arch=native", *words), **settings)


# No memory of one process in another, neither of a GPU nor of the host.
WITHOUT_PEERS = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}
# PyTorch ends a job whose watchdog of NCCL's work makes no progress for so long: the sleeps last longer.
IMPATIENT = {**WITHOUT_PEERS, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "5"}

ALL = [
    torch_program("torch_adam", arguments=("--gib", "21")),
    torch_program("torch_adam_expandable", "torch_adam.py",
                  environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    torch_program("torch_adam_async", "torch_adam.py",
                  environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}),
    torch_program("torch_compile"),
    torch_program("torch_graphs"),
    torch_program("torch_dataloader"),
    torch_program("torch_ipc", refuses_deep=True),
    torch_program("torch_ipc_together", "torch_ipc.py", ranks=2, together=True),
    torch_program("llama_plain", modules=("transformers",), arguments=("--layers", "32")), # 8 billion parameters
    Program("cupy", "cupy_program.py", modules=("cupy",)),
    Program("jax", "jax_program.py", modules=("jax",)),
    Program("jax_preallocated", "jax_program.py", modules=("jax",),
            environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.04"}),
    torch_program("triton", "triton_program.py", modules=("triton",)),
    cuda_program("runtime_static", "runtime_program.cu", "-cudart", "static", refuses_deep=True),
    cuda_program("runtime_shared", "runtime_program.cu", "-cudart", "shared", refuses_deep=True),
    cuda_program("runtime_without_managed", "runtime_program.cu", "-cudart", "static", arguments=("--managed", "no")),
    cuda_program("driver", "driver_program.cpp", libraries=("-lcuda",)),
    cuda_program("textures", "textures.cu", "-cudart", "static"),
    cuda_program("shared_memory", "shared_memory.cpp", libraries=("-lcuda",), refuses_deep=True),
    cuda_program("shared_memory_together", "shared_memory.cpp", libraries=("-lcuda",), ranks=2, together=True,
                 seconds=20, refuses_at_times=True), # while a descriptor is on its way
    cuda_program("all_reduce_of_its_own", "custom_all_reduce.cu", "-cudart", "static", ranks=2, together=True,
                 hangs_deep=True),
    cuda_program("all_reduce_of_two_gpus", "custom_all_reduce.cu", "-cudart", "static", arguments=("--gpus", "2"), gpus=2,
                 together=True),
    cuda_program("ipc_handles", "ipc_handles.cpp", libraries=("-lcuda",), refuses_at_times=True),
    cuda_program("assertions", "assertions.cu", "-cudart", "static", arguments=("--steps", "20"), refuses_at_times=True,
                 fails=True),
    cuda_program("jpeg_decoder", "jpeg_decoder.cpp", "-cudart", "static", libraries=("-lnvjpeg",), header="nvjpeg.h",
                 sleep_options=("--force",), refuses_deep=True), # the hardware decoder, which --force is for
    torch_program("torch_ddp_one_gpu", "torch_ddp.py", ranks=2, together=True, arguments=("--gpus", "1")),
    torch_program("torch_ddp", gpus=2, quiet=True, refuses_deep=True),
    torch_program("torch_ddp_together", "torch_ddp.py", gpus=2, together=True, tight=True, refuses_at_times=True),
    torch_program("torch_ddp_without_peers", "torch_ddp.py", gpus=2, together=True, tight=True, environment=WITHOUT_PEERS),
    torch_program("torch_collectives", gpus=2, together=True, tight=True, refuses_at_times=True),
    torch_program("torch_collectives_without_peers", "torch_collectives.py", gpus=2, together=True,
                  environment=WITHOUT_PEERS),
    torch_program("torch_collectives_by_host", "torch_collectives.py", gpus=2, together=True,
                  environment={"NCCL_P2P_DISABLE": "1"}, refuses_deep=True),
    torch_program("torch_registered", gpus=2, together=True, tight=True, refuses_at_times=True),
    torch_program("torch_long_sleep", "torch_collectives.py", gpus=2, together=True, environment=IMPATIENT,
                  asleep=(11, 12), most=4),
    torch_program("torch_long_sleep_one_gpu", "torch_collectives.py", together=True, arguments=("--ranks", "1"),
                  environment=IMPATIENT, asleep=(11, 12), most=4),
    torch_program("torch_nccl_one_process", gpus=2),
    cuda_program("green_contexts", "green_contexts.cu", "-cudart", "static", libraries=("-lcuda",)),
    cuda_program("peer_copies", "peer_copies.cu", "-cudart", "static", gpus=2),
    cuda_program("peer_copies_without_access", "peer_copies.cu", "-cudart", "static",
                 arguments=("--peer-access", "no"), gpus=2),
]


@dataclasses.dataclass
class Result:
    program: str
    verdict: str = ""
    cycles: int = 0
    deep: int = 0 # of those
    slept_bytes: int = 0 # at most, in one sleep, over all processes and GPUs
    slept_ranges: int = 0 # the same for ranges
    late: int = 0        # sleeps that timed out and changed nothing
    sleep_seconds: float = 0 # median of the command
    wake_seconds: float = 0
    plain_seconds: float = 0
    seconds: float = 0
    residual: str = ""
    moves: int = 0 # to host memory and back, while it ran
    refused: str = "" # moves, by the reason
    problems: list = dataclasses.field(default_factory=list)

    def is_good(self):
        if self.verdict == "right":
            return True
        return self.verdict.startswith("not run: needs" if REQUIRED else "not run")


class Running:
    """A program's process: its output collected, its heartbeats read as they come."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, errors="replace")
        self.output, self.errors = [], []
        self.quiet = threading.Semaphore(0)
        self.readers = [threading.Thread(target=self._read, args=each, daemon=True)
                        for each in ((self.process.stdout, self.output), (self.process.stderr, self.errors))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))
            if line.startswith("quiet "):
                self.quiet.release()

    def is_over(self):
        return self.process.poll() is not None

    def kill(self):
        if not self.is_over():
            self.process.kill()

    def digest(self, limit):
        """Waits for the end. Returns the digest and what went wrong, one of which is empty."""
        try:
            status = self.process.wait(max(0.1, limit))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "", f"did not end in time; last line: {self.errors[-1] if self.errors else 'none'}"
        for reader in self.readers:
            reader.join(5)
        last = self.output[-1].strip() if self.output else ""
        if status != 0 or not re.fullmatch("[0-9a-f]{16}|[0-9a-f]{64}", last):
            return "", f"ended with {status}: {' | '.join(self.errors[-6:])}"
        return last, ""


class Bench:
    def __init__(self, options, scratch):
        self.options, self.scratch = options, scratch

    def reason_to_skip(self, program):
        for module in program.modules:
            if importlib.util.find_spec(module) is None:
                return f"no module {module}"
        if program.build and self.compiler(program) is None:
            return f"no {program.build[0]}"
        if program.header and not os.path.exists(os.path.join(self.toolkit(program), "include", program.header)):
            return f"needs {program.header}"
        if program.gpus > self.options.gpus:
            return f"needs {program.gpus} GPUs"
        if program.hangs_deep and self.options.deep:
            return "needs a GPU for each process"
        return ""

    def compiler(self, program):
        return shutil.which(program.build[0]) or shutil.which(program.build[0], path="/usr/local/cuda/bin")

    def toolkit(self, program):
        return os.path.dirname(os.path.dirname(self.compiler(program)))

    def command(self, program, words):
        words = [*words, "--scale", str(self.options.scale), *program.arguments]
        source = os.path.join(PROGRAMS, program.source)
        if not program.build:
            return [sys.executable, source, *words]
        binary = os.path.join(self.scratch, program.name)
        if not os.path.exists(binary):
            libraries = os.path.join(self.toolkit(program), "lib64")
            subprocess.run([self.compiler(program), *program.build[1:], source, "-o", binary,
                            f"-L{libraries}/stubs", # for the linker only
                            f"-Xlinker=-rpath={libraries}", *program.libraries], check=True)
        return [binary, *words]

    def start(self, program, prefix, *words):
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **program.environment)
        return Running([*prefix, *self.command(program, words)], environment)

    def run_plainly(self, program, *words):
        start = time.monotonic()
        running = self.start(program, [], *words)
        digest, problem = running.digest(self.options.limit)
        return digest, problem, time.monotonic() - start

    def run_with_sleeps(self, program, result):
        """Returns the digest, and the words that have the program take as many steps undisturbed."""
        name = f"{program.name}-{os.getpid()}"
        prefix = [os.path.join(self.options.build, "bin", "gpu-run"), "--name", name, *self.options.run_option, "--"]
        sleeper = Sleeper(self.options, name, program)
        start = time.monotonic()
        deadline = start + self.options.limit
        enough = os.path.join(self.scratch, f"{name}.enough")
        running = self.start(program, prefix, *(("--until", enough) if program.tight else
                                                ("--seconds", str(max(self.options.seconds, program.seconds)))))
        try:
            sleeper.run(running, deadline)
            pathlib.Path(enough).touch()
            digest, problem = running.digest(deadline - time.monotonic() + (program.tight and ENDING_SECONDS))
        finally:
            running.kill()
        if problem and self.options.out:
            os.makedirs(self.options.out, exist_ok=True)
            with open(os.path.join(self.options.out, f"{program.name}.log"), "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in running.errors)
        result.seconds = time.monotonic() - start
        result.cycles, result.slept_bytes, result.late = sleeper.cycles, sleeper.slept, sleeper.late
        result.slept_ranges = sleeper.ranges
        result.sleep_seconds, result.wake_seconds = median(sleeper.sleeps), median(sleeper.wakes)
        result.residual = ", ".join(f"{kind} {size / GIB:.2f} GiB" for kind, size in sorted(sleeper.residual.items()))
        result.problems = sleeper.problems + ([problem] if problem else [])
        result.deep = sleeper.deep_cycles
        result.moves = sleeper.moves
        result.refused = ", ".join(f"{count} {reason}" for reason, count in sorted((+sleeper.refused).items()))
        if self.options.deep and program.refuses_at_times and not result.deep:
            result.problems.append("it never slept deeply")
        if self.options.deep and not program.refuses_at_times and bool(sleeper.refusal) != program.refuses_deep:
            result.problems.append(sleeper.refusal or "it was to refuse a deep sleep, and did not")
        steps = [int(line.split()[1]) for line in running.errors if re.fullmatch(r"step \d+", line)]
        return digest, ("--steps", str(max(steps, default=0) + 1)) if program.tight else ()

    def verdict(self, program, result, expected, digest, words):
        if not digest:
            return "failed asleep"
        if digest != expected:
            again, _, _ = self.run_plainly(program, *words)
            return "WRONG" if again == expected else "not deterministic"
        if result.problems:
            return "a command failed"
        if result.cycles == 0 and result.slept_bytes == 0:
            return "never slept"
        least = min(self.options.least_cycles, program.most or self.options.most)
        return "right" if result.cycles >= least else "too few cycles"

    def run(self, program):
        result = Result(program.name)
        reason = self.reason_to_skip(program)
        if reason:
            result.verdict = f"not run: {reason}"
            return result
        digest, words = self.run_with_sleeps(program, result) if program.tight else ("", ())
        expected, problem, result.plain_seconds = self.run_plainly(program, *words)
        if problem:
            result.verdict = "failed without gpu-run"
            result.problems.append(problem)
            return result
        if not program.tight:
            digest, _ = self.run_with_sleeps(program, result)
        result.verdict = self.verdict(program, result, expected, digest, words)
        return result


HEADINGS = ("program", "verdict", "cycles", "deep", "GiB slept", "ranges", "late", "sleep s", "wake s", "plain s",
            "with cycles s", "stays with the driver", "moves", "refused")


def row(result):
    return (result.program, result.verdict, str(result.cycles), str(result.deep), f"{result.slept_bytes / GIB:.2f}",
            str(result.slept_ranges), str(result.late), f"{result.sleep_seconds:.3f}",
            f"{result.wake_seconds:.3f}", f"{result.plain_seconds:.1f}",
            f"{result.seconds:.1f}", result.residual, str(result.moves), result.refused)


def markdown(results):
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(row, results)]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    for result in results:
        for problem in result.problems:
            text += f"\n{result.program}: {problem}\n"
    return text


def count_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs (default: all that this machine can run); see --list")
    parser.add_argument("--build", default="build/release", help="the build folder with bin/ and lib/")
    parser.add_argument("--list", action="store_true", help="list the programs and end")
    parser.add_argument("--skip", default="", help="programs to leave out, separated by commas")
    parser.add_argument("--scale", type=float, default=1, help="of the programs' memory")
    parser.add_argument("--seconds", type=float, default=7, help="how long a program's steps take at least under gpu-run")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which one run of a program is given up")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which no further program is started")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time; what fills the GPUs leaves room for them")
    parser.add_argument("--least-cycles", type=int, default=5)
    parser.add_argument("--most", type=int, default=8, help="cycles, after which the program is left alone")
    parser.add_argument("--fills", type=float, default=1, help="part of the deep sleeps in which another program fills the GPUs")
    parser.add_argument("--least", type=int, default=1 << 20, help="bytes that a process holds to be put to sleep")
    parser.add_argument("--timeout", default="10s", help="for each gpu-sleep")
    parser.add_argument("--gpus", type=int, default=count_gpus())
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-option", action="append", default=[], help="an option for gpu-run: --run-option=--gate ...")
    parser.add_argument("--deep", action="store_true",
                        help="sleep deeply where the driver can, each time with another program that fills the GPUs")
    parser.add_argument("--live", action="store_true",
                        help="in between, move as much as comes to host memory and back while the program runs")
    parser.add_argument("--out", help="directory for real_programs.md and .json, and what a program that fails has printed")
    return parser.parse_args()


def chosen_programs(options):
    known = {program.name for program in ALL}
    skipped = set(filter(None, options.skip.split(",")))
    unknown = (set(options.names) | skipped) - known
    if unknown:
        sys.exit(f"there is no program {', '.join(sorted(unknown))}; see --list")
    return [program for program in ALL
            if (not options.names or program.name in options.names) and program.name not in skipped]


def write(directory, results):
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, "real_programs.md"), "w", encoding="utf-8") as file:
        file.write(markdown(results))
    with open(os.path.join(directory, "real_programs.json"), "w", encoding="utf-8") as file:
        json.dump([dataclasses.asdict(result) for result in results], file, indent=2)


def main():
    options = parse_options()
    options.build = os.path.abspath(options.build)
    programs = chosen_programs(options)
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    start = time.monotonic()
    results = []
    with tempfile.TemporaryDirectory(prefix="gpu-sleep-programs-") as scratch:
        bench = Bench(options, scratch)

        def run(program):
            if options.budget and time.monotonic() - start > options.budget:
                return Result(program.name, verdict="not run: no time left")
            return bench.run(program)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for result in pool.map(run, programs):
                results.append(result)
                print(" | ".join(row(result)), *result.problems, sep="\n  ", file=sys.stderr, flush=True)
                if options.out:
                    write(options.out, results)
    print(markdown(results))
    if options.out:
        write(options.out, results)
    return 0 if all(result.is_good() for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
