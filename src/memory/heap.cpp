// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocating and freeing ranges, and parts of them: best fit, neighbours joined.

#include "memory/heap.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "driver/context.hpp"

#include <algorithm>
#include <iterator>

namespace gpu_sleep::memory {

SpanAllocator::SpanAllocator(Bytes bytes, Bytes step) : step_(step) {
    insert_free(0, bytes);
}

void SpanAllocator::insert_free(Bytes offset, Bytes bytes) {
    free_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
}

void SpanAllocator::erase_free(std::map<Bytes, Bytes>::iterator at) {
    by_size_.erase({at->second, at->first});
    free_.erase(at);
}

std::optional<Bytes> SpanAllocator::allocate(Bytes bytes) {
    const auto rounded = round_up(bytes, step_);
    const auto fit = by_size_.lower_bound({rounded, 0});
    if (rounded == 0 || fit == by_size_.end()) return std::nullopt;
    const auto [length, offset] = *fit;
    allocated_.emplace(offset,
                       rounded); // takes all the memory that is needed: where there is none, nothing changes
    auto size = by_size_.extract(fit);
    auto span = free_.extract(offset);
    if (length == rounded) return offset;
    size.value() = {length - rounded, offset + rounded};
    by_size_.insert(std::move(size));
    span.key() = offset + rounded;
    span.mapped() = length - rounded;
    free_.insert(std::move(span));
    return offset;
}

std::optional<Bytes> SpanAllocator::free(Bytes offset) {
    const auto at = allocated_.find(offset);
    if (at == allocated_.end()) return std::nullopt;
    const auto length = at->second;
    // The memory first, so that nothing has changed where there is none.
    auto size = by_size_.extract(by_size_.emplace(length, offset).first);
    auto span = allocated_.extract(at);

    auto begin = offset;
    auto end = offset + length;
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
            begin = previous->first;
            erase_free(previous);
        }
    }
    if (const auto after = free_.find(end); after != free_.end()) {
        end += after->second;
        erase_free(after);
    }
    span.key() = begin;
    span.mapped() = end - begin;
    free_.insert(std::move(span));
    size.value() = {end - begin, begin};
    by_size_.insert(std::move(size));
    return length;
}

std::optional<Bytes> SpanAllocator::allocated_at(Bytes offset) const {
    const auto at = allocated_.find(offset);
    return at == allocated_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Bytes> SpanAllocator::allocation_holding(Bytes offset) const {
    auto after = allocated_.upper_bound(offset);
    if (after == allocated_.begin()) return std::nullopt;
    --after;
    return offset < after->first + after->second ? std::optional(after->first) : std::nullopt;
}

using driver::AddressSpan;
using driver::DeviceAddress;
using ledger::Backing;

namespace {

/// How long a shortage of memory is doubted at an allocation: the driver scrubs released memory in the
/// background.
constexpr Milliseconds k_create_patience{50};

Error no_place(Bytes bytes) {
    return make_error(ErrorCode::internal, "a range lacks room for {}", format_bytes(bytes));
}

} // namespace

Result<Heap::Device*> Heap::device(int ordinal) {
    if (const auto known = devices_.find(ordinal); known != devices_.end()) return &known->second;
    const auto count = GPU_SLEEP_TRY(driver::device_count(api_));
    if (ordinal < 0 || ordinal >= std::min(count, driver::k_max_devices))
        return make_error(ErrorCode::invalid_argument, "there is no device {}: the process has {}", ordinal,
                          count);
    const auto memory = GPU_SLEEP_TRY(driver::device_memory(api_, ordinal));
    auto kind = GPU_SLEEP_TRY(driver::MemoryKind::of_device(api_, ordinal));
    return &devices_.emplace(ordinal, Device{kind, memory, {}}).first->second;
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
    auto address = GPU_SLEEP_TRY(reserve(pool, device, bytes));
    auto range = guarded([&] { return back({address, bytes}, kind, tag); });
    if (!range)
        ignoring_errors([&] { unreserve(pool, address); }); // else addresses are lost, which are plenty
    return range;
}

Result<Backing*> Heap::back(AddressSpan span, const driver::MemoryKind& kind, ledger::TagId tag) {
    auto memory = GPU_SLEEP_TRY(kind.create(api_, span.bytes, k_create_patience));
    GPU_SLEEP_TRY(driver::map(api_, span, memory.get()));
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
        backing.handle = memory.get();
        backing.host_backed = kind.is_of_host();
        return &ledger_.add(std::move(backing));
    });
    if (added)
        static_cast<void>(memory.release()); // the ledger's now
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
    auto known = GPU_SLEEP_TRY(device(ordinal));
    const auto& device = *known;
    if (bytes > device.memory)
        return make_error(ErrorCode::out_of_device_memory, "cannot allocate {}: GPU {} has {} in all",
                          format_bytes(bytes), ordinal, format_bytes(device.memory));
    if (bytes <= k_largest_small) return allocate_small(pools_[{ordinal, tag}], device, tag, bytes);
    return allocate_range(device, tag, bytes, device.kind);
}

