// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Usage: turns [--servers 8] [--room-for 3] [--requests 160] [--by commands|requests] [--calm] ...
//
// Servers that do not all fit the simulated GPU answer requests that come at random. Meanwhile servers are
// killed and end by themselves, commands are killed in the middle, and passes of gpu-reclaim meet processes
// that sleep, wake and exit. Ends with 0 if every request was answered rightly, and none waited longer than
// (servers - 1) * (min-awake + 1 s). Runs in a pid namespace and with a /tmp of its own, so that it meets
// nobody else's processes; ends with 77 where it cannot.

#include "controller.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <memory>

namespace {

using namespace gpu_sleep;
using namespace gpu_sleep::test;

constexpr int k_skipped = 77;

/// Everything that goes on at once.
class Turns {
public:
    Turns(const TurnOptions& options, const std::string& directory)
        : options_(options), directory_(directory) {
        // What a context takes, of each, is there also while it sleeps. There is half a server's room
        // besides, for what kernels take for a moment.
        constexpr Bytes k_context = k_mib;
        const auto each = options.ranges * options.range_bytes;
        const auto all = options.servers * k_context + options.room_for * each + each / 2;
        environment_ = {"GPU_SLEEP_SIM_STATE=" + directory + "/devices",
                        fmt::format("GPU_SLEEP_SIM_MEMORY={}", all),
                        fmt::format("GPU_SLEEP_SIM_CONTEXT_BYTES={}", k_context), "GPU_SLEEP_SIM_DEVICES=1"};
        for (unsigned i = 0; i < options.servers; ++i) servers_.emplace_back(options, environment_, i);
    }

    void run() {
        guarded([&] {
            for (auto& server : servers_) start(server);
        });
        if (findings_.has_failed()) return;
        if (!options_.by_requests) controller_ = std::make_unique<Controller>(options_, servers_, findings_);
        std::vector<std::thread> askers;
        std::vector<std::thread> others;
        for (auto& server : servers_)
            askers.emplace_back([&] { guarded([&] { ask_now_and_then(server); }); });
        if (!options_.is_calm) {
            others.emplace_back([this] { guarded([&] { interfere(); }); });
            others.emplace_back([this] { guarded([&] { pass(); }); });
            others.emplace_back([this] { guarded([&] { kill_servers(); }); });
        }
        for (auto& asker : askers) asker.join();
        is_over_ = true;
        for (auto& other : others) other.join();
        guarded([&] { ask_all_once_more(); });
        controller_.reset();
    }

    [[nodiscard]] const Findings& findings() const noexcept { return findings_; }

private:
    /// Notes what goes wrong in a thread, which ends then.
    void guarded(const std::function<void()>& act) {
        try {
            act();
        } catch (const ProcessFailure& failure) {
            findings_.failed(failure.what());
            for (auto& server : servers_) server.kill(); // nobody waits for what will not come any more
        }
    }

    [[nodiscard]] bool goes_on() const { return !is_over_ && !findings_.has_failed(); }

    /// A process that starts finds its memory free, or fails.
    void start(Server& server) {
        const std::lock_guard lock(starting_);
        for (const auto deadline = Clock::now() + k_patience; Clock::now() < deadline; make_room_to_start())
            if (server.start()) return;
        throw ProcessFailure(fmt::format("server {} found no room to start", server.number()));
    }

    void make_room_to_start() {
        if (options_.by_requests) {
            const auto bytes = options_.ranges * options_.range_bytes + 2 * k_mib; // and its context
            static_cast<void>(
                command({"gpu-run", "--need", fmt::format("{}B", bytes), "--min-awake", "0s", "true"})
                    .finish());
            return;
        }
        const Server* first = nullptr;
        for (const auto& each : servers_)
            if (each.pid() != 0 && !each.is_busy() && (!first || each.last_asked() < first->last_asked()))
                if (states_of(servers_)[each.number()] == "awake") first = &each;
        if (first)
            static_cast<void>(command({"gpu-sleep", std::to_string(first->pid()), "--quiet"}).finish());
    }

