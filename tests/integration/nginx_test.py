# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""nginx with cli/examples/one-url.conf before a model server and gpu-run --http: one URL for both.

Usage: nginx_test.py TREE BUILD

The example runs as it stands, on a machine of its own.
"""

import contextlib
import http.server
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

TREE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
sys.path.insert(0, str(TREE / "tests/support"))
import own_machine  # noqa: E402
import started  # noqa: E402
from gpu_memory import GpuMemory  # noqa: E402
from started import DIALECTS, SECONDS, becomes_true  # noqa: E402

EXAMPLE = TREE / "cli/examples/one-url.conf"
SIZE = 8 << 20
AS_ROOT = ["-g", "user root;"]  # whom all is of; else nginx has a user of its own do the work
PORT = 8000
TOKEN = "0123456789abcdef-token"


class Server(http.server.BaseHTTPRequestHandler):
    """A model server: it has GPU memory, listens when the file that it is given is there, and streams."""

    protocol_version = "HTTP/1.1"
    going_on = threading.Event()

    @classmethod
    def serve(cls, port, may_listen):
        cls.memory = GpuMemory(SIZE)
        while not os.path.exists(may_listen):
            time.sleep(0.02)
        http.server.ThreadingHTTPServer(("127.0.0.1", int(port)), cls).serve_forever()

    def do_GET(self):
        if self.path == "/stream":  # its second part follows when somebody has asked for /go
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.part(b"first")
            assert self.going_on.wait(SECONDS)
            self.going_on.clear()
            self.part(b"second")
            return self.part(b"")
        if self.path == "/go":
            self.going_on.set()
        text = b"well" if self.path in ("/go", "/health") else b"intact" if self.memory.is_intact() else b"damaged"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.do_GET()

    def part(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, *_):
        pass


def ask(*request, **more):
    return started.ask(PORT, *request, **more)


class Machine(contextlib.ExitStack):
    """A directory, a model server under gpu-run, and nginx before it."""

    def __init__(self, *options):
        super().__init__()
        with contextlib.ExitStack() as unless_done:
            unless_done.push(self)
            self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
            self.folder.chmod(0o777)
            self.may_listen = self.folder / "may_listen"
            self.server = self.start([BUILD / "bin/gpu-run", "--http=9001", "--on-touch=wake", *options, "--", sys.executable,
                                      pathlib.Path(__file__).resolve(), TREE, BUILD, "serve", 8001, self.may_listen])
            self.proxy = self.start_nginx()
            self.assert_true(lambda: ask("GET", "/is_sleeping")[0] == 200, "the program runs")
            unless_done.pop_all()

    def start(self, command, **user):
        environment = {**os.environ, "LD_LIBRARY_PATH": f"{BUILD}/simulated", "TMPDIR": str(self.folder)}
        process = subprocess.Popen([*map(str, command)], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                                   start_new_session=True, **user)
        self.callback(self.end, process)
        return process

    @staticmethod
    def end(process):
        """With what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(SECONDS)

    def start_nginx(self, change=lambda text: text, **user):
        configuration = pathlib.Path(tempfile.mkstemp(dir=self.folder, suffix=".conf")[1])
        configuration.write_text(change(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
        configuration.chmod(0o644)
        self.assert_true(lambda: not self.is_heard(), "the port is free") # which processes that were killed may have still
        process = self.start(["nginx", "-p", self.folder, "-c", configuration, *([] if user else AS_ROOT)], **user)
        self.assert_true(lambda: self.is_heard() or process.poll() is not None, "nginx listens")
        assert process.poll() is None
        return process

    @staticmethod
    def is_heard():
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", PORT)) == 0

    @staticmethod
    def assert_true(condition, what):
        assert becomes_true(condition), f"waited in vain: {what}"

    def make_ready(self):
        self.may_listen.touch()
        self.assert_true(lambda: ask("GET", "/health")[0] == 200, "the server is ready")

    @staticmethod
    def is_sleeping():
        return ask("GET", "/is_sleeping")[1]["is_sleeping"]


class OneUrl(unittest.TestCase):
    def test_every_route_of_control_is_in_the_example(self):
        pattern = re.search(r'location ~ "\(\?x\)(.*?)"', EXAMPLE.read_text(encoding="utf-8"), re.DOTALL).group(1)
        routes = re.findall(r'Route\{"([^"]+)", \w+, Action::(\w+)', (TREE / "cli/http/routes.cpp").read_text(encoding="utf-8"))
        self.assertGreater(len(routes), 20)
        for path, action in routes:
            is_control = action not in ("live", "measure", "call") and path != "/props"  # which llama.cpp answers itself
            self.assertEqual(bool(re.search(pattern, path, re.VERBOSE)), is_control, path)

    def test_callers(self):
        with Machine() as machine:
            self.assertEqual(ask("GET", "/health"), (503, "not ready\n"))
            self.assertEqual(ask("GET", "/generate")[0], 502)
            self.assertFalse(machine.is_sleeping())  # what the server does not answer yet
            machine.make_ready()
            for caller, (sleep, wake, _) in DIALECTS.items():
                with self.subTest(caller):
                    status, said = ask(*sleep)
                    self.assertEqual((status, said["freed_bytes"]), (200, SIZE))
                    self.assertEqual(ask("GET", "/health"), (200, "well"))
                    self.assertTrue(machine.is_sleeping())  # /health did not wake it
                    status, said = ask(*wake)
                    self.assertEqual((status, said["restored_bytes"]), (200, SIZE))
            ask("POST", "/sleep")
            self.assertEqual(ask("POST", "/v1/completions", '{"prompt": "x"}'), (200, "intact"))  # and has woken it
            self.assertFalse(machine.is_sleeping())

    def test_a_streamed_answer(self):
        with Machine() as machine, socket.create_connection(("127.0.0.1", PORT), SECONDS) as client:
            machine.make_ready()
            client.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b"first" not in answer:
                answer += client.recv(4096)
            self.assertNotIn(b"second", answer)
            ask("GET", "/go")
            while b"second" not in answer:
                answer += client.recv(4096)

    def test_who_may_call(self):
        with Machine() as machine:
            machine.make_ready()
            self.assertEqual(ask("POST", "/sleep", source="127.0.0.2")[0], 403)
            self.assertEqual(ask("GET", "/generate", source="127.0.0.2")[0], 200)
            for page in ({"Origin": "http://localhost"}, {"Host": "pages.example"}, {"Sec-Fetch-Site": "cross-site"}):
                self.assertEqual(ask("POST", "/sleep", None, page)[0], 403)
            self.assertFalse(machine.is_sleeping())

    @unittest.skipUnless(own_machine.has_users(), "to act as another user needs root")
    def test_a_service_of_the_system_sends_the_token(self):
        def send_token(text):
            return text.replace("proxy_pass http://control;", f'proxy_set_header Authorization "Bearer {TOKEN}"; proxy_pass http://control;')

        with tempfile.NamedTemporaryFile("w") as file:
            print(TOKEN, file=file, flush=True)
            with Machine(f"--http-token={file.name}") as machine:
                machine.make_ready()
                other = {"user": 65534, "group": 65534, "extra_groups": []}
                for change, status in ((str, 401), (send_token, 200)):
                    machine.end(machine.proxy)
                    shutil.rmtree(machine.folder / "one-url.tmp", ignore_errors=True)
                    (machine.folder / "one-url.pid").unlink()
                    machine.proxy = machine.start_nginx(change, **other)
                    self.assertEqual(ask("POST", "/sleep")[0], status)

    def test_nginx_the_server_for_http_or_the_program_dies(self):
        with Machine() as machine:
            machine.make_ready()
            with socket.create_connection(("127.0.0.1", PORT), SECONDS) as client:
                client.sendall(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
                while b"first" not in client.recv(4096):
                    pass
                machine.end(machine.proxy)
            machine.proxy = machine.start_nginx()
            self.assertEqual(ask("POST", "/sleep")[0], 200)
            door = subprocess.run(["pgrep", "--exact", "gpu-sleep-http"], capture_output=True, text=True).stdout  # the only one here
            os.kill(int(door), signal.SIGKILL)
            self.assertTrue(becomes_true(lambda: ask("GET", "/is_sleeping")[0] == 200))  # another one
            self.assertEqual(ask("GET", "/generate"), (200, "intact"))
            machine.server.kill()
            self.assertTrue(becomes_true(lambda: ask("GET", "/health")[0] == 503))
            self.assertTrue(becomes_true(lambda: ask("POST", "/sleep")[0] == 502))


if __name__ == "__main__":
    if sys.argv[3:4] == ["serve"]:
        Server.serve(*sys.argv[4:])
    own_machine.enter("nginx", kept=(TREE, BUILD))
    del sys.argv[1:3]
    unittest.main()
