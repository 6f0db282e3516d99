// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeps and wakes of an intercepted program while the agent's memory runs out on the thread that runs them:
// each allocation fails once, or all from one on. The answer says how memory is, and callbacks come in pairs.

#include "devices.hpp"
#include "short_memory.hpp"
#include "support/callbacks.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr std::size_t k_each = std::size_t{2}
                               << 20; ///< as little as can be, for it is copied a thousand times
constexpr const char* k_operations = "gpu-sleep-work"; ///< what follows says how the process stands

/// Memory under three tags, one of which is dropped, and callbacks that count.
class Program : NotCopied {
public:
    Program() {
        for (const auto* tag : {"a", "b", "c"}) {
            REQUIRE(gpu_sleep_alloc(&memory_.emplace_back(), k_each, 0, tag) == GPU_SLEEP_OK);
            REQUIRE(cuMemsetD8(address(memory_.size() - 1), value(memory_.size() - 1), k_each) ==
                    CUDA_SUCCESS);
        }
        REQUIRE(gpu_sleep_set_policy("c", GPU_SLEEP_DISCARD, 1) == GPU_SLEEP_OK);
        callbacks_.emplace([this] { ++prepared; }, [this] { ++resumed; });
    }
    ~Program() {
        for (auto* const memory : memory_) CHECK(gpu_sleep_free(memory) == GPU_SLEEP_OK);
    }

    void check_contents() const {
        for (std::size_t i = 0; i + 1 < memory_.size(); ++i) { // the last was dropped
            unsigned char byte = 0;
            CHECK(cuMemcpyDtoH(&byte, address(i) + k_each - 1, 1) == CUDA_SUCCESS);
            CHECK(byte == value(i));
        }
    }
    [[nodiscard]] std::size_t bytes() const { return memory_.size() * k_each; }

    int prepared = 0, resumed = 0;

private:
    [[nodiscard]] CUdeviceptr address(std::size_t i) const {
        return reinterpret_cast<CUdeviceptr>(memory_[i]);
    }
    static unsigned char value(std::size_t i) { return static_cast<unsigned char>(7 + i); }

    std::vector<void*> memory_;
    std::optional<Callbacks> callbacks_;
};

/// Runs `operation` with memory short from every allocation of the operations thread on, until it takes no
/// more than succeed; `check` after each, with its answer.
template <class Operation, class Check>
void sweep(Operation&& operation, Check&& check) {
    for (const auto how : {ShortMemory::How::once, ShortMemory::How::lasting}) {
        bool has_failed = true;
        for (long succeed = 0; has_failed; ++succeed) {
            INFO("after " << succeed << ", " << static_cast<int>(how));
            REQUIRE(succeed < 1'000);
            auto status = GPU_SLEEP_OK;
            {
                const ShortMemory memory(succeed, how, k_operations);
                status = operation();
                has_failed = ShortMemory::has_failed();
            }
            INFO("it answered " << static_cast<int>(status));
            CHECK((status == GPU_SLEEP_OK || status == GPU_SLEEP_ERROR_OUT_OF_HOST_MEMORY));
            check(status == GPU_SLEEP_OK);
        }
    }
}

gpu_sleep_status sleep_all() {
    return gpu_sleep_sleep(1, nullptr, 0);
}

gpu_sleep_status wake_all() {
    return gpu_sleep_wake(nullptr, 0);
}

} // namespace

TEST_CASE_METHOD(Devices, "Short memory: a sleep succeeds, or leaves all awake and called off") {
    Program program;
    sweep(sleep_all, [&](bool slept) {
        CHECK(gpu_sleep_asleep_bytes() == (slept ? program.bytes() : 0));
        CHECK(program.prepared == program.resumed + (slept ? 1 : 0));
        CHECK(wake_all() == GPU_SLEEP_OK);
        CHECK(program.prepared == program.resumed);
        program.check_contents();
    });
}

TEST_CASE_METHOD(Devices, "Short memory: a wake succeeds, callbacks and all, or leaves all asleep") {
    Program program;
    REQUIRE(sleep_all() == GPU_SLEEP_OK);
    sweep(wake_all, [&](bool woken) {
        CHECK(gpu_sleep_asleep_bytes() == (woken ? 0 : program.bytes()));
        CHECK(program.prepared == program.resumed + (woken ? 0 : 1));
        CHECK(wake_all() == GPU_SLEEP_OK);
        program.check_contents();
        CHECK(sleep_all() == GPU_SLEEP_OK);
    });
    CHECK(wake_all() == GPU_SLEEP_OK);
}
