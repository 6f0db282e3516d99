// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The line in which processes of one user stand that move memory between each other on a GPU, and the lock
// of the one whose turn it is.

#pragma once

#include "base/locked_file.hpp"
#include "base/result.hpp"

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace gpu_sleep::peers {

/// Locks of an empty file in an agent directory, which strangers cannot enter: byte 0 is the GPU's lock, and
/// each other byte that is locked is somebody's place, ordered by the time when it was taken. They are record
/// locks, which belong to a process: a child of fork() does not have them, and they end with the process,
/// however that ends. Nothing here waits. Not thread-safe; one for each GPU and process, as closing the file
/// anywhere in the process gives all of its locks up. Source: fcntl(2), F_SETLK.
class GpuLine {
public:
    /// The line of the GPU `uuid`. `directory` is used by this call alone. Errors: io_failed.
    [[nodiscard]] static Result<GpuLine> open(int directory, std::string_view uuid);

    GpuLine(GpuLine&&) noexcept = default;
    GpuLine& operator=(GpuLine&&) noexcept = default;

    /// Whether this is still the file of that name, and open: others clean /tmp, and programs close
    /// descriptors that they know nothing of.
    [[nodiscard]] bool is_in_place(int directory) const;

    /// Takes the place at the end, unless it has one. Errors: io_failed.
    [[nodiscard]] Result<void> stand();
    [[nodiscard]] bool stands() const noexcept { return place_ != 0; }
    /// How many stand before it; before all, if it does not stand itself.
    [[nodiscard]] std::uint32_t before() const;
    /// Takes the lock, whoever stands before. False: another process has it.
    [[nodiscard]] bool lock();
    void unlock() noexcept;
    /// Gives its place up.
    void leave() noexcept;
    /// The process that has the lock, as this one's pid namespace sees it; 0 if no other has it, or it is
    /// not seen.
    [[nodiscard]] pid_t holder() const;

private:
    GpuLine(LockedFile file, std::string name) noexcept : file_(std::move(file)), name_(std::move(name)) {}

    LockedFile file_;
    std::string name_;
    off_t place_ = 0; ///< the byte; 0: none
};

} // namespace gpu_sleep::peers
