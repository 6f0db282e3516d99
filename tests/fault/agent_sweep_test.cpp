// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Every driver call of a whole operation of the agent fails in turn: its gate, its waiting for the device and
// its callbacks among them. Afterwards the program that it caught works on as if nothing had been.

#include "support/callbacks.hpp"
#include "support/process.hpp"
#include "support/simulated_driver/testing.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::sim::testing;
using namespace gpu_sleep::test;

namespace {

constexpr std::size_t k_words = std::size_t{1} << 20; // of each allocation
constexpr std::size_t k_bytes = k_words * sizeof(std::uint32_t);

/// A caught program on two devices: plain memory, stream-ordered memory, a context and a stream of its own,
/// and callbacks that must come in pairs.
class Program : NotCopied {
public:
    Program() {
        REQUIRE(cuInit(0) == CUDA_SUCCESS);
        for (CUdevice device = 1; device >= 0; --device) {
            REQUIRE(cuDevicePrimaryCtxRetain(&primary_[device], device) == CUDA_SUCCESS);
            REQUIRE(cuCtxSetCurrent(primary_[device]) == CUDA_SUCCESS);
            add(cuMemAlloc(&memory_.emplace_back(), k_bytes));
        }
        add(cuMemAllocAsync(&memory_.emplace_back(), k_bytes, nullptr));
        CUctxCreateParams parameters{};
        REQUIRE(cuCtxCreate(&own_, &parameters, 0, 0) == CUDA_SUCCESS);
        add(cuMemAlloc(&memory_.emplace_back(), k_bytes));
        REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
        spin_ = kernel("sim_spin");
        add_ = kernel("sim_add");
        callbacks_.emplace([this] { ++prepared_; }, [this] { ++resumed_; });
    }
    ~Program() {
        CHECK(gpu_sleep_remove_callback(callbacks_->id()) == GPU_SLEEP_OK);
        CHECK(cuStreamDestroy(stream_) == CUDA_SUCCESS);
        for (const auto address : memory_) CHECK(cuMemFree(address) == CUDA_SUCCESS);
        CHECK(cuCtxDestroy(own_) == CUDA_SUCCESS);
        for (CUdevice device = 0; device < 2; ++device)
            CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
    }

    /// Leaves work under way on a stream, which changes what memory holds.
    void work() {
        ++value_;
        REQUIRE(launch(spin_, stream_, std::uint64_t{1}) == CUDA_SUCCESS);
        for (std::size_t i = 1; i < memory_.size(); ++i) // the first lies on the other device
            REQUIRE(launch(add_, stream_, memory_[i], std::uint64_t{k_words}, 1U) == CUDA_SUCCESS);
    }

    /// Everything is there and can be used.
    void check_awake() {
        CHECK(gpu_sleep_asleep_bytes() == 0);
        REQUIRE(cuStreamSynchronize(stream_) == CUDA_SUCCESS);
        std::vector<std::uint32_t> words(k_words);
        for (std::size_t i = 0; i < memory_.size(); ++i) {
            REQUIRE(cuMemcpyDtoH(words.data(), memory_[i], k_bytes) == CUDA_SUCCESS);
            const auto expected = i == 0 ? k_first : value_;
            CHECK(std::all_of(words.begin(), words.end(), [=](auto word) { return word == expected; }));
        }
        CHECK(prepared_ == resumed_);
        CHECK(sim_fault_counts().illegal_accesses == 0);
    }
    void check_asleep() const {
        CHECK(gpu_sleep_asleep_bytes() == memory_.size() * k_bytes);
        CHECK(prepared_ == resumed_ + 1);
    }

private:
    void add(CUresult allocated) {
        REQUIRE(allocated == CUDA_SUCCESS);
        REQUIRE(cuMemsetD32(memory_.back(), value_, k_words) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    }

    static constexpr std::uint32_t k_first = 41;

    std::vector<CUdeviceptr> memory_;
    std::uint32_t value_ = k_first;
    CUcontext primary_[2] = {};
    CUcontext own_ = nullptr;
    CUstream stream_ = nullptr;
    CUfunction spin_ = nullptr, add_ = nullptr;
    std::optional<Callbacks> callbacks_;
    int prepared_ = 0, resumed_ = 0;
};

/// Has a command do something with this process. Returns its exit status.
int command(const char* name, std::vector<std::string> options = {}) {
    std::vector<std::string> words{command_file(name), std::to_string(::getpid())};
    words.insert(words.end(), options.begin(), options.end());
    return run({words}).status;
}

/// Has each driver call of `operation` fail, and then `mend` deal with what came of it: whether it failed,
/// and how it is awake again.
template <class Operation, class Mend>
void sweep(Program& program, bool asleep, Operation&& operation, Mend&& mend) {
    int failures = 0;
    for_each_call([&](int call) {
        std::string_view failed;
        program.work();
        if (asleep) REQUIRE(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
        const bool has_failed = with_driver_failure(call, failed, operation) != 0;
        INFO("after " << failed << " failed: " << gpu_sleep_last_error());
        failures += has_failed;
        mend(has_failed);
        program.check_awake();
        return !failed.empty();
    });
    CHECK((failures > 10 || sweep_stride() > 1));
}

} // namespace

TEST_CASE("Agent: a sleep survives the failure of every driver call", "[agent]") {
    Program program;
    const auto sleep = [] { return gpu_sleep_sleep(1, nullptr, 0); };
    sweep(program, false, sleep, [&](bool has_failed) {
        if (has_failed) {
            program.check_awake();
            program.work();
            REQUIRE(sleep() == GPU_SLEEP_OK);
        }
        program.check_asleep();
        REQUIRE(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    });
}

TEST_CASE("Agent: a wake survives the failure of every driver call", "[agent]") {
    Program program;
    const auto wake = [] { return gpu_sleep_wake(nullptr, 0); };
    sweep(program, true, wake, [&](bool has_failed) {
        if (!has_failed) return;
        program.check_asleep();
        REQUIRE(wake() == GPU_SLEEP_OK);
    });
}

TEST_CASE("Agent: a move to host memory and back survives the failure of every driver call", "[agent]") {
    Program program;
    const auto move = [] { return command("gpu-sleep", {"--live"}) + command("gpu-wake"); };
    sweep(program, false, move, [](bool) {
        REQUIRE(command("gpu-wake") == 0); // what came to sleep, or stayed there
    });
}
