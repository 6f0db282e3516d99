// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The control group's files.

#include "freezer.hpp"

#include "support/catch.hpp"
#include "support/files_of.hpp"
#include "support/process.hpp"

#include <unistd.h>

#include <fstream>
#include <string>
#include <system_error>

namespace gpu_sleep::test {
namespace {

const std::filesystem::path k_groups = "/sys/fs/cgroup";

void write_to(const std::filesystem::path& file, const std::string& text) {
    std::ofstream stream(file);
    stream << text << std::flush;
    INFO(file.string());
    REQUIRE(stream.good());
}

} // namespace

Freezer::Freezer() {
    std::ifstream membership("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(membership, line);) {
        const auto own = std::filesystem::path(line.substr(line.rfind(':') + 1)).relative_path();
        const bool is_version_1 = line.find(":freezer:") != std::string::npos;
        if (!is_version_1 && !line.starts_with("0::")) continue;
        for (const auto* mount : {"freezer", "unified", "."}) {
            const auto path = k_groups / mount / own / ("gpu-sleep-freezer-" + std::to_string(::getpid()));
            std::error_code failure;
            if (!std::filesystem::create_directory(path, failure)) continue;
            is_version_2_ = std::filesystem::exists(path / "cgroup.freeze", failure);
            if (is_version_2_ || std::filesystem::exists(path / "freezer.state", failure)) {
                path_ = path;
                break;
            }
            std::filesystem::remove(path, failure);
        }
    }
}

Freezer::~Freezer() {
    if (path_.empty()) return;
    std::ofstream(path_ / (is_version_2_ ? "cgroup.freeze" : "freezer.state"))
        << (is_version_2_ ? "0" : "THAWED") << std::flush;
    std::ifstream members(path_ / "cgroup.procs");
    for (std::string member; std::getline(members, member);)
        std::ofstream(path_.parent_path() / "cgroup.procs") << member << std::flush;
    ::rmdir(path_.c_str());
}

void Freezer::take(pid_t process) const {
    write_to(path_ / "cgroup.procs", std::to_string(process));
}

void Freezer::freeze() const {
    write_to(path_ / (is_version_2_ ? "cgroup.freeze" : "freezer.state"), is_version_2_ ? "1" : "FROZEN");
    REQUIRE(becomes_true([this] {
        return is_version_2_ ? content_of(path_ / "cgroup.events").find("frozen 1") != std::string::npos
                             : content_of(path_ / "freezer.state") == "FROZEN\n";
    }));
}

void Freezer::thaw() const {
    write_to(path_ / (is_version_2_ ? "cgroup.freeze" : "freezer.state"), is_version_2_ ? "0" : "THAWED");
}

} // namespace gpu_sleep::test
