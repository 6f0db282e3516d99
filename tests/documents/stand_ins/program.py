# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""Stands for the programs that the guides name: one that is called serve* answers by HTTP and uses the GPU for every request but
/health, any other uses the GPU all the time. Each has 50 MiB of GPU memory."""

import ctypes
import http.server
import pathlib
import sys
import time

BYTES = 50 << 20
PORTS = {"serve_b": 8001}  # others: 8000, or what follows --port

driver = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()


def done(status):
    assert status == 0, status


def use_gpu():
    done(driver.cuCtxSetCurrent(context))
    done(driver.cuMemsetD8_v2(memory, ctypes.c_ubyte(7), ctypes.c_size_t(4096)))


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/health":
            use_gpu()
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


done(driver.cuInit(0))
done(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
done(driver.cuCtxSetCurrent(context))
done(driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES)))
use_gpu()
name = pathlib.Path(sys.argv[0]).stem
port = int(sys.argv[-1]) if "--port" in sys.argv else PORTS.get(name, 8000)
if name.startswith(("serve", "vllm")):
    try:
        http.server.ThreadingHTTPServer(("localhost", port), Answers).serve_forever()
    except OSError:  # the port is taken
        time.sleep(3600)
while True:
    use_gpu()
    time.sleep(0.05)
