// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Callbacks of a sleep or a wake while memory of other tags sleeps: they pass the gate, and not to that.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_bytes = 4 * k_mib;

/// Memory that the program maps itself, under a tag.
class Mapped {
public:
    explicit Mapped(const char* tag) {
        check(gpu_sleep_push_tag(tag));
        range_.emplace(k_bytes);
        check(gpu_sleep_pop_tag());
        check(cuMemcpyHtoD(address(), words_.data(), k_bytes));
    }

    [[nodiscard]] CUdeviceptr address() const { return range_->address; }
    [[nodiscard]] CUmemGenericAllocationHandle handle() const { return range_->handle(); }
    [[nodiscard]] bool is_intact() const {
        Words found(words_.size());
        return cuMemcpyDtoH(found.data(), address(), k_bytes) == CUDA_SUCCESS && found == words_;
    }

private:
    std::optional<sim::testing::Range> range_;
    Words words_ = random_words(k_bytes, 1);
};

/// A kernel and copies, in a callback.
struct Touches {
    CUcontext context = nullptr;
    CUfunction fill = sim::testing::kernel("sim_fill");

    Touches() { check(cuCtxGetCurrent(&context)); }

    [[nodiscard]] bool writes(CUdeviceptr address) const {
        std::uint32_t found = 0;
        return cuCtxSetCurrent(context) == CUDA_SUCCESS &&
               sim::testing::launch(fill, nullptr, address, std::uint64_t{1}, 7U) == CUDA_SUCCESS &&
               cuMemcpyDtoH(&found, address, sizeof found) == CUDA_SUCCESS && found == 7;
    }
    /// Whether any of what touches the memory was done.
    [[nodiscard]] bool touches(CUdeviceptr address) const {
        std::uint32_t word = 0;
        return cuCtxSetCurrent(context) != CUDA_SUCCESS ||
               sim::testing::launch(fill, nullptr, address, std::uint64_t{1}, 7U) == CUDA_SUCCESS ||
               cuMemcpyHtoD(address, &word, sizeof word) == CUDA_SUCCESS ||
               cuMemcpyDtoH(&word, address, sizeof word) == CUDA_SUCCESS ||
               cuMemsetD8Async(address, 1, 1, nullptr) == CUDA_SUCCESS;
    }
};

} // namespace

TEST_CASE_METHOD(Gpu, "Asleep in part: a callback is refused memory that sleeps too, and goes on", "[api]") {
    const TaggedMemory weights("weights", k_bytes);
    const TaggedMemory cache("kv_cache", k_bytes);
    const auto words = random_words(k_bytes, 1);
    weights.write(words);
    const Touches gpu_work;
    int calls = 0, touches = 0, writes = 0;
    const auto both = [&] {
        ++calls;
        touches += static_cast<int>(gpu_work.touches(weights.address()));
        writes += static_cast<int>(gpu_work.writes(cache.address()));
    };
    sim_reset_counts();
    sleep("weights");
    {
        const Callbacks callbacks(both, both);
        sleep("kv_cache");
        wake("kv_cache");
    }
    CHECK(calls == 2);
    CHECK(touches == 0);
    CHECK(writes == 2);
    wake();
    CHECK(weights.read() == words);
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE_METHOD(Gpu, "Asleep in part: what a callback does with a handle loses no contents", "[api]") {
    const Mapped weights("weights");
    const TaggedMemory cache("kv_cache", k_bytes);
    const auto second = sim::testing::reserve(k_bytes);
    std::vector<CUresult> answers;
    sleep("weights");
    {
        const Callbacks callbacks([&] {
            int descriptor = -1;
            answers = {cuMemExportToShareableHandle(&descriptor, weights.handle(),
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                       cuMemMap(second, k_bytes, 0, weights.handle(), 0),
                       cuMemGetHandleForAddressRange(&descriptor, weights.address(), k_bytes,
                                                     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
                       sim::testing::grant(weights.address(), k_bytes, 1),
                       cuMemUnmap(weights.address(), k_bytes)};
        });
        sleep("kv_cache");
    }
    wake();
    CHECK(answers == std::vector(5, CUDA_ERROR_SYSTEM_NOT_READY));
    CHECK(weights.is_intact());
    sleep(); // it still can
    CHECK(gpu_sleep_asleep_bytes() == 2 * k_bytes);
    wake();
    CHECK(weights.is_intact());
    check(cuMemAddressFree(second, k_bytes));
}

TEST_CASE_METHOD(Gpu, "Asleep in part: a wake lets through what a thread in the driver waits for", "[api]") {
    const TaggedMemory weights("weights", k_bytes);
    const TaggedMemory cache("kv_cache", k_bytes);
    const Touches gpu_work;
    auto* const spin = sim::testing::kernel("sim_spin_until");
    auto* const stream = sim::testing::make_stream();
    const auto flag = cache.address();
    check(cuMemsetD8(flag, 0, k_bytes));
    REQUIRE(command("gpu-sleep", {"--tags", "weights", "--gate", "checked"}) == 0);

    // One thread waits in the driver for what another has yet to submit, and a wake comes between them.
    check(sim::testing::launch(spin, nullptr, flag));
    auto waits_in_driver = std::async(std::launch::async, [&] {
        std::uint32_t word = 0;
        return cuCtxSetCurrent(gpu_work.context) == CUDA_SUCCESS &&
               cuMemcpyDtoH(&word, flag, sizeof word) == CUDA_SUCCESS;
    });
    CHECK(waits(waits_in_driver));
    auto woken = std::async(std::launch::async, [] { return gpu_sleep_wake(nullptr, 0); });
    CHECK(waits(woken));
    auto submits = std::async(std::launch::async, [&] {
        return cuCtxSetCurrent(gpu_work.context) == CUDA_SUCCESS &&
               sim::testing::launch(gpu_work.fill, stream, flag, std::uint64_t{1}, 7U) == CUDA_SUCCESS;
    });
    CHECK(woken.get() == GPU_SLEEP_OK);
    CHECK(waits_in_driver.get());
    CHECK(submits.get());
    check(cuCtxSynchronize());
    check(cuStreamDestroy(stream));
}

TEST_CASE_METHOD(Gpu, "Asleep in part: a checked gate lets a program map its own memory alone", "[api]") {
    const Mapped weights("weights");
    const Mapped cache("kv_cache");
    const auto second = sim::testing::reserve(k_bytes);
    REQUIRE(command("gpu-sleep", {"--tags", "weights", "--gate", "checked", "--on-touch", "fail"}) == 0);
    {
        const sim::testing::Range range(k_bytes);
        check(cuMemsetD8(range.address, 1, k_bytes));
        check(cuCtxSynchronize());
        int descriptor = -1;
        check(cuMemExportToShareableHandle(&descriptor, range.handle(),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        CHECK(::close(descriptor) == 0);
    }
    const auto answers = std::vector{cuMemMap(second, k_bytes, 0, weights.handle(), 0),
                                     sim::testing::grant(weights.address(), k_bytes, 1),
                                     cuMemUnmap(weights.address(), k_bytes)};
    CHECK(answers == std::vector(3, CUDA_ERROR_SYSTEM_NOT_READY));
    CHECK(cache.is_intact());
    wake();
    CHECK(weights.is_intact());
    check(cuMemAddressFree(second, k_bytes));
}
