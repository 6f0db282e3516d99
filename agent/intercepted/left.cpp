// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the least size, or a rule, leaves to the driver: remembered, so that it can be told what stays on the
// GPU. Small allocations are frequent: each takes a short look at one of several tables.

#include "intercepted/left.hpp"

#include "base/guard.hpp"
#include "base/memory.hpp"
#include "common/lock_order.hpp"
#include "intercepted/pool_table.hpp"

#include <array>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

struct LeftOne {
    Bytes bytes = 0;
    Left left;
};
using LeftOnes = std::unordered_map<CUdeviceptr, LeftOne>;

/// One of several, by the address, so that threads seldom wait for each other.
struct Shard {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    LeftOnes ones GPU_SLEEP_GUARDED_BY(mutex);
};

struct Shards {
    static constexpr unsigned k_granularity_bits = 9; ///< of what the driver gives out
    std::array<Shard, 16> all;
    std::atomic<std::size_t> count{0};

    Shard& of(CUdeviceptr address) noexcept { return all[(address >> k_granularity_bits) % all.size()]; }
};

using Record = LeftOnes::node_type;

void put_back(Record record) noexcept {
    auto& shards = immortal<Shards>();
    auto& shard = shards.of(record.key());
    ignoring_errors([&] {
        const MutexLock lock(shard.mutex);
        shards.count += shard.ones.insert(std::move(record)).inserted;
    });
}

} // namespace

void left_to_driver(CUdeviceptr address, std::size_t bytes, const Left& left) noexcept {
    if (left.reason == nullptr) return;
    if (left.pool) pool_left_to_driver(left.pool);
    ignoring_errors([&] {
        auto& shards = immortal<Shards>();
        auto& shard = shards.of(address);
        const MutexLock lock(shard.mutex);
        shards.count += shard.ones.insert_or_assign(address, LeftOne{bytes, left}).second;
    });
}

CUresult free_left(CUdeviceptr address, const std::function<CUresult()>& free) noexcept {
    auto& shards = immortal<Shards>();
    if (shards.count.load(std::memory_order_relaxed) == 0) return free();
    // The record goes first: behind the free the address may at once be somebody else's.
    Record record;
    {
        auto& shard = shards.of(address);
        const MutexLock lock(shard.mutex);
        record = shard.ones.extract(address);
        shards.count -= !record.empty();
    }
    const auto status = free();
    if (status != CUDA_SUCCESS && !record.empty()) put_back(std::move(record));
    return status;
}

PutBack take_left_of(CUcontext context, bool is_primary) {
    auto taken = std::make_shared<std::vector<Record>>();
    PutBack put_all_back = [taken] {
        for (auto& record : *taken) put_back(std::move(record));
    };
    auto& shards = immortal<Shards>();
    for (auto& shard : shards.all) {
        const MutexLock lock(shard.mutex);
        for (auto next = shard.ones.begin(); next != shard.ones.end();) {
            const auto here = next++;
            const auto& left = here->second.left;
            // Memory of pools outlives contexts, but for the device's primary one.
            if (left.context != context || (left.pool && !is_primary)) continue;
            taken->emplace_back();
            taken->back() = shard.ones.extract(here);
            --shards.count;
        }
    }
    return put_all_back;
}

void add_left(std::vector<Residual>& rows) {
    for (auto& shard : immortal<Shards>().all) {
        const MutexLock lock(shard.mutex);
        for (const auto& [address, one] : shard.ones) {
            const auto* const kind = one.left.pool ? "pool" : "plain";
            add_to_sum(rows, {kind, one.left.device, one.bytes, 1, one.left.reason});
        }
    }
}

} // namespace gpu_sleep::agent::intercepted
