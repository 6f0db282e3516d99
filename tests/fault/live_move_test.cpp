// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents of a running program that move to host memory and back: what is written meanwhile, what sleeps or
// is freed there, and the failure of every driver call.

#include "sleep/live_move.hpp"
#include "store/host_account.hpp"
#include "support/engine_fixture.hpp"
#include "support/sweep.hpp"

#include <functional>
#include <limits>

using namespace gpu_sleep;
using namespace gpu_sleep::test;
using model::State;
using sleep::Direction;
using sleep::Verdict;

namespace {

constexpr auto k_all = std::numeric_limits<Bytes>::max();

Bytes host_backed(EngineFixture& fixture) {
    return fixture.ledger().host_backed();
}

/// Moves all there is, `meanwhile` being called between the copies of each piece and its swap, for which it
/// is in `round`.
Result<Verdict> move(
    EngineFixture& fixture, Direction direction, const std::function<void()>& meanwhile = [] {},
    int round = 1) {
    const auto parts = sleep::plan_live(fixture.ledger(), direction, {}, k_all);
    if (!parts) return parts.error();
    auto last = Result<Verdict>(Verdict::move);
    for (std::span<const sleep::LivePart> rest = *parts; !rest.empty() && last;) {
        const auto piece = sleep::first_piece(rest, 16 * k_mib);
        rest = rest.subspan(piece.size());
        const auto device = piece.front().device;
        const auto kind = direction == Direction::to_host
                              ? driver::MemoryKind::of_host_near(fixture.api(), device)
                              : driver::MemoryKind::of_device(fixture.api(), device);
        if (!kind) return kind.error();
        model::StepClock steps;
        sleep::LiveMove moved(fixture.api(), *kind, piece, steps);
        auto context = driver::PrimaryContext::retain(fixture.api(), device);
        if (!context) return std::move(context).error();
        const auto session = driver::DeviceSession::open(fixture.api(), *std::move(context));
        if (!session) return session.error();
        GPU_SLEEP_TRY(moved.create());
        auto copied = Result<bool>(false);
        while (copied && !*copied) copied = moved.copy(**session, fixture.ledger());
        if (!copied) return std::move(copied).error();
        GPU_SLEEP_TRY(moved.seal(**session));
        meanwhile();
        last = moved.swap(**session, fixture.ledger(), fixture.engine().contents(), round);
    }
    return last;
}

/// Neighbours, a gap, a small allocation, a second device, and one that both devices use.
void add_some(EngineFixture& fixture) {
    fixture.add(0, "weights", 3 * k_mib);
    fixture.add(0, "weights", 2 * k_mib);
    fixture.add(0, "weights", 12 * k_mib);
    fixture.add(0, "cache", 4 * k_mib);
    fixture.add(0, "cache", 70'000);
    fixture.add(1, "weights", 2 * k_mib);
    fixture.remove(1);
    REQUIRE(fixture.heap().allow_access(fixture.allocations()[0].address, 1));
}

} // namespace

TEST_CASE("Live: contents move to host memory and back, with what is written meanwhile", "[live]") {
    EngineFixture fixture;
    add_some(fixture);
    const auto before = sim_live_objects();
    const auto free = sim_free_bytes(0);
    std::uint8_t value = 1;
    const auto write = [&] { fixture.fill(1, {k_mib, 10}, ++value); };
    for (int i = 0; i < 3; ++i) {
        CHECK(*move(fixture, Direction::to_host, write) == Verdict::move);
        CHECK(fixture.state() == State::awake);
        CHECK(host_backed(fixture) == sim_live_objects().mapped_bytes);
        CHECK(sim_free_bytes(0) == free + 22 * k_mib);
        CHECK(fixture.all_intact());
        CHECK(*move(fixture, Direction::to_device, write) == Verdict::move);
        CHECK(host_backed(fixture) == 0);
        CHECK(fixture.all_intact());
    }
    const auto after = sim_live_objects();
    CHECK(after.handles == before.handles);
    CHECK(after.reservations == before.reservations);
    CHECK(after.mapped_bytes == before.mapped_bytes);
    CHECK(after.streams == before.streams);
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Live: what is written all the time stays, and what is freed or sleeps meanwhile is left out",
          "[live]") {
    EngineFixture fixture;
    add_some(fixture);
    int passed = 0;
    const auto rewrite = [&] { fixture.fill(1, {0, 2 * k_mib}, static_cast<std::uint8_t>(++passed)); };
    CHECK(move(fixture, Direction::to_host, rewrite, sleep::k_most_rounds).has_value());
    CHECK(host_backed(fixture) > 0);
    CHECK_FALSE(fixture.ledger().find(fixture.allocations()[1].address)->host_backed);
    CHECK(fixture.all_intact());
    bool is_done = false;
    const auto remove = [&] {
        if (!std::exchange(is_done, true)) fixture.remove(1); // and something new takes its place
        if (fixture.allocations().size() < 5) fixture.add(0, "weights", 12 * k_mib);
    };
    CHECK(*move(fixture, Direction::to_host, remove) == Verdict::move);
    CHECK(fixture.all_intact());
    const auto put_to_sleep = [&] { static_cast<void>(fixture.sleep(level(1, {"cache"}))); };
    CHECK(*move(fixture, Direction::to_device, put_to_sleep) == Verdict::move);
    CHECK(fixture.state() == State::partial);
    REQUIRE(fixture.wake());
    CHECK(fixture.all_intact());
    CHECK(sim_fault_counts().illegal_accesses == 0);
}

TEST_CASE("Live: what runs from host memory sleeps, and wakes on the GPU", "[live]") {
    sleep::Engine::Options options{2, 0};
    options.retained = GENERATE(Bytes{0}, 64 * k_mib);
    EngineFixture fixture(options);
    add_some(fixture);
    const auto kind = GENERATE(1, 2);
    if (options.retained > 0) { // what an earlier sleep has retained is good still
        REQUIRE(fixture.sleep(level(1)));
        REQUIRE(fixture.wake());
    }
    REQUIRE(move(fixture, Direction::to_host));
    fixture.change(0, k_mib);
    model::Report report;
    auto rehearsal = level(kind);
    rehearsal.dry_run = true;
    REQUIRE(fixture.sleep(rehearsal, &report));
    CHECK(report.devices.at(0).released == 0);
    report = {};
    REQUIRE(fixture.sleep(level(kind), &report));
    CHECK(report.devices.at(0).released == 0); // it had no GPU memory
    CHECK(fixture.state() == State::asleep);
    CHECK(sim_live_objects().handles == 0);
    REQUIRE(fixture.wake());
    CHECK(host_backed(fixture) == 0);
    if (kind == 1) CHECK(fixture.all_intact());
    CHECK(fixture.read(0).size() == 3 * k_mib);
}

TEST_CASE("Live: without host memory that can be mapped, nothing moves", "[live]") {
    EngineFixture fixture;
    add_some(fixture);
    sim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, SIM_FOREVER);
    const auto moved = move(fixture, Direction::to_host);
    sim_clear();
    REQUIRE_FALSE(moved);
    CHECK(moved.error().code == ErrorCode::out_of_host_memory);
    CHECK(fixture.all_intact());
    CHECK(host_backed(fixture) == 0);
}

