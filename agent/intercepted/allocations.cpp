// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The index of allocations, those of the C API among them.

#include "intercepted/allocations.hpp"

#include "intercepted/answer.hpp"

#include <iterator>
#include <utility>

namespace gpu_sleep::agent::intercepted {

Allocations::Record Allocations::make_record(const Allocation& allocation) {
    std::map<CUdeviceptr, Allocation> made;
    made.emplace(allocation.address, allocation);
    return made.extract(made.begin());
}

void Allocations::add(Record record) noexcept {
    const AloneLock lock(mutex_);
    record.key() = record.mapped().address;
    record.mapped().id = next_id_++;
    by_address_.erase(record.key());
    by_address_.insert(std::move(record));
}

std::optional<Allocation> Allocations::take(CUdeviceptr address) {
    const AloneLock lock(mutex_);
    const auto found = by_address_.find(address);
    if (found == by_address_.end()) return std::nullopt;
    const auto allocation = found->second;
    by_address_.erase(found);
    return allocation;
}

Allocations::Record Allocations::extract(CUdeviceptr address) {
    const AloneLock lock(mutex_);
    return by_address_.extract(address);
}

std::map<CUdeviceptr, Allocation> Allocations::extract(const std::function<bool(const Allocation&)>& wanted) {
    const AloneLock lock(mutex_);
    return move_out(by_address_, [&](const auto& entry) { return wanted(entry.second); });
}

void Allocations::put_back(Record record) {
    const AloneLock lock(mutex_);
    by_address_.insert(std::move(record));
}

void Allocations::put_back(std::map<CUdeviceptr, Allocation>& records) {
    const AloneLock lock(mutex_);
    by_address_.merge(records);
}

void Allocations::change(const std::function<void(Allocation&)>& body) {
    const AloneLock lock(mutex_);
    for (auto& [address, allocation] : by_address_) body(allocation);
}

void Allocations::change(CUdeviceptr address, const std::function<void(Allocation&)>& body) {
    const AloneLock lock(mutex_);
    const auto found = by_address_.find(address);
    if (found != by_address_.end()) body(found->second);
}

std::optional<Allocation> Allocations::find(CUdeviceptr address) const {
    const SharedLock lock(mutex_);
    const auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) return std::nullopt;
    const auto& allocation = std::prev(after)->second;
    return address - allocation.address < allocation.bytes ? std::optional(allocation) : std::nullopt;
}

bool Allocations::has_ours_in(CUdeviceptr begin, std::size_t bytes) const {
    const SharedLock lock(mutex_);
    for (auto next = by_address_.lower_bound(begin); next != by_address_.end() && next->first - begin < bytes;
         ++next)
        if (!next->second.is_virtual || next->second.is_own) return true;
    return false;
}

std::vector<Allocation> Allocations::all(const std::function<bool(const Allocation&)>& wanted) const {
    const SharedLock lock(mutex_);
    std::vector<Allocation> found;
    for (const auto& [address, allocation] : by_address_)
        if (wanted(allocation)) found.push_back(allocation);
    return found;
}

bool is_range_of_ours(CUdeviceptr begin, std::size_t bytes) noexcept {
    return immortal<Allocations>().has_ours_in(begin, bytes);
}

std::optional<Allocation> find(CUdeviceptr address) noexcept {
    return immortal<Allocations>().find(address);
}

} // namespace gpu_sleep::agent::intercepted
