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

} // namespace gpu_sleep::test
