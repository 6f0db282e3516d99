// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The JSON schema.

#include "cli/show/json.hpp"

#include "support/catch.hpp"
#include "support/hostile_text.hpp"
#include "support/man_page.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::control;
using nlohmann::json;
using test::sample_process;

TEST_CASE("JSON: a report has every figure, in bytes and seconds", "[json]") {
    Outcome outcome{sample_process(), test::sample_sleep_in_files()};
    outcome.deep_asked = true;
    const auto value = json::parse(to_json("gpu-sleep", {outcome}));
    CHECK(value["schema"] == 1);
    CHECK(value["program"] == "gpu-sleep");
    CHECK(value["exit_status"] == 0);
    REQUIRE(value["processes"].size() == 1);
    const auto& process = value["processes"][0];
    CHECK(process["pid"] == 4242);
    CHECK(process["namespace_pid"] == 7);
    CHECK(process["user"] == "root");
    CHECK(process["state"] == "asleep");
    CHECK(process["name"] == "llama");
    CHECK(process["deep_asked"] == true);
    const auto& report = process["report"];
    CHECK(report["operation"] == "sleep");
    CHECK(report["level"] == 1);
    CHECK(report["changed"] == true);
    CHECK(report["idle_seconds"].is_null());
    CHECK(report["inhibited"] == false);
    CHECK(report["inhibited_seconds"].is_null());
    CHECK(report["host_bytes"] == 10 * k_gib);
    CHECK(report["file_bytes"] == 3 * k_gib);
    CHECK(report["in_files_bytes"] == 5 * k_gib);
    CHECK(report["directories"] == json::array({"/fast/ann"}));
    CHECK(report["times"]["total_seconds"] == 0.46);
    CHECK(report["tags"][0] ==
          json::parse(R"({"tag": "weights", "device": 0, "state": "asleep", "policy": "offload",
        "refillable": true, "needs_refill": false, "ranges": 194, "bytes": 16106127360, "allocated_bytes": 16106123264,
        "resident_bytes": 0, "host_backed_bytes": 0, "in_place_bytes": 0, "kept_bytes": 16106127360, "in_files_bytes": 5368709120,
        "dropped_bytes": 0, "damaged_bytes": 0})"));
    CHECK(report["devices"][0] ==
          json::parse(
              R"({"device": 0, "name": "NVIDIA H200", "uuid": "GPU-51302d51", "moved_bytes": 16106127360,
        "kept_bytes": 16106127360, "stored_bytes": 0, "copied_bytes": 0, "dropped_bytes": 0,
        "steps": {"populate_seconds": 0.5, "pin_seconds": 0.25, "await_host_seconds": 0.125, "fingerprint_seconds": 0,
        "copy_seconds": 0.3, "create_seconds": 0, "map_seconds": 0, "access_seconds": 0, "unmap_seconds": 0.01,
        "release_seconds": 0.02}, "free_before_bytes": 107374182400,
        "relocated_bytes": 0, "free_before_bytes": 107374182400,
        "free_after_bytes": 123480309760, "total_bytes": 150323855360})"));
    CHECK_FALSE(report["devices"][1].contains("total_bytes"));
    CHECK(report["dropped_without_refill"] == json::array({"kv_cache"}));
}

TEST_CASE("JSON: a report says how the gate stands and what stays with the driver", "[json]") {
    const auto value = json::parse(to_json("gpu-ps", {{sample_process(), test::sample_intercepted_sleep()}}));
    const auto& report = value["processes"][0]["report"];
    CHECK(report["idle_seconds"] == 840.5);
    CHECK(report["inhibited"] == true);
    CHECK(report["inhibited_seconds"] == 7200);
    CHECK(report["woken_bytes"] == 0);
    CHECK(report["woken_seconds"] == 0);
    CHECK(report["captures"] == true);
    CHECK(report["gate"] == json::parse(R"({"state": "shut", "on_touch": "wake", "waiting_threads": 2,
        "touches": 17, "last_touch": "cuLaunchKernel"})"));
    REQUIRE(report["residual"].size() == 2);
    CHECK(report["residual"][0] == json::parse(R"({"kind": "managed", "device": 0, "bytes": 1073741824,
        "count": 3, "reason": "the driver moves it by itself"})"));
    REQUIRE(report["wakes_waiting"].size() == 2);
    CHECK(report["wakes_waiting"][0] == json::parse(R"({"tags": ["weights", "kv_cache"], "by_touch": false,
        "seconds": 12.5, "reason": "too little", "place": null})"));
    CHECK(report["seconds_since_wake"] == nullptr);
    CHECK(report["deep_refusal"] == "it has managed memory");
    CHECK(report["agent_version"] == "7.8.9");
    CHECK(report["features"] == json::array({"pause"}));
    REQUIRE(report["transitions"].size() == 2);
    const auto& sleeps = report["transitions"][0];
    CHECK(sleeps["operation"] == "sleep");
    CHECK(sleeps["done"] == 4);
    CHECK(sleeps["done_seconds"] == 0.25);
    REQUIRE(sleeps["durations"].size() == 13);
    CHECK(sleeps["durations"][1] == json::parse(R"({"at_most_seconds": 0.025, "count": 3})"));
    CHECK(sleeps["failures"] == json::parse(R"([{"code": "timed_out", "count": 2}])"));
    CHECK(report["transitions"][1]["durations"][12] ==
          json::parse(R"({"at_most_seconds": null, "count": 1})"));
}

TEST_CASE("JSON: a wake in line has its place, and the last wake its age", "[json]") {
    auto status = test::sample_status();
    status.wakes_waiting = {{{}, true, 3, "short", 2}};
    status.seconds_since_wake = 1.5;
    const auto report =
        json::parse(to_json("gpu-ps", {{sample_process(), status}}))["processes"][0]["report"];
    CHECK(report["wakes_waiting"][0]["place"] == 2);
    CHECK(report["seconds_since_wake"] == 1.5);
    CHECK(report["agent_version"] == nullptr);
}

