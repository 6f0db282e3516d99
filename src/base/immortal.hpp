// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Static objects without an end.

#pragma once

#include <cstddef>
#include <new>

namespace gpu_sleep {

/// A static object that is never destroyed, since threads outlive static destructors. It is made in place:
/// its first use may come in a program that has no memory left.
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

} // namespace gpu_sleep
