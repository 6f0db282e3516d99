// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copying between the device and arenas, which are made ready piece by piece meanwhile. New contents are
// relayed where that is faster: to pin memory takes longer than to copy, and is then done after the sleep, or
// by the copies that come first; unless it is much, which is relayed back.

#include "contents/host_cache.hpp"

#include "base/log.hpp"
#include "contents/relay.hpp"
#include "store/arena_preparer.hpp"

namespace gpu_sleep::contents {
namespace {

using store::HostArena;

/// Copies that are made together, and the blocks among them that pass through a half of the scratch. They are
/// coded before their copies, or decoded after them.
struct Turn {
    std::vector<HostCopy> copies;
    std::span<driver::BlockTask> tasks;
    std::size_t half = 0;
};

/// Adds a copy, or lengthens the last one when the new one continues it on both sides.
void add_copy(std::vector<HostCopy>& copies, const HostCopy& copy) {
    if (!copies.empty()) {
        auto& last = copies.back();
        const bool continues = last.arena == copy.arena && last.device.end() == copy.device.address &&
                               last.at + last.device.bytes == copy.at && last.turn == copy.turn;
        if (continues) {
            last.device.bytes += copy.device.bytes;
            return;
        }
    }
    copies.push_back(copy);
}

/// Whether the host waits for copies before it launches the kernel that codes such blocks. A kernel that
/// waits on the device, even for an event of another stream, can take half of a neighbour's time until it
/// runs (tests/bench/RESULTS.md). The device waits for few blocks, with whose copies the host could not keep
/// up.
bool waits_on_host(std::span<const driver::BlockTask> tasks) noexcept {
    constexpr std::size_t k_worth_waiting = 16;
    return tasks.size() >= k_worth_waiting;
}

/// So many tasks, which nothing that is queued uses. Errors: as DeviceSession::prepare_coding().
Result<std::span<driver::BlockTask>> take_tasks(Transfer& transfer, std::size_t count) {
    if (count > transfer.coding.tasks.size() - transfer.coding_used) {
        GPU_SLEEP_TRY(decode_rest(transfer));
        GPU_SLEEP_TRY(transfer.session.synchronize());
        transfer.coding_used = 0;
        if (count > transfer.coding.tasks.size()) {
            const auto scratch = std::exchange(transfer.coding, {}).scratch;
            transfer.coding = GPU_SLEEP_TRY(transfer.session.prepare_coding(count, scratch.bytes));
        }
    }
    return transfer.coding.tasks.subspan(std::exchange(transfer.coding_used, transfer.coding_used + count),
                                         count);
}

/// What is to be done with a block whose code lies at an address that the device has, too.
driver::BlockTask task_of(const Move& block, std::uint64_t coded) {
    driver::BlockTask task;
    task.content = block.device.address;
    task.content_bytes = static_cast<std::uint32_t>(block.device.bytes);
    task.coded = coded;
    if (block.plan) task.plan = *block.plan;
    task.plan.block_class = block.place.block_class;
    task.plan.coded_bytes = block.place.bytes;
    return task;
}

/// `blocks` in turns, their copies as long as they can be. Coded ones need a scratch. Errors: as
/// take_tasks().
Result<std::vector<Turn>> turns_of(Transfer& transfer, std::span<const Move> blocks) {
    const auto count =
        static_cast<std::size_t>(std::ranges::count_if(blocks, &Place::is_coded, &Move::place));
    auto tasks = GPU_SLEEP_TRY(take_tasks(transfer, count));
    const auto scratch = transfer.coding.scratch;
    const auto half = scratch.bytes / 2 / HostArena::k_alignment * HostArena::k_alignment;
    std::vector<Turn> turns(1);
    Bytes used = half;
    for (const auto& block : blocks) {
        HostCopy copy{block.device, block.place.batch->arena(), block.place.at};
        if (block.place.is_coded()) {
            if (block.place.bytes > half)
                return make_error(ErrorCode::out_of_device_memory, "the GPU has no memory to code blocks in");
            if (used + block.place.bytes > half) {
                if (!turns.back().tasks.empty()) turns.emplace_back();
                turns.back().half = std::exchange(transfer.halves.next, 1 - transfer.halves.next);
                used = 0;
            }
            copy.device = {scratch.address + turns.back().half * half + used, block.place.bytes};
            used += round_up(block.place.bytes, HostArena::k_alignment);
            auto& its = turns.back().tasks;
            its = {its.empty() ? tasks.data() : its.data(), its.size() + 1};
            tasks.front() = task_of(block, copy.device.address);
            tasks = tasks.subspan(1);
        }
        copy.turn = turns.size() - 1;
        add_copy(turns.back().copies, copy);
    }
    return turns;
}

/// Has the blocks of each turn that is reached coded: anew where a turn is reached again.
ReachTurn encoder(Transfer& transfer, const std::vector<Turn>& turns) {
    return [&transfer, &turns, reached = turns.size()](std::size_t turn) mutable -> Result<void> {
        if (std::exchange(reached, turn) == turn) return {};
        auto& [free, full, straight, next, copied, late] = transfer.halves;
        if (copied) GPU_SLEEP_TRY(transfer.session.set(*copied));
        copied = nullptr;
        const auto& [copies, tasks, half] = turns[turn];
        if (tasks.empty()) return {};
        copied = &free[half];
        if (waits_on_host(tasks)) GPU_SLEEP_TRY(transfer.session.wait(free[half]));
        GPU_SLEEP_TRY(transfer.session.code(driver::BlockWork::encode, tasks, driver::CodedSide::device,
                                            &free[half], &full[half]));
        return transfer.session.stay_behind(full[half]);
    };
}

/// Where that is still to be done.
void pin(Transfer& transfer, HostArena& arena, std::size_t piece) {
    if (arena.is_pinned(piece)) return;
    const model::StepClock::Timed timed(&transfer.session.steps(), model::Step::pin);
    arena.pin(piece);
}

/// Calls `part(piece index, copy)` for each piece that `copy` crosses, until one fails.
template <class Part>
Result<void> for_each_part(const HostCopy& copy, Part&& part) {
    return HostArena::for_each_piece({copy.at, copy.device.bytes}, [&](std::size_t index, Span span) {
        const driver::AddressSpan device{copy.device.address + (span.offset - copy.at), span.bytes};
        return part(index, HostCopy{device, copy.arena, span.offset, copy.turn});
    });
}

template <class Part>
Result<void> for_each_part(const std::vector<Turn>& turns, Part&& part) {
    for (const auto& turn : turns)
        for (const auto& copy : turn.copies) GPU_SLEEP_TRY(for_each_part(copy, part));
    return {};
}

/// What of the arena's pieces is not yet `is_done`.
Bytes bytes_not(bool (HostArena::*is_done)(std::size_t) const noexcept, const HostArena& arena) noexcept {
    Bytes sum = 0;
    for (std::size_t i = 0; i < arena.piece_count(); ++i)
        if (!(arena.*is_done)(i)) sum += arena.piece(i).size();
    return sum;
}

/// Queues a copy within a piece, and heeds a withdrawal.
Result<void> copy_out(Transfer& transfer, const HostCopy& part) {
    GPU_SLEEP_TRY(
        transfer.session.copy_to_host(part.arena->at(part.at), part.device.address, part.device.bytes));
    return transfer.queued(part.device.bytes);
}

/// Whether the device can read the block where it lies.
bool is_in_reach(const Place& place) {
    const auto& arena = *place.batch->arena();
    bool is_pinned = true;
    HostArena::for_each_piece(place.span(),
                              [&](std::size_t piece, Span) { is_pinned &= arena.is_pinned(piece); });
    return is_pinned && arena.at(place.at) + place.bytes - 1 == arena.at(place.at + place.bytes - 1);
}

/// Whether the next leg of coded blocks goes straight. Waits for those that are timed once there is another
/// under way.
Result<bool> goes_straight(Transfer& transfer) {
    constexpr double k_enough = 0.8; // of the time; both are much the same at rest
    auto& ways = transfer.ways;
    if (!ways.is_decided && ways.legs > ways.tried.size()) {
        double seconds_a_byte[3];
        for (std::size_t i = 0; i < ways.tried.size(); ++i) {
            const auto& leg = ways.tried[i];
            seconds_a_byte[i] = GPU_SLEEP_TRY(transfer.session.seconds_between(leg.begun, leg.ended)) /
                                static_cast<double>(leg.bytes);
        }
        ways.is_straight = seconds_a_byte[1] < k_enough * std::min(seconds_a_byte[0], seconds_a_byte[2]);
        ways.is_decided = true;
        log::debug("coded blocks, seconds for each GB: {:.3f} copied, {:.3f} decoded in place, {:.3f} copied",
                   1e9 * seconds_a_byte[0], 1e9 * seconds_a_byte[1], 1e9 * seconds_a_byte[2]);
    }
    return ways.can_go_straight && (ways.is_decided ? ways.is_straight : ways.legs == 1);
}

/// Brings coded blocks without a scratch: the device decodes them from host memory, and the processors those
/// that it cannot read there.
Result<void> give_straight(Transfer& transfer, std::span<const Move> blocks) {
    constexpr std::size_t k_at_once = 64; // little is lost where the asker withdraws
    if (!blocks.empty()) GPU_SLEEP_TRY(transfer.session.set(transfer.halves.straight)); // after zeros
    while (!blocks.empty()) {
        const auto some = blocks.first(std::min(k_at_once, blocks.size()));
        blocks = blocks.subspan(some.size());
        const auto taken = take_tasks(transfer, some.size());
        if (!taken && taken.error().code != ErrorCode::out_of_device_memory) return taken.error();
        const auto tasks = taken ? *taken : std::span<driver::BlockTask>();
        std::size_t count = 0;
        Bytes bytes = 0;
        for (const auto& block : some) {
            GPU_SLEEP_TRY(block.place.batch->unprotect());
            bytes += block.place.bytes;
            HostArena::for_each_piece(block.place.span(), [&](std::size_t piece, Span) {
                pin(transfer, *block.place.batch->arena(), piece);
            });
            if (taken && transfer.ways.can_go_straight && is_in_reach(block.place)) {
                const auto* const coded = block.place.batch->arena()->at(block.place.at);
                tasks[count++] = task_of(block, reinterpret_cast<std::uintptr_t>(coded));
                continue;
            }
            std::vector<std::byte> buffer;
            const auto* const content = read_block(block.place, block.device.bytes, buffer);
            if (!content) continue; // its seal will say so
            GPU_SLEEP_TRY(transfer.session.copy_to_device(block.device.address, content, block.device.bytes));
            GPU_SLEEP_TRY(transfer.session.synchronize());
        }
        GPU_SLEEP_TRY(transfer.session.code(driver::BlockWork::decode, tasks.first(count),
                                            driver::CodedSide::host, &transfer.halves.straight));
        GPU_SLEEP_TRY(transfer.queued(bytes, true));
    }
    return {};
}

Result<void> decode(Transfer& transfer, const Halves::Late& late, bool on_host) {
    auto& full = transfer.halves.full[late.half];
    if (on_host) GPU_SLEEP_TRY(transfer.session.wait(full));
    return transfer.session.code(driver::BlockWork::decode, late.tasks, driver::CodedSide::device, &full,
                                 &transfer.halves.free[late.half]);
}

/// Brings blocks as they are, and coded ones by way of the scratch.
Result<void> give_through(Transfer& transfer, std::span<const Move> blocks) {
    std::vector<HostCopy> relayed;
    const HostArena* reached = nullptr; // neighbours lie in one, as a rule
    bool relays = false;
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        if (relays && !copy.arena->is_pinned(piece)) {
            relayed.push_back(copy);
            return {};
        }
        pin(transfer, *copy.arena, piece);
        GPU_SLEEP_TRY(
            transfer.session.copy_to_device(copy.device.address, copy.arena->at(copy.at), copy.device.bytes));
        return transfer.queued(copy.device.bytes);
    };
    for (const auto& turn : GPU_SLEEP_TRY(turns_of(transfer, blocks))) {
        auto& full = transfer.halves.full[turn.half];
        if (!turn.tasks.empty()) GPU_SLEEP_TRY(transfer.session.stay_behind(transfer.halves.free[turn.half]));
        for (const auto& copy : turn.copies) {
            if (std::exchange(reached, copy.arena) != copy.arena) {
                GPU_SLEEP_TRY(copy.arena->unprotect());
                // Nothing is pinned meanwhile, so all calls of a wake see the same.
                relays = bytes_not(&HostArena::is_pinned, *copy.arena) >=
                         std::max<Bytes>(1, transfer.options.relay_from);
                if (relays) {
                    relays = GPU_SLEEP_TRY(prepare_to_relay_back(transfer));
                }
            }
            GPU_SLEEP_TRY(for_each_part(copy, part));
        }
        if (!relayed.empty()) GPU_SLEEP_TRY(relay_back(transfer, std::exchange(relayed, {})));
        if (!turn.tasks.empty()) GPU_SLEEP_TRY(transfer.session.set(full));
        // The link goes on with these copies while the host waits for earlier ones.
        const auto late = std::exchange(transfer.halves.late, {turn.tasks, turn.half});
        GPU_SLEEP_TRY(decode(transfer, late, waits_on_host(late.tasks)));
    }
    return {};
}

} // namespace