TEST_CASE("JSON: failures have a code, a sentence, advice and the state", "[json]") {
    const model::Failure failure{{ErrorCode::driver_failed, "it failed", "cuMemCreate", 2},
                                 model::State::asleep};
    const auto lost = make_error(ErrorCode::timed_out, "no answer");
    const auto value =
        json::parse(to_json("gpu-wake", {{sample_process(), failure}, {sample_process(), lost}}));
    CHECK(value["exit_status"] == 7);
    const auto& first = value["processes"][0];
    CHECK(first["exit_status"] == 7);
    CHECK(first["state"] == "asleep");
    CHECK(first["error"]["code"] == "driver_failed");
    CHECK(first["error"]["where"] == "cuMemCreate");
    CHECK(first["error"]["driver_status"] == 2);
    CHECK_FALSE(first.contains("report"));
    const auto& second = value["processes"][1];
    CHECK(second["exit_status"] == 4);
    CHECK_FALSE(second.contains("state"));
    CHECK(second["error"]["message"] == "no answer");
    CHECK(second["error"]["advice"] == traits(ErrorCode::timed_out).advice);
}

TEST_CASE("JSON: a listing has the GPUs, and who has memory there", "[json]") {
    const auto value = json::parse(
        to_json("gpu-ps", {}, {{1, "GPU-1", "H200", 80, 20, false, {{911, 50}, {912, std::nullopt}}}}, -1));
    const auto& gpu = value.at("gpus").at(0);
    CHECK(gpu.at("index") == 1);
    CHECK(gpu.at("uuid") == "GPU-1");
    CHECK(gpu.at("total_bytes") == 80);
    CHECK(gpu.at("used_bytes") == 60);
    CHECK(gpu.at("free_bytes") == 20);
    CHECK(gpu.at("processes").at(0) == json{{"pid", 911}, {"bytes", 50}});
    CHECK(gpu.at("processes").at(1).at("bytes").is_null());
}

TEST_CASE("JSON: a command that found nobody says why", "[json]") {
    const auto value =
        json::parse(to_json("gpu-ps", make_error(ErrorCode::no_process, "there is no process 1")));
    CHECK(value["schema"] == 1);
    CHECK(value["exit_status"] == 3);
    CHECK(value["error"]["code"] == "no_process");
    CHECK(value["processes"].empty());
}

TEST_CASE("JSON: how much of a GPU is free is not told where nobody could look after a sleep", "[json]") {
    control::GpuRoom room;
    room.gpu.free = 5;
    const auto too_little = make_error(ErrorCode::out_of_device_memory, "5 B of 8 B are free");
    CHECK(json::parse(to_json("gpu-reclaim", {}, room, too_little))["gpu"]["free_bytes"] == 5);
    const auto gone = make_error(ErrorCode::no_driver, "the GPU has gone");
    CHECK(json::parse(to_json("gpu-reclaim", {}, room, gone))["gpu"]["free_bytes"].is_null());
}

TEST_CASE("JSON: any bytes in a name give valid JSON, on one line if asked", "[json]") {
    auto process = sample_process();
    process.command = "bad \xFF\xC3 \"quoted\"\n\033";
    const auto text = to_json("gpu-ps", {{process, test::sample_status()}}, -1);
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.find('\033') == std::string::npos);
    CHECK(json::accept(text));
}

TEST_CASE("JSON: every text of a stranger is UTF-8, harmless on a terminal, and told as it is", "[json]") {
    auto process = sample_process();
    process.command = test::hostile_text();
    for (const auto& answer : {Answer(test::hostile_report(model::Operation::sleep)),
                               Answer(test::hostile_failure(ErrorCode::internal))})
        for (const int indent : {-1, 2}) {
            const auto text = to_json("gpu-sleep", {{process, answer}}, indent);
            CHECK(test::is_safe(text));
            CHECK(json::accept(text));
        }
    process.command = "\x7F\xC2\x9B\xE2\x80\xAE\xF3\xA0\x81\x81 gr\xC3\xBC\xC3\x9F"; // all of it UTF-8
    const auto text = to_json("gpu-ps", {{process, test::sample_status()}});
    CHECK(json::parse(text)["processes"][0]["command"] == process.command);
    CHECK(text.find(R"("\u007f\u009b\u202e\udb40\udc41 gr)") != std::string::npos);
}

TEST_CASE("JSON: the manual page names every member, and no other", "[json]") {
    const model::Failure failure{{ErrorCode::driver_failed, "it failed", "cuMemCreate", 2},
                                 model::State::asleep};
    test::Members members;
    for (const auto& text :
         {to_json("gpu-sleep", {{sample_process(), test::sample_sleep_in_files()}}),
          to_json("gpu-ps", {{sample_process(), test::sample_intercepted_sleep()}},
                  std::vector<driver::Gpu>(), 2),
          to_json("gpu-wake", {{sample_process(), failure}}), to_json("gpu-ps", failure.error),
          to_json("gpu-ps", std::vector{model::Event()}, 0)})
        test::add_members(json::parse(text), "The object", members);
    for (const auto& row : all_errors()) members["Words of error.code"].emplace(row.name);
    const auto documented = test::documented_members(test::source_file("cli/man/gpu-ps.1"));
    for (const auto& [title, names] : members) {
        INFO(title);
        CHECK(documented.contains(title));
        if (documented.contains(title)) CHECK(documented.at(title) == names);
    }
    CHECK(documented.size() == members.size());
}
