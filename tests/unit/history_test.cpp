// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The history: its lines, what they add up to, files that others have written, and root's own.

#include "control/history.hpp"

#include "protocol/messages.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep::test;
using model::Transition;

namespace {

constexpr double k_hour = 3'600;
constexpr double k_day = 24 * k_hour;

model::Event slept(double time, Bytes bytes, std::uint32_t pid = 7) {
    model::Event event;
    event.time = time;
    event.uid = ::geteuid();
    event.pid = pid;
    event.start_time = 99;
    event.name = "a";
    event.notebook = "work/a b.ipynb";
    event.state = model::State::asleep;
    event.place = "host";
    event.bytes = bytes;
    event.asked_by = "room for b";
    event.asker_uid = event.uid;
    return event;
}

model::Event woken(double time, Bytes bytes, double asleep, model::State state = model::State::awake) {
    auto event = slept(time, bytes);
    event.transition = Transition::wake;
    event.asleep_seconds = asleep;
    event.state = state;
    return event;
}

std::string without_end(std::string line) {
    line.pop_back();
    return line;
}

void write(const std::filesystem::path& path, const std::string& text, mode_t mode = 0600) {
    std::ofstream(path) << text;
    REQUIRE(::chmod(path.c_str(), mode) == 0);
}

} // namespace

