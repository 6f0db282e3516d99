// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// In part asleep: when a program's other work goes on, by what it has put to sleep or declared itself, and by
// what others ask for.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_part_bytes = 4 * k_mib;

/// Three tags, with what is written in each.
struct Memory : NotCopied {
    Gpu gpu{0};
    TaggedMemory weights{"weights", k_part_bytes};
    TaggedMemory cache{"kv_cache", k_part_bytes};
    TaggedMemory other{"other", k_part_bytes};
    Words words = random_words(k_part_bytes, 3);
    CUfunction fill = sim::testing::kernel("sim_fill");

    Memory() {
        cache.write(words);
        sim_reset_counts();
    }
    ~Memory() {
        for (const char* tag : {"weights", "kv_cache", "other"}) gpu_sleep_set_separable(tag, 0);
    }

    /// Work of another thread, which ends when the gate lets it.
    [[nodiscard]] std::future<bool> work_on(const TaggedMemory& memory) const {
        return std::async(std::launch::async, [this, &memory] {
            CUcontext context = nullptr;
            std::uint32_t found = 0;
            return cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                   cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                   cuMemsetD8(memory.address(), 0x5A, k_part_bytes) == CUDA_SUCCESS &&
                   sim::testing::launch(fill, nullptr, memory.address(), std::uint64_t{1}, 7U) ==
                       CUDA_SUCCESS &&
                   cuMemcpyDtoH(&found, memory.address(), sizeof found) == CUDA_SUCCESS && found == 7 &&
                   cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS;
        });
    }
    [[nodiscard]] bool works_on(const TaggedMemory& memory) const {
        auto work = work_on(memory);
        return ends(work) && work.get();
    }
};

/// "open", "checked" or "shut", as gpu-ps has it.
std::string gate() {
    return run({{command_file("gpu-ps"), std::to_string(::getpid()), "--json"}})
        .json("/processes/0/report/gate/state");
}

void sleep_from_outside(std::vector<std::string> arguments) {
    REQUIRE(command("gpu-sleep", std::move(arguments)) == 0);
}

void wake_from_outside() {
    REQUIRE(command("gpu-wake", {}) == 0);
}

} // namespace

TEST_CASE("Gate mode: a program that puts a tag to sleep itself goes on with the others", "[api]") {
    const Memory memory;
    for (int round = 0; round < 2; ++round) {
        memory.cache.write(memory.words);
        sleep("kv_cache");
        CHECK(gate() == "checked");
        CHECK(memory.works_on(memory.weights));
        const TaggedMemory more("weights", k_part_bytes);
        CHECK(memory.works_on(more));
        auto work = memory.work_on(memory.cache);
        CHECK(waits(work));
        CHECK(memory.works_on(memory.other)); // meanwhile, too
        wake_from_outside();
        CHECK(ends(work));
        CHECK(work.get());
        CHECK(gate() == "open");
    }
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Gate mode: a program that slept as a whole goes on with what it wakes first", "[api]") {
    const Memory memory;
    sleep();
    CHECK(gate() == "shut");
    auto work = memory.work_on(memory.weights);
    CHECK(waits(work));
    wake("weights");
    CHECK(ends(work));
    CHECK(work.get());
    CHECK(gate() == "checked");
    auto later = memory.work_on(memory.cache);
    CHECK(waits(later));
    wake("other");
    CHECK(memory.works_on(memory.other));
    CHECK(waits(later));
    wake();
    CHECK(ends(later));
    CHECK(later.get());
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Gate mode: a program does without tags that it declared separable, whoever sleeps them", "[api]") {
    const Memory memory;
    check(gpu_sleep_set_separable("kv_cache", 1));
    check(gpu_sleep_set_separable("not_yet", 1));
    sleep_from_outside({"--tags", "kv_cache"});
    CHECK(gate() == "checked");
    CHECK(memory.works_on(memory.weights));
    auto work = memory.work_on(memory.cache);
    CHECK(waits(work));
    wake_from_outside();
    CHECK(ends(work));
    CHECK(work.get());
    check(gpu_sleep_set_separable("kv_cache", 0));
    sleep_from_outside({"--tags", "kv_cache"});
    CHECK(gate() == "shut");
    wake_from_outside();
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Gate mode: only a tag can be separable", "[api]") {
    CHECK(gpu_sleep_set_separable(nullptr, 1) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_set_separable("", 1) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
    CHECK(gpu_sleep_set_separable("two words", 0) == GPU_SLEEP_ERROR_INVALID_ARGUMENT);
}
