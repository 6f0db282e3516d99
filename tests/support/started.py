# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Programs and servers that tests start, and what callers ask of servers."""

import contextlib
import http.client
import json
import os
import subprocess
import time

SECONDS = 60
SIZE = 4 << 20
# What each caller sends first, and what it looks for in the reply to what it sends then.
VLLM = [("POST", "/sleep?level=1", None), ("POST", "/wake_up", None), ("GET", "/is_sleeping", "is_sleeping")]
DIALECTS = {
    "vLLM": VLLM,
    "vLLM in words": [("POST", "/sleep?level=1&mode=wait", None), ("POST", "/wake_up?tags=weights&tags=kv_cache", None), VLLM[2]],
    "llm-d": [("POST", "/sleep", None), ("POST", "/wake_up", None), VLLM[2]],
    "llama-swap": [("POST", "/sleep", '{"level": 1}'), ("POST", "/wake_up", ""), VLLM[2]],
    "production stack": [("POST", "/sleep?level=1&id=pod-7", None), ("POST", "/wake_up?id=pod-7", None),
                         ("GET", "/is_sleeping?id=pod-7", "is_sleeping")],
    "LMDeploy": [("POST", "/sleep?tags=weights&tags=kv_cache&level=1", None), ("POST", "/wakeup?tags=weights&tags=kv_cache", None),
                 VLLM[2]],
    "SGLang": [("POST", "/release_memory_occupation", "{}"), ("POST", "/resume_memory_occupation", "{}"), VLLM[2]],
    "SGLang by GET": [("GET", "/release_memory_occupation", None), ("GET", "/resume_memory_occupation", None), VLLM[2]],
    "SGLang by tags": [("POST", "/release_memory_occupation", '{"tags": ["kv_cache", "weights", "cuda_graph"]}'),
                       ("POST", "/resume_memory_occupation", '{"tags": ["cuda_graph", "weights", "kv_cache"]}'), VLLM[2]],
    "Dynamo": [("POST", "/engine/sleep", '{"level": 1}'), ("POST", "/engine/wake_up", "{}"), VLLM[2]],
    "Dynamo with SGLang": [("POST", "/engine/release_memory_occupation", '{"tags": ["weights", "kv_cache"]}'),
                           ("POST", "/engine/resume_memory_occupation", '{"tags": ["weights", "kv_cache"]}'), VLLM[2]],
    "TensorRT-LLM": [("POST", "/release_memory", None), ("POST", "/resume_memory", "{}"), ("GET", "/memory_status", "state")],
    "TensorRT-LLM by tags": [("POST", "/release_memory", '{"tags": ["model_weights", "kv_cache"]}'),
                             ("POST", "/resume_memory", '{"tags": ["model_weights", "kv_cache"]}'), ("GET", "/memory_status", "state")],
    "Ray Serve": [("POST", "/sleep", '{"model": "m", "options": {"level": 1}}'),
                  ("POST", "/wakeup", '{"model": "m", "options": {"tags": ["weights", "kv_cache"]}}'),
                  ("GET", "/is_sleeping?model=m", "is_sleeping")],
    "Ray Serve's older": [("POST", "/sleep", '{"model": "m"}'), ("POST", "/wakeup", '{"model": "m"}'),
                          ("POST", "/is_sleeping", "is_sleeping")],
    "FastDeploy": [("POST", "/v1/sleep?tags=weight,kv_cache", None), ("POST", "/v1/wakeup?tags=weight,kv_cache", None), VLLM[2]],
    "llama.cpp": [*VLLM[:2], ("GET", "/props", "is_sleeping")],
}


def share_of_processors(loadavg, processors):
    """The part of the time that one of all threads that want to run can have."""
    wanting = int(loadavg.split()[3].split("/")[0])
    return min(1, processors / max(wanting, 1))


class Patience:
    """The end of a wait. It counts the time that a process could have run, not the wall clock: while more want to run than
    there are processors, only a share."""
    def __init__(self, seconds=SECONDS):
        self.left, self.seen = seconds, time.monotonic()

    def is_over(self):
        """To be asked again and again, for the machine is looked at then."""
        now = time.monotonic()
        with open("/proc/loadavg") as loadavg:
            self.left -= (now - self.seen) * share_of_processors(loadavg.read(), len(os.sched_getaffinity(0)))
        self.seen = now
        return self.left <= 0


def becomes_true(condition, limit=SECONDS):
    patience = Patience(limit)
    while not condition():
        if patience.is_over():
            return False
        time.sleep(0.02)
    return True


def start(command, folder, **more):
    """Starts it in the folder, where it writes to the file of its name."""
    with open(folder / f"{os.path.basename(command[0])}.out", "ab") as log:
        return subprocess.Popen([*map(str, command)], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)


def logs(folder):
    return "\n".join(f"{file}:\n{file.read_text(encoding='utf-8')[-3000:]}" for file in (*folder.glob("*.log"), *folder.glob("*.out")))


class Host:
    """A program with an agent on the simulated driver, in the folder of the build's programs, which obeys line by line."""

    def __init__(self, programs, *tags, prefix=(), name=None, **environment):
        program = programs / "integration_host"
        self.process = subprocess.Popen([*map(str, prefix), name or program], executable=program if name else None, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **environment})
        self.pid = self.process.pid
        assert self.process.stdout.readline() == "ready\n"
        for tag in tags:
            self.tell(f"alloc {tag} {SIZE} 0")

    def tell(self, line):
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer.startswith("ok"), answer
        return answer[3:].strip()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind or self.process.poll() is not None:
            self.process.kill()
        self.end()

    def end(self):
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


def ask(port, method, path, body=None, headers=None, source="127.0.0.1"):
    """The status, and what the JSON of the reply says, or its text."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS, source_address=(source, 0))) as connection:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode()
    return reply.status, json.loads(text) if reply.headers["Content-Type"] == "application/json" else text
