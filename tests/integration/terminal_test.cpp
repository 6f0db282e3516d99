// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What strangers write never steers the terminal of whoever runs a command, whatever way it takes there.

#include "support/fake_agent.hpp"
#include "support/host.hpp"
#include "support/hostile_text.hpp"

#include <nlohmann/json.hpp>

using namespace gpu_sleep::test;

namespace {

/// A process of a stranger: this one, with an agent that gives every text that it can.
class Stranger : NotCopied {
public:
    explicit Stranger(bool fails)
        : agent_(prepared_socket(), [fails](const protocol::Request& request, FakeConnection& connection) {
              const bool sleeps = std::holds_alternative<model::SleepRequest>(request);
              const bool wakes = std::holds_alternative<model::WakeRequest>(request);
              connection.send(model::Progress{});
              if (fails && (sleeps || wakes))
                  connection.send(hostile_failure(ErrorCode::refused));
              else
                  connection.send(hostile_report(sleeps  ? model::Operation::sleep
                                                 : wakes ? model::Operation::wake
                                                         : model::Operation::status));
          }) {}
    ~Stranger() { ::unlink(socket_file(::getpid()).c_str()); }

private:
    static std::filesystem::path prepared_socket() {
        std::filesystem::path path = socket_file(::getpid());
        std::filesystem::create_directories(path.parent_path());
        std::filesystem::permissions(path.parent_path(), std::filesystem::perms::owner_all);
        ::unlink(path.c_str());
        return path;
    }

    FakeAgent agent_;
};

void check_safe(const Output& output, bool in_json) {
    INFO(output.out);
    INFO(output.err);
    CHECK(is_safe(output.out));
    CHECK(is_safe(output.err));
    CHECK_THAT(output.err, !mentions("\ngpu-sleep: all is well")); // a line that no command wrote
    CHECK_THAT(output.out, !mentions("\ngpu-sleep: all is well"));
    if (in_json) CHECK(nlohmann::json::accept(output.out));
}

} // namespace

TEST_CASE("Terminal: an agent cannot steer it by any of its texts", "[quick][terminal]") {
    const bool fails = GENERATE(false, true);
    const Stranger stranger(fails);
    const auto pid = std::to_string(::getpid());
    for (const auto* const command : {"gpu-ps", "gpu-sleep", "gpu-wake"})
        for (const bool in_json : {false, true}) {
            INFO(command);
            Launch launch{{command_file(command), pid}};
            if (in_json) launch.command.emplace_back("--json");
            const auto output = run(launch);
            const bool is_asked = launch.command.front() != command_file("gpu-ps");
            CHECK(output.status == (fails && is_asked ? 1 : 0));
            CHECK(output.out.size() + output.err.size() > 0);
            check_safe(output, in_json);
        }
}

TEST_CASE("Terminal: arguments, files and their names cannot steer it", "[terminal]") {
    const Scratch scratch;
    const auto text = hostile_text();
    const auto place = scratch.file(text); // has no slash in it
    REQUIRE(std::filesystem::create_directory(place));
    std::ofstream(place + "/rules.json") << "{\"rules\": [{\"" << text << "\": \"" << text << "\"}]}";
    for (const auto& words : {Arguments{"gpu-snapshot", "ls", place},
                              {"gpu-snapshot", "verify", place + "/x"},
                              {"gpu-snapshot", "ls", place + "/rules.json"},
                              {"gpu-snapshot", text, "x"},
                              {"gpu-snapshot", "extract", place, "--extent", text, "--output", "x"},
                              {"gpu-snapshot", "extract", place, "--extent", "0", "--output", place},
                              {"gpu-ps", text},
                              {"gpu-ps", "--" + text},
                              {"gpu-ps", "--timeout", text},
                              {"gpu-sleep", text},
                              {"gpu-sleep", "1", "--tags", text},
                              {"gpu-wake", "1", text},
                              {"gpu-sleep", "1", "--store", text},
                              {"gpu-sleep", "1", "--store", text + "=file"},
                              {"gpu-run", "--name", text, "true"},
                              {"gpu-run", text},
                              {"gpu-run", "--rules", text, "true"},
                              {"gpu-run", "--rules", "lib=" + text, "true"},
                              {"gpu-run", place + "/rules.json"}}) {
        const bool has_json = words.front() != "gpu-run";
        for (const bool in_json : {false, true}) {
            if (in_json && !has_json) continue;
            Launch launch{words};
            launch.command.front() = command_file(words.front());
            if (in_json) launch.command.emplace_back("--json");
            const auto output = run(launch);
            CHECK(output.status < 128);
            check_safe(output, in_json && !output.out.empty());
        }
    }
}

TEST_CASE("Terminal: what the environment says of the agent cannot steer it", "[terminal]") {
    Arguments environment{"GPU_SLEEP_CAPTURE=1"};
    for (const auto* const name :
         {"NAME", "TAG", "MIN_SIZE", "RULES", "ON_TOUCH", "TOUCH_LIMIT", "GATE", "LOG", "INHIBIT", "JOURNAL"})
        environment.push_back(fmt::format("GPU_SLEEP_{}={}", name, hostile_text()));
    LoadedHost host(environment);
    const auto said = host.process().errors();
    for (const auto* const name : {"NAME", "ON_TOUCH", "TOUCH_LIMIT", "GATE", "LOG", "INHIBIT", "JOURNAL"})
        CHECK_THAT(said, mentions(fmt::format("GPU_SLEEP_{} is ignored", name)));
    CHECK(is_safe(said));
    CHECK_THAT(said, !mentions("\ngpu-sleep: all is well"));
    check_safe(host.command("gpu-ps"), false);
    check_safe(host.command("gpu-ps", {"--json"}), true);
}
