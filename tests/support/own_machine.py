# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""A machine of a test's own: namespaces with processes, a network, a name, and a /tmp and /var/tmp that nobody else sees. All that
runs in it ends with the test."""

import ctypes
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys

NAME, ADDRESS, HOSTS = "node", "10.0.0.1", "/tmp/hosts"
INSIDE = "GPU_SLEEP_OWN_MACHINE"  # set in the namespaces
NAMESPACES = ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]


def skip(why, status=77):
    print(f"skipped: {why}")
    sys.exit(status)


def enter(*tools, kept=()):
    """Has this program begin once more inside, where the folders of `kept` are what they were. A test that lacks a tool or a
    right is skipped."""
    if INSIDE in os.environ:
        return build(kept)
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [tool for tool in ("unshare", *tools) if not shutil.which(tool, path=path)]
    if missing:
        skip(f"{', '.join(missing)} is missing")
    command = [*NAMESPACES, *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        skip("this process may not make namespaces", 1 if os.environ.get("GPU_SLEEP_REQUIRE_RIGHTS") == "1" else 77)
    os.environ.update({INSIDE: "1", "PATH": path})
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def has_users():
    """Whether there are users but this one, who is called root."""
    return pathlib.Path("/proc/self/uid_map").read_text(encoding="ascii").split() == ["0", "0", "4294967295"]


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def build(kept):
    libc = ctypes.CDLL(None, use_errno=True)
    descriptors = {path: os.open(path, os.O_PATH) for path in kept if path.is_relative_to("/tmp")}
    mount("--make-rprivate", "/")
    for folder in ("/tmp", "/var/tmp"):
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder)
    for path, descriptor in descriptors.items():
        path.mkdir(parents=True, exist_ok=True)
        assert libc.mount(f"/proc/self/fd/{descriptor}".encode(), os.fsencode(path), None, 0x5000, None) == 0  # MS_BIND | MS_REC
    with socket.socket() as any_socket:  # else there is no localhost
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
        # Without an address but loopback's, programs that ask for addresses that fit the machine get none.
        fcntl.ioctl(any_socket, 0x8916, struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, socket.inet_aton(ADDRESS)))  # SIOCSIFADDR
    socket.sethostname(NAME)
    pathlib.Path(HOSTS).write_text(f"127.0.0.1 localhost\n{ADDRESS} {NAME}\n", encoding="ascii")
    mount("--bind", HOSTS, "/etc/hosts")


def overlay(*places):
    """What is written there is written elsewhere, and goes with the machine."""
    for place in places:
        layers = [pathlib.Path(f"/tmp/layers{place}/{name}") for name in ("upper", "work")]
        for layer in layers:
            layer.mkdir(parents=True)
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={layers[0]},workdir={layers[1]}", place)
    if "/etc" in places:
        mount("--bind", HOSTS, "/etc/hosts")


def install(build, *places):
    """Installs the build in /usr/local; what is written there, and in the places, goes with the machine."""
    overlay("/usr/local", *places)
    subprocess.run(["cmake", "--install", build, "--prefix", "/usr/local"], check=True, stdout=subprocess.DEVNULL)
    os.environ["PATH"] = f"/usr/local/bin:{os.environ['PATH']}"
