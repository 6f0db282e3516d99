// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From places to batches of other stores.

#include "contents/relocation.hpp"

#include "contents/stored.hpp"

#include <utility>

namespace gpu_sleep::contents {

void Relocation::add(Label label, model::Store store, driver::DeviceAddress address, Number number) {
    auto moved = contents_.at(number);
    for_each_block(moved, [&](Block& block, Span span, std::size_t) {
        if (!block.is_stored() || block.is_in(store)) return;
        auto& target = targets_[{label.device, store, label.tag}];
        if (!target.batch)
            target.batch = batches_.emplace_back(contents_.make_batch(label, store, options_)).get();
        const auto to = target.batch->add(number, {address + span.offset, span.bytes});
        target.blocks.push_back({block.place, to, block.seal});
        block.place = to;
        bytes_[label.device] += span.bytes;
    });
    moved_.emplace(number, std::move(moved));
}

Bytes Relocation::bytes(int device) const noexcept {
    const auto found = bytes_.find(device);
    return found == bytes_.end() ? 0 : found->second;
}

Bytes Relocation::bytes() const noexcept {
    return sum_of(bytes_, [](const auto& of_device) { return of_device.second; });
}

Result<Bytes> Relocation::needs(model::Store store) const {
    return needs_of(batches_, store);
}

Result<void> Relocation::begin() {
    for (const auto& batch : batches_) GPU_SLEEP_TRY(batch->begin());
    return {};
}

Result<void> Relocation::carry(ProgressCounter& progress) {
    Handover handover{progress, contents_.options()};
    for (auto& [key, target] : targets_)
        GPU_SLEEP_TRY(target.batch->is_cached() ? restore_to_cache(handover, *target.batch, target.blocks)
                                                : store_from_cache(handover, *target.batch, target.blocks));
    return {};
}

void Relocation::admit() noexcept {
    contents_.relocate(moved_, batches_);
}

} // namespace gpu_sleep::contents
