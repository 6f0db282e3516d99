// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A machine with a program that has the agent, and sleeps deeply.

#pragma once

#include "driver_machine.hpp"

#include "gpu_sleep/gpu_sleep.h"
#include "support/files_of.hpp"

namespace gpu_sleep::test {

/// What the simulated driver takes for a context.
inline constexpr std::uint64_t k_context_bytes = std::uint64_t{8} << 20;

/// Has the program put itself to sleep deeply.
inline const std::string k_own_sleep = fmt::format("sleep_self {} 10000", 1 | GPU_SLEEP_DEEP);

/// The process that the agent of `pid` has started for `task`; 0: there is none.
inline pid_t process_outside(pid_t pid, std::string_view task = "checkpoint") {
    const auto words = fmt::format("{}{}{}{}", task, '\0', pid, '\0');
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const auto line = content_of(entry.path() / "cmdline");
        if (line.find("gpu-sleep-outside") != std::string::npos && line.find(words) != std::string::npos)
            return std::stoi(entry.path().filename().string());
    }
    return 0;
}

/// Waits for it, and a moment longer: it is in the call that is delayed then.
inline pid_t await_process_outside(pid_t pid, std::string_view task = "checkpoint") {
    pid_t found = 0;
    REQUIRE(becomes_true([&] { return (found = process_outside(pid, task)) != 0; }));
    pause_for(Milliseconds(200));
    return found;
}

class DeepMachine : public Machine {
public:
    explicit DeepMachine(Arguments variables = {})
        : Machine(captured_launch(k_linked), std::move(variables)) {}

    /// "awake", "asleep", "partial" or "damaged", as gpu-ps says, or "deep".
    [[nodiscard]] std::string state() const {
        const auto listed = command("gpu-ps");
        auto state = listed.json("/processes/0/state");
        if (listed.json("/processes/0/report/deep") != "true") return state;
        CHECK(state == "asleep");
        return "deep";
    }
    [[nodiscard]] bool is_deep() const { return state() == "deep"; }
    void fall_asleep(Arguments arguments = {}) const {
        const auto slept = ended(command("deep", std::move(arguments)));
        CHECK(slept.json("/processes/0/state /processes/0/report/deep") == "asleep true");
    }
    void wake(Arguments arguments = {}) const {
        const auto woken = ended(command("gpu-wake", std::move(arguments)));
        CHECK(woken.json("/processes/0/state /processes/0/report/deep") == "awake false");
    }
    /// The program works, and all is as before.
    void expect_works() {
        expect_answer();
        check_no_harm(host);
    }
    void wake_whole(Arguments arguments = {}) {
        wake(std::move(arguments));
        expect_works();
    }
    /// The same, of one that nobody saw wake.
    void expect_awake() {
        expect_works();
        const auto woken = command("gpu-wake");
        CHECK(woken.json("/processes/0/report/changed /processes/0/report/deep") == "false false");
    }
};

struct DeepSleeper : DeepMachine {
    DeepSleeper() { fall_asleep(); }
};

} // namespace gpu_sleep::test
