// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The host program in a mount namespace of its own, with an empty /tmp.

#pragma once

#include "support/catch.hpp"
#include "support/process.hpp"

namespace gpu_sleep::test {

/// `script` in a mount namespace with an empty /tmp, as its root; $0 is the host program.
inline Launch with_empty_tmp(const std::string& script) {
    return {{"unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
             mount_empty_tmp() + " && " + script, command_file("integration_host")}};
}

/// Whether a test may make namespaces; else it is skipped.
inline bool has_empty_tmp() {
    if (run(with_empty_tmp("true")).status == 0) return true;
    return skip_without_right("make namespaces"), false;
}

/// Whether this is a run of the test case in namespaces of its own, where it sees no processes but its own.
/// Else runs the test case there.
inline bool is_apart() {
    constexpr const char* k_inside = "GPU_SLEEP_TEST_APART";
    if (std::getenv(k_inside) != nullptr) return true;
    Launch launch{{"unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc",
                   "--mount", "sh", "-c", mount_empty_tmp() + " && \"$@\"", "sh"},
                  {std::string(k_inside) + "=1"}};
    auto probe = launch;
    probe.command.emplace_back("true");
    if (run(probe).status != 0) return skip_without_right("make namespaces"), false;
    launch.command.push_back(std::filesystem::read_symlink("/proc/self/exe"));
    const auto name = Catch::getResultCapture().getCurrentTestName();
    launch.command.push_back(name.substr(0, name.find(',')) + '*'); // a comma would separate two names
    const auto output = run(launch);
    INFO(output.out << output.err);
    CHECK(output.status == 0);
    CHECK_THAT(output.out, mentions("All tests passed"));
    return false;
}

} // namespace gpu_sleep::test
