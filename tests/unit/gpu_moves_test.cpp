// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From FROM=TO to the list that the driver takes.

#include "control/gpus.hpp"

#include "support/catch.hpp"

namespace gpu_sleep::control {
namespace {

std::vector<driver::Gpu> machine(int count) {
    std::vector<driver::Gpu> gpus;
    for (int i = 0; i < count; ++i) {
        driver::Gpu gpu;
        gpu.index = i;
        gpu.uuid = std::string("GPU-") + static_cast<char>('a' + i);
        gpu.name = "NVIDIA H200";
        gpu.total = 140 * k_gib;
        gpus.push_back(gpu);
    }
    return gpus;
}

/// Why `moves` are refused.
std::string refusal(const std::vector<GpuPair>& moves, const std::vector<driver::Gpu>& gpus,
                    const client::BytesByGpu& needs = {}) {
    const auto pairs = test::error_of(plan_gpu_moves(moves, gpus, needs));
    CHECK(pairs.code == ErrorCode::invalid_argument);
    return pairs.message;
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("GPU moves: FROM=TO", "[gpu_moves]") {
    const auto move = test::need(parse_gpu_move("0=GPU-b"));
    CHECK(move.from == "0");
    CHECK(move.to == "GPU-b");
    for (const char* const text : {"", "=", "0", "0=", "=1", "0=1=2"}) CHECK_FALSE(parse_gpu_move(text));
}

TEST_CASE("GPU moves: the list has every GPU once on each side", "[gpu_moves]") {
    const client::BytesByGpu on_first{{"GPU-a", k_gib}};
    auto pairs = plan_gpu_moves({{"0", "1"}}, machine(2), on_first);
    REQUIRE(pairs);
    CHECK(*pairs == std::vector<GpuPair>{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}});
    pairs = plan_gpu_moves({{"GPU-a", "2"}}, machine(3), on_first);
    REQUIRE(pairs);
    CHECK(*pairs == std::vector<GpuPair>{{"GPU-a", "GPU-c"}, {"GPU-b", "GPU-b"}, {"GPU-c", "GPU-a"}});
    // A chain: the last one, of which the process has nothing, takes the place of the first.
    pairs = plan_gpu_moves({{"0", "1"}, {"1", "2"}}, machine(3), {});
    REQUIRE(pairs);
    CHECK(*pairs == std::vector<GpuPair>{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-c"}, {"GPU-c", "GPU-a"}});
    pairs = plan_gpu_moves({{"0", "1"}, {"1", "0"}}, machine(2), {{"GPU-a", 1}, {"GPU-b", 1}});
    REQUIRE(pairs);
    CHECK(*pairs == std::vector<GpuPair>{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}});
    pairs = plan_gpu_moves({{"0", "0"}}, machine(1), on_first);
    REQUIRE(pairs);
    CHECK(*pairs == std::vector<GpuPair>{{"GPU-a", "GPU-a"}});
}

TEST_CASE("GPU moves: what cannot be meant is refused", "[gpu_moves]") {
    CHECK(has(refusal({{"0", "2"}}, machine(2)), "there is no GPU 2; this machine has: 0 (GPU-"));
    CHECK(has(refusal({{"GPU-x", "1"}}, machine(2)), "there is no GPU GPU-x"));
    CHECK(has(refusal({{"0", "1"}, {"0", "2"}}, machine(3)), "GPU 0 is named twice"));
    CHECK(has(refusal({{"0", "2"}, {"1", "2"}}, machine(3)), "GPU 2 is named twice"));
    auto mixed = machine(2);
    mixed[1].name = "NVIDIA A100";
    CHECK(has(refusal({{"0", "1"}}, mixed), "of the same kind: GPU 0 is NVIDIA H200"));
    mixed = machine(2);
    mixed[1].total = 80 * k_gib;
    CHECK(has(refusal({{"0", "1"}}, mixed), "of the same kind"));
    CHECK(has(refusal({{"1", "0"}}, machine(2), {{"GPU-a", k_gib}}), "it had nothing on GPU 1"));
    CHECK(has(refusal({{"0", "1"}}, machine(2), {{"GPU-a", 1}, {"GPU-b", 1}}),
              "it also had memory on GPU 1: say where that goes"));
}

TEST_CASE("GPU moves: what is needed is looked for where it goes", "[gpu_moves]") {
    const std::vector<GpuPair> pairs{{"GPU-a", "GPU-b"}, {"GPU-b", "GPU-a"}};
    const client::BytesByGpu needs{{"GPU-a", 1}, {"GPU-b", 2}, {"GPU-c", 3}};
    CHECK(moved(needs, pairs) == client::BytesByGpu{{"GPU-b", 1}, {"GPU-a", 2}, {"GPU-c", 3}});
    CHECK(moved(needs, {}) == needs);
}

TEST_CASE("GPUs: a program sees those of CUDA_VISIBLE_DEVICES, up to the first that is none", "[gpu_moves]") {
    const auto seen = [](const std::vector<driver::Gpu>& all, const char* names, const char* order = nullptr,
                         bool are_numbered = true) {
        const auto found = visible_of(all, are_numbered, names, order);
        if (!found) return std::string(traits(found.error().code).name);
        std::string indices;
        for (const auto& gpu : *found) indices += std::to_string(gpu.index);
        return indices;
    };
    const auto four = machine(4);
    CHECK(seen(four, nullptr) == "0123");
    CHECK(seen(four, "2, 0") == "20");
    CHECK(seen(four, "GPU-b,3") == "13");
    CHECK(seen(four, "1,7,0") == "1");
    CHECK(seen(four, "1,,0") == "1");
    for (const char* const none : {"", "-1", "7", "GPU-", "G", "MIG-a"})
        CHECK(seen(four, none) == "invalid_argument");
    CHECK(seen({}, nullptr) == "no_driver");
    CHECK(seen(four, "1", nullptr, false) == "invalid_argument");
    CHECK(seen(four, "GPU-b", nullptr, false) == "1");
    auto mixed = four;
    mixed.front().name = "NVIDIA T4";
    CHECK(seen(mixed, "1") == "invalid_argument");
    CHECK(seen(mixed, "1", "PCI_BUS_ID") == "1");
    CHECK(seen(mixed, "GPU-b") == "1");
    CHECK(seen(mixed, nullptr) == "0123");
}

} // namespace gpu_sleep::control
