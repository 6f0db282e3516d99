// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Every driver call of a transaction fails in turn, and the asker withdraws, or has no more time, at every
// step. Afterwards all is awake or all is asleep, every byte is there, nothing is lost, and trying again
// succeeds.

#include "support/engine_fixture.hpp"
#include "support/files_of.hpp"
#include "support/sweep.hpp"

using namespace gpu_sleep::test;
using model::State;

namespace {

/// How a process sleeps, and what a call that fails returns.
struct Way {
    const char* name;
    int level;
    bool in_files; ///< those of `weights`
    CUresult status;
    bool retains = false; ///< contents stay in host memory past a wake
    bool relays = false;  ///< their memory is pinned only afterwards
    bool checks = false;  ///< copies are read, and one is damaged each time
    bool is_full = false; ///< the GPUs have no memory for streams: all work is on the default one
};
constexpr std::array k_ways{
    Way{"kept in host memory", 1, false, CUDA_ERROR_UNKNOWN},
    Way{"kept in files too", 1, true, CUDA_ERROR_UNKNOWN}, // takes long: once is enough
    Way{"kept in host memory", 1, false, CUDA_ERROR_OUT_OF_MEMORY},
    Way{"dropped", 2, false, CUDA_ERROR_UNKNOWN},
    Way{"dropped", 2, false, CUDA_ERROR_OUT_OF_MEMORY},
    Way{"retained in host memory", 1, false, CUDA_ERROR_UNKNOWN, true},
    Way{"relayed to host memory", 1, false, CUDA_ERROR_UNKNOWN, true, true},
    Way{"kept by full GPUs", 1, false, CUDA_ERROR_UNKNOWN, false, false, false, true},
    Way{"checked in host memory", 1, false, CUDA_ERROR_UNKNOWN, true, false, true},
};

/// What ends a transaction before its time.
enum class End { failure, withdrawal, deadline };

struct Trial {
    unsigned which; ///< of k_ways
    End end;
};

/// Each of the first `ways` with calls that fail, and those that differ most with the other ends.
std::vector<Trial> trials(std::size_t ways) {
    std::vector<Trial> all;
    for (unsigned which = 0; which < ways; ++which) all.push_back({which, End::failure});
    for (const auto end : {End::withdrawal, End::deadline})
        for (const auto which : {0U, 1U, 3U, 6U}) all.push_back({which, end});
    return all;
}

/// What a transaction makes for itself, and must take back.
std::uint64_t helpers(const sim_live& live) {
    return live.streams + live.events + live.modules + live.host_registrations + live.contexts;
}

/// How many of them the driver keeps when `call` fails: what it was to give back, and without its context
/// nothing of a session can be given back.
std::uint64_t lost_by(std::string_view call) {
    constexpr std::uint64_t k_of_a_session = 5; // three streams, a module, host memory
    constexpr std::array<std::string_view, 5> k_words{"Destroy", "Unload", "Unregister", "Release", "Free"};
    if (call == "cuCtxPushCurrent") return k_of_a_session;
    return std::any_of(k_words.begin(), k_words.end(),
                       [=](std::string_view word) { return call.find(word) != std::string_view::npos; });
}

/// A process with a little of everything: two devices, neighbours, a gap, a second tag, a span, a range with
/// a peer; and what every step of a sweep asks of it.
class Sweep {
public:
    explicit Sweep(const Way& way) : way_(way), fixture_(options_of(way)) {
        fixture_.add(0, "weights", 3 * k_mib);
        fixture_.add(0, "weights", 2 * k_mib);
        fixture_.add(0, "weights", k_mib);
        fixture_.add(0, "kv_cache", 2 * k_mib);
        fixture_.add(0, "buffers", 70'000);
        fixture_.add(1, "weights", k_mib);
        fixture_.remove(1);
        REQUIRE(fixture_.heap().allow_access(fixture_.allocations()[0].address, 1));
        ledger::Ledger::preserve(backing(1), {123, 4567});
        request_ = level(way.level);
        request_.keep = {"buffers"};
        request_.check_copies = way.checks;
        if (way.in_files) {
            request_.stores = {{"weights", model::Store::file}};
            request_.directory = scratch_.file("sleep");
        }
        // Less than what a wake spares for the driver's streams.
        for (int device = 0; device < 2 && way.is_full; ++device) full_.emplace_back(8 * k_mib, device);
        awake_ = sim_live_objects();
    }
    /// Runs `transaction`, whose `number`-th call of the driver fails, or which `end` comes to when its asker
    /// is told for the `number`-th time how far it is.
    template <class Transaction>
    [[nodiscard]] Result<void> run(int number, Transaction&& transaction, End end = End::failure) {
        if (way_.is_full)
            sim_fail("cuStreamCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, SIM_FOREVER | SIM_UNCOUNTED);
        auto done = end == End::failure ? with_driver_failure(number, failed_, transaction, way_.status)
                                        : run_until(number, end, transaction);
        if (end == End::failure) {
            reached_ = !failed_.empty();
            lost_ += lost_by(failed_);
        }
        failures_ += !done;
        return done;
    }
    /// Whether the call that was to fail, or the step that was to be the last, was made.
    [[nodiscard]] bool reached() const { return reached_; }
    [[nodiscard]] int failures() const { return failures_; }

    [[nodiscard]] Result<void> sleep() { return fixture_.sleep(request_); }
    /// Flips a bit of what is retained, where the sleep is to find it.
    void damage_retained() {
        constexpr std::size_t k_cache = 2; // of which no block changes
        if (way_.checks && fixture_.engine().contents().find_retained(backing(k_cache).kept.range))
            fixture_.flip_kept_bit(k_cache, 99, 5);
    }
    /// Whether the files of the next sleep stay there when it wakes.
    void keep_files(bool keeps) { request_.keep_files = keeps && way_.in_files; }

    void check_asleep() {
        CHECK(fixture_.state() == State::asleep);
        CHECK(files_in(request_.directory).size() == (way_.in_files ? 2U : 0U));
        CHECK(endings_in(request_.directory).count(".kept") == (request_.keep_files ? 2U : 0U));
        CHECK(sim_live_objects().mapped_bytes == 0);
    }
    /// All is awake as it was before the sleep, every byte included.
    void check_untouched() {
        CHECK(fixture_.all_intact());
        check_nothing_is_left();
    }
    /// All is awake, what was kept as it was before and the rest zero; then it is filled again.
    void check_woken() {
        remove_kept_files();
        for (std::size_t i = 0; i < fixture_.allocations().size(); ++i) {
            INFO("allocation " << i);
            CHECK(fixture_.read(i) == expected(i));
        }
        fixture_.refill();
        check_nothing_is_left();
        // The next sleep finds one block changed, one that became zero, or is no longer, and the rest as it
        // was.
        fixture_.change(0, 2 * k_mib + 5);
        fixture_.fill(0, {k_mib, k_mib}, fixture_.allocations()[0].contents[k_mib] == 0 ? 1 : 0);
    }

    [[nodiscard]] EngineFixture& fixture() { return fixture_; }
    [[nodiscard]] ledger::Backing& backing(std::size_t allocation) {
        return *fixture_.ledger().find(fixture_.allocations()[allocation].address);
    }

private:
    template <class Transaction>
    [[nodiscard]] Result<void> run_until(int step, End end, Transaction&& transaction) {
        auto& control = fixture_.control();
        auto phase = model::Progress::Phase{};
        int steps = 0;
        CallWords words;
        control.progress = [&](const model::Progress& progress) {
            if (words.are(progress) || ++steps != step) return true;
            phase = progress.phase;
            if (end == End::deadline) control.deadline = Clock::now();
            return end == End::deadline;
        };
        auto done = transaction();
        control = {};
        reached_ = steps >= step;
        failed_ = model::to_string(phase);
        const bool was_past_return = end == End::deadline && phase == model::Progress::Phase::release;
        CHECK(done.has_value() == (!reached_ || was_past_return));
        const auto code = end == End::deadline ? ErrorCode::timed_out : ErrorCode::cancelled;
        if (!done) CHECK(done.error().code == code);
        return done;
    }

    [[nodiscard]] static sleep::Transactions::Options options_of(const Way& way) {
        auto options = retaining(way.retains ? 64 * k_mib : 0);
        options.relay_threads = way.relays ? 2 : 0;
        options.relay_from = 0;
        options.staging = (way.relays ? 24 : 12) * k_mib; // three slots for each device, or two
        return options;
    }

    [[nodiscard]] std::vector<std::uint8_t> expected(std::size_t index) {
        const auto& contents = fixture_.allocations()[index].contents;
        const auto& owner = backing(index);
        const bool is_kept = way_.level == 1 || fixture_.ledger().tag(owner.tag).name == "buffers";
        if (is_kept) return contents;
        std::vector<std::uint8_t> bytes(contents.size(), 0);
        REQUIRE(owner.address == fixture_.allocations()[index].address);
        for (const auto& span : owner.preserved)
            std::copy_n(contents.begin() + static_cast<std::ptrdiff_t>(span.offset), span.bytes,
                        bytes.begin() + static_cast<std::ptrdiff_t>(span.offset));
        return bytes;
    }

    void remove_kept_files() {
        CHECK(endings_in(request_.directory).count(".kept") == (request_.keep_files ? 2U : 0U));
        if (!request_.keep_files) return;
        for (const auto& file : files_in(request_.directory)) std::filesystem::remove(file);
    }

    void check_nothing_is_left() {
        const auto live = sim_live_objects();
        CHECK(fixture_.state() == State::awake);
        CHECK(files_in(request_.directory).empty());
        CHECK(live.handles == awake_.handles);
        CHECK(live.mapped_bytes == awake_.mapped_bytes);
        CHECK(live.reservations == awake_.reservations);
        INFO("after " << failed_ << " failed");
        // What is retained stays registered.
        const auto retained = fixture_.retained_bytes() == 0 ? 0 : live.host_registrations;
        CHECK((retained == 0 || way_.retains));
        CHECK(helpers(live) - retained <= helpers(awake_) + lost_);
        CHECK(sim_fault_counts().illegal_accesses == 0);
    }

    Way way_;
    Scratch scratch_;
    EngineFixture fixture_;
    model::SleepRequest request_;
    std::deque<Full> full_;
    sim_live awake_{};
    std::uint64_t lost_ = 0;  ///< helpers that the driver did not take back
    std::string_view failed_; ///< the call, or the phase
    bool reached_ = false;
    int failures_ = 0;
};

} // namespace

TEST_CASE("Sweep: a sleep survives the failure of every driver call, and an early end at every step",
          "[sweep][sleep]") {
    const auto trial = GENERATE(from_range(trials(k_ways.size())));
    const auto& way = k_ways.at(trial.which);
    Sweep sweep(way);
    bool keeps_files = false;
    const auto step = [&](int number) {
        INFO(way.name << ", a call gives " << way.status);
        sweep.keep_files(keeps_files = trial.end == End::failure && !keeps_files);
        sweep.damage_retained();
        const auto slept = sweep.run(
            number, [&] { return sweep.sleep(); }, trial.end);
        if (!slept) {
            sweep.check_untouched();
            REQUIRE(sweep.sleep());
        }
        sweep.check_asleep();
        REQUIRE(sweep.fixture().wake());
        sweep.check_woken();
        return sweep.reached();
    };
    for_each_call(step, trial.end == End::failure ? trial.which : 0);
    CHECK(sweep.failures() > (trial.end == End::failure ? 5 / sweep_stride() : 0));
}

TEST_CASE("Sweep: a wake survives the failure of every driver call, and an early end at every step",
          "[sweep][wake]") {
    const auto trial = GENERATE(from_range(trials(k_ways.size() - 1)));
    const auto& way = k_ways.at(trial.which);
    Sweep sweep(way);
    const auto step = [&](int number) {
        INFO(way.name << ", a call gives " << way.status);
        REQUIRE(sweep.sleep());
        if (trial.end == End::failure && number % 2 == 0)
            sweep.fixture().pin(number % 4 == 0 ? 1 : 100); // the rest is relayed back
        const auto woken = sweep.run(
            number, [&] { return sweep.fixture().wake(); }, trial.end);
        if (!woken) {
            sweep.check_asleep();
            if (trial.end != End::failure) CHECK(sim_live_objects().handles == 0);
            REQUIRE(sweep.fixture().wake());
        }
        sweep.check_woken();
        return sweep.reached();
    };
    for_each_call(step, trial.end == End::failure ? trial.which : 0);
    CHECK(sweep.failures() > (trial.end == End::failure ? 10 / sweep_stride() : 0));
}

TEST_CASE("Sweep: a wake past a damaged tag survives the failure of every driver call", "[sweep][wake]") {
    Sweep sweep(k_ways.at(GENERATE(0U, 6U)));
    constexpr std::size_t k_cache = 2; // the index of its allocation
    for_each_call([&](int call) {
        REQUIRE(sweep.sleep());
        const auto flip = [&] { sweep.fixture().flip_kept_bit(k_cache, 99, 5); };
        flip();
        auto woken = sweep.run(call, [&] { return sweep.fixture().wake(); });
        REQUIRE_FALSE(woken);
        if (woken.error().code != ErrorCode::damaged) {
            sweep.check_asleep();
            woken = sweep.fixture().wake();
        }
        CHECK(woken.error().code == ErrorCode::damaged);
        CHECK(sweep.fixture().ledger().state({"weights", "buffers"}) == State::awake);
        CHECK(sweep.fixture().ledger().state({"kv_cache"}) == State::damaged);
        // Heal it, as no program can: what is damaged is given up and filled again.
        auto discard = level(1, {"kv_cache"});
        discard.discard = {"kv_cache"};
        REQUIRE(sweep.fixture().sleep(discard));
        REQUIRE(sweep.fixture().wake());
        CHECK(sweep.fixture().read(k_cache) == std::vector<std::uint8_t>(2 * k_mib, 0));
        sweep.fixture().refill();
        sweep.check_untouched();
        return sweep.reached();
    });
    CHECK(sweep.failures() > 10 / sweep_stride());
}

TEST_CASE("Sweep: pinning what a sleep has relayed survives the failure of every driver call",
          "[sweep][sleep]") {
    const auto& way = k_ways[6];
    Sweep sweep(way);
    for_each_call([&](int call) {
        REQUIRE(sweep.sleep());
        static_cast<void>(sweep.run(call, [&] {
            sweep.fixture().pin(100);
            return Result<void>();
        }));
        sweep.check_asleep();
        REQUIRE(sweep.fixture().wake());
        sweep.check_woken();
        REQUIRE(sweep.sleep());
        static_cast<void>(sweep.fixture().engine().contents().trim_retained(0));
        REQUIRE(sweep.fixture().wake());
        sweep.check_woken();
        static_cast<void>(sweep.fixture().engine().contents().trim_retained(0)); // the next copies all again
        static_cast<void>(sweep.fixture().engine().contents().reap());
        return sweep.reached();
    });
}

TEST_CASE(
    "Sweep: preparing, and a sleep that takes what is prepared, survive the failure of every driver call",
    "[sweep][sleep]") {
    sleep::Transactions::Options options{2, 0};
    options.relay_threads = 2;
    options.relay_from = GENERATE(Bytes{0}, k_gib);
    EngineFixture fixture(options);
    auto& contents = fixture.engine().contents();
    fixture.add(0, "weights", contents::Contents::k_prepared_piece + k_mib);
    const auto awake = sim_live_objects();
    std::uint64_t lost = 0;
    int failures = 0;
    for_each_call([&](int call) {
        std::string_view failed;
        const auto slept = with_driver_failure(call, failed, [&] {
            for (int i = 0; i < 2; ++i)
                if (const auto piece = contents.prepare_piece()) contents.add_prepared(0, **piece);
            return fixture.sleep(level(1));
        });
        INFO("after " << failed << " failed");
        lost += lost_by(failed);
        failures += !slept;
        if (!slept) {
            CHECK(fixture.state() == State::awake);
            CHECK(fixture.all_intact());
            REQUIRE(fixture.sleep(level(1)));
        }
        fixture.wake_whole();
        static_cast<void>(contents.trim_retained(0));
        static_cast<void>(contents.reap());
        CHECK(helpers(sim_live_objects()) <= helpers(awake) + lost);
        return !failed.empty();
    });
    CHECK((failures > 10 || sweep_stride() > 1)); // the first calls prepare
}

TEST_CASE("Sweep: giving back what died asleep survives the failure of every driver call", "[sweep][wake]") {
    constexpr int k_count = 6;
    constexpr Bytes k_each = 2 * k_mib;
    const bool for_good = GENERATE(false, true); // until the wake
    EngineFixture fixture;
    std::uint64_t lost = 0;
    int stuck = 0;
    for_each_call([&](int call) {
        for (int i = 0; i < k_count; ++i) fixture.add(0, "weights", k_each);
        const auto awake = sim_live_objects();
        REQUIRE(fixture.sleep(level(1)));
        for (const std::size_t i : {4U, 2U, 0U}) fixture.remove(i); // what stays lies in three parts
        std::string_view failed;
        const auto given_back = with_driver_failure(
            call, failed, [&] { return fixture.shrink(); }, CUDA_ERROR_UNKNOWN,
            for_good ? SIM_FOREVER : SIM_ONCE);
        INFO("after " << failed << " failed");
        lost += lost_by(failed);
        // All of it, or nothing where the driver does not let go.
        CHECK((given_back == 3 * k_each || given_back == 0));
        stuck += given_back == 0;
        CHECK(fixture.host_bytes() == k_count * k_each - given_back);
        CHECK(fixture.state() == State::asleep);
        fixture.wake_whole();
        CHECK(helpers(sim_live_objects()) <= helpers(awake) + lost);
        while (!fixture.allocations().empty()) fixture.remove(0);
        return !failed.empty();
    });
    CHECK((!for_good || stuck > 0 || sweep_stride() > 1)); // unpinning is tried twice
}

TEST_CASE("Sweep: contents freed while they sleep give their host memory back, and the rest wakes whole",
          "[sweep][wake]") {
    EngineFixture fixture;
    std::uint64_t seed = 7;
    const auto random = [&](std::size_t below) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        return static_cast<std::size_t>(seed >> 33) % below;
    };
    for (int round = 0; round < 8; ++round) {
        while (fixture.allocations().size() < 24)
            fixture.add(random(2) == 0 ? 0 : 1, random(2) == 0 ? "weights" : "kv_cache",
                        (1 + random(5)) * k_mib + random(2) * 70'000);
        REQUIRE(fixture.sleep(raw()));
        const auto full = fixture.host_bytes();
        const auto stay = random(24);
        while (fixture.allocations().size() > stay) {
            fixture.remove(random(fixture.allocations().size()));
            if (random(3) != 0) continue;
            fixture.shrink();
            Bytes live = 0;
            for (const auto& [address, backing] : fixture.ledger().backings()) live += backing.kept.bytes;
            CHECK(fixture.host_bytes() <= live + live / 3 + 1);
        }
        CHECK(fixture.host_bytes() <= full);
        fixture.wake_whole();
    }
}

TEST_CASE("Sweep: what the driver does not unmap sleeps all the same, and wakes", "[sweep][sleep]") {
    const auto& way = k_ways.at(GENERATE(0U, 1U));
    Sweep sweep(way);
    int reached = 0;
    for (std::uint64_t unmap = 1; unmap < 10; ++unmap) {
        INFO("unmap " << unmap << " and all after it, " << way.name);
        sim_reset_counts();
        sim_fail("cuMemUnmap", unmap, CUDA_ERROR_UNKNOWN, SIM_FOREVER);
        REQUIRE(sweep.sleep());
        reached += sim_live_objects().mapped_bytes != 0;
        sim_clear();
        CHECK(sweep.fixture().state() == State::asleep);
        REQUIRE(sweep.fixture().wake());
        sweep.check_untouched();
    }
    CHECK(reached > 2);
}
