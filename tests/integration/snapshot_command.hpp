// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The built command gpu-snapshot, and a snapshot to give it.

#pragma once

#include "support/process.hpp"
#include "support/snapshots.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::test::snapshot_command {

struct Answer {
    int status = -1;
    std::string output; ///< both streams
};

/// Through the shell.
inline Answer run_command(const std::string& command) {
    auto done = run({{"sh", "-c", command + " 2>&1"}});
    return {done.status, std::move(done.out)};
}

inline Answer run(const std::string& arguments) {
    return run_command(command_file("gpu-snapshot") + " " + arguments);
}

inline bool has(const Answer& answer, const std::string& text) {
    return answer.output.find(text) != std::string::npos;
}

/// What the command answers in JSON, of the form that all commands share.
inline nlohmann::json ask(const std::string& arguments) {
    const auto answer = run(arguments + " --json 2>/dev/null; exit");
    auto json = nlohmann::json::parse(answer.output, nullptr, false);
    REQUIRE(json.is_object());
    CHECK(json["schema"] == 1);
    CHECK(json["program"] == "gpu-snapshot");
    CHECK(json["exit_status"] == answer.status);
    return json;
}

inline void check_error(const nlohmann::json& json, const std::string& code) {
    REQUIRE(json.contains("error"));
    const auto& error = json["error"];
    CHECK(error["code"] == code);
    for (const auto* member : {"message", "advice", "where", "driver_status"}) CHECK(error.contains(member));
}

/// A snapshot of this very process, and an empty directory.
struct Stage {
    Stage() {
        contents.add("weights", first);
        contents.add("kv_cache", second);
        contents.description.owner = {::getpid(), *own_start_time()};
        auto made = write_snapshot(opened(directory), contents.description, contents, {});
        REQUIRE(made);
        snapshot.emplace(*std::move(made));
        path = snapshot->file.path();
    }
    Scratch directory, elsewhere;
    ByteVector first = normal_bf16(3 * k_mib + 1);
    ByteVector second = random_bytes(77);
    MemoryContents contents;
    std::optional<store::Snapshot> snapshot;
    std::filesystem::path path;
};

} // namespace gpu_sleep::test::snapshot_command
