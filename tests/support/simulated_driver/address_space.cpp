// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Device addresses as spans of this process's own address space.

#include "support/simulated_driver/address_space.hpp"

#include "support/simulated_driver/tries.hpp"

#include "base/units.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace gpu_sleep::sim {
namespace {

constexpr int k_reserve_flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* to_pointer(std::uint64_t address) noexcept {
    return reinterpret_cast<void*>(address);
}

/// Reserves at `hint` and nowhere else; 0 if that is taken.
std::uint64_t reserve_at(std::uint64_t hint, std::uint64_t bytes) {
    void* got = ::mmap(to_pointer(hint), bytes, PROT_NONE, k_reserve_flags | MAP_FIXED_NOREPLACE, -1, 0);
    return got == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(got);
}

/// Reserves anywhere, by reserving more and trimming both ends; 0 if there is no room.
std::uint64_t reserve_aligned(std::uint64_t bytes, std::uint64_t alignment) {
    void* got = ::mmap(nullptr, bytes + alignment, PROT_NONE, k_reserve_flags, -1, 0);
    if (got == MAP_FAILED) return 0;
    const auto lowest = reinterpret_cast<std::uint64_t>(got);
    const auto begin = round_up(lowest, alignment);
    if (begin > lowest) ::munmap(got, begin - lowest);
    if (begin < lowest + alignment) ::munmap(to_pointer(begin + bytes), lowest + alignment - begin);
    return begin;
}

int protection_of(const Mapping& mapping) noexcept {
    if (mapping.writers != 0) return PROT_READ | PROT_WRITE;
    return mapping.readers != 0 ? PROT_READ : PROT_NONE;
}

bool allows(const Mapping& mapping, Accessor who, Access access) noexcept {
    const auto self = std::uint32_t{1} << who.device;
    switch (mapping.origin) {
    case Origin::managed: return true;
    case Origin::plain: return ((std::uint32_t{1} << mapping.memory->device()) & (self | who.peers)) != 0;
    default: return ((access == Access::write ? mapping.writers : mapping.readers) & self) != 0;
    }
}

} // namespace

