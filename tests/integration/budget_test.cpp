// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Budgets for host memory: where programs sleep, and where gpu-reclaim makes its pass.

#include "base/process.hpp"
#include "empty_tmp.hpp"
#include "place.hpp"
#include "support/configuration.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_each = 16 * k_mib;

Bytes bytes_held(const Host& host) {
    return std::stoull(host.report("host_bytes")) + std::stoull(host.report("retained_bytes"));
}

/// All programs of this test, for a command: others' cannot get in the way as with a name.
std::string own_programs() {
    return std::to_string(::getpid());
}

/// So many programs, each with contents of k_each.
std::vector<std::unique_ptr<Host>> programs(int count) {
    const Arguments environment{"GPU_SLEEP_SIM_POISON=0"};
    std::vector<std::unique_ptr<Host>> all;
    for (int i = 0; i < count; ++i) {
        all.push_back(std::make_unique<Host>(captured(environment)));
        all.back()->tell(fmt::format("alloc weights {} 0", k_each));
    }
    return all;
}

/// The same, in a /tmp of their own: nobody else's account is theirs.
std::vector<std::unique_ptr<Host>> programs_apart(int count, Arguments environment) {
    environment.emplace_back("GPU_SLEEP_SIM_POISON=0");
    std::vector<std::unique_ptr<Host>> all;
    for (int i = 0; i < count; ++i) {
        auto launch = with_empty_tmp("exec \"$0\"");
        if (i > 0)
            launch.command = {"nsenter",
                              "--target",
                              std::to_string(all.front()->pid()),
                              "--user",
                              "--mount",
                              "--preserve-credentials",
                              command_file("integration_host")};
        launch.environment = captured(environment);
        all.push_back(std::make_unique<Host>(launch));
        all.back()->tell(fmt::format("alloc weights {} 0", k_each));
    }
    return all;
}

/// A pass over them with a budget for all, and with these lines on when they sleep, and where.
Output pass_within(Bytes budget, const std::string& reclaim = {}, const Arguments& more = {},
                   const std::string& pid = own_programs()) {
    const Configuration within(
        fmt::format("[host]\nbudget = \"{}MiB\"\n[reclaim]\n{}", budget / k_mib, reclaim));
    return run({with({command_file("gpu-reclaim"), pid, "--config", within.file()}, more)});
}

/// The line of a configuration by which files go there.
std::string files_in(const Place& place) {
    return fmt::format("directory = \"{}\"\n", place.path().native());
}

/// gpu-ps of all programs of this test.
Output listed() {
    return run({{command_file("gpu-ps"), own_programs(), "--json"}});
}

Bytes held_by_all() {
    Bytes sum = 0;
    const auto all = listed();
    for (const auto* figure : {"/report/host_bytes", "/report/retained_bytes"})
        for (const auto& bytes : all.of_all(figure)) sum += std::stoull(bytes);
    return sum;
}

auto count_asleep() {
    const auto states = listed().of_all("/state");
    return std::count(states.begin(), states.end(), "asleep");
}

void check_bytes_after_wake(const std::vector<std::unique_ptr<Host>>& all) {
    for (const auto& host : all) host->wake_whole();
}

} // namespace

TEST_CASE("Budget: eight that sleep at once within a budget for three spill, or stay awake", "[policy]") {
    if (!has_empty_tmp()) return;
    const Scratch disk("/var/tmp"); // files in memory would be no help
    const auto all = programs_apart(8, {fmt::format("GPU_SLEEP_HOST_BUDGET={}", 3 * k_each + k_mib)});
    SECTION("with a directory all sleep") {
        CHECK(succeeded(run({{command_file("gpu-sleep"), own_programs(), "--spill", disk.file("sleep")}})));
        CHECK(count_asleep() == 8);
        CHECK(held_by_all() <= 3 * k_each + k_mib);
        CHECK(held_by_all() >= 3 * k_each);
    }
    SECTION("without one three do, and the others say why not") {
        const auto output = ended(run({{command_file("gpu-sleep"), own_programs()}}), 8);
        CHECK(count_asleep() == 3);
        CHECK(held_by_all() == 3 * k_each);
    }
    check_bytes_after_wake(all);
}

TEST_CASE("Budget: what sleeps in the host memory that it runs from goes deep by way of files", "[policy]") {
    if (!has_empty_tmp()) return;
    const Scratch disk("/var/tmp");
    const Arguments machine{"GPU_SLEEP_SIM_STATE=" + disk.file("gpus"), "GPU_SLEEP_SIM_DEVICES=1"};
    const auto all =
        programs_apart(1, with(machine, {"GPU_SLEEP_LIVE_BYTES=weights=1GiB",
                                         fmt::format("GPU_SLEEP_HOST_BUDGET={}", k_each + k_mib)}));
    const auto& host = *all.front();
    const auto sleep = [&](const Arguments& options) {
        return run({with({command_file("gpu-sleep"), std::to_string(host.pid())}, options), machine});
    };
    REQUIRE(succeeded(sleep({})));
    CHECK(host.report("tags/0/in_place_bytes") == std::to_string(k_each));
    CHECK(sleep({"--deep"}).status == 7); // there is no room for a copy
    CHECK(succeeded(sleep({"--deep", "--spill", disk.file("sleep")})));
    CHECK(host.report("deep") == "true");
    CHECK(host.report("file_bytes") != "0");
    check_bytes_after_wake(all);
}

