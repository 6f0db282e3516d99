# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu-sleep-http and gpu-run --http, with the requests that controllers of model servers send, and with bad luck.

Usage: http_test.py BUILD
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import started  # noqa: E402
from started import DIALECTS, SECONDS, SIZE, ask, becomes_true  # noqa: E402

TOKEN = "0123456789abcdef-token"
ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": str(BUILD / "simulated")}


def Host(*tags, **more):
    return started.Host(BUILD / "bin", *tags, **{**ENVIRONMENT, "GPU_SLEEP_CAPTURE": "1", **more})


class Door:
    """gpu-sleep-http beside a program."""

    def __init__(self, *arguments, address="0", environment=None):
        self.process = subprocess.Popen([BUILD / "bin/gpu-sleep-http", f"--http={address}", *map(str, arguments)], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**ENVIRONMENT, **(environment or {})})
        self.address = self.process.stdout.readline().strip().removeprefix("listening on ")
        assert self.address, self.process.stderr.read()
        self.port = int(self.address.rpartition(":")[2]) if not self.address.startswith("unix") else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(SECONDS) in (0, -signal.SIGKILL), self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, method, path, body=None, headers=None):
        return ask(self.port, method, path, body, headers)


def raw(port, text, wait=SECONDS):
    """What the door says to these bytes, until it hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        connection.sendall(text)
        answer = b""
        with contextlib.suppress(ConnectionResetError, TimeoutError):
            while part := connection.recv(65536):
                answer += part
        return answer


def command(name, *arguments):
    return subprocess.run([BUILD / "bin" / name, *map(str, arguments)], env=ENVIRONMENT, text=True, capture_output=True,
                          timeout=SECONDS)


@contextlib.contextmanager
def as_nobody():
    os.seteuid(65534)  # whose sockets they are then
    try:
        yield
    finally:
        os.seteuid(0)


def is_gone(port):
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) != 0


class Dialects(unittest.TestCase):
    def test_each_caller_drives_a_program_that_nobody_changed(self):
        with Host("default", "default") as host, Door(host.pid) as door:
            for caller, (sleep, wake, look) in DIALECTS.items():
                with self.subTest(caller):
                    method, path, member = look
                    status, said = door.ask(*sleep)
                    success = "success" if caller.startswith("TensorRT") else "ok"
                    self.assertEqual((status, said["status"], said["freed_bytes"], said["kept_bytes"]),
                                     (200, success, 2 * SIZE, 2 * SIZE))
                    self.assertIn(door.ask(method, path)[1][member], (True, "parked"))
                    self.assertEqual(door.ask(*sleep)[0], 200)  # it is already asleep
                    status, said = door.ask(*wake)
                    self.assertEqual((status, said["restored_bytes"], said["is_sleeping"]), (200, 2 * SIZE, False))
                    self.assertIn(door.ask(method, path)[1][member], (False, "running"))
                    self.assertEqual(door.ask(*wake)[0], 200)  # it is awake already
                    self.assertEqual(host.tell("check_all"), "intact")

    def test_tags(self):
        with Host("weights", "kv_cache", "other") as host, Door(host.pid) as door:
            status, said = door.ask("POST", "/release_memory_occupation", '{"tags": ["kv_cache", "cuda_graph"]}')
            self.assertEqual((status, said["freed_bytes"], said["tags_passed_over"]), (200, SIZE, ["cuda_graph"]))
            self.assertEqual(door.ask("GET", "/memory_status")[1], {"state": "parked", "parked_tags": ["kv_cache"]})
            self.assertEqual(door.ask("POST", "/sleep")[1]["freed_bytes"], 2 * SIZE)
            self.assertIn("model_weights", door.ask("GET", "/memory_status")[1]["parked_tags"])  # as the server calls them
            self.assertEqual(door.ask("POST", "/wake_up?tags=weights")[1]["restored_bytes"], 2 * SIZE)
            self.assertTrue(door.ask("GET", "/is_sleeping")[1]["is_sleeping"])
            self.assertFalse(door.ask("POST", "/wake_up?tags=kv_cache")[1]["is_sleeping"])
            self.assertEqual(door.ask("POST", "/sleep?tags=cuda_graph")[0], 400)
            # What nobody can fill again is kept, whatever the level.
            self.assertEqual(door.ask("POST", "/sleep?level=2&tags=other")[0], 400)
            said = door.ask("POST", "/sleep?level=2")[1]
            self.assertEqual((said["freed_bytes"], said["kept_bytes"], said["tags_kept"]), (3 * SIZE, SIZE, ["other"]))
            self.assertEqual(said["processes"][0]["report"]["level"], 1)  # which also keeps a tag that came meanwhile

    def test_what_the_driver_does_not_release(self):
        with Host("default", GPU_SLEEP_SIM_FAIL="cuMemRelease:1:999") as host, Door(host.pid) as door:
            for _ in range(2):  # the second time it is already asleep
                status, said = door.ask("POST", "/sleep")
                self.assertEqual((status, said["error"]["code"], said["unreleased_bytes"]), (500, "driver_failed", SIZE))
            said = command("gpu-sleep", host.pid, "--quiet")  # the command says so, too
            self.assertEqual(said.returncode, 7)
            self.assertIn("did not release 4.00 MiB", said.stderr)
            self.assertEqual(door.ask("POST", "/sleep?level=0")[0], 200)
            self.assertEqual(door.ask("POST", "/wake_up")[0], 200)
            self.assertEqual(host.tell("check_all"), "intact")
            self.assertEqual(door.ask("POST", "/sleep")[1]["freed_bytes"], SIZE)

    def test_pauses(self):
        with Host("default") as host, Door(host.pid) as door:
            for pause, end in ((("POST", "/sleep?level=0"), ("POST", "/wake_up?tags=scheduling")),
                               (("POST", "/pause_generation", '{"mode": "in_place"}'), ("POST", "/continue_generation", "{}")),
                               (("POST", "/v1/pause"), ("POST", "/v1/resume")), (("POST", "/pause?mode=keep"), ("POST", "/resume"))):
                status, said = door.ask(*pause)
                self.assertEqual((status, said["freed_bytes"]), (200, 0), said)
                for path in ("/v1/is_paused", "/is_paused"):
                    self.assertTrue(door.ask("GET", path)[1]["is_paused"])
                status, said = door.ask(*end)
                self.assertEqual((status, said["is_sleeping"]), (200, False), said)
            door.ask("POST", "/sleep")
            self.assertEqual(door.ask("POST", "/continue_generation")[1]["taken_bytes"], 0)

    def test_callbacks_by_name(self):
        with Host("default") as host, Door(host.pid) as door:
            host.tell("callback named 0")
            rpc = {"method": "reset_prefix_cache", "args": [[1]]}
            for _ in range(2):  # awake and asleep
                self.assertEqual(door.ask("POST", "/collective_rpc", json.dumps(rpc))[1]["results"], [rpc])
                self.assertEqual(door.ask("POST", "/reset_prefix_cache?a=b")[1]["results"], [{"a": "b"}])
                self.assertEqual(door.ask("POST", "/reset_prefix_cache")[1]["results"], [None])
                status, said = door.ask("POST", "/collective_rpc", '{"method": "broken"}')
                self.assertEqual((status, said["error"]["code"]), (409, "refused"))
                self.assertIn("the file is gone", said["error"]["message"])
                self.assertEqual(door.ask("POST", "/flush_cache")[0], 404)
                status, said = door.ask("GET", "/flush_cache")  # slime waits for 200 before it releases memory
                self.assertEqual((status, said["results"]), (200, []))
                self.assertEqual(door.ask("POST", "/sleep?mode=abort")[0], 200)
            self.assertEqual(host.tell("calls").split()[0], "1")  # what sleeps has nothing to abort
            self.assertEqual(door.ask("POST", "/wake_up")[0], 200)
            begin = time.monotonic()
            late = door.ask("POST", "/collective_rpc", '{"method": "linger", "timeout": 0.2}')
            self.assertEqual((late[0], late[1]["error"]["code"]), (504, "timed_out"))
            self.assertLess(time.monotonic() - begin, 10)
            # It may still work on the device, which nothing holds back.
            self.assertEqual(command("gpu-sleep", "--live", "--timeout", "100ms", host.pid).returncode, 4)
            host.tell("let_go")
            self.assertEqual(command("gpu-sleep", "--live", host.pid).returncode, 0)
            self.assertEqual(host.tell("check_all"), "intact")

    def test_a_process_ends_while_another_aborts(self):
        group = {"GPU_SLEEP_GROUP": "http-abort"}
        with Host("default", **group) as host, Host("default", **group) as asleep, Door("--group", "http-abort") as door:
            host.tell("callback named_linger 0")
            self.assertEqual(command("gpu-sleep", asleep.pid).returncode, 0)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                answer = pool.submit(door.ask, "POST", "/sleep?mode=abort")
                self.assertTrue(becomes_true(lambda: host.tell("calls").split()[0] == "1"))
                asleep.process.kill()
                asleep.process.wait(SECONDS)
                host.tell("let_go")
                status, said = answer.result()
            self.assertEqual((status, said["freed_bytes"], len(said["processes"])), (200, SIZE, 1), said)

    def test_wakes_what_the_driver_has_put_to_sleep(self):
        with tempfile.TemporaryDirectory() as directory:
            devices = {**ENVIRONMENT, "GPU_SLEEP_SIM_STATE": f"{directory}/devices", "GPU_SLEEP_SIM_MEMORY": str(64 << 20)}
            with subprocess.Popen([BUILD / "bin/intercepted_program_linked"], env=devices, text=True, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE) as program, Door(program.pid, environment=devices) as door:
                self.assertEqual(program.stdout.readline(), "ready\n")
                print(f"alloc plain {SIZE}", file=program.stdin, flush=True)
                self.assertIn("ok", program.stdout.readline())
                slept = subprocess.run([BUILD / "bin/gpu-sleep", str(program.pid), "--engine", "driver", "--quiet"], env=devices)
                self.assertEqual(slept.returncode, 0)
                status, said = door.ask("POST", "/wake_up")
                self.assertEqual((status, said["processes"][0]["state"]), (200, "awake"))

    def test_what_is_refused(self):
        with Host("default") as host, Door(host.pid) as door:
            for expected, request in ((400, ("POST", "/sleep?mode=abort")), (400, ("POST", "/sleep?level=3")),
                                      (400, ("POST", "/sleep", "{")), (404, ("POST", "/collective_rpc", '{"method": "x"}')),
                                      (400, ("POST", "/collective_rpc", "{}")), (400, ("POST", "/flush_cache", '{"timeout": -1}')),
                                      (404, ("POST", "/reset_prefix_cache")), (404, ("GET", "/nothing")), (405, ("GET", "/sleep")),
                                      (400, ("GET", "/release_memory_occupation?level=2")), (405, ("DELETE", "/is_sleeping")),
                                      (413, ("POST", "/sleep", " " * 70000))):
                status, said = door.ask(*request)
                self.assertEqual(status, expected, request)
                self.assertTrue(said["error"]["message"])
            for request, advice in ((("GET", "/nothing"), "/health, /metrics, /sleep, /wake_up"), (("GET", "/sleep"), "/sleep takes POST")):
                self.assertIn(advice, door.ask(*request)[1]["error"]["advice"])
            head = b"HEAD /release_memory_occupation HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            self.assertIn(b" 405 ", raw(door.port, head)[:20])
            self.assertEqual(command("gpu-inhibit", host.pid).returncode, 0)
            status, said = door.ask("POST", "/sleep")
            self.assertEqual((status, said["error"]["code"]), (409, "inhibited"))
            self.assertIn("gpu-inhibit --release", said["error"]["advice"])

    def test_metrics_are_those_of_gpu_ps(self):
        with Host("default", GPU_SLEEP_NAME="behind-a-door") as host, Door(host.pid) as door:
            door.ask("POST", "/sleep")
            status, text = door.ask("GET", "/metrics")
            self.assertEqual(status, 200)
            self.assertIn('name="behind-a-door",engine="agent",state="asleep"} 1', text)
            without_values = [[line.rpartition(" ")[0] for line in each.splitlines() if not line.startswith(("#", "vllm:"))]
                              for each in (text, command("gpu-ps", host.pid, "--prometheus").stdout)]
            self.assertEqual(*without_values)
            self.assertEqual(len(set(without_values[0])), len(without_values[0]))

    def test_metrics_have_vllms_states(self):
        group = {"GPU_SLEEP_GROUP": "http-vllm", "GPU_SLEEP_NAME": 'a"b'}
        with Host("weights", "kv_cache", **group), Host("weights", **group), Door("--group", "http-vllm") as door:
            for path, states in (("/health", "awake awake"), ("/pause", "awake awake"), ("/resume", "awake awake"),
                                 ("/sleep?tags=kv_cache", "weights_offloaded awake"), ("/wake_up", "awake awake"),
                                 ("/sleep", "weights_offloaded weights_offloaded"), ("/wake_up", "awake awake"),
                                 ("/sleep?level=2", "discard_all discard_all")):
                self.assertIn(door.ask("POST" if path != "/health" else "GET", path)[0], (200,), path)
                found = re.findall(r'vllm:engine_sleep_state{engine="(\d)",model_name="a\\"b",sleep_state="(\w+)"} ([01])\n',
                                   door.ask("GET", "/metrics")[1])
                self.assertEqual([each[:2] for each in found], [(str(engine), state) for engine in range(2) for state in (
                    "awake", "weights_offloaded", "discard_all")])
                self.assertEqual(" ".join(state for _, state, value in found if value == "1"), states, path)

    def test_groups_and_names(self):
        named = {"GPU_SLEEP_GROUP": "http-pair", "GPU_SLEEP_NAME": "http-named"}
        with Host("default", **named) as host, Host("default", GPU_SLEEP_GROUP="http-pair"):
            with Door("--group", "http-pair") as door:
                status, said = door.ask("POST", "/sleep")
                self.assertEqual((status, said["freed_bytes"], len(said["processes"])), (200, 2 * SIZE, 2))
                self.assertEqual(door.ask("POST", "/wake_up")[1]["restored_bytes"], 2 * SIZE)
            with Door("http-named") as door:
                self.assertEqual(door.ask("POST", "/sleep")[1]["freed_bytes"], SIZE)
                self.assertEqual(door.ask("GET", "/health")[0], 200)
                host.process.kill()
                host.process.wait(SECONDS)
                self.assertEqual(door.ask("GET", "/health")[0], 503)
                status, said = door.ask("POST", "/sleep")  # another of that name may come
                self.assertEqual((status, said["error"]["code"]), (503, "no_process"))

    def test_a_joint_sleep_fails(self):
        grouped = {"GPU_SLEEP_GROUP": "http-stopped"}
        with Host("default", **grouped), Host("default", **grouped) as stopped, Door("--group", "http-stopped") as door:
            os.kill(stopped.pid, signal.SIGSTOP)
            status, said = door.ask("POST", "/sleep")  # the other's is cancelled
            os.kill(stopped.pid, signal.SIGCONT)
            self.assertEqual((status, said["error"]["code"]), (504, "stopped"))


class Callers(unittest.TestCase):
    def test_pages_and_foreign_names(self):
        with Host() as host, Door(host.pid) as door:
            for headers in ({"Origin": "http://localhost"}, {"Host": "evil.example"}, {"Host": f"evil.example:{door.port}"},
                            {"Sec-Fetch-Site": "cross-site"}):
                self.assertEqual(door.ask("GET", "/health", headers=headers)[0], 403)
            self.assertEqual(door.ask("GET", "/health", headers={"Host": f"localhost:{door.port}"})[0], 200)
        with Host() as host, Door(host.pid, environment={"GPU_SLEEP_HTTP_TOKEN": TOKEN}) as door:
            known = {"Authorization": f"Bearer {TOKEN}"}  # as a proxy adds it to what a page asks for
            self.assertEqual(door.ask("GET", "/health", headers=known)[0], 200)
            self.assertEqual(door.ask("GET", "/health", headers={**known, "Sec-Fetch-Site": "cross-site"})[0], 403)

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_other_users(self):
        with Host("default") as host, tempfile.NamedTemporaryFile("w") as file:
            print(TOKEN, file=file, flush=True)
            for door in (Door(host.pid, "--http-token", file.name, address="0.0.0.0:0"),
                         Door(host.pid, environment={"GPU_SLEEP_HTTP_TOKEN": TOKEN})):
                with door:
                    for headers, expected in (({}, 401), ({"Authorization": "Bearer " + TOKEN[:-1] + "X"}, 401),
                                              ({"Authorization": "Bearer " + TOKEN}, 200)):
                        self.assertEqual(self.ask_as_nobody(door, headers), expected)
                        self.assertEqual(self.ask_as_nobody(door, headers, "/health"), 200)  # probes have no token
                    self.assertEqual(self.ask_as_nobody(door, {"Origin": "http://localhost"}, "/health"), 403)
                    self.assertEqual(self.ask_as_nobody(door, {"Host": "evil.example"}, "/health"), 403)
            with Door(host.pid) as door:
                self.assertEqual(self.ask_as_nobody(door), 403)
                self.assertEqual(door.ask("GET", "/health")[0], 200)

    def ask_as_nobody(self, door, headers=None, path="/is_sleeping"):
        with as_nobody():
            return door.ask("GET", path, headers=headers)[0]

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_strangers_leave_places(self):
        with Host("default") as host, Door(host.pid, environment={"GPU_SLEEP_HTTP_TOKEN": TOKEN}) as door, contextlib.ExitStack() as stack:
            with as_nobody():
                for _ in range(600):
                    stack.enter_context(socket.create_connection(("127.0.0.1", door.port)))
            begin = time.monotonic()
            self.assertEqual(door.ask("GET", "/health")[0], 200)
            self.assertEqual(self.ask_as_nobody(door, {"Authorization": "Bearer " + TOKEN}), 200)
            self.assertLess(time.monotonic() - begin, 1)  # they are cut off after 2 s

    @unittest.skipIf(os.geteuid() != 0, "only root can be another user")
    def test_strangers_hold_no_connections_by_probes(self):
        with Host("default") as host, Door(host.pid, environment={"GPU_SLEEP_HTTP_TOKEN": TOKEN}) as door, as_nobody():
            for more, closed in ((b"", True), (b"Authorization: Bearer %s\r\n" % TOKEN.encode(), False)):
                begin = time.monotonic()
                said = raw(door.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + more + b"\r\n", 2)
                self.assertIn(b" 200 ", said[:13])
                self.assertEqual(time.monotonic() - begin < 1.5, closed)

    def test_sockets(self):
        with tempfile.TemporaryDirectory() as directory, Host("default") as host:
            path = f"{directory}/door"
            for _ in range(2):  # the second time it takes the place of a socket that was left
                with Door(host.pid, address=path) as door:
                    self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
                    connection = http.client.HTTPConnection("anything")
                    connection.sock = socket.socket(socket.AF_UNIX)
                    connection.sock.connect(path)
                    connection.request("POST", "/sleep")
                    self.assertEqual(connection.getresponse().status, 200)
                    connection.close()
                    taken = command("gpu-sleep-http", host.pid, "--http", path)
                    self.assertEqual(taken.returncode, 2, taken.stderr)
                    door.process.kill()
            with Door(host.pid, address=path):
                os.unlink(path)
                pathlib.Path(path).write_text("another's", encoding="utf-8")
            self.assertTrue(os.path.exists(path))

    def test_addresses_that_others_reach_need_a_token(self):
        with Host() as host, tempfile.NamedTemporaryFile("w") as file:
            self.assertEqual(command("gpu-sleep-http", host.pid, "--http", "0.0.0.0:0").returncode, 2)
            print("short", file=file, flush=True)
            self.assertEqual(command("gpu-sleep-http", host.pid, "--http", "0", "--http-token", file.name).returncode, 2)


class BadLuck(unittest.TestCase):
    def test_garbage(self):
        with Host("default") as host, Door(host.pid) as door:
            for text in (b"\0" * 100, b"\xff" * 100000, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
                         b"POST /sleep HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"GET /health HTTP/1.1\r\n\r\n",
                         b"POST /sleep HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                         b"GET /" + b"a" * 60000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
                         b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n"):
                self.assertNotIn(b" 200 ", raw(door.port, text)[:20], text[:40])
            self.assertFalse(door.ask("GET", "/is_sleeping")[1]["is_sleeping"])
            self.assertEqual(door.ask("POST", "/sleep")[0], 200)

    def test_requests_whose_end_is_ambiguous(self):
        """A proxy that counts otherwise would let a caller hide a request in another's body."""
        hidden = b"POST /sleep HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        length, host = b"Content-Length: %d\r\n", b"Host: localhost\r\n"
        chunked, end = b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"
        with Host("default") as host_program, Door(host_program.pid) as door:
            for headers, body in ((length % 0 + length % len(hidden), b""), (length % len(hidden) + length % 0, b""),
                                  (length % 0 + length % 0, b""), (length % len(end + hidden) + chunked, end),
                                  (chunked + length % len(end), end), (chunked + chunked, end),
                                  (b"Transfer-Encoding : chunked\r\n", end), (b"Content-Length\t: %d\r\n" % len(end), end),
                                  (b"Transfer-Encoding: gzip\r\n", b""), (b"Transfer-Encoding: identity, chunked\r\n", end),
                                  (host, b""), (b"Host: evil.example\r\n", b"")):
                for request in (b"GET /is_sleeping", b"POST /wake_up"):
                    said = raw(door.port, request + b" HTTP/1.1\r\n" + host + headers + b"\r\n" + body + hidden, 5)
                    self.assertEqual((said[:12], said.count(b"HTTP/1.1 ")), (b"HTTP/1.1 400", 1), (request, headers, said))
            said = raw(door.port, b"POST /wake_up HTTP/1.1\r\nConnection: close\r\n" + host + chunked + b"\r\n2\r\n{}\r\n" + end)
            self.assertIn(b" 200 ", said[:13])
            self.assertFalse(door.ask("GET", "/is_sleeping")[1]["is_sleeping"])

    def test_short_requests_beside_long_ones_and_slow_clients(self):
        # Every copy takes its time: a sleep of seconds, and a hundred that say a byte now and then.
        with Host("default", GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:3s") as host, Door(host.pid) as door, \
                contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(8) as threads:
            slow = [stack.enter_context(socket.create_connection(("127.0.0.1", door.port))) for _ in range(100)]
            for each in slow:
                each.sendall(b"POST /sleep HTTP/1.1\r\nHost: ")
            begin = time.monotonic()
            sleeps = [threads.submit(door.ask, "POST", "/sleep") for _ in range(3)]
            times = []
            while not all(each.done() for each in sleeps):
                for path in ("/health", "/is_sleeping"):
                    start = time.monotonic()
                    self.assertEqual(door.ask("GET", path)[0], 200)
                    times.append(time.monotonic() - start)
                time.sleep(0.05)
            self.assertGreater(time.monotonic() - begin, 2)
            self.assertLess(sorted(times)[len(times) // 2], 0.5)
            said = [each.result() for each in sleeps]
            self.assertEqual([status for status, _ in said], [200] * 3)
            self.assertIn({reply["freed_bytes"] for _, reply in said}, ({SIZE}, {0, SIZE}))  # one sleep, or more
            for each in slow:  # they were cut off
                each.settimeout(SECONDS)
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(each.recv(1), b"")

    def test_requests_that_are_sent_again(self):
        with Host("default", GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:4s") as host, Door(host.pid) as door, \
                contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(8) as threads:
            sleep = threads.submit(door.ask, "POST", "/sleep")
            time.sleep(0.5)
            wakes = [threads.submit(door.ask, "POST", "/wake_up") for _ in range(3)]  # they wait for the sleep
            time.sleep(0.5)
            for _ in range(600):  # more than there are places
                connection = stack.enter_context(socket.create_connection(("127.0.0.1", door.port), timeout=SECONDS))
                connection.sendall(b"POST /wake_up HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertEqual(door.ask("GET", "/health")[0], 200)
            self.assertFalse(sleep.done())
            said = connection.recv(65536)
            self.assertEqual((said[:12], b"\r\nRetry-After: 1\r\n" in said), (b"HTTP/1.1 503", True), said)
            self.assertEqual([each.result()[1]["taken_bytes"] for each in wakes], [SIZE] * 3)

    def test_controllers_that_disagree(self):
        with Host("weights", "kv_cache") as host, Door(host.pid) as door, concurrent.futures.ThreadPoolExecutor(8) as threads:
            paths = ["/sleep", "/wake_up", "/sleep?tags=weights", "/wake_up?tags=kv_cache", "/resume_memory", "/pause_generation"]
            said = list(threads.map(lambda i: door.ask("POST", paths[i % len(paths)]), range(60)))
            self.assertEqual([reply for status, reply in said if status not in (200, 409)], [])
            self.assertEqual(door.ask("POST", "/wake_up")[0], 200)
            self.assertEqual(host.tell("check_all"), "intact")

    def test_a_thousand_connections(self):
        with Host("default") as host, Door(host.pid) as door, contextlib.ExitStack() as stack:
            few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, most), most))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (few, most))
            for _ in range(1000):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", door.port))
            self.assertEqual(door.ask("POST", "/sleep")[0], 200)

    def test_all_clients_go_away_at_once(self):
        """As many as libmicrohttpd's epoll takes in four parts: it waited for a fifth, and listened to nobody."""
        with Host("default") as host, Door(host.pid) as door:
            with contextlib.ExitStack() as stack:
                for _ in range(512):
                    stack.enter_context(socket.create_connection(("127.0.0.1", door.port)))
                self.assertTrue(becomes_true(lambda: len(os.listdir(f"/proc/{door.process.pid}/fd")) > 512))
                os.kill(door.process.pid, signal.SIGSTOP)
            begin = time.monotonic()
            os.kill(door.process.pid, signal.SIGCONT)
            self.assertEqual(door.ask("GET", "/health")[0], 200)
            self.assertLess(time.monotonic() - begin, 1.5)  # they are cut off after 2 s

    def test_a_client_that_goes_away(self):
        with Host("default", GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:500ms") as host, Door(host.pid) as door:
            with socket.create_connection(("127.0.0.1", door.port)) as client:
                client.sendall(b"POST /sleep HTTP/1.1\r\nHost: localhost\r\n\r\n")
                time.sleep(0.1)
            self.assertTrue(becomes_true(lambda: door.ask("GET", "/is_sleeping")[1]["is_sleeping"]))
            self.assertEqual(door.ask("POST", "/wake_up")[0], 200)

    def test_the_program_ends(self):
        with Host("default", GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:5s") as host, Door(host.pid) as door, \
                concurrent.futures.ThreadPoolExecutor(1) as threads:
            sleep = threads.submit(door.ask, "POST", "/sleep")
            time.sleep(0.5)
            host.process.kill()
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.assertNotEqual(sleep.result(SECONDS)[0], 200)
            host.process.wait(SECONDS)
            self.assertEqual(door.process.wait(SECONDS), 0)

    def test_a_stopped_program_is_healthy(self):
        with Host("default") as host, Door(host.pid) as door:
            os.kill(host.pid, signal.SIGSTOP)
            begin = time.monotonic()
            for _ in range(100):  # none of which waits for it, or is kept waiting by those before
                self.assertEqual(door.ask("GET", "/health")[0], 200)
            self.assertLess(time.monotonic() - begin, 10)
            os.kill(host.pid, signal.SIGCONT)

    def test_the_door_ends(self):
        with Host("default") as host, Door(host.pid) as door:
            self.assertEqual(door.ask("POST", "/sleep")[0], 200)
            door.process.kill()
            door.process.wait(SECONDS)
            self.assertEqual(command("gpu-wake", host.pid).returncode, 0)
            self.assertEqual(host.tell("check_all"), "intact")

    def test_whoever_waits_is_answered_at_the_end(self):
        with Host("default", GPU_SLEEP_SIM_DELAY="cuMemcpyDtoHAsync:2s") as host, Door(host.pid) as door, \
                concurrent.futures.ThreadPoolExecutor(40) as threads:
            sleep = threads.submit(door.ask, "POST", "/sleep")
            time.sleep(0.5)
            wakes = [threads.submit(door.ask, "POST", path) for path in ("/wake_up", "/wakeup", "/resume") for _ in range(12)]
            time.sleep(0.5)
            for _ in range(20):
                door.process.terminate()
                time.sleep(0.1)
            said = {each.result()[1]["error"]["code"] for each in wakes}
            self.assertEqual(said, {"cancelled"})
            sleep.result()
            self.assertEqual(door.process.wait(SECONDS), 0)

    def test_what_cannot_be_opened(self):
        with Host() as host, Door(host.pid) as door:
            taken = command("gpu-sleep-http", host.pid, "--http", door.port)
            self.assertEqual(taken.returncode, 2)
            self.assertIn("Address already in use", taken.stderr)
        self.assertEqual(command("gpu-sleep-http", 999999999, "--http", "0").returncode, 3)


@contextlib.contextmanager
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    yield port


class GpuRun(unittest.TestCase):
    def test_a_door_from_the_start_to_the_end(self):
        with free_port() as port:
            with Host("default", prefix=(BUILD / "bin/gpu-run", "--http", str(port), "--")) as host:
                self.assertEqual(int(host.tell("pid")), host.pid)
                self.assertEqual(ask(port, "POST", "/sleep")[1]["freed_bytes"], SIZE)
                # The door comes back.
                door = next(pid for pid in filter(str.isdigit, os.listdir("/proc")) if self.is_door(pid, host.pid))
                between = pathlib.Path(f"/proc/{door}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
                os.kill(int(between), signal.SIGTERM)  # it stays, or the program might be given the door
                self.assertFalse(becomes_true(lambda: is_gone(port), 0.3))
                os.kill(int(door), signal.SIGKILL)
                self.assertTrue(becomes_true(lambda: is_gone(port)))
                self.assertTrue(becomes_true(lambda: not is_gone(port)))
                self.assertEqual(ask(port, "POST", "/wake_up")[0], 200)
            self.assertTrue(becomes_true(lambda: is_gone(port)))

    def is_door(self, pid, program):
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            return b"gpu-sleep-http" in words[0] and str(program).encode() in words
        return False

    def test_a_program_has_no_child_more(self):
        # Also one that orphans are given to.
        program = "import ctypes, os, sys\nctypes.CDLL(None).prctl(36, 1)\n" \
                  "try: print(os.waitpid(-1, 0))\nexcept ChildProcessError: print('none')\nsys.exit(7)"
        with free_port() as port:
            done = command("gpu-run", "--http", port, "--", sys.executable, "-c", program)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (7, "none\n", ""))
            self.assertTrue(becomes_true(lambda: is_gone(port)))

    def test_a_port_that_the_system_chooses(self):
        done = command("gpu-run", "--http", "0", "--make-room", "--min-awake", "1500ms", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null")
        said = done.stderr.strip()
        self.assertRegex(said, "^gpu-run: listening on 127.0.0.1:[1-9][0-9]*$")
        door = f"--http={said.rpartition(' ')[2]}\0--make-room\0--min-awake=1500ms\0"
        self.assertIn(door, done.stdout)

    def test_the_manual_configures_llama_swap(self):
        page = (pathlib.Path(__file__).parents[2] / "cli/man/gpu-sleep-http.1").read_text(encoding="utf-8").replace("\\", "")
        options, stop = re.search(r"^ +gpu-run (.*) --$.*^ +cmdStop: vllm-wrapper sleep --vllm-url http://127.0.0.1:(\d+)$",
                                  page, re.MULTILINE | re.DOTALL).groups()
        with free_port() as port:
            words = [str(port) if word == stop else word for word in options.split()]
            with Host("default", prefix=(BUILD / "bin/gpu-run", *words, "--")) as host:
                self.assertEqual(ask(port, *DIALECTS["llama-swap"][0])[0], 200)
                self.assertTrue(ask(port, "GET", "/is_sleeping")[1]["is_sleeping"])
                self.assertEqual(host.tell("check_all"), "intact")  # which wakes it
                self.assertFalse(ask(port, "GET", "/is_sleeping")[1]["is_sleeping"])

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as other:
            start = (BUILD / "bin/gpu-run", "--http", other.getsockname()[1], "--", "echo", "started")
            ignoring = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
            for way in ((), (sys.executable, "-c", ignoring)):
                done = command(*way, *start)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("Address already in use", done.stderr)
        self.assertEqual(command("gpu-run", "--http", "/nowhere/door", "--", "echo", "started").returncode, 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
