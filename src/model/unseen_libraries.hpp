// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The libraries that use the GPU without calls of the CUDA driver, and which of them a process has loaded.
// The agent reads the process's mappings and passes them here.

#pragma once

#include <cstdint>
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

/// A mapping of a file: where it lies, from where in the file, and whether it may be executed there, as only
/// a loaded library may.
struct Mapping {
    std::uintptr_t begin = 0, end = 0, offset = 0;
    std::string_view file; ///< its path
    bool runs = false;
    [[nodiscard]] std::string_view name() const { return file.substr(file.rfind('/') + 1); }
    /// Whether the file is called `library`, with or without a version behind it.
    [[nodiscard]] bool is_of(std::string_view library) const;
};
/// Returns the mappings of files among the lines of `text`, into which they point. Source: proc_pid_maps(5).
[[nodiscard]] std::vector<Mapping> parse_mappings(std::string_view text);

inline constexpr std::string_view k_driver_library = "libcuda.so"; ///< the CUDA driver's

/// Finds such libraries among `mappings`, each once, in the order of the table and then of the addresses.
/// First a second copy of the CUDA driver, unless the audit library is there, which has the loader bind its
/// callers to the agent. Source: proc_pid_maps(5).
[[nodiscard]] std::vector<UnseenUse> unseen_libraries(std::string_view mappings);

/// Why the driver's checkpoint would harm a process with these uses; empty: none is known to be harmed.
[[nodiscard]] std::string why_not_restored(std::span<const UnseenUse> uses);

/// "video decoding (libnvcuvid.so.1), OpenGL or Vulkan (libGLX_nvidia.so.0, libnvidia-glcore.so.1)". Names a
/// dozen at most.
[[nodiscard]] std::string list_of(std::span<const UnseenUse> uses);

} // namespace gpu_sleep::model