TEST_CASE("Live: what cannot have host memory again wakes on the GPU, where it may and fits", "[live]") {
    EngineFixture fixture;
    add_some(fixture);
    fixture.ledger().set_live_bytes(fixture.ledger().tag_id("weights"), k_all);
    REQUIRE(move(fixture, Direction::to_host));
    REQUIRE(fixture.sleep(level(1)));
    model::WakeRequest request{{}, {"weights"}};
    const auto wake = [&](bool is_dry, Bytes live_bytes, std::string_view note) {
        request.dry_run = is_dry;
        request.live_bytes = live_bytes;
        model::Report report;
        auto woken = fixture.wake(request, &report);
        CHECK(report.notes.empty() == note.empty());
        if (!report.notes.empty()) CHECK(report.notes[0].find(note) != std::string::npos);
        return woken;
    };
    store::HostAccount::own().limit(0);
    CHECK(wake(true, 0, "it would fail"));
    CHECK(wake(false, 0, "").error().code == ErrorCode::out_of_host_memory);
    CHECK(fixture.state() == State::asleep);
    CHECK(wake(true, model::k_all_bytes, "all wakes on the GPU"));
    CHECK(fixture.state() == State::asleep);
    CHECK(wake(false, model::k_all_bytes, "all wakes on the GPU"));
    store::HostAccount::own().limit({});
    CHECK(fixture.state() == State::partial);
    CHECK(host_backed(fixture) == 0);
    REQUIRE(fixture.wake());
    CHECK(fixture.all_intact());
}

TEST_CASE("Live: a wake asks for host memory on no device where nothing runs from there", "[live]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 2 * k_mib);
    REQUIRE(move(fixture, Direction::to_host));
    fixture.add(1, "cache", 2 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    model::WakeRequest request;
    request.live_bytes = 0;
    // Of the first device both kinds are asked, and of the second one.
    sim_fail("cuMemGetAllocationGranularity", 4, CUDA_ERROR_UNKNOWN, SIM_ONCE);
    CHECK(fixture.wake(request));
    sim_clear();
    CHECK(host_backed(fixture) == 2 * k_mib);
    CHECK(fixture.all_intact());
}

TEST_CASE("Live: a copy that is damaged moves nothing", "[live]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 64 * k_mib);
    const auto before = sim_live_objects();
    sim_corrupt_copy("cuMemcpyDtoDAsync", 1);
    const auto change = [&] {
        fixture.fill(0, {k_mib, 10}, 7);
        sim_corrupt_copy("cuMemcpyDtoDAsync", 1); // the copy of the change
    };
    const auto moved = move(fixture, Direction::to_host, change);
    REQUIRE_FALSE(moved);
    CHECK(moved.error().code == ErrorCode::damaged);
    CHECK(fixture.state() == State::awake);
    CHECK(host_backed(fixture) == 0);
    CHECK(fixture.all_intact());
    CHECK(sim_live_objects().handles == before.handles);
}

TEST_CASE("Live: what sleeps because it cannot be mapped has its own contents, not what was retained",
          "[live]") {
    sleep::Engine::Options options{2, 0};
    options.retained = 64 * k_mib;
    EngineFixture fixture(options);
    add_some(fixture);
    REQUIRE(fixture.sleep(level(1)));
    REQUIRE(fixture.wake());
    fixture.change(0, k_mib);
    const auto break_maps = [] { sim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER); };
    REQUIRE_FALSE(move(fixture, Direction::to_host, break_maps));
    sim_clear();
    CHECK(fixture.state() == State::partial);
    REQUIRE(fixture.wake());
    CHECK(fixture.state() == State::awake);
    CHECK(fixture.all_intact());
}

