// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which GPU takes the place of which. Apart, because the model and the checkpoint share nothing else.

#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace gpu_sleep {

/// A GPU, and the one that takes its place: uuids as NVML writes them.
struct GpuPair {
    std::string from;
    std::string to;
    friend bool operator==(const GpuPair&, const GpuPair&) = default;
};

/// The uuid of what takes the place of `gpu`: itself, where no pair says another.
[[nodiscard]] inline const std::string& place_of(const std::string& gpu,
                                                 const std::vector<GpuPair>& pairs) noexcept {
    const auto pair =
        std::find_if(pairs.begin(), pairs.end(), [&](const GpuPair& each) { return each.from == gpu; });
    return pair == pairs.end() ? gpu : pair->to;
}

} // namespace gpu_sleep
