// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the agent writes to the journal, and the history that agents record and gpu-ps --history shows.

#include "empty_tmp.hpp"
#include "support/fake_journal.hpp"
#include "support/host.hpp"
#include "support/other_user.hpp"
#include "support/printed.hpp"

#include <fmt/format.h>

using namespace gpu_sleep::test;

namespace {

/// As `id` has it.
std::string name_of_user() {
    const auto name = run({{"id", "-un"}}).out;
    return name.substr(0, name.find('\n'));
}

/// The history of the process, once it has so many events: they are written after the answer to the asker.
Output history_of(const Host& host, int events) {
    Output output;
    REQUIRE(becomes_true([&] {
        output = host.command("gpu-ps", {"--history", "--json"});
        return output.json(fmt::format("/history/{}/pid", events - 1)) != "none";
    }));
    return output;
}

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

TEST_CASE("History: a sleep and a wake by a touch are shown, with who asked", "[quick][history]") {
    LoadedHost host(captured({"GPU_SLEEP_NAME=llama", "JPY_SESSION_NAME=work/a.ipynb", "SLURM_JOB_ID=471"}));
    host.sleep({"--on-touch", "wake"});
    host.tell("spin 1");
    auto output = history_of(host, 2);
    const auto said = [&](int event, const char* fields) {
        return output.json(fields, fmt::format("/history/{}/", event));
    };
    CHECK(said(0, "operation pid uid name notebook job") ==
          fmt::format("sleep {} {} llama work/a.ipynb 471", host.pid(), ::geteuid()));
    CHECK(said(0, "state level deep place moved_bytes asked_by asked_by_uid") ==
          fmt::format("asleep 1 false host 4194304 command {}", ::geteuid()));
    CHECK(said(1, "operation state moved_bytes asked_by") == "wake awake 4194304 touch");
    CHECK(std::stod(said(1, "asleep_seconds")) > 0);
    CHECK(said(2, "pid") == "none");
    CHECK(std::stod(output.json("/given_back_gib_hours")) > 0);

    become_idle(host);
    REQUIRE(succeeded(host.command("gpu-reclaim", {"--idle", "10ms"})));
    host.wake();
    output = history_of(host, 4);
    CHECK(said(2, "asked_by") == "gpu-reclaim");
    CHECK_THAT(host.command("gpu-ps", {"--history", "--since", "00:00"}).out,
               mentions("llama (a.ipynb)") && mentions("  touch\n") &&
                   mentions(name_of_user() + ": command\n") && mentions("GiB hours given back"));
    CHECK(host.command("gpu-ps", {"--since", "00:00"}).status == 2);
}

TEST_CASE("History: a notebook's kernel is shown by its id where it has no name, to a job too", "[history]") {
    LoadedHost host(captured({"SLURM_JOB_ID=471"}), {"sh", "-c", "exec \"$0\" /run/kernel-1f0c5a2b-77.json"});
    host.cycle();
    CHECK(history_of(host, 2).json("/history/0/notebook") == "kernel 1f0c5a2b");
    CHECK_THAT(host.command("gpu-ps", {"--history"}).out, mentions("(kernel 1f0c5a2b)") && !mentions("471"));
}

TEST_CASE("History: a move of what sleeps has a line of its own", "[history]") {
    const Scratch scratch;
    LoadedHost host(captured());
    host.sleep();
    host.sleep({"--store", "file", "--dir", scratch.path().string()});
    host.sleep({"--on-touch", "fail"}); // moves no memory
    host.wake();
    const auto output = history_of(host, 3);
    CHECK(output.json("/history/1/operation /history/1/moved_bytes /history/3/pid") == "move 4194304 none");
    const Printed printed(host.command("gpu-ps", {"--history"}).out);
    REQUIRE(printed.rows.size() == 3);
    CHECK(printed.rows[1].at("WHAT") == "move");
    CHECK(printed.rows[1].at("PLACE") == "file");
}

TEST_CASE("History: who asks is the user whom the kernel names", "[history]") {
    if (::geteuid() != 0) return;
    LoadedHost host(captured(), {"setpriv", "--reuid", std::to_string(k_one_user), "--regid",
                                 std::to_string(k_one_user), "--clear-groups"});
    host.sleep();
    const auto output = history_of(host, 1);
    CHECK(output.json("/history/0/uid") == std::to_string(k_one_user));
    CHECK(output.json("/history/0/asked_by_uid") == "0");
    host.wake();
}

TEST_CASE("History: a file that the agent must not write to harms no sleep", "[history]") {
    if (!has_empty_tmp()) return;
    const auto* const hostile = GENERATE("mkdir history", "mkfifo history", "ln -s /tmp/victim history",
                                         "touch /tmp/other && ln /tmp/other history");
    INFO(hostile);
    LoadedHost host(with_empty_tmp(
        fmt::format("mkdir -m 700 /tmp/gpu-sleep-0 && (cd /tmp/gpu-sleep-0 && {}) && exec \"$0\"", hostile)));
    host.cycle();
    host.cycle(); // by its end the lines of the first one would be there
    host.check_whole();
    const auto tmp = fmt::format("/proc/{}/root/tmp/", host.pid());
    CHECK_FALSE(std::filesystem::exists(tmp + "victim"));
    const auto other = tmp + "other";
    if (std::filesystem::exists(other)) CHECK(std::filesystem::file_size(other) == 0);
}

TEST_CASE("History: a full file becomes the old one", "[history]") {
    if (!has_empty_tmp()) return;
    LoadedHost host(with_empty_tmp("mkdir -m 700 /tmp/gpu-sleep-0 && cd /tmp/gpu-sleep-0 && umask 077 && "
                                   "head -c 1048570 /dev/zero > history && cd / && exec \"$0\""));
    host.cycle();
    const auto place = fmt::format("/proc/{}/root/tmp/gpu-sleep-0/", host.pid());
    REQUIRE(becomes_true([&] { return std::filesystem::exists(place + "history.old"); }));
    CHECK(std::filesystem::file_size(place + "history.old") == 1'048'570);
    REQUIRE(becomes_true([&] { return std::filesystem::file_size(place + "history") > 0; }));
}

TEST_CASE("History: root's pass keeps what users' files say, and gpu-ps shows it", "[history]") {
    const auto now = fmt::format(
        "1\\t$(date +%s)\\t4711\\t7\\t99\\tkept\\t\\t\\t0\\t1\\t1\\t0\\thost\\t1024\\t0\\tby\\t4711");
    const auto script =
        mount_empty_tmp() +
        " && mount -t tmpfs none /var/log && cd /tmp && mkdir -m 700 gpu-sleep-0 && umask 077 && "
        "printf \"" +
        now +
        "\\nnonsense\\n\" >gpu-sleep-0/history && \"$0\" >/dev/null && "
        "rm gpu-sleep-0/history && stat -c %a /var/log/gpu-sleep/history && "
        "wc -l </var/log/gpu-sleep/history && \"$1\" --history";
    const auto output =
        run({{"unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--mount", "sh",
              "-c", script, command_file("gpu-reclaim"), command_file("gpu-ps")}});
    if (!has_empty_tmp()) return;
    CHECK(succeeded(output));
    CHECK_THAT(output.out, mentions("600\n1\n") && mentions(" root ") && mentions("kept") &&
                               mentions("1.00 KiB") && !mentions("4711"));
}

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
    CHECK(fields(next_of(journal), "OPERATION BYTES_MOVED PLACE") == "move 4194304 file");

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
