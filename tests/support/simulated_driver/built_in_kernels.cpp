// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernels that every module has, and the product's own, as host functions.

#include "driver/kernels/block_task.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "support/block_encoder.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/kernels.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>

namespace gpu_sleep::sim {
namespace {

using driver::BlockTask;
using driver::Fingerprint;
using driver::FingerprintBlock;
using driver::FingerprintKey;

template <class T>
T argument(void** arguments, std::size_t index) {
    return *static_cast<T*>(arguments[index]);
}

void fill(const sim_launch*, void** arguments) {
    auto* const numbers = argument<std::uint32_t*>(arguments, 0);
    const auto count = argument<std::uint64_t>(arguments, 1);
    const auto value = argument<std::uint32_t>(arguments, 2);
    if (count == 1)
        __atomic_store_n(numbers, value, __ATOMIC_RELEASE); // another kernel may wait for it (spin_until)
    else
        std::fill_n(numbers, count, value);
}

void add(const sim_launch*, void** arguments) {
    auto* const numbers = argument<std::uint32_t*>(arguments, 0);
    const auto increment = argument<std::uint32_t>(arguments, 2);
    std::for_each_n(numbers, argument<std::uint64_t>(arguments, 1),
                    [=](std::uint32_t& n) { n += increment; });
}

void copy(const sim_launch*, void** arguments) {
    std::copy_n(argument<const std::uint32_t*>(arguments, 1), argument<std::uint64_t>(arguments, 2),
                argument<std::uint32_t*>(arguments, 0));
}

void spin(const sim_launch* launch, void** arguments) {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(argument<std::uint64_t>(arguments, 0));
    while (std::chrono::steady_clock::now() < end && sim_launch_cancelled(launch) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void spin_until(const sim_launch* launch, void** arguments) {
    auto* const flag = argument<const std::uint32_t*>(arguments, 0);
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0 && sim_launch_cancelled(launch) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void fingerprint(const sim_launch* launch, void** arguments) {
    const auto* const blocks = argument<const FingerprintBlock*>(arguments, 0);
    auto* const out = argument<Fingerprint*>(arguments, 1);
    const auto count = argument<std::uint64_t>(arguments, 2);
    sim_require_access(launch, reinterpret_cast<std::uint64_t>(blocks), count * sizeof *blocks, 0);
    sim_require_access(launch, reinterpret_cast<std::uint64_t>(out), count * sizeof *out, 1);
    for (std::uint64_t i = 0; i < count; ++i) {
        auto block = blocks[i];
        block.address =
            reinterpret_cast<std::uint64_t>(sim_require_access(launch, block.address, block.bytes, 0));
        driver::fingerprint_on_host(argument<FingerprintKey>(arguments, 3), &block, out + i, 1);
        sim_require_access(launch, blocks[i].address, blocks[i].bytes, 0);
    }
}

void copy_and_fingerprint(const sim_launch* launch, void** arguments) {
    fingerprint(launch, arguments);
    const std::span blocks(argument<const FingerprintBlock*>(arguments, 0),
                           argument<std::uint64_t>(arguments, 2));
    for (const auto& block : blocks) {
        auto* const to = static_cast<std::byte*>(sim_require_access(launch, block.copy, block.bytes, 1));
        std::memcpy(to, sim_require_access(launch, block.address, block.bytes, 0), block.bytes);
        if (!Faults::instance().next_corruption(Entry::cuLaunchKernel)) continue;
        *to ^= std::byte{1};
        ++Counts::instance().corrupted_copies;
    }
}

/// Memory that a kernel reads or writes, and where this process has it.
std::span<const std::byte> to_read(const sim_launch* launch, std::uint64_t address, std::uint64_t bytes) {
    return {static_cast<const std::byte*>(sim_require_access(launch, address, bytes, 0)), bytes};
}
std::span<std::byte> to_write(const sim_launch* launch, std::uint64_t address, std::uint64_t bytes) {
    return {static_cast<std::byte*>(sim_require_access(launch, address, bytes, 1)), bytes};
}

std::span<BlockTask> tasks_of(const sim_launch* launch, void** arguments) {
    const std::span tasks(argument<BlockTask*>(arguments, 0), argument<std::uint64_t>(arguments, 1));
    sim_require_access(launch, reinterpret_cast<std::uint64_t>(tasks.data()), tasks.size_bytes(), 1);
    const auto is_misaligned = [](const BlockTask& task) {
        return task.content % 16 != 0 || task.coded % codec::k_line != 0;
    };
    // A GPU reads several values at once, or the context is lost.
    if (std::any_of(tasks.begin(), tasks.end(), is_misaligned)) sim_require_access(launch, 1, 1, 0);
    return tasks;
}

void measure_blocks(const sim_launch* launch, void** arguments) {
    for (auto& task : tasks_of(launch, arguments))
        task.plan = test::measure_block(to_read(launch, task.content, task.content_bytes));
}

void encode_blocks(const sim_launch* launch, void** arguments) {
    for (auto& task : tasks_of(launch, arguments)) {
        const auto used = test::encode_block(task.plan, to_read(launch, task.content, task.content_bytes),
                                             to_write(launch, task.coded, task.plan.coded_bytes));
        task.failed = used == 0 ? 1 : 0;
        if (used != 0) task.plan.coded_bytes = static_cast<std::uint32_t>(used);
    }
}

void decode_blocks(const sim_launch* launch, void** arguments) {
    for (auto& task : tasks_of(launch, arguments)) {
        const auto content = to_write(launch, task.content, task.content_bytes);
        const auto coded = to_read(launch, task.coded, task.plan.coded_bytes);
        if (!codec::decode_block(task.plan.block_class, coded, content)) task.failed = 1;
        if (!Faults::instance().next_corruption(Entry::cuLaunchKernel)) continue;
        content.front() ^= std::byte{1};
        ++Counts::instance().corrupted_copies;
    }
}

constexpr std::size_t k_pointer = sizeof(void*);
constexpr std::size_t k_word = sizeof(std::uint32_t);
constexpr std::size_t k_long = sizeof(std::uint64_t);

} // namespace

void add_built_in_kernels(KernelRegistry& registry) {
    registry.add("sim_fill", fill, std::array{k_pointer, k_long, k_word});
    registry.add("sim_add", add, std::array{k_pointer, k_long, k_word});
    registry.add("sim_copy", copy, std::array{k_pointer, k_pointer, k_long});
    registry.add("sim_spin", spin, std::array{k_long});
    registry.add("sim_spin_until", spin_until, std::array{k_pointer});
}

void add_product_kernels(KernelRegistry& registry) {
    registry.add("gpu_sleep_fingerprint", fingerprint,
                 std::array{k_pointer, k_pointer, k_long, sizeof(FingerprintKey)});
    registry.add("gpu_sleep_copy", copy_and_fingerprint,
                 std::array{k_pointer, k_pointer, k_long, sizeof(FingerprintKey)});
    registry.add("gpu_sleep_measure_blocks", measure_blocks, std::array{k_pointer, k_long});
    registry.add("gpu_sleep_encode_blocks", encode_blocks, std::array{k_pointer, k_long});
    registry.add("gpu_sleep_decode_blocks", decode_blocks, std::array{k_pointer, k_long});
}

} // namespace gpu_sleep::sim