TEST_CASE("Budget: who sleeps counts again where the file by which all count was removed", "[policy]") {
    if (!has_empty_tmp()) return;
    const auto all = programs_apart(2, {fmt::format("GPU_SLEEP_HOST_BUDGET={}", k_each)});
    REQUIRE(all[0]->command("gpu-sleep").status == 0);
    const auto file =
        fmt::format("/proc/{}/root{}/host-memory", all[0]->pid(), gpu_sleep::agent_directory(0));
    REQUIRE(std::filesystem::remove(file));
    REQUIRE(becomes_true([&] { return std::filesystem::exists(file); }));
    CHECK(all[1]->command("gpu-sleep").status == 8);
    check_bytes_after_wake(all);
}

TEST_CASE("Budget: who sleeps within a budget has what others only retain", "[policy]") {
    if (!has_empty_tmp()) return;
    const auto all = programs_apart(4, {fmt::format("GPU_SLEEP_HOST_BUDGET={}", 2 * k_each)});
    // The others look whether they are to give way twice a second, and on a busy machine more seldom.
    const auto falls_asleep = [](Host& host) {
        constexpr Milliseconds k_time{20'000};
        return becomes_true([&] { return host.command("gpu-sleep").status == 0; }, k_time);
    };
    for (const auto& host : all) { // each finds what the two before it retain
        REQUIRE(falls_asleep(*host));
        CHECK(bytes_held(*host) == k_each);
        CHECK(held_by_all() <= 2 * k_each);
        REQUIRE(host->command("gpu-wake").status == 0);
    }
    REQUIRE(falls_asleep(*all[0]));
    REQUIRE(falls_asleep(*all[1]));
    CHECK(all[2]->command("gpu-sleep").status == 8); // nobody retains anything
    check_bytes_after_wake(all);
}

TEST_CASE("Budget: a pass puts no more into host memory than the budget has room for", "[quick][policy]") {
    if (!is_apart() || !reads_configurations()) return;
    const Place place("/var/tmp"); // files in memory would count
    const auto all = programs(3);
    for (const auto& host : all) become_idle(*host);
    const auto within = [](const Arguments& more) {
        return ended(pass_within(2 * k_each, "idle = \"10ms\"\n", more));
    };
    CHECK_THAT(within({"--why"}).out, mentions("nothing now: it does not fit into the host memory budget"));
    CHECK(count_asleep() == 0);
    Output output;
    if (GENERATE(false, true)) {
        output = within({});
    } else { // what the others hold counts for a pass over one process, too
        for (const auto& host : all)
            output = ended(pass_within(2 * k_each, "idle = \"10ms\"\n", {}, std::to_string(host->pid())));
    }
    CHECK_THAT(output.out, mentions("it does not fit into the host memory budget"));
    CHECK(count_asleep() == 2);
    output = pass_within(2 * k_each, "idle = \"10ms\"\n" + files_in(place));
    CHECK(succeeded(output));
    CHECK(count_asleep() == 3);
    CHECK(held_by_all() == 2 * k_each);
    CHECK(place.files().size() == 1);
    check_bytes_after_wake(all);
}

TEST_CASE("Budget: beyond the budget what is retained goes first, then what sleeps moves", "[policy]") {
    if (!is_apart() || !reads_configurations()) return;
    const Place place("/var/tmp"); // files in memory would count
    const auto all = programs(2);
    for (const auto& host : all) REQUIRE(host->command("gpu-sleep").status == 0);
    REQUIRE(all[1]->command("gpu-wake").status == 0);
    CHECK(bytes_held(*all[1]) == k_each); // retained
    CHECK(pass_within(k_each).status == 0);
    CHECK(becomes_true([&] { return bytes_held(*all[1]) == 0; }));
    check_ended(pass_within(k_each / 2), 8,
                mentions("cannot keep to the budget of 8.00 MiB for the host memory of all "
                         "processes: 16.0 MiB would still be held"));
    CHECK(pass_within(k_each / 2, {}, {"--json"}).json("/exit_status") == "8");
    CHECK(held_by_all() == k_each);
    CHECK(pass_within(k_each / 2, files_in(place)).status == 0);
    CHECK(held_by_all() == 0);
    CHECK(count_asleep() == 1);
    check_bytes_after_wake(all);
}