    /// On the servers' machine: what the management library says is of their GPU.
    [[nodiscard]] Process command(std::vector<std::string> words) const {
        words.front() = command_file(words.front());
        return Process(Launch{std::move(words), environment_});
    }

    void ask(Server& server) {
        for (;;) {
            if (controller_) controller_->enqueue(server.number());
            const auto seconds = server.ask();
            if (controller_) controller_->forget(server.number());
            if (seconds) return findings_.waited(*seconds);
            if (findings_.has_failed()) return;
            ++findings_.killed;
            start(server);
        }
    }

    void ask_now_and_then(Server& server) {
        constexpr unsigned k_ends_one_in = 40;
        Dice dice(options_.seed + 100 + server.number());
        for (unsigned i = 0; goes_on() && i < options_.requests / options_.servers; ++i) {
            rest();
            pause_for(dice.about(options_.pause));
            ask(server);
            if (options_.is_calm || !dice.one_in(k_ends_one_in)) continue;
            server.end();
            ++findings_.ended;
            start(server);
        }
    }

    /// Now and then nobody asks for so long that a pass finds all idle; idleness is counted in steps of two
    /// seconds. Then all ask at once.
    void rest() const {
        constexpr Milliseconds k_work{3'000};
        constexpr Milliseconds k_rest{5'000};
        if (options_.is_calm) return;
        const auto into = std::chrono::duration_cast<Milliseconds>(Clock::now() - start_) % (k_work + k_rest);
        if (into > k_work) pause_for(k_work + k_rest - into);
    }

    [[nodiscard]] const Server& any(Dice& dice) const { return servers_[dice.below(options_.servers)]; }

    /// Somebody else's commands, most of which are killed before they are done.
    void interfere() {
        constexpr Milliseconds k_between{150};
        constexpr Milliseconds k_into{15};
        Dice dice(options_.seed + 1);
        while (goes_on()) {
            pause_for(dice.about(k_between));
            const auto pid = std::to_string(any(dice).pid());
            std::vector<std::vector<std::string>> choices{
                {"gpu-sleep", pid, "--quiet"},
                {"gpu-sleep", pid, "--quiet", "--store", "file", "--dir", directory_ + "/files"},
                {"gpu-sleep", pid, "--quiet", "--store", "host"},
                {"gpu-wake", pid, "--quiet"}};
            auto started = command(choices[dice.below(4)]);
            ++findings_.commands;
            if (dice.one_in(3)) {
                static_cast<void>(started.finish()); // which may well fail: it meets others
                continue;
            }
            pause_for(dice.about(k_into));
            ++findings_.commands_killed;
        }
    }

    void pass() {
        constexpr Milliseconds k_between{200};
        const std::string k_changed = "\"changed\": true";
        Dice dice(options_.seed + 2);
        while (goes_on()) {
            pause_for(dice.about(k_between));
            const auto done = command({"gpu-reclaim", "--idle", "10ms", "--json"}).finish();
            ++findings_.passes;
            if (done.status >= 128) findings_.failed("gpu-reclaim was ended by a signal");
            for (auto at = done.out.find(k_changed); at != std::string::npos;
                 at = done.out.find(k_changed, at + 1))
                ++findings_.reclaimed;
        }
    }

    void kill_servers() {
        constexpr Milliseconds k_between{1'000};
        Dice dice(options_.seed + 3);
        while (goes_on()) {
            pause_for(dice.about(k_between));
            servers_[dice.below(options_.servers)].kill();
        }
    }

    /// Every server has all its bytes in the end.
    void ask_all_once_more() {
        if (findings_.has_failed()) return;
        for (auto& server : servers_) {
            ask(server);
            server.end();
        }
    }

    const TurnOptions& options_;
    std::string directory_;
    std::vector<std::string> environment_; ///< the machine that is simulated
    Findings findings_;
    std::deque<Server> servers_;
    std::unique_ptr<Controller> controller_;
    std::mutex starting_;
    Clock::time_point start_ = Clock::now();
    std::atomic<bool> is_over_{false};
};

int tell(const TurnOptions& options, const Findings& findings, double seconds) {
    const auto waits = findings.waits();
    const auto at_most =
        (options.servers - 1) * (std::chrono::duration<double>(options.min_awake).count() + 1);
    for (const auto& failure : findings.failures()) fmt::print("FAILED: {}\n", failure);
    if (waits.empty()) return EXIT_FAILURE;
    fmt::print(
        "{} requests in {:.1f} s to {} servers, room for {}, by {}: median wait {:.3f} s, longest {:.3f} s "
        "of at most {:.1f} s\n",
        waits.size(), seconds, options.servers, options.room_for,
        options.by_requests ? "requests" : "commands", waits[waits.size() / 2], waits.back(), at_most);
    fmt::print("servers killed {}, ended {}; sleeps for room {}; others' commands {}, killed {}; passes {}, "
               "which put {} "
               "to sleep\n",
               findings.killed, findings.ended, findings.room_made, findings.commands,
               findings.commands_killed, findings.passes, findings.reclaimed);
    if (waits.back() > at_most) fmt::print("FAILED: a request waited too long\n");
    return findings.failures().empty() && waits.back() <= at_most ? EXIT_SUCCESS : EXIT_FAILURE;
}

/// Starts this program again, apart from all others. Returns only if that is not possible.
void go_apart(char** argv) {
    std::vector<std::string> words{"unshare",
                                   "--user",
                                   "--map-root-user",
                                   "--pid",
                                   "--fork",
                                   "--kill-child",
                                   "--mount-proc",
                                   "--mount",
                                   "sh",
                                   "-c",
                                   mount_empty_tmp() + " && exec \"$@\"",
                                   "sh"};
    auto probe = words;
    probe.emplace_back("true");
    if (run({probe}).status != 0) return;
    words.push_back(command_file("turns"));
    words.emplace_back("--apart");
    for (char** word = argv + 1; *word; ++word) words.emplace_back(*word);
    std::vector<char*> pointers;
    for (auto& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    ::execvp(pointers.front(), pointers.data());
}

} // namespace

int main(int argc, char** argv) {
    TurnOptions options;
    bool is_apart = false;
    std::string by = "commands";
    unsigned pause_ms = 50;
    unsigned min_awake_ms = 300;
    CLI::App app{"Servers take turns on a simulated GPU that has no room for all."};
    app.add_option("--servers", options.servers)->check(CLI::Range(2, 100));
    app.add_option("--room-for", options.room_for, "of them, at a time")->check(CLI::Range(1, 100));
    app.add_option("--requests", options.requests, "of all together");
    app.add_option("--by", by, "who makes room")->check(CLI::IsMember({"commands", "requests"}));
    app.add_option("--min-awake", min_awake_ms, "milliseconds, with --by requests");
    app.add_option("--pause", pause_ms, "milliseconds between two requests to a server, on average");
    app.add_option("--seed", options.seed);
    app.add_flag("--calm", options.is_calm, "nothing is killed, and nobody interferes");
    app.add_flag("--apart", is_apart, "it has namespaces of its own; of no use by hand");
    CLI11_PARSE(app, argc, argv);
    options.by_requests = by == "requests";
    options.pause = Milliseconds(pause_ms);
    if (options.by_requests) options.min_awake = Milliseconds(min_awake_ms);
    if (!is_apart) {
        go_apart(argv);
        fmt::print("not run: there is no permission to make a pid namespace\n");
        return std::getenv("GPU_SLEEP_REQUIRE_RIGHTS") ? EXIT_FAILURE : k_skipped;
    }
    Turns turns(options, "/tmp"); // its own
    const auto start = Clock::now();
    turns.run();
    return tell(options, turns.findings(), std::chrono::duration<double>(Clock::now() - start).count());
}
