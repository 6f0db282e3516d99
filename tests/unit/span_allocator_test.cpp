// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Dealing out spans of numbers.

#include "memory/heap.hpp"

#include "support/catch.hpp"

using gpu_sleep::Bytes;
using gpu_sleep::memory::SpanAllocator;

TEST_CASE("Span allocator: deals out everything and no more", "[span_allocator]") {
    SpanAllocator spans(4096, 512);
    CHECK_FALSE(spans.allocate(0));
    CHECK_FALSE(spans.allocate(4097));
    for (Bytes i = 0; i < 8; ++i) CHECK(*spans.allocate(1) == i * 512);
    CHECK_FALSE(spans.allocate(1));
    CHECK(spans.largest_free() == 0);
}

TEST_CASE("Span allocator: joins what is given back, and fits the tightest", "[span_allocator]") {
    SpanAllocator spans(10 * 512, 512);
    std::vector<Bytes> at;
    for (int i = 0; i < 10; ++i) at.push_back(*spans.allocate(512));
    CHECK(*spans.free(at[1]) == 512);
    CHECK(*spans.free(at[4]) == 512);
    CHECK(*spans.free(at[5]) == 512);
    CHECK(*spans.allocate(512) == at[1]); // the single one, not a part of the pair
    CHECK(*spans.allocate(1024) == at[4]);
    CHECK_FALSE(spans.free(at[5])); // now inside another
    CHECK(*spans.allocation_holding(at[5]) == at[4]);
    CHECK(*spans.allocated_at(at[4]) == 1024);
    CHECK_FALSE(spans.free(at[4] + 1));
}

TEST_CASE("Span allocator: random work never overlaps, and ends as it began", "[span_allocator]") {
    constexpr Bytes k_bytes = Bytes{1} << 20;
    SpanAllocator spans(k_bytes, 512);
    std::mt19937 random(7);
    std::vector<bool> used(k_bytes / 512);
    std::vector<std::pair<Bytes, Bytes>> live;
    for (int i = 0; i < 20'000; ++i) {
        if (live.empty() || random() % 2 == 0) {
            const Bytes bytes = 1 + random() % 20'000;
            const auto offset = spans.allocate(bytes);
            if (!offset) continue;
            const auto steps = (bytes + 511) / 512;
            for (Bytes s = 0; s < steps; ++s) {
                REQUIRE_FALSE(used[*offset / 512 + s]);
                used[*offset / 512 + s] = true;
            }
            live.emplace_back(*offset, steps);
        } else {
            const auto pick = random() % live.size();
            const auto [offset, steps] = live[pick];
            REQUIRE(*spans.free(offset) == steps * 512);
            for (Bytes s = 0; s < steps; ++s) used[offset / 512 + s] = false;
            live.erase(live.begin() + static_cast<std::ptrdiff_t>(pick));
        }
    }
    for (const auto& [offset, steps] : live) spans.free(offset);
    CHECK(spans.is_empty());
    CHECK(spans.largest_free() == k_bytes);
}
