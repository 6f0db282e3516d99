// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pools of an intercepted program say of themselves, awake and asleep, when they give memory back, and
// who may have their freed blocks: what backs a block keeps its tag, and may have to stay.

#include "devices.hpp"
#include "gpu_sleep/gpu_sleep.h"

using namespace gpu_sleep::test;

namespace {

constexpr std::size_t k_mib = std::size_t{1} << 20;

std::uint64_t reserved(CUmemoryPool pool) {
    return number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

/// It keeps what is freed, as PyTorch and others have it.
void keep_all(CUmemoryPool pool) {
    set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, ~cuuint64_t{0});
}

/// What holds of the figures at any time.
void check_figures(CUmemoryPool pool, std::uint64_t used_bytes) {
    CHECK(used(pool) == used_bytes);
    CHECK(reserved(pool) >= used_bytes);
    CHECK(number(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) >= used_bytes);
    CHECK(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserved(pool));
}

bool await_held(std::uint64_t bytes) {
    constexpr std::chrono::milliseconds k_look{1};
    for (int i = 0; i < 5'000 && held() != bytes; ++i) std::this_thread::sleep_for(k_look);
    return held() == bytes;
}

CUdeviceptr allocate_as(const char* tag, CUstream stream) {
    REQUIRE(gpu_sleep_push_tag(tag) == GPU_SLEEP_OK);
    const auto address = allocate_async(stream);
    REQUIRE(gpu_sleep_pop_tag() == GPU_SLEEP_OK);
    return address;
}

} // namespace

TEST_CASE_METHOD(OnStream, "Pool figures: they hold awake, asleep and after a wake") {
    for (const bool is_own : {false, true}) {
        auto* const pool = is_own ? make_pool() : default_pool(0);
        const auto small = allocate_from(pool, 1100, stream);
        const auto odd = allocate_from(pool, 2 * k_mib + 1, stream);
        const auto large = allocate_from(pool, 33 * k_mib, stream);
        const auto all = 1100 + 2 * k_mib + 1 + 33 * k_mib;
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        check_figures(pool, all);
        const auto before = reserved(pool);
        REQUIRE(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
        check_figures(pool, all);
        CHECK(reserved(pool) == before);
        CHECK(cuMemFreeAsync(odd, stream) == CUDA_SUCCESS);
        check_figures(pool, 1100 + 33 * k_mib);
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(reserved(pool) < before);
        CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
        check_figures(pool, 1100 + 33 * k_mib);
        REQUIRE(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
        check_figures(pool, 1100 + 33 * k_mib);
        for (const auto address : {small, large}) CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
        CHECK(used(pool) == 0);
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(reserved(pool) == 0);
        CHECK(held() == 0);
        cuuint64_t zero = 0;
        CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero) == CUDA_SUCCESS);
        CHECK(number(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
        if (is_own) CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    }
}

TEST_CASE_METHOD(OnStream, "Pool figures: what was freed before a program's last synchronise goes itself") {
    for (int i = 0; i < 3; ++i) { // the last of them comes too soon for its memory to go at once
        CHECK(cuMemFreeAsync(allocate_async(stream), stream) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    }
    CHECK(await_held(0));
}

TEST_CASE("Pool figures: who synchronises while another's memory goes has its own go, too") {
    constexpr std::uint64_t k_unmap_us = 300'000;
    Devices devices;
    auto* const stream = make_stream();
    auto* const busy = make_stream();
    auto* const own = make_pool();
    auto* const other = make_pool();
    const auto block = allocate_from(own, k_bytes, busy); // first: its addresses are looked at first
    const auto others = allocate_from(other, k_bytes, stream);
    const Gate gate(busy);
    CHECK(cuMemFreeAsync(block, busy) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(others, stream) == CUDA_SUCCESS);
    const auto calls = sim_calls("cuMemUnmap");
    sim_delay("cuMemUnmap", k_unmap_us);
    std::thread gives_back([&] {
        static_cast<void>(cuCtxSetCurrent(devices.contexts[0]));
        static_cast<void>(cuStreamSynchronize(stream));
    });
    CHECK(await_call("cuMemUnmap", calls));
    gate.release();
    CHECK(cuStreamSynchronize(busy) == CUDA_SUCCESS);
    gives_back.join();
    sim_clear();
    CHECK(reserved(own) == 0);
    CHECK(held() == 0);
    for (auto* const pool : {own, other}) CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Pool figures: what goes by itself also goes while a part sleeps") {
    void* sleeping = nullptr;
    REQUIRE(gpu_sleep_alloc(&sleeping, k_bytes, 0, "sleeping") == GPU_SLEEP_OK);
    CHECK(gpu_sleep_set_separable("sleeping", 1) == GPU_SLEEP_OK);
    REQUIRE(gpu_sleep_sleep(1, "sleeping", 0) == GPU_SLEEP_OK);
    for (int i = 0; i < 3; ++i) {
        CHECK(cuMemFreeAsync(allocate_async(stream), stream) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    }
    CHECK(await_held(0));
    REQUIRE(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    CHECK(gpu_sleep_free(sleeping) == GPU_SLEEP_OK);
}

TEST_CASE_METHOD(OnStream, "Pool figures: freed blocks are split and joined, and the pool does not grow") {
    auto* const pool = make_pool();
    keep_all(pool);
    std::vector<CUdeviceptr> blocks{allocate_from(pool, 33 * k_mib, stream)};
    const auto begin = blocks[0];
    const auto most = reserved(pool);
    for (int round = 0; round < 3; ++round) {
        for (const auto block : blocks) CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
        if (round == 1) CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        blocks.clear();
        for (const auto bytes : {5 * k_mib, 5 * k_mib, 20 * k_mib})
            blocks.push_back(allocate_from(pool, bytes, stream));
        for (const auto block : blocks) {
            CHECK(block - begin < 33 * k_mib);
            CHECK(cuMemsetD8Async(block, 1, 5 * k_mib, stream) == CUDA_SUCCESS);
            CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
        }
        blocks = {allocate_from(pool, 33 * k_mib, stream)};
        CHECK(blocks[0] == begin);
        CHECK(reserved(pool) == most);
    }
    CHECK(cuMemFreeAsync(blocks[0], stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(OnStream, "Pool figures: a small block keeps no large range") {
    auto* const pool = make_pool();
    CHECK(cuMemFreeAsync(allocate_from(pool, 100 * k_mib, stream), stream) == CUDA_SUCCESS);
    const auto small = allocate_from(pool, 1100, stream);
    const auto middle = allocate_from(pool, 5 * k_mib, stream);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    check_figures(pool, 1100 + 5 * k_mib);
    CHECK(reserved(pool) <= 10 * k_mib);
    for (const auto block : {small, middle}) CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Pool figures: where memory is short, a small block may be part of any range") {
    auto* const pool = make_pool();
    const auto large = allocate_from(pool, 100 * k_mib, stream);
    const Gate gate(stream);
    CHECK(cuMemFreeAsync(large, stream) == CUDA_SUCCESS);
    sim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, SIM_FOREVER);
    const auto small = allocate_from(pool, 1100, stream);
    sim_clear();
    CHECK(small == large);
    CHECK(reserved(pool) == 100 * k_mib);
    gate.release();
    CHECK(cuMemFreeAsync(small, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Pool figures: a pool has little more than it ever used, in any order of sizes") {
    auto* const pool = make_pool();
    keep_all(pool);
    const auto take_all = [&](std::size_t bytes, std::size_t all) {
        std::vector<CUdeviceptr> blocks;
        for (std::size_t i = 0; i < all / bytes; ++i) blocks.push_back(allocate_from(pool, bytes, stream));
        for (const auto block : blocks) CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
        CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    };
    for (std::size_t bytes = 2 * k_mib; bytes <= 300 * k_mib; bytes += 2 * k_mib) take_all(bytes, bytes);
    CHECK(reserved(pool) <= 400 * k_mib);
    for (int round = 0; round < 2; ++round)
        for (const auto bytes : {6 * k_mib, 300 * k_mib, 700 * std::size_t{1024}})
            take_all(bytes, 300 * k_mib);
    CHECK(reserved(pool) <= 400 * k_mib);
    const auto made = sim_calls("cuMemCreate");
    for (int round = 0; round < 3; ++round) // nor are ranges made again and again
        for (const auto bytes : {6 * k_mib, 100 * k_mib}) take_all(bytes, 300 * k_mib);
    CHECK(sim_calls("cuMemCreate") <= made + 10);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(OnStream, "Pool figures: blocks that several streams freed are joined once they are done") {
    auto* const other = make_stream();
    auto* const pool = make_pool();
    keep_all(pool);
    CHECK(cuMemFreeAsync(allocate_from(pool, 20 * k_mib, stream), stream) == CUDA_SUCCESS);
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(allocate_from(pool, 5 * k_mib, stream));
    for (std::size_t i = 0; i < blocks.size(); ++i)
        CHECK(cuMemFreeAsync(blocks[i], i % 2 == 0 ? stream : other) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(reserved(pool) == 20 * k_mib);
    CHECK(cuMemFreeAsync(allocate_from(pool, 20 * k_mib, other), other) == CUDA_SUCCESS);
    CHECK(reserved(pool) == 20 * k_mib);
    CHECK(cuStreamSynchronize(other) == CUDA_SUCCESS);
    CHECK(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Tags: a freed block is given out again under its own tag alone") {
    keep_all(default_pool(0));
    REQUIRE(gpu_sleep_set_policy("kv_cache", GPU_SLEEP_DISCARD, 1) == GPU_SLEEP_OK);
    auto* const stream = make_stream();
    const auto cache = allocate_as("kv_cache", stream);
    CHECK(cuMemFreeAsync(cache, stream) == CUDA_SUCCESS);
    const auto weights = allocate_as("weights", stream);
    CHECK(weights != cache);
    CHECK(allocate_as("kv_cache", stream) == cache);
    const auto words = random_bytes(k_bytes);
    REQUIRE(cuMemcpyHtoDAsync(weights, words.data(), k_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyHtoDAsync(cache, words.data(), k_bytes, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
    REQUIRE(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    std::vector<std::byte> copy(k_bytes);
    REQUIRE(cuMemcpyDtoH(copy.data(), weights, k_bytes) == CUDA_SUCCESS);
    CHECK(std::equal(copy.begin(), copy.end(), words.begin()));
    REQUIRE(cuMemcpyDtoH(copy.data(), cache, k_bytes) == CUDA_SUCCESS);
    CHECK(std::count(copy.begin(), copy.end(), std::byte{0}) == k_bytes);
    for (const auto address : {cache, weights}) CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Tags: a freed block that has to stay on the GPU is given out no more") {
    keep_all(default_pool(0));
    const auto pinned = allocate_async(nullptr);
    const unsigned yes = 1;
    REQUIRE(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pinned) == CUDA_SUCCESS);
    CHECK(cuMemFreeAsync(pinned, nullptr) == CUDA_SUCCESS);
    const auto next = allocate_async(nullptr);
    CHECK(next != pinned);
    CHECK(cuMemFreeAsync(next, nullptr) == CUDA_SUCCESS);
    CHECK(allocate_async(nullptr) == next);
    CHECK(cuMemFreeAsync(next, nullptr) == CUDA_SUCCESS);
}
