// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The libraries that use the GPU without calls of the CUDA driver, and which of them a process has loaded.
// The agent reads the process's mappings and passes them here.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::model {

/// A loaded library, or a called entry point of the driver, whose use of the GPU the agent cannot see and the
/// gate cannot hold back.
struct UnseenUse {
    std::string_view use; ///< such as "video decoding"; static
    std::string name;     ///< the library's file, without directories; or the entry point
    friend bool operator==(const UnseenUse&, const UnseenUse&) = default;
};

/// Those among `mappings`, each once, in the order of the table and then of the addresses.
/// Source: proc_pid_maps(5).
[[nodiscard]] std::vector<UnseenUse> unseen_libraries(std::string_view mappings);

/// Why the driver's checkpoint would harm a process with these uses; empty: none is known to be harmed.
[[nodiscard]] std::string why_not_restored(std::span<const UnseenUse> uses);

/// "video decoding (libnvcuvid.so.1), OpenGL or Vulkan (libGLX_nvidia.so.0, libnvidia-glcore.so.1)". Names a
/// dozen at most.
[[nodiscard]] std::string list_of(std::span<const UnseenUse> uses);

} // namespace gpu_sleep::model
