// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Create aside; to the host copy while the program runs, and compare while it does not; exchange.

#include "sleep/live_move.hpp"

#include "base/log.hpp"

namespace gpu_sleep::sleep {

using driver::AddressSpan;
using driver::Fingerprint;
using ledger::Backing;
using ledger::Ledger;
using model::Step;
using model::StepClock;

namespace {

/// How long a create of GPU memory that fails is tried again: what was just released is being scrubbed.
constexpr Milliseconds k_scrub_patience{500};

/// How much is copied before others may have the mutex.
constexpr std::size_t k_slice_blocks = 64 * k_mib / driver::k_fingerprint_block_bytes;

} // namespace

LiveMove::LiveMove(const driver::Api& api, const driver::MemoryKind& kind, std::span<const LivePart> piece,
                   model::StepClock& steps)
    : api_(api), kind_(kind), steps_(steps) {
    for (const auto& what : piece) parts_.emplace_back().what = what;
    std::ranges::sort(parts_,
                      [](const Part& a, const Part& b) { return a.what.span.address < b.what.span.address; });
    for (std::size_t i = 0; i < parts_.size(); ++i) {
        const auto bytes = parts_[i].what.span.bytes;
        for (Bytes done = 0; done < bytes; done += driver::k_fingerprint_block_bytes) {
            auto& block = blocks_.emplace_back();
            block.part = i;
            block.span = {done, std::min<Bytes>(driver::k_fingerprint_block_bytes, bytes - done)};
        }
    }
}

void LiveMove::let_go() noexcept {
    // As the process ends, the driver has freed it.
    const auto has_failed = [](const Result<void>& done) {
        return !done && done.error().driver_status != CUDA_ERROR_DEINITIALIZED;
    };
    for (auto& part : parts_) {
        const AddressSpan aside{part.aside, part.what.span.bytes};
        if (std::exchange(part.is_mapped_aside, false))
            if (const auto done = guarded([&] { return unmap(aside); }); has_failed(done))
                log::warning("a copy stays mapped: {}", done.error().message);
        const auto made = std::exchange(part.made, 0);
        if (made == 0) continue;
        const StepClock::Timed timed(&steps_, Step::release);
        if (const auto done = guarded([&] { return driver::release(api_, made); }); has_failed(done))
            log::warning("range {:#x} has left {} bytes behind: {}", part.what.span.address, aside.bytes,
                         done.error().message);
    }
    aside_.reset();
}

Bytes LiveMove::bytes() const noexcept {
    return sum_of(parts_, [](const Part& part) { return part.what.span.bytes; });
}

Result<void> LiveMove::map(AddressSpan span, driver::PhysicalMemory::Handle handle) {
    const StepClock::Timed timed(&steps_, Step::map);
    return driver::map(api_, span, handle);
}

Result<void> LiveMove::set_access(AddressSpan span, driver::DeviceMask devices) {
    const StepClock::Timed timed(&steps_, Step::access);
    return driver::set_access(api_, span, devices);
}

Result<void> LiveMove::unmap(AddressSpan span) {
    const StepClock::Timed timed(&steps_, Step::unmap);
    return driver::unmap(api_, span);
}

Result<void> LiveMove::create() {
    aside_ = GPU_SLEEP_TRY(driver::VaReservation::create(api_, bytes()));
    auto next = aside_->span().address;
    for (auto& part : parts_) {
        const auto bytes = part.what.span.bytes;
        {
            const StepClock::Timed timed(&steps_, Step::create);
            auto memory = GPU_SLEEP_TRY(kind_.create(api_, bytes, k_scrub_patience));
            part.made = memory.release();
        }
        part.aside = std::exchange(next, next + bytes);
        GPU_SLEEP_TRY(map({part.aside, bytes}, part.made));
        part.is_mapped_aside = true;
    }
    return set_access(aside_->span(), driver::DeviceMask{1} << kind_.device());
}

void LiveMove::look(Ledger& ledger) {
    for (auto& part : parts_) {
        part.backing = ledger.find(part.what.span.address);
        part.is_gone |= !part.backing || part.backing->number != part.what.number ||
                        part.backing->is_asleep() || part.backing->stay_reason;
    }
}

driver::DeviceAddress LiveMove::address_of(const Block& block, Side side) const noexcept {
    const auto& part = parts_[block.part];
    return (side == Side::old_one ? part.what.span.address : part.aside) + block.span.offset;
}

std::vector<driver::FingerprintBlock> LiveMove::stale_blocks(std::span<const Block> among, Side side) const {
    std::vector<driver::FingerprintBlock> blocks;
    for (const auto& block : among)
        if (block.is_stale && !parts_[block.part].is_gone)
            blocks.push_back({address_of(block, side), block.span.bytes});
    return blocks;
}

Result<void> LiveMove::copy_stale(driver::DeviceSession& session, std::span<const Block> among) {
    const auto to = stale_blocks(among, Side::new_one);
    const auto from = stale_blocks(among, Side::old_one);
    for (std::size_t i = 0; i < from.size();) {
        Bytes bytes = 0;
        const auto first = i;
        do bytes += from[i].bytes;
        while (++i < from.size() && from[i].address == from[first].address + bytes &&
               to[i].address == to[first].address + bytes);
        GPU_SLEEP_TRY(session.copy_within(to[first].address, from[first].address, bytes));
    }
    return {};
}

Result<bool> LiveMove::copy(driver::DeviceSession& session, Ledger& ledger) {
    look(ledger);
    const auto current = session.enter();
    GPU_SLEEP_TRY(current.check());
    const auto rest = std::span<const Block>(blocks_).subspan(copied_);
    const auto slice = rest.first(std::min(rest.size(), k_slice_blocks));
    GPU_SLEEP_TRY(copy_stale(session, slice));
    GPU_SLEEP_TRY(session.synchronize());
    copied_ += slice.size();
    if (copied_ < blocks_.size()) return false;
    copied_ = 0;
    return true;
}

Result<void> LiveMove::seal(driver::DeviceSession& session) {
    const auto current = session.enter();
    GPU_SLEEP_TRY(current.check());
    return seal_stale(session);
}

Result<void> LiveMove::seal_stale(driver::DeviceSession& session) {
    const auto seals = GPU_SLEEP_TRY(session.fingerprint(stale_blocks(blocks_, Side::new_one)));
    GPU_SLEEP_TRY(session.synchronize());
    auto seal = seals.begin();
    for (auto& block : blocks_)
        if (block.is_stale && !parts_[block.part].is_gone) block.seal = *seal++;
    return {};
}

Result<std::vector<Fingerprint>> LiveMove::find_stale(driver::DeviceSession& session) {
    for (auto& block : blocks_) block.is_stale = true;
    const auto found = GPU_SLEEP_TRY(session.fingerprint(stale_blocks(blocks_, Side::old_one)));
    GPU_SLEEP_TRY(session.synchronize());
    std::vector<Fingerprint> changed;
    auto now = found.begin();
    for (auto& block : blocks_) {
        if (parts_[block.part].is_gone) continue;
        block.is_stale = *now != block.seal;
        if (block.is_stale) changed.push_back(*now);
        ++now;
    }
    return changed;
}

Result<Verdict> LiveMove::swap(driver::DeviceSession& session, Ledger& ledger, contents::Contents& contents,
                               int round) {
    look(ledger);
    const auto bytes =
        sum_of(parts_, [](const Part& part) { return part.is_gone ? 0 : part.what.span.bytes; });
    if (bytes == 0) return Verdict::move; // all of it is gone
    const auto current = session.enter();
    GPU_SLEEP_TRY(current.check());
    auto verdict = kind_.is_of_host() ? compare(session, bytes, round) : copy_all(session);
    if (verdict && *verdict == Verdict::move) GPU_SLEEP_TRY(exchange(contents));
    return verdict;
}

Result<Verdict> LiveMove::compare(driver::DeviceSession& session, Bytes bytes, int round) {
    const auto changed = GPU_SLEEP_TRY(find_stale(session));
    const auto stale = sum_of(stale_blocks(blocks_, Side::old_one), &driver::FingerprintBlock::bytes);
    const auto verdict = judge_round(stale, bytes, round);
    if (verdict != Verdict::move || changed.empty()) return verdict;
    GPU_SLEEP_TRY(copy_stale(session, blocks_));
    GPU_SLEEP_TRY(check_copies(session, changed));
    return verdict;
}

Result<Verdict> LiveMove::copy_all(driver::DeviceSession& session) {
    auto blocks = stale_blocks(blocks_, Side::old_one);
    const auto copies = stale_blocks(blocks_, Side::new_one);
    for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].copy = copies[i].address;
    const auto read = GPU_SLEEP_TRY(session.fingerprint(blocks));
    GPU_SLEEP_TRY(session.synchronize());
    const std::vector<Fingerprint> copied(read.begin(), read.end()); // which the next call overwrites
    GPU_SLEEP_TRY(check_copies(session, copied));
    return Verdict::move;
}