CUresult AddressSpace::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t hint,
                               Origin origin, std::uint64_t& begin) {
    std::uint64_t got = 0;
    if (hint != 0 && hint % alignment == 0) got = reserve_at(hint, bytes);
    if (got == 0) got = reserve_aligned(bytes, alignment);
    if (got == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    reservations_.emplace(got, Reservation{bytes, origin});
    if (origin == Origin::program) ++totals_.reservations;
    begin = got;
    return CUDA_SUCCESS;
}

CUresult AddressSpace::free_reservation(std::uint64_t begin, std::uint64_t bytes) {
    const auto found = reservations_.find(begin);
    if (found == reservations_.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    const auto inside = mappings_.lower_bound(begin);
    if (inside != mappings_.end() && inside->first < begin + bytes) return CUDA_ERROR_INVALID_VALUE;
    ::munmap(to_pointer(begin), bytes);
    if (found->second.origin == Origin::program) --totals_.reservations;
    reservations_.erase(found);
    return CUDA_SUCCESS;
}

std::uint64_t AddressSpace::reservation_bytes(std::uint64_t begin) const {
    const auto found = reservations_.find(begin);
    return found == reservations_.end() ? 0 : found->second.bytes;
}

bool AddressSpace::is_reserved(std::uint64_t address) const {
    const auto after = reservations_.upper_bound(address);
    return after != reservations_.begin() &&
           address - std::prev(after)->first < std::prev(after)->second.bytes;
}

bool AddressSpace::is_allocation(std::uint64_t address) const {
    return is_reserved(address) &&
           std::prev(reservations_.upper_bound(address))->second.origin != Origin::program;
}

CUresult AddressSpace::map(std::uint64_t begin, std::shared_ptr<Physical> memory, Origin origin,
                           CUmemGenericAllocationHandle handle) {
    const auto bytes = memory->bytes();
    const auto reservation = reservations_.upper_bound(begin);
    if (reservation == reservations_.begin()) return CUDA_ERROR_INVALID_VALUE;
    const auto& [start, held] = *std::prev(reservation);
    const auto length = held.bytes;
    if (begin - start > length || bytes > length - (begin - start)) return CUDA_ERROR_INVALID_VALUE;
    const auto next = mappings_.lower_bound(begin);
    if (next != mappings_.end() && next->first < begin + bytes) return CUDA_ERROR_INVALID_VALUE;
    if (next != mappings_.begin() && std::prev(next)->second.end() > begin) return CUDA_ERROR_INVALID_VALUE;
    Mapping mapping;
    mapping.begin = begin;
    mapping.bytes = bytes;
    mapping.memory = std::move(memory);
    mapping.since = ++generation_;
    mapping.origin = origin;
    mapping.handle = handle;
    mappings_.emplace_hint(next, begin, std::move(mapping));
    if (origin == Origin::program) {
        ++totals_.mappings;
        totals_.mapped_bytes += bytes;
    }
    return CUDA_SUCCESS;
}

CUresult AddressSpace::place(std::shared_ptr<Physical> memory, Origin origin, int device,
                             std::uint64_t& begin) {
    const auto bytes = memory->bytes();
    SIM_TRY(reserve(bytes, k_page, 0, origin, begin));
    auto status = map(begin, std::move(memory), origin);
    if (status == CUDA_SUCCESS)
        status = set_access(begin, bytes, std::uint32_t{1} << device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    if (status != CUDA_SUCCESS) remove(begin);
    return status;
}

void AddressSpace::remove(std::uint64_t begin) {
    const auto bytes = reservation_bytes(begin);
    unmap(begin, bytes);
    free_reservation(begin, bytes);
}

std::optional<std::pair<AddressSpace::Mappings::iterator, AddressSpace::Mappings::iterator>>
AddressSpace::whole_mappings(std::uint64_t begin, std::uint64_t bytes) {
    const auto first = mappings_.lower_bound(begin);
    const auto last = mappings_.lower_bound(begin + bytes);
    const auto before = [&](Mappings::iterator it) { return std::prev(it)->second.end(); };
    if (first != mappings_.begin() && before(first) > begin) return std::nullopt;
    if (first != last && before(last) > begin + bytes) return std::nullopt;
    return std::pair{first, last};
}

AddressSpace::Mappings::iterator AddressSpace::end_of_run(Mappings::iterator first, Mappings::iterator last) {
    auto reached = first->first;
    for (; first != last && first->first == reached; ++first) reached = first->second.end();
    return first;
}

CUresult AddressSpace::unmap(std::uint64_t begin, std::uint64_t bytes) {
    const auto span = whole_mappings(begin, bytes);
    if (!span || bytes == 0 || !is_reserved(begin)) return CUDA_ERROR_INVALID_VALUE;
    for (auto first = span->first; first != span->second;) {
        const auto next = end_of_run(first, span->second);
        const auto from = first->first;
        const auto length = std::prev(next)->second.end() - from;
        const auto is_shown = [](const auto& m) { return m.second.protection != PROT_NONE; };
        if (std::any_of(first, next, is_shown) &&
            ::mmap(to_pointer(from), length, PROT_NONE, k_reserve_flags | MAP_FIXED, -1, 0) == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (first->second.origin == Origin::program) { // a reservation holds one origin
            totals_.mappings -= static_cast<std::uint64_t>(std::distance(first, next));
            totals_.mapped_bytes -= length;
        }
        first = mappings_.erase(first, next);
    }
    ++generation_;
    return CUDA_SUCCESS;
}

CUresult AddressSpace::show(Mappings::iterator first, Mappings::iterator last, int protection) {
    while (first != last) {
        // Neighbours in memory that are neighbours in the file take one system call.
        const auto begin = first->second.begin;
        const auto fd = first->second.memory->fd();
        const auto offset = first->second.memory->offset();
        auto reached = begin;
        auto next = first;
        const bool is_resident = next->second.memory->window() != nullptr;
        while (next != last && next->second.memory->fd() == fd && next->second.begin == reached &&
               next->second.memory->offset() == offset + (reached - begin) &&
               (next->second.memory->window() != nullptr) == is_resident) {
            reached = next->second.end();
            ++next;
        }
        // Faults page by page would be a fifth of a sweep's time.
        void* shown = ::mmap(to_pointer(begin), reached - begin, protection,
                             MAP_SHARED | MAP_FIXED | MAP_NORESERVE | (is_resident ? MAP_POPULATE : 0), fd,
                             static_cast<off_t>(offset));
        if (shown == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
        for (; first != next; ++first) first->second.protection = protection;
    }
    return CUDA_SUCCESS;
}

CUresult AddressSpace::set_access(std::uint64_t begin, std::uint64_t bytes, std::uint32_t devices,
                                  CUmemAccess_flags flags) {
    const auto span = whole_mappings(begin, bytes);
    if (!span || span->first == span->second || span->first->first != begin ||
        std::prev(span->second)->second.end() != begin + bytes)
        return CUDA_ERROR_INVALID_VALUE;
    const auto hole = end_of_run(span->first, span->second); // what lies behind it keeps what it had
    for (auto it = span->first; it != hole; ++it) {
        auto& mapping = it->second;
        mapping.readers =
            flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? mapping.readers & ~devices : mapping.readers | devices;
        mapping.writers = flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? mapping.writers | devices
                                                                      : mapping.writers & ~devices;
    }
    for (auto it = span->first; it != hole;) {
        const auto wanted = protection_of(it->second);
        auto next = it;
        while (next != hole && protection_of(next->second) == wanted &&
               next->second.protection == it->second.protection)
            ++next;
        if (it->second.protection != wanted) SIM_TRY(show(it, next, wanted));
        it = next;
    }
    return CUDA_SUCCESS;
}

CUresult AddressSpace::remap(const Physical& memory) {
    for (auto it = mappings_.begin(); it != mappings_.end(); ++it) {
        if (it->second.memory.get() != &memory || it->second.protection == PROT_NONE) continue;
        SIM_TRY(show(it, std::next(it), it->second.protection));
    }
    return CUDA_SUCCESS;
}

const Mapping* AddressSpace::find(std::uint64_t address) const {
    const auto after = mappings_.upper_bound(address);
    if (after == mappings_.begin()) return nullptr;
    const auto& mapping = std::prev(after)->second;
    return address < mapping.end() ? &mapping : nullptr;
}

std::byte* AddressSpace::bytes_at(std::uint64_t begin, std::uint64_t bytes) const {
    const auto* mapping = find(begin);
    auto* window = mapping && bytes <= mapping->end() - begin ? mapping->memory->window() : nullptr;
    return window ? window + (begin - mapping->begin) : static_cast<std::byte*>(to_pointer(begin));
}

bool AddressSpace::accessible(std::uint64_t begin, std::uint64_t bytes, Accessor who, Access access,
                              Generation as_of) const {
    for (auto address = begin; address - begin < bytes;) {
        const auto* mapping = find(address);
        if (!mapping || mapping->since > as_of) return false;
        if (!allows(*mapping, who, access)) return false;
        address = mapping->end();
    }
    return true;
}

} // namespace gpu_sleep::sim
