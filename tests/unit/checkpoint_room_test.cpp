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

TEST_CASE("Checkpoint room: what others have set aside is not free, and four come back at a time",
          "[checkpoint]") {
    CHECK(left_to_others(3, 5 * k_gib) == 5 * k_gib);
    CHECK_FALSE(left_to_others(4, 0));
    const BytesByGpu others{{"GPU-1", 5}, {"GPU-2", 0}};
    CHECK(free_besides(others, "GPU-1", 8) == 3);
    CHECK(free_besides(others, "GPU-1", 3) == 0);
    CHECK(free_besides(others, "GPU-3", 8) == 8);
    const BytesByGpu room{{"GPU-1", 2}};
    CHECK(*judge_count(room, true, others));
    CHECK_FALSE(*judge_count(room, false, others));
    const auto too_little = make_error(ErrorCode::out_of_device_memory, "too little");
    const auto waits = judge_count(too_little, false, others); // until they are back
    REQUIRE(waits);
    CHECK_FALSE(*waits);
    CHECK_FALSE(judge_count(too_little, false, {{"GPU-2", 0}}));
    CHECK_FALSE(judge_count(make_error(ErrorCode::driver_failed, "not known"), false, others));
}

TEST_CASE("Checkpoint room: who counts or has room shares a GPU's lock", "[checkpoint]") {
    CHECK(Claim().hold() == Hold::none);
    CHECK(Claim{.is_counting = true}.hold() == Hold::shared);
    CHECK(Claim{.room = 1}.hold() == Hold::shared);
    CHECK(Claim{.has_lock = true, .room = 1}.hold() == Hold::alone);
}

} // namespace gpu_sleep::checkpoint
