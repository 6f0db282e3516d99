// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory is recorded so that it can be told what stays on the GPU.

#include "registry/residual.hpp"

#include "base/guard.hpp"
#include "registry/allocations.hpp"

namespace gpu_sleep::agent::registry {

void add_to_sum(std::vector<Residual>& sums, const Residual& row) {
    const auto same = std::find_if(sums.begin(), sums.end(), [&](const Residual& s) {
        return std::string_view(s.kind) == row.kind && s.device == row.device &&
               std::string_view(s.reason) == row.reason;
    });
    if (same == sums.end()) return sums.push_back(row);
    same->bytes += row.bytes;
    same->count += row.count;
}

void ResidualRecords::handle_taken(CUmemGenericAllocationHandle handle) noexcept {
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        ++foreign_[handle].references;
    });
}

void ResidualRecords::handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept {
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        foreign_[handle].shared = how;
    });
}

void ResidualRecords::handle_released(CUmemGenericAllocationHandle handle) noexcept {
    const MutexLock lock(mutex_);
    const auto found = foreign_.find(handle);
    if (found == foreign_.end()) return;
    if (found->second.references != 0) --found->second.references;
    forget_if_unused(handle);
}

void ResidualRecords::forget_if_unused(CUmemGenericAllocationHandle handle) {
    const auto found = foreign_.find(handle);
    if (found != foreign_.end() && found->second.references == 0 && found->second.mappings == 0)
        foreign_.erase(found);
}

bool ResidualRecords::mapped(CUdeviceptr address, CUmemGenericAllocationHandle handle) noexcept {
    bool is_imported = false;
    ignoring_errors([&] {
        const MutexLock lock(mutex_);
        auto& foreign = foreign_[handle];
        foreign_mappings_.insert_or_assign(address, handle);
        ++foreign.mappings;
        is_imported = foreign.shared == k_of_another_process;
    });
    return is_imported;
}

std::optional<CUdeviceptr> ResidualRecords::take_mapping(CUdeviceptr address, std::size_t bytes) noexcept {
    const MutexLock lock(mutex_);
    const auto first = foreign_mappings_.lower_bound(address);
    if (first == foreign_mappings_.end() || first->first >= address + bytes) return std::nullopt;
    const auto [at, handle] = *first;
    foreign_mappings_.erase(first);
    --foreign_.at(handle).mappings;
    forget_if_unused(handle);
    return at;
}

void ResidualRecords::unmapped(CUdeviceptr address, std::size_t bytes) noexcept {
    while (const auto at = take_mapping(address, bytes)) take(*at);
}

ResidualRecords::Shard& ResidualRecords::shard_of(CUdeviceptr address) noexcept {
    constexpr unsigned k_granularity_bits = 9; // of what the driver gives out
    return shards_[(address >> k_granularity_bits) % shards_.size()];
}

void ResidualRecords::add(CUdeviceptr address, const ResidualRecord& record) noexcept {
    ignoring_errors([&] {
        auto& shard = shard_of(address);
        const MutexLock lock(shard.mutex);
        count_ += shard.records.insert_or_assign(address, record).second;
    });
}

ResidualRecords::Node ResidualRecords::take(CUdeviceptr address) noexcept {
    auto& shard = shard_of(address);
    const MutexLock lock(shard.mutex);
    auto record = shard.records.extract(address);
    count_ -= !record.empty();
    return record;
}

void ResidualRecords::put_back(Node record) noexcept {
    ignoring_errors([&] {
        auto& shard = shard_of(record.key());
        const MutexLock lock(shard.mutex);
        count_ += shard.records.insert(std::move(record)).inserted;
    });
}

ResidualRecords::Taken ResidualRecords::take(CUcontext context, bool is_primary) noexcept {
    Taken taken;
    for (auto& shard : shards_) {
        const MutexLock lock(shard.mutex);
        for (auto next = shard.records.begin(); next != shard.records.end();) {
            const auto here = next++;
            if (here->second.context != context || (here->second.pool && !is_primary)) continue;
            auto record = shard.records.extract(here);
            --count_;
            ignoring_errors([&] { taken.push_back(std::move(record)); });
        }
    }
    return taken;
}

void ResidualRecords::add_to(std::vector<Residual>& sums) const {
    {
        const MutexLock lock(mutex_);
        // On the host, or not mapped: it takes nothing of a GPU, and decides what the driver can do.
        for (const auto& [handle, foreign] : foreign_)
            if (foreign.shared && (foreign.shared == k_exported || foreign.mappings == 0))
                add_to_sum(sums, {"virtual", 0, 0, 1, foreign.shared});
    }
    for (const auto& shard : shards_) {
        const MutexLock lock(shard.mutex);
        for (const auto& [address, one] : shard.records)
            add_to_sum(sums, {one.kind, one.device, one.bytes, 1, one.reason});
    }
}

} // namespace gpu_sleep::agent::registry
