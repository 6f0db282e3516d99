// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What programs may rely on of a pool's figures, of what it gives back and of what it gives out again. Also
// run under gpu-run (driver_rules.py --under), whose pools keep the same rules: agent/intercepted/POOLS.md.

#include "stream_ordered.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

constexpr std::size_t k_mib = std::size_t{1} << 20;
constexpr std::size_t k_block = 32 * k_mib;
constexpr auto k_used = CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
constexpr auto k_used_high = CU_MEMPOOL_ATTR_USED_MEM_HIGH;
constexpr auto k_reserved = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
constexpr auto k_reserved_high = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;

void set_switch(CUmemoryPool pool, CUmemPool_attribute attribute, int value) {
    REQUIRE(cuMemPoolSetAttribute(pool, attribute, &value) == CUDA_SUCCESS);
}

void give(const std::vector<CUdeviceptr>& blocks, CUstream stream) {
    for (const auto block : blocks) REQUIRE(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
}

void synchronize(CUstream stream) {
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

/// What holds of the figures at any time; the peak of what is used is known.
void check_figures(CUmemoryPool pool, std::size_t used, std::size_t most_used) {
    CHECK(number(pool, k_used) == used);
    CHECK(number(pool, k_used_high) == most_used);
    CHECK(number(pool, k_reserved) >= used);
    CHECK(number(pool, k_reserved_high) >= std::max<std::size_t>(most_used, number(pool, k_reserved)));
}

/// Whether the pool has to reserve more for the block, which is freed again.
bool grows_for(CUmemoryPool pool, std::size_t bytes, CUstream stream) {
    const auto before = number(pool, k_reserved);
    const auto block = allocate_from(pool, bytes, stream);
    const bool grows = number(pool, k_reserved) > before;
    give({block}, stream);
    synchronize(stream);
    return grows;
}

} // namespace

TEST_CASE_METHOD(OnStream,
                 "Driver: a pool says what is used to the byte, what that takes, and the peaks of both",
                 "[driver_rules]") {
    for (auto* const pool : {default_pool(0), make_pool()}) {
        std::size_t used = 0;
        std::vector<CUdeviceptr> blocks;
        for (const auto bytes :
             {std::size_t{1}, std::size_t{1100}, k_granularity, k_granularity + 1, k_block + k_mib}) {
            blocks.push_back(allocate_from(pool, bytes, stream));
            used += bytes;
            check_figures(pool, used, used);
        }
        {
            const Gate gate(stream);
            give(blocks, stream);
            check_figures(pool, 0, used); // at once
            CHECK(number(pool, k_reserved) >= used);
        }
        synchronize(stream);
        check_figures(pool, 0, used);
        CHECK(number(pool, k_reserved) == 0);
        set(pool, k_used_high, 0);
        set(pool, k_reserved_high, 0);
        check_figures(pool, 0, 0);
        CHECK(number(pool, k_reserved_high) == 0);
        give({allocate_from(pool, 1100, stream)}, stream);
        check_figures(pool, 0, 1100);
        synchronize(stream);
    }
}

TEST_CASE_METHOD(OnStream, "Driver: a pool keeps no more than its threshold at a synchronise",
                 "[driver_rules]") {
    auto* const pool = make_pool();
    for (const std::size_t threshold : {std::size_t{0}, 100 * k_mib, k_all}) {
        set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold);
        std::vector<CUdeviceptr> blocks;
        for (int i = 0; i < 5; ++i) blocks.push_back(allocate_from(pool, k_block, stream));
        for (auto live = blocks.size(); live-- > 0; synchronize(stream)) {
            give({blocks[live]}, stream);
            const auto reserved = number(pool, k_reserved); // after the synchronise of the block before
            CHECK(reserved >= live * k_block);
            CHECK(reserved <= std::max(threshold, (live + 1) * k_block));
        }
        CHECK(number(pool, k_reserved) <= threshold);
        CHECK(number(pool, k_reserved) >= std::min(threshold, 5 * k_block) / k_block * k_block);
    }
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
    synchronize(stream);
    CHECK(number(pool, k_reserved) == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a pool keeps what a stream has not freed yet", "[driver_rules]") {
    auto* const other = make_stream();
    auto* const pool = make_pool();
    const auto block = allocate_from(pool, k_block, stream);
    {
        const Gate gate(stream);
        give({block}, stream);
        synchronize(other);
        REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        CHECK(number(pool, k_reserved) >= k_block);
    }
    synchronize(stream);
    CHECK(number(pool, k_reserved) == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a pool that is trimmed has as much left as is asked for",
                 "[driver_rules]") {
    auto* const pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, k_all);
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(allocate_from(pool, k_block, stream));
    const auto live = blocks.back();
    blocks.pop_back();
    give(blocks, stream);
    synchronize(stream);
    for (const std::size_t keep : {500 * k_mib, 65 * k_mib, 64 * k_mib, std::size_t{0}}) {
        const auto before = number(pool, k_reserved);
        REQUIRE(cuMemPoolTrimTo(pool, keep) == CUDA_SUCCESS);
        CHECK(number(pool, k_reserved) >= std::min<std::size_t>(before, keep));
        CHECK(number(pool, k_reserved) <= std::min<std::size_t>(before, std::max(keep + k_block, k_block)));
    }
    CHECK(number(pool, k_reserved) >= k_block);
    give({live}, stream);
    synchronize(stream);
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(number(pool, k_reserved) == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a pool keeps what cuMemFree gives it as its threshold allows",
                 "[driver_rules]") {
    for (const std::size_t threshold : {std::size_t{0}, k_all}) {
        auto* const pool = make_pool();
        set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold);
        const auto address = allocate_from(pool, k_block, stream);
        CUmemoryPool origin = nullptr;
        REQUIRE(cuPointerGetAttribute(&origin, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS);
        CHECK(origin == pool);
        REQUIRE(cuMemFree(address) == CUDA_SUCCESS);
        CHECK((number(pool, k_reserved) == 0) == (threshold == 0));
        CHECK(grows_for(pool, k_block, stream) == (threshold == 0));
        REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    }
}

TEST_CASE_METHOD(OnStream, "Driver: a pool gives a stream again what it freed, and others what is done",
                 "[driver_rules]") {
    auto* const other = make_stream();
    auto* const pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, k_all);
    const auto first = allocate_from(pool, k_block, stream);
    {
        const Gate gate(stream);
        give({first}, stream);
        CHECK(allocate_from(pool, k_block, stream) == first);
        give({first}, stream);
        const auto second = allocate_from(pool, k_block, other);
        CHECK(second != first);
        give({second}, other);
        synchronize(other);
        gate.release();
    }
    synchronize(stream);
    const auto both = std::vector{allocate_from(pool, k_block, other), allocate_from(pool, k_block, other)};
    CHECK(number(pool, k_reserved) <= 2 * k_block);
    give(both, other);
    synchronize(other);
}

TEST_CASE_METHOD(OnStream,
                 "Driver: a pool that must not look for itself gives others what the program has waited for",
                 "[driver_rules]") {
    auto* const other = make_stream();
    auto* const pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, k_all);
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    const auto first = allocate_from(pool, k_block, stream);
    {
        const Gate gate(stream); // a stream without work is there already, as the driver has it
        give({first}, stream);
        gate.release();
    }
    std::atomic<bool> is_there{false};
    const auto say = [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; };
    REQUIRE(cuLaunchHostFunc(stream, say, &is_there) == CUDA_SUCCESS);
    while (!is_there) std::this_thread::yield();
    const bool grows = grows_for(pool, k_block, other);
    // The driver was seen to do either.
    if (simulated() || ::dlsym(RTLD_DEFAULT, "gpu_sleep_sleep")) CHECK(grows);
    synchronize(stream);
    const auto both = std::vector{allocate_from(pool, k_block, other), allocate_from(pool, k_block, other)};
    CHECK(number(pool, k_reserved) <= 2 * k_block);
    give(both, other);
    synchronize(other);
}

