// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Requests to agents out of wishes, and answers out of outcomes.

#include "cli/http/backend.hpp"

#include "cli/show/json.hpp"
#include "cli/show/render.hpp"

#include <nlohmann/json.hpp>

#include <ctime>
#include <set>

namespace gpu_sleep::cli::http {
namespace {

using model::State;

/// For questions. A process that is well answers within a millisecond.
constexpr Milliseconds k_patience{2'000};

int http_status_of(int exit_status) noexcept {
    switch (exit_status) {
    case exit_status::done: return k_ok;
    case exit_status::usage: return k_bad_request;
    case exit_status::not_permitted: return k_forbidden;
    case exit_status::failed_awake:
    case exit_status::failed_asleep: return k_conflict;
    case exit_status::no_process: return k_unavailable;
    case exit_status::timed_out: return k_timed_out;
    case exit_status::no_host_memory: return k_no_storage;
    default: return k_internal;
    }
}

std::vector<model::Report> reports_in(const std::vector<control::Outcome>& outcomes) {
    std::vector<model::Report> reports;
    for (const auto& outcome : outcomes)
        if (const auto* const report = std::get_if<model::Report>(&outcome.answer))
            reports.push_back(*report);
    return reports;
}

/// The failure that decides on the exit status of all, or null if all have answered.
const control::Outcome* failed_in(const std::vector<control::Outcome>& outcomes) {
    const int status = control::exit_status_of(outcomes);
    const control::Outcome* failed = nullptr;
    for (const auto& each : outcomes) {
        if (!client::error_of(each.answer)) continue;
        if (!control::is_withdrawn(each) && control::exit_status_of(each) == status) return &each;
        if (!failed) failed = &each;
    }
    return failed;
}

/// Until every tag of every process is awake, and its work passes.
bool is_sleeping(const std::vector<model::Report>& reports) {
    return std::ranges::any_of(reports,
                               [](const model::Report& report) { return report.state != State::awake; });
}

/// In TensorRT-LLM's words, of which the last tag is for what has no other: its clients refuse all else. Of
/// the states under way there is none: they end before they are seen.
OrderedJson memory_status(const Dialect& dialect, const std::vector<model::Report>& reports) {
    const auto weights = weights_of(dialect, reports);
    std::set<std::string_view> tags; // sorted, as there
    bool has_failed = false, has_names = false;
    for (const auto& report : reports) {
        has_failed = has_failed || report.state == State::damaged || report.lost;
        for (const auto& row : report.tags) {
            const std::string_view name = row.tag == weights ? dialect.tags.front() : row.tag;
            const bool is_named = std::ranges::find(dialect.tags, name) != dialect.tags.end();
            has_names = has_names || is_named;
            if (!model::is_resident(row.state)) tags.insert(is_named ? name : dialect.tags.back());
        }
    }
    if (!has_names && !tags.empty()) tags.insert(dialect.tags.begin(), dialect.tags.end()); // it sleeps whole
    const auto* const state = has_failed ? "failed" : is_sleeping(reports) ? "parked" : "running";
    return {{"state", state}, {"parked_tags", tags}};
}

/// Of what sleeps. The driver's part of a deep sleep frees it all the same.
Bytes unreleased_in(const std::vector<model::Report>& reports) {
    Bytes sum = 0;
    for (const auto& report : reports) sum += report.deep ? 0 : report.unreleased_bytes;
    return sum;
}

/// Adds the sums of what an operation did to all processes.
void add_figures(const Route& route, const Plan& plan, const std::vector<model::Report>& reports,
                 OrderedJson& value) {
    Bytes moved = 0, contents = 0;
    double seconds = 0;
    for (const auto& report : reports) {
        for (const auto& device : report.devices) {
            moved += device.released;
            contents += device.kept;
        }
        seconds = std::max(seconds, report.times.total);
    }
    const bool is_sleep = route.action == Action::sleep;
    value["status"] = route.dialect->success;
    value["is_sleeping"] = is_sleeping(reports);
    value[is_sleep ? "freed_bytes" : "taken_bytes"] = moved;
    value[is_sleep ? "kept_bytes" : "restored_bytes"] = contents;
    value["seconds"] = seconds;
    value["takes_all"] = plan.takes_all;
    value["tags_passed_over"] = plan.passed_over;
    if (!is_sleep) return;
    value["unreleased_bytes"] = unreleased_in(reports);
    value["tags_kept"] = plan.kept;
}

Answer answer_with(const OrderedJson& value, int status = k_ok) {
    return {status, written(value) + '\n'};
}

/// What came of all, of which `failed` is one that failed.
Answer failure(const std::vector<control::Outcome>& outcomes, const control::Outcome& failed, int status) {
    auto value = document_of(k_program, outcomes, status);
    value["error"] = error_value(k_program, *client::error_of(failed.answer), &failed);
    return answer_with(value, http_status_of(status));
}

Answer confirmation(const Route& route, const Plan& plan, const std::vector<control::Outcome>& outcomes) {
    const auto status = control::exit_status_of(outcomes);
    if (const auto* const failed = failed_in(outcomes)) // with status 0 it was withdrawn
        return failure(outcomes, *failed, status == exit_status::done ? exit_status::failed_awake : status);
    const auto reports = reports_in(outcomes);
    auto value = document_of(k_program, outcomes, status);
    add_figures(route, plan, reports, value);
    if (status == exit_status::done) return answer_with(value);
    value["status"] = "error";
    value["error"] = error_value(
        k_program, make_error(ErrorCode::driver_failed,
                              "the driver did not release {} of what sleeps; the next wake takes it back",
                              format_bytes(unreleased_in(reports))));
    return answer_with(value, k_internal);
}

/// What the callbacks replied, as it is: it could be as deep as it is long.
Answer results(const model::CallRequest& request, bool is_optional,
               const std::vector<control::Outcome>& outcomes) {
    std::string replies;
    bool has_run = false;
    for (const auto& report : reports_in(outcomes)) {
        if (!report.changed) continue;
        const auto& reply = report.reply;
        replies += std::exchange(has_run, true) ? "," : "";
        replies += reply.empty() ? "null" : OrderedJson::accept(reply) ? reply : written(OrderedJson(reply));
    }
    const auto status = control::exit_status_of(outcomes);
    auto value = document_of(k_program, outcomes, status);
    if (const auto* const failed = failed_in(outcomes)) {
        const auto& error = *client::error_of(failed->answer);
        value["error"] = error_value(k_program, error);
        return answer_with(value, http_status_of(traits(error.code).exit_status));
    }
    if (!has_run && !is_optional)
        return answer_of(k_not_found, make_error(ErrorCode::invalid_argument,
                                                 "the program has no callback named '{}'", request.name));
    value["status"] = "ok";
    return {k_ok, fmt::format("{{\"results\": [{}],{}\n", replies, written(value).substr(1))};
}

} // namespace

Answer answer_of(int status, const Error& error, std::string_view advice) {
    auto value = document(k_program, traits(error.code).exit_status);
    value["error"] = error_value(k_program, error);
    if (!advice.empty()) value["error"]["advice"] = advice;
    return answer_with(value, status);
}

Answer answer_of(const Error& error) {
    return answer_of(http_status_of(traits(error.code).exit_status), error);
}

Result<control::Dispatch> Backend::find(protocol::Request request) const {
    return control::Dispatch::select({whom_, std::move(request)});
}

Backend::Outcomes Backend::ask() const {
    auto found = GPU_SLEEP_TRY(find());
    return found.ask_status(k_patience);
}

Answer Backend::look(const Route& route, const Outcomes& outcomes) {
    if (!outcomes) return answer_of(outcomes.error());
    if (const auto* const failed = failed_in(*outcomes))
        return failure(*outcomes, *failed, traits(client::error_of(failed->answer)->code).exit_status);
    const auto reports = reports_in(*outcomes);
    if (route.action == Action::memory_status) return answer_with(memory_status(*route.dialect, reports));
    const auto* const name = route.action == Action::is_paused ? "is_paused" : "is_sleeping";
    return answer_with({{name, is_sleeping(reports)}});
}

Answer Backend::measure() const {
    const auto found = ask();
    const auto outcomes = found ? *found : std::vector<control::Outcome>();
    const auto gpus = driver::look_at_gpus();
    return {k_ok,
            render_metrics(outcomes, gpus ? *gpus : std::vector<driver::Gpu>(), std::time(nullptr)) +
                render_sleep_states(outcomes),
            "text/plain; version=0.0.4; charset=utf-8"};
}

Answer Backend::probe() const {
    if (!whom_.words.empty() && model::is_number(whom_.words.front())) {
        const auto process = control::find_process(control::Finder(), whom_.words.front(), whom_.user);
        if (!process) return answer_of(process.error());
    } else if (const auto found = find(); !found) {
        return answer_of(found.error());
    }
    return {k_ok, "{\"status\": \"ok\"}\n"};
}

protocol::Request Backend::request_for(const Route& route, const Wish& wish, const Plan& plan,
                                       std::size_t processes) const {
    if (route.action == Action::sleep) {
        model::SleepRequest sleep;
        // A tag may have come since the program was asked, and is then kept.
        sleep.level = std::min(wish.level, model::Level::keep);
        sleep.tags = plan.tags;
        sleep.discard = plan.dropped;
        sleep.joint = whom_.is_joint();
        sleep.ignore_unknown_tags = true;
        sleep.asker = "http";
        return sleep;
    }
    model::WakeRequest wake;
    wake.tags = plan.tags;
    wake.ignore_unknown_tags = true;
    wake.asker = "http";
    wake.wait = waking_.wait;
    wake.make_room = waking_.make_room && processes == 1;
    wake.min_awake = waking_.min_awake;
    wake.joint = whom_.is_joint() && !wake.make_room;
    return wake;
}

Answer Backend::call(const model::CallRequest& request, bool is_optional,
                     control::Interruptions& interruptions) const {
    auto dispatch = find(request);
    if (!dispatch) return answer_of(dispatch.error());
    control::Listener listener;
    const auto outcomes = dispatch->carry_out(listener, interruptions);
    if (!outcomes) return answer_of(outcomes.error());
    return results(request, is_optional, *outcomes);
}

Answer Backend::change(const Route& route, const Wish& wish, control::Interruptions& interruptions) const {
    if (route.action == Action::call) return call(wish.call, wish.is_optional, interruptions);
    Plan plan;
    std::vector<control::Outcome> outcomes;
    if (wish.aborts)
        if (auto failed = abort(interruptions)) return *std::move(failed);
    // Of a wake, also one without an agent, which the driver has put to sleep.
    const bool is_wake = route.action == Action::wake;
    auto dispatch = is_wake ? find(model::WakeRequest()) : find(model::SleepRequest());
    if (!dispatch) return answer_of(dispatch.error());
    // Else all is the program's to choose, whatever it has.
    const bool ends_pause = is_wake && wish.level == model::Level::pause;
    if (!wish.tags.empty() || wish.level == model::Level::drop || waking_.make_room || ends_pause) {
        outcomes = dispatch->ask_status(k_patience);
        plan = plan_of(route, wish, reports_in(outcomes));
    }
    if (!plan.is_nothing && !failed_in(outcomes)) {
        dispatch->ask_for(request_for(route, wish, plan, outcomes.size()));
        control::Listener listener;
        auto done = dispatch->carry_out(listener, interruptions);
        if (!done) return answer_of(done.error());
        outcomes = *std::move(done);
    }
    return confirmation(route, plan, outcomes);
}

/// Nothing where what is in flight has been aborted. What sleeps has nothing in flight, and may be out of
/// reach.
std::optional<Answer> Backend::abort(control::Interruptions& interruptions) const {
    const auto outcomes = ask();
    if (!outcomes) return answer_of(outcomes.error());
    control::Selection awake{.user = whom_.user};
    for (const auto& outcome : *outcomes) {
        if (const auto* const error = client::error_of(outcome.answer)) return answer_of(*error);
        if (std::get<model::Report>(outcome.answer).state != State::asleep)
            awake.words.push_back(std::to_string(outcome.process.pid));
    }
    if (awake.words.empty()) return std::nullopt;
    model::CallRequest request;
    request.name = k_abort;
    auto answer = Backend(std::move(awake), waking_).call(request, false, interruptions);
    if (interruptions.has_come())
        return answer_of(make_error(ErrorCode::cancelled, "the request was withdrawn"));
    if (answer.status == k_ok) return std::nullopt;
    if (answer.status == k_not_found)
        return answer_of(k_bad_request,
                         make_error(ErrorCode::refused, "mode: the program has no callback that aborts its "
                                                        "requests; leave mode out, or use mode=wait"));
    return answer;
}

} // namespace gpu_sleep::cli::http