Result<void> take_into_cache(Transfer& transfer, std::span<Batch* const> batches,
                             std::span<const Move> blocks) {
    std::vector<HostArena*> arenas;
    Bytes total = 0;
    for (const auto* batch : batches) {
        arenas.push_back(batch->arena());
        total += bytes_not(&HostArena::is_ready, *arenas.back());
    }
    // To memory that is pinned, or is to be so, the device copies itself.
    const bool relays = transfer.options.relay_threads > 0 && total >= transfer.options.relay_from;
    const store::ClaimOptions claims{transfer.options.budget, transfer.progress.host_patience()};
    std::unique_ptr<store::ArenaPreparer> preparer;
    if (!relays) {
        preparer = GPU_SLEEP_TRY(store::ArenaPreparer::start(
            arenas, {claims, transfer.options.fill_threads, &transfer.session.steps()}));
    }
    std::vector<HostCopy> relayed;
    const auto turns = GPU_SLEEP_TRY(turns_of(transfer, blocks));
    const auto reach = encoder(transfer, turns);
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        if (relays && !copy.arena->is_pinned(piece)) {
            add_copy(relayed, copy);
            return {};
        }
        GPU_SLEEP_TRY(reach(copy.turn));
        if (preparer) GPU_SLEEP_TRY(preparer->wait(*copy.arena, piece, [&] { return transfer.look(); }));
        return copy_out(transfer, copy);
    };
    GPU_SLEEP_TRY(for_each_part(turns, part));
    if (!relayed.empty()) GPU_SLEEP_TRY(relay(transfer, relayed, claims, reach));
    if (relays)
        for (auto* const arena : arenas) arena->note_ready();
    return transfer.wait();
}

