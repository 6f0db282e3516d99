// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The JSON schema, member by member.

#include "cli/json.hpp"

#include "base/text.hpp"
#include "cli/advice.hpp"
#include "cli/json_value.hpp"
#include "cli/render_lines.hpp"

namespace gpu_sleep::cli {
namespace {

OrderedJson to_value(const model::TagReport& tag) {
    return {{"tag", tag.tag},
            {"device", tag.device},
            {"state", model::to_string(tag.state)},
            {"policy", model::to_string(tag.policy.retention)},
            {"refillable", tag.policy.refillable},
            {"needs_refill", tag.needs_refill},
            {"ranges", tag.ranges},
            {"bytes", tag.bytes},
            {"allocated_bytes", tag.allocated},
            {"resident_bytes", tag.resident},
            {"host_backed_bytes", tag.host_backed},
            {"kept_bytes", tag.kept},
            {"in_files_bytes", tag.in_files},
            {"dropped_bytes", tag.dropped},
            {"damaged_bytes", tag.damaged}};
}

OrderedJson to_value(const model::DeviceReport& device) {
    OrderedJson value{{"device", device.device},
                      {"name", device.name},
                      {"uuid", device.uuid},
                      {"moved_bytes", device.released},
                      {"kept_bytes", device.kept},
                      {"stored_bytes", device.stored},
                      {"copied_bytes", device.copied},
                      {"dropped_bytes", device.dropped},
                      {"relocated_bytes", device.relocated}};
    for (std::size_t i = 0; i < device.steps.size(); ++i)
        value["steps"][fmt::format("{}_seconds", model::to_string(model::k_steps[i]))] = device.steps[i];
    if (device.total == 0) return value; // the driver was not asked
    value["free_before_bytes"] = device.free_before;
    value["free_after_bytes"] = device.free_after;
    value["total_bytes"] = device.total;
    return value;
}

OrderedJson to_value(const model::PhaseTimes& times) {
    return {{"callbacks_seconds", times.callbacks},
            {"drain_seconds", times.drain},
            {"transfer_seconds", times.transfer},
            {"release_seconds", times.release},
            {"total_seconds", times.total}};
}

OrderedJson to_value(const model::Residual& residual) {
    return {{"kind", residual.kind},
            {"device", residual.device},
            {"bytes", residual.bytes},
            {"count", residual.count},
            {"reason", residual.reason}};
}

OrderedJson to_value(const model::WaitingWake& wake) {
    return {{"tags", wake.tags},
            {"by_touch", wake.by_touch},
            {"seconds", wake.seconds},
            {"reason", wake.reason},
            {"place", wake.place == 0 ? OrderedJson(nullptr) : OrderedJson(wake.place)}};
}

OrderedJson to_value(const model::TransitionCounts& counts) {
    OrderedJson value{{"operation", model::to_string(counts.transition)},
                      {"done", model::done_of(counts)},
                      {"done_seconds", counts.done_seconds}};
    auto durations = OrderedJson::array();
    for (std::size_t i = 0; i < counts.done.size(); ++i) {
        const bool is_bounded = i < model::k_duration_bounds.size();
        durations.push_back({{"at_most_seconds",
                              is_bounded ? OrderedJson(model::k_duration_bounds[i]) : OrderedJson(nullptr)},
                             {"count", counts.done[i]}});
    }
    value["durations"] = std::move(durations);
    auto failures = OrderedJson::array();
    for (const auto& [code, count] : counts.failed)
        failures.push_back({{"code", traits(code).name}, {"count", count}});
    value["failures"] = std::move(failures);
    return value;
}

OrderedJson gate_of(const model::Report& report) {
    return {{"state", model::to_string(report.gate)},
            {"on_touch", model::to_string(report.on_touch)},
            {"waiting_threads", report.waiting},
            {"touches", report.touches},
            {"last_touch", report.last_touch}};
}

template <class T>
OrderedJson to_array(const std::vector<T>& items) {
    auto values = OrderedJson::array();
    for (const auto& item : items) values.push_back(to_value(item));
    return values;
}

OrderedJson to_value(const model::Report& report) {
    OrderedJson value{{"operation", model::to_string(report.operation)}};
    if (report.operation == model::Operation::sleep) value["level"] = static_cast<int>(report.level);
    value["dry_run"] = report.dry_run;
    value["changed"] = report.changed;
    value["state_seconds"] = report.state_seconds;
    value["idle_seconds"] = report.idle_seconds ? OrderedJson(*report.idle_seconds) : OrderedJson(nullptr);
    value["inhibited"] = report.inhibited;
    value["inhibited_seconds"] =
        report.inhibited_seconds ? OrderedJson(*report.inhibited_seconds) : OrderedJson(nullptr);
    value["host_bytes"] = report.host_bytes;
    value["file_bytes"] = report.file_bytes;
    value["in_files_bytes"] = in_files(report);
    value["directories"] = report.directories;
    value["retained_bytes"] = report.retained_bytes;
    value["woken_bytes"] = report.woken_bytes;
    value["woken_seconds"] = report.woken_seconds;
    value["deep"] = report.deep;
    value["deep_bytes"] = report.deep_bytes;
    value["deep_refusal"] =
        report.deep_refusal.empty() ? OrderedJson(nullptr) : OrderedJson(report.deep_refusal);
    value["seconds_since_wake"] =
        report.seconds_since_wake ? OrderedJson(*report.seconds_since_wake) : OrderedJson(nullptr);
    value["times"] = to_value(report.times);
    value["longest_pause_seconds"] = report.longest_pause;
    value["tags"] = to_array(report.tags);
    value["devices"] = to_array(report.devices);
    value["captures"] = report.intercepts;
    value["gate"] = gate_of(report);
    value["residual"] = to_array(report.residual);
    value["wakes_waiting"] = to_array(report.wakes_waiting);
    value["transitions"] = to_array(report.transitions);
    value["dropped_without_refill"] = report.dropped_without_refill;
    value["notes"] = report.notes;
    value["agent_version"] = report.version.empty() ? OrderedJson(nullptr) : OrderedJson(report.version);
    value["features"] = report.features;
    return value;
}

OrderedJson to_value(std::string_view program, const control::Outcome& outcome) {
    const auto& process = outcome.process;
    OrderedJson value{{"pid", process.pid}};
    if (!process.command.empty()) { // else there is no such process
        value["namespace_pid"] = process.inner_pid;
        value["user"] = control::user_name(process.uid);
        value["uid"] = process.uid;
        value["command"] = process.command;
        value["display_name"] = display_name(process);
        value["script"] = process.program.script;
        value["notebook"] = process.origin.notebook;
        value["kernel"] = process.origin.kernel;
        value["job"] = process.origin.job;
        value["unit"] = process.origin.unit;
    }
    value["exit_status"] = exit_status_of(outcome);
    value["engine"] = outcome.by_driver ? "driver" : "agent";
    value["gpu_bytes"] = outcome.gpu_bytes ? OrderedJson(*outcome.gpu_bytes) : OrderedJson(nullptr);
    if (const auto* report = std::get_if<model::Report>(&outcome.answer)) {
        value["name"] = report->name;
        value["group"] = report->group;
        value["state"] = model::to_string(report->state);
        value["report"] = to_value(*report);
    } else if (const auto* failure = std::get_if<model::Failure>(&outcome.answer)) {
        value["state"] = model::to_string(failure->state);
        value["error"] = error_value(program, failure->error, outcome.has_waited);
    } else {
        value["error"] = error_value(program, std::get<Error>(outcome.answer), outcome.has_waited);
    }
    return value;
}

void append_escaped(std::string& json, char32_t code) {
    constexpr char32_t k_one_unit = 0x10000;
    const auto number = static_cast<std::uint32_t>(code);
    if (code < k_one_unit)
        json += fmt::format("\\u{:04x}", number);
    else
        json += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (number >> 10U), 0xDC00 + (number & 0x3FFU));
}

/// The same JSON with escapes for what a terminal would not show, so that a person may read it there.
std::string escaped(std::string_view json) {
    std::string safe;
    safe.reserve(json.size());
    while (!json.empty()) {
        const auto next = first_character(json);
        if (next.is_shown || json.front() == '\n')
            safe += json.substr(0, next.bytes);
        else
            append_escaped(safe, next.code);
        json.remove_prefix(next.bytes);
    }
    return safe;
}

/// The document with what became of each process.
OrderedJson document_of(std::string_view program, const std::vector<control::Outcome>& outcomes,
                        int exit_status) {
    auto value = document(program, exit_status);
    for (const auto& outcome : outcomes) value["processes"].push_back(to_value(program, outcome));
    return value;
}

} // namespace

