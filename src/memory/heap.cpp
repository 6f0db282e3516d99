// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating and freeing ranges.

#include "memory/heap.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "driver/context.hpp"

#include <algorithm>

namespace gpu_sleep::memory {

using driver::AddressSpan;
using driver::DeviceAddress;
using ledger::Backing;

namespace {

/// How long a shortage of memory is doubted at an allocation: the driver scrubs released memory in the
/// background.
constexpr Milliseconds k_create_patience{50};

Error no_place(Bytes bytes) {
    return make_error(ErrorCode::internal, "no room for {} where there should be some", format_bytes(bytes));
}

} // namespace

Result<Heap::Device*> Heap::device(int ordinal) {
    if (const auto known = devices_.find(ordinal); known != devices_.end()) return &known->second;
    const auto count = driver::device_count(api_);
    if (!count) return count.error();
    if (ordinal < 0 || ordinal >= std::min(*count, driver::k_max_devices))
        return make_error(ErrorCode::invalid_argument, "there is no device {}: the process has {}", ordinal,
                          *count);
    const auto memory = driver::device_memory(api_, ordinal);
    if (!memory) return memory.error();
    auto kind = driver::MemoryKind::of_device(api_, ordinal);
    if (!kind) return std::move(kind).error();
    return &devices_.emplace(ordinal, Device{*kind, *memory, {}}).first->second;
}

std::vector<int> Heap::devices() const {
    std::vector<int> ordinals;
    for (const auto& [ordinal, device] : devices_) ordinals.push_back(ordinal);
    return ordinals;
}

Result<DeviceAddress> Heap::reserve(Pool& pool, const Device& device, Bytes bytes) {
    for (auto& [base, region] : pool.regions)
        if (const auto offset = region.spans.allocate(bytes)) return base + *offset;
    // Address space costs nothing: a region as large as the device rarely needs a second one.
    const auto granularity = device.kind.granularity();
    const auto region_bytes = std::max(round_up(device.memory, k_gib), round_up(bytes, k_gib));
    auto reservation = driver::VaReservation::create(api_, region_bytes);
    if (!reservation && region_bytes > bytes) reservation = driver::VaReservation::create(api_, bytes);
    if (!reservation) return std::move(reservation).error();
    const auto span = reservation->span();
    Region region{*std::move(reservation), SpanAllocator(span.bytes, granularity)};
    const auto offset = region.spans.allocate(bytes);
    if (!offset) return no_place(bytes);
    pool.regions.emplace(span.address, std::move(region));
    return span.address + *offset;
}

void Heap::unreserve(Pool& pool, DeviceAddress address) {
    const auto region = std::prev(pool.regions.upper_bound(address));
    region->second.spans.free(address - region->first);
    if (region->second.spans.is_empty()) pool.regions.erase(region);
}

Result<Backing*> Heap::add_range(Pool& pool, const Device& device, ledger::TagId tag, Bytes bytes,
                                 const driver::MemoryKind& kind) {
    auto address = reserve(pool, device, bytes);
    if (!address) return std::move(address).error();
    auto range = guarded([&] { return back({*address, bytes}, kind, tag); });
    if (!range)
        ignoring_errors([&] { unreserve(pool, *address); }); // else addresses are lost, which are plenty
    return range;
}

Result<Backing*> Heap::back(AddressSpan span, const driver::MemoryKind& kind, ledger::TagId tag) {
    auto memory = kind.create(api_, span.bytes, k_create_patience);
    if (!memory) return std::move(memory).error();
    GPU_SLEEP_TRY(driver::map(api_, span, memory->get()));
    auto added = guarded([&]() -> Result<Backing*> {
        const auto mask = driver::DeviceMask{1} << kind.device();
        GPU_SLEEP_TRY(driver::set_access(api_, span, mask));
        Backing backing;
        backing.address = span.address;
        backing.bytes = span.bytes;
        backing.tag = tag;
        backing.device = kind.device();
        backing.access = mask;
        backing.mapped = true;
        backing.handle = memory->get();
        backing.host_backed = kind.is_of_host();
        return &ledger_.add(std::move(backing));
    });
    if (added)
        static_cast<void>(memory->release()); // the ledger's now
    else
        ignoring_errors([&] { static_cast<void>(driver::unmap(api_, span)); });
    return added;
}

Result<Freed> Heap::remove_range(Pool& pool, Backing& backing) {
    if (backing.mapped) GPU_SLEEP_TRY(driver::unmap(api_, {backing.address, backing.bytes}));
    auto removed = ledger_.remove(backing.address);
    if (removed.handle != 0) static_cast<void>(driver::PhysicalMemory(api_, removed.handle));
    ignoring_errors([&] { unreserve(pool, removed.address); }); // else addresses are lost, which are plenty
    return Freed{removed.kept.range};
}

Result<DeviceAddress> Heap::allocate(int ordinal, ledger::TagId tag, Bytes bytes) {
    if (bytes == 0) return make_error(ErrorCode::invalid_argument, "cannot allocate zero bytes");
    auto known = device(ordinal);
    if (!known) return std::move(known).error();
    const auto& device = **known;
    if (bytes > device.memory)
        return make_error(ErrorCode::out_of_device_memory, "cannot allocate {}: GPU {} has {} in all",
                          format_bytes(bytes), ordinal, format_bytes(device.memory));
    if (bytes <= k_largest_small) return allocate_small(pools_[{ordinal, tag}], device, tag, bytes);
    return allocate_range(device, tag, bytes, device.kind);
}

Result<DeviceAddress> Heap::allocate_in_host_memory(int ordinal, ledger::TagId tag, Bytes bytes) {
    auto known = device(ordinal);
    if (!known) return std::move(known).error();
    auto& device = **known;
    if (!device.host_kind) {
        auto kind = driver::MemoryKind::of_host_near(api_, ordinal);
        if (!kind) return std::move(kind).error();
        device.host_kind = *kind;
    }
    return allocate_range(device, tag, bytes, *device.host_kind);
}

Result<DeviceAddress> Heap::allocate_range(const Device& device, ledger::TagId tag, Bytes bytes,
                                           const driver::MemoryKind& kind) {
    auto& pool = pools_[{kind.device(), tag}];
    auto backing = add_range(pool, device, tag, round_up(bytes, device.kind.granularity()), kind);
    if (!backing) return std::move(backing).error();
    (*backing)->allocated = bytes;
    return (*backing)->address;
}

Result<Freed> Heap::free(DeviceAddress address) {
    auto* backing = ledger_.find(address);
    if (!backing || (!backing->shared && backing->address != address))
        return make_error(ErrorCode::not_owned, "{:#x} is not the start of an allocation", address);
    return backing->shared ? free_small(*backing, address) : remove_range(pool_of(*backing), *backing);
}

void Heap::update_space(Pool& pool, const Block& block, Bytes before) {
    auto entry = pool.blocks_by_space.extract({before, block.address}); // moved: that takes no memory
    entry.value().first = block.spans.largest_free();
    pool.blocks_by_space.insert(std::move(entry));
}

Result<DeviceAddress> Heap::allocate_small(Pool& pool, const Device& device, ledger::TagId tag, Bytes bytes) {
    const auto rounded = round_up(bytes, k_alignment);
    // Only a range that is awake may take new allocations: memory allocated while its tag sleeps is awake. In
    // a range that must stay they could never sleep.
    const auto takes_no_more = [&](DeviceAddress block) {
        const auto* backing = ledger_.find(block);
        return backing->is_asleep() || backing->stay_reason || backing->host_backed;
    };
    auto fit = pool.blocks_by_space.lower_bound({rounded, 0});
    while (fit != pool.blocks_by_space.end() && takes_no_more(fit->second)) ++fit;
    if (fit == pool.blocks_by_space.end()) return allocate_in_new_block(pool, device, tag, rounded);
    auto& block = pool.blocks.at(fit->second);
    const auto before = fit->first;
    const auto offset = block.spans.allocate(rounded);
    if (!offset) return no_place(rounded);
    update_space(pool, block, before);
    ledger_.find(block.address)->allocated += rounded;
    return block.address + *offset;
}

Result<DeviceAddress> Heap::allocate_in_new_block(Pool& pool, const Device& device, ledger::TagId tag,
                                                  Bytes bytes) {
    // What takes memory comes first: once there is a range, nothing may fail.
    std::map<DeviceAddress, Block> block;
    auto& spans =
        block.emplace(0, Block{0, SpanAllocator(device.kind.granularity(), k_alignment)}).first->second.spans;
    const auto offset = spans.allocate(bytes);
    if (!offset) return no_place(bytes);
    std::set<std::pair<Bytes, DeviceAddress>> space{{spans.largest_free(), 0}};
    auto backing = add_range(pool, device, tag, device.kind.granularity(), device.kind);
    if (!backing) return std::move(backing).error();
    const auto address = (*backing)->address;
    (*backing)->shared = true;
    (*backing)->allocated = bytes;
    auto block_entry = block.extract(block.begin());
    block_entry.key() = address;
    block_entry.mapped().address = address;
    pool.blocks.insert(std::move(block_entry));
    auto space_entry = space.extract(space.begin());
    space_entry.value().second = address;
    pool.blocks_by_space.insert(std::move(space_entry));
    return address + *offset;
}

Result<Freed> Heap::free_small(Backing& backing, DeviceAddress address) {
    auto& pool = pool_of(backing);
    auto& block = pool.blocks.at(backing.address);
    const auto before = block.spans.largest_free();
    const auto offset = address - backing.address;
    const auto bytes = block.spans.allocated_at(offset);
    if (!bytes) return make_error(ErrorCode::not_owned, "{:#x} is not the start of an allocation", address);
    // What takes memory comes first: without it all is as before.
    ledger::Ledger::forget_preserved(backing, {offset, *bytes});
    block.spans.free(offset);
    update_space(pool, block, before);
    backing.allocated -= *bytes;
    if (!block.spans.is_empty()) return Freed{};

    const auto space = std::pair(block.spans.largest_free(), block.address);
    auto freed = guarded([&] { return remove_range(pool, backing); });
    if (!freed) {
        // The allocation is gone, only its empty range could not be: it stays for the next ones. Nothing may
        // be thrown: somebody else may soon be given what would then be freed again.
        ignoring_errors(
            [&] { log::warning("an empty range could not be freed: {}", freed.error().message); });
        return Freed{};
    }
    pool.blocks_by_space.erase(space);
    pool.blocks.erase(space.second);
    return freed;
}

Result<Heap::Place> Heap::locate(DeviceAddress address) {
    auto* backing = ledger_.find(address);
    if (!backing) return make_error(ErrorCode::not_owned, "{:#x} is not in an agent allocation", address);
    if (!backing->shared) return Place{backing, {0, backing->allocated}};
    const auto& block = pool_of(*backing).blocks.at(backing->address);
    const auto begin = block.spans.allocation_holding(address - backing->address);
    if (!begin) return make_error(ErrorCode::not_owned, "{:#x} is not in an agent allocation", address);
    return Place{backing, {*begin, block.spans.allocated_at(*begin).value_or(0)}};
}

Result<void> Heap::allow_access(DeviceAddress address, int ordinal) {
    auto place = locate(address);
    if (!place) return std::move(place).error();
    if (auto known = device(ordinal); !known) return std::move(known).error();
    auto& backing = *place->backing;
    const auto mask = backing.access | driver::DeviceMask{1} << ordinal;
    if (ordinal != backing.device) {
        const auto reaches = driver::can_reach(api_, ordinal, backing.device);
        if (!reaches) return reaches.error();
        if (!*reaches)
            return make_error(ErrorCode::invalid_argument, "GPU {} cannot reach memory of GPU {}", ordinal,
                              backing.device);
    }
    if (backing.mapped) GPU_SLEEP_TRY(driver::set_access(api_, {backing.address, backing.bytes}, mask));
    backing.access = mask;
    return {};
}

} // namespace gpu_sleep::memory
