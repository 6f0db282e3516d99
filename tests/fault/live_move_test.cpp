// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents of a running program that move to host memory and back: what is written meanwhile, what sleeps or
// is freed there, and the failure of every driver call.

#include "sleep/live_move.hpp"
#include "support/engine_fixture.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;
using sleep::Direction;
using sleep::Verdict;

namespace {

constexpr auto k_all = std::numeric_limits<Bytes>::max();

Bytes host_backed(EngineFixture& fixture) {
    return fixture.ledger().host_backed();
}

/// Moves all there is, `meanwhile` being called before the swap of each piece, for which it is in `round`.
Result<Verdict> move(
    EngineFixture& fixture, Direction direction, const std::function<void()>& meanwhile = [] {},
    int round = 1) {
    const auto parts = GPU_SLEEP_TRY(sleep::plan_live(fixture.ledger(), direction, {}, k_all));
    auto last = Result<Verdict>(Verdict::move);
    for (std::span<const sleep::LivePart> rest = parts; !rest.empty() && last;) {
        const auto piece = sleep::first_piece(rest, 16 * k_mib);
        rest = rest.subspan(piece.size());
        const auto device = piece.front().device;
        const auto kind = GPU_SLEEP_TRY(direction == Direction::to_host
                                            ? driver::MemoryKind::of_host_near(fixture.api(), device)
                                            : driver::MemoryKind::of_device(fixture.api(), device));
        model::StepClock steps;
        sleep::LiveMove moved(fixture.api(), kind, piece, steps);
        auto context = GPU_SLEEP_TRY(driver::PrimaryContext::retain(fixture.api(), device));
        const auto session = GPU_SLEEP_TRY(driver::DeviceSession::open(fixture.api(), std::move(context)));
        GPU_SLEEP_TRY(moved.create());
        if (direction == Direction::to_host) {
            auto copied = Result<bool>(false);
            while (copied && !*copied) copied = moved.copy(*session, fixture.ledger());
            if (!copied) return std::move(copied).error();
            GPU_SLEEP_TRY(moved.seal(*session));
        }
        meanwhile();
        const auto mapped = sim_live_objects().mapped_bytes;
        last = moved.swap(*session, fixture.ledger(), fixture.engine().contents(), round);
        // The copies are mapped where the originals were, and nowhere else.
        if (last && moved.moved() > 0 && sim_fault_counts().injected_failures == 0)
            CHECK(sim_live_objects().mapped_bytes + moved.bytes() == mapped);
    }
    return last;
}

/// Neighbours, a gap, a small allocation, a second device, and one that both devices use.
struct Some : EngineFixture {
    explicit Some(sleep::Transactions::Options options = {2, 0}) : EngineFixture(options) {
        add(0, "weights", 3 * k_mib);
        add(0, "weights", 2 * k_mib);
        add(0, "weights", 12 * k_mib);
        add(0, "cache", 4 * k_mib);
        add(0, "cache", 70'000);
        add(1, "weights", 2 * k_mib);
        remove(1);
        REQUIRE(heap().allow_access(allocations()[0].address, 1));
    }
};

/// Has all of it in host memory, and the weights from the start.
void start_in_host_memory(EngineFixture& fixture) {
    REQUIRE(move(fixture, Direction::to_host));
    fixture.ledger().set_live_bytes(fixture.ledger().tag_id("weights"), k_all);
}

model::SleepRequest deep() {
    auto request = raw();
    request.deep = true;
    return request;
}

/// What sleeps in its own memory; a kept range would be another place of its contents.
Bytes in_place(EngineFixture& fixture) {
    Bytes sum = 0;
    for (const auto& [address, backing] : fixture.ledger().backings()) {
        if (!backing.holds_contents) continue;
        CHECK(backing.is_asleep());
        CHECK(backing.handle != 0);
        CHECK(backing.kept.range == 0);
        sum += backing.bytes;
    }
    return sum;
}

} // namespace

TEST_CASE("Live: contents move to host memory and back, with what is written meanwhile", "[live]") {
    Some fixture;
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
}

TEST_CASE("Live: what is always written to stays, and what is freed or sleeps meanwhile is left", "[live]") {
    Some fixture;
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
    fixture.wake_whole();
}

TEST_CASE("Live: what runs from host memory sleeps, and wakes on the GPU", "[live]") {
    const auto retained = GENERATE(Bytes{0}, 64 * k_mib);
    Some fixture(retaining(retained));
    const auto kind = GENERATE(1, 2);
    if (retained > 0) { // what an earlier sleep has retained is good still
        fixture.cycle();
    }
    REQUIRE(move(fixture, Direction::to_host));
    fixture.change(0, k_mib);
    CHECK(fixture.slept(dry(level(kind))).devices.at(0).released == 0);
    CHECK(fixture.slept(level(kind)).devices.at(0).released == 0); // it had no GPU memory
    CHECK(fixture.state() == State::asleep);
    CHECK(sim_live_objects().handles == 0);
    REQUIRE(fixture.wake());
    CHECK(host_backed(fixture) == 0);
    if (kind == 1) CHECK(fixture.all_intact());
    CHECK(fixture.read(0).size() == 3 * k_mib);
}

TEST_CASE("Live: without host memory that can be mapped, nothing moves", "[live]") {
    Some fixture;
    sim_fail("cuMemCreate", 2, CUDA_ERROR_OUT_OF_MEMORY, SIM_FOREVER);
    const auto moved = move(fixture, Direction::to_host);
    sim_clear();
    CHECK(error_of(moved).code == ErrorCode::out_of_host_memory);
    CHECK(fixture.all_intact());
    CHECK(host_backed(fixture) == 0);
}

TEST_CASE("Live: what cannot have host memory again wakes on the GPU, where it may and fits", "[live]") {
    Some fixture;
    start_in_host_memory(fixture);
    REQUIRE(fixture.sleep(deep())); // a plain one leaves it there
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
    store::HostBudget::own().limit(0);
    CHECK(wake(true, 0, "it would fail"));
    CHECK(wake(false, 0, "").error().code == ErrorCode::out_of_host_memory);
    CHECK(fixture.state() == State::asleep);
    CHECK(wake(true, model::k_all_bytes, "all memory wakes on the GPU"));
    CHECK(fixture.state() == State::asleep);
    CHECK(wake(false, model::k_all_bytes, "all memory wakes on the GPU"));
    store::HostBudget::own().limit({});
    CHECK(fixture.state() == State::partial);
    CHECK(host_backed(fixture) == 0);
    fixture.wake_whole();
}

TEST_CASE("Live: what is in host memory from the start sleeps there", "[live]") {
    const auto retained = GENERATE(Bytes{0}, 64 * k_mib);
    Some fixture(retaining(retained));
    if (retained > 0) { // which is older than what the program writes
        fixture.cycle();
    }
    start_in_host_memory(fixture);
    fixture.change(0, k_mib);
    const auto awake = sim_live_objects();
    const auto weights = fixture.ledger().host_backed(fixture.ledger().tag_id("weights"));
    const Scratch scratch;
    auto report = fixture.slept(dry(level(1)));
    CHECK_THAT(report.notes.at(0), mentions("stays in the host memory"));
    report = fixture.slept(level(1, {"weights"}));
    CHECK_THAT(report.notes.at(0), mentions("stays in the host memory"));
    for (const auto& device : report.devices) {
        CHECK(device.kept > 0);
        CHECK(device.copied == 0);
        CHECK(device.dropped == 0);
    }
    CHECK(in_place(fixture) == weights);
    CHECK(fixture.ledger().report().back().in_place == 2 * k_mib); // of the second device
    CHECK(sim_live_objects().handles == awake.handles);
    CHECK(fixture.host_bytes() == fixture.retained_bytes()); // the cache's
    CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes - weights);
    CHECK(sim_live_objects().reservations == awake.reservations);
    SECTION("a wake maps it, and takes no more host memory") {
        store::HostBudget::own().limit(0);
        report = fixture.woken(tags({"weights"}));
        store::HostBudget::own().limit({});
        CHECK(report.devices.at(0).kept > 0);
        CHECK(report.devices.at(0).dropped == 0);
        CHECK(in_place(fixture) == 0);
        CHECK(sim_live_objects().mapped_bytes == awake.mapped_bytes);
    }
    SECTION("a sleep elsewhere takes it out as it sleeps") {
        auto request = GENERATE(0, 1) == 0 ? deep() : raw(in_files(scratch, true));
        request.tags = {request.deep ? "cache" : "weights"}; // a deep one takes all
        for (const auto& each : {dry(request), request}) {
            CHECK(in_place(fixture) == weights);
            report = fixture.slept(each);
            Bytes relocated = 0;
            for (const auto& device : report.devices) relocated += device.relocated;
            CHECK(relocated <= weights); // what is not zero
            CHECK(relocated > weights - 2 * k_mib);
            CHECK(report.devices.back().device == 1);
            CHECK(report.devices.back().kept == 0);
            CHECK(report.devices.back().stored == 0);
            CHECK(report.devices.back().copied == 0);
        }
        CHECK(in_place(fixture) == 0);
        CHECK((request.deep ? fixture.host_bytes() : fixture.file_bytes()) >= weights / 2);
        CHECK((fixture.ledger().host_backed() == 0) == request.deep);
    }
    SECTION("it is given up") {
        const bool fails = GENERATE(false, true);
        if (fails) sim_fail("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, SIM_ONCE);
        report = fixture.slept(level(2, {"weights"}));
        sim_clear();
        CHECK(in_place(fixture) == 0);
        CHECK(report.notes.empty() != fails); // what the driver did not release
        CHECK((sim_live_objects().physical_bytes == awake.physical_bytes - weights) != fails);
        if (fails) REQUIRE_FALSE(fixture.engine().leave_host_memory()); // the cache is awake there
        CHECK(sim_live_objects().physical_bytes == awake.physical_bytes - weights);
        REQUIRE(fixture.wake());
        fixture.refill();
    }
    SECTION("it is freed") {
        fixture.remove(0);
        CHECK(in_place(fixture) == weights - 4 * k_mib);
        CHECK(sim_live_objects().physical_bytes == awake.physical_bytes - 4 * k_mib);
    }
    fixture.wake_whole();
    CHECK(fixture.ledger().host_backed(fixture.ledger().tag_id("weights")) >= weights - 4 * k_mib);
}

TEST_CASE("Live: damage elsewhere, and copies that cannot be mended, leave what sleeps in place", "[live]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 2 * k_mib);
    start_in_host_memory(fixture);
    fixture.add(0, "weights", 2 * k_mib); // on the GPU
    REQUIRE(fixture.sleep(level(1)));
    CHECK(in_place(fixture) == 2 * k_mib);
    SECTION("a block that is damaged") {
        fixture.flip_kept_bit(1, k_mib, 3);
        // Memory of the GPU holds contents where a move could map neither.
        auto& is_of_host = fixture.ledger().find(fixture.allocations()[0].address)->host_backed;
        for (const bool each : {false, true}) {
            is_of_host = each;
            fixture.add(0, "cache", 2 * k_mib);
            REQUIRE(fixture.sleep(level(1)));
            model::Report report;
            CHECK(fixture.wake({}, &report).error().code == ErrorCode::damaged);
            CHECK(report.devices.at(0).released == 2 * k_mib); // the cache's
            CHECK(in_place(fixture) == 2 * k_mib);
            fixture.remove(2);
        }
        REQUIRE(fixture.sleep(deep()));
        CHECK(in_place(fixture) == 0);
        fixture.remove(1); // and with it the damage
    }
    SECTION("a copy that is") {
        auto request = deep();
        request.check_copies = true;
        for (std::uint64_t i = 1; i <= 50; ++i) sim_corrupt_copy("cuMemcpyDtoHAsync", i);
        CHECK(fixture.sleep(request).error().code == ErrorCode::io_failed);
        sim_clear();
        CHECK(in_place(fixture) == 2 * k_mib);
        CHECK(sim_live_objects().mapped_bytes == 0);
    }
    fixture.wake_whole();
}

TEST_CASE("Live: copies and what sleeps in place go to files together, or neither, or copies", "[live]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 2 * k_mib);
    start_in_host_memory(fixture);
    fixture.add(0, "cache", 2 * k_mib);
    REQUIRE(fixture.sleep(level(1)));
    const Scratch scratch;
    model::Report report;
    using Scope = sleep::Transactions::Scope;
    const auto move = [&](Scope scope) {
        return static_cast<bool>(
            fixture.engine().sleep(raw(in_files(scratch, true)), fixture.control(), report, scope));
    };
    const bool fails = GENERATE(false, true);
    if (fails) sim_fail("*", 1, CUDA_ERROR_ILLEGAL_ADDRESS, SIM_FOREVER);
    CHECK(move(Scope::sleepers) != fails);
    CHECK((fixture.file_bytes() > 2 * k_mib) != fails);
    CHECK(report.devices.size() == (fails ? 0 : 1));
    if (!fails) CHECK(report.devices.at(0).relocated > 2 * k_mib);
    CHECK(in_place(fixture) == (fails ? 2 * k_mib : 0));
    CHECK((fixture.host_bytes() > 0) == fails);
    if (fails) CHECK(move(Scope::copies));
    sim_clear();
    CHECK(fixture.file_bytes() > k_mib);
    CHECK(fixture.host_bytes() == 0);
    CHECK(in_place(fixture) == (fails ? 2 * k_mib : 0));
    fixture.wake_whole();
}

TEST_CASE("Live: what sleeps in place has nothing kept besides if its file cannot get a name",
          "[live][in_place]") {
    EngineFixture fixture;
    fixture.add(0, "weights", 2 * k_mib);
    start_in_host_memory(fixture);
    REQUIRE(fixture.sleep(level(1)));
    const Scratch scratch;
    auto request = raw(in_files(scratch, true));
    request.keep_files = true;
    auto control = fixture.control();
    control.wait_for_others = [&] {
        std::filesystem::remove_all(request.directory);
        return Result<bool>(false);
    };
    model::Report report;
    CHECK_FALSE(fixture.engine().sleep(request, control, report, sleep::Transactions::Scope::sleepers));
    CHECK(in_place(fixture) == 2 * k_mib);
    CHECK(fixture.ledger().backings().begin()->second.kept.range == 0);
    CHECK(fixture.file_bytes() == 0);
    fixture.wake_whole();
}

TEST_CASE("Live: what sleeps in place survives the failure of every driver call", "[sweep][live]") {
    const auto step = GENERATE(as<std::string>(), "sleep", "wake", "deep", "files");
    // The call alone, it and all after it, or what undoes the rest: only unmapping, or only mapping, fails.
    const auto fails = GENERATE(as<std::string>(), "once", "*", "cuMemUnmap", "cuMemMap", "cuMemSetAccess");
    if (step == "files" && fails == "*") return; // as "deep", in ten times the time
    EngineFixture fixture;
    for (const int device : {0, 0, 1}) fixture.add(device, "weights", 2 * k_mib);
    start_in_host_memory(fixture);
    fixture.add(0, "cache", 2 * k_mib); // a neighbour on the GPU, awake until it goes deep
    const auto before = sim_live_objects();
    const auto weights = host_backed(fixture);
    const Scratch scratch;
    int failures = 0;
    for_each_call([&](int call) {
        if (step != "sleep") REQUIRE(fixture.sleep(raw(level(1, {"weights"}))));
        sim_reset_counts();
        sim_fail(fails == "once" ? "*" : fails.c_str(), static_cast<std::uint64_t>(call), 999,
                 fails == "once" ? unsigned{SIM_ONCE} : unsigned{SIM_FOREVER});
        Result<void> done;
        if (step == "wake")
            done = fixture.wake();
        else
            done = fixture.sleep(step == "deep"    ? deep()
                                 : step == "files" ? raw(in_files(scratch, true))
                                                   : raw());
        const auto counts = sim_fault_counts();
        sim_clear();
        INFO(sim_last_failed());
        fixture.await_devices();
        failures += !done;
        CHECK(fixture.retained_bytes() == 0);
        if (!done && step != "sleep") CHECK(in_place(fixture) == weights);
        for (const auto& [address, backing] : fixture.ledger().backings())
            if (backing.holds_contents) CHECK(backing.kept.range == 0);
        if (!done && fails == "once") {
            CHECK(fixture.ledger().state({"cache"}) == State::awake);
            CHECK(fixture.host_bytes() + fixture.file_bytes() == 0);
        }
        // Whatever has failed, it still goes deep, and wakes.
        REQUIRE(fixture.sleep(deep()));
        CHECK(in_place(fixture) == 0);
        REQUIRE(fixture.engine().leave_host_memory());
        CHECK(host_backed(fixture) == 0);
        CHECK(sim_live_objects().mapped_bytes == 0);
        fixture.wake_whole();
        CHECK(fixture.state() == State::awake);
        CHECK(host_backed(fixture) == weights);
        CHECK(fixture.host_bytes() == 0);
        CHECK(sim_live_objects().physical_bytes == before.physical_bytes);
        CHECK(sim_live_objects().mapped_bytes == before.mapped_bytes);
        CHECK(counts.illegal_accesses + sim_fault_counts().illegal_accesses == 0);
        return counts.injected_failures != 0;
    });
    if (sweep_stride() == 1 && (fails == "once" || fails == "*")) CHECK(failures > 4);
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
    CHECK(error_of(move(fixture, Direction::to_host, change)).code == ErrorCode::damaged);
    CHECK(fixture.state() == State::awake);
    CHECK(host_backed(fixture) == 0);
    CHECK(fixture.all_intact());
    CHECK(sim_live_objects().handles == before.handles);
    sim_clear();
    REQUIRE(move(fixture, Direction::to_host));
    sim_corrupt_copy("cuLaunchKernel", 40);
    CHECK(error_of(move(fixture, Direction::to_device)).code == ErrorCode::damaged);
    CHECK(host_backed(fixture) == 64 * k_mib);
    CHECK(fixture.all_intact());
}

TEST_CASE("Live: what sleeps because it cannot be mapped has its contents, none retained", "[live]") {
    Some fixture(retaining(64 * k_mib));
    fixture.cycle();
    fixture.change(0, k_mib);
    const auto break_maps = [] { sim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, SIM_FOREVER); };
    REQUIRE_FALSE(move(fixture, Direction::to_host, break_maps));
    sim_clear();
    CHECK(fixture.state() == State::partial);
    fixture.wake_whole();
    CHECK(fixture.state() == State::awake);
}

TEST_CASE("Live: a move survives the failure of every driver call", "[live]") {
    const auto direction = GENERATE(Direction::to_host, Direction::to_device);
    const unsigned lasts = GENERATE(unsigned{SIM_ONCE}, unsigned{SIM_FOREVER});
    const auto back = direction == Direction::to_host ? Direction::to_device : Direction::to_host;
    Some fixture;
    if (direction == Direction::to_device) REQUIRE(move(fixture, back));
    const auto handles = sim_live_objects().handles;
    std::uint64_t lost = 0;
    int failures = 0, slept = 0;
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
        fixture.wake_whole();
        CHECK(fixture.state() == State::awake);
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
    Some fixture;
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
    Some fixture;
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
