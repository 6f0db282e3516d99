// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which libraries use the GPU past the CUDA driver's calls, and which of them a process has loaded. The agent
// reads the process's mappings; nothing here does.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::model {

/// A loaded library whose use of the GPU cannot be seen, so that no gate holds it back.
struct UnseenLibrary {
    std::string_view use; ///< such as "video decoding"; static
    std::string name;     ///< its file's, without directories
    friend bool operator==(const UnseenLibrary&, const UnseenLibrary&) = default;
};

/// Those among `mappings`, each once, in the order of the table and then of the addresses.
/// Source: proc_pid_maps(5).
[[nodiscard]] std::vector<UnseenLibrary> unseen_libraries(std::string_view mappings);

/// "video decoding (libnvcuvid.so.1), OpenGL or Vulkan (libGLX_nvidia.so.0, libnvidia-glcore.so.1)". Names a
/// dozen at most.
[[nodiscard]] std::string list_of(std::span<const UnseenLibrary> libraries);

} // namespace gpu_sleep::model
