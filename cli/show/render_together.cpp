// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is said of processes that go together.

#include "cli/show/render.hpp"
#include "cli/show/render_lines.hpp"

namespace gpu_sleep::cli {
namespace {

/// "3 processes are", "1 process is".
std::string subject(std::size_t count, std::string_view one, std::string_view several) {
    return count == 1 ? fmt::format("1 process {}", one) : fmt::format("{} processes {}", count, several);
}

/// What has become of all.
struct Sum {
    std::size_t count;
    std::size_t done = 0;
    std::size_t asleep = 0; ///< of a sleep, also those that did not go deep
    std::size_t deep = 0;
    std::size_t paused = 0;
    Bytes moved = 0;
    bool is_known = true;
    bool has_changed = false;
    bool is_rehearsal = false;
    bool would_fail = false;

    explicit Sum(const std::vector<control::Outcome>& outcomes) : count(outcomes.size()) {
        for (const auto& outcome : outcomes) {
            if (const auto* report = std::get_if<model::Report>(&outcome.answer)) {
                add(*report);
            } else if (const auto* failure = std::get_if<model::Failure>(&outcome.answer)) {
                asleep += failure->state == model::State::asleep;
            } else {
                is_known = is_known && peers::error_of(outcome.answer)->code != ErrorCode::outcome_unknown;
            }
        }
    }

private:
    void add(const model::Report& report) {
        ++done;
        ++asleep;
        deep += report.deep;
        paused += report.state == model::State::paused || rehearses_pause(report);
        has_changed |= report.changed;
        is_rehearsal |= report.dry_run;
        would_fail |= report.refusal_code && !report.refusal.empty();
        moved += released(report);
        if (report.changed) moved += report.deep_bytes;
    }
};

} // namespace

std::string render_together(const std::vector<control::Outcome>& outcomes, const model::SleepRequest* sleep) {
    const bool pauses = sleep && sleep->level == model::Level::pause; // of which some may sleep already
    const Sum sum(outcomes);
    const auto size = format_bytes(sum.moved);
    const auto all = subject(sum.count, "is", "are");
    const bool paused = sum.paused == sum.count;
    const auto* const state = !sleep ? "awake" : paused ? "paused" : pauses ? "paused or asleep" : "asleep";
    const auto* const deed = !sleep   ? "wake"
                             : paused ? "be paused"
                             : pauses ? "be paused or asleep"
                                      : "sleep";
    if (sum.would_fail)
        return fmt::format("none of {} {}; nothing was changed\n", subject(sum.count, "would", "would"),
                           deed);
    if (sum.done == sum.count && sum.is_rehearsal)
        return fmt::format("{} {}; {} of GPU memory would be {}; nothing was changed\n",
                           subject(sum.count, "would", "would"), deed, size, sleep ? "freed" : "taken");
    if (sum.done == sum.count)
        return fmt::format("{} {}; {} of GPU memory {}\n", all,
                           sleep && sum.deep == sum.count ? "deeply asleep" : state, size,
                           sleep ? "freed" : "taken");
    if (sleep && sleep->deep && sum.asleep == sum.count)
        return fmt::format("{} asleep, {} of them deeply; the same command continues from there\n", all,
                           sum.deep);
    if (!sum.has_changed && sum.is_known)
        return fmt::format("none of {} {}\n", subject(sum.count, "was", "was"),
                           !sleep   ? "woken"
                           : pauses ? "paused"
                                    : "put to sleep");
    return fmt::format("{} of {} {}; the same command completes it\n", sleep ? sum.asleep : sum.done,
                       subject(sum.count, "is known to be", "are known to be"), state);
}

} // namespace gpu_sleep::cli
