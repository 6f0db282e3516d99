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

inline Costs costs_of(const model::Report& report) {
    Costs costs;
    for (const auto& device : report.devices) {
        costs.kept += device.kept;
        costs.stored += device.stored;
        costs.copied += device.copied;
    }
    return costs;
}

/// Falls asleep, which must not fail.
inline Costs sleep_at(EngineFixture& fixture, const model::SleepRequest& request = level(1)) {
    return costs_of(fixture.slept(request));
}
/// The same, and wakes whole.
inline Costs cycle(EngineFixture& fixture, const model::SleepRequest& request = level(1)) {
    return costs_of(fixture.cycle(request));
}

} // namespace gpu_sleep::test
