// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The promises about memory, on one device: contents and spans.

#include "support/gpu.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_bytes = 64 * k_mib;

} // namespace

TEST_CASE("Level 1: memory is free while asleep, and contents come back", "[basic]") {
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_bytes);
    const TaggedMemory cache("kv_cache", k_bytes);
    const auto weights_contents = random_words(k_bytes, 1);
    const auto cache_contents = random_words(k_bytes, 2);
    weights.write(weights_contents);
    cache.write(cache_contents);
    const auto free_awake = gpu.free_bytes();

    REQUIRE(command("gpu-sleep") == 0);
    CHECK(gpu.free_bytes() >= free_awake + 2 * k_bytes * 9 / 10); // others come and go
    REQUIRE(command("gpu-wake", {"--tags", "kv_cache"}) == 0);
    CHECK(cache.read() == cache_contents);
    CHECK(gpu_sleep_asleep_bytes() == k_bytes);
    REQUIRE(command("gpu-wake") == 0);
    CHECK(weights.read() == weights_contents);
}

TEST_CASE("Level 2: contents are dropped, but for preserved spans", "[basic]") {
    constexpr Bytes k_span_offset = 5 * k_mib + 12;
    constexpr Bytes k_span_bytes = 3 * k_mib + 20;
    const Gpu gpu(0);
    const TaggedMemory weights("weights", k_bytes);
    const auto contents = random_words(k_bytes, 3);
    weights.write(contents);
    check(gpu_sleep_preserve(static_cast<std::byte*>(weights.pointer()) + k_span_offset, k_span_bytes));

    REQUIRE(command("gpu-sleep", {"--level", "2"}) == 0);
    REQUIRE(command("gpu-wake") == 0);
    Words expected(k_bytes / sizeof(std::uint32_t));
    constexpr auto k_first = k_span_offset / sizeof(std::uint32_t);
    std::copy_n(contents.begin() + k_first, k_span_bytes / sizeof(std::uint32_t), expected.begin() + k_first);
    CHECK(weights.read() == expected);
}
