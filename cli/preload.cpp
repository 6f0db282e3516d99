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
constexpr std::string_view k_audit = "libgpu-sleep-audit.so";
constexpr std::string_view k_login = "libgpu-sleep-login.so";
/// From the directory of the commands: as installed, as built, and as pip installs it.
constexpr std::array k_places = {GPU_SLEEP_LIBRARIES_FROM_COMMANDS, "../lib", "../libexec/gpu-sleep"};

bool is_library(std::string_view file, std::string_view library) {
    file.remove_prefix(file.rfind('/') + 1); // npos + 1 is 0
    return file == library || file.starts_with(std::string(library) + ".");
}

Result<std::string> find_library(const std::string& directory, std::string_view library) {
    for (const auto* place : k_places) {
        std::error_code failure;
        const auto libraries = fs::canonical(fs::path(directory) / place, failure);
        const auto file = libraries / library;
        if (failure || !fs::exists(file, failure)) continue;
        // The loader splits at spaces and colons, and replaces what begins with a dollar sign.
        if (const auto at = file.native().find_first_of(" :\t\n$"); at != std::string::npos)
            return make_error(ErrorCode::invalid_argument,
                              "the agent cannot be loaded from {}: there is a '{}' in its path, which the "
                              "loader does not accept; install gpu-sleep elsewhere",
                              file.native(), file.native()[at]);
        return file.native();
    }
    return make_error(ErrorCode::io_failed, "{} is missing: it should be in {}", library,
                      (fs::path(directory) / k_places.front()).lexically_normal().native());
}

/// The list `before`, split at any of `separators`, behind `file`, which may be empty, and without the
/// libraries that `is_ours` means.
template <class IsOurs>
std::string put_first(const std::string& file, IsOurs&& is_ours, std::string_view before,
                      const char* separators) {
    auto value = file;
    while (!before.empty()) {
        const auto end = std::min(before.find_first_of(separators), before.size());
        const auto entry = before.substr(0, end);
        if (!entry.empty() && !is_ours(entry)) value.append(value.empty() ? "" : ":").append(entry);
        before.remove_prefix(std::min(end + 1, before.size()));
    }
    return value;
}

constexpr const char* k_preload_separators = ": \t\n";

bool is_agent(std::string_view entry) {
    return is_library(entry, k_agent) || is_library(entry, k_login);
}

} // namespace

Result<std::string> find_agent(const std::string& directory) {
    return find_library(directory, k_agent);
}

Result<std::string> find_login(const std::string& directory) {
    auto found = find_library(directory, k_login);
    // Shells are to read it between quotation marks.
    if (found && found->find_first_of("'\"\\!") != std::string::npos)
        return make_error(ErrorCode::invalid_argument,
                          "the agent cannot be put into an environment from {}: there is a quotation mark, a "
                          "backslash or an exclamation mark in its path; install gpu-sleep elsewhere",
                          *found);
    return found;
}

Result<std::string> find_audit(const std::string& directory) {
    return find_library(directory, k_audit);
}

Result<void> check_open_to_all(const std::string& library) {
    for (fs::path path = library;; path = path.parent_path()) {
        std::error_code failure;
        const auto needed = path == library ? fs::perms::others_read : fs::perms::others_exec;
        if ((fs::status(path, failure).permissions() & needed) == fs::perms::none || failure)
            return make_error(ErrorCode::invalid_argument,
                              "other users cannot load the agent, because they may not {} {}; install "
                              "gpu-sleep where all can read it, such as /usr/local",
                              path == library ? "read" : "enter", path.native());
        if (path == path.parent_path()) return {};
    }
}

std::string with_agent(const std::string& agent, std::string_view before) {
    return put_first(agent, is_agent, before, k_preload_separators);
}

std::string without_agent(std::string_view before) {
    return put_first({}, is_agent, before, k_preload_separators);
}

std::string with_audit(const std::string& audit, std::string_view before) {
    return put_first(
        audit, [](std::string_view entry) { return is_library(entry, k_audit); }, before, ":");
}

} // namespace gpu_sleep::cli
