// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The files of transactions: when they have which names, also when naming fails midway, and what is left of
// them.

#include "support/descriptors.hpp"
#include "support/engine_fixture.hpp"
#include "support/failing_call.hpp"
#include "support/files_of.hpp"

using namespace gpu_sleep::test;
using model::State;

namespace {

namespace fs = std::filesystem;

const std::multiset<std::string> k_all_kept{".kept", ".kept", ".kept"};

/// Three tags on two devices, each to be in a file of its own, which stays if asked.
struct ThreeFiles {
    explicit ThreeFiles(bool keeps = false) {
        fixture.add(0, "weights", 5 * k_mib);
        fixture.add(0, "kv_cache", 3 * k_mib);
        fixture.add(1, "weights", 2 * k_mib);
        request.keep_files = keeps;
    }

    [[nodiscard]] std::vector<fs::path> files() const { return files_in(request.directory); }
    [[nodiscard]] std::multiset<std::string> endings() const { return endings_in(request.directory); }

    /// Asks that the files of the sleeper stay. Returns why they may not.
    std::string ask_to_keep() {
        request.keep_files = true;
        model::Report report;
        const auto kept = fixture.engine().adjust_asleep(request, report);
        return kept ? "" : kept.error().message;
    }

    Scratch scratch;
    EngineFixture fixture;
    model::SleepRequest request = in_files(scratch);
};

/// A file that is not in its place while this exists, so that it cannot be renamed there.
class Away : NotCopied {
public:
    Away(const ThreeFiles& all, const fs::path& file) : file_(file), away_(all.scratch.file("away")) {
        fs::rename(file_, away_);
    }
    ~Away() {
        std::error_code ignored;
        fs::rename(away_, file_, ignored);
    }

private:
    fs::path file_, away_;
};

} // namespace

TEST_CASE("Files: those that are to stay have such a name once the whole sleep is safe", "[transaction]") {
    ThreeFiles kept(true);
    std::set<std::string> seen; // until the point of no return, where a killed process leaves them
    bool are_all_sealed = false;
    CallWords words;
    kept.fixture.control().progress = [&](const model::Progress& progress) {
        if (words.are(progress)) return true;
        const auto endings = kept.endings();
        seen.insert(endings.begin(), endings.end());
        if (progress.phase == model::Progress::Phase::release)
            are_all_sealed = endings.count(".snapshot") == 3;
        return true;
    };
    REQUIRE(kept.fixture.sleep(kept.request));
    CHECK(are_all_sealed);
    CHECK(seen == std::set<std::string>{".partial", ".snapshot"});
    CHECK(kept.endings() == k_all_kept);
    kept.fixture.wake_whole();
    CHECK(kept.endings() == k_all_kept);
}

TEST_CASE("Files: none of those that are to stay does when the sleep fails at its end", "[transaction]") {
    ThreeFiles kept(true);
    SECTION("for it was withdrawn") {
        kept.fixture.control().progress = [](const model::Progress& progress) {
            return progress.phase != model::Progress::Phase::release;
        };
    }
    SECTION("for the driver fails") {
        sim_fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    }
    REQUIRE_FALSE(kept.fixture.sleep(kept.request));
    sim_clear();
    CHECK(kept.fixture.state() == State::awake);
    CHECK(kept.fixture.all_intact());
    CHECK(kept.endings().empty());
}

TEST_CASE("Files: a dry run promises no less than a file takes at most", "[transaction]") {
    // Spans such that the header needs one page more for its owner than without.
    auto described = need(store::describe_own());
    store::SnapshotDescription without_owner;
    described.id = without_owner.id = std::string(32, '0');
    described.created = without_owner.created = store::utc_now();
    std::string tag;
    std::vector<Span> spans;
    const auto is_at_a_border = [&](std::size_t letters, std::size_t count, std::size_t longer) {
        tag.assign(letters, 't');
        spans.clear();
        described.extents.clear();
        for (std::size_t i = 0; i < count; ++i) {
            spans.push_back({i * 8192, i < longer ? 10U : 1U});
            described.extents.push_back({0x7f0000000000 + spans.back().offset, spans.back().bytes, tag, 0});
        }
        without_owner.extents = described.extents;
        return store::header_bytes_of(described) != store::header_bytes_of(without_owner);
    };
    const auto find_border = [&] {
        for (std::size_t count = 10; count < 20; ++count)
            for (std::size_t letters = 1; letters < 20; ++letters)
                for (std::size_t longer = 0; longer < count; ++longer)
                    if (is_at_a_border(letters, count, longer)) return true;
        return false;
    };
    REQUIRE(find_border());

    const Scratch scratch;
    EngineFixture fixture;
    const auto index = fixture.add(0, tag, 3 * k_mib);
    auto* const backing = fixture.ledger().find(fixture.allocations()[index].address);
    for (const auto span : spans) ledger::Ledger::preserve(*backing, span);
    auto request = in_files(scratch);
    request.level = model::Level::drop;
    request.spill = true;
    const auto notes = fixture.slept(dry(request)).notes;
    REQUIRE(fixture.sleep(request));
    REQUIRE(notes.size() == 1); // nothing would go to host memory, and so nothing could spill
    CHECK(notes[0].find("needs at most " + format_bytes(fixture.file_bytes()) + " ") == 0);
    REQUIRE(fixture.wake());
}

