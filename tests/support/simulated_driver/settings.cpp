// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading GPU_SLEEP_SIM_*.

#include "support/simulated_driver/settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace gpu_sleep::sim {
namespace {

std::uint64_t number_or(const char* name, std::uint64_t fallback) {
    const auto text = environment(name);
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    return failure == std::errc{} && end == text.data() + text.size() ? value : fallback;
}

Settings read_settings() {
    Settings read;
    const auto devices = number_or("GPU_SLEEP_SIM_DEVICES", static_cast<std::uint64_t>(read.devices));
    read.devices = static_cast<int>(std::min<std::uint64_t>(devices, k_max_devices));
    read.memory_bytes = number_or("GPU_SLEEP_SIM_MEMORY", read.memory_bytes);
    read.context_bytes = number_or("GPU_SLEEP_SIM_CONTEXT_BYTES", read.context_bytes);
    read.stream_bytes = number_or("GPU_SLEEP_SIM_STREAM_BYTES", read.stream_bytes);
    read.state_file = environment("GPU_SLEEP_SIM_STATE");
    read.fails_checkpoints = environment("GPU_SLEEP_SIM_CHECKPOINT") == "fails";
    const auto sharing = environment("GPU_SLEEP_SIM_SHARING");
    read.has_parts = sharing == "mig";
    read.is_mps_client = sharing == "mps";
    read.maps_host_memory = environment("GPU_SLEEP_SIM_HOST_NUMA") != "0";
    const auto poison = environment("GPU_SLEEP_SIM_POISON");
    if (poison == "0") read.poison = Poison::none;
    if (poison == "1") read.poison = Poison::all;
    return read;
}

} // namespace

const Settings& settings() {
    static const Settings& read = *new Settings(read_settings());
    return read;
}

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    while (!text.empty()) {
        const auto end = std::min(text.find(separator), text.size());
        parts.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return parts;
}

std::string environment(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "";
}

} // namespace gpu_sleep::sim
