// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Makes system calls of the tested code fail, by a filter that the kernel applies to one thread and its
// children.

#pragma once

#include "support/catch.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

namespace gpu_sleep::test {

/// A system call that fails with `error`; where arguments are given, only the calls that have them. Of
/// several that fit, the first counts. With an error of 0 the call does nothing and seems to succeed.
struct FailingCall {
    std::uint32_t number, error;
    std::optional<std::uint32_t> third_argument = {}, first_argument = {};
};

/// Applies the filter to the calling thread, for good. False where the system does not allow it.
[[nodiscard]] inline bool install_filter(const std::vector<FailingCall>& calls) {
    constexpr std::uint16_t k_load = BPF_LD | BPF_W | BPF_ABS;
    constexpr std::uint16_t k_skip_unless_equal = BPF_JMP | BPF_JEQ | BPF_K;
    constexpr std::uint16_t k_return = BPF_RET | BPF_K;
    std::vector<sock_filter> program;
    for (const auto& call : calls) {
        constexpr std::uint32_t k_arguments = offsetof(seccomp_data, args);
        std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted{
            {offsetof(seccomp_data, nr), call.number}};
        if (call.first_argument) wanted.emplace_back(k_arguments, *call.first_argument);
        if (call.third_argument)
            wanted.emplace_back(k_arguments + 2 * sizeof(std::uint64_t), *call.third_argument);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            const auto rest = static_cast<std::uint8_t>(2 * (wanted.size() - i) - 1);
            program.push_back({k_load, 0, 0, wanted[i].first});
            program.push_back({k_skip_unless_equal, 0, rest, wanted[i].second});
        }
        program.push_back({k_return, 0, 0, SECCOMP_RET_ERRNO | call.error});
    }
    program.push_back({k_return, 0, 0, SECCOMP_RET_ALLOW});
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// Runs `body` on a thread of its own, for which, and for the threads that it starts, `calls` fail. False,
/// without having run it, where the system does not allow that: the test is skipped. `body` makes no
/// assertions.
[[nodiscard]] inline bool with_failing_calls(const std::vector<FailingCall>& calls,
                                             const std::function<void()>& body) {
    bool was_run = false;
    std::thread([&] {
        was_run = install_filter(calls);
        if (was_run) body();
    }).join();
    if (!was_run) skip_without_right("filter its system calls");
    return was_run;
}

} // namespace gpu_sleep::test
