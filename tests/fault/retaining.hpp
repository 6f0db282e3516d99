// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeps of an engine that retains contents past a wake, and what they cost.

#pragma once

#include "support/engine_fixture.hpp"

#include <ostream>

namespace gpu_sleep::test {

/// What a sleep kept, stored and copied, on all devices.
struct Costs {
    Bytes kept = 0, stored = 0, copied = 0;
    friend bool operator==(const Costs&, const Costs&) = default;
    friend std::ostream& operator<<(std::ostream& out, const Costs& costs) {
        return out << costs.kept << " kept, " << costs.stored << " stored, " << costs.copied << " copied";
    }
};

/// Falls asleep, which must not fail.
inline Costs sleep_at(EngineFixture& fixture, const model::SleepRequest& request = level(1)) {
    Costs costs;
    for (const auto& device : fixture.slept(request).devices) {
        costs.kept += device.kept;
        costs.stored += device.stored;
        costs.copied += device.copied;
    }
    return costs;
}

} // namespace gpu_sleep::test