Result<void> LiveMove::check_copies(driver::DeviceSession& session, std::span<const Fingerprint> copied) {
    GPU_SLEEP_TRY(seal_stale(session));
    auto expected = copied.begin();
    for (const auto& block : blocks_)
        if (block.is_stale && !parts_[block.part].is_gone && block.seal != *expected++)
            return make_error(ErrorCode::damaged,
                              "the copy of range {:#x} differs; the range stays where it is",
                              parts_[block.part].what.span.address);
    return {};
}

std::vector<LiveMove::Neighbours> LiveMove::neighbours() {
    std::vector<Neighbours> all;
    for (auto& part : parts_) {
        if (part.is_gone) continue;
        auto* const last = all.empty() ? nullptr : &all.back().back();
        const bool joins = last && last + 1 == &part && last->what.span.end() == part.what.span.address &&
                           last->backing->access == part.backing->access;
        if (joins)
            all.back() = {all.back().data(), all.back().size() + 1};
        else
            all.emplace_back(&part, 1);
    }
    return all;
}

AddressSpan LiveMove::span_of(Neighbours some) noexcept {
    const auto begin = some.front().what.span.address;
    return {begin, some.back().what.span.end() - begin};
}

Result<void> LiveMove::show(Neighbours some, Side side) {
    for (auto& part : some) {
        if (part.is_mapped && part.shows == side) continue;
        if (part.is_mapped) GPU_SLEEP_TRY(unmap(part.what.span));
        part.is_mapped = false;
        GPU_SLEEP_TRY(map(part.what.span, side == Side::old_one ? part.old_handle : part.made));
        part.is_mapped = true;
        part.shows = side;
    }
    return set_access(span_of(some), some.front().backing->access);
}

