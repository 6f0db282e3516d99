// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What host memory has no room for goes to files, and no more: whole tags stay as far as they fit, then whole
// blocks of one.

#include "support/descriptors.hpp"
#include "support/engine_fixture.hpp"
#include "support/files_of.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;
using model::Store;
using Scope = sleep::Transactions::Scope;
using Spill = sleep::Transactions::Spill;

namespace {

namespace fs = std::filesystem;

Bytes g_space = 0; ///< of the host

/// Three tags on two devices: big of 8 MiB, less a block of zeros, middle of 4, small of 2 on the other.
struct Short {
    explicit Short(Bytes retained = 0) : fixture(options(retained, budget)) {
        fixture.add(0, "big", 4 * k_mib);
        fixture.fill(0, {k_mib, k_mib}, 0);
        fixture.add(0, "big", 4 * k_mib);
        fixture.add(0, "middle", 4 * k_mib);
        fixture.add(1, "small", 2 * k_mib);
        request.spill = true;
        request.directory = scratch.file("sleep");
    }
    static sleep::Transactions::Options options(Bytes retained, store::HostBudget& budget) {
        auto options = retaining(retained);
        options.staging = 0; // so that nothing is left for it
        options.budget = &budget;
        return options;
    }
    [[nodiscard]] Result<void> sleep(Spill spill = model::k_other_stores, model::Report* report = nullptr) {
        model::Report own;
        static_cast<void>(fixture.engine().contents().reap());
        budget.limit(fixture.host_bytes() + g_space);
        auto done =
            fixture.engine().sleep(request, fixture.control(), report ? *report : own, Scope::all, spill);
        budget.limit({});
        static_cast<void>(fixture.engine().contents().reap());
        return done;
    }
    [[nodiscard]] std::map<std::string, Bytes> in_files() {
        std::map<std::string, Bytes> sum;
        for (const auto& [address, each] : fixture.ledger().backings())
            sum[fixture.ledger().tag(each.tag).name] +=
                fixture.engine().contents().bytes_in(Store::file, each.kept.range);
        return sum;
    }
    void wake() {
        fixture.wake_whole();
        CHECK(files() == 0);
    }
    [[nodiscard]] std::size_t files() const { return files_in(request.directory).size(); }

    Scratch scratch;
    store::HostBudget budget{{.directory = {},
                              .headroom =
                                  [] {
                                      return store::Headroom{Bytes{1} << 50, ""};
                                  },
                              .pressure = [] { return 0U; }}};
    EngineFixture fixture;
    model::SleepRequest request = level(1);
};

} // namespace

TEST_CASE("Spill: only the tags, and the blocks of a tag, that have no room go to files", "[spill]") {
    using InFiles = std::map<std::string, Bytes>;
    struct Row {
        Bytes space;
        InFiles in_files;
    };
    const auto row =
        GENERATE(Row{13 * k_mib, {{"big", 0}, {"middle", 0}, {"small", 0}}},
                 Row{13 * k_mib - 1, {{"big", 0}, {"middle", 0}, {"small", k_mib}}},
                 Row{9 * k_mib, {{"big", 0}, {"middle", 4 * k_mib}, {"small", 0}}},
                 Row{8 * k_mib, {{"big", 0}, {"middle", 3 * k_mib}, {"small", 2 * k_mib}}},
                 Row{6 * k_mib, {{"big", 7 * k_mib}, {"middle", 0}, {"small", 0}}},
                 Row{6 * k_mib - 4096, {{"big", 6 * k_mib}, {"middle", 0}, {"small", 2 * k_mib}}},
                 Row{2 * k_mib + 5, {{"big", 7 * k_mib}, {"middle", 4 * k_mib}, {"small", 0}}},
                 Row{0, {{"big", 7 * k_mib}, {"middle", 4 * k_mib}, {"small", 2 * k_mib}}});
    INFO(row.space);
    g_space = row.space;
    Short host;
    model::Report report;
    REQUIRE(host.sleep(model::k_other_stores, &report));
    CHECK(host.in_files() == row.in_files);
    Bytes in_files = 0;
    for (const auto& [tag, bytes] : row.in_files) in_files += bytes;
    CHECK(host.fixture.host_bytes() == 13 * k_mib - in_files);
    CHECK(report.notes.empty() == (in_files == 0));
    CHECK(host.fixture.state() == State::asleep);
    host.wake();
}

