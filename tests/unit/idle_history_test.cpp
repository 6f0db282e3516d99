// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What passes over processes without an agent conclude from what they see.

#include "cli/idle_history.hpp"

#include "support/catch.hpp"

#include <unistd.h>

#include <ctime>
#include <optional>
#include <string>
#include <vector>

using namespace gpu_sleep;
using cli::Glance;
using cli::Sighting;

namespace {

constexpr ProcessIdentity k_process{42, 1000};

} // namespace

TEST_CASE("Idle history: the first look knows no more than is remembered", "[idle_history]") {
    CHECK(cli::after({}, k_process, {100, 5, {}, 14}).idle_since == 86);
    CHECK(cli::after({}, k_process, {100, 5, 3, 14}).idle_since == 97);
    CHECK(cli::after({}, k_process, {100, 5, {}, 0}).idle_since == 100);
}

TEST_CASE("Idle history: time adds up while nothing is seen", "[idle_history]") {
    const Sighting before{k_process, 50, 90, 5};
    CHECK(cli::after(before, k_process, {100, 5, {}, 14}).idle_since == 50);
    CHECK(cli::after(before, k_process, {100, 9, {}, 14}).idle_since == 50); // all of it was watched
    CHECK(cli::after(before, k_process, {190, 7, {}, 14}).idle_since == 50); // a fiftieth
    CHECK(cli::after(before, k_process, {190, 7.1, {}, 14}).idle_since == 176);
    CHECK(cli::after(before, k_process, {190, 5, 0.1, 14}).idle_since == 189.9);
    CHECK(cli::after(before, {42, 1001}, {190, 5, {}, 14}).idle_since == 176); // another process
}

TEST_CASE("Idle history: notes come back from their text, and none from half of it", "[idle_history]") {
    const std::vector<Sighting> all{{k_process, 50.5, 90.25, 5}, {{43, 7}, 1, 2, 3}};
    const auto text = cli::to_text(all);
    CHECK(cli::parse_sightings(text) == all);
    CHECK(cli::parse_sightings(cli::to_text({})).empty());
    for (std::size_t length = 0; length + 1 < text.size(); ++length)
        CHECK(cli::parse_sightings(text.substr(0, length)).empty());
    CHECK(cli::parse_sightings("gpu-sleep sightings 2\nend\n").empty());
}

TEST_CASE("Idle history: the processor's time is that of the process", "[idle_history]") {
    const auto before = cli::processor_time_of(::getpid());
    REQUIRE(before);
    for (const auto start = std::clock(); std::clock() < start + CLOCKS_PER_SEC / 10;) {
    }
    const auto now = cli::processor_time_of(::getpid());
    REQUIRE(now);
    CHECK(*now > *before);
    CHECK(*now < *before + 60);
    CHECK_FALSE(cli::processor_time_of(0x7FFFFFF0));
}
