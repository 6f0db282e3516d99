# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""JupyterHub with the recipe of cli/guides/jupyterhub.md: two users' kernels on one GPU, idle ones that sleep, and those that a
culler ends.

Usage: jupyterhub_test.py TREE BUILD, with the Python that has jupyterhub

The hub, its proxy and the users' servers run on a machine of their own, where all users are one.
"""

import asyncio
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.request
import uuid

TREE, BUILD = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
sys.path.insert(0, str(TREE / "tests/support"))
import own_machine  # noqa: E402
import started  # noqa: E402
from started import SECONDS, becomes_true  # noqa: E402

FOLDER = pathlib.Path("/tmp/hub")
GUIDE = TREE / "cli/guides/jupyterhub.md"
HUB = "http://127.0.0.1:8000"
TOKEN = uuid.uuid4().hex
SIMULATED = {"LD_LIBRARY_PATH": f"{BUILD}/simulated", "GPU_SLEEP_SIM_DEVICES": "1", "GPU_SLEEP_SIM_MEMORY": str(80 << 20),
             "GPU_SLEEP_SIM_STATE": str(FOLDER / "gpus")}
# The hub's proxy is Debian's, and may run with another node.
CONFIGURATION = f"""
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.bind_url = "{HUB}"
c.JupyterHub.services = [{{"name": "test", "api_token": "{TOKEN}"}}]
c.JupyterHub.load_roles = [{{"name": "test", "scopes": ["admin:users", "admin:servers", "access:servers"], "services": ["test"]}}]
c.Spawner.environment = {{**{SIMULATED!r}, "HOME": "{FOLDER}"}}
c.Spawner.args = ["--allow-root"]
"""
FILL = (f"import sys; sys.path.insert(0, {str(TREE / 'tests/support')!r})\n"
        "from gpu_memory import GpuMemory; memory = GpuMemory(24 << 20); print(memory.is_intact())")
USE = "print(memory.is_intact())"


def ask(method, path, body=None):
    """The status and the JSON of the reply."""
    request = urllib.request.Request(HUB + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        text = reply.read()
    return reply.status, json.loads(text) if text else None


def run_cell(user, kernel, cell):
    """What a cell prints, by the channel that a browser uses."""
    import tornado.httpclient
    import tornado.websocket

    async def talk():
        request = tornado.httpclient.HTTPRequest(f"{HUB.replace('http', 'ws')}/user/{user}/api/kernels/{kernel}/channels",
                                                 headers={"Authorization": f"token {TOKEN}"})
        channel = await tornado.websocket.websocket_connect(request)
        identity = uuid.uuid4().hex
        header = {"msg_id": identity, "msg_type": "execute_request", "username": user, "session": identity, "version": "5.3"}
        content = {"code": cell, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False}
        await channel.write_message(json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content,
                                                "channel": "shell", "buffers": []}))
        printed = ""
        while True:
            message = json.loads(await channel.read_message())
            if message["parent_header"].get("msg_id") != identity:
                continue
            if message["msg_type"] in ("stream", "error"):
                printed += message["content"].get("text") or "\n".join(message["content"]["traceback"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                channel.close()
                return printed

    return asyncio.run(asyncio.wait_for(talk(), SECONDS))


def states():
    """Of the kernels that gpu-ps lists, by Jupyter's ids."""
    said = subprocess.run(["gpu-ps", "--json"], stdout=subprocess.PIPE, check=True, timeout=SECONDS).stdout
    return {process["kernel"]: process["state"] for process in json.loads(said)["processes"]}


class Hub(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        FOLDER.mkdir()
        own_machine.install(BUILD)
        os.environ.update({**SIMULATED, "NODE_PATH": "/usr/share/nodejs"})
        recipe, = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        (FOLDER / "config.py").write_text(CONFIGURATION + recipe, encoding="utf-8")
        (FOLDER / "gpu-sleep.toml").write_text("".join(re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(encoding="utf-8"),
                                                                  re.MULTILINE | re.DOTALL)).replace('"1h"', '"1s"'), encoding="utf-8")
        cls.hub = started.start(["jupyterhub", "--config", "config.py"], FOLDER)

        def is_up():
            assert cls.hub.poll() is None, started.logs(FOLDER)
            try:
                return ask("GET", "/hub/api/")[0] == 200
            except OSError:
                return False

        assert becomes_true(is_up), started.logs(FOLDER)

    @classmethod
    def tearDownClass(cls):
        cls.hub.kill()
        cls.hub.wait(SECONDS)

    def start(self, user):
        """A server of the user, and the id of its kernel, which has GPU memory."""
        ask("POST", f"/hub/api/users/{user}")
        ask("POST", f"/hub/api/users/{user}/server", {})
        self.assertTrue(becomes_true(lambda: ask("GET", f"/hub/api/users/{user}")[1]["server"]), started.logs(FOLDER))
        kernel = ask("POST", f"/user/{user}/api/kernels", {"name": "python3"})[1]["id"]
        self.assertEqual(run_cell(user, kernel, FILL), "True\n", started.logs(FOLDER))
        return kernel

    @staticmethod
    def reclaim():
        """A pass of the timer."""
        subprocess.run(["gpu-reclaim", "--quiet", "--config", FOLDER / "gpu-sleep.toml"], check=True, timeout=SECONDS)
        return states()

    def last_activity(self, user, kernel):
        return ask("GET", f"/user/{user}/api/kernels/{kernel}")[1]["last_activity"]

    def test_idle_kernels_sleep_and_the_next_cell_wakes_them(self):
        alice, bob = self.start("alice"), self.start("bob")
        self.assertEqual(states(), {alice: "awake", bob: "awake"})
        before = self.last_activity("alice", alice)
        self.assertTrue(becomes_true(lambda: self.reclaim() == {alice: "asleep", bob: "asleep"}), states())
        # A third kernel gets the memory that the two have given back, and they wait for it.
        carol = self.start("carol")
        self.assertEqual(self.last_activity("alice", alice), before)  # to a culler a sleep is no activity
        self.assertEqual(run_cell("alice", alice, USE), "True\n", started.logs(FOLDER))
        self.assertEqual(states(), {alice: "awake", bob: "asleep", carol: "awake"})
        self.assertNotEqual(self.last_activity("alice", alice), before)
        # What the hub's culler does with a user's server that has been idle: the kernel ends asleep.
        ask("DELETE", "/hub/api/users/bob/server")
        self.assertTrue(becomes_true(lambda: states() == {alice: "awake", carol: "awake"}), started.logs(FOLDER))
        # What the culler of a user's server does with a kernel.
        self.assertTrue(becomes_true(lambda: self.reclaim() == {alice: "asleep", carol: "asleep"}), states())
        ask("DELETE", f"/user/alice/api/kernels/{alice}")
        self.assertTrue(becomes_true(lambda: states() == {carol: "asleep"}), started.logs(FOLDER))
        self.assertEqual(run_cell("carol", carol, USE), "True\n", started.logs(FOLDER))
        ask("DELETE", "/hub/api/users/carol/server")
        self.assertTrue(becomes_true(lambda: not states()), started.logs(FOLDER))


if __name__ == "__main__":
    own_machine.enter("cmake", "jupyterhub", "configurable-http-proxy", kept=(TREE, BUILD))
    del sys.argv[1:3]
    unittest.main()
