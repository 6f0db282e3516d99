// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Kept files that still hold what a sleep is to keep are used as they are; where anything speaks against it,
// they are written anew.

#include "support/descriptors.hpp"
#include "support/engine_fixture.hpp"
#include "support/files_of.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;
using model::Store;

namespace {

namespace fs = std::filesystem;

/// Two tags on two devices that slept in files that stay, and woke.
struct Woken {
    explicit Woken(sleep::Transactions::Options options = {2, 0}) : fixture(options) {
        fixture.add(0, "weights", 5 * k_mib);
        fixture.fill(0, {2 * k_mib, k_mib}, 0);
        fixture.add(0, "weights", 70'000);
        fixture.add(0, "kv_cache", 3 * k_mib);
        fixture.add(1, "other", 2 * k_mib);
        request.keep_files = true;
        REQUIRE(sleep() == k_all);
        wake();
        first = files();
        REQUIRE(first.size() == 3);
    }
    /// Bytes that it copies.
    [[nodiscard]] Bytes sleep() {
        Bytes copied = 0;
        for (const auto& device : fixture.slept(request).devices) copied += device.copied;
        return copied;
    }
    void wake() {
        fixture.wake_whole();
        CHECK(fixture.file_bytes() == 0);
        CHECK(descriptors_in(request.directory).empty()); // whoever removes them gets their room
    }
    void check_unchanged() {
        CHECK(sleep() == 0);
        wake();
    }
    [[nodiscard]] std::vector<fs::path> files() const { return files_in(request.directory); }
    /// The file of allocation `index` when it slept first: they are written in this order.
    [[nodiscard]] fs::path largest() const {
        return *std::max_element(first.begin(), first.end(), [](const auto& a, const auto& b) {
            return fs::file_size(a) < fs::file_size(b);
        });
    }

    static constexpr Bytes k_weights = 5 * k_mib + 2 * k_mib; // on device 0, whole 2 MiB but for the zeros
    static constexpr Bytes k_all = k_weights + 4 * k_mib + 2 * k_mib;
    Scratch scratch;
    EngineFixture fixture;
    model::SleepRequest request = in_files(scratch);
    std::vector<fs::path> first;
};

} // namespace

TEST_CASE("Unchanged files: a later sleep writes nothing, as often as it comes", "[unchanged]") {
    Woken woken;
    woken.request.keep_files = GENERATE(true, false); // they stay since the first sleep
    for (int i = 0; i < 3; ++i) {
        CHECK(woken.sleep() == 0);
        CHECK(woken.fixture.file_bytes() > 0);
        CHECK(woken.files() == woken.first);
        woken.wake();
        CHECK(woken.files() == woken.first);
    }
}

TEST_CASE("Unchanged files: a tag that has changed is written anew, and no other", "[unchanged]") {
    struct Row {
        const char* what;
        std::function<void(EngineFixture&)> change;
        Bytes written;
    };
    const auto row = GENERATE(values<Row>({
        {"a byte", [](auto& its) { its.change(0, 4 * k_mib + 17); }, Woken::k_weights},
        {"now zero",
         [](auto& its) {
             its.fill(0, {k_mib, k_mib}, 0);
         },
         Woken::k_weights - k_mib},
        {"zero before",
         [](auto& its) {
             its.fill(0, {2 * k_mib, k_mib}, 9);
         },
         Woken::k_weights + k_mib},
        {"one more", [](auto& its) { its.add(0, "weights", 2 * k_mib); }, Woken::k_weights + 2 * k_mib},
        {"one less", [](auto& its) { its.remove(1); }, Woken::k_weights - 2 * k_mib},
    }));
    INFO(row.what);
    Woken woken;
    row.change(woken.fixture);
    CHECK(woken.sleep() == row.written);
    CHECK(woken.files().size() == 4); // nobody removes the old one
    woken.wake();
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: one that is not as it was left is not used, but left alone", "[unchanged]") {
    using Path = const fs::path&;
    struct Row {
        const char* what;
        std::function<void(Path file, Path other)> change;
        std::size_t files; ///< that are there afterwards
    };
    const auto row = GENERATE(values<Row>({
        {"removed", [](Path file, Path) { fs::remove(file); }, 3},
        {"renamed", [](Path file, Path other) { fs::rename(file, other); }, 3},
        {"replaced by a copy",
         [](Path file, Path other) { fs::copy_file(file, other), fs::rename(other, file); }, 4},
        {"written to", [](Path file, Path) { turn_a_bit(file); }, 4},
        {"written to, with its time set back",
         [](Path file, Path) {
             const auto time = fs::last_write_time(file);
             turn_a_bit(file);
             fs::last_write_time(file, time);
         },
         4},
        {"cut", [](Path file, Path) { fs::resize_file(file, fs::file_size(file) - 1); }, 4},
        {"open to others", [](Path file, Path) { fs::permissions(file, fs::perms(0644)); }, 4},
    }));
    INFO(row.what);
    Woken woken;
    row.change(woken.largest(), woken.scratch.file("away"));
    CHECK(woken.sleep() == Woken::k_weights);
    CHECK(woken.files().size() == row.files);
    woken.wake();
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: they are used where their directory has another path by now", "[unchanged]") {
    Woken woken;
    const auto away = woken.scratch.file("away");
    fs::rename(woken.request.directory, away);
    woken.request.directory = away;
    CHECK(woken.sleep() == 0);
    CHECK(woken.files() == files_in(away));
    woken.wake();
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: a batch says what it takes before it has begun, and afterwards", "[unchanged]") {
    Woken woken;
    auto& contents = woken.fixture.engine().contents();
    std::vector<std::string> notes;
    const auto options = need(contents.open(woken.request, {}, notes));
    const auto batch = contents.make_batch({0, "weights"}, Store::file, options);
    static_cast<void>(batch->add(1, {k_mib, k_mib}));
    const auto needs = need(batch->needs());
    REQUIRE(batch->begin());
    CHECK(*batch->needs() == needs);
}

TEST_CASE("Unchanged files: none is used where another directory, or copying, is asked for", "[unchanged]") {
    const std::string other = GENERATE("directory", "directory by the same path", "way, to copy all");
    INFO("another " << other);
    Woken woken;
    if (other == "directory") woken.request.directory = woken.scratch.file("other");
    if (other == "directory by the same path")
        fs::rename(woken.request.directory, woken.scratch.file("away"));
    woken.request.copy_all = other == "way, to copy all";
    CHECK(woken.sleep() == Woken::k_all);
    woken.wake();
    woken.request.copy_all = false;
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: what slept in host memory since is not written once more", "[unchanged]") {
    const auto retained = GENERATE(Bytes{0}, 64 * k_mib);
    Woken woken(retaining(retained));
    REQUIRE(woken.fixture.sleep(raw()));
    woken.wake();
    CHECK(woken.fixture.retained_bytes() == (retained == 0 ? 0 : Woken::k_all));
    // Its file was given up for host memory.
    CHECK(woken.sleep() == Woken::k_all);
    CHECK(woken.fixture.retained_bytes() == 0);
    woken.wake();
    CHECK(woken.fixture.retained_bytes() == 0);
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: a failed sleep leaves them, and the next uses them, or writes", "[unchanged]") {
    Woken woken;
    auto& control = woken.fixture.control();
    SECTION("withdrawn") {
        control.progress = [](const model::Progress& progress) {
            return progress.phase != model::Progress::Phase::release;
        };
    }
    SECTION("for the driver fails") {
        sim_fail("cuLaunchKernel", 2, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    }
    REQUIRE_FALSE(woken.fixture.sleep(woken.request));
    sim_clear();
    control = {};
    CHECK(woken.fixture.state() == State::awake);
    CHECK(woken.fixture.all_intact());
    CHECK(woken.files() == woken.first);
    const auto copied = woken.sleep();
    CHECK((copied == 0 || copied == Woken::k_all));
    woken.wake();
}

TEST_CASE("Unchanged files: one damaged beneath its times is found, and once mended used", "[unchanged]") {
    Woken woken;
    CHECK(woken.sleep() == 0);
    const auto file = woken.largest();
    turn_a_bit(file);
    CHECK(woken.fixture.ledger().state({"other"}) == State::asleep);
    REQUIRE_FALSE(woken.fixture.wake());
    CHECK(woken.fixture.ledger().state({"weights"}) == State::damaged);
    CHECK(woken.fixture.ledger().state({"other"}) == State::awake);
    turn_a_bit(file);
    woken.wake();
}

TEST_CASE("Unchanged files: moved to host memory and back, they are as any other", "[unchanged]") {
    Woken woken;
    CHECK(woken.sleep() == 0);
    auto host = level(1);
    host.store_is_named = true;
    REQUIRE(woken.fixture.sleep(host));
    CHECK(woken.fixture.file_bytes() == 0);
    CHECK(woken.files() == woken.first); // they were to be kept
    woken.request.store_is_named = true;
    REQUIRE(woken.fixture.sleep(woken.request));
    CHECK(woken.files().size() == 6);
    model::Report report;
    REQUIRE(woken.fixture.engine().adjust_asleep(woken.request, report));
    woken.wake();
    woken.check_unchanged();
}

TEST_CASE("Unchanged files: sleep and wake survive the failure of every driver call", "[unchanged][sweep]") {
    const bool fails_wake = GENERATE(false, true);
    Woken woken;
    int failures = 0;
    for_each_call([&](int call) {
        std::string_view failed;
        if (fails_wake) CHECK(woken.sleep() == 0);
        const auto done = with_driver_failure(call, failed, [&] {
            return fails_wake ? woken.fixture.wake() : woken.fixture.sleep(woken.request);
        });
        failures += !done;
        CHECK(woken.fixture.state() == (done.has_value() == fails_wake ? State::awake : State::asleep));
        if (!fails_wake) {
            for (const auto& file : woken.first) CHECK(fs::exists(file));
            if (!done) {
                CHECK(woken.fixture.all_intact());
                static_cast<void>(woken.sleep());
            }
        }
        woken.wake();
        return !failed.empty();
    });
    CHECK(failures > 10 / sweep_stride());
    woken.check_unchanged();
}
