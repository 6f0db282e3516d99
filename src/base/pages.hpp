// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whole pages of memory, for large buffers that come and go in a program that is not ours.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>
#include <utility>

namespace gpu_sleep {

/// Owns pages that are mapped for it alone, zero at first, and given back when it is destroyed. Not from the
/// program's allocator: glibc's takes a large block that is freed for a sign that such will be wanted again,
/// and keeps them all from then on (mallopt(3), M_MMAP_THRESHOLD). Children of fork() do not get them.
/// Move-only; empty when moved from. Source: mmap(2), madvise(2).
class Pages {
public:
    Pages() noexcept = default;
    /// At least so many bytes; empty where there is no memory.
    [[nodiscard]] static Pages map(std::size_t bytes) noexcept {
        Pages pages;
        void* const memory =
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return pages;
        pages.bytes_ = {static_cast<std::byte*>(memory), bytes};
        if (::madvise(memory, bytes, MADV_DONTFORK) != 0) return {};
        return pages;
    }

    Pages(Pages&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
    Pages& operator=(Pages&& other) noexcept {
        if (this == &other) return *this;
        unmap();
        bytes_ = std::exchange(other.bytes_, {});
        return *this;
    }
    ~Pages() { unmap(); }

    [[nodiscard]] explicit operator bool() const noexcept { return !bytes_.empty(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

private:
    void unmap() noexcept {
        if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    }

    std::span<std::byte> bytes_;
};

} // namespace gpu_sleep