TEST_CASE("Files: a bit that flips on the way in is caught, and its file is read again", "[transaction]") {
    EngineFixture fixture;
    const Scratch scratch;
    for (int i = 0; i < 3; ++i) fixture.add(0, "weights", 10 * k_mib); // of three chunks each, in one file
    const auto request = in_files(scratch);
    for (std::uint64_t copy = 1; copy <= 9; ++copy) {
        REQUIRE(fixture.sleep(request));
        sim_reset_counts();
        sim_corrupt_copy("cuMemcpyHtoDAsync", copy);
        fixture.wake_whole();
        CHECK(sim_fault_counts().corrupted_copies == 1);
        sim_clear();
    }
}

TEST_CASE("Files: preserved parts outlast a deeper sleep, and a damaged one once mended", "[transaction]") {
    const auto first = GENERATE(1, 2);
    EngineFixture fixture;
    const Scratch scratch;
    const auto weights = fixture.add(0, "weights", 5 * k_mib);
    ledger::Ledger::preserve(*fixture.ledger().find(fixture.allocations()[weights].address),
                             {k_mib, 2 * k_mib});
    auto request = in_files(scratch);
    request.level = static_cast<model::Level>(first);
    REQUIRE(fixture.sleep(request));
    turn_a_bit_in_each(request.directory);
    REQUIRE_FALSE(fixture.wake());
    CHECK(fixture.state() == State::damaged);
    const auto row = fixture.ledger().report().front();
    CHECK(row.damaged == (first == 1 ? 6 * k_mib : 2 * k_mib));
    CHECK(row.damaged + row.dropped == 6 * k_mib);

    request.level = model::Level::drop;
    CHECK_FALSE(fixture.slept(request).changed);
    turn_a_bit_in_each(request.directory);
    REQUIRE(fixture.wake());
    const auto bytes = fixture.read(weights);
    CHECK(std::equal(bytes.begin() + k_mib, bytes.begin() + 3 * k_mib,
                     fixture.allocations()[weights].contents.begin() + k_mib));
    CHECK(fs::is_empty(request.directory));
}

TEST_CASE("Kept files: a sleep that cannot name one leaves none, and can be tried again", "[transaction]") {
    const auto missing = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{2});
    ThreeFiles three(true);
    CallWords words;
    fs::path file;
    three.fixture.control().progress = [&](const model::Progress& progress) {
        if (!words.are(progress) && progress.phase == model::Progress::Phase::release)
            fs::rename(file = three.files().at(missing), three.scratch.file("away"));
        return true;
    };
    if (GENERATE(false, true)) { // others that share memory with it have gone on
        three.fixture.control().wait_for_others = [] { return Result<bool>(true); };
        const auto notes = three.fixture.slept(three.request).notes;
        REQUIRE(notes.size() == 1);
        CHECK(notes.front().find("may be removed when the process wakes") != std::string::npos);
        CHECK(three.fixture.state() == State::asleep);
        fs::rename(three.scratch.file("away"), file);
        three.fixture.control() = {};
        three.fixture.wake_whole();
        return;
    }
    REQUIRE_FALSE(three.fixture.sleep(three.request));
    CHECK(three.fixture.state() == State::awake);
    CHECK(three.fixture.all_intact());
    CHECK(three.files().empty());
    CHECK(three.fixture.file_bytes() == 0);

    three.fixture.control().progress = [](const model::Progress&) { return true; };
    REQUIRE(three.fixture.sleep(three.request));
    CHECK(three.endings() == k_all_kept);
    three.fixture.wake_whole();
    CHECK(three.endings() == k_all_kept);
}

TEST_CASE("Kept files: when one cannot be named, those that are named stay, none is lost", "[transaction]") {
    ThreeFiles three;
    REQUIRE(three.fixture.sleep(three.request));
    REQUIRE(three.files().size() == 3);
    // They are named in an order of their own. If it was the first that was missing, none is named; then it
    // goes first, and another is missing.
    for (const auto& file : three.files()) {
        const Away missing(three, file);
        CHECK_THAT(three.ask_to_keep(), mentions("may be removed when the process wakes"));
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
    three.fixture.wake_whole();
    CHECK(three.files().size() == left);
    CHECK(three.endings().count(".kept") == left);
}

TEST_CASE("Kept files: one that cannot be looked at is not said to be removed", "[transaction]") {
    ThreeFiles three;
    REQUIRE(three.fixture.sleep(three.request));
    std::string why;
    if (!with_failing_calls({{SYS_newfstatat, EACCES}}, [&] { why = three.ask_to_keep(); })) return;
    CHECK_THAT(why, mentions("Permission denied"));
    CHECK(three.ask_to_keep().empty());
    CHECK(three.endings() == k_all_kept);
}

TEST_CASE("Kept files: names that could not be flushed are reported, and all is whole", "[transaction]") {
    ThreeFiles three;
    REQUIRE(three.fixture.sleep(three.request));
    std::string why;
    if (!with_failing_calls({{SYS_fsync, EIO}}, [&] { why = three.ask_to_keep(); })) return;
    CHECK_THAT(why, mentions("fsync"));
    CHECK(three.fixture.state() == State::asleep);
    CHECK(three.endings() == k_all_kept);
    // They are flushed when that is asked again, and not once more after that.
    REQUIRE(with_failing_calls({{SYS_fsync, EIO}}, [&] { why = three.ask_to_keep(); }));
    CHECK_FALSE(why.empty());
    CHECK(three.ask_to_keep().empty());
    REQUIRE(with_failing_calls({{SYS_fsync, EIO}}, [&] { why = three.ask_to_keep(); }));
    CHECK(why.empty());
    three.fixture.wake_whole();
    CHECK(three.endings() == k_all_kept);
}
