// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Letting one other process trace this one for a while, where Yama would forbid it: the driver's checkpoint
// from outside needs that.

#pragma once

#include "base/error.hpp"

#include <sys/types.h>

#include <filesystem>

namespace gpu_sleep::agent {

/// While it is there, the process that it names, and what that starts, may trace this one: read and change
/// it. Name nobody but a caller that has been verified (SO_PEERCRED) and is still connected, so that its pid
/// is its own. The kernel keeps one such name for a process and tells nobody which: if the program has named
/// somebody itself (prctl(2), PR_SET_PTRACER, as crash reporters do), that is lost at the first naming, and
/// not put back at the end. So there is one at a time, and only where it makes a difference: where Yama's
/// scope is 1. With 0 nothing is forbidden; with 2 and 3 the naming would not count. Move-only. Source:
/// Documentation/admin-guide/LSM/Yama.rst.
class NamedTracer {
public:
    /// The kernel's calls; tests give others.
    struct Kernel {
        std::filesystem::path scope = "/proc/sys/kernel/yama/ptrace_scope";
        int (*set)(pid_t tracer) noexcept = set_tracer; ///< sets errno and gives -1 on failure; 0: nobody
    };

    /// Names nobody.
    NamedTracer() noexcept = default;
    /// Names `tracer`, as this process's pid namespace numbers it: one that is not in it has no number here
    /// (0) and cannot be named. Errors: not_permitted (that), no_process, io_failed.
    [[nodiscard]] static Result<NamedTracer> name(pid_t tracer, const Kernel& kernel);
    [[nodiscard]] static Result<NamedTracer> name(pid_t tracer) { return name(tracer, Kernel()); }

    NamedTracer(NamedTracer&& other) noexcept;
    NamedTracer& operator=(NamedTracer&& other) noexcept;
    ~NamedTracer() { reset(); }

    /// Whether the kernel has been told.
    [[nodiscard]] bool is_set() const noexcept { return set_ != nullptr; }

private:
    static int set_tracer(pid_t tracer) noexcept;
    explicit NamedTracer(int (*set)(pid_t) noexcept) noexcept : set_(set) {}
    void reset() noexcept;

    int (*set_)(pid_t) noexcept = nullptr; ///< takes the name back
};

} // namespace gpu_sleep::agent
