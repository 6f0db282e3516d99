// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the environment says about the simulated machine.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::sim {

/// Where fresh memory shows a pattern instead of zeros.
enum class Poison { none, low_memory, all };

struct Settings {
    int devices = 2;
    std::uint64_t memory_bytes = std::uint64_t{8} << 30;
    std::uint64_t context_bytes = std::uint64_t{8} << 20;
    std::uint64_t stream_bytes = 0;
    std::string state_file; ///< empty: the devices are this process's own
    bool fails_checkpoints = false;
    bool has_parts = false;     ///< each device is a part of a GPU (MIG)
    bool is_mps_client = false; ///< the process
    bool maps_host_memory = true;
    Poison poison = Poison::low_memory;
};

inline constexpr int k_max_devices = 16;

/// Read from GPU_SLEEP_SIM_* once, see control.h; thread-safe. What cannot be read has its default.
[[nodiscard]] const Settings& settings();

/// The parts of `text` between separators; none for an empty text.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char separator);

/// The value of an environment variable, or an empty string.
[[nodiscard]] std::string environment(const char* name);

} // namespace gpu_sleep::sim
