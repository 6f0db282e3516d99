// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the files of this room share. Internal to it.

#pragma once

#include "agent.hpp"
#include "base/guard.hpp"
#include "base/log.hpp"
#include "caught/allocations.hpp"

#include <utility>

namespace gpu_sleep::agent::caught {

/// The running agent's memory; nothing before CUDA is in use, or when the process is ending.
[[nodiscard]] std::optional<Agent::Memory> memory() noexcept;

/// The status that the driver would have given for `error`.
[[nodiscard]] CUresult to_status(const Error& error) noexcept;

/// Runs what may throw for want of memory, and turns that into a status.
template <class Body>
[[nodiscard]] Answer answered(Body&& body) noexcept {
    auto answer = guarded([&]() -> Result<Answer> { return body(); });
    return answer ? *answer : Answer(CUDA_ERROR_OUT_OF_MEMORY);
}

/// The same for what has nothing to return.
template <class Body>
void noted(Body&& body) noexcept {
    static_cast<void>(guarded([&]() -> Result<void> {
        body();
        return {};
    }));
}

/// The device of the current context; nothing without one.
[[nodiscard]] std::optional<int> current_device(const Agent::Memory& memory) noexcept;

/// Allocates a range or a part of one, and gives back caches before it gives up. Errors: those of Heap::allocate.
[[nodiscard]] Result<driver::DeviceAddress> take_range(const Agent::Memory& memory, int device, std::size_t bytes);
/// Frees what take_range() gave, asleep or awake. No work may still use it.
void give_range(const Agent::Memory& memory, CUdeviceptr address);

/// What the rules say of the calling code. Made before any mutex is taken: finding out who calls may need the loader's
/// lock, which a thread that waits for a mutex of ours may hold.
class TagChoice {
public:
    TagChoice();
    /// The tag of an allocation of this size; nothing when it is not to be caught.
    [[nodiscard]] std::optional<std::string> operator()(std::size_t bytes) const;

private:
    std::vector<std::string_view> callers_;
    std::string_view scope_;
};
/// The same at once.
[[nodiscard]] std::optional<std::string> tag_for(std::size_t bytes);

/// Grants the devices that may reach memory of `device` access to what was allocated there.
void grant_peers(const Agent::Memory& memory, int device, CUdeviceptr address);

/// Frees the allocations that waited for captures to end.
void free_waiting() noexcept;
void free_later(const Known& allocation);

} // namespace gpu_sleep::agent::caught
