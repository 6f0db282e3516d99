// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The control group's files.

#include "control_group.hpp"

#include "support/catch.hpp"

#include <unistd.h>

#include <fstream>
#include <string>
#include <system_error>

namespace gpu_sleep::test {
namespace {

namespace fs = std::filesystem;

const fs::path k_mount = "/sys/fs/cgroup";

void write(const fs::path& file, const std::string& text) {
    std::ofstream stream(file);
    stream << text << std::flush;
    INFO(file.string());
    REQUIRE(stream.good());
}

/// Where this process's memory is counted; empty where that cannot be found.
fs::path own_group(bool& is_version_2) {
    std::ifstream membership("/proc/self/cgroup");
    fs::path found;
    for (std::string line; std::getline(membership, line);) {
        const auto name = line.substr(line.rfind(':') + 1);
        const bool is_version_1_memory = line.find(":memory:") != std::string::npos;
        if (is_version_1_memory) found = k_mount / "memory" / fs::path(name).relative_path();
        if (is_version_1_memory || !line.starts_with("0::") || !found.empty()) continue;
        found = k_mount / fs::path(name).relative_path();
        is_version_2 = true;
    }
    if (found.string().starts_with((k_mount / "memory").string())) is_version_2 = false;
    return found;
}

} // namespace

ControlGroup::ControlGroup() {
    const auto path = own_group(is_version_2_) / ("gpu-sleep-test-" + std::to_string(::getpid()));
    std::error_code failure;
    if (!fs::create_directory(path, failure)) return;
    const auto* limit = is_version_2_ ? "memory.max" : "memory.limit_in_bytes";
    if (fs::exists(path / limit, failure))
        path_ = path;
    else
        fs::remove(path, failure);
}

ControlGroup::~ControlGroup() {
    if (path_.empty()) return;
    std::ifstream members(path_ / "cgroup.procs");
    for (std::string member; std::getline(members, member);)
        std::ofstream(path_.parent_path() / "cgroup.procs") << member << std::flush;
    ::rmdir(path_.c_str());
}

void ControlGroup::take(pid_t process) const {
    write(path_ / "cgroup.procs", std::to_string(process));
}

void ControlGroup::limit(std::size_t bytes) const {
    write(path_ / (is_version_2_ ? "memory.max" : "memory.limit_in_bytes"), std::to_string(bytes));
}

std::size_t ControlGroup::usage() const {
    std::size_t bytes = 0;
    std::ifstream stream(path_ / (is_version_2_ ? "memory.current" : "memory.usage_in_bytes"));
    stream >> bytes;
    REQUIRE(stream);
    return bytes;
}

} // namespace gpu_sleep::test
