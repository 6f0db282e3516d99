// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Page-locked host memory.

#include "support/simulated_driver/host_memory.hpp"

#include "base/units.hpp"
#include "support/simulated_driver/checkpoint_gate.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

namespace gpu_sleep::sim {
namespace {

/// Whether this process has something at every page of the span.
bool is_mapped(std::uint64_t begin, std::uint64_t bytes) {
    constexpr std::uint64_t k_pages_at_once = 1 << 16;
    const auto first = begin & ~(k_page - 1);
    const auto last = round_up(begin + bytes, k_page);
    std::vector<unsigned char> residence(std::min(k_pages_at_once, (last - first) / k_page));
    for (auto at = first; at < last; at += k_pages_at_once * k_page) {
        const auto piece = std::min(k_pages_at_once * k_page, last - at);
        if (::mincore(reinterpret_cast<void*>(at), piece, residence.data()) != 0) return false;
    }
    return true;
}

} // namespace

CUresult HostMemory::add(HostRange range) {
    if (range.begin == 0 || range.bytes == 0 || range.begin + range.bytes < range.begin)
        return CUDA_ERROR_INVALID_VALUE;
    if (overlaps(range.begin, range.bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!is_mapped(range.begin, range.bytes)) return CUDA_ERROR_INVALID_VALUE;
    range.since = ++generation_;
    bytes_ += range.bytes;
    ranges_.emplace(range.begin, range);
    note_registered(range.begin, range.bytes);
    return CUDA_SUCCESS;
}

CUresult HostMemory::allocate(HostRange range, std::uint64_t& begin) {
    void* memory = ::mmap(nullptr, round_up(range.bytes, k_page), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    begin = reinterpret_cast<std::uint64_t>(memory);
    range.begin = begin;
    range.allocated = true;
    range.since = ++generation_;
    bytes_ += range.bytes;
    ranges_.emplace(begin, range);
    return CUDA_SUCCESS;
}

HostMemory::Ranges::iterator HostMemory::erase(Ranges::iterator it) {
    const auto& range = it->second;
    if (range.allocated) ::munmap(reinterpret_cast<void*>(range.begin), round_up(range.bytes, k_page));
    bytes_ -= range.bytes;
    note_unregistered(range.begin);
    return ranges_.erase(it);
}

CUresult HostMemory::remove(std::uint64_t begin) {
    const auto found = ranges_.find(begin);
    if (found == ranges_.end())
        return find(begin) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (found->second.allocated) return CUDA_ERROR_INVALID_VALUE;
    erase(found);
    return CUDA_SUCCESS;
}

CUresult HostMemory::free(std::uint64_t begin) {
    const auto found = ranges_.find(begin);
    if (found == ranges_.end() || !found->second.allocated) return CUDA_ERROR_INVALID_VALUE;
    erase(found);
    return CUDA_SUCCESS;
}

void HostMemory::remove_all_of(const Context* owner) {
    for (auto it = ranges_.begin(); it != ranges_.end();)
        it = it->second.owner == owner ? erase(it) : std::next(it);
}

const HostRange* HostMemory::find(std::uint64_t address) const {
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin()) return nullptr;
    const auto& range = std::prev(after)->second;
    return address - range.begin < range.bytes ? &range : nullptr;
}

bool HostMemory::covers(std::uint64_t begin, std::uint64_t bytes, Generation as_of) const {
    for (auto address = begin; address - begin < bytes;) {
        const auto* range = find(address);
        if (!range || range->since > as_of) return false;
        address = range->begin + range->bytes;
    }
    return true;
}

bool HostMemory::overlaps(std::uint64_t begin, std::uint64_t bytes) const {
    const auto next = ranges_.lower_bound(begin);
    return find(begin) != nullptr || (next != ranges_.end() && next->first - begin < bytes);
}

} // namespace gpu_sleep::sim