Result<void> LiveMove::exchange(contents::Contents& contents) {
    const auto all = neighbours(); // what takes memory comes first
    for (auto& part : parts_)
        if (!part.is_gone) part.old_handle = part.backing->handle;
    const auto forth = [&]() -> Result<void> {
        for (const auto& some : all) {
            GPU_SLEEP_TRY(unmap(span_of(some)));
            for (auto& part : some) part.is_mapped = false;
            GPU_SLEEP_TRY(show(some, Side::new_one));
        }
        return {};
    };
    auto done = guarded(forth);
    const auto can_show = [&](Neighbours some, Side side) {
        return guarded([&] { return show(some, side); }).has_value();
    };
    if (!done)
        for (const auto& some : all) // both sides hold the same: whichever can be had
            if (!can_show(some, Side::old_one) && !can_show(some, Side::new_one))
                put_to_sleep(some, contents);
    // It takes 3 ms a GiB here; beside work that reads host memory, 60 to 300 ms were measured.
    if (done && guarded([&] { return unmap(aside_->span()); }))
        for (auto& part : parts_) part.is_mapped_aside = false;
    note();
    return done;
}

void LiveMove::put_to_sleep(Neighbours some, contents::Contents& contents) noexcept {
    for (const auto& part : some) {
        auto& backing = *part.backing;
        Ledger::move(backing, model::Residence::kept);
        backing.holds_contents = true;
        contents.forget(std::exchange(backing.kept, {}).range); // the program may have written since
    }
    log::error("range {:#x} could not be mapped again: it sleeps until the next wake",
               some.front().what.span.address);
}

void LiveMove::note() noexcept {
    for (auto& part : parts_) {
        if (part.is_gone) continue;
        part.backing->mapped = part.is_mapped;
        if (part.shows == Side::old_one) continue;
        part.backing->handle = std::exchange(part.made, part.old_handle);
        part.backing->host_backed = kind_.is_of_host();
        moved_ += part.what.span.bytes;
    }
}

} // namespace gpu_sleep::sleep
