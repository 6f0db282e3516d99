// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From places to batches of other stores.

#include "contents/relocation.hpp"

#include <utility>

namespace gpu_sleep::contents {
namespace {

/// Blocks to be moved that follow one another in the range and lie together.
struct MovedRun {
    std::size_t first = 0; ///< block
    Span of_range;
    Place place;

    [[nodiscard]] bool is_followed_by(const Block& block, Span span) const noexcept {
        return of_range.bytes > 0 && of_range.bytes % k_block_bytes == 0 && of_range.end() == span.offset &&
               block.place == Place{place.batch, place.at + of_range.bytes};
    }
};

} // namespace

Relocation::Target& Relocation::target_for(const Label& label, model::Store store) {
    auto& target = targets_[{label.device, store, label.tag}];
    if (!target.batch)
        target.batch = batches_.emplace_back(contents_.keeper(store).make_batch(label, options_)).get();
    return target;
}

void Relocation::add(Label label, model::Store store, driver::DeviceAddress address, Number number) {
    const auto& range = contents_.at(number);
    auto moved = range;
    MovedRun run;
    const auto end_run = [&] {
        const auto bytes = std::exchange(run.of_range.bytes, 0);
        if (bytes == 0) return;
        auto& target = target_for(label, store);
        const auto at = target.batch->add({address + run.of_range.offset, bytes});
        const auto count = block_count(bytes);
        for (std::size_t i = 0; i < count; ++i)
            moved.blocks[run.first + i].place = {target.batch, at + i * k_block_bytes};
        target.parts.push_back({std::span(range.blocks).subspan(run.first, count), bytes});
        bytes_[label.device] += bytes;
    };
    for_each_block(range, [&](const Block& block, Span span, std::size_t i) {
        const bool stays = !block.is_stored() || block.is_in(store);
        if (stays || !run.is_followed_by(block, span)) end_run();
        if (stays) return;
        if (run.of_range.bytes == 0) run = {i, {span.offset, 0}, block.place};
        run.of_range.bytes += span.bytes;
    });
    end_run();
    moved_.emplace(number, std::move(moved));
}

Bytes Relocation::bytes(int device) const noexcept {
    const auto found = bytes_.find(device);
    return found == bytes_.end() ? 0 : found->second;
}

Bytes Relocation::bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& [device, bytes] : bytes_) sum += bytes;
    return sum;
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
        GPU_SLEEP_TRY(target.batch->keeper().take_over(handover, *target.batch, target.parts));
    return {};
}

void Relocation::admit() noexcept {
    contents_.relocate(moved_, batches_);
}

} // namespace gpu_sleep::contents
