// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Look, lock, make room.

#include "control/need.hpp"

#include "client/gpu_queue.hpp"
#include "client/room.hpp"

#include <fmt/ranges.h>

#include <iterator>
#include <set>
#include <tuple>

namespace gpu_sleep::control {
namespace {

constexpr Milliseconds k_answer_patience{2'000};

/// One GPU's line of each user who has processes on it, asleep or not. They stay open from try to try:
/// closing one gives up its place.
class Lines {
public:
    /// Takes the locks: nobody wakes meanwhile who makes room himself. Errors: timed_out.
    [[nodiscard]] Result<void> lock(Finder& finder, const driver::Gpu& gpu,
                                    const std::vector<Outcome>& processes, const Need& need,
                                    Clock::time_point until) {
        constexpr Milliseconds k_between{20};
        open(finder, gpu.uuid, processes);
        for (auto& [key, line] : lines_)
            while (!line.lock()) {
                const auto why = timed_out(line.holder());
                if (Clock::now() >= until) return why;
                if (need.waits) need.waits(gpu, why.message, until);
                std::this_thread::sleep_for(k_between);
            }
        return {};
    }
    /// Until the next try. Who only waits for somebody's time, `wait` in seconds, stands when that is nearly
    /// over, so that nobody who comes then has the room first. Before that, and if it lacks more, it lets
    /// others go first, who may have the room that they need.
    void rest(std::optional<double> wait) {
        constexpr double k_standing = 5;
        for (auto& [key, line] : lines_) {
            line.unlock();
            if (!wait || *wait > k_standing)
                line.leave();
            else
                static_cast<void>(line.stand()); // without a place others may come first
        }
    }

private:
    using Key = std::tuple<std::string, dev_t, ino_t>;

    void open(Finder& finder, const std::string& gpu, const std::vector<Outcome>& processes) {
        for (const auto& each : processes) {
            if (!device_of(each.answer, gpu)) continue;
            const auto socket = finder.socket_of(each.process);
            struct stat status = {};
            if (!socket || ::fstat(socket->directory.get(), &status) != 0) continue;
            const Key key(gpu, status.st_dev, status.st_ino);
            const auto known = lines_.find(key);
            if (known != lines_.end() && known->second.is_in_place(socket->directory.get())) continue;
            if (known != lines_.end()) lines_.erase(known);
            auto line = client::GpuQueue::open(socket->directory.get(), gpu);
            if (line) lines_.emplace(key, *std::move(line));
        }
    }
    [[nodiscard]] static Error timed_out(pid_t holder) {
        const auto who = holder != 0 ? fmt::format("process {}", holder) : std::string("another process");
        return make_error(ErrorCode::timed_out, "{} is already making room on the GPU", who);
    }

    /// By GPU and directory: in the same order for all who take several.
    std::map<Key, client::GpuQueue> lines_;
};

Result<std::vector<Outcome>> ask_processes(Finder& finder, const Need& need) {
    auto processes = ask_all(finder, need.user, k_answer_patience);
    if (processes) drop_ended(*processes);
    return processes;
}

/// The processes that `need` names; nothing if it names none. Errors: those of find_targets().
Result<std::optional<std::set<pid_t>>> selected(Finder& finder, const Need& need) {
    if (need.target.empty()) return std::optional<std::set<pid_t>>();
    const auto targets = GPU_SLEEP_TRY(find_targets(finder, need.target, {.user = need.user}));
    std::set<pid_t> pids;
    for (const auto& target : targets.reached) pids.insert(target.process.pid);
    return std::optional(std::move(pids));
}

/// Returns the reports of the `processes` that may be asked to sleep; adds the processes to `asked` in the
/// same order.
std::vector<client::Holder> holders_of(Finder& finder, const Need& need,
                                       const std::vector<Outcome>& processes,
                                       const std::optional<std::set<pid_t>>& only,
                                       std::vector<const Process*>& asked) {
    std::vector<client::Holder> holders;
    for (const auto& each : processes) {
        const auto* const report = std::get_if<model::Report>(&each.answer);
        if (!report || (only && !only->contains(each.process.pid))) continue;
        asked.push_back(&each.process);
        holders.push_back(
            {title(each.process), *report, [&finder, &each] { return finder.connect(each.process); }});
        holders.back().only_if_idle = need.only_if_idle;
        if (need.adapt) need.adapt(each.process, *report, holders.back().request.emplace(need.request));
    }
    return holders;
}

Error too_little(const Need& need, const GpuRoom& room) {
    if (need.bytes > room.gpu.total) // whoever holds some of it
        return make_error(ErrorCode::out_of_device_memory, "it has only {} in all",
                          format_bytes(room.gpu.total));
    auto error = make_error(ErrorCode::out_of_device_memory, "{} of {} are free", format_bytes(room.gpu.free),
                            format_bytes(room.gpu.total));
    if (!room.against.empty()) error.message += fmt::format("; {}", fmt::join(room.against, "; "));
    return error;
}

Result<Made> try_to_make_room(const Need& need, Lines& lines) {
    constexpr Milliseconds k_lock_patience{10'000};
    Finder finder;
    const auto only = GPU_SLEEP_TRY(selected(finder, need));
    auto found = GPU_SLEEP_TRY(ask_processes(finder, need));
    auto& processes = found;
    const Gpus gpus(finder, processes);
    auto gpu = GPU_SLEEP_TRY(gpus.choose(need.gpu));
    if (!need.request.dry_run) {
        const auto until = std::max(Clock::now() + k_lock_patience, need.until);
        GPU_SLEEP_TRY(lines.lock(finder, gpu, processes, need, until));
        auto now = GPU_SLEEP_TRY(ask_processes(finder, need)); // who had the locks has moved memory
        processes = std::move(now);
    }
    Made done;
    done.room.needed = need.bytes;
    const auto look = [&]() -> Result<client::BytesByGpu> {
        done.room.gpu = GPU_SLEEP_TRY(gpus.look(gpu.uuid));
        const auto missing = need.bytes - std::min(need.bytes, done.room.gpu.free);
        return client::BytesByGpu{{gpu.uuid, missing}};
    };
    std::vector<const Process*> asked;
    const auto holders = holders_of(finder, need, processes, only, asked);
    auto made = GPU_SLEEP_TRY(client::make_room(holders, look, need.request));
    for (auto& slept : made.slept) done.outcomes.push_back({*asked[slept.holder], std::move(slept.answer)});
    done.error = std::move(made.error);
    if (done.error) return done;
    const bool would_do = need.request.dry_run && !done.outcomes.empty() &&
                          std::ranges::all_of(done.outcomes, [](const Outcome& each) {
                              return client::refusal_in(each.answer).empty();
                          });
    if (made.is_enough() || would_do) return done;
    done.wait = made.wait;
    done.room.against = std::move(made.against);
    auto others = holders_without_agent(finder, done.room.gpu, processes, ::geteuid());
    std::move(others.begin(), others.end(), std::back_inserter(done.room.against));
    done.error = too_little(need, done.room);
    return done;
}

/// Whether to try again after what came of a try.
bool goes_on(const Need& need, const Made& made, Clock::time_point until_for_time) {
    const auto now = Clock::now();
    if (!made.error || need.bytes > made.room.gpu.total) return false;
    const bool is_time = made.wait && now + std::chrono::duration<double>(*made.wait) <= until_for_time;
    if (now >= need.until && !is_time) return false;
    if (need.waits)
        need.waits(made.room.gpu, made.error->message,
                   is_time ? std::max(need.until, until_for_time) : need.until);
    return true;
}

/// Which directory holds the socket of `process`; nothing where that is not known.
std::optional<FileIdentity> place_of_socket(Finder& finder, const Process& process) {
    const auto socket = finder.socket_of(process);
    return socket ? FileIdentity::of(socket->directory.get()) : std::nullopt;
}

std::string only_its_user(uid_t uid) {
    return uid == 0 ? "only root can put it to sleep"
                    : fmt::format("only {} and root can put it to sleep", user_name(uid));
}

} // namespace

Result<Made> make_room(const Need& need) {
    constexpr Milliseconds k_between{500};
    Lines lines;
    std::optional<Made> before;
    std::optional<Clock::time_point> until_for_time;
    for (;;) {
        auto made = try_to_make_room(need, lines);
        if (!until_for_time) until_for_time = Clock::now() + need.for_time; // others may have had their turns
        if (!made && before) {
            before->error = std::move(made).error();
            return *std::move(before);
        }
        if (!made) return made;
        if (before)
            made->outcomes.insert(made->outcomes.begin(), before->outcomes.begin(), before->outcomes.end());
        if (!goes_on(need, *made, *until_for_time)) return made;
        lines.rest(made->wait);
        before = *std::move(made);
        std::erase_if(before->outcomes, [](const auto& each) {
            const auto* const report = std::get_if<model::Report>(&each.answer);
            return !report || !report->changed; // it is asked again
        });
        std::this_thread::sleep_until(
            std::min(Clock::now() + k_between, std::max(need.until, *until_for_time)));
    }
}

Result<std::vector<driver::Gpu>> visible_gpus(const char* names, const char* order) {
    Finder finder;
    const auto processes = GPU_SLEEP_TRY(ask_all(finder, {}, k_answer_patience));
    const Gpus gpus(finder, processes);
    return visible_of(gpus.all(), gpus.are_numbered(), names, order);
}

std::string why_not_asked(Finder& finder, const Process& asker, const Process& other) {
    if (other.uid != asker.uid) {
        const auto owner = user_name(other.uid);
        return asker.uid == 0
                   ? fmt::format("it belongs to {}; root's agents ask only root's processes", owner)
                   : fmt::format("it belongs to {}: {}", owner, only_its_user(other.uid));
    }
    const auto place = place_of_socket(finder, asker);
    const auto its_place = place_of_socket(finder, other);
    if (!place || !its_place) return "it may be out of reach: its agent's socket was not found";
    if (*place == *its_place) return {};
    return "it sees another /tmp, so it cannot be asked; start both with the same /tmp";
}

std::vector<std::string> holders_without_agent(const Finder& finder, const driver::Gpu& gpu,
                                               const std::vector<Outcome>& known, uid_t own) {
    std::vector<std::string> lines;
    for (const auto& holder : gpu.processes) {
        const auto is_it = [&](const Outcome& each) { return each.process.pid == holder.pid; };
        const auto outcome = std::ranges::find_if(known, is_it);
        if (outcome != known.end() && std::get_if<model::Report>(&outcome->answer)) continue;
        const auto bytes = holder.bytes ? format_bytes(*holder.bytes) : "memory";
        auto process = finder.proc().read(holder.pid);
        if (!process) {
            lines.push_back(fmt::format("{} has {}: it has no agent that answers", holder.pid, bytes));
            continue;
        }
        identify(finder.proc(), *process);
        const auto subject = title(*process);
        if (own != 0 && process->uid != own) {
            lines.push_back(fmt::format("{} of {} has {}: {}", subject, user_name(process->uid), bytes,
                                        only_its_user(process->uid)));
            continue;
        }
        const bool has_agent =
            outcome != known.end() || finder.proc().find_thread(holder.pid, k_control_thread);
        const auto why =
            finder.proc().is_stopped(*process) ? fmt::format("it is stopped (see gpu-doctor {})", holder.pid)
            : has_agent                        ? std::string("its agent does not answer")
                        : fmt::format("it has no agent (gpu-sleep {} --engine driver)", holder.pid);
        lines.push_back(fmt::format("{} has {}: {}", subject, bytes, why));
    }
    return lines;
}

bool Neighbours::look() {
    constexpr Milliseconds k_just{1'000};
    if (looked_ && Clock::now() < *looked_ + k_just) return true;
    finder = Finder();
    auto asked = ask_all(finder, {}, k_answer_patience);
    if (!asked) return false;
    outcomes = *std::move(asked);
    auto seen = driver::look_at_gpus();
    gpus = seen ? *std::move(seen) : std::vector<driver::Gpu>();
    looked_ = Clock::now();
    return true;
}

Holders holders_beside(Neighbours& neighbours, const Process& process, bool others_alone,
                       const std::vector<GpuPair>& moves, client::BytesByGpu gpus) {
    if (!neighbours.look()) return {};
    auto& finder = neighbours.finder;
    std::vector<client::Holder> holders;
    std::vector<client::Candidate> candidates;
    const auto asker = finder.proc().read(process.pid);
    Holders found;
    for (const auto& outcome : neighbours.outcomes) {
        const auto* const report = std::get_if<model::Report>(&outcome.answer);
        if (!report) continue;
        if (outcome.process.pid == process.pid)
            for (const auto& device : report->devices) gpus[place_of(device.uuid, moves)] = 0;
        else {
            auto candidate = client::candidate_of(*report, model::WakeRequest().min_awake);
            if (others_alone) candidate.against = asker ? why_not_asked(finder, *asker, outcome.process) : "";
            if (others_alone && candidate.against.empty()) continue;
            holders.push_back({title(outcome.process), *report, {}});
            candidates.push_back(std::move(candidate));
        }
    }
    found.can_sleep = std::ranges::any_of(candidates, [&](const auto& candidate) {
        return candidate.against.empty() && std::ranges::any_of(candidate.frees, [&](const auto& each) {
                   return gpus.contains(each.first);
               });
    });
    auto lines = client::describe(holders, candidates, gpus);
    for (const auto& [uuid, bytes] : gpus)
        if (const auto* const gpu = find_gpu(neighbours.gpus, uuid)) {
            auto others = holders_without_agent(finder, *gpu, neighbours.outcomes, ::geteuid());
            std::move(others.begin(), others.end(), std::back_inserter(lines));
        }
    found.text = fmt::format("{}", fmt::join(lines, "; "));
    return found;
}

} // namespace gpu_sleep::control
