// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The system call, and when it is made.

#include "common/named_tracer.hpp"

#include "base/files.hpp"

#include <sys/prctl.h>

#include <cerrno>

namespace gpu_sleep::agent {
namespace {

/// Whether descendants alone may be traced, and by whom it is named.
bool asks_for_names(const std::filesystem::path& scope) {
    const auto text = read_small_file(scope);
    return text && text->starts_with('1');
}

} // namespace

int NamedTracer::set_tracer(pid_t tracer) noexcept {
    return ::prctl(PR_SET_PTRACER, static_cast<unsigned long>(tracer), 0UL, 0UL, 0UL);
}

Result<NamedTracer> NamedTracer::name(pid_t tracer, const Kernel& kernel) {
    if (!asks_for_names(kernel.scope)) return NamedTracer();
    if (tracer <= 0)
        return make_error(ErrorCode::not_permitted,
                          "under Yama (ptrace_scope 1), the process must name its tracer, but the command is "
                          "in another pid namespace");
    if (kernel.set(tracer) == 0) return NamedTracer(kernel.set);
    // The kernel knows the call, because it has a scope.
    return errno_error(errno == EINVAL ? ErrorCode::no_process : ErrorCode::io_failed, errno, "prctl",
                       "PR_SET_PTRACER");
}

NamedTracer::NamedTracer(NamedTracer&& other) noexcept : set_(std::exchange(other.set_, nullptr)) {}

NamedTracer& NamedTracer::operator=(NamedTracer&& other) noexcept {
    if (this == &other) return *this;
    reset();
    set_ = std::exchange(other.set_, nullptr);
    return *this;
}

void NamedTracer::reset() noexcept {
    if (const auto set = std::exchange(set_, nullptr)) static_cast<void>(set(0));
}

} // namespace gpu_sleep::agent
