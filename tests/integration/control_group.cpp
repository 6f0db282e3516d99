// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The files of control groups.

#include "control_group.hpp"

#include "support/files_of.hpp"
#include "support/process.hpp"

#include <fmt/format.h>

namespace gpu_sleep::test {

namespace fs = std::filesystem;

OwnGroup::OwnGroup(const std::string& controller, const char* in_1, const char* in_2) {
    std::ifstream membership("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(membership, line);) {
        const auto own = fs::path(line.substr(line.rfind(':') + 1)).relative_path();
        const bool is_version_1 = line.find(':' + controller + ':') != std::string::npos;
        if (!is_version_1 && !line.starts_with("0::")) continue;
        for (const std::string_view mount :
             {std::string_view(controller), std::string_view("unified"), std::string_view(".")}) {
            const auto path = fs::path("/sys/fs/cgroup") / mount / own /
                              fmt::format("gpu-sleep-{}-{}", controller, ::getpid());
            std::error_code failure;
            if (!fs::create_directory(path, failure)) continue;
            is_version_2_ = fs::exists(path / in_2, failure);
            if (is_version_2_ || fs::exists(path / in_1, failure)) {
                path_ = path;
                break;
            }
            fs::remove(path, failure);
        }
    }
}

OwnGroup::~OwnGroup() {
    if (path_.empty()) return;
    std::ifstream members(path_ / "cgroup.procs");
    for (std::string member; std::getline(members, member);)
        std::ofstream(path_.parent_path() / "cgroup.procs") << member << std::flush;
    ::rmdir(path_.c_str());
}

bool OwnGroup::write(const char* in_1, const char* in_2, const std::string& text) const {
    std::ofstream stream(path_ / (is_version_2_ ? in_2 : in_1));
    stream << text << std::flush;
    return stream.good();
}

std::string OwnGroup::read(const char* in_1, const char* in_2) const {
    return content_of(path_ / (is_version_2_ ? in_2 : in_1));
}

void OwnGroup::take(pid_t process) const {
    REQUIRE(write("cgroup.procs", "cgroup.procs", std::to_string(process)));
}

void Freezer::freeze() const {
    REQUIRE(write("freezer.state", "cgroup.freeze", is_version_2_ ? "1" : "FROZEN"));
    REQUIRE(becomes_true([this] {
        const auto state = read("freezer.state", "cgroup.events");
        return is_version_2_ ? state.find("frozen 1") != std::string::npos : state == "FROZEN\n";
    }));
}

} // namespace gpu_sleep::test