Result<DeviceAddress> Heap::allocate_in_host_memory(int ordinal, ledger::TagId tag, Bytes bytes) {
    auto known = GPU_SLEEP_TRY(device(ordinal));
    auto& device = *known;
    if (!device.host_kind) {
        device.host_kind = GPU_SLEEP_TRY(driver::MemoryKind::of_host_near(api_, ordinal));
    }
    return allocate_range(device, tag, bytes, *device.host_kind);
}

Result<DeviceAddress> Heap::allocate_range(const Device& device, ledger::TagId tag, Bytes bytes,
                                           const driver::MemoryKind& kind) {
    auto& pool = pools_[{kind.device(), tag}];
    auto* const backing =
        GPU_SLEEP_TRY(add_range(pool, device, tag, round_up(bytes, device.kind.granularity()), kind));
    backing->allocated = bytes;
    return backing->address;
}

Result<Freed> Heap::free(DeviceAddress address) {
    auto* backing = ledger_.find(address);
    if (!backing || (!backing->shared && backing->address != address))
        return make_error(ErrorCode::not_owned, "{:#x} is not the start of an allocation", address);
    return backing->shared ? free_small(*backing, address) : remove_range(pool_of(*backing), *backing);
}

void Heap::update_space(Pool& pool, DeviceAddress block, Bytes before) {
    auto entry = pool.blocks_by_space.extract({before, block}); // moved: that takes no memory
    entry.value().first = pool.blocks.at(block).largest_free();
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
    const auto [before, block] = *fit;
    const auto offset = pool.blocks.at(block).allocate(rounded);
    if (!offset) return no_place(rounded);
    update_space(pool, block, before);
    ledger_.find(block)->allocated += rounded;
    return block + *offset;
}

Result<DeviceAddress> Heap::allocate_in_new_block(Pool& pool, const Device& device, ledger::TagId tag,
                                                  Bytes bytes) {
    // Host memory is taken first: once there is a range, nothing may fail.
    std::map<DeviceAddress, SpanAllocator> block;
    auto& spans = block.try_emplace(0, device.kind.granularity(), k_alignment).first->second;
    const auto offset = spans.allocate(bytes);
    if (!offset) return no_place(bytes);
    std::set<std::pair<Bytes, DeviceAddress>> space{{spans.largest_free(), 0}};
    auto* const backing = GPU_SLEEP_TRY(add_range(pool, device, tag, device.kind.granularity(), device.kind));
    const auto address = backing->address;
    backing->shared = true;
    backing->allocated = bytes;
    auto block_entry = block.extract(block.begin());
    block_entry.key() = address;
    pool.blocks.insert(std::move(block_entry));
    auto space_entry = space.extract(space.begin());
    space_entry.value().second = address;
    pool.blocks_by_space.insert(std::move(space_entry));
    return address + *offset;
}

Result<Freed> Heap::free_small(Backing& backing, DeviceAddress address) {
    auto& pool = pool_of(backing);
    const auto block = backing.address;
    auto& spans = pool.blocks.at(block);
    const auto before = spans.largest_free();
    const auto offset = address - block;
    const auto bytes = spans.allocated_at(offset);
    if (!bytes) return make_error(ErrorCode::not_owned, "{:#x} is not the start of an allocation", address);
    // The call that takes host memory comes first: if it fails, nothing has changed.
    ledger::Ledger::forget_preserved(backing, {offset, *bytes});
    spans.free(offset);
    update_space(pool, block, before);
    backing.allocated -= *bytes;
    if (!spans.is_empty()) return Freed{};

    auto freed = guarded([&] { return remove_range(pool, backing); });
    if (!freed) {
        // The allocation is gone, only its empty range could not be: it stays for the next ones. Nothing may
        // be thrown: somebody else may soon be given what would then be freed again.
        ignoring_errors(
            [&] { log::warning("an empty range could not be freed: {}", freed.error().message); });
        return Freed{};
    }
    pool.blocks_by_space.erase({spans.largest_free(), block});
    pool.blocks.erase(block);
    return freed;
}

Result<Heap::Place> Heap::locate(DeviceAddress address) {
    auto* backing = ledger_.find(address);
    if (!backing) return make_error(ErrorCode::not_owned, "{:#x} is not in an agent allocation", address);
    if (!backing->shared) return Place{backing, {0, backing->allocated}};
    const auto& spans = pool_of(*backing).blocks.at(backing->address);
    const auto begin = spans.allocation_holding(address - backing->address);
    if (!begin) return make_error(ErrorCode::not_owned, "{:#x} is not in an agent allocation", address);
    return Place{backing, {*begin, spans.allocated_at(*begin).value_or(0)}};
}

Result<void> Heap::allow_access(DeviceAddress address, int ordinal) {
    auto place = GPU_SLEEP_TRY(locate(address));
    GPU_SLEEP_TRY(device(ordinal));
    auto& backing = *place.backing;
    const auto mask = backing.access | driver::DeviceMask{1} << ordinal;
    if (ordinal != backing.device) {
        const auto reaches = GPU_SLEEP_TRY(driver::can_reach(api_, ordinal, backing.device));
        if (!reaches)
            return make_error(ErrorCode::invalid_argument, "GPU {} cannot reach memory of GPU {}", ordinal,
                              backing.device);
    }
    if (backing.mapped) GPU_SLEEP_TRY(driver::set_access(api_, {backing.address, backing.bytes}, mask));
    backing.access = mask;
    return {};
}

} // namespace gpu_sleep::memory
