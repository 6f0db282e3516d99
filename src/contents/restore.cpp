// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Bringing blocks, and comparing seals.

#include "contents/restore.hpp"

#include "base/log.hpp"
#include "base/text.hpp"
#include "contents/host_cache.hpp"
#include "contents/stored.hpp"
#include "driver/context.hpp"

#include <iterator>

namespace gpu_sleep::contents {
namespace {

/// What arrives is checked by so much: an event and a launch take as long as a GPU reads a tenth of that.
constexpr Bytes k_check_bytes = 64 * k_mib;

} // namespace

Restore::Restore(Contents& contents, driver::DeviceSession& session, ProgressCounter& progress,
                 std::size_t devices)
    : transfer_{session, progress, contents.pinner(), contents.options()}, contents_(contents) {
    transfer_.options.staging /= std::max<std::size_t>(1, devices);
}

Result<void> Restore::expect(std::span<const Number> ranges, Bytes spare) {
    std::size_t blocks = 0;
    std::size_t coded = 0;
    Bytes coded_bytes = 0;
    for (const auto range : ranges) {
        for (const auto& block : contents_.at(range).blocks) {
            ++blocks;
            if (!block.place.is_coded()) continue;
            ++coded;
            coded_bytes += round_up(block.place.bytes, store::HostArena::k_alignment);
        }
    }
    auto& session = transfer_.session;
    GPU_SLEEP_TRY(session.prepare_fingerprints(blocks));
    if (coded == 0) return {};
    constexpr auto k_by_its_address = CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    transfer_.ways.can_go_straight =
        driver::device_attribute(contents_.api(), session.device(), k_by_its_address) != 0;
    auto made = session.prepare_coding(coded, scratch_for(coded_bytes, spare));
    const auto is_short = [&] { return !made && made.error().code == ErrorCode::out_of_device_memory; };
    if (is_short()) made = session.prepare_coding(coded, 0);
    if (is_short()) return {}; // the processors decode
    transfer_.coding = GPU_SLEEP_TRY(std::move(made));
    return {};
}

Result<void> Restore::give(std::span<const Move> blocks, bool at_once) {
    std::vector<Move> wanted;
    std::copy_if(blocks.begin(), blocks.end(), std::back_inserter(wanted), [=](const Move& block) {
        return block.place.batch && block.place.batch->is_cached() == at_once;
    });
    if (wanted.empty()) return at_once ? decode_rest(transfer_) : Result<void>();
    return at_once ? give_from_cache(transfer_, wanted) : restore_to_device(transfer_, wanted, failures_);
}

Result<void> Restore::zero(std::span<const Move> blocks) {
    std::vector<driver::AddressSpan> runs;
    for (const auto& block : blocks) {
        if (block.place.batch) continue;
        if (!runs.empty() && runs.back().end() == block.device.address)
            runs.back().bytes += block.device.bytes;
        else
            runs.push_back(block.device);
    }
    for (const auto& run : runs) GPU_SLEEP_TRY(transfer_.session.zero(run));
    return {};
}

bool Restore::comes_at_once(const Move& block) noexcept {
    return !block.place.batch || block.place.batch->is_cached();
}

Result<void> Restore::add(std::span<const Target> targets) {
    std::vector<Move> blocks;
    auto ready = arriving_.size(); // earlier ones are decoded once these are on their way
    auto ready_bytes = arriving_bytes_;
    for (const auto& target : targets)
        for_each_block(contents_.at(target.range), [&](const Block& block, Span span, std::size_t) {
            blocks.push_back({target.range, block.place, {target.address + span.offset, span.bytes}});
            if (comes_at_once(blocks.back())) {
                arriving_.push_back(wanted_.size());
                arriving_bytes_ += span.bytes;
            }
            wanted_.push_back({blocks.back(), block.seal});
        });
    GPU_SLEEP_TRY(give(blocks, true));
    GPU_SLEEP_TRY(zero(blocks));
    if (transfer_.halves.late.tasks.empty()) {
        ready = arriving_.size();
        ready_bytes = arriving_bytes_;
    }
    if (ready_bytes < k_check_bytes) return {};
    arriving_bytes_ -= ready_bytes;
    return check_arriving(ready);
}

Result<void> Restore::finish() {
    GPU_SLEEP_TRY(decode_rest(transfer_));
    GPU_SLEEP_TRY(check_arriving(arriving_.size()));
    std::vector<Move> rest(wanted_.begin(), wanted_.end());
    GPU_SLEEP_TRY(give(rest, false));
    GPU_SLEEP_TRY(transfer_.wait());
    GPU_SLEEP_TRY(verify());
    transfer_.session.end_coding();
    return {};
}

std::vector<driver::FingerprintBlock> Restore::memory_of(const Indices& indices) const {
    std::vector<driver::FingerprintBlock> blocks;
    blocks.reserve(indices.size());
    for (const auto index : indices)
        blocks.push_back({wanted_[index].device.address, wanted_[index].device.bytes});
    return blocks;
}

Result<void> Restore::check_arriving(std::size_t count) {
    const auto end = arriving_.begin() + static_cast<std::ptrdiff_t>(count);
    Indices indices(arriving_.begin(), end);
    arriving_.erase(arriving_.begin(), end);
    const auto found = GPU_SLEEP_TRY(transfer_.session.fingerprint_aside(memory_of(indices)));
    checks_.push_back({std::move(indices), found});
    return {};
}

void Restore::compare(const Indices& indices, std::span<const driver::Fingerprint> found,
                      Indices& damaged) const {
    for (std::size_t i = 0; i < indices.size(); ++i)
        if (found[i] != wanted_[indices[i]].seal) damaged.push_back(indices[i]);
}

Result<Restore::Indices> Restore::find_damage(const Indices& indices) {
    GPU_SLEEP_TRY(decode_rest(transfer_));
    const auto found = GPU_SLEEP_TRY(transfer_.session.fingerprint(memory_of(indices)));
    GPU_SLEEP_TRY(transfer_.session.synchronize());
    Indices damaged;
    compare(indices, found, damaged);
    return damaged;
}

Result<void> Restore::verify() {
    Indices late;
    for (std::size_t i = 0; i < wanted_.size(); ++i)
        if (!comes_at_once(wanted_[i]) && !failures_.contains(wanted_[i].range)) late.push_back(i);
    auto damaged = GPU_SLEEP_TRY(find_damage(late));
    for (const auto& check : checks_) compare(check.indices, check.found, damaged);
    std::erase_if(damaged, [this](std::size_t index) { return failures_.contains(wanted_[index].range); });
    if (damaged.empty()) return {};
    std::sort(damaged.begin(), damaged.end()); // neighbours are copied together

    // A bit that flipped on the way is still right where it was kept.
    std::vector<Move> again;
    again.reserve(damaged.size());
    for (const auto index : damaged) again.push_back(wanted_[index]);
    GPU_SLEEP_TRY(give(again, true));
    GPU_SLEEP_TRY(give(again, false));
    GPU_SLEEP_TRY(zero(again));
    auto still = GPU_SLEEP_TRY(find_damage(damaged));
    if (still.empty())
        log::warning("blocks copied again to GPU {}, because the first copy was damaged: {}",
                     transfer_.session.device(), damaged.size());
    for (const auto index : still) {
        const auto& block = wanted_[index];
        if (failures_.contains(block.range)) continue; // it could not be brought once more
        failures_.emplace(block.range,
                          make_error(ErrorCode::damaged,
                                     "the kept contents are damaged: {} of {} changed while asleep, by their "
                                     "fingerprints, the first at {:#x}",
                                     still.size(), counted(wanted_.size(), "block"), block.device.address));
    }
    return {};
}

} // namespace gpu_sleep::contents
