// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of plain allocations.

#include "support/simulated_driver/plain_memory.hpp"

#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/tries.hpp"

namespace gpu_sleep::sim {

CUresult add_plain_memory(Driver& driver, const Context& context, std::shared_ptr<Physical> memory,
                          std::uint64_t bytes, PlainAllocation::Kind kind, CUdeviceptr& address) {
    const auto reserved = memory->bytes();
    const auto origin = kind == PlainAllocation::Kind::managed ? Origin::managed : Origin::plain;
    std::uint64_t begin = 0;
    SIM_TRY(driver.space.place(std::move(memory), origin, context.device, begin));
    driver.plain[begin] = {bytes, reserved, context.owner, kind};
    driver.plain_bytes += bytes;
    if (kind == PlainAllocation::Kind::managed) note_managed(1);
    address = begin;
    return CUDA_SUCCESS;
}

void free_plain_memory(Driver& driver, CUdeviceptr address) {
    const auto found = driver.plain.find(address);
    if (found == driver.plain.end()) return;
    driver.space.remove(address);
    driver.plain_bytes -= found->second.bytes;
    if (found->second.kind == PlainAllocation::Kind::managed) note_managed(-1);
    driver.plain.erase(found);
}

void free_plain_memory_of(Driver& driver, const Context& context) {
    for (auto it = driver.plain.begin(); it != driver.plain.end();) {
        const auto current = it++;
        if (current->second.context == &context) free_plain_memory(driver, current->first);
    }
}

} // namespace gpu_sleep::sim
