// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Static objects that are never destroyed.

#pragma once

#include <cstddef>
#include <new>

namespace gpu_sleep {

/// A static object that is never destroyed, since threads outlive static destructors. It is made in place,
/// because its first use may come when the program has no memory left.
template <class T>
class Immortal {
public:
    Immortal() { ::new (static_cast<void*>(storage_)) T; }
    Immortal(const Immortal&) = delete;
    Immortal& operator=(const Immortal&) = delete;

    [[nodiscard]] T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(storage_)); }

private:
    alignas(T) std::byte storage_[sizeof(T)];
};

/// The process's only T.
template <class T>
[[nodiscard]] T& immortal() noexcept {
    static Immortal<T> s_object;
    return *s_object;
}

} // namespace gpu_sleep
