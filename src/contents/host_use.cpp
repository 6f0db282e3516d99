// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the host has left for contents now.

#include "contents/host_use.hpp"

#include "store/host_account.hpp"

#include <algorithm>
#include <limits>
#include <thread>

namespace gpu_sleep::contents {

Bytes room_for_retained() {
    constexpr unsigned k_most_pressure = 10; // percent: programs wait for memory, whatever is available
    if (store::memory_pressure() >= k_most_pressure) return 0;
    if (store::HostAccount::own().is_wanted()) return 0;
    const auto available = store::host_headroom().bytes;
    const bool is_known = available != std::numeric_limits<Bytes>::max();
    return is_known && available > k_left_available ? available - k_left_available : 0;
}

unsigned default_relay_threads() noexcept {
    constexpr unsigned k_many = 16;
    constexpr unsigned k_others = 4; // for the driver, and the rest of the host
    constexpr unsigned k_most = 28;
    const auto processors = std::thread::hardware_concurrency();
    return processors < k_many ? 0 : std::min(processors - k_others, k_most);
}

Bytes room_for_contents(Bytes reserve) {
    // Where address space is limited, the threads and the buffers that write and read files need some, too.
    constexpr Bytes k_left_of_address_space = 128 * k_mib;
    return store::host_room(reserve, k_left_of_address_space).bytes;
}

} // namespace gpu_sleep::contents
