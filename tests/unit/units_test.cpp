// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Numbers with units: read and shown.

#include "base/units.hpp"

#include "support/catch.hpp"

using namespace std::chrono_literals;
using gpu_sleep::format_bytes;
using gpu_sleep::format_seconds;
using gpu_sleep::parse_bytes;
using gpu_sleep::parse_duration;

TEST_CASE("Units: durations are read with their units", "[units]") {
    CHECK(*parse_duration("250ms") == 250ms);
    CHECK(*parse_duration("0") == 0ms);
    CHECK(*parse_duration("15m") == 15min);
    CHECK(*parse_duration("1.5h") == 90min);
    for (const auto* bad : {"", "m", "-1s", "1x", "1s2", "nan", "inf", "1e300h", "s1", "1  s", "30", "1.5"})
        CHECK_FALSE(parse_duration(bad));
}

TEST_CASE("Units: sizes are read with binary and decimal units", "[units]") {
    CHECK(*parse_bytes("4096B") == 4096);
    CHECK(*parse_bytes("0") == 0);
    CHECK(*parse_bytes("40GiB") == 40 * gpu_sleep::k_gib);
    CHECK(*parse_bytes("40G") == 40 * gpu_sleep::k_gib);
    CHECK(*parse_bytes("1.5 GB") == 1'500'000'000);
    for (const auto* bad : {"", "GiB", "-1", "1XiB", "1e40T", "0x10", "4096"}) CHECK_FALSE(parse_bytes(bad));
}

TEST_CASE("Units: figures are shown as a person writes them", "[units]") {
    CHECK(format_bytes(0) == "0 B");
    CHECK(format_bytes(1023) == "1023 B");
    CHECK(format_bytes(2 * gpu_sleep::k_mib) == "2.00 MiB");
    CHECK(format_bytes(gpu_sleep::k_gib - 1) == "1.00 GiB");
    CHECK(format_bytes(24 * gpu_sleep::k_gib) == "24.0 GiB");
    CHECK(format_seconds(0.0000012) == "1 us");
    CHECK(format_seconds(0.0123) == "12.3 ms");
    CHECK(format_seconds(0.29) == "0.29 s");
    CHECK(format_seconds(125) == "2 min 5 s");
    CHECK(format_seconds(7500) == "2 h 5 min");
}
