// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Makes system calls of the tested code fail, by a filter that the kernel applies to one thread and its
// children.

#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <thread>
#include <vector>

namespace gpu_sleep::test {

/// A system call that fails with `error`; with `third_argument`, only the calls that have it.
struct FailingCall {
    std::uint32_t number;
    std::uint32_t error;
    std::optional<std::uint32_t> third_argument = {};
};

/// Applies the filter to the calling thread, for good. False where the system does not allow it.
[[nodiscard]] inline bool install_filter(std::initializer_list<FailingCall> calls) {
    constexpr std::uint16_t k_load = BPF_LD | BPF_W | BPF_ABS;
    constexpr std::uint16_t k_skip_unless_equal = BPF_JMP | BPF_JEQ | BPF_K;
    constexpr std::uint16_t k_return = BPF_RET | BPF_K;
    std::vector<sock_filter> program;
    for (const auto& call : calls) {
        const std::uint8_t rest = call.third_argument ? 3 : 1;
        program.push_back({k_load, 0, 0, offsetof(seccomp_data, nr)});
        program.push_back({k_skip_unless_equal, 0, rest, call.number});
        if (call.third_argument) {
            program.push_back({k_load, 0, 0, offsetof(seccomp_data, args) + 2 * sizeof(std::uint64_t)});
            program.push_back({k_skip_unless_equal, 0, 1, *call.third_argument});
        }
        program.push_back({k_return, 0, 0, SECCOMP_RET_ERRNO | call.error});
    }
    program.push_back({k_return, 0, 0, SECCOMP_RET_ALLOW});
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Runs `body` on a thread of its own, for which, and for the threads that it starts, `calls` fail. Returns
/// false, without having run it, where the system does not allow that. `body` makes no assertions.
[[nodiscard]] inline bool with_failing_calls(std::initializer_list<FailingCall> calls,
                                             const std::function<void()>& body) {
    bool was_run = false;
    std::thread([&] {
        was_run = install_filter(calls);
        if (was_run) body();
    }).join();
    return was_run;
}

} // namespace gpu_sleep::test
