// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The JSON schema: of messages, from their description.

#include "cli/show/json.hpp"

#include "base/text.hpp"
#include "cli/show/render.hpp"
#include "protocol/fields.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::cli {
namespace {

// Beside what fields.hpp says of messages.

OrderedJson to_value(model::Level level) {
    return static_cast<int>(level);
}

OrderedJson to_value(ErrorCode code) {
    return traits(code).name;
}

OrderedJson to_value(const model::StepTimes& steps) {
    OrderedJson value;
    for (std::size_t i = 0; i < steps.size(); ++i)
        value[fmt::format("{}_seconds", model::to_string(model::k_steps[i]))] = steps[i];
    return value;
}

OrderedJson to_value(const model::DurationCounts& counts) {
    auto values = OrderedJson::array();
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const bool is_bounded = i < model::k_duration_bounds.size();
        values.push_back({{"at_most_seconds",
                           is_bounded ? OrderedJson(model::k_duration_bounds[i]) : OrderedJson(nullptr)},
                          {"count", counts[i]}});
    }
    return values;
}

OrderedJson to_value(const model::DeviceReport& device);
OrderedJson to_value(const model::TransitionCounts& counts);
OrderedJson to_value(const protocol::HasFields auto& parts);

template <class T>
OrderedJson to_value(const T& value) requires(!protocol::HasFields<T>) {
    if constexpr (std::is_enum_v<T>)
        return model::to_string(value);
    else
        return value;
}

template <class T>
OrderedJson to_value(const std::optional<T>& value) {
    return value ? to_value(*value) : OrderedJson(nullptr);
}

template <protocol::HasFields T>
OrderedJson to_value(const std::vector<T>& items) {
    auto values = OrderedJson::array();
    for (const auto& item : items) values.push_back(to_value(item));
    return values;
}

void add_members(OrderedJson& object, const protocol::HasFields auto& parts) {
    const std::remove_cvref_t<decltype(parts)> initial{};
    protocol::any_field(parts, initial, [&](auto field, const auto& its) {
        const auto& [path, is_null_unset] = field.key;
        if constexpr (protocol::HasFields<decltype(its)>)
            if (path.empty()) add_members(object, field.value);
        if (path.empty()) return false;
        auto& member = object[OrderedJson::json_pointer(fmt::format("/{}", path))];
        if (!is_null_unset || !protocol::is_default(field.value, its)) member = to_value(field.value);
        return false;
    });
}

OrderedJson to_value(const protocol::HasFields auto& parts) {
    OrderedJson value;
    add_members(value, parts);
    return value;
}

OrderedJson to_value(const model::DeviceReport& device) {
    OrderedJson value;
    add_members(value, device);
    if (device.total == 0) // the driver was not asked
        for (const auto* const figure : {"free_before_bytes", "free_after_bytes", "total_bytes"})
            value.erase(figure);
    return value;
}

OrderedJson to_value(const model::TransitionCounts& counts) {
    OrderedJson value;
    add_members(value, counts);
    value["done"] = model::done_of(counts);
    return value;
}

OrderedJson to_value(const model::Report& report) {
    OrderedJson value;
    add_members(value, report);
    if (report.operation != model::Operation::sleep) value.erase("level");
    value["in_files_bytes"] = in_files(report);
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
    value["deep_asked"] = outcome.deep_asked;
    value["stopped_report_seconds"] = to_value(outcome.stopped_report_seconds);
    value["gpu_bytes"] = outcome.gpu_bytes ? OrderedJson(*outcome.gpu_bytes) : OrderedJson(nullptr);
    if (const auto* report = std::get_if<model::Report>(&outcome.answer)) {
        value["name"] = report->name;
        value["group"] = report->group;
        value["state"] = model::to_string(report->state);
        value["report"] = to_value(*report);
    } else if (const auto* failure = std::get_if<model::Failure>(&outcome.answer)) {
        value["state"] = model::to_string(failure->state);
        value["error"] = error_value(program, failure->error, &outcome);
    } else {
        value["error"] = error_value(program, std::get<Error>(outcome.answer), &outcome);
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

} // namespace

OrderedJson error_value(std::string_view program, const Error& error, const control::Outcome* outcome) {
    return {{"code", traits(error.code).name},
            {"message", error.message},
            {"advice", advice_from(program, error, outcome)},
            {"where", error.where},
            {"driver_status", error.driver_status},
            {"retry_seconds", to_value(error.retry_seconds)}};
}

OrderedJson document(std::string_view program, int exit_status) {
    return {{"schema", k_json_schema},
            {"program", program},
            {"version", GPU_SLEEP_VERSION},
            {"exit_status", exit_status},
            {program == "gpu-snapshot" ? "snapshots" : "processes", OrderedJson::array()}};
}

OrderedJson document_of(std::string_view program, const std::vector<control::Outcome>& outcomes,
                        int exit_status) {
    auto value = document(program, exit_status);
    for (const auto& outcome : outcomes) value["processes"].push_back(to_value(program, outcome));
    return value;
}

std::string written(const OrderedJson& value, int indent) {
    return escaped(value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace)); // UTF-8 by then
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes, int indent) {
    return written(document_of(program, outcomes, exit_status_of(outcomes)), indent);
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                    const control::GpuRoom& room, const std::optional<Error>& error) {
    auto value = document_of(program, outcomes, error ? traits(error->code).exit_status : exit_status::done);
    // After another error it is from before the sleeps.
    const bool is_known = !error || error->code == ErrorCode::out_of_device_memory;
    value["gpu"] = {{"index", room.gpu.index},
                    {"uuid", room.gpu.uuid},
                    {"name", room.gpu.name},
                    {"total_bytes", room.gpu.total},
                    {"free_bytes", is_known ? OrderedJson(room.gpu.free) : OrderedJson(nullptr)},
                    {"needed_bytes", room.needed},
                    {"against", room.against}};
    if (error) value["error"] = error_value(program, *error);
    return written(value);
}

std::string to_json(std::string_view program, const std::vector<control::Outcome>& outcomes,
                    const std::vector<driver::Gpu>& gpus, int indent) {
    auto value = document_of(program, outcomes, exit_status_of(outcomes));
    value["gpus"] = OrderedJson::array();
    for (const auto& gpu : gpus) {
        auto holders = OrderedJson::array();
        for (const auto& [pid, bytes] : gpu.processes)
            holders.push_back({{"pid", pid}, {"bytes", to_value(bytes)}});
        value["gpus"].push_back({{"index", gpu.index},
                                 {"uuid", gpu.uuid},
                                 {"name", gpu.name},
                                 {"total_bytes", gpu.total},
                                 {"used_bytes", gpu.total - gpu.free},
                                 {"free_bytes", gpu.free},
                                 {"processes", std::move(holders)}});
    }
    return written(value, indent);
}

std::string to_json(std::string_view program, const Error& error, int indent) {
    auto value = document(program, traits(error.code).exit_status);
    value["error"] = error_value(program, error);
    return written(value, indent);
}

std::string to_json(std::string_view program, const std::vector<model::Event>& events, double gib_hours) {
    auto all = document(program, exit_status::done);
    all["given_back_gib_hours"] = gib_hours;
    all["history"] = to_value(events);
    for (auto& event : all["history"]) event["user"] = control::user_name(event["uid"]);
    return written(all) + '\n';
}

} // namespace gpu_sleep::cli
