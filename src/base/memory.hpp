// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that does not come from the program's allocator: static objects that are never destroyed, and
// whole pages for large temporary buffers.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <span>
#include <utility>

namespace gpu_sleep {

/// The process's only T, made at its first use. It is never destroyed, since threads outlive static
/// destructors, and made in place, because its first use may come when the program has no memory left.
template <class T>
[[nodiscard]] T& immortal() noexcept {
    alignas(T) static std::byte s_storage[sizeof(T)];
    static T& s_object = *::new (static_cast<void*>(s_storage)) T;
    return s_object;
}

/// Owns pages that are mapped separately, zero at first, and unmapped when it is destroyed. They do not come
/// from the program's allocator: after a large block is freed, glibc raises its threshold and keeps such
/// blocks from then on (mallopt(3), M_MMAP_THRESHOLD). Children of fork() do not inherit them. Move-only;
/// empty when moved from. Source: mmap(2), madvise(2).
class Pages {
public:
    Pages() noexcept = default;
    /// Maps at least `bytes`. Empty if there is no memory.
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
    Pages& operator=(Pages other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Pages() {
        if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
    }

    [[nodiscard]] explicit operator bool() const noexcept { return !bytes_.empty(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

private:
    std::span<std::byte> bytes_;
};

} // namespace gpu_sleep