TEST_CASE("Spill: what has no room fails before anything is copied, where files may help", "[spill]") {
    g_space = 13 * k_mib - 1;
    Short host;
    sim_reset_counts();
    CHECK(error_of(host.sleep({})).code == ErrorCode::out_of_host_memory);
    CHECK(sim_calls("cuMemcpyDtoHAsync") == 0);
    CHECK(sim_calls("cuMemHostRegister") == 0);
    CHECK(host.fixture.state() == State::awake);
    CHECK(host.fixture.all_intact());
    g_space = 13 * k_mib;
    REQUIRE(host.sleep({}));
    CHECK(host.files() == 0);
    host.wake();
}

TEST_CASE("Spill: what is retained needs no room, and what lies in files is not retained", "[spill]") {
    g_space = 8 * k_mib;
    Short host(64 * k_mib);
    REQUIRE(host.sleep());
    const auto in_host = host.fixture.host_bytes();
    CHECK(in_host == 8 * k_mib);
    host.wake();
    CHECK(host.fixture.retained_bytes() == in_host);
    g_space = 0; // all that is new goes to files
    model::Report report;
    REQUIRE(host.sleep(model::k_other_stores, &report));
    CHECK(host.fixture.host_bytes() == in_host);
    CHECK(report.devices[0].copied + report.devices[1].copied == 5 * k_mib);
    host.wake();
    host.fixture.change(1, 17);
    g_space = 64 * k_mib;
    REQUIRE(host.sleep({}));
    CHECK(host.fixture.host_bytes() == 13 * k_mib);
    host.wake();
    CHECK(host.fixture.retained_bytes() == 13 * k_mib);
}

TEST_CASE("Spill: what was prepared for the device is room", "[spill]") {
    constexpr auto k_piece = contents::Contents::k_prepared_piece;
    Short host(2 * k_piece);
    host.fixture.add(0, "large", k_piece + 2 * k_mib);
    auto& contents = host.fixture.engine().contents();
    const auto piece = need(contents.prepare_piece());
    contents.add_prepared(0, *piece);
    g_space = 15 * k_mib - 1;
    REQUIRE_FALSE(host.sleep({}));
    CHECK(contents.prepared(0) == k_piece);
    g_space = 15 * k_mib;
    REQUIRE(host.sleep({}));
    CHECK(contents.prepared(0) == 0);
    CHECK(host.files() == 0);
    host.wake();
}

TEST_CASE("Spill: a kept file that has not changed is used though host memory is short", "[spill]") {
    g_space = 64 * k_mib;
    Short host;
    host.request.stores = {{"middle", Store::file}};
    host.request.keep_files = true;
    REQUIRE(host.sleep({}));
    REQUIRE(host.fixture.wake());
    CHECK(host.files() == 1);
    g_space = 5 * k_mib;
    REQUIRE_FALSE(host.sleep({}));
    CHECK(host.fixture.file_bytes() == 0);
    CHECK(descriptors_in(host.request.directory).empty()); // as it was left
    CHECK(host.fixture.engine().forget_retained_beside(host.request) == 0);
    model::Report report;
    REQUIRE(host.sleep(model::k_other_stores, &report));
    CHECK(report.devices[0].copied + report.devices[1].copied == 9 * k_mib); // all but middle
    host.fixture.wake_whole();
}

TEST_CASE("Spill: what lies in both stores moves to one of them", "[spill]") {
    g_space = 5 * k_mib;
    Short host;
    REQUIRE(host.sleep());
    const bool to_files = GENERATE(false, true);
    auto request = level(1);
    request.store_is_named = true;
    if (to_files) request = in_files(host.scratch, true);
    REQUIRE(host.fixture.sleep(request));
    CHECK((host.fixture.host_bytes() == 0) == to_files);
    CHECK((host.fixture.file_bytes() == 0) != to_files);
    host.wake();
}

TEST_CASE("Spill: a sleep that spills, and its wake, survive every driver call's failure", "[spill][sweep]") {
    g_space = 8 * k_mib;
    const bool fails_wake = GENERATE(false, true);
    Short host;
    int failures = 0;
    for_each_call([&](int call) {
        std::string_view failed;
        const auto sleep = [&] { return host.sleep(); };
        if (fails_wake) {
            REQUIRE(sleep());
        } else if (!with_driver_failure(call, failed, sleep)) {
            ++failures;
            CHECK(host.fixture.state() == State::awake);
            CHECK(host.fixture.all_intact());
            CHECK(host.files() == 0);
            REQUIRE(sleep());
        }
        CHECK(host.fixture.state() == State::asleep);
        if (fails_wake) failures += !with_driver_failure(call, failed, [&] { return host.fixture.wake(); });
        host.wake();
        return !failed.empty();
    });
    CHECK(failures > 10 / sweep_stride());
}
