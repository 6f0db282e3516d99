// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Sleeping and waking over the simulated driver: what is kept, what is dropped, what is noticed.

#include "support/engine_fixture.hpp"

#include <tuple>

using namespace gpu_sleep::test;
using model::State;

namespace {

/// What a report says of a device's own memory.
auto memory_of(const model::DeviceReport& device) {
    return std::tuple(device.released, device.free_before, device.free_after, device.total);
}

} // namespace

TEST_CASE("Transaction: level 1 brings every byte back at its address", "[transaction]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 5 * k_mib + 12'345);
    fixture.add(0, "weights", 3 * k_mib);
    fixture.add(0, "kv_cache", 7 * k_mib);
    fixture.add(1, "weights", 4 * k_mib);
    fixture.add(0, "weights", 1000);
    const auto before = sim_live_objects();
    for (int round = 0; round < 3; ++round) {
        const auto report = fixture.slept(level(1));
        CHECK(report.changed);
        CHECK(fixture.state() == State::asleep);
        CHECK(sim_live_objects().handles == 0);
        CHECK(sim_live_objects().mapped_bytes == 0);
        CHECK(sim_live_objects().reservations == before.reservations);
        REQUIRE(report.devices.size() == 2);
        CHECK(report.devices[0].released == 20 * k_mib);
        CHECK(report.devices[0].kept == 20 * k_mib);
        CHECK(report.devices[0].free_after - report.devices[0].free_before == report.devices[0].released);
        fixture.wake_whole();
        CHECK(fixture.state() == State::awake);
        const auto after = sim_live_objects();
        CHECK(after.handles == before.handles);
        CHECK(after.mapped_bytes == before.mapped_bytes);
        CHECK(after.host_registrations == before.host_registrations);
        CHECK(after.streams == before.streams);
        CHECK(after.events == before.events);
        CHECK(after.modules == before.modules);
    }
}

