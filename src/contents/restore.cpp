// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking keepers for blocks, and comparing seals.

#include "contents/restore.hpp"

#include "base/log.hpp"
#include "base/text.hpp"

#include <algorithm>

namespace gpu_sleep::contents {

Restore::Restore(Contents& contents, driver::DeviceSession& session, ProgressCounter& progress,
                 std::size_t devices)
    : transfer_{session, progress, contents.pinner(), contents.options()}, contents_(contents) {
    transfer_.options.staging /= std::max<std::size_t>(1, devices);
}

Result<void> Restore::give(std::span<const Move> blocks, bool at_once) {
    // Of each keeper in turn; as a rule there is one.
    std::vector<Keeper*> asked;
    std::vector<Move> of_keeper;
    for (const auto& block : blocks) {
        if (!block.place.batch) continue;
        auto& keeper = block.place.batch->keeper();
        if (keeper.gives_at_once() != at_once) continue;
        if (std::find(asked.begin(), asked.end(), &keeper) != asked.end()) continue;
        asked.push_back(&keeper);
        of_keeper.clear();
        std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(of_keeper), [&](const Move& each) {
            return each.place.batch && &each.place.batch->keeper() == &keeper;
        });
        // Neighbours lie in one batch, as a rule.
        const Batch* reached = nullptr;
        for (const auto& each : of_keeper) {
            if (each.place.batch == reached) continue;
            GPU_SLEEP_TRY(each.place.batch->unprotect());
            reached = each.place.batch;
        }
        GPU_SLEEP_TRY(keeper.give(transfer_, of_keeper, failures_));
    }
    return {};
}

Result<void> Restore::zero(std::span<const Move> blocks) {
    driver::AddressSpan run;
    for (const auto& block : blocks) {
        if (block.place.batch) continue;
        if (run.bytes > 0 && run.end() == block.device.address) {
            run.bytes += block.device.bytes;
            continue;
        }
        if (run.bytes > 0) GPU_SLEEP_TRY(transfer_.session.zero(run));
        run = block.device;
    }
    if (run.bytes > 0) GPU_SLEEP_TRY(transfer_.session.zero(run));
    return {};
}

Result<void> Restore::add(std::span<const Target> targets) {
    std::vector<Move> blocks;
    for (const auto& target : targets)
        for_each_block(contents_.at(target.range), [&](const Block& block, Span span) {
            blocks.push_back({target.range, block.place, {target.address + span.offset, span.bytes}});
            wanted_.push_back({blocks.back(), block.seal});
        });
    GPU_SLEEP_TRY(give(blocks, true));
    return zero(blocks);
}

Result<void> Restore::finish() {
    std::vector<Move> rest(wanted_.begin(), wanted_.end());
    GPU_SLEEP_TRY(give(rest, false));
    GPU_SLEEP_TRY(transfer_.wait());
    return verify();
}

Result<Restore::Indices> Restore::find_damage(const Indices& indices) {
    std::vector<driver::FingerprintBlock> blocks;
    blocks.reserve(indices.size());
    for (const auto index : indices)
        blocks.push_back({wanted_[index].device.address, wanted_[index].device.bytes});
    auto found = transfer_.session.fingerprint(blocks);
    if (!found) return std::move(found).error();
    GPU_SLEEP_TRY(transfer_.session.synchronize());
    Indices damaged;
    for (std::size_t i = 0; i < indices.size(); ++i)
        if ((*found)[i] != wanted_[indices[i]].seal) damaged.push_back(indices[i]);
    return damaged;
}

Result<void> Restore::verify() {
    Indices all;
    for (std::size_t i = 0; i < wanted_.size(); ++i)
        if (!failures_.contains(wanted_[i].range)) all.push_back(i);
    auto damaged = find_damage(all);
    if (!damaged) return std::move(damaged).error();
    if (damaged->empty()) return {};

    // A bit that flipped on the way is still right where it was kept.
    std::vector<Move> again;
    for (const auto index : *damaged) again.push_back(wanted_[index]);
    GPU_SLEEP_TRY(give(again, true));
    GPU_SLEEP_TRY(give(again, false));
    GPU_SLEEP_TRY(zero(again));
    auto still = find_damage(*damaged);
    if (!still) return std::move(still).error();
    if (still->empty())
        log::warning("copied again to GPU {}, for it had arrived damaged: {}", transfer_.session.device(),
                     counted(damaged->size(), "block"));
    for (const auto index : *still) {
        const auto& block = wanted_[index];
        if (failures_.contains(block.range)) continue; // it could not be brought once more
        failures_.emplace(block.range,
                          make_error(ErrorCode::damaged, "{} of {} changed while asleep, the first at {:#x}",
                                     still->size(), counted(wanted_.size(), "block"), block.device.address));
    }
    return {};
}

} // namespace gpu_sleep::contents