OrderedJson error_value(std::string_view program, const Error& error, bool has_waited) {
    return {{"code", traits(error.code).name},
            {"message", error.message},
            {"advice", advice_from(program, error.code, has_waited)},
            {"where", error.where},
            {"driver_status", error.driver_status}};
}

OrderedJson document(std::string_view program, int exit_status) {
    return {{"schema", k_json_schema},
            {"program", program},
            {"version", GPU_SLEEP_VERSION},
            {"exit_status", exit_status},
            {program == "gpu-snapshot" ? "snapshots" : "processes", OrderedJson::array()}};
}

std::string written(const OrderedJson& value, int indent) {
    return escaped(value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace)); // UTF-8 by then
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes, int indent) {
    return written(document_of(program, outcomes, exit_status_of(outcomes)), indent);
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                    const Error& error, int exit_status) {
    auto value = document_of(program, outcomes, exit_status);
    value["error"] = error_value(program, error);
    return written(value);
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                    const control::GpuRoom& room, const std::optional<Error>& error) {
    auto value = document_of(program, outcomes, error ? traits(error->code).exit_status : exit_status::done);
    value["gpu"] = {{"index", room.gpu.index},     {"uuid", room.gpu.uuid},
                    {"name", room.gpu.name},       {"total_bytes", room.gpu.total},
                    {"free_bytes", room.gpu.free}, {"needed_bytes", room.needed},
                    {"against", room.against}};
    if (error) value["error"] = error_value(program, *error);
    return written(value);
}

std::string to_json(std::string_view program, const Error& error, int indent) {
    auto value = document(program, traits(error.code).exit_status);
    value["error"] = error_value(program, error);
    return written(value, indent);
}

} // namespace gpu_sleep::cli
