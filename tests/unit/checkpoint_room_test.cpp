// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a process needs to come back, by what its checkpoint made free.

#include "checkpoint/room.hpp"
#include "support/catch.hpp"

namespace gpu_sleep::checkpoint {

TEST_CASE("Checkpoint room: one without an agent needs what became free, or what it had", "[checkpoint]") {
    CHECK(need_of_all(14 * k_mib, 20 * k_mib) == 20 * k_mib);
    CHECK(need_of_all(14 * k_mib, 14 * k_mib) == 14 * k_mib); // it may have had all of the GPU
    CHECK(need_of_all(13 * k_mib, 7 * k_mib) == 29 * k_mib);  // others have taken some meanwhile
    CHECK(need_of_all(0, 0) == 0);
    CHECK(need_of_all({}, 40 * k_mib) == 40 * k_mib);
    CHECK(need_of_all({}, 16 * k_mib) == 0);
}

TEST_CASE("Checkpoint room: one with an agent needs its rest, and the larger of what wakes and what is not "
          "counted",
          "[checkpoint]") {
    const auto need = [](Bytes used, Bytes freed, Bytes waking) {
        return need_of(rest_of(used, freed), waking);
    };
    CHECK(need(8 * k_mib, 8 * k_mib, 6 * k_mib) == 24 * k_mib);
    CHECK(need(8 * k_mib, 38 * k_mib, 6 * k_mib) == 38 * k_mib);
    CHECK(need(8 * k_mib, k_gib, 6 * k_mib) == 264 * k_mib); // most of that was somebody else's
    CHECK(need(8 * k_mib, 0, 0) == 24 * k_mib);              // somebody else took as much
    CHECK(need(8 * k_mib, 8 * k_mib, k_gib) == k_gib + 8 * k_mib);
    CHECK(rest_of(0, 5 * k_mib).bytes == 5 * k_mib);
    CHECK(rest_of(0, 0).bytes == 2 * k_gib); // nothing is known of it
}

} // namespace gpu_sleep::checkpoint
