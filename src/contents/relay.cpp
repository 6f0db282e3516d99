// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From the device to a ring, and from there to where it is kept.

#include "contents/relay.hpp"

#include "store/thread_pool.hpp"

#include <utility>
#include <vector>

namespace gpu_sleep::contents {

Result<void> relay(Transfer& transfer, std::span<const HostCopy> copies,
                   const std::function<Result<void>(const store::HostArena& arena, Span part)>& await) {
    std::vector<store::SnapshotExtent> extents(copies.size());
    std::vector<driver::AddressSpan> device;
    device.reserve(copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
        extents[i].bytes = copies[i].device.bytes;
        device.push_back(copies[i].device);
    }
    const auto places = store::places_of(extents);
    const auto slots = Staging::slots_for(places.size(), false, transfer.options);
    const auto move_all = [&](Staging& staging) -> Result<void> {
        DeviceSource source(transfer.session, staging, device, extents, transfer.progress);
        auto threads = store::ThreadPool::start("gpu-sleep-move", transfer.options.relay.move);
        if (!threads) return std::move(threads).error();
        for (const auto& place : places) {
            const auto& copy = copies[place.extent];
            const Span part{copy.at + place.offset, place.bytes};
            GPU_SLEEP_TRY(await(*copy.arena, part));
            const auto content = source.take(place);
            if (!content) return content.error();
            (*threads)->post(
                [&source, &place, arena = copy.arena, at = part.offset, bytes = *content](std::size_t) {
                    arena->write(at, bytes);
                    source.release(place);
                });
        }
        return {}; // once the threads have ended
    };
    return with_staging(transfer.staging, transfer.session, transfer.pinner, slots, transfer.options,
                        transfer.progress, move_all);
}

} // namespace gpu_sleep::contents
