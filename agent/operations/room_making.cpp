// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Places and locks, by GPU; standing in line, asking others, waking.

#include "operations/room_making.hpp"

#include "base/log.hpp"
#include "driver/context.hpp"
#include "operations/joint.hpp"

#include <fmt/ranges.h>

namespace gpu_sleep::agent::operations {

using client::BytesByGpu;
using model::Report;

namespace {

/// For another process to say how it stands: it does so at once, unless it is stopped.
constexpr Milliseconds k_status_patience{300};
constexpr Milliseconds k_between_asking_silent{10'000};
/// For a sleep until it begins to copy.
constexpr Milliseconds k_sleep_patience{10'000};
/// A wake may need more than its memory: what the driver keeps of it.
constexpr Bytes k_room_margin = 64 * k_mib;
/// And the primary context, in which the agent copies, where the program works in another: 520 to 593 MiB, by
/// tests/bench/RESULTS.md.
constexpr Bytes k_context_margin = 640 * k_mib;
constexpr int k_tries = 3;

std::vector<std::string> keys(const BytesByGpu& gpus) {
    std::vector<std::string> names;
    for (const auto& [gpu, bytes] : gpus) names.push_back(gpu);
    return names;
}

/// How much of that, and of each device's `margin`, is not free; nothing where the driver cannot be asked.
BytesByGpu shortage(const Report& report, const std::function<Bytes(int device)>& margin) {
    BytesByGpu gpus;
    for (const auto& device : report.devices) {
        const auto needed = device.released + margin(device.device);
        if (device.released > 0 && device.total > 0 && needed > device.free_before)
            gpus[device.uuid] += needed - device.free_before;
    }
    return gpus;
}

/// Whether inhibitors that end in so many seconds end the wake rather than its wait.
bool minds_inhibitors(const model::WakeRequest& request, double seconds) {
    return request.minds_inhibitors && seconds > std::chrono::duration<double>(request.wait).count();
}

std::string joined(const std::vector<std::string>& words) {
    return fmt::format("{}", fmt::join(words, "; "));
}

std::string words_against(const client::RoomMade& made) {
    return made.against.empty() ? "no process that this agent can ask has memory on the GPU"
                                : joined(made.against);
}

} // namespace

BytesByGpu needs_of_wake(const Report& rehearsed) {
    BytesByGpu gpus;
    for (const auto& device : rehearsed.devices)
        if (device.released > 0 && !device.uuid.empty()) gpus[device.uuid] += device.released;
    return gpus;
}

client::GpuQueue* GpuLines::find(int directory, const std::string& gpu) {
    if (const auto known = lines_.find(gpu); known != lines_.end()) {
        // Closing the file would give up what is locked, which those that have the same file open still heed.
        if (known->second.holds() || known->second.is_in_place(directory)) return &known->second;
        lines_.erase(known);
    }
    auto line = client::GpuQueue::open(directory, gpu);
    return line ? &lines_.emplace(gpu, *std::move(line)).first->second : nullptr;
}

std::optional<GpuLines::Locks> GpuLines::lock(int directory, const std::vector<std::string>& gpus) {
    Locks locks(this);
    const MutexLock lock(mutex_);
    for (const auto& gpu : gpus)
        if (auto* const line = find(directory, gpu); line && !line->lock()) return std::nullopt;
    return locks;
}

Result<GpuLines::Room> GpuLines::wait_for_room(const std::vector<std::string>& gpus, const CountRoom& count,
                                               Clock::time_point deadline,
                                               const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_look{5};
    const auto neighbours = client::Neighbours::open();
    for (;;) {
        std::vector<client::GpuQueue*> lines; // they stay while they count
        std::optional<client::BytesByGpu> of_others;
        {
            const MutexLock lock(mutex_);
            for (const auto& gpu : gpus)
                if (auto* const line = find(neighbours ? neighbours->directory() : -1, gpu))
                    lines.push_back(line);
            of_others = client::begin_counting(lines);
        }
        if (of_others) {
            const auto room = guarded([&] { return count(*of_others); });
            const MutexLock lock(mutex_);
            const auto is_done = GPU_SLEEP_TRY(client::end_counting(lines, *of_others, room));
            if (is_done) return Room(this);
        }
        if (Clock::now() >= deadline)
            return make_error(
                ErrorCode::out_of_device_memory,
                "another process is coming back to the same GPU, and did not get its memory in time");
        if (!keep_going()) return withdrawn();
        std::this_thread::sleep_for(k_look);
    }
}

std::optional<GpuLines::Locks> RoomMaking::take_turn(int directory, const std::vector<std::string>& gpus,
                                                     Milliseconds min_awake, bool goes_first) {
    constexpr Milliseconds k_patience{10'000};
    const auto before = lines_.stand(directory, gpus);
    const auto now = Clock::now();
    if (place_.exchange(before + 1) != before + 1) moved_ = now;
    // Somebody in the line must be stuck: nobody waits for that.
    const bool overdue = now - moved_ > 2 * min_awake + k_patience;
    if (before > 0 && !overdue && !goes_first) return {};
    auto locks = lines_.lock(directory, gpus);
    // Who comes back from a deep sleep is lost if others take its room.
    if (!locks && overdue && !lines_.are_shared(directory, gpus)) return GpuLines::Locks();
    return locks;
}

std::vector<client::Holder> RoomMaking::ask_neighbours(const client::Neighbours& neighbours) {
    const auto listed = neighbours.list();
    if (!listed) return {};
    const auto now = Clock::now();
    std::erase_if(silent_, [=](const auto& each) { return each.second <= now; });
    const auto is_silent = [&](const ProcessIdentity& process) {
        return std::ranges::any_of(silent_, [&](const auto& each) { return each.first == process; });
    };
    const protocol::Request request = model::StatusRequest();
    std::vector<ProcessIdentity> asked;
    std::vector<client::Question> questions;
    for (const auto& process : *listed) {
        if (is_silent(process)) continue;
        auto socket = neighbours.connect(process);
        if (!socket) continue;
        asked.push_back(process);
        questions.push_back({*std::move(socket), &request, {k_status_patience}});
    }
    auto answers = client::ask_all(std::move(questions));
    std::vector<client::Holder> holders;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        const auto* const error = client::error_of(answers[i]);
        if (error && error->code == ErrorCode::timed_out)
            silent_.emplace_back(asked[i], now + k_between_asking_silent);
        if (error) continue;
        auto& status = std::get<Report>(answers[i]);
        auto title = status.name.empty() ? std::to_string(asked[i].pid)
                                         : fmt::format("{} ({})", asked[i].pid, status.name);
        holders.push_back({std::move(title), std::move(status),
                           [&neighbours, process = asked[i]] { return neighbours.connect(process); }});
    }
    return holders;
}

Result<std::string> RoomMaking::make_room(const client::Neighbours& neighbours,
                                          const std::function<Result<BytesByGpu>()>& look,
                                          Milliseconds min_awake, bool is_tried,
                                          std::vector<std::string>& notes) {
    constexpr double k_longest_rest = 0.5;
    if (Clock::now() < next_asking_ && min_awake >= against_within_) return against_;
    std::optional<log::Step> step;
    if (!is_tried) step.emplace("have other processes sleep");
    const auto holders = ask_neighbours(neighbours);
    auto request = client::room_request(min_awake);
    const auto name = status_.notes().name;
    request.asker = "room for " + (name.empty() ? program_invocation_short_name : name);
    request.timeout = k_sleep_patience;
    const auto made = GPU_SLEEP_TRY(client::make_room(holders, look, request));
    if (made.error) return *made.error;
    for (const auto& slept : made.slept)
        if (const auto* const report = std::get_if<Report>(&slept.answer); report && report->changed)
            notes.push_back(fmt::format("{} was put to sleep for it", holders[slept.holder].title));
    if (made.is_enough()) return std::string();
    against_ = words_against(made);
    against_within_ = min_awake;
    wait_ = made.wait;
    inhibited_for_ = made.inhibited_for;
    const auto rest = std::min(made.wait.value_or(k_longest_rest), k_longest_rest);
    next_asking_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(rest));
    // Who only waits for somebody's time keeps its place; who lacks more lets others go first.
    if (!made.wait) leave();
    return against_;
}

Result<Report> RoomMaking::wake(const Wake& wake, const model::WakeRequest& request, bool is_tried,
                                bool goes_first) {
    waits_for_turn_ = false;
    if (!is_tried) first_try_ = Clock::now();
    auto dry = request;
    dry.dry_run = true;
    auto rehearsed = wake(dry);
    if (!rehearsed) return rehearsed;
    const auto gpus = needs_of_wake(*rehearsed);
    const auto neighbours = client::Neighbours::open();
    if (gpus.empty() || !neighbours) return wake(request);
    const auto locks = take_turn(neighbours->directory(), keys(gpus), request.min_awake, goes_first);
    if (!locks) {
        waits_for_turn_ = true;
        // Each of those before it, and who has the memory now, stays awake for as long.
        const auto turns = std::chrono::duration<double>(request.min_awake).count() * place_.load();
        return make_error(
            ErrorCode::out_of_device_memory,
            "others are making room on the GPU: this process is number {} in the queue{}", place_.load(),
            turns > 0 ? ", and has its turn in about " + format_seconds(turns) + " at most" : std::string());
    }
    auto done = wake(request);
    std::vector<std::string> notes;
    for (int tries = 1; tries <= k_tries && !done; ++tries) {
        if (done.error().code != ErrorCode::out_of_device_memory) break;
        const auto margin = [&](int device) {
            if (tries == 1) return Bytes{0};
            const bool makes_context = tries == k_tries && !driver::is_primary_active(memory_.api(), device);
            return makes_context ? k_context_margin : k_room_margin;
        };
        const auto look = [&]() -> Result<BytesByGpu> {
            const auto now = GPU_SLEEP_TRY(wake(dry));
            return shortage(now, margin);
        };
        const auto against = GPU_SLEEP_TRY(make_room(*neighbours, look, request.min_awake, is_tried, notes));
        if (!against.empty()) {
            auto error = std::move(done).error();
            error.message += "; " + against;
            error.retry_seconds = wait_;
            // The memory of who has just ended may come free within moments.
            constexpr double k_moments = 2;
            if (minds_inhibitors(request, inhibited_for_) && seconds_since(first_try_) > k_moments)
                error.code = ErrorCode::inhibited;
            return error;
        }
        done = wake(request);
    }
    if (done) done->notes.insert(done->notes.end(), notes.begin(), notes.end());
    return done;
}

Result<Report> RoomMaking::rehearse(const Wake& wake, const model::WakeRequest& request) {
    auto report = GPU_SLEEP_TRY(wake(request));
    const auto missing = shortage(report, [](int) { return Bytes{0}; });
    const auto neighbours = client::Neighbours::open();
    if (missing.empty() || !neighbours) return report;
    const auto holders = ask_neighbours(*neighbours);
    auto asked = client::room_request(request.min_awake);
    asked.dry_run = true;
    asked.timeout = k_sleep_patience;
    const auto made = client::make_room(
        holders, [&]() -> Result<BytesByGpu> { return missing; }, asked);
    if (!made) return made.error();
    bool is_enough = !made->slept.empty();
    for (const auto& [holder, answer] : made->slept) {
        const bool sleeps = client::refusal_in(answer).empty();
        if (sleeps) report.notes.push_back(holders[holder].title + " would be put to sleep for it");
        is_enough &= sleeps;
    }
    if (is_enough) return report;
    auto why = "there is too little GPU memory now: " + words_against(*made);
    const bool is_inhibited = minds_inhibitors(request, made->inhibited_for);
    if (request.wait.count() > 0 && !is_inhibited)
        report.notes.push_back(std::move(why));
    else
        refuse(report, std::move(why), is_inhibited ? ErrorCode::inhibited : ErrorCode::out_of_device_memory);
    return report;
}

RoomMaking::Holders RoomMaking::holders(const BytesByGpu& gpus) {
    const auto neighbours = client::Neighbours::open();
    if (!neighbours) return {};
    const auto others = ask_neighbours(*neighbours);
    std::vector<client::Candidate> candidates;
    candidates.reserve(others.size());
    for (const auto& other : others) candidates.push_back(client::candidate_of(other.status, {}));
    const auto frees_any_of = [&](const client::Candidate& candidate) {
        return std::ranges::any_of(gpus, [&](const auto& gpu) {
            const auto its = candidate.frees.find(gpu.first);
            return its != candidate.frees.end() && its->second > 0;
        });
    };
    const bool could_sleep = std::ranges::any_of(candidates, [&](const client::Candidate& candidate) {
        return frees_any_of(candidate) && client::against(candidate).empty();
    });
    return {joined(client::describe(others, candidates, gpus)), could_sleep};
}

} // namespace gpu_sleep::agent::operations
