// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deep sleeps of several processes in one command, as a tree, as a group, or one by one: all prepare before
// any commits, the driver works on all side by side, and what one command leaves undone the next one does.

#include "deep_family.hpp"

using namespace gpu_sleep::test;

namespace {

const std::string k_lock = "cuCheckpointProcessLock";
const std::string k_checkpoint = "cuCheckpointProcessCheckpoint";

std::string delay(const std::string& call, const std::string& time) {
    return "GPU_SLEEP_SIM_DELAY=" + call + ":" + time;
}

std::string fail(const std::string& call) {
    return "GPU_SLEEP_SIM_FAIL=" + call;
}

/// Starts a deep sleep of all of `family`, and waits until the driver checkpoints them, which takes `time`.
Process start_checkpoints(const DeepFamily& family, const std::string& time) {
    const auto trace = family.file("trace");
    Process process(family.deep({delay(k_checkpoint, time), "GPU_SLEEP_SIM_TRACE=" + trace}));
    const auto locked = [&] { return calls_done(trace, "cuCheckpointProcessLock"); };
    REQUIRE(becomes_true([&] { return locked() == static_cast<std::ptrdiff_t>(family.size()); }));
    pause_for(Milliseconds(300)); // so that all are being checkpointed
    return process;
}

/// Whether FREED and KEPT, or TAKEN and RESTORED, are of each alone: one has two pieces, and the others one.
void check_own_bytes(const Output& output) {
    INFO(output.out);
    const auto rows = [&](const std::string& words) {
        int count = 0;
        for (auto at = output.out.find(words); at != output.out.npos; at = output.out.find(words, at + 1))
            ++count;
        return count;
    };
    CHECK(rows("6.00 MiB  6.00 MiB") == 2);
    CHECK(rows("12.0 MiB  12.0 MiB") == 1);
}

} // namespace

TEST_CASE("Deep together: trees and groups sleep deeply, and wake as one", "[quick][deep][deep_together]") {
    DeepFamily family(3);
    static_cast<void>(make_piece(family[1], "plain", k_piece_bytes));
    const bool is_tree = GENERATE(true, false);
    const auto who =
        is_tree ? Arguments{DeepFamily::root(), "--tree"} : Arguments{"--group", DeepFamily::group()};
    std::string trace;
    const auto command = [&](const std::string& name, const Arguments& more = {}) {
        return run(family.launch(name, with(who, more), {"GPU_SLEEP_SIM_TRACE=" + trace}));
    };
    for (int round = 0; round < 2; ++round) {
        trace = family.file(fmt::format("trace_{}", round));
        const auto slept = ended(command("gpu-sleep", {"--deep"}));
        CHECK_THAT(slept.out, mentions("3 processes are deeply asleep; 48.0 MiB of GPU memory freed"));
        check_own_bytes(slept);
        CHECK(family.states().deep == 3);
        // All are locked before one is checkpointed.
        auto calls = calls_in(trace);
        std::erase_if(calls,
                      [](const auto& call) { return call.name != k_lock && call.name != k_checkpoint; });
        CHECK(calls.size() == 6);
        CHECK(std::is_partitioned(calls.begin(), calls.end(),
                                  [](const auto& call) { return call.name == k_lock; }));
        const auto woken = ended(command("gpu-wake"));
        check_own_bytes(woken);
        family.check_all_awake();
    }
}

TEST_CASE("Deep together: one that cannot sleep deeply keeps all awake", "[deep][deep_together]") {
    DeepFamily family(2);
    const std::string why = GENERATE("managed", "not intercepted");
    const auto check_none_slept = [&] {
        check_ended(run(family.deep()), 1, mentions("undone, because another process"));
        CHECK(family.states().awake == 2);
    };
    if (why == "managed") {
        const auto number = family[1].tell("alloc managed 4194304");
        check_none_slept();
        family[1].tell("free " + number.substr(0, number.find(' ')));
    } else {
        LoadedHost other;
        check_none_slept();
        CHECK(other.state() == "awake");
    }
    family.check_completes();
}