Result<void> replace_in_cache(Transfer& transfer, std::span<const Move> blocks) {
    const auto turns = GPU_SLEEP_TRY(turns_of(transfer, blocks));
    const auto reach = encoder(transfer, turns);
    const auto part = [&](std::size_t piece, const HostCopy& copy) -> Result<void> {
        pin(transfer, *copy.arena, piece);
        GPU_SLEEP_TRY(reach(copy.turn));
        return copy_out(transfer, copy);
    };
    return for_each_part(turns, part);
}

Result<void> decode_rest(Transfer& transfer) {
    // The host does not wait: what is timed next is queued meanwhile, and at the end it is all the same.
    return decode(transfer, std::exchange(transfer.halves.late, {}), false);
}

Result<void> give_from_cache(Transfer& transfer, std::span<const Move> blocks) {
    constexpr std::size_t k_leg = 128; // until the way is decided
    std::vector<Move> straight;
    std::vector<Move> through;
    while (!blocks.empty()) {
        straight.clear();
        through.clear();
        const bool has_scratch = transfer.coding.scratch.bytes != 0;
        Bytes all = 0;
        Bytes in_reach = 0;
        auto& ways = transfer.ways;
        const auto leg = ways.is_decided ? blocks : blocks.first(std::min(k_leg, blocks.size()));
        blocks = blocks.subspan(leg.size());
        for (const auto& block : leg) {
            all += block.place.bytes;
            if (block.place.is_coded() && is_in_reach(block.place)) in_reach += block.place.bytes;
        }
        constexpr Bytes k_worth_timing = 16 * k_mib;
        // A leg tells the ways apart if nearly all of it could go both.
        const bool can_be_timed = has_scratch && in_reach >= std::max(k_worth_timing, all / 10 * 9);
        const bool may_choose = has_scratch && (can_be_timed || ways.is_decided);
        const bool is_straight = may_choose && GPU_SLEEP_TRY(goes_straight(transfer));
        for (const auto& block : leg) {
            const bool goes =
                block.place.is_coded() && (!has_scratch || (is_straight && is_in_reach(block.place)));
            (goes ? straight : through).push_back(block);
        }
        auto* const timed = can_be_timed && ways.legs < ways.tried.size() ? &ways.tried[ways.legs] : nullptr;
        const auto set = [&](driver::DeviceSession::Point& point) {
            return is_straight ? transfer.session.set_coded(point) : transfer.session.set(point);
        };
        if (is_straight) GPU_SLEEP_TRY(decode_rest(transfer));
        if (!ways.is_decided) GPU_SLEEP_TRY(transfer.session.stay_behind(ways.tried[1].ended));
        if (timed) GPU_SLEEP_TRY(set(timed->begun));
        GPU_SLEEP_TRY(give_through(transfer, through));
        GPU_SLEEP_TRY(give_straight(transfer, straight));
        if (timed) {
            GPU_SLEEP_TRY(set(timed->ended));
            timed->bytes = in_reach;
        }
        if (can_be_timed) ++ways.legs;
    }
    return {};
}

} // namespace gpu_sleep::contents
