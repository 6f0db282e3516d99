// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents in files: where they go, who may read them, and when they go away. Bad files and bad directories
// are in store_failures_test.cpp.

#include "peer.hpp"
#include "place.hpp"
#include "support/tree.hpp"

#include <fmt/format.h>

#include <sys/resource.h>

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

mode_t mode_of(const fs::path& path) {
    struct stat status = {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    return status.st_mode & 07777U;
}

/// Files of the place that the process has open. It goes on opening and closing others.
std::ptrdiff_t count_open(const std::string& process, const Place& place) {
    const fs::directory_iterator all("/proc/" + process + "/fd");
    return std::count_if(begin(all), end(all), [&](const fs::directory_entry& each) {
        std::error_code gone;
        return fs::read_symlink(each, gone).string().starts_with(place.path().string());
    });
}

} // namespace

TEST_CASE("Store: contents in files come back whole, and no host memory is kept", "[quick][threads][store]") {
    const Place place;
    TwoTagHost host;
    host.tell("alloc weights 6291456 1");
    for (int round = 0; round < 3; ++round) {
        const auto slept = ended(host.command("gpu-sleep", place.store({"--json"})));
        CHECK(slept.json("/processes/0/state /processes/0/report/host_bytes") == "asleep 0");
        CHECK(slept.json("/processes/0/report/directories/0") == place.path());
        CHECK(std::stoull(slept.json("/processes/0/report/file_bytes")) >= (std::size_t{20} << 20));
        CHECK(slept.tag("kv_cache", "in_files_bytes") == "4194304");
        CHECK(slept.tag("kv_cache", "kept_bytes") == "4194304");
        CHECK(place.files().size() == 3); // one for each tag on each device
        host.wake_whole();
        CHECK(host.report("directories/0") == "none");
        CHECK(place.files().empty());
    }
    CHECK(host.tell("faults") == "0");
}