TEST_CASE("Deep together: whichever call of the command fails, each is as it says", "[deep][deep_together]") {
    constexpr int k_calls = 8; // of the driver, and some more
    DeepFamily family(3);
    int failed = 0;
    for (int nth = 1; nth <= k_calls; nth += is_sanitized() ? 3 : 1) {
        INFO("call " << nth);
        const auto slept = run(family.deep({fail(fmt::format("*:{}:999", nth))}));
        failed += slept.status != 0;
        INFO(slept.err);
        const auto of_two = mentions("3 processes are asleep, 2 of them deeply; the same command continues");
        if (slept.status != 0) CHECK_THAT(slept.err, of_two);
        for (int i = 0; i < 3; ++i) CHECK(slept.json(fmt::format("/processes/{}/state", i)) == "asleep");
        const auto found = family.states();
        CHECK(found.asleep == 3);
        CHECK(found.deep == (slept.status == 0 ? 3 : 2));
        if (nth % 2 == 0) REQUIRE(family.wake().status == 0);
        family.check_completes();
    }
    CHECK(failed >= (is_sanitized() ? 2 : 6));
}

TEST_CASE("Deep together: one that goes back with others meets touches as before", "[deep][deep_together]") {
    DeepFamily family(2);
    REQUIRE(run(family.launch("gpu-sleep", {std::to_string(family[0].pid()), "--deep"})).status == 0);
    const auto number = family[1].tell("alloc managed 4194304");
    const auto refused = ended(
        run(family.launch("gpu-sleep", {DeepFamily::root(), "--tree", "--deep", "--on-touch", "fail"})), 1);
    const auto listed = run(family.launch("gpu-ps", {std::to_string(family[0].pid()), "--json"}));
    CHECK(listed.json("/processes/0/report/gate/on_touch") == "wait");
    CHECK(family.states().deep == 1);
    family[1].tell("free " + number.substr(0, number.find(' ')));
    family.check_completes();
}

TEST_CASE("Deep together: one with semaphores sleeps plainly, and is never locked", "[deep][deep_together]") {
    DeepFamily family(2, {}, {delay("nvmlDeviceGetMemoryInfo", "2000ms")});
    const auto trace = family.file("trace");
    Process sleeping(family.deep({"GPU_SLEEP_SIM_TRACE=" + trace}));
    await_process_outside(family[0].pid(), "look"); // it is asked once all else is checked
    family[0].tell("shared_object semaphore");
    const auto slept = ended(sleeping.finish(), 7);
    CHECK_THAT(slept.err, mentions("asleep, but not deeply: it has used memory or semaphores"));
    CHECK_THAT(slept.err, mentions("2 processes are asleep, 1 of them deeply"));
    CHECK(calls_done(trace, "cuCheckpointProcessLock") == 1);
    CHECK(family.states().deep == 1);
    family[0].tell("destroy_shared");
    family.check_completes();
}

TEST_CASE("Deep together: one stopped amid the driver's part is given up alone", "[deep][deep_together]") {
    DeepFamily family(3);
    auto process = start_checkpoints(family, "4s");
    family[1].process().signal(SIGSTOP);
    CHECK(ended(process.finish(), 9).seconds < 30);
    family[1].process().signal(SIGCONT);
    CHECK(becomes_true([&] {
        const auto states = family.states();
        return states.asleep == 3 && states.deep >= 2;
    }));
    family.check_completes();
}

TEST_CASE("Deep together: one killed amid the driver's part takes nobody along", "[deep][deep_together]") {
    DeepFamily family(3);
    auto process = start_checkpoints(family, "4s");
    family.kill_last();
    CHECK(process.finish().status != 0);
    CHECK(family.states().deep == 2);
    family.check_completes();
}
