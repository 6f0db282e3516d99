// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// From ranges to batches, and their contents to where they are kept.

#include "contents/save.hpp"

#include "driver/context.hpp"

#include <algorithm>
#include <utility>

namespace gpu_sleep::contents {

Save::Save(Contents& contents, SaveOptions options, std::size_t devices)
    : contents_(contents), options_(std::move(options)), limits_(contents.options()) {
    limits_.staging /= std::max<std::size_t>(1, devices);
}

Batch& Save::batch_for(const Label& label, model::Store store) {
    auto& batch = parts_[label.device].batches[{store, label.tag}];
    if (!batch) batch = batches_.emplace_back(contents_.keeper(store).make_batch(label, options_)).get();
    return *batch;
}

Number Save::add(const Label& label, model::Store store, driver::DeviceAddress address,
                 std::vector<Span> spans) {
    auto& batch = batch_for(label, store);
    auto& part = parts_[label.device];
    const auto number = contents_.next_number();
    auto& range = ranges_.emplace_hint(ranges_.end(), number, KeptRange{})->second;
    range.spans = std::move(spans);
    std::size_t count = 0;
    for (const auto& span : range.spans) count += block_count(span.bytes);
    range.blocks.reserve(count);
    for (const auto& span : range.spans) {
        const auto at = batch.add({address + span.offset, span.bytes});
        for (Bytes done = 0; done < span.bytes; done += k_block_bytes)
            range.blocks.push_back({{}, {&batch, at + done}});
        part.bytes += span.bytes;
    }
    part.items.push_back({number, address, &range});
    return number;
}

Result<Bytes> Save::needs(model::Store store) const {
    Bytes sum = 0;
    for (const auto& batch : batches_) {
        if (batch->keeper().store() != store) continue;
        const auto bytes = batch->needs();
        if (!bytes) return bytes.error();
        sum += *bytes;
    }
    return sum;
}

Result<void> Save::note_needs(Rehearsal rehearsal, std::vector<std::string>& notes) const {
    rehearsal.options = contents_.options();
    for (const auto store : k_stores) {
        const auto needed = needs(store);
        if (!needed) return needed.error();
        contents_.keeper(store).note_needs(*needed, rehearsal, notes);
    }
    return {};
}

Result<void> Save::keep_files() {
    if (!options_.keeps_files) return {};
    std::vector<Number> numbers;
    for (const auto& [device, part] : parts_)
        for (const auto& item : part.items) numbers.push_back(item.number);
    const auto kept = contents_.keep_files(numbers);
    return kept ? Result<void>() : kept.error();
}

Bytes Save::bytes(int device) const noexcept {
    const auto part = parts_.find(device);
    return part == parts_.end() ? 0 : part->second.bytes;
}

Result<void> Save::begin() {
    for (const auto& batch : batches_) GPU_SLEEP_TRY(batch->begin());
    return {};
}

Result<void> Save::take_from_all(Transfer& transfer, const Part& part) {
    // Keeper by keeper: the batches are sorted by their store.
    std::vector<Batch*> batches;
    for (auto next = part.batches.begin(); next != part.batches.end();) {
        auto& keeper = next->second->keeper();
        batches.clear();
        for (; next != part.batches.end() && &next->second->keeper() == &keeper; ++next)
            batches.push_back(next->second);
        GPU_SLEEP_TRY(keeper.take(transfer, batches));
    }
    return {};
}

Result<void> Save::take(driver::DeviceSession& session, ProgressCounter& progress) {
    const auto found = parts_.find(session.device());
    if (found == parts_.end()) return {};
    const auto& part = found->second;
    const driver::RelaxedCaptureMode relaxed(contents_.api());
    const auto current = session.enter();
    // The seal is taken before the first byte leaves: from here to the check on waking nothing can change
    // unseen.
    std::vector<driver::FingerprintBlock> blocks;
    blocks.reserve(block_count(part.bytes) + part.items.size());
    for (const auto& item : part.items)
        for_each_block(*item.range, [&](const Block&, Span span) {
            blocks.push_back({item.address + span.offset, span.bytes});
        });
    auto seals = session.fingerprint(blocks);
    if (!seals) return std::move(seals).error();

    Transfer transfer{session, progress, contents_.pinner(), limits_};
    auto taken = take_from_all(transfer, part);
    const auto finished = session.synchronize(); // also after a failure: the batches must not be in use
    GPU_SLEEP_TRY(std::move(taken));
    if (!finished) return finished.error();
    auto seal = seals->begin();
    for (const auto& item : part.items)
        for (auto& block : item.range->blocks) block.seal = *seal++;
    return {};
}

} // namespace gpu_sleep::contents
