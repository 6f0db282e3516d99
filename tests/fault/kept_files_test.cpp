// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Naming the files that are to stay, when that fails midway: nothing that has its name is lost, and the
// outcome is whole.

#include "support/engine_fixture.hpp"
#include "support/failing_call.hpp"
#include "support/files_of.hpp"
#include "support/scratch.hpp"
#include "support/skip.hpp"

#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

using namespace gpu_sleep;
using namespace gpu_sleep::test;
using model::State;

namespace {

namespace fs = std::filesystem;

const std::multiset<std::string> k_all_kept{".kept", ".kept", ".kept"};

/// Three tags on two devices, each to be in a file of its own.
struct ThreeFiles {
    ThreeFiles() {
        fixture.add(0, "weights", 5 * k_mib);
        fixture.add(0, "kv_cache", 3 * k_mib);
        fixture.add(1, "weights", 2 * k_mib);
        request.store = model::Store::file;
        request.directory = scratch.file("sleep");
    }

    [[nodiscard]] std::vector<fs::path> files() const { return files_in(request.directory); }
    [[nodiscard]] std::multiset<std::string> endings() const { return endings_in(request.directory); }

    /// Asks that the files of the sleeper stay. Returns the notes of the report.
    std::vector<std::string> ask_to_keep() {
        request.keep_files = true;
        model::Report report;
        fixture.engine().adjust_asleep(request, report);
        return report.notes;
    }

    Scratch scratch;
    EngineFixture fixture;
    model::SleepRequest request = level(1);
};

/// A file that is not in its place while this exists, so that it cannot be renamed there.
class Away {
public:
    Away(const ThreeFiles& all, const fs::path& file) : file_(file), away_(all.scratch.file("away")) {
        fs::rename(file_, away_);
    }
    Away(const Away&) = delete;
    Away& operator=(const Away&) = delete;
    ~Away() {
        std::error_code ignored;
        fs::rename(away_, file_, ignored);
    }

private:
    fs::path file_;
    fs::path away_;
};

} // namespace

TEST_CASE("Kept files: a sleep that cannot name one of them leaves none, and can be tried again",
          "[transaction]") {
    const auto missing = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{2});
    ThreeFiles three;
    three.request.keep_files = true;
    three.fixture.control().progress = [&](const model::Progress& progress) {
        if (progress.phase == model::Progress::Phase::release)
            fs::rename(three.files().at(missing), three.scratch.file("away"));
        return true;
    };
    REQUIRE_FALSE(three.fixture.sleep(three.request));
    CHECK(three.fixture.state() == State::awake);
    CHECK(three.fixture.all_intact());
    CHECK(three.files().empty());
    CHECK(three.fixture.file_bytes() == 0);

    three.fixture.control().progress = [](const model::Progress&) { return true; };
    REQUIRE(three.fixture.sleep(three.request));
    CHECK(three.endings() == k_all_kept);
    REQUIRE(three.fixture.wake());
    CHECK(three.fixture.all_intact());
    CHECK(three.endings() == k_all_kept);
}

TEST_CASE("Kept files: when one of a sleeper's cannot be named, those that are named stay, and none is lost",
          "[transaction]") {
    ThreeFiles three;
    REQUIRE(three.fixture.sleep(three.request));
    REQUIRE(three.files().size() == 3);
    // They are named in an order of their own. If it was the first that was missing, none is named; then it
    // goes first, and another is missing.
    for (const auto& file : three.files()) {
        const Away missing(three, file);
        const auto notes = three.ask_to_keep();
        REQUIRE(notes.size() == 1);
        CHECK(notes.front().find("may go when the process wakes") != std::string::npos);
        CHECK(three.fixture.state() == State::asleep);
        if (three.endings().count(".kept") > 0) break;
    }
    const auto named = three.endings().count(".kept");
    REQUIRE(named > 0);
    REQUIRE(named < 3);
    std::size_t left = named;
    SECTION("until that is asked again") {
        CHECK(three.ask_to_keep().empty());
        CHECK(three.endings() == k_all_kept);
        left = 3;
    }
    SECTION("and the others go with the wake") {}
    REQUIRE(three.fixture.wake());
    CHECK(three.fixture.all_intact());
    CHECK(three.files().size() == left);
    CHECK(three.endings().count(".kept") == left);
}

TEST_CASE("Kept files: names that could not be flushed are reported, and all is whole", "[transaction]") {
    ThreeFiles three;
    REQUIRE(three.fixture.sleep(three.request));
    std::vector<std::string> notes;
    if (!with_failing_calls({{SYS_fsync, EIO}}, [&] { notes = three.ask_to_keep(); }))
        return skip("the system does not let calls fail");
    REQUIRE(notes.size() == 1);
    CHECK(notes.front().find("fsync") != std::string::npos);
    CHECK(three.fixture.state() == State::asleep);
    CHECK(three.endings() == k_all_kept);
    // They are flushed when that is asked again, and not once more after that.
    REQUIRE(with_failing_calls({{SYS_fsync, EIO}}, [&] { notes = three.ask_to_keep(); }));
    CHECK(notes.size() == 1);
    CHECK(three.ask_to_keep().empty());
    REQUIRE(with_failing_calls({{SYS_fsync, EIO}}, [&] { notes = three.ask_to_keep(); }));
    CHECK(notes.empty());
    REQUIRE(three.fixture.wake());
    CHECK(three.fixture.all_intact());
    CHECK(three.endings() == k_all_kept);
}
