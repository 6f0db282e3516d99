// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Moving what sleeps from one store to another: every driver call and every file call fails in turn, the
// asker withdraws at every step, contents are damaged. Afterwards all sleeps as before or in its new store,
// every byte is there, and no copy is left over.

#include "fault/moving.hpp"
#include "support/failing_call.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;
using model::Store;

namespace fs = std::filesystem;

TEST_CASE("Move: contents go to files and back without waking, and what they took goes back", "[move]") {
    Sleeper sleeper(GENERATE(Store::host, Store::file));
    const auto bytes = sleeper.bytes_in(sleeper.home);
    model::Report report;
    sim_reset_counts();
    REQUIRE(sleeper.move(&report));
    CHECK(report.changed);
    REQUIRE(report.devices.size() == 2);
    CHECK(report.devices[0].relocated + report.devices[1].relocated == bytes);
    CHECK(report.devices[0].released == 0);
    CHECK(sleeper.is_in(sleeper.other()));
    for (const char* const call : {"cuMemCreate", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuLaunchKernel"})
        CHECK(sim_calls(call) == 0);
    CHECK((sleeper.registered() == 0) == (sleeper.other() == Store::file));

    report = {};
    REQUIRE(sleeper.move(&report)); // it is there
    CHECK_FALSE(report.changed);
    SECTION("and it wakes from there") {}
    SECTION("and it wakes from where it was") {
        REQUIRE(sleeper.move_back());
        CHECK(sleeper.is_in(sleeper.home));
    }
    sleeper.check_whole();
}

TEST_CASE("Move: nothing moves that is not asked to, and each tag goes where it is told", "[move]") {
    Sleeper sleeper;
    auto request = level(1);
    REQUIRE(sleeper.fixture.sleep(request)); // no store is named
    request.stores = {{"kv_cache", Store::file}};
    request.directory = sleeper.scratch.file("sleep");
    const auto report = sleeper.fixture.slept(dry(request));
    CHECK_FALSE(report.changed);
    CHECK(report.devices.front().relocated == 456'789);
    REQUIRE(report.notes.size() == 1);
    CHECK_THAT(report.notes[0], mentions("in files in"));
    CHECK(sleeper.is_in(Store::host));

    REQUIRE(sleeper.fixture.sleep(request));
    CHECK(sleeper.bytes_in(Store::file) == 456'789);
    CHECK(sleeper.files() == 1);
    auto weights = sleeper.request_to(Store::file);
    weights.tags = {"weights"};
    REQUIRE(sleeper.fixture.sleep(weights));
    CHECK(sleeper.is_in(Store::file));
    sleeper.check_whole();
}

TEST_CASE("Move: while a part is awake and falls asleep, the rest moves with it, or nothing does", "[move]") {
    Sleeper sleeper;
    auto& fixture = sleeper.fixture;
    REQUIRE(fixture.wake(tags({"kv_cache"})));
    fixture.fill(2, {0, 1}, 77); // and all of it anew
    const bool fails = GENERATE(false, true);
    if (fails) sim_fail("cuMemcpyDtoHAsync", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    const auto moved = sleeper.move();
    sim_clear();
    CHECK(moved.has_value() != fails);
    CHECK(fixture.state() == (fails ? State::partial : State::asleep));
    CHECK((sleeper.bytes_in(Store::file) == 0) == fails);
    CHECK((sleeper.bytes_in(Store::host) == 0) != fails);
    CHECK(sleeper.files() == (fails ? 0U : 3U));
    fixture.wake_whole();
    CHECK(sleeper.files() == 0);
}

TEST_CASE("Move: what is damaged stays where it is, with its name, and so does all else", "[move]") {
    SECTION("in host memory") {
        Sleeper sleeper;
        sleeper.fixture.flip_kept_bit(3, k_mib + 99, 5);
        const auto moved = error_of(sleeper.move());
        CHECK(moved.code == ErrorCode::damaged);
        CHECK_THAT(moved.message, mentions("weights"));
        CHECK(sleeper.is_in(Store::host));
        sleeper.fixture.flip_kept_bit(3, k_mib + 99, 5);
        REQUIRE(sleeper.move());
        sleeper.check_whole();
    }
    SECTION("in files") {
        Sleeper sleeper(Store::file);
        turn_a_bit_in_each(sleeper.scratch.file("sleep"));
        CHECK(error_of(sleeper.move()).code == ErrorCode::damaged);
        CHECK(sleeper.is_in(Store::file));
        CHECK(sleeper.registered() == 0);
        SECTION("until it is put right") {}
        SECTION("also once a wake has found it damaged") {
            REQUIRE_FALSE(sleeper.fixture.wake());
            CHECK(sleeper.fixture.state() == State::damaged);
            model::Report report;
            REQUIRE(sleeper.move(&report));
            CHECK_FALSE(report.changed);
        }
        turn_a_bit_in_each(sleeper.scratch.file("sleep"));
        sleeper.check_whole();
    }
}

TEST_CASE("Move: files that are to be kept stay when their contents move to host memory", "[move]") {
    Sleeper sleeper;
    auto request = sleeper.request_to(Store::file);
    request.keep_files = true;
    REQUIRE(sleeper.fixture.sleep(request));
    model::Report report;
    REQUIRE(sleeper.fixture.engine().adjust_asleep(request, report));
    CHECK(report.notes.empty());
    REQUIRE(sleeper.move_back());
    CHECK(sleeper.files() == 3);
    for (const auto& file : files_in(sleeper.scratch.file("sleep"))) {
        CHECK(file.extension() == ".kept");
        fs::remove(file);
    }
    CHECK(sleeper.is_in(Store::host));
    sleeper.check_whole();
}

TEST_CASE("Move: a move survives the failure of every driver call", "[move][sweep]") {
    Sleeper sleeper(GENERATE(Store::host, Store::file));
    const auto before = sleeper.registered();
    for_each_call([&](int call) {
        std::string_view failed;
        const auto moved = with_driver_failure(call, failed, [&] { return sleeper.move(); });
        CHECK(moved); // host memory that cannot be pinned is used as it is
        CHECK(sleeper.is_in(sleeper.other()));
        REQUIRE(sleeper.move_back());
        CHECK(sleeper.is_in(sleeper.home));
        CHECK(sleeper.registered() <= before + 1); // what the driver does not take back
        return !failed.empty();
    });
    sleeper.check_whole();
}

TEST_CASE("Move: a move survives a withdrawal, and the end of its time, at every step", "[move][sweep]") {
    Sleeper sleeper(GENERATE(Store::host, Store::file));
    const bool by_deadline = GENERATE(false, true);
    int failures = 0;
    for_each_call([&](int step) {
        auto& control = sleeper.fixture.control();
        int steps = 0;
        bool is_past_return = false;
        CallWords words;
        control.progress = [&](const model::Progress& progress) {
            if (words.are(progress) || ++steps != step) return true;
            is_past_return = by_deadline && progress.phase == model::Progress::Phase::release;
            if (by_deadline) control.deadline = Clock::now();
            return by_deadline;
        };
        const auto moved = sleeper.move();
        control = {};
        const bool reached = steps >= step;
        CHECK(moved.has_value() == (!reached || is_past_return));
        if (!moved) {
            ++failures;
            CHECK(moved.error().code == (by_deadline ? ErrorCode::timed_out : ErrorCode::cancelled));
            CHECK(sleeper.is_in(sleeper.home));
            REQUIRE(sleeper.move());
        }
        CHECK(sleeper.is_in(sleeper.other()));
        REQUIRE(sleeper.move_back());
        return reached;
    });
    CHECK(failures > 4 / sweep_stride());
    sleeper.check_whole();
}

TEST_CASE("Move: a move survives the failure of each kind of system call", "[move]") {
    if (is_sanitized()) return skip("a sanitizer makes such calls, too");
    struct Failing {
        const char* name;
        Store from;
        FailingCall call;
        ErrorCode code;
    };
    static constexpr std::uint32_t k_populate = 23; // MADV_POPULATE_WRITE
    const auto failing = GENERATE(
        Failing{"no file can be made", Store::host, {SYS_openat, EACCES}, ErrorCode::not_permitted},
        Failing{"no file can be locked", Store::host, {SYS_flock, EIO}, ErrorCode::io_failed},
        Failing{"the disk is full", Store::host, {SYS_ftruncate, ENOSPC}, ErrorCode::out_of_disk},
        Failing{"nothing can be flushed", Store::host, {SYS_fsync, EIO}, ErrorCode::io_failed},
        Failing{"nothing can be renamed", Store::host, {SYS_renameat2, ENOSPC}, ErrorCode::out_of_disk},
        Failing{"kept contents are out of reach",
                Store::host,
                {SYS_mprotect, ENOMEM},
                ErrorCode::out_of_host_memory},
        Failing{"no address space is left", Store::host, {SYS_mmap, ENOMEM}, ErrorCode::out_of_host_memory},
        Failing{"no address space is left", Store::file, {SYS_mmap, ENOMEM}, ErrorCode::out_of_host_memory},
        Failing{
            "no page is left", Store::file, {SYS_madvise, ENOMEM, k_populate}, ErrorCode::out_of_host_memory},
        Failing{"no thread can be started", Store::host, {SYS_clone3, EAGAIN}, ErrorCode::out_of_threads},
        Failing{"no thread can be started", Store::file, {SYS_clone3, EAGAIN}, ErrorCode::out_of_threads});
    INFO(failing.name);
    Sleeper sleeper(failing.from);
    Result<void> moved;
    if (!with_failing_calls({failing.call}, [&] { moved = sleeper.move(); })) return;
    REQUIRE_FALSE(moved);
    INFO(moved.error().message);
    CHECK(moved.error().code == failing.code);
    CHECK(sleeper.is_in(sleeper.home));
    REQUIRE(sleeper.move());
    CHECK(sleeper.is_in(sleeper.other()));
    sleeper.check_whole();
}