TEST_CASE("Live: a move survives the failure of every driver call", "[live]") {
    const auto direction = GENERATE(Direction::to_host, Direction::to_device);
    const unsigned lasts = GENERATE(unsigned{SIM_ONCE}, unsigned{SIM_FOREVER});
    const auto back = direction == Direction::to_host ? Direction::to_device : Direction::to_host;
    EngineFixture fixture;
    add_some(fixture);
    if (direction == Direction::to_device) REQUIRE(move(fixture, back));
    const auto handles = sim_live_objects().handles;
    std::uint64_t lost = 0;
    int failures = 0;
    int slept = 0;
    std::uint8_t value = 0;
    for_each_call([&](int call) {
        // The test's own write must not fail: it comes before the calls are counted.
        fixture.fill(1, {k_mib, 10}, ++value);
        std::string_view failed;
        const auto moved = with_driver_failure(
            call, failed, [&] { return move(fixture, direction); }, 999, lasts);
        INFO(failed);
        fixture.await_devices();
        failures += !moved;
        lost += lasts == SIM_FOREVER ? 16
                                     : failed.find("Release") != std::string_view::npos ||
                                           failed.find("Unmap") != std::string_view::npos ||
                                           failed.find("CtxPush") != std::string_view::npos;
        slept += fixture.state() != State::awake;
        REQUIRE(fixture.wake());
        CHECK(fixture.state() == State::awake);
        CHECK(fixture.all_intact());
        REQUIRE(move(fixture, direction));
        CHECK(fixture.all_intact());
        REQUIRE(move(fixture, back));
        CHECK(fixture.all_intact());
        CHECK(host_backed(fixture) == (back == Direction::to_host ? 24 * k_mib : 0));
        CHECK(sim_live_objects().handles <= handles + lost);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        return !failed.empty();
    });
    CHECK(failures > 10 / sweep_stride());
    if (lasts == SIM_FOREVER && sweep_stride() == 1) CHECK(slept > 0);
}

TEST_CASE("Live: a wake into host memory survives the failure of every driver call", "[live]") {
    const unsigned lasts = GENERATE(unsigned{SIM_ONCE}, unsigned{SIM_FOREVER});
    EngineFixture fixture;
    add_some(fixture);
    REQUIRE(move(fixture, Direction::to_host));
    const auto mapped = host_backed(fixture);
    const auto handles = sim_live_objects().handles;
    model::WakeRequest request;
    request.live_bytes = 0;
    std::uint64_t lost = 0;
    for_each_call([&](int call) {
        REQUIRE(fixture.sleep(level(1)));
        CHECK(host_backed(fixture) == 0);
        std::string_view failed;
        const auto woken = with_driver_failure(
            call, failed, [&] { return fixture.wake(request); }, 999, lasts);
        INFO(failed);
        fixture.await_devices();
        lost += lasts == SIM_FOREVER ? 16 : failed.find("Release") != std::string_view::npos;
        if (!woken) CHECK(fixture.state() != State::awake);
        REQUIRE(fixture.wake(request));
        CHECK(fixture.state() == State::awake);
        CHECK(fixture.all_intact());
        CHECK(host_backed(fixture) == mapped);
        CHECK(sim_live_objects().handles <= handles + lost);
        CHECK(sim_fault_counts().illegal_accesses == 0);
        return !failed.empty();
    });
}

TEST_CASE("Live: an allocation in host memory survives the failure of every driver call", "[live]") {
    EngineFixture fixture;
    add_some(fixture);
    const auto tag = fixture.ledger().tag_id("weights");
    const auto before = sim_live_objects();
    for_each_call([&](int call) {
        std::string_view failed;
        const auto made = with_driver_failure(
            call, failed, [&] { return fixture.heap().allocate_in_host_memory(0, tag, 5 * k_mib); });
        INFO(failed);
        CHECK((made || !failed.empty()));
        CHECK(host_backed(fixture) == (made ? 6 * k_mib : 0));
        if (made) REQUIRE(fixture.heap().free(*made));
        CHECK(sim_live_objects().handles == before.handles);
        CHECK(sim_live_objects().mapped_bytes == before.mapped_bytes);
        CHECK(fixture.all_intact());
        return !failed.empty();
    });
}