TEST_CASE("Store: a flush is told of before it begins, and when it has ended", "[store]") {
    if (is_sanitized()) return skip("a sanitizer's runtime comes first");
    LoadedHost host({"LD_PRELOAD=" + library_file("libslow_disk.so"), "GPU_SLEEP_TEST_FLUSH=1"});
    const Scratch scratch;
    model::SleepRequest request;
    request.store = model::Store::file;
    request.directory = scratch.path();
    Peer peer(host);
    peer.send(protocol::Request(request));
    std::optional<Clock::time_point> begun; // with all copied
    std::optional<Clock::duration> took;
    for (auto reply = peer.next(); reply; reply = peer.next()) {
        const auto* const progress = std::get_if<model::Progress>(&*reply);
        if (!progress) {
            CHECK(std::holds_alternative<model::Report>(*reply));
            break;
        }
        const bool is_copied = progress->total > 0 && progress->done == progress->total;
        if (is_copied && progress->in_call && !begun) begun = Clock::now();
        if (begun && !took && !progress->in_call) took = Clock::now() - *begun;
    }
    REQUIRE(took);
    CHECK(*took >= Milliseconds(1'900)); // of the file, and of its directory
    host.wake_whole();
}

TEST_CASE("Store: a disk that takes minutes to flush is waited for", "[slow_disk]") {
    LoadedHost host({"LD_PRELOAD=" + library_file("libslow_disk.so"), "GPU_SLEEP_TEST_FLUSH=45"});
    const Scratch scratch;
    CHECK(succeeded(host.command("gpu-sleep", {"--dir", scratch.path()})));
    CHECK(host.state() == "asleep");
    host.wake_whole();
}

TEST_CASE("Store: each tag goes where it is told to", "[store]") {
    const Place place;
    TwoTagHost host;
    const auto slept = ended(
        host.command("gpu-sleep", {"--store", "weights=file,default=host", "--dir", place.path(), "--json"}));
    CHECK(slept.tag("weights", "in_files_bytes") == slept.tag("weights", "kept_bytes"));
    CHECK(slept.tag("kv_cache", "in_files_bytes") == "0");
    CHECK(slept.json("/processes/0/report/host_bytes") != "0");
    CHECK(place.files().size() == 1);
    CHECK_THAT(host.command("gpu-ps").out, mentions("host 4.00 MiB, file 1"));

    REQUIRE(host.command("gpu-wake", {"--tags", "kv_cache"}).status == 0);
    CHECK(host.tell("check 1") == "intact");
    CHECK(place.files().size() == 1);
    host.wake_whole();
    CHECK(place.files().empty());

    const auto named = host.command("gpu-sleep", {"--dir", place.path(), "--json"});
    CHECK(named.tag("kv_cache", "in_files_bytes") == named.tag("kv_cache", "kept_bytes"));
    CHECK_THAT(host.command("gpu-sleep", place.store()).out, mentions("as asked"));
    CHECK_THAT(ended(host.command("gpu-sleep", {"--dir", place.path() / "other"})).out,
               mentions("files stay in " + place.path().string() + ":") && !mentions("as asked"));
    REQUIRE(host.command("gpu-wake").status == 0);

    REQUIRE(host.command("gpu-sleep", place.store({"--store", "kv_cache=host", "--json"}))
                .tag("kv_cache", "in_files_bytes") == "0");
    CHECK(place.files().size() == 1);
    host.wake_whole();
}

TEST_CASE("Store: a dry run says what room files need, and whether it is there", "[store]") {
    const Place place;
    TwoTagHost host;
    const auto rehearse = [&](Arguments arguments, int status = 0) {
        const auto said =
            ended(host.command("gpu-sleep", with(std::move(arguments), {"--dry-run", "--json"})), status);
        return said.json("/processes/0/report/notes");
    };
    CHECK_THAT(rehearse(place.store()),
               mentions("needs at most 1") && mentions("MiB in files in " + place.path().string()) &&
                   mentions("are free there") && !mentions("host memory") && !mentions("fail"));
    CHECK_FALSE(fs::exists(place.path())); // nothing was made
    CHECK_THAT(rehearse({"--store", "kv_cache=file", "--dir", place.path()}),
               mentions("needs at most 4.0") && mentions("of host memory"));
    CHECK_THAT(rehearse({"--spill", place.path()}),
               mentions("of host memory") && mentions("without enough host memory, needs at most 1"));
    CHECK_THAT(rehearse({"--store", "file", "--dir", place.path() / "deeper"}, 1), mentions("it would fail"));
    fs::create_directory(place.path());
    REQUIRE(::chmod(place.path().c_str(), 0755) == 0);
    CHECK_THAT(rehearse(place.store(), 5), mentions("name a new directory") && mentions("it would fail"));
    CHECK(host.command("gpu-sleep", place.store()).status == 5);
    CHECK(place.files().empty());
    host.check_unharmed();
}

TEST_CASE("Store: files are private, and there as long as they are needed", "[store]") {
    const Place place;
    TwoTagHost host;
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    CHECK(mode_of(place.path()) == 0700);
    const auto files = place.files();
    REQUIRE(files.size() == 2);
    for (const auto& file : files) {
        CHECK(mode_of(file) == 0600);
        CHECK_THAT(file.filename().string(),
                   mentions(fmt::format("gpu-sleep-{}-", host.pid())) && mentions(".snapshot"));
    }
    SECTION("until the process frees the last of what they hold") {
        const auto held = [&] { return count_open(std::to_string(host.pid()), place); };
        const auto before = held();
        host.tell("free 1");
        CHECK(place.files().size() == 1);
        CHECK(becomes_true([&] { return held() < before; }, Milliseconds(1000))); // and its room on the disk
        host.tell("free 0");
        CHECK(place.files().size() == 1);
        host.wake_whole();
        CHECK(place.files().empty());
    }
    SECTION("until the process ends") {
        host.process().send("exit 3");
        CHECK(host.wait() == 3);
        CHECK(place.files().empty());
    }
}

TEST_CASE("Store: a child that is forked while its parent sleeps holds none of its files", "[store]") {
    const Place place;
    TwoTagHost host;
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    CHECK(count_open(std::to_string(host.pid()), place) > 0);
    const auto forked = host.tell("fork");
    CHECK(count_open(forked.substr(0, forked.find(' ')), place) == 0);
    CHECK(place.files().size() == 2);
    host.wake_whole();
    CHECK(place.files().empty());
}

TEST_CASE("Store: --keep-files leaves the files, and nobody removes them", "[store]") {
    const Place place;
    {
        TwoTagHost host;
        REQUIRE(host.command("gpu-sleep", place.store({"--keep-files"})).status == 0);
        SECTION("after waking") {
            host.wake_whole();
        }
        SECTION("after the end") {
            host.process().send("exit 0");
            CHECK(host.wait() == 0);
        }
        SECTION("after it was killed") {
            host.kill();
        }
    }
    LoadedHost other;
    REQUIRE(other.command("gpu-sleep", place.store()).status == 0);
    CHECK(place.files().size() == 3);
    REQUIRE(other.command("gpu-wake").status == 0);
    const auto files = place.files();
    REQUIRE(files.size() == 2);
    for (const auto& file : files) {
        CHECK(file.extension() == ".kept");
        CHECK(mode_of(file) == 0600);
    }
}

TEST_CASE("Store: --keep-files fails where a file of a sleeper cannot be kept", "[store]") {
    const Place place;
    LoadedHost host;
    REQUIRE(host.command("gpu-sleep", place.store()).status == 0);
    const auto file = place.files().front();
    const auto away = file.parent_path() / "away";
    fs::rename(file, away);
    const auto failed = ended(host.command("gpu-sleep", place.store({"--keep-files", "--quiet"})), 7);
    CHECK_THAT(failed.err, mentions("it is asleep") && mentions("was removed or replaced"));
    CHECK(host.state() == "asleep");
    fs::rename(away, file);
    CHECK(host.command("gpu-sleep", place.store({"--keep-files"})).status == 0);
    host.wake_whole();
    CHECK(place.files().size() == 1);
}

TEST_CASE("Store: files take over when a limit on address space makes host memory short", "[quick][store]") {
    if (is_sanitized()) return skip("a sanitizer cannot work within a limit");
    const Place place;
    // One arena, and small stacks: where there are many processors, these take up what the limit below
    // leaves.
    Host host(Launch{{"sh", "-c", "ulimit -s 512; exec \"$0\"", command_file("integration_host")},
                     {"GPU_SLEEP_SIM_POISON=0", "MALLOC_ARENA_MAX=1"}});
    host.tell("alloc weights 335544320 0");
    std::size_t pages = 0;
    std::ifstream(fmt::format("/proc/{}/statm", host.pid())) >> pages;
    const auto taken = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    rlimit before{};
    const rlimit limit{taken + (std::size_t{256} << 20), RLIM_INFINITY};
    REQUIRE(::prlimit(host.pid(), RLIMIT_AS, &limit, &before) == 0);
    CHECK_THAT(host.command("gpu-sleep", {"--dry-run"}).out,
               mentions("ulimit -v") && mentions("it would fail"));
    CHECK(host.command("gpu-sleep").status == 8);
    const auto slept = ended(host.command("gpu-sleep", {"--spill", place.path(), "--json"}));
    CHECK(slept.json("/processes/0/report/file_bytes") != "0");
    CHECK(slept.tag("weights", "in_files_bytes") != "0");
    CHECK_THAT(slept.json("/processes/0/report/notes/0"), mentions("host memory is short"));
    CHECK(place.files().size() == 1);
    host.wake();
    REQUIRE(::prlimit(host.pid(), RLIMIT_AS, &before, nullptr) == 0);
    CHECK(host.tell("check_all") == "intact");
    CHECK(place.files().empty());
}
