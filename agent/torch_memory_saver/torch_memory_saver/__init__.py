# SPDX-License-Identifier: Apache-2.0
# Copyright the gpu-sleep authors.
"""gpu-sleep under the name of torch_memory_saver, for programs that call that: the same names with the same meaning.

    from torch_memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = build_model().to("cuda")
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

What is paused sleeps: gpu-ps shows it, and gpu-wake wakes it. Importing needs no GPU and no PyTorch. The names are those of
version 0.0.10b1, and keep_resident: the object and its properties, both hook modes, configure_subprocess, the environment
variables, the C functions, and the libraries' file names.

Tags. A tag, which may be any text, becomes one of the agent's tags for each kind of backup: weights:cpu, weights:disk,
weights:none. Characters other than letters, digits, dots, hyphens and underscores become underscores, with a number appended.
With a backup in files, each allocation has a tag and so a file of its own: weights:disk, weights:2:disk. If somebody else asks
for a sleep, level 1 keeps all of it, and level 2 what has a backup.

Only memory of regions sleeps, as with torch_memory_saver. If gpu-run started the program or its shell, all memory can sleep,
even if the caller replaces LD_PRELOAD, because the preloaded library loads the agent.

What differs from torch_memory_saver:

- Where it ends the process, an exception of gpu_sleep.errors is raised, and nothing changes: no room at resume(), a second
  pause(), a resume() without a pause(), keep_resident of paused memory, a backup of a tensor that has none. pause() after
  pause("a") pauses the rest. resume() of a tag that got more memory meanwhile brings back what is paused of it.
- Memory of an inner region, of disable(), or of a graph within a region does not belong to the outer region. In hook mode
  "torch", it may be allocated and freed on threads outside of the region.
- Allocations of at most 1 MiB share ranges of memory. If keep_resident was called for one, all of its range stays on the GPU.
- Contents are checked when they come back. Memory without a backup reads as zero.
- At the first resume(), the program ceases to retain host memory for all that is awake, also outside of regions, unless
  retain_cpu_backup or TMS_RETAIN_CPU_BACKUP asks for it. Each resume() gives the memory back before it returns. If backups are
  retained, the next pause() copies only what has changed, and get_cpu_backup() answers for active memory. If the host has given
  the memory up, the answer is None.
- get_cpu_backup() gives a copy, also with zero_copy. It takes as much host memory again, at the same address, until the next
  resume() of the tag, or until the memory is freed if that retains. It is page-locked unless cpu_backup_backend is "mmap". For
  paused memory that gpu-run --live-bytes has placed in host memory it raises an exception, unless that sleeps deeply.
- Backups in files go to a directory that others cannot look into. If none is named, that is torch_memory_saver-UID in TMPDIR or
  /tmp. /tmp itself is refused. The files are compressed: one of floating-point numbers is smaller than its memory, and one of
  random bytes is not.
- cpu_backup_backend changes nothing else, and TMS_DISK_BACKUP_CHUNK_MB nothing at all: the agent pins what it can.
- CUDA runtime functions that Python looks up by the library's handle (_binary_wrapper.cdll) are those of the runtime that the
  process has loaded. By dlsym(3) the library has its own names alone.

Not supported: AMD's and Intel's GPUs, and allocations in chunks, which a branch of torch_memory_saver has. The calls that SGLang,
slime, miles, verl and NeMo-RL made in November 2026 were tested on a simulated driver, not these programs themselves.
"""

from .entrypoint import TorchMemorySaver, configure_subprocess, register_hook_mode, torch_memory_saver

__all__ = ["TorchMemorySaver", "configure_subprocess", "register_hook_mode", "torch_memory_saver"]
