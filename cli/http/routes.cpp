// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of routes. A new dialect is a list of tags, and a row a path.

#include "cli/http/routes.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <set>
#include <sstream>

namespace gpu_sleep::cli::http {
namespace {

using Json = nlohmann::json;
using model::Level;

constexpr std::string_view k_weights = "weights";
/// What vLLM calls the end of a pause.
constexpr std::string_view k_scheduling = "scheduling";
/// No process has it, for it is no name of a tag: a wake of it brings nothing back, and ends a pause.
constexpr std::string_view k_no_tag = "(none)";

// Of vLLM 0.30 and LMDeploy.
const Dialect k_vllm{"vLLM", {k_weights, "kv_cache", k_scheduling}};
// Of SGLang, and of NVIDIA Dynamo's workers.
const Dialect k_sglang{"SGLang", {k_weights, "kv_cache", "cuda_graph"}};
const Dialect k_fastdeploy{"FastDeploy", {"weight", "kv_cache"}};
const Dialect k_tensorrt_llm{"TensorRT-LLM",
                             {"model_weights", "model", "draft_model_weights", "draft_model", "kv_cache",
                              "sampler", "drafter", "guided_decoder", "spec_resource_manager", "model_extra",
                              "executor_extra"},
                             "success",
                             true};

constexpr std::string_view k_get = "GET, HEAD";
constexpr std::string_view k_post = "POST";
constexpr std::string_view k_any = "GET, HEAD, POST";
constexpr std::string_view k_both = "GET, POST"; // it changes something, and HEAD may not

/// The route to the callback of its name.
Route callback(std::string_view path, std::string_view methods, const Dialect& dialect) {
    return {path, methods, Action::call, &dialect, Level::keep, path.substr(1)};
}

const std::array k_routes{
    // llama-swap asks for it until a server is ready, and everybody else's probes do.
    Route{"/health", k_get, Action::live, &k_vllm},
    Route{"/metrics", k_get, Action::measure, &k_vllm},

    // vLLM; its wrapper in llama-swap, llm-d's controllers, the production stack's router.
    Route{"/sleep", k_post, Action::sleep, &k_vllm},
    Route{"/wake_up", k_post, Action::wake, &k_vllm},
    Route{"/is_sleeping", k_any, Action::is_sleeping, &k_vllm},
    Route{"/pause", k_post, Action::sleep, &k_vllm, Level::pause},
    Route{"/resume", k_post, Action::wake, &k_vllm, Level::pause},
    Route{"/is_paused", k_get, Action::is_paused, &k_vllm},
    Route{"/collective_rpc", k_post, Action::call, &k_vllm},
    callback("/reset_prefix_cache", k_post, k_vllm),
    callback("/reset_mm_cache", k_post, k_vllm),

    // LMDeploy and Ray Serve, whose other routes are vLLM's.
    Route{"/wakeup", k_post, Action::wake, &k_vllm},

    // SGLang
    Route{"/release_memory_occupation", k_both, Action::sleep, &k_sglang},
    Route{"/resume_memory_occupation", k_both, Action::wake, &k_sglang},
    Route{"/pause_generation", k_post, Action::sleep, &k_sglang, Level::pause},
    Route{"/continue_generation", k_post, Action::wake, &k_sglang, Level::pause},
    callback("/flush_cache", k_both, k_sglang),

    // NVIDIA Dynamo
    Route{"/engine/sleep", k_post, Action::sleep, &k_vllm},
    Route{"/engine/wake_up", k_post, Action::wake, &k_vllm},
    Route{"/engine/wake", k_post, Action::wake, &k_vllm},
    Route{"/engine/release_memory_occupation", k_post, Action::sleep, &k_sglang},
    Route{"/engine/resume_memory_occupation", k_post, Action::wake, &k_sglang},

    // TensorRT-LLM, but for its signatures.
    Route{"/release_memory", k_post, Action::sleep, &k_tensorrt_llm},
    Route{"/resume_memory", k_post, Action::wake, &k_tensorrt_llm},
    Route{"/memory_status", k_get, Action::memory_status, &k_tensorrt_llm},

    // FastDeploy
    Route{"/v1/sleep", k_post, Action::sleep, &k_fastdeploy},
    Route{"/v1/wakeup", k_post, Action::wake, &k_fastdeploy},
    Route{"/v1/pause", k_post, Action::sleep, &k_fastdeploy, Level::pause},
    Route{"/v1/resume", k_post, Action::wake, &k_fastdeploy, Level::pause},
    Route{"/v1/is_paused", k_get, Action::is_paused, &k_fastdeploy},

    // llama.cpp
    Route{"/props", k_get, Action::is_sleeping, &k_vllm},
};

Error wrong(std::string_view what, std::string_view value, std::string_view possible) {
    return make_error(ErrorCode::invalid_argument, "{}: '{}' is not {}", what, value, possible);
}

/// The values of `name`: texts as they are, whatever else as JSON has it; of a list each.
std::vector<std::string> values_of(std::string_view name, const Query& query, const Json& body) {
    std::vector<std::string> values;
    for (const auto& [key, value] : query)
        if (key == name) values.push_back(value);
    const auto found = body.find(name);
    if (!values.empty() || found == body.end() || found->is_null()) return values;
    const auto add = [&](const Json& value) { // nested ones could be as deep as the body is long
        values.push_back(value.is_string()      ? value.get<std::string>()
                         : value.is_primitive() ? value.dump()
                                                : "a list or an object");
    };
    if (!found->is_array()) add(*found);
    if (found->is_array())
        for (const auto& each : *found) add(each);
    return values;
}

/// Reads the callback and its time limit from a request of vLLM's clients.
Result<model::CallRequest> read_call(const Route& route, const Query& query, const Json& body,
                                     std::string_view text) {
    model::CallRequest call;
    const auto method = body.find("method");
    if (route.callback.empty() && (method == body.end() || !method->is_string()))
        return make_error(ErrorCode::invalid_argument,
                          "the body names no callback, as in {{\"method\": \"reload\"}}");
    call.name = route.callback.empty() ? method->get<std::string>() : std::string(route.callback);
    if (const auto timeout = body.find("timeout"); timeout != body.end() && !timeout->is_null()) {
        constexpr double k_shortest = 0.001, k_longest = 86'400;
        const double seconds = timeout->is_number() ? timeout->get<double>() : 0;
        if (!(seconds >= k_shortest && seconds <= k_longest))
            return wrong("timeout", timeout->is_structured() ? "a list or an object" : timeout->dump(),
                         "a number of seconds, from 0.001 to 86400");
        call.timeout = Milliseconds(static_cast<std::int64_t>(seconds * 1'000));
    }
    call.argument = text;
    if (body.empty() && !query.empty())
        call.argument = Json(std::map<std::string, std::string>(query.begin(), query.end()))
                            .dump(-1, ' ', true, Json::error_handler_t::replace);
    return call;
}

Result<std::vector<std::string>> read_tags(const Dialect& dialect, const std::vector<std::string>& values) {
    std::vector<std::string> tags;
    for (const auto& value : values) {
        std::istringstream words(value);
        for (std::string word; std::getline(words, word, ',');) {
            std::erase(word, ' '); // as in "a, b"
            if (std::ranges::find(dialect.tags, word) == dialect.tags.end())
                return wrong("tags", word,
                             fmt::format("one of {}'s: {}", dialect.server, fmt::join(dialect.tags, ", ")));
            if (std::ranges::find(tags, word) == tags.end()) tags.push_back(word);
        }
    }
    return tags;
}

/// A tag of the program.
struct Tag {
    bool is_in_all = false; ///< of its processes; a process refuses to drop a tag that it has not
    bool is_irreplaceable = false, is_preserved = false;
    bool is_nameable = false; ///< by the dialect
    bool is_wished = false;
};

/// The tags of all processes, by their reports.
std::map<std::string, Tag> tags_of(const std::vector<model::Report>& reports) {
    std::map<std::string, Tag> tags;
    std::map<std::string, std::set<const model::Report*>> processes; // a tag has a row for each device
    for (const auto& report : reports)
        for (const auto& row : report.tags) {
            auto& tag = tags[row.tag];
            processes[row.tag].insert(&report);
            tag.is_in_all = processes[row.tag].size() == reports.size();
            tag.is_irreplaceable |=
                !row.policy.refillable && row.policy.retention == model::Retention::offload;
            tag.is_preserved |= row.policy.retention == model::Retention::preserve;
        }
    return tags;
}

} // namespace

std::span<const Route> all_routes() {
    return k_routes;
}

const Route* find_route(std::string_view path) noexcept {
    const auto* const found = std::ranges::find(k_routes, path, &Route::path);
    return found == k_routes.end() ? nullptr : found;
}

bool takes(const Route& route, std::string_view method) {
    return fmt::format(", {},", route.methods).find(fmt::format(", {},", method)) != std::string::npos;
}

Result<Wish> read_wish(const Route& route, std::string_view method, const Query& query,
                       std::string_view body) {
    auto json = Json::object();
    if (body.find_first_not_of(" \t\r\n") != std::string_view::npos)
        json = Json::parse(body, nullptr, false); // throws nothing
    if (json.is_null()) json = Json::object();
    if (!json.is_object())
        return make_error(ErrorCode::invalid_argument,
                          "the body is not a JSON object, such as {{\"level\": 1}}");
    if (const auto options = json.find("options"); options != json.end() && options->is_object())
        for (auto& [name, value] : options->items())
            if (!json.contains(name)) json[name] = value;
    Wish wish{route.level};
    if (route.action == Action::call) {
        wish.call = GPU_SLEEP_TRY(read_call(route, query, json, body));
        wish.is_optional =
            method == "GET"; // slime has each server flush its cache, and waits until it is 200
        return wish;
    }
    // Both of vLLM and of SGLang. All but an abort come to the same here: what the GPU has been given is
    // awaited, and what comes later is held.
    constexpr std::array<std::string_view, 5> k_modes{"keep", "wait", "in_place", "retract", k_abort};
    for (const auto& mode : values_of("mode", query, json)) {
        if (std::ranges::find(k_modes, mode) == k_modes.end())
            return wrong("mode", mode, "abort, keep, wait, in_place or retract");
        wish.aborts = mode == k_abort && route.action == Action::sleep;
    }
    if (route.is_pause()) return wish;
    if (route.action == Action::sleep)
        for (const auto& text : values_of("level", query, json)) {
            if (text != "0" && text != "1" && text != "2") return wrong("level", text, "0, 1 or 2");
            wish.level = text == "0" ? Level::pause : text == "1" ? Level::keep : Level::drop;
        }
    if (wish.level == Level::drop && method != "POST")
        return make_error(ErrorCode::invalid_argument, "level 2 drops contents, and needs POST");
    wish.tags = GPU_SLEEP_TRY(read_tags(*route.dialect, values_of("tags", query, json)));
    if (const auto given = json.find("tags");
        route.dialect->needs_tags && wish.tags.empty() && given != json.end() && !given->is_null())
        return make_error(ErrorCode::invalid_argument, "tags: the list is empty; omit it for all tags");
    if (route.action == Action::wake && wish.tags == std::vector{std::string(k_scheduling)})
        wish.level = Level::pause;
    return wish;
}

std::string_view weights_of(const Dialect& dialect, const std::vector<model::Report>& reports) {
    const bool has_its_name = std::ranges::any_of(reports, [&](const model::Report& report) {
        return std::ranges::find(report.tags, dialect.tags.front(), &model::TagReport::tag) !=
               report.tags.end();
    });
    return has_its_name ? dialect.tags.front() : k_weights;
}

Plan plan_of(const Route& route, const Wish& wish, const std::vector<model::Report>& reports) {
    Plan plan;
    const bool is_wake = route.action == Action::wake;
    if (is_wake && wish.level == Level::pause) {
        plan.tags.emplace_back(k_no_tag);
        plan.is_nothing = reports.empty(); // what only the driver can put to sleep has no pause
        return plan;
    }
    auto program = tags_of(reports);
    const auto weights = weights_of(*route.dialect, reports);
    for (const auto name : route.dialect->tags) {
        const auto found = program.find(std::string(name == route.dialect->tags.front() ? weights : name));
        const bool is_wished = std::ranges::find(wish.tags, name) != wish.tags.end();
        if (found == program.end() && is_wished) plan.passed_over.emplace_back(name);
        if (found == program.end()) continue;
        found->second.is_nameable = true;
        found->second.is_wished = is_wished;
    }
    if (wish.level == Level::drop)
        for (const auto& [name, tag] : program) {
            if (tag.is_preserved) continue; // as at every level
            const bool is_kept = !tag.is_nameable && tag.is_irreplaceable;
            (is_kept || !tag.is_in_all ? plan.kept : plan.dropped).push_back(name);
        }
    const auto any = [&](bool Tag::*what) {
        return std::ranges::any_of(program, [&](const auto& each) { return each.second.*what; });
    };
    if (wish.tags.empty() || wish.level == Level::pause) return plan;
    plan.takes_all = !any(&Tag::is_nameable);
    if (plan.takes_all) return plan;
    if (!any(&Tag::is_wished)) {
        if (is_wake) plan.tags.emplace_back(k_no_tag);
        plan.is_nothing = !is_wake;
        return plan;
    }
    // Nobody could name the rest, and the program would wait for it for ever.
    for (const auto& [name, tag] : program)
        if (tag.is_wished || (is_wake && !tag.is_nameable)) plan.tags.push_back(name);
    return plan;
}

} // namespace gpu_sleep::cli::http
