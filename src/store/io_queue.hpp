// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads and writes at offsets of files, many at once: by io_uring, or by a few threads.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"

#include <cstddef>
#include <functional>
#include <memory>

namespace gpu_sleep::store {

struct IoRequest {
    enum class Kind { read, write };
    Kind kind = Kind::read;
    int fd = -1;
    std::byte* data = nullptr; ///< read from when writing
    std::size_t bytes = 0;
    Bytes offset = 0;
    /// Called once, on a thread of the queue or on the one that submits, when all bytes are moved or it has
    /// failed. Must not throw, though memory run out. Errors: out_of_disk, damaged (the file ends too early),
    /// io_failed, out_of_host_memory.
    std::function<void(Result<void>)> done;
};

/// Thread-safe. Destroyed only when no request is under way.
class IoQueue {
public:
    /// More requests are accepted, but not run at once.
    static constexpr unsigned k_depth = 64;

    virtual ~IoQueue() = default;
    /// Where it throws for want of memory, the request was not taken: `done` is not called.
    virtual void submit(IoRequest request) = 0;
};

enum class IoKind {
    automatic, ///< io_uring if it was built in, the kernel permits it, no seccomp filter could end the
               ///< process for it, and the file uses direct I/O
    threads,   ///< pread and pwrite
};

/// What a queue is for.
enum class IoUse {
    direct, ///< files with direct I/O
    cached_reads,
    cached_writes, ///< of one file
};

/// Through the page cache, io_uring copies on the thread that submits, so threads of our own are faster:
/// several that read, but one that writes, because the kernel allows one writer of a file at a time. Errors:
/// out_of_host_memory (no thread could be started). Source: io_uring(7).
[[nodiscard]] Result<std::unique_ptr<IoQueue>> open_io_queue(IoKind kind = IoKind::automatic,
                                                             IoUse use = IoUse::direct);

/// Moves the bytes at once, on the calling thread. Errors: as for IoRequest::done.
[[nodiscard]] Result<void> move_bytes(IoRequest::Kind kind, int fd, std::byte* data, std::size_t bytes,
                                      Bytes offset);

} // namespace gpu_sleep::store
