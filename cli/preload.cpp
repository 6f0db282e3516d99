// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Paths of the agent.

#include "cli/preload.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

namespace gpu_sleep::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view k_agent = "libgpu-sleep-agent.so";
/// From the directory of the commands: as installed, and as built.
constexpr std::array k_places = {GPU_SLEEP_LIBRARIES_FROM_COMMANDS, "../lib"};

bool is_agent(std::string_view file) {
    const auto slash = file.rfind('/');
    if (slash != std::string_view::npos) file.remove_prefix(slash + 1);
    return file == k_agent || file.starts_with(std::string(k_agent) + ".");
}

} // namespace

Result<std::string> find_agent(const std::string& directory) {
    for (const auto* place : k_places) {
        std::error_code failure;
        const auto libraries = fs::canonical(fs::path(directory) / place, failure);
        const auto agent = libraries / k_agent;
        if (failure || !fs::exists(agent, failure)) continue;
        // The loader splits at spaces and colons, and replaces what begins with a dollar sign.
        if (const auto at = agent.native().find_first_of(" :\t\n$"); at != std::string::npos)
            return make_error(
                ErrorCode::invalid_argument,
                "the agent cannot be loaded from {}: there is a '{}' in its path, which the loader "
                "cannot take; install gpu-sleep elsewhere",
                agent.native(), agent.native()[at]);
        return agent.native();
    }
    return make_error(ErrorCode::io_failed, "{} is missing: it should be in {}", k_agent,
                      (fs::path(directory) / k_places.front()).lexically_normal().native());
}

std::string with_agent(const std::string& agent, std::string_view before) {
    auto value = agent;
    while (!before.empty()) {
        const auto end = std::min(before.find_first_of(": \t\n"), before.size());
        const auto entry = before.substr(0, end);
        if (!entry.empty() && !is_agent(entry)) value.append(":").append(entry);
        before.remove_prefix(std::min(end + 1, before.size()));
    }
    return value;
}

} // namespace gpu_sleep::cli
