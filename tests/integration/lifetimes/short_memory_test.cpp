// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Frees of an intercepted program while the agent's memory runs out: each allocation in it fails once, or all
// from one on. Whatever the call returns, nothing is lost.

#include "devices.hpp"
#include "gpu_sleep/gpu_sleep.h"
#include "short_memory.hpp"
#include "support/process.hpp"

#include <fmt/format.h>

#include <iostream>

using namespace gpu_sleep::test;

namespace {

constexpr std::size_t k_small = 4096; ///< shares a range with others

/// Runs `body` with memory short from every allocation of the agent on, until it takes no more than succeed;
/// `settle` after each. `body` may not use CHECK, which allocates.
void sweep(const std::function<std::function<bool()>()>& prepare, const std::function<void()>& settle) {
    for (const auto how : {ShortMemory::How::once, ShortMemory::How::lasting}) {
        bool has_failed = true;
        for (long succeed = 0; has_failed; ++succeed) {
            INFO("after " << succeed << ", " << static_cast<int>(how));
            REQUIRE(succeed < 500);
            const auto body = prepare();
            bool is_right = false;
            {
                const ShortMemory memory(succeed, how);
                is_right = body();
                has_failed = ShortMemory::has_failed();
            }
            CHECK(is_right);
            settle();
        }
    }
}

/// The same of one that needs nothing to be prepared.
void sweep_each(const std::function<bool()>& body, const std::function<void()>& settle) {
    sweep([&] { return body; }, settle);
}

/// What waits is freed with the next.
void check_all_is_freed() {
    CHECK(cuMemFree(allocate(k_bytes)) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

CUipcMemHandle handle_of(const std::string& words) {
    CUipcMemHandle handle{};
    for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
        handle.reserved[i] = static_cast<char>(std::stoi(words.substr(2 * i, 2), nullptr, 16));
    return handle;
}

} // namespace

TEST_CASE_METHOD(Devices, "Short memory: a free frees at once or later") {
    const auto bytes = GENERATE(k_bytes, k_small);
    const auto before = allocate(k_small); // so that two share a range
    const auto range = held();
    sweep(
        [=] {
            const auto address = allocate(bytes);
            return [=] { return cuMemFree(address) == CUDA_SUCCESS; };
        },
        [=] {
            CHECK(cuMemFree(allocate(k_bytes)) == CUDA_SUCCESS);
            CHECK(held() == range);
        });
    CHECK(cuMemFree(before) == CUDA_SUCCESS);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(OnStream, "Short memory: what waits for a capture is freed after it or later") {
    CUgraph graph = nullptr;
    sweep(
        [&] {
            REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
            for (const auto bytes : {k_bytes, k_small, k_bytes})
                CHECK(cuMemFree(allocate(bytes)) == CUDA_SUCCESS);
            return [&] { return cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS; };
        },
        [&] {
            CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
            check_all_is_freed();
        });
    CHECK(sim_fault_counts().broken_captures == 0);
}

TEST_CASE_METHOD(OnStream, "Short memory: a free in a stream's order loses no block and no figure") {
    sweep(
        [this] {
            const auto address = allocate_async(stream);
            return [this, address] { return cuMemFreeAsync(address, stream) == CUDA_SUCCESS; };
        },
        [this] {
            CHECK(used(default_pool(0)) == 0);
            CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
            CHECK(cuMemPoolTrimTo(default_pool(0), 0) == CUDA_SUCCESS);
            check_all_is_freed();
        });
}

TEST_CASE_METHOD(OnStream, "Short memory: a block not given out is nobody's until its last use is done") {
    const auto other = make_stream();
    const auto fill = kernel("sim_fill");
    CUdeviceptr block = 0, again = 0;
    std::optional<Gate> gate;
    sweep(
        [&] {
            block = allocate_async(stream);
            gate.emplace(stream);
            REQUIRE(launch(fill, stream, block, std::uint64_t{1024}, 7U) == CUDA_SUCCESS);
            CHECK(cuMemFreeAsync(block, stream) == CUDA_SUCCESS);
            again = 0;
            return [&] {
                const auto status = cuMemAllocAsync(&again, k_bytes, stream); // in its order it may have it
                return status == CUDA_SUCCESS || status == CUDA_ERROR_OUT_OF_MEMORY;
            };
        },
        [&] {
            if (again == 0) {
                const auto others = allocate_async(other);
                CHECK(others != block);
                CHECK(cuMemFreeAsync(others, other) == CUDA_SUCCESS);
            } else {
                CHECK(cuMemFreeAsync(again, stream) == CUDA_SUCCESS);
            }
            gate.reset();
            CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
            CHECK(used(default_pool(0)) == 0);
            CHECK(cuMemPoolTrimTo(default_pool(0), 0) == CUDA_SUCCESS);
            check_all_is_freed();
        });
}

/// Run by the next one.
TEST_CASE_METHOD(Devices, "Short memory: another process that shares", "[.][giver]") {
    const auto address = allocate(k_bytes);
    CUipcMemHandle handle{};
    REQUIRE(cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS);
    std::string words;
    for (const char byte : handle.reserved) words += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    std::cout << "\n" << words << std::endl;
    std::string line;
    std::getline(std::cin, line);
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE("Short memory: memory of another process is closed at once or later") {
    Process giver({{"/proc/self/exe", "[giver]"}});
    auto words = giver.read_line();
    while (words.size() != 2 * sizeof(CUipcMemHandle)) words = giver.read_line();
    const auto handle = handle_of(words);
    Devices devices;
    const auto before = sim_live_objects().mappings;
    sweep(
        [&] {
            CUdeviceptr address = 0;
            REQUIRE(cuIpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS);
            return [=] { return cuIpcCloseMemHandle(address) == CUDA_SUCCESS; };
        },
        [&] {
            CHECK(cuMemFree(allocate(k_bytes)) == CUDA_SUCCESS);
            CHECK(sim_live_objects().mappings == before);
        });
    giver.close_input();
    CHECK(giver.wait() == 0);
}

TEST_CASE_METHOD(Devices, "Short memory: a free of the agent's own memory frees, or leaves it to be freed") {
    void* other = nullptr;
    REQUIRE(gpu_sleep_alloc(&other, k_small, 0, "t") == GPU_SLEEP_OK);
    REQUIRE(gpu_sleep_preserve(other, k_small) == GPU_SLEEP_OK); // so that a free has marks to keep
    void* address = nullptr;
    auto status = GPU_SLEEP_OK;
    sweep(
        [&] {
            REQUIRE(gpu_sleep_alloc(&address, k_small, 0, "t") == GPU_SLEEP_OK);
            return [&] {
                status = gpu_sleep_free(address);
                return status == GPU_SLEEP_OK || status == GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY;
            };
        },
        [&] {
            if (status == GPU_SLEEP_OK) return;
            const auto again = gpu_sleep_free(address);
            INFO("again " << static_cast<int>(again) << " " << gpu_sleep_last_error());
            CHECK(again == GPU_SLEEP_OK);
        });
    CHECK(gpu_sleep_free(other) == GPU_SLEEP_OK);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Short memory: an allocation is made so that it can sleep, or fails") {
    const bool pooled = GENERATE(false, true);
    const bool has_new_tag = GENERATE(true, false);
    const auto left_to_driver = [] { return sim_calls("cuMemAlloc") + sim_calls("cuMemAllocAsync"); };
    CUdeviceptr address = 0;
    CUresult status = CUDA_SUCCESS;
    std::uint64_t before = 0;
    int count = 0, refused = 0;
    sweep(
        [&] {
            const auto tag = has_new_tag ? "tag" + std::to_string(++count) : "tag";
            REQUIRE(gpu_sleep_push_tag(tag.c_str()) == GPU_SLEEP_OK);
            before = left_to_driver();
            return [&] {
                status = pooled ? cuMemAllocAsync(&address, k_bytes, nullptr) : cuMemAlloc(&address, k_bytes);
                return true;
            };
        },
        [&] {
            CHECK(left_to_driver() == before);
            refused += status != CUDA_SUCCESS;
            if (status == CUDA_SUCCESS) CHECK(cuMemFree(address) == CUDA_SUCCESS);
            CHECK(cuMemPoolTrimTo(default_pool(0), 0) == CUDA_SUCCESS);
            REQUIRE(gpu_sleep_pop_tag() == GPU_SLEEP_OK);
        });
    CHECK(refused > 0);
    CHECK(held() == 0);
}

TEST_CASE_METHOD(Devices, "Short memory: a program maps memory of its own, or has none of it") {
    const auto place = reserve(k_bytes);
    const auto properties = properties_on(0);
    CUmemGenericAllocationHandle handle = 0;
    auto created = CUDA_SUCCESS;
    auto mapped = CUDA_SUCCESS;
    sweep_each(
        [&] {
            created = cuMemCreate(&handle, k_bytes, &properties, 0);
            mapped = created == CUDA_SUCCESS ? cuMemMap(place, k_bytes, 0, handle, 0) : created;
            return true;
        },
        [&] {
            if (mapped == CUDA_SUCCESS) CHECK(cuMemUnmap(place, k_bytes) == CUDA_SUCCESS);
            if (created == CUDA_SUCCESS) CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
            CHECK(held() == 0);
        });
    CHECK(cuMemAddressFree(place, k_bytes) == CUDA_SUCCESS);
}

TEST_CASE("Short memory: a context ends, and its memory with it, or stays") {
    enum class Kind : int { own, primary, green };
    Devices devices;
    const auto kind = GENERATE(Kind::own, Kind::primary, Kind::green);
    CUcontext context = nullptr;
    CUgreenCtx green = nullptr;
    CUdeviceptr address = 0;
    auto status = CUDA_SUCCESS;
    const auto end = [&] {
        return kind == Kind::own       ? cuCtxDestroy(context)
               : kind == Kind::primary ? cuDevicePrimaryCtxRelease(1)
                                       : cuGreenCtxDestroy(green);
    };
    sweep(
        [&] {
            context = kind == Kind::own ? make_context(1) : devices.contexts[1];
            if (kind == Kind::green) {
                REQUIRE(cuGreenCtxCreate(&green, nullptr, 1, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
                REQUIRE(cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS);
            }
            REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
            auto* const stream = make_stream();
            CHECK(cuMemFreeAsync(allocate_async(stream), stream) == CUDA_SUCCESS);
            address = allocate(k_bytes);
            REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
            return [&] {
                status = end();
                return status == CUDA_SUCCESS || status == CUDA_ERROR_OUT_OF_MEMORY;
            };
        },
        [&] {
            if (status != CUDA_SUCCESS) CHECK(end() == CUDA_SUCCESS);
            if (kind == Kind::green) CHECK(cuMemFree(address) == CUDA_SUCCESS); // it outlives that
            if (kind == Kind::primary)
                CHECK(cuDevicePrimaryCtxRetain(&devices.contexts[1], 1) == CUDA_SUCCESS);
            CHECK(cuMemPoolTrimTo(default_pool(1), 0) == CUDA_SUCCESS);
            check_all_is_freed();
        });
}

TEST_CASE_METHOD(Devices, "Short memory: a green context begins, and ends") {
    CUgreenCtx green = nullptr;
    auto status = CUDA_SUCCESS;
    sweep_each(
        [&] {
            status = cuGreenCtxCreate(&green, nullptr, 1, CU_GREEN_CTX_DEFAULT_STREAM);
            return status == CUDA_SUCCESS || status == CUDA_ERROR_OUT_OF_MEMORY;
        },
        [&] {
            if (status != CUDA_SUCCESS) return;
            REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
            allocate(k_bytes);
            REQUIRE(cuCtxSetCurrent(contexts[0]) == CUDA_SUCCESS);
            CHECK(cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
            CHECK(cuGreenCtxDestroy(green) == CUDA_SUCCESS); // the last that held the primary one
            CHECK(held() == 0);
            CHECK(cuDevicePrimaryCtxRetain(&contexts[1], 1) == CUDA_SUCCESS);
        });
}

TEST_CASE("Short memory: a context is made so that a sleep waits for its work, or not at all") {
    constexpr std::uint32_t k_moment_ms = 200;
    Devices devices;
    const auto address = allocate(k_bytes);
    CUcontext context = nullptr;
    CUctxCreateParams parameters{};
    auto status = CUDA_SUCCESS;
    sweep_each(
        [&] {
            status = cuCtxCreate(&context, &parameters, 0, 0);
            return true;
        },
        [&] {
            if (status != CUDA_SUCCESS) return;
            auto* const stream = make_stream();
            {
                const Gate gate(stream);
                CHECK(gpu_sleep_sleep(1, nullptr, k_moment_ms) == GPU_SLEEP_ERROR_TIMED_OUT);
            }
            CHECK(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
            CHECK(cuCtxDestroy(context) == CUDA_SUCCESS);
            REQUIRE(cuCtxSetCurrent(devices.contexts[0]) == CUDA_SUCCESS);
        });
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnStream, "Short memory: a capture begins so that a free does not break it, or not at all") {
    CUgraph graph = nullptr;
    auto status = CUDA_SUCCESS;
    sweep_each(
        [&] {
            status = cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
            return true;
        },
        [&] {
            CHECK(cuMemFree(allocate(k_bytes)) == CUDA_SUCCESS);
            if (status != CUDA_SUCCESS) return;
            CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
            CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
        });
    CHECK(sim_fault_counts().broken_captures == 0);
}

TEST_CASE_METHOD(OnStream, "Short memory: what is freed after a synchronise is freed once") {
    auto* const pool = default_pool(0);
    const auto other = allocate(k_small);
    REQUIRE(gpu_sleep_preserve(reinterpret_cast<void*>(other), k_small) ==
            GPU_SLEEP_OK); // so that a free has marks to keep
    const auto give_back = [this, pool] {
        cuuint64_t bytes = 0; // before anybody sees it all is given back
        return cuStreamSynchronize(stream) == CUDA_SUCCESS &&
               cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS;
    };
    std::set<CUdeviceptr> freed;
    sweep(
        [&] {
            freed = {allocate(k_small), allocate(k_small)};
            for (const auto address : freed) CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
            return give_back;
        },
        [&] {
            const auto first = allocate(k_small);
            CHECK(give_back());
            const auto second = allocate(k_small);
            CHECK(first != second);
            CHECK(freed.contains(second)); // by the second synchronise at the latest
            for (const auto address : {first, second}) CHECK(cuMemFree(address) == CUDA_SUCCESS);
        });
    CHECK(cuMemFree(other) == CUDA_SUCCESS);
}
