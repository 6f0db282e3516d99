// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which GPU takes the place of which when the driver restores a process: from what was typed to the list that
// the driver wants.

#pragma once

#include "base/gpu_pair.hpp"
#include "client/room_plan.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::control {

/// The one of `gpus` with that uuid; null if there is none.
[[nodiscard]] const driver::Gpu* find_gpu(const std::vector<driver::Gpu>& gpus,
                                          const std::string& uuid) noexcept;

/// Reads "FROM=TO": each a number of NVML's or a uuid, as typed. Errors: invalid_argument.
[[nodiscard]] Result<GpuPair> parse_gpu_move(const std::string& text);

/// The list that the driver takes: all `gpus`, each once on each side. One that has to give its place and was
/// given none gets that of the last that moves in its chain; nothing of the process may be on it. `needs` is
/// what the process needs of which GPU; where it is not known, `gpus` alone is looked at. Errors:
/// invalid_argument (no such GPU; twice the same; not of the same kind; FROM has nothing of the process, or
/// TO has something that would have to go elsewhere).
[[nodiscard]] Result<std::vector<GpuPair>> plan_gpu_moves(const std::vector<GpuPair>& moves,
                                                          const std::vector<driver::Gpu>& gpus,
                                                          const client::BytesByGpu& needs);

/// `needs` where `pairs` puts them.
[[nodiscard]] client::BytesByGpu moved(const client::BytesByGpu& needs, const std::vector<GpuPair>& pairs);

} // namespace gpu_sleep::control