TEST_CASE_METHOD(OnStream, "Driver: a pool gives a part of a large block that was freed, trimmed or not",
                 "[driver_rules]") {
    auto* const pool = make_pool();
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, k_all);
    const auto most = free_bytes();
    for (const bool is_trimmed : {false, true}) {
        give({allocate_from(pool, most / 10 * 7, stream)}, stream);
        if (is_trimmed) {
            synchronize(stream);
            REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        }
        const auto part = allocate_from(pool, most / 10 * 3, stream);
        give({part, allocate_from(pool, most / 10 * 3, stream)}, stream);
        synchronize(stream);
    }
    REQUIRE(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
    CHECK(number(pool, k_reserved) == 0);
}

TEST_CASE_METHOD(OnStream, "Driver: a pool counts nothing of a capture", "[driver_rules]") {
    auto* const other = make_stream();
    auto* const pool = default_pool(0);
    const auto live = allocate_from(pool, k_block, other);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    const auto captured = allocate_from(pool, k_block, stream);
    check_figures(pool, k_block, k_block);
    give({captured}, stream);
    give({allocate_from(pool, k_mib, other)}, other);
    check_figures(pool, k_block, k_block + k_mib);
    CUgraph graph = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    cuuint64_t used = 0;
    CHECK(cuMemPoolGetAttribute(pool, k_used, &used) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    give({live}, other);
    synchronize(other);
    check_figures(pool, 0, k_block + k_mib);
}

TEST_CASE_METHOD(Session, "Driver: a pool's memory outlives the context that it was taken in",
                 "[driver_rules]") {
    auto* const pool = default_pool(0);
    auto* const own = make_context(0);
    auto* const stream = make_stream();
    const auto block = allocate_from(pool, k_block, stream);
    give({allocate_from(pool, k_block, stream)}, stream);
    REQUIRE(cuCtxDestroy(own) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    check_figures(pool, k_block, 2 * k_block);
    REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    check_figures(pool, 0, 2 * k_block);
    CHECK(number(pool, k_reserved) == 0);
}

TEST_CASE_METHOD(Session, "Driver: a pool refuses what no attribute can be", "[driver_rules]") {
    auto* const pool = make_pool();
    cuuint64_t value = 1;
    for (const auto attribute : {k_used, k_used_high, k_reserved, k_reserved_high})
        CHECK(cuMemPoolSetAttribute(pool, attribute, &value) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, nullptr) ==
          CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolGetAttribute(nullptr, k_used, &value) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolSetAttribute(nullptr, k_used_high, &value) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemPoolTrimTo(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
    set_switch(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 2);
    int number = 0;
    CHECK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &number) == CUDA_SUCCESS);
    CHECK(number == 1);
    auto* const stream = make_stream();
    const auto block = allocate_from(pool, k_mib, stream);
    give({block}, stream);
    CHECK(cuMemFreeAsync(block, stream) == CUDA_ERROR_INVALID_VALUE);
}
