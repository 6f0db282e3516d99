// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The door for HTTP, without a connection: addresses, who may call, routes, and what a request comes to.

#include "cli/http/admission.hpp"
#include "cli/http/backend.hpp"
#include "cli/http/door.hpp"
#include "support/catch.hpp"

#include <nlohmann/json.hpp>

using namespace gpu_sleep;
using namespace gpu_sleep::cli::http;
using Tags = std::vector<std::string>;

namespace {

const Route& route(std::string_view path) {
    const auto* const found = find_route(path);
    REQUIRE(found);
    return *found;
}

/// One process with these tags, awake.
model::Report program(const Tags& tags, model::State state = model::State::awake) {
    model::Report report;
    report.state = state;
    for (const auto& tag : tags) {
        model::TagReport row;
        row.tag = tag;
        row.state = state;
        report.tags.push_back(row);
    }
    return report;
}

Plan plan(std::string_view path, const Query& query, const model::Report& report) {
    return plan_of(route(path), test::need(read_wish(route(path), "POST", query, "")), {report});
}

std::string wish_error(std::string_view path, const Query& query, std::string_view body = "") {
    const auto wish = read_wish(route(path), "POST", query, body);
    return wish ? "none" : std::string(traits(wish.error().code).name);
}

} // namespace

TEST_CASE("Addresses: a port, a socket, an address and a port, and nothing else", "[http]") {
    for (const auto& [text, meant] :
         std::vector<std::pair<std::string, std::string>>{{"8080", "127.0.0.1:8080"},
                                                          {"localhost:80", "127.0.0.1:80"},
                                                          {"10.1.2.3:1", "10.1.2.3:1"},
                                                          {"[::1]:8080", "[::1]:8080"},
                                                          {"/run/a", "unix:/run/a"},
                                                          {"unix:/run/a", "unix:/run/a"}}) {
        const auto address = parse_address(text);
        INFO(text);
        REQUIRE(address);
        CHECK(to_string(*address) == meant);
    }
    for (const auto* text : {"", ":", ":80", "x", "65536", "-1", "80 ", "::1", "::1:80", "host:80",
                             "1.2.3:80", "unix:", "unix:a", "[::1]", "10.0.0.1:"})
        CHECK_FALSE(parse_address(text));
    CHECK_FALSE(parse_address("/" + std::string(200, 'p')));
    CHECK(parse_address("8080")->is_local());
    CHECK(parse_address("[::1]:1")->is_local());
    CHECK_FALSE(parse_address("0.0.0.0:1")->is_local());
    CHECK_FALSE(parse_address("[::]:1")->is_local());
}

