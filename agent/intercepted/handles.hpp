// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program's own handles of virtual memory.

#pragma once

#include "gate/gate.hpp"
#include "intercepted/answer.hpp"

#include <cuda.h>

#include <cstddef>

namespace gpu_sleep::agent::intercepted {

[[nodiscard]] Answer create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                            const CUmemAllocationProp* properties, unsigned long long flags) noexcept;
[[nodiscard]] Answer release(CUmemGenericAllocationHandle handle) noexcept;
[[nodiscard]] Answer retain_handle(CUmemGenericAllocationHandle* handle, const void* address) noexcept;
[[nodiscard]] Answer properties_of(CUmemAllocationProp* properties,
                                   CUmemGenericAllocationHandle handle) noexcept;
/// Adds where the handle's memory is mapped; nothing for one that is none of ours. May throw for want of
/// memory.
void add_mappings_of(CUmemGenericAllocationHandle handle, gate::Named& named);

} // namespace gpu_sleep::agent::intercepted
