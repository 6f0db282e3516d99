// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Whether a host program is as it was before what failed.

#pragma once

#include "support/catch.hpp"
#include "support/host.hpp"

namespace gpu_sleep::test {

/// The process is awake and whole, and can be put to sleep and woken.
inline void check_unharmed(Host& host) {
    CHECK(host.state() == "awake");
    CHECK(host.tell("check_all") == "intact");
    CHECK(host.command("gpu-sleep").status == 0);
    CHECK(host.command("gpu-wake").status == 0);
    CHECK(host.tell("check_all") == "intact");
    CHECK(host.tell("faults") == "0");
}

} // namespace gpu_sleep::test