TEST_CASE("Callers: the kernel tells whose a connection is, until it is closed", "[http]") {
    const bool is_bound = GENERATE(false, true); // to the device
    for (const auto* text : {"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"}) {
        INFO(text << (is_bound ? ", bound" : ""));
        auto address = *parse_address(text);
        const auto listener = listen_on(address);
        if (!listener && !address.endpoint.ip.is_v4()) continue; // a machine without IPv6
        REQUIRE(listener);
        sockaddr_storage name{};
        socklen_t size = sizeof(name);
        auto* const its = reinterpret_cast<sockaddr*>(&name);
        REQUIRE(::getsockname(listener->get(), its, &size) == 0);
        UniqueFd client(::socket(its->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (is_bound) REQUIRE(::setsockopt(client.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", 2) == 0);
        REQUIRE(::connect(client.get(), its, size) == 0);
        REQUIRE(::getpeername(client.get(), its, &size) == 0);
        const auto door = endpoint_of(its);
        REQUIRE(::getsockname(client.get(), its, &size) == 0);
        const Ends ends{endpoint_of(its), door};
        CHECK(user_of(ends) == ::geteuid());
        CHECK(Admission(false, ::geteuid(), "").knows(ends) == ends.client.ip.is_loopback());
        CHECK(Admission(false, std::nullopt, "").knows(ends) == (::geteuid() == 0));
        CHECK(user_of({ends.door, ends.client}) == std::nullopt);       // nobody has accepted it
        CHECK(user_of({ends.door, {ends.door.ip, 9}}) == std::nullopt); // what listens is no client
        client.reset();
        CHECK(user_of(ends) == std::nullopt);
    }
}

TEST_CASE("Callers: where unknown users of a namespace share the owner's id, none is the owner", "[http]") {
    static constexpr uid_t k_nobody = 65534;
    constexpr const char* k_all = "         0          0 4294967295\n";
    constexpr const char* k_one = "     65534       1000          1\n";
    CHECK(known_owner(k_nobody, k_nobody, k_all) == k_nobody);
    CHECK(known_owner(k_nobody, k_nobody, k_one) == std::nullopt);
    CHECK(known_owner(k_nobody, k_nobody, "") == std::nullopt);
    CHECK(known_owner(1000, k_nobody, k_one) == 1000U);
}

TEST_CASE("Callers: tokens, pages of the web, and names of the door", "[http]") {
    const std::string secret = "0123456789abcdef";
    const std::string bearer = "Bearer " + secret;
    const std::string other = "bearer 0123456789abcdeX";
    const Admission with_token(false, 1000, secret), without(false, 1000, ""), local(true, 0, "");
    const auto status = [](const Admission& admission, bool is_known, const Headers& headers) {
        const auto refused = admission.check(is_known, headers);
        return refused ? refused->status : k_ok;
    };
    CHECK(status(without, true, {"localhost:8080", "", false}) == k_ok);
    CHECK(status(without, true, {"", "", false}) == k_ok);
    CHECK(status(without, true, {"localhost", other, false}) == k_ok);
    CHECK(status(without, true, {"evil.example", "", false}) == k_forbidden);
    CHECK(status(without, true, {"127.0.0.1.evil.example:80", "", false}) == k_forbidden);
    CHECK(status(without, true, {"localhost", "", true}) == k_forbidden);
    CHECK(status(without, true, {"localhost", "", false, "cross-site"}) == k_forbidden);
    CHECK(status(without, true, {"localhost", "", false, "same-site"}) == k_forbidden);
    CHECK(status(without, true, {"localhost", "", false, "none"}) == k_ok);
    CHECK(status(with_token, false, {"localhost", bearer, false, "cross-site"}) == k_forbidden);
    CHECK(status(without, false, {"localhost", bearer, false}) == k_forbidden);
    CHECK_THAT(without.check(false, {"localhost", "", false})->body, test::mentions("with --http-token"));
    CHECK(status(with_token, false, {"localhost", "", false}) == k_unauthorized);
    CHECK(status(with_token, false, {"localhost", other, false}) == k_unauthorized);
    CHECK(status(with_token, false, {"localhost", secret, false}) == k_unauthorized);
    CHECK(status(with_token, false, {"door.example", bearer, false}) == k_ok);
    CHECK(status(with_token, false, {"door.example", bearer, true}) == k_forbidden);
    CHECK(status(local, true, {"any", "", false}) == k_ok);
    CHECK(status(local, true, {"any", "", true}) == k_forbidden);
    CHECK_FALSE(Admission(false, 0, "").knows({{*parse_ip("10.9.9.9"), 1}, {}}));
    for (const auto* text : {"", "0123456789abcde", "0123456789abcdeff", "0123456789abcdeF"})
        CHECK_FALSE(is_same_secret(secret, text));
    CHECK_FALSE(is_same_secret("", ""));
    for (const auto* text : {"short", "0123456789 abcdef", "0123456789abcde\n0"})
        CHECK_FALSE(token_problem(text).empty());
}

TEST_CASE("Routes: each path stands once, and every action has its methods", "[http]") {
    std::set<std::string_view> paths;
    for (const auto& each : all_routes()) {
        INFO(each.path);
        CHECK(paths.insert(each.path).second);
        CHECK((takes(each, "GET") != takes(each, "POST") || each.dialect->server == "SGLang" ||
               each.action == Action::is_sleeping));
        CHECK_FALSE(takes(each, ""));
        CHECK_FALSE(takes(each, "PUT"));
        CHECK_FALSE((is_change(each.action) && takes(each, "HEAD")));
    }
    CHECK(find_route("/sleep/") == nullptr);
    CHECK(find_route("") == nullptr);
}

TEST_CASE("Wishes: level, tags and mode are read from the query or the body", "[http]") {
    const auto wish = [](std::string_view path, const Query& query, std::string_view body) {
        const auto read = read_wish(route(path), "POST", query, body);
        INFO(body);
        REQUIRE(read);
        return *read;
    };
    CHECK(wish("/sleep", {}, "").level == model::Level::keep);
    CHECK(wish("/sleep", {{"level", "2"}, {"id", "pod-7"}}, "").level == model::Level::drop);
    CHECK(wish("/sleep", {}, R"({"level": 0, "what": [[]]})").level == model::Level::pause);
    CHECK(wish("/sleep", {{"level", "1"}}, R"({"level": 2})").level == model::Level::keep);
    const Tags both{"weights", "kv_cache"};
    CHECK(wish("/wake_up", {{"tags", "weights"}, {"tags", "kv_cache"}, {"tags", "weights"}}, "").tags ==
          both);
    CHECK(wish("/wake_up", {{"tags", "weights, kv_cache"}}, "").tags == both);
    CHECK(wish("/resume_memory_occupation", {}, R"({"tags": ["weights", "kv_cache"]})").tags == both);
    CHECK(wish("/resume_memory_occupation", {}, R"({"tags": null})").tags.empty());
    CHECK(wish("/resume_memory_occupation", {}, "null").tags.empty());
    CHECK(wish("/pause_generation", {}, R"({"mode": "retract", "level": 2})").level == model::Level::pause);
    // Ray Serve's, whose options are the engine's.
    const auto served = wish("/sleep", {}, R"({"model": "m", "options": {"level": 2, "tags": ["weights"]}})");
    CHECK((served.level == model::Level::drop && served.tags == Tags{"weights"}));
    CHECK(wish("/sleep", {}, R"({"level": 0, "options": {"level": 2}})").level == model::Level::pause);
    CHECK(wish("/sleep", {}, R"({"model": "m", "options": null})").level == model::Level::keep);
    CHECK(wish_error("/sleep", {}, R"({"options": {"level": 3}})") == "invalid_argument");
    // TensorRT-LLM takes no tags for a mistake, and all others for all tags.
    CHECK(wish_error("/release_memory", {}, R"({"tags": []})") == "invalid_argument");
    CHECK(wish_error("/resume_memory", {}, R"({"tags": [""]})") == "invalid_argument");
    CHECK(wish("/release_memory", {}, R"({"tags": null})").tags.empty());
    CHECK(wish("/release_memory_occupation", {}, R"({"tags": []})").tags.empty());
    CHECK(wish_error("/sleep", {{"mode", "wait"}}) == "none");
    CHECK_FALSE(wish("/sleep", {{"mode", "wait"}}, "").aborts);
    CHECK(wish("/sleep", {{"mode", "abort"}}, "").aborts);
    CHECK(wish("/pause_generation", {}, R"({"mode": "abort"})").aborts);
    CHECK_FALSE(wish("/wake_up", {{"mode", "abort"}}, "").aborts);
    const auto call = wish("/collective_rpc", {}, R"({"method": "m", "timeout": 1.5})").call;
    CHECK((call.name == "m" && call.timeout == Milliseconds(1500)));
    CHECK(call.argument == R"({"method": "m", "timeout": 1.5})");
    CHECK(wish("/flush_cache", {{"a", "\xFF"}}, "").call.name == "flush_cache");
    for (const auto* body : {"{}", R"({"method": 1})", R"({"method": "m", "timeout": 1e99})",
                             R"({"method": "m", "timeout": []})", R"({"method": "m", "timeout": 1e-9})"})
        CHECK(wish_error("/collective_rpc", {}, body) == "invalid_argument");
    const auto deep = std::string(30'000, '[') + std::string(30'000, ']');
    CHECK(wish_error("/collective_rpc", {}, R"({"method": )" + deep + "}") == "invalid_argument");
    CHECK(wish_error("/flush_cache", {}, R"({"timeout": )" + deep + "}") == "invalid_argument");
    for (const auto& body :
         Tags{"{", "[]", "1", R"("x")", R"({"level": 3})", R"({"level": "x"})", R"({"level": true})",
              R"({"tags": "nope"})", R"({"tags": [1]})", R"({"tags": {}})", R"({"mode": 1})", "\xFF", deep,
              R"({"level": )" + deep + "}"})
        CHECK(wish_error("/sleep", {}, body) == "invalid_argument");
    const auto wrong_tag =
        read_wish(route("/sleep"), "POST", {{"tags", "cuda_graph"}}, ""); // of another dialect
    CHECK(wrong_tag.error().code == ErrorCode::invalid_argument);
    CHECK(wrong_tag.error().message.ends_with("is not one of vLLM's: weights, kv_cache, scheduling"));
    CHECK(wish_error("/v1/sleep", {{"tags", "weight,kv_cache"}}) == "none");
    CHECK_FALSE(read_wish(route("/release_memory_occupation"), "GET", {{"level", "2"}}, ""));
    CHECK(read_wish(route("/release_memory_occupation"), "GET", {{"level", "1"}}, ""));
}

TEST_CASE("Plans: tags of the dialect that the program has, or all of a program that has none", "[http]") {
    const auto unchanged = program({"default"});
    const auto tagged = program({"weights", "kv_cache", "default"});
    CHECK(plan("/sleep", {}, tagged).tags.empty());
    CHECK_FALSE(plan("/sleep", {}, tagged).takes_all);
    auto made = plan("/sleep", {{"tags", "kv_cache"}}, unchanged);
    CHECK((made.tags.empty() && made.takes_all && !made.is_nothing));
    CHECK(made.passed_over == Tags{"kv_cache"});
    made = plan("/sleep", {{"tags", "kv_cache"}}, tagged);
    CHECK((made.tags == Tags{"kv_cache"} && !made.takes_all && made.passed_over.empty()));
    made = plan("/release_memory_occupation", {{"tags", "cuda_graph"}}, tagged);
    CHECK((made.is_nothing && made.passed_over == Tags{"cuda_graph"}));
    CHECK(plan("/v1/sleep", {{"tags", "weight"}}, tagged).tags == Tags{"weights"});
    CHECK(plan("/v1/sleep", {{"tags", "weight"}}, program({"weight", "weights"})).tags == Tags{"weight"});
    // Nobody could ask for what the dialect has no name for.
    CHECK(plan("/wake_up", {{"tags", "weights"}}, tagged).tags == Tags{"default", "weights"});
    CHECK(plan("/wake_up", {{"tags", "weights"}, {"level", "0"}}, tagged).tags == Tags{"default", "weights"});
    CHECK(plan("/sleep", {{"tags", "weights"}, {"level", "0"}}, tagged).tags.empty());
}

TEST_CASE("Plans: what only ends a pause asks all for a tag that none has", "[http]") {
    const auto asleep = program({"default"}, model::State::asleep);
    const auto paused = program({"weights", "kv_cache"}, model::State::paused);
    for (const auto& [path, query] : std::vector<std::pair<std::string_view, Query>>{
             {"/continue_generation", {}},
             {"/resume", {{"tags", "weights"}}},
             {"/v1/resume", {}},
             {"/wake_up", {{"tags", "scheduling"}}},
             {"/resume_memory_occupation", {{"tags", "cuda_graph"}}}}) {
        INFO(path);
        const auto wish = test::need(read_wish(route(path), "POST", query, ""));
        const auto made = plan_of(route(path), wish, {asleep, paused});
        REQUIRE((made.tags.size() == 1 && !made.is_nothing && !made.takes_all));
        CHECK_FALSE(model::is_valid_tag(made.tags.front()));
    }
    CHECK_FALSE(plan("/wake_up", {{"tags", "scheduling"}}, asleep).tags.empty()); // empty ones wake all
    // Of a program that the driver alone has put to sleep nothing is known, and none of it is to wake.
    const auto end = read_wish(route("/resume"), "POST", {}, "");
    CHECK(plan_of(route("/resume"), *end, {}).is_nothing);
}

TEST_CASE("Plans: of unlike processes, tags of any are asked for", "[http]") {
    const std::vector reports{program({"default"}), program({"weights", "kv_cache"})};
    const auto tags = [&](std::string_view path) {
        return plan_of(route(path), *read_wish(route(path), "POST", {{"tags", "weights"}}, ""), reports).tags;
    };
    CHECK(tags("/sleep") == Tags{"weights"});
    CHECK(tags("/wake_up") == Tags{"default", "weights"});
}

TEST_CASE("Status: `weights` has the dialect's name, unless the program has a tag of that name", "[http]") {
    const auto parked_of = [](const Tags& tags) { // the first of them sleeps
        auto report = program(tags);
        report.tags.front().state = model::State::asleep;
        const auto answer = Backend::look(route("/memory_status"), std::vector{control::Outcome{{}, report}});
        return nlohmann::json::parse(answer.body)["parked_tags"].get<Tags>();
    };
    CHECK(parked_of({"weights", "kv_cache"}) == Tags{"model_weights"});
    CHECK(parked_of({"model_weights", "weights"}) == Tags{"model_weights"});
    // Its clients refuse names that are not the server's.
    CHECK(parked_of({"weights", "model_weights"}) == Tags{"executor_extra"});
    CHECK(parked_of({"mine", "kv_cache"}) == Tags{"executor_extra"});
    CHECK(parked_of({"default"}).size() == 11); // it sleeps as a whole
}

TEST_CASE("Status: parked tags are sorted, each once", "[http]") {
    const std::vector outcomes{
        control::Outcome{{}, program({"weights", "kv_cache", "mine"}, model::State::asleep)},
        control::Outcome{{}, program({"kv_cache", "yours"}, model::State::asleep)}};
    const auto answer = Backend::look(route("/memory_status"), outcomes);
    CHECK(nlohmann::json::parse(answer.body)["parked_tags"].get<Tags>() ==
          Tags{"executor_extra", "kv_cache", "model_weights"});
}

TEST_CASE("Status: a process that cannot be asked is named, with what to do", "[http]") {
    control::Process process;
    process.pid = 4242;
    const control::Outcome stopped{process, make_error(ErrorCode::stopped, "it is stopped")};
    const auto answer = Backend::look(route("/is_sleeping"), std::vector{stopped});
    CHECK(answer.status == k_timed_out);
    const auto value = nlohmann::json::parse(answer.body);
    CHECK(value["processes"][0]["pid"] == 4242);
    CHECK(value["error"]["advice"] == "to resume it: kill -CONT 4242, or detach its debugger");
}

TEST_CASE("Status: what no wake brings back has failed", "[http]") {
    const auto state_of = [](const model::Report& report) {
        const auto answer = Backend::look(route("/memory_status"), std::vector{control::Outcome{{}, report}});
        return nlohmann::json::parse(answer.body)["state"];
    };
    auto report = program({"weights"});
    CHECK(state_of(report) == "running");
    report.state = model::State::asleep;
    CHECK(state_of(report) == "parked");
    report.lost = true;
    CHECK(state_of(report) == "failed");
}

TEST_CASE("Plans: level 2 keeps what nobody has said how to fill again", "[http]") {
    auto report = program({"default", "scratch", "static", "weights"});
    report.tags[1].policy.refillable = true;
    report.tags[2].policy.retention = model::Retention::discard;
    report.tags[3].policy.retention = model::Retention::preserve;
    auto made = plan("/sleep", {{"level", "2"}}, report);
    CHECK((made.kept == Tags{"default"} && made.dropped == Tags{"scratch", "static"}));
    made = plan("/sleep", {{"level", "1"}}, report);
    CHECK((made.kept.empty() && made.dropped.empty()));
    const auto wish = read_wish(route("/sleep"), "POST", {{"level", "2"}}, "");
    made = plan_of(route("/sleep"), *wish, {report, program({"other"})});
    CHECK((made.kept == Tags{"default", "other", "scratch", "static"} && made.dropped.empty()));
}
