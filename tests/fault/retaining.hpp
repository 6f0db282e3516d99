// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeps of an engine that retains contents past a wake, and what they cost.

#pragma once

#include "support/engine_fixture.hpp"

#include <ostream>

namespace gpu_sleep::test {

/// Two devices; `most` bytes are retained.
[[nodiscard]] inline sleep::Transactions::Options retaining(Bytes most = std::numeric_limits<Bytes>::max()) {
    sleep::Transactions::Options options{2, 0};
    options.retained = most;
    return options;
}

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
    model::Report report;
    REQUIRE(fixture.sleep(request, &report));
    Costs costs;
    for (const auto& device : report.devices) {
        costs.kept += device.kept;
        costs.stored += device.stored;
        costs.copied += device.copied;
    }
    return costs;
}

/// Wakes, and looks at every byte.
inline void wake(EngineFixture& fixture) {
    fixture.wake_whole();
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

} // namespace gpu_sleep::test