TEST_CASE("History: a line says all of an event", "[history]") {
    auto all = woken(1'764'370'800.125, k_gib, 5, model::State::partial);
    all.level = model::Level::drop;
    all.deep = true;
    all.job = "471";
    all.uid = 4'711;
    all.asker_uid = 5;
    const auto line = protocol::line_of(all);
    CHECK(line ==
          "1\t1764370800.125\t4711\t7\t99\ta\twork/a b.ipynb\t471\t1\t2\t2\t1\thost\t1073741824\t5.000"
          "\troom for b\t5\n");
    CHECK(protocol::parse_event(without_end(line)) == all);
    all.name = "two\nlines\tand a tab\x1b" + std::string(1'000, 'x');
    const auto parsed = need(protocol::parse_event(without_end(protocol::line_of(all))));
    CHECK(parsed.name.starts_with("two?lines?and a tab?xxx"));
    CHECK(parsed.name.size() == 120);
}

TEST_CASE("History: a line of any other form is none", "[history]") {
    REQUIRE(protocol::parse_event("1\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0"));
    const std::string bad =
        GENERATE("", "1", "\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t\t",
                 "2\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0",          // version
                 "1\t-5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0",         // time
                 "1\tnan\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0",        // time
                 "1\t1e300\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0",      // time
                 "1\t5\t4294967296\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0", // uid
                 "1\t5\t0\t7x\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0",         // pid
                 "1\t5\t0\t7\t99\ta\t\t\t3\t1\t1\t0\thost\t10\t0\tby\t0",          // operation
                 "1\t5\t0\t7\t99\ta\t\t\t0\t5\t1\t0\thost\t10\t0\tby\t0",          // state
                 "1\t5\t0\t7\t99\ta\t\t\t0\t1\t3\t0\thost\t10\t0\tby\t0",          // level
                 "1\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t2\thost\t10\t0\tby\t0",          // deep
                 "1\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t18446744073709551615\t0\tby\t0",
                 "1\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby",           // a field less
                 "1\t5\t0\t7\t99\ta\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0\t",      // one more
                 "1\t5\t0\t7\t99\t\x1b[2J\t\t\t0\t1\t1\t0\thost\t10\t0\tby\t0"); // a terminal's
    CHECK_FALSE(protocol::parse_event(bad));
}

TEST_CASE("History: GiB hours are what slept, for as long", "[history]") {
    const auto none = [](const model::Event&) { return false; };
    const auto all = [](const model::Event&) { return true; };
    const auto hours = [&](const std::vector<model::Event>& events, double since, const auto& is_there) {
        return model::gib_hours(events, since, 10 * k_hour, is_there);
    };
    const auto sleep = slept(k_hour, 2 * k_gib);
    const auto wake = woken(4 * k_hour, 2 * k_gib, 3 * k_hour);
    CHECK(hours({}, 0, all) == 0);
    CHECK(hours({sleep, wake}, 0, all) == 6);
    CHECK(hours({wake}, 0, all) == 6);                 // the sleep is forgotten
    CHECK(hours({sleep, wake}, 3 * k_hour, all) == 2); // since then
    CHECK(hours({sleep, wake}, 5 * k_hour, all) == 0);
    CHECK(hours({sleep}, 0, all) == 18); // asleep still
    CHECK(hours({sleep}, 0, none) == 0); // it has ended, nobody knows when
    const auto part = woken(2 * k_hour, k_gib, k_hour, model::State::partial); // and back in two parts
    CHECK(hours({sleep, part, woken(4 * k_hour, k_gib, 3 * k_hour)}, 0, all) == 4);
    CHECK(hours({sleep, slept(k_hour, k_gib, 8), wake}, 0, all) == 6 + 9); // two processes
    const auto later = slept(3 * k_hour, 4 * k_gib);                       // and all of it wakes at once
    CHECK(hours({sleep, later, woken(4 * k_hour, 6 * k_gib, 3 * k_hour)}, 0, all) == 6 + 4);
    CHECK(hours({sleep, part}, 0, all) == 1 + 9); // the rest sleeps on
    auto move = later;                            // of its contents alone
    move.transition = Transition::move;
    CHECK(hours({sleep, move, wake}, 0, all) == 6);
    CHECK(hours({sleep, move}, 0, all) == 18);
    CHECK(hours({move}, 0, all) == 0);
    CHECK(hours({sleep, woken(4 * k_hour, k_gib, 3 * k_hour)}, 0, all) ==
          6); // the driver's part is not in a wake
}

TEST_CASE("History: --since is a time of the day, the last one", "[history]") {
    const auto noon = *control::parse_since("12:00", 1'764'370'800);
    CHECK(noon <= 1'764'370'800);
    CHECK(noon > 1'764'370'800 - k_day);
    CHECK(*control::parse_since("12:00", noon) == noon);
    CHECK(*control::parse_since("11:59", noon) == noon - 60);
    CHECK(*control::parse_since("12:01", noon) == noon + 60 - k_day);
    for (const auto* const text : {"", "25:00", "12:00x", "noon", "-1h"})
        CHECK_FALSE(control::parse_since(text, noon));
}

TEST_CASE("History: files that others have written are read with care", "[history]") {
    const Scratch tmp;
    const Scratch other;
    const auto place = tmp.path() / ("gpu-sleep-" + std::to_string(::geteuid()));
    std::filesystem::create_directory(place);
    std::filesystem::permissions(place, std::filesystem::perms(0700));
    const control::HistoryPlaces places{tmp.path(), other.path() / "kept"};
    const auto read = [&] { return control::read_history({}, places); };
    const auto file = place / "history";
    const auto good = slept(5, k_gib);
    const auto line = protocol::line_of(good);
    CHECK(read().empty());

    auto claimed = good;
    claimed.uid = 4'711; // the kernel knows better
    claimed.asker_uid = 4'711;
    write(file, "nonsense\n" + std::string(10'000, 'x') + '\n' + protocol::line_of(claimed) + line + line);
    write(place / "history.old", protocol::line_of(slept(4, k_gib)));
    CHECK(read() == std::vector{slept(4, k_gib), good});
    std::filesystem::remove(place / "history.old");

    write(file, line, 0622);
    CHECK(read().empty()); // others may have written it
    write(file, line + std::string(3 * k_mib, '\n'), 0600);
    CHECK(read().empty()); // too long
    std::filesystem::remove(file);
    write(other.path() / "file", line);
    std::filesystem::create_symlink(other.path() / "file", file);
    CHECK(read().empty());
    std::filesystem::remove(file);
    std::filesystem::create_hard_link(other.path() / "file", file);
    CHECK(read().empty());
    std::filesystem::remove(file);
    REQUIRE(::mkfifo(file.c_str(), 0600) == 0); // nobody waits for a writer
    CHECK(read().empty());
    std::filesystem::remove(file);
    write(file, line);
    CHECK(read() == std::vector{good});
    if (::geteuid() != 0) return;
    REQUIRE(::chown(file.c_str(), 61'234, 61'234) == 0); // not the directory's owner
    CHECK(read().empty());
}

TEST_CASE("History: root keeps lines of all users, for some days, and so many of each", "[history]") {
    const Scratch scratch;
    std::filesystem::create_directory(scratch.path() / "tmp");
    const control::HistoryPlaces places{scratch.path() / "tmp", scratch.path() / "kept"};
    const auto now = 100 * k_day;
    std::vector<model::Event> events{slept(now - 31 * k_day, k_gib), slept(now - k_day, k_gib)};
    events.push_back(slept(now - 2, k_gib));
    events.back().uid = 4'711;
    events.push_back(slept(now + 1, k_gib)); // not yet
    REQUIRE(control::keep_history(events, now, places));
    struct stat status {};
    REQUIRE(::stat((places.kept / "history").c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    if (::geteuid() == 0) CHECK(control::read_history({}, places) == std::vector{events[1], events[2]});

    events.clear();
    for (int i = 0; i < 20'005; ++i) events.push_back(slept(now - 30'000 + i, 1));
    REQUIRE(control::keep_history(events, now, places));
    if (::geteuid() != 0) return;
    const auto kept = control::read_history({}, places);
    REQUIRE(kept.size() == 20'000);
    CHECK(kept.front() == events[5]);
}
