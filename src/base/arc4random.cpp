// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The static libstdc++ asks for arc4random, for std::random_device, which nothing here uses. glibc has it
// since 2.36: with one of our own, what is built on such a system runs on older ones.

#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

extern "C" __attribute__((visibility("hidden"))) std::uint32_t arc4random() noexcept {
    std::uint32_t number = 0;
    while (::getrandom(&number, sizeof(number), 0) != sizeof(number)) {
    }
    return number;
}
