// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A pread() that comes before the C library's: the program's own definition is the one its libraries use.

#include "host_reads.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

namespace {

std::atomic<std::uint64_t> g_microseconds{0};
std::atomic<std::uint64_t> g_good{UINT64_MAX};

bool is_good() noexcept {
    auto left = g_good.load();
    while (left != UINT64_MAX && left != 0 && !g_good.compare_exchange_weak(left, left - 1)) {
    }
    return left != 0;
}

} // namespace

extern "C" __attribute__((visibility("default"))) ssize_t pread(int fd, void* data, std::size_t bytes,
                                                                off_t offset) {
    if (const auto wait = g_microseconds.load(); wait != 0)
        std::this_thread::sleep_for(std::chrono::microseconds(wait));
    if (is_good()) return ::syscall(SYS_pread64, fd, data, bytes, offset);
    errno = EIO;
    return -1;
}

namespace gpu_sleep::test {

void spoil_reads(std::uint64_t microseconds, std::uint64_t good) {
    g_microseconds = microseconds;
    g_good = good;
}

} // namespace gpu_sleep::test
