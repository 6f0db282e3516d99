// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the agent writes to the journal.

#include "support/fake_journal.hpp"
#include "support/host.hpp"

using namespace gpu_sleep::test;

namespace {

/// An entry that has to be there: it is written before the answer.
Entry next_of(const FakeJournal& journal) {
    return need(journal.next());
}

/// What it says in fields of these names, with a blank between two of them.
std::string fields(const Entry& entry, const std::string& names) {
    std::istringstream each(names);
    std::string texts, name;
    while (each >> name) texts += entry.at("GPU_SLEEP_" + name) + ' ';
    return texts.substr(0, texts.size() - 1);
}

} // namespace

TEST_CASE("Journal: each transition writes one entry with fields", "[quick][journal]") {
    const Scratch scratch;
    const FakeJournal journal(scratch.file("socket"));
    LoadedHost host({"GPU_SLEEP_JOURNAL=" + scratch.file("socket"), "GPU_SLEEP_NAME=llama",
                     "JPY_SESSION_NAME=work/a.ipynb", "SLURM_JOB_ID=471"});
    REQUIRE(host.command("gpu-ps").status == 0);
    REQUIRE(host.command("gpu-sleep", {"--dry-run"}).status == 0);
    REQUIRE(host.command("gpu-wake").status == 0);
    CHECK_FALSE(journal.next());

    REQUIRE(host.command("gpu-sleep").status == 0);
    const auto slept = next_of(journal);
    CHECK(fields(slept, "OPERATION RESULT STATE BYTES_RELEASED NAME") == "sleep done asleep 4194304 llama");
    CHECK(fields(slept, "NOTEBOOK JOB ASKED_BY LEVEL DEEP PLACE") == "work/a.ipynb 471 command 1 0 host");
    CHECK(slept.at("GPU_SLEEP_ASKED_BY_UID") == std::to_string(::geteuid()));
    CHECK(std::stod(slept.at("GPU_SLEEP_SECONDS")) > 0);
    CHECK(slept.at("SYSLOG_IDENTIFIER") == "gpu-sleep");
    CHECK(slept.at("PRIORITY") == "6");
    CHECK(slept.at("MESSAGE_ID").size() == 32);
    CHECK(slept.at("MESSAGE").starts_with("llama: asleep after "));
    CHECK(slept.at("MESSAGE").ends_with(", 4.00 MiB of GPU memory released"));

    REQUIRE(host.command("gpu-sleep", {"--store", "file", "--dir", scratch.path().string()}).status == 0);
    const auto moved = next_of(journal);
    CHECK(fields(moved, "OPERATION BYTES_MOVED PLACE") == "move 4194304 file");

    REQUIRE(host.command("gpu-wake").status == 0);
    const auto woken = next_of(journal);
    CHECK(fields(woken, "OPERATION STATE BYTES_TAKEN") == "wake awake 4194304");
    CHECK(std::stod(woken.at("GPU_SLEEP_ASLEEP_SECONDS")) > 0);
    CHECK_THAT(woken.at("MESSAGE"), mentions("4.00 MiB of GPU memory taken, asleep for "));
    CHECK(woken.at("MESSAGE_ID") != slept.at("MESSAGE_ID"));

    host.tell("inhibit");
    REQUIRE(host.command("gpu-sleep").status == 1);
    const auto failed = next_of(journal);
    CHECK(fields(failed, "RESULT ASKED_BY") == "inhibited command");
    CHECK(failed.at("PRIORITY") == "4");
    CHECK(failed.at("MESSAGE") == "llama: sleep failed: sleeps are inhibited");
    CHECK(failed.at("MESSAGE_ID") == slept.at("MESSAGE_ID"));
    CHECK_FALSE(failed.contains("GPU_SLEEP_BYTES_RELEASED"));
    CHECK_FALSE(journal.next());
}

TEST_CASE("Journal: nothing is written where the environment says so, or nobody listens", "[journal]") {
    const Scratch scratch;
    const bool is_off = GENERATE(true, false);
    const FakeJournal journal(scratch.file("socket"));
    LoadedHost host({is_off ? "GPU_SLEEP_JOURNAL=0" : "GPU_SLEEP_JOURNAL=" + scratch.file("other")});
    host.cycle();
    CHECK_FALSE(journal.next());
    CHECK(host.process().errors().empty());
}
