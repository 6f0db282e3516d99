// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs for the tests of policies, and what they say of themselves.

#pragma once

#include "support/catch.hpp"
#include "support/host.hpp"

#include <cstdlib>
#include <string>
#include <utility>

namespace gpu_sleep::test {

/// A program all of whose calls the agent sees.
inline Arguments captured(Arguments more = {}) {
    more.emplace_back("GPU_SLEEP_CAPTURE=1");
    return more;
}

inline Bytes bytes_held(const Host& host) {
    return std::stoull(host.report("host_bytes")) + std::stoull(host.report("retained_bytes"));
}

inline void become_idle(const Host& host, double seconds = 0.05) {
    REQUIRE(
        becomes_true([&] { return std::strtod(host.report("idle_seconds").c_str(), nullptr) > seconds; }));
}

} // namespace gpu_sleep::test
