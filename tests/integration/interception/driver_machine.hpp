// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A machine with a program that has no agent, and the commands that have the driver put it to sleep.

#pragma once

#include "intercepted_host.hpp"

#include "support/shared_devices.hpp"

#include "base/process.hpp"

#include <fmt/format.h>

namespace gpu_sleep::test {

inline constexpr std::uint64_t k_device_bytes = std::uint64_t{64} << 20;

/// A call of the driver that is over.
struct TracedCall {
    std::string thread, name;
    int status;
};

/// Those of all processes that write to the file `trace`, in the order of their ends.
inline std::vector<TracedCall> calls_in(const std::string& trace) {
    std::ifstream file(trace);
    std::vector<TracedCall> calls;
    TracedCall call{};
    for (std::string rest; file >> call.thread >> call.name >> call.status && std::getline(file, rest);)
        calls.push_back(call);
    return calls;
}

/// How many of `name` there are that did not fail.
inline std::ptrdiff_t calls_done(const std::string& trace, const std::string& name) {
    const auto calls = calls_in(trace);
    return std::count_if(calls.begin(), calls.end(),
                         [&](const auto& call) { return call.name == name && call.status == 0; });
}

/// The devices that the processes of a test share, and a program on them that has no agent.
class Machine {
public:
    explicit Machine(Arguments variables = {}) : Machine(plain_launch(k_linked), std::move(variables)) {}

    /// What the management library calls a GPU: the simulated driver has other names on each machine.
    [[nodiscard]] std::string uuid(int gpu) const {
        std::array<unsigned char, 6> machine{};
        const auto hash = std::hash<std::string>()(devices_.file("devices"));
        std::memcpy(machine.data(), &hash, machine.size());
        return fmt::format("GPU-6770752d-{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}-73696d2d2d{:02x}", machine[0],
                           machine[1], machine[2], machine[3], machine[4], machine[5], gpu);
    }
    /// A program that has no agent.
    [[nodiscard]] Launch plain(Arguments variables = {}) const {
        return here(plain_launch(k_linked), std::move(variables));
    }
    /// `launch` on these devices.
    [[nodiscard]] Launch here(Launch launch, Arguments variables = {}) const {
        launch.environment = with(with(std::move(launch.environment), devices_.environment()), variables);
        return launch;
    }
    /// `command` for the program; "sleep" is "gpu-sleep --engine driver", and "deep" is "gpu-sleep --deep".
    [[nodiscard]] Launch launch(const std::string& command, Arguments arguments = {},
                                Arguments variables = {}) const {
        const auto pid = std::to_string(host.pid());
        const bool sleeps = command == "sleep" || command == "deep";
        arguments.insert(arguments.begin(), {command_file(sleeps ? "gpu-sleep" : command), pid});
        if (command == "sleep") arguments.insert(arguments.end(), {"--engine", "driver"});
        if (command == "deep") arguments.emplace_back("--deep");
        return {std::move(arguments), with(std::move(variables), devices_.environment())};
    }
    [[nodiscard]] Output command(const std::string& name, Arguments arguments = {},
                                 Arguments variables = {}) const {
        arguments.emplace_back("--json");
        return run(launch(name, std::move(arguments), std::move(variables)));
    }
    /// Starts `command` with its driver's `call` delayed, and kills it once `done` is over, or else amid what
    /// comes first.
    void kill_amid(const std::string& command, const std::string& call, const std::string& done,
                   const std::string& delay = "20s") const {
        const auto trace = devices_.file("trace");
        std::filesystem::remove(trace);
        Process process(launch(
            command, {}, {"GPU_SLEEP_SIM_DELAY=" + call + ":" + delay, "GPU_SLEEP_SIM_TRACE=" + trace}));
        REQUIRE(becomes_true([&] { return calls_done(trace, done) > 0; }));
        pause_for(Milliseconds(50)); // so that it is in the next call
        process.signal(SIGKILL);
        CHECK(process.wait() == 128 + SIGKILL);
    }

    /// The program's next call waits.
    void expect_held() {
        host.process().send("hash " + piece.number);
        is_asked_ = true;
        pause_for(Milliseconds(50));
    }
    /// The program works, and all is as before.
    void expect_awake() {
        expect_answer();
        const auto woken = command("gpu-wake"); // nothing is left to wake
        CHECK(woken.status == 0);
        CHECK(woken.json("/processes/0/report/changed") == "false");
        CHECK_FALSE(has_record());
    }
    /// It wakes by a command, and all is as before.
    void wake_whole() {
        REQUIRE(succeeded(command("gpu-wake")));
        expect_awake();
    }

    [[nodiscard]] std::string record() const {
        const auto start = start_time_of(host.pid());
        REQUIRE(start);
        return fmt::format("{}/{}-{}-{}.checkpoint",
                           std::filesystem::path(socket_file(host.pid())).parent_path().string(), host.pid(),
                           *start, pid_namespace());
    }
    [[nodiscard]] bool has_record() const { return std::filesystem::exists(record()); }
    /// Whether a sleep is past all that it does before the checkpoint.
    [[nodiscard]] bool has_noted_need() const {
        std::error_code none;
        const auto bytes = std::filesystem::file_size(record(), none);
        return !none && bytes > 0;
    }

protected:
    Machine(Launch launch, Arguments variables)
        : host(here(std::move(launch), std::move(variables))),
          piece(make_piece(host, "plain", k_piece_bytes)) {}
    /// The answer to what expect_held() asked, if it did.
    void expect_answer() {
        if (std::exchange(is_asked_, false)) CHECK(host.process().read_line() == "ok " + piece.hash);
        check_intact(host, piece);
    }

private:
    SharedDevices devices_{k_device_bytes};
    bool is_asked_ = false;

public:
    Host host;
    Piece piece;
};

} // namespace gpu_sleep::test
