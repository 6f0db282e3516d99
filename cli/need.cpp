// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Look, lock, make room, tell.

#include "cli/need.hpp"

#include "cli/asking.hpp"
#include "cli/gpus.hpp"
#include "cli/json.hpp"
#include "cli/output.hpp"
#include "cli/render.hpp"
#include "peers/gpu_line.hpp"

#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <set>
#include <thread>
#include <utility>
#include <variant>

namespace gpu_sleep::cli {
namespace {

constexpr const char* k_program = "gpu-reclaim";
constexpr Milliseconds k_answer_patience{2'000};

/// The locks of one GPU, each user's whose processes have something of it: they let nobody wake meanwhile who
/// makes room himself.
class Locks {
public:
    /// Errors: timed_out, out of descriptors.
    Result<void> take(Finder& finder, const std::string& gpu, const std::vector<Outcome>& processes) {
        std::set<std::pair<dev_t, ino_t>> known;
        for (const auto& each : processes) {
            const auto* const report = std::get_if<model::Report>(&each.answer);
            const bool has_some = report && peers::candidate_of(*report, {}).frees.contains(gpu);
            if (!has_some) continue;
            const auto socket = finder.socket_of(each.process);
            struct stat status = {};
            if (!socket || ::fstat(socket->directory.get(), &status) != 0) continue;
            if (!known.emplace(status.st_dev, status.st_ino).second) continue;
            auto line = peers::GpuLine::open(socket->directory.get(), gpu);
            if (line) lines_.push_back(*std::move(line));
        }
        return lock_all();
    }

private:
    Result<void> lock_all() {
        constexpr Milliseconds k_lock_patience{10'000};
        constexpr Milliseconds k_between{20};
        const auto deadline = Clock::now() + k_lock_patience;
        for (auto& line : lines_)
            while (!line.lock()) {
                if (Clock::now() >= deadline)
                    return make_error(ErrorCode::timed_out, "process {} is already making room on the GPU",
                                      line.holder());
                std::this_thread::sleep_for(k_between);
            }
        return {};
    }

    std::vector<peers::GpuLine> lines_;
};

/// What came of it.
struct Done {
    std::vector<Outcome> outcomes; ///< of those that were asked to sleep
    GpuRoom room;
    std::optional<Error> error; ///< there is too little
};

/// The processes that `need` names; nothing if it names none. Errors: those of find_targets().
Result<std::optional<std::set<pid_t>>> selected(Finder& finder, const Need& need) {
    if (need.target.empty()) return std::optional<std::set<pid_t>>();
    const auto targets = find_targets(finder, need.target, {.user = need.user});
    if (!targets) return targets.error();
    std::set<pid_t> pids;
    for (const auto& target : targets->reached) pids.insert(target.process.pid);
    return std::optional(std::move(pids));
}

/// Those of `processes` that may be asked to sleep, and in the same order the processes.
std::vector<peers::Holder> holders_of(Finder& finder, const Need& need, const std::vector<Outcome>& processes,
                                      const std::optional<std::set<pid_t>>& only,
                                      std::vector<const Process*>& asked) {
    std::vector<peers::Holder> holders;
    for (const auto& each : processes) {
        const auto* const report = std::get_if<model::Report>(&each.answer);
        if (!report || (only && !only->contains(each.process.pid))) continue;
        asked.push_back(&each.process);
        holders.push_back(
            {title(each.process), *report, [&finder, &each] { return finder.connect(each.process); }});
        if (need.adapt) need.adapt(each.process, *report, holders.back().request.emplace(need.request));
    }
    return holders;
}

Error too_little(const Need& need, const GpuRoom& room) {
    auto error = make_error(ErrorCode::out_of_device_memory, "{} of {} are free", format_bytes(room.gpu.free),
                            format_bytes(room.gpu.total));
    if (need.bytes > room.gpu.total) error.message += ", and the GPU has no more";
    if (!room.against.empty()) error.message += fmt::format("; {}", fmt::join(room.against, "; "));
    return error;
}

Result<Done> make_room(const Need& need) {
    Finder finder;
    const auto only = selected(finder, need);
    if (!only) return only.error();
    auto targets = find_all(finder, need.user);
    if (!targets) return std::move(targets).error();
    auto processes = ask_status(finder, *std::move(targets), k_answer_patience);
    drop_ended(processes);
    const Gpus gpus(finder, processes);
    auto gpu = gpus.choose(need.gpu);
    if (!gpu) return std::move(gpu).error();
    Locks locks;
    if (!need.request.dry_run) GPU_SLEEP_TRY(locks.take(finder, gpu->uuid, processes));
    Done done;
    done.room.needed = need.bytes;
    const auto look = [&]() -> Result<peers::BytesByGpu> {
        auto now = gpus.look(gpu->uuid);
        if (!now) return std::move(now).error();
        done.room.gpu = *std::move(now);
        const auto missing = need.bytes - std::min(need.bytes, done.room.gpu.free);
        return peers::BytesByGpu{{gpu->uuid, missing}};
    };
    std::vector<const Process*> asked;
    const auto holders = holders_of(finder, need, processes, *only, asked);
    auto made = peers::make_room(holders, look, need.request);
    if (!made) return std::move(made).error();
    for (auto& slept : made->slept) done.outcomes.push_back({*asked[slept.holder], std::move(slept.answer)});
    const bool would_do =
        need.request.dry_run && !done.outcomes.empty() && exit_status_of(done.outcomes) == exit_status::done;
    if (made->is_enough() || would_do) return done;
    done.room.against = std::move(made->against);
    auto others = holders_without_agent(finder, done.room.gpu, processes);
    std::move(others.begin(), others.end(), std::back_inserter(done.room.against));
    done.error = too_little(need, done.room);
    return done;
}

std::string words(const Need& need, const Done& done) {
    std::string text;
    GpuNumbers numbers;
    for (const auto& outcome : done.outcomes)
        if (const auto* const report = std::get_if<model::Report>(&outcome.answer))
            text += render_operation(outcome.process, numbers.in(*report));
    text += render_total(done.outcomes);
    if (!done.error)
        text += fmt::format("GPU {}{} {} of {} free\n", done.room.gpu.index,
                            need.request.dry_run && !done.outcomes.empty() ? " has, before that," : " has",
                            format_bytes(done.room.gpu.free), format_bytes(done.room.gpu.total));
    return text;
}

/// Prints why processes did not sleep, and what is missing. Returns the exit status.
int print_errors(const std::string& program, const Need& need, const Done& done) {
    for (const auto& outcome : done.outcomes)
        if (const auto* const error = peers::error_of(outcome.answer)) {
            const auto subject = title(outcome.process);
            print_error(
                render_error(program, fmt::format("put {} to sleep", subject), without(subject, *error)));
        }
    if (!done.error) return exit_status::done;
    print_error(render_error(program,
                             fmt::format("free {} on GPU {}", format_bytes(need.bytes), done.room.gpu.index),
                             *done.error));
    return traits(done.error->code).exit_status;
}

/// The GPUs that a program started now would see. Errors: those of visible_of().
Result<std::vector<driver::Gpu>> visible_gpus() {
    Finder finder;
    auto targets = find_all(finder, std::nullopt);
    if (!targets) return std::move(targets).error();
    const auto processes = ask_status(finder, *std::move(targets), k_answer_patience);
    const Gpus gpus(finder, processes);
    return visible_of(gpus.all(), gpus.are_numbered(), std::getenv("CUDA_VISIBLE_DEVICES"),
                      std::getenv("CUDA_DEVICE_ORDER"));
}

} // namespace

int run_need(const Need& need) {
    raise_descriptor_limit();
    const auto done = make_room(need);
    if (!done && done.error().code == ErrorCode::invalid_argument)
        return usage_error(k_program, done.error().message, need.output.json);
    if (!done) return tell_failure(k_program, need.output, done.error());
    const int status = print_errors(k_program, need, *done);
    std::string text;
    if (need.output.json)
        text = to_json(k_program, done->outcomes, done->room, done->error) + '\n';
    else if (!need.output.quiet)
        text = words(need, *done);
    const int written = print_result(k_program, text);
    return status == exit_status::done ? written : status;
}

int make_room_for_command(const std::string& program, Bytes bytes, Milliseconds min_awake) {
    const auto failed = [](int status) {
        return status == exit_status::usage ? status : exit_status::failed_awake;
    };
    const auto gpus = visible_gpus();
    if (!gpus) return failed(tell_failure(program, {}, gpus.error()));
    Need need;
    need.bytes = bytes;
    need.request = peers::room_request(min_awake);
    const auto make_all = [&](bool dry_run) {
        need.request.dry_run = dry_run;
        for (const auto& gpu : *gpus) {
            need.gpu = gpu.uuid;
            const auto done = make_room(need);
            if (!done) return tell_failure(program, {}, done.error());
            if (!dry_run && !done->outcomes.empty()) print_error(words(need, *done));
            if (const int status = print_errors(program, need, *done); status != exit_status::done)
                return status;
        }
        return exit_status::done;
    };
    // Nobody sleeps for a command that one of several GPUs has no room for.
    int status = gpus->size() > 1 ? make_all(true) : exit_status::done;
    if (status == exit_status::done) status = make_all(false);
    return status == exit_status::done ? status : failed(status);
}

} // namespace gpu_sleep::cli
