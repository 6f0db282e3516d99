// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the program frees, and asks, while it sleeps deeply and no call may reach the driver.

#pragma once

#include "base/units.hpp"
#include "driver/api.hpp"
#include "intercepted/objects.hpp"

#include <cstdint>
#include <functional>
#include <optional>

namespace gpu_sleep::agent::intercepted {

/// Puts off `free`, which destroys the object, until free_what_was_put_off(), in the order of the calls.
/// False if the process does not sleep deeply, there is no such object, nothing is to be put off, or there is
/// no memory to remember it: then the call is made as always. At the end of the process nothing is freed any
/// more. Thread-safe.
[[nodiscard]] bool put_off(Object kind, std::uint64_t handle, std::function<void()> free) noexcept;
/// Whether that is done from now on: only where all is freed in one context, whichever thread does it.
void let_put_off(bool lets) noexcept;
/// Frees it, once the driver is within reach again, in a context that lives. On the operations thread,
/// without the memory's mutex.
void free_what_was_put_off(const driver::Api& api) noexcept;

/// The memory of the one device that the process uses, as it was when it fell deeply asleep.
struct DeviceMemory {
    Bytes free = 0;
    Bytes total = 0;
};
/// For whoever asks meanwhile; none: nobody is answered. Thread-safe.
void set_memory_while_deep(std::optional<DeviceMemory> memory) noexcept;
/// Nothing, unless the process sleeps deeply and has one device alone. Thread-safe.
[[nodiscard]] std::optional<DeviceMemory> memory_while_deep() noexcept;

} // namespace gpu_sleep::agent::intercepted
