// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Several programs with the agent on one machine: a tree whose root is the test, and a group.

#pragma once

#include "deep_machine.hpp"

#include <nlohmann/json.hpp>

namespace gpu_sleep::test {

class DeepFamily {
public:
    /// All have `variables` in their environment, and the first also `its_own`.
    explicit DeepFamily(std::size_t count, Arguments variables = {}, Arguments its_own = {})
        : devices_(k_device_bytes / 2 * std::max<std::size_t>(count, 3)) {
        variables.push_back("GPU_SLEEP_GROUP=" + group());
        its_own.insert(its_own.end(), variables.begin(), variables.end());
        for (std::size_t i = 0; i < count; ++i) {
            auto& host = hosts_.emplace_back(here(captured_launch(k_linked, i == 0 ? its_own : variables)));
            pieces_.push_back(make_piece(host, "plain", k_piece_bytes));
        }
    }

    [[nodiscard]] static std::string group() { return fmt::format("deep-{}", ::getpid()); }
    [[nodiscard]] Host& operator[](std::size_t index) { return hosts_[index]; }
    [[nodiscard]] const Piece& piece(std::size_t index) const { return pieces_[index]; }
    [[nodiscard]] std::size_t size() const noexcept { return hosts_.size(); }
    [[nodiscard]] std::string file(const std::string& name) const { return devices_.file(name); }
    /// Another program on the same GPU, that has no agent.
    [[nodiscard]] Launch plain() const { return here(plain_launch(k_linked)); }
    [[nodiscard]] static std::string root() { return std::to_string(::getpid()); }

    /// A command, whose driver has these `variables`.
    [[nodiscard]] Launch launch(const std::string& name, Arguments arguments,
                                Arguments variables = {}) const {
        return here({with({command_file(name)}, arguments), std::move(variables)});
    }
    /// gpu-sleep --deep of the tree, which answers in JSON as wake() does.
    [[nodiscard]] Launch deep(Arguments variables = {}) const {
        return launch("gpu-sleep", {root(), "--tree", "--deep", "--json"}, std::move(variables));
    }
    [[nodiscard]] Output wake() const { return run(launch("gpu-wake", {root(), "--tree", "--json"})); }

    /// How many are awake, and asleep; those that are deep are asleep as well.
    struct States {
        std::size_t awake = 0, asleep = 0, deep = 0;
    };
    /// As gpu-ps says: one for all, for each takes its time.
    [[nodiscard]] States states() const { return states_in(run(launch("gpu-ps", {root(), "--json"}))); }
    /// As a command's answer in JSON says.
    [[nodiscard]] States states_in(const Output& answer) const {
        States states;
        const auto listed = nlohmann::json::parse(answer.out);
        for (const auto& process : listed.at("processes")) {
            const auto is_this = [&](const Host& host) { return host.pid() == process.at("pid"); };
            if (std::none_of(hosts_.begin(), hosts_.end(), is_this)) continue;
            const auto state = process.value("state", "");
            states.awake += state == "awake";
            states.asleep += state == "asleep";
            states.deep += process.value("/report/deep"_json_pointer, false);
        }
        return states;
    }
    void kill_last() {
        hosts_.back().kill();
        hosts_.pop_back();
        pieces_.pop_back();
    }
    void check_all_awake() {
        check_all_intact();
        CHECK(states().awake == size());
    }
    /// Whatever state they are in, the next command makes all deep, and the one after it wakes them.
    void check_completes() {
        CHECK(states_in(ended(run(deep()))).deep == size());
        check_wakes();
    }
    void check_wakes() {
        CHECK(states_in(ended(wake())).awake == size());
        check_all_intact();
    }

private:
    void check_all_intact() {
        for (std::size_t i = 0; i < size(); ++i) check_intact(hosts_[i], pieces_[i]);
        for (auto& host : hosts_) check_no_harm(host);
    }
    [[nodiscard]] Launch here(Launch launch) const {
        launch.environment = with(std::move(launch.environment), devices_.environment());
        return launch;
    }

    SharedDevices devices_; ///< with more memory than all take: the last to wake looks for more
    std::deque<Host> hosts_;
    std::deque<Piece> pieces_;
};

} // namespace gpu_sleep::test