TEST_CASE("Transaction: contents go through a ring that is shorter than they are", "[transaction]") {
    const Scratch scratch;
    EngineFixture fixture({2, 0, GENERATE(Bytes{0}, 24 * k_mib)}); // two slots for each device, three
    fixture.add(0, "weights", 21 * k_mib + 12'345);
    fixture.add(0, "small", 1000); // a file of one chunk before and after long ones
    fixture.add(0, "weights", 3 * k_mib);
    fixture.add(0, "zeroes", 9 * k_mib);
    fixture.add(0, "kv_cache", 17 * k_mib);
    fixture.add(1, "weights", 14 * k_mib);
    fixture.make_even(3); // and so compressible
    const auto request = in_files(scratch);
    const auto before = sim_live_objects();
    sim_delay("cuMemcpyHtoDAsync", 2000); // the ring comes round while copies out of it are under way
    for (int round = 0; round < 2; ++round) {
        REQUIRE(fixture.sleep(request));
        CHECK(fixture.state() == State::asleep);
        CHECK(fixture.host_bytes() == 0);
        CHECK(fixture.file_bytes() > 54 * k_mib);
        CHECK(fixture.file_bytes() < 64 * k_mib);
        fixture.wake_whole();
        CHECK(sim_live_objects().host_registrations == before.host_registrations);
        CHECK(sim_live_objects().events == before.events);
    }
    CHECK(std::filesystem::is_empty(request.directory));
}

TEST_CASE("Transaction: relayed contents are pinned after the sleep, or by a wake before", "[transaction]") {
    auto options = retaining(k_gib);
    options.relay_threads = 3;
    options.relay_from = 40 * k_mib;
    const bool has_ring = GENERATE(true, false);
    options.staging = (has_ring ? 24 : 12) * k_mib; // three slots for each device, or two, which are too slow
    EngineFixture fixture(options);
    fixture.add(0, "weights", 35 * k_mib + 12'345); // two pieces of an arena
    fixture.add(0, "weights", 6 * k_mib);
    fixture.add(1, "weights", 4 * k_mib); // too little
    const auto pinned = [before = sim_live_objects().host_registrations] {
        return sim_live_objects().host_registrations - before;
    };
    const int pinned_asleep = GENERATE(0, 1, 11);
    REQUIRE(fixture.sleep(level(1)));
    CHECK(pinned() == 1);
    fixture.pin(pinned_asleep);
    CHECK(pinned() == std::min<std::uint64_t>(1 + static_cast<unsigned>(pinned_asleep), 3));
    CHECK((fixture.engine().contents().find_unpinned() == nullptr) == (pinned_asleep > 1));
    sim_delay("cuMemcpyHtoDAsync", 2000); // the ring comes round while copies out of it are under way
    REQUIRE(fixture.wake());
    sim_clear();
    const bool is_relayed_back = has_ring && pinned_asleep == 0; // otherwise too little is left
    CHECK(pinned() == (is_relayed_back ? 1 : 3));
    CHECK(fixture.all_intact());
    fixture.pin(10);
    CHECK(pinned() == 3);
    CHECK_FALSE(fixture.engine().contents().find_unpinned());

    // What is retained is pinned already, and what has changed of it is copied straight there.
    fixture.change(0, 34 * k_mib);
    CHECK(fixture.slept(level(1)).devices.front().copied == k_mib);
    CHECK(pinned() == 3);
    fixture.wake_whole();
    static_cast<void>(fixture.engine().contents().trim_retained(0));
    static_cast<void>(fixture.engine().contents().reap());
    CHECK(pinned() == 0);
}

TEST_CASE("Transaction: level 2 drops, wakes as zeros and says so", "[transaction]") {
    EngineFixture fixture;
    const auto weights = fixture.add(0, "weights", 5 * k_mib);
    const auto report = fixture.slept(level(2));
    CHECK(report.dropped_without_refill == std::vector<std::string>{"weights"});
    CHECK(report.devices[0].dropped == 6 * k_mib);
    CHECK(fixture.host_bytes() == 0);
    REQUIRE(fixture.wake());
    CHECK(fixture.read(weights) == std::vector<std::uint8_t>(5 * k_mib, 0));
    CHECK(fixture.ledger().report().front().needs_refill);
    REQUIRE(fixture.sleep(level(1)));
    CHECK_FALSE(fixture.ledger().report().front().needs_refill); // it is not awake
    REQUIRE(fixture.wake());
    CHECK(fixture.ledger().report().front().needs_refill);
}

TEST_CASE("Transaction: a preserved span survives the drop of all around it", "[transaction]") {
    EngineFixture fixture;
    const auto weights = fixture.add(0, "weights", 5 * k_mib);
    const auto small = fixture.add(0, "weights", 3000);
    auto& allocation = fixture.allocations()[weights];
    auto* backing = fixture.ledger().find(allocation.address);
    // Odd places and lengths, and one that is longer than a fingerprint's block.
    const std::vector<Span> spans = {{7, 1}, {4097, 333}, {k_mib + 5, 2 * k_mib + 11}};
    for (const auto span : spans) ledger::Ledger::preserve(*backing, span);
    const auto place = need(fixture.heap().locate(fixture.allocations()[small].address));
    ledger::Ledger::preserve(*place.backing, {place.span.offset, 3000});

    for (int round = 0; round < 2; ++round) {
        REQUIRE(fixture.sleep(level(2)));
        CHECK(fixture.host_bytes() < 2 * k_mib + 64 * k_kib);
        REQUIRE(fixture.wake());
        std::vector<std::uint8_t> expected(allocation.contents.size(), 0);
        for (const auto span : spans)
            std::copy_n(allocation.contents.begin() + static_cast<std::ptrdiff_t>(span.offset), span.bytes,
                        expected.begin() + static_cast<std::ptrdiff_t>(span.offset));
        CHECK(fixture.read(weights) == expected);
        CHECK(fixture.is_intact(small));
    }
}

TEST_CASE("Transaction: tags sleep and wake on their own, in any order", "[transaction]") {
    EngineFixture fixture;
    const auto weights = fixture.add(0, "weights", 3 * k_mib);
    const auto cache = fixture.add(0, "kv_cache", 5 * k_mib);
    REQUIRE(fixture.sleep(level(1, {"kv_cache"})));
    CHECK(fixture.state() == State::partial);
    CHECK(fixture.is_intact(weights));
    REQUIRE(fixture.sleep(level(1)));
    CHECK(fixture.state() == State::asleep);
    REQUIRE(fixture.wake(tags({"weights"})));
    CHECK(fixture.is_intact(weights));
    REQUIRE(fixture.sleep(level(2, {"weights"})));
    REQUIRE(fixture.wake(tags({"kv_cache"})));
    CHECK(fixture.is_intact(cache));
    REQUIRE(fixture.wake());
    CHECK(fixture.state() == State::awake);
}

TEST_CASE("Transaction: a dry run says what would be, and changes nothing", "[transaction]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 3 * k_mib);
    auto report = fixture.slept(dry(level(1)));
    CHECK_FALSE(report.changed);
    CHECK(report.devices.at(0).released == 4 * k_mib);
    CHECK(fixture.state() == State::awake);
    CHECK(fixture.all_intact());
    REQUIRE(report.notes.size() == 1);
    CHECK(report.notes[0].find("needs at most 4.00 MiB of host memory") == 0);
    CHECK_THAT(report.notes[0], !mentions("fail"));

    const auto estimated = report.devices.at(0);
    CHECK(estimated.total > estimated.free_before);
    CHECK(memory_of(fixture.slept(level(1)).devices.at(0)) == memory_of(estimated));

    report = fixture.woken(dry(model::WakeRequest()));
    CHECK(fixture.state() == State::asleep);
    CHECK(report.notes.empty());
    CHECK(memory_of(fixture.woken().devices.at(0)) == memory_of(report.devices.at(0)));
    CHECK(fixture.all_intact());
}

TEST_CASE("Transaction: a dry run says what would be missing", "[transaction]") {
    sleep::Transactions::Options options;
    store::HostBudget budget({.directory = {}, .reserve = Bytes{1} << 50}); // so much must stay free
    options.budget = &budget;
    EngineFixture fixture(options);
    fixture.add(0, "weights", 3 * k_mib);
    auto request = dry(level(1));
    CHECK_THAT(fixture.slept(request).notes.at(0), mentions("it would fail"));
    CHECK(fixture.sleep(level(1)).error().code == ErrorCode::out_of_host_memory);
    const Scratch scratch;
    request.spill = true;
    request.directory = scratch.path();
    CHECK_THAT(fixture.slept(request).notes.at(0), mentions("would go to files"));
    CHECK(fixture.slept(dry(level(2))).notes.empty()); // nothing is kept

    REQUIRE(fixture.sleep(level(2)));
    memory::Heap neighbour(fixture.api(), fixture.ledger());
    const auto taken = need(neighbour.allocate(0, fixture.ledger().tag_id("neighbour"), sim_free_bytes(0)));
    auto wake = dry(model::WakeRequest());
    auto report = fixture.woken(wake);
    CHECK(report.refusal == "GPU 0 has 0 B free, and 4.00 MiB are needed: it would fail");
    CHECK(report.refusal_code == ErrorCode::out_of_device_memory);
    wake.make_room = true;
    report = fixture.woken(wake);
    CHECK(report.notes.at(0) == "GPU 0 has 0 B free, and 4.00 MiB are needed");
    CHECK(report.refusal.empty());
    REQUIRE(neighbour.free(taken));
}

TEST_CASE("Transaction: a context of another device does not say what is free", "[transaction]") {
    CUcontext own = nullptr;
    EngineFixture fixture({2, 0}, [&](int) { return own; });
    fixture.add(0, "weights", 3 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    const auto& api = fixture.api();
    REQUIRE(api.cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
    REQUIRE(api.cuDevicePrimaryCtxRetain(&own, 1) == CUDA_SUCCESS);
    const auto report = fixture.woken(dry(model::WakeRequest()));
    REQUIRE(report.devices.size() == 1);
    CHECK(report.devices[0].total == 0);
    CUcontext primary = nullptr;
    REQUIRE(api.cuDevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS);
    REQUIRE(api.cuDevicePrimaryCtxRelease(1) == CUDA_SUCCESS);
}

TEST_CASE("Transaction: a bit that flips in host memory is caught, damaging only its tag", "[transaction]") {
    EngineFixture fixture;
    const auto weights = fixture.add(0, "weights", 3 * k_mib);
    const auto cache = fixture.add(0, "kv_cache", 3 * k_mib);
    const auto other = fixture.add(1, "weights", 3 * k_mib); // whole, but it does not wake without the rest
    REQUIRE(fixture.sleep(level(1)));
    auto* backing = fixture.ledger().find(fixture.allocations()[weights].address);
    fixture.flip_kept_bit(weights, 2 * k_mib + 77, 3);

    model::Report report;
    const auto woken = fixture.wake({}, &report);
    CHECK(error_of(woken).code == ErrorCode::damaged);
    CHECK_THAT(woken.error().message, mentions("asleep: weights; awake now: kv_cache"));
    CHECK(report.changed);
    CHECK(report.devices.at(0).released == 4 * k_mib);
    CHECK(report.devices.at(0).kept == 4 * k_mib);
    CHECK(fixture.ledger().state({"weights"}) == State::damaged);
    CHECK(fixture.is_intact(cache));
    CHECK(backing->residence() == model::Residence::damaged);
    CHECK(fixture.ledger().find(fixture.allocations()[other].address)->residence() == model::Residence::kept);
    CHECK(sim_live_objects().handles == 1);
    report = fixture.woken(dry(model::WakeRequest()));
    CHECK((report.refusal.empty() && report.refusal_code == ErrorCode::damaged)); // others would wake
    CHECK(fixture.wake(tags({"weights"})).error().code == ErrorCode::damaged);
    CHECK_THAT(fixture.wake().error().message, !mentions("awake now"));
    CHECK(sim_live_objects().handles == 1);
    REQUIRE(fixture.sleep(level(2, {"weights"})));
    REQUIRE(fixture.wake());
    CHECK(fixture.read(weights) == std::vector<std::uint8_t>(3 * k_mib, 0));
    CHECK(fixture.ledger().report()[1].needs_refill);
}

TEST_CASE("Transaction: a sleep that checks its copies mends a bit that flips on the way", "[transaction]") {
    sleep::Transactions::Options options{2, 0};
    if (GENERATE(false, true)) options.relay_threads = 2;
    options.relay_from = 0;
    EngineFixture fixture(options);
    fixture.add(0, "weights", 40 * k_mib);
    auto request = level(1);
    request.check_copies = true;
    sim_corrupt_copy("cuMemcpyDtoHAsync", 1);
    REQUIRE(fixture.sleep(request));
    CHECK(sim_fault_counts().corrupted_copies > 0);
    sim_clear();
    fixture.wake_whole();

    for (std::uint64_t i = 1; i <= 50; ++i) sim_corrupt_copy("cuMemcpyDtoHAsync", i);
    CHECK(fixture.sleep(request).error().code == ErrorCode::io_failed);
    CHECK(fixture.state() == State::awake);
    sim_clear();
    CHECK(fixture.all_intact());
    fixture.cycle(request);
}

TEST_CASE("Transaction: a bit that flips on the way in is caught and copied again", "[transaction]") {
    sleep::Transactions::Options options{2, 0};
    options.relay_threads = GENERATE(0U, 2U);
    options.relay_from = 0;
    EngineFixture fixture(options);
    fixture.add(0, "weights", 3 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    sim_corrupt_copy("cuMemcpyHtoDAsync", 1);
    REQUIRE(fixture.wake());
    CHECK(sim_fault_counts().corrupted_copies > 0);
    CHECK(fixture.all_intact());
}

TEST_CASE("Transaction: the asker hears of copies while host memory is still made ready", "[transaction]") {
    EngineFixture fixture({1, 0}); // one piece after another
    for (int i = 0; i < 4; ++i) fixture.add(0, "weights", 30 * k_mib);
    sim_reset_counts();
    sim_delay("cuMemHostRegister", 500'000);
    Bytes done_early = 0;
    fixture.control().progress = [&](const model::Progress& progress) {
        constexpr std::uint64_t k_pieces = 4;
        if (sim_calls("cuMemHostRegister") < k_pieces) done_early = std::max(done_early, progress.done);
        return true;
    };
    REQUIRE(fixture.sleep(level(1)));
    CHECK(done_early >= 64 * k_mib);
    CHECK(done_early < 120 * k_mib);
}

TEST_CASE("Transaction: neighbours of a tag take few driver calls", "[transaction]") {
    EngineFixture fixture;
    for (int i = 0; i < 100; ++i) fixture.add(0, "weights", 2 * k_mib);
    sim_reset_counts();
    REQUIRE(fixture.sleep(level(1)));
    CHECK(sim_calls("cuMemUnmap") == 1);
    CHECK(sim_calls("cuMemcpyDtoHAsync") == 7); // seven pieces of the arena
    sim_reset_counts();
    REQUIRE(fixture.wake());
    CHECK(sim_calls("cuMemSetAccess") == 3);    // 32 MiB, twice as much, and the rest
    CHECK(sim_calls("cuMemcpyHtoDAsync") == 7); // once each
    CHECK(fixture.all_intact());
}

TEST_CASE("Transaction: waking copies and checks what is mapped before the rest is mapped", "[transaction]") {
    EngineFixture fixture;
    for (int i = 0; i < 6; ++i) fixture.add(0, "weights", 40 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    sim_reset_counts();
    sim_fail("cuMemSetAccess", 3, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    REQUIRE_FALSE(fixture.wake());
    sim_clear();
    CHECK(sim_calls("cuMemcpyHtoDAsync") == 4); // 80 MiB, from pieces of 32 MiB
    CHECK(sim_calls("cuLaunchKernel") == 1);
    fixture.flip_kept_bit(0, 5, 1);
    fixture.flip_kept_bit(5, 40 * k_mib - 1, 1);
    CHECK_THAT(error_of(fixture.wake()).message, mentions("2 of 240 blocks changed"));
    CHECK(fixture.state() == State::damaged);
}

TEST_CASE("Transaction: of many small ranges more is mapped before the first copy", "[transaction]") {
    EngineFixture fixture;
    for (int i = 0; i < 100; ++i) fixture.add(0, "weights", 2 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    sim_reset_counts();
    sim_fail("cuMemSetAccess", 3, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    REQUIRE_FALSE(fixture.wake());
    sim_clear();
    CHECK(sim_calls("cuMemcpyHtoDAsync") == 0);
    fixture.wake_whole();
}
