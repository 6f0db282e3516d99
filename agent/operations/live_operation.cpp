// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of a move, and what it says of itself.

#include "operations/live_operation.hpp"

#include "base/guard.hpp"
#include "common/interception.hpp"
#include "driver/context.hpp"
#include "operations/quiesce.hpp"
#include "operations/turn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gpu_sleep::agent::operations {

using sleep::Direction;
using sleep::Verdict;

namespace {

/// How long work that runs may keep a piece waiting, and with it all that the program submits meanwhile.
constexpr Milliseconds k_patience{2'000};

std::string_view words_of(Direction direction) noexcept {
    return direction == Direction::to_host ? "to host memory" : "back to the GPU";
}

} // namespace

LiveOperation::LiveOperation(Parts& parts, Direction direction, const server::ProgressSink& progress,
                             Clock::time_point deadline, bool is_forced, model::Report& report)
    : parts_(parts), direction_(direction), progress_(progress), deadline_(deadline), report_(report),
      alone_(false, progress, nobody_) {
    pause_.level = model::Level::pause;
    pause_.force = is_forced;
}

Result<std::vector<sleep::LivePart>> LiveOperation::plan(const std::vector<std::string>& tags, Bytes bytes) {
    auto parts = parts_.memory.with_lock([&](const LockedMemory& locked) {
        return guarded([&] { return sleep::plan_live(locked.ledger(), direction_, tags, bytes); });
    });
    if (parts && !parts->empty() && !intercepts())
        return make_error(ErrorCode::driver_failed, "{}", k_not_intercepted);
    return parts;
}

Result<const driver::MemoryKind*> LiveOperation::kind(int device) {
    if (const auto known = kinds_.find(device); known != kinds_.end()) return &known->second;
    const auto& api = parts_.memory.api();
    auto made = direction_ == Direction::to_host ? driver::MemoryKind::of_host_near(api, device)
                                                 : driver::MemoryKind::of_device(api, device);
    if (!made) return std::move(made).error();
    return &kinds_.emplace(device, *std::move(made)).first->second;
}

Result<void> LiveOperation::rehearse(const std::vector<std::string>& tags, Bytes bytes) {
    const auto parts = plan(tags, bytes);
    if (!parts) return parts.error();
    for (const auto& part : *parts) {
        model::DeviceReport piece;
        piece.device = part.device;
        piece.released = piece.kept = part.span.bytes;
        if (const auto able = kind(part.device); !able) return able.error();
        add(piece);
    }
    if (parts->empty()) return {};
    GPU_SLEEP_TRY(note_memory(&model::DeviceReport::free_before));
    for (auto& device : report_.devices)
        device.free_after = direction_ == Direction::to_host
                                ? device.free_before + device.released
                                : device.free_before - std::min(device.free_before, device.released);
    const auto expected = sleep::estimate_move(direction_, *parts);
    report_.notes.push_back(
        fmt::format("{} would move {} in about {}; its work would wait for about {} at a time",
                    format_bytes(sleep::bytes_of(*parts)), words_of(direction_),
                    format_seconds(expected.time.count()), format_seconds(expected.pause.count())));
    return {};
}

Result<void> LiveOperation::run(const std::vector<std::string>& tags, Bytes bytes) {
    const auto parts = plan(tags, bytes);
    if (!parts) return parts.error();
    // Refused before anything moves.
    for (const auto& part : *parts)
        if (const auto able = kind(part.device); !able) return able.error();
    if (parts->empty()) return {};
    GPU_SLEEP_TRY(note_memory(&model::DeviceReport::free_before));
    auto done = guarded([&] { return move_all(*parts); });
    report_.changed |= moved_ > 0;
    ignoring_errors([&] {
        static_cast<void>(note_memory(&model::DeviceReport::free_after));
        if (stayed_ > 0)
            report_.notes.push_back(
                fmt::format("{} stay where they are: more than a tenth was written while it "
                            "was copied, {} times over",
                            format_bytes(stayed_), sleep::k_most_rounds));
        if (moved_ > 0 && done)
            report_.notes.push_back(fmt::format(
                "{} moved {} while the program ran; its work waited for {} at most", format_bytes(moved_),
                words_of(direction_), format_seconds(report_.longest_pause)));
        if (moved_ > 0 && !done)
            done.error().message += fmt::format("; {} moved {} before, and stay there", format_bytes(moved_),
                                                words_of(direction_));
    });
    return done;
}

Result<void> LiveOperation::move_all(std::span<const sleep::LivePart> parts) {
    const auto total = sleep::bytes_of(parts);
    Bytes done = 0;
    auto limit = sleep::k_first_piece;
    while (!parts.empty()) {
        if (parts_.memory.is_ending()) return process_is_ending();
        if (Clock::now() >= deadline_) return make_error(ErrorCode::timed_out, "time ran out");
        if (!progress_({model::Progress::Phase::transfer, done, total})) return withdrawn();
        const auto piece = sleep::first_piece(parts, limit);
        GPU_SLEEP_TRY(move_piece(piece));
        const auto bytes = sleep::bytes_of(piece);
        done += bytes;
        limit = sleep::next_piece_limit(bytes, last_pause_);
        parts = parts.subspan(piece.size());
    }
    return {};
}

Result<void> LiveOperation::move_piece(std::span<const sleep::LivePart> piece) {
    const auto to = kind(piece.front().device);
    if (!to) return to.error();
    const auto count = [this](Bytes more) {
        return parts_.memory.with_lock([&](LockedMemory& locked) {
            return guarded([&] { return locked.engine().count_host_backed(more); });
        });
    };
    if (direction_ == Direction::to_host) GPU_SLEEP_TRY(count(sleep::bytes_of(piece)));
    auto verdict = guarded([&] {
        sleep::LiveMove move(parts_.memory.api(), **to, piece);
        auto found = guarded([&] { return carry(move); });
        add(move.report());
        return found;
    });
    static_cast<void>(count(0)); // which takes nothing more
    if (!verdict) return std::move(verdict).error();
    if (*verdict == Verdict::stay) stayed_ += sleep::bytes_of(piece);
    return {};
}

Result<Verdict> LiveOperation::carry(sleep::LiveMove& move) {
    GPU_SLEEP_TRY(move.create());
    for (int round = 1;; ++round) {
        GPU_SLEEP_TRY(copy(move));
        auto verdict = swap(move, round);
        if (!verdict || *verdict != Verdict::again) return verdict;
    }
}

Result<void> LiveOperation::copy(sleep::LiveMove& move) {
    const auto contexts = keep_contexts(true);
    const auto slice = [&] {
        return parts_.memory.with_lock(
            [&](LockedMemory& locked) { return guarded([&] { return move.copy(locked.ledger()); }); });
    };
    auto done = guarded([&]() -> Result<void> {
        GPU_SLEEP_TRY(move.open());
        for (;;) {
            const auto copied = slice();
            if (!copied) return copied.error();
            if (*copied) return {};
        }
    });
    move.close();
    return done;
}

Result<Verdict> LiveOperation::swap(sleep::LiveMove& move, int round) {
    GateSettler settler(parts_.memory, parts_.status);
    model::Report quiet;
    Callbacks::Jobs nobody;
    const auto deadline = std::min(deadline_, Clock::now() + k_patience);
    const auto is_quiet = Quiesce(parts_, pause_, progress_, alone_, deadline, quiet).run(nobody);
    if (!is_quiet) return is_quiet.error();
    const auto begun = Clock::now();
    auto verdict = parts_.memory.with_lock([&](LockedMemory& locked) {
        return transact(parts_.status, locked,
                        [&] { return move.swap(locked.ledger(), locked.contents(), round); });
    });
    if (!verdict) parts_.come_first_at_exit(); // what could not be mapped again sleeps
    settler.settle();
    last_pause_ = Clock::now() - begun;
    report_.times.drain += quiet.times.drain;
    report_.longest_pause = std::max(report_.longest_pause, last_pause_.count());
    return verdict;
}

model::DeviceReport& LiveOperation::device(int ordinal) {
    for (auto& each : report_.devices)
        if (each.device == ordinal) return each;
    auto& made = report_.devices.emplace_back();
    made.device = ordinal;
    return made;
}

void LiveOperation::add(const model::DeviceReport& piece) {
    auto& all = device(piece.device);
    all.released += piece.released;
    all.kept += piece.kept;
    for (std::size_t i = 0; i < piece.steps.size(); ++i) all.steps[i] += piece.steps[i];
    moved_ += piece.kept;
}

Result<void> LiveOperation::note_memory(Bytes model::DeviceReport::*free) {
    const auto kept = keep_contexts(true);
    const auto& api = parts_.memory.api();
    const auto contexts = driver::active_contexts(api);
    if (!contexts) return contexts.error();
    for (const auto& context : *contexts) {
        if (!kinds_.contains(context.device())) continue;
        const driver::CurrentContext current(api, context.get());
        const auto memory = driver::memory_info(api);
        if (!memory) return memory.error();
        auto& all = device(context.device());
        all.*free = memory->free;
        all.total = memory->total;
    }
    return {};
}

Result<model::Report> run_live(Parts& parts, const model::LiveRequest& request,
                               const server::ProgressSink& progress, server::Asker asker) {
    const auto start = Clock::now();
    if (parts.inhibitors.now() && asker == server::Asker::command && !request.ignore_inhibitors)
        return make_error(ErrorCode::inhibited, "sleeps are inhibited");
    const auto waits_until = start + request.timeout;
    const auto turn = Turn::take(parts, true, waits_until, progress);
    if (!turn) return turn.error();
    if (parts.memory.is_ending()) return process_is_ending();
    const auto is_deep = parts.deep.look();
    if (!is_deep) return is_deep.error();
    if (*is_deep) return make_error(ErrorCode::refused, "it sleeps deeply, so nothing of it can run");
    const driver::RelaxedCaptureMode relaxed(parts.memory.api());
    model::Report report;
    report.operation = model::Operation::sleep;
    report.dry_run = request.dry_run;
    const auto deadline = request.bounds_all ? waits_until : Clock::time_point::max();
    LiveOperation move(parts, Direction::to_host, progress, deadline, request.force, report);
    GPU_SLEEP_TRY(request.dry_run ? move.rehearse(request.tags, request.bytes)
                                  : move.run(request.tags, request.bytes));
    parts.memory.with_lock([&](const LockedMemory& locked) {
        ignoring_errors([&] { parts.status.complete(locked, report); }); // a shortage only thins it
    });
    report.times.total = seconds_since(start);
    return report;
}

} // namespace gpu_sleep::agent::operations
