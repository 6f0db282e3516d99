// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The steps of the driver's checkpoint in every state, with every failure of the driver; and what a process
// needs to come back, by what its checkpoint made free.

#include "checkpoint/room.hpp"
#include "checkpoint/steps.hpp"
#include "support/catch.hpp"

#include <bit>

namespace gpu_sleep::checkpoint {
namespace {

using test::mentions;

constexpr pid_t k_pid = 4242;
constexpr int k_status = 999;
constexpr std::array k_states{State::running, State::locked, State::checkpointed, State::failed};

/// A process, as the driver has it. Names of calls that fail, and how, are in `failures`; `breaks` is the
/// call with which the driver cannot go on.
class FakeDriver final : public Driver {
public:
    explicit FakeDriver(State now) : stands(now) {}

    [[nodiscard]] Result<State> state(pid_t pid) const override {
        const auto done = call("state", pid);
        return done ? Result<State>(stands) : done.error();
    }
    [[nodiscard]] Result<void> lock(pid_t pid, Milliseconds) const override {
        return move("lock", pid, State::running, State::locked);
    }
    [[nodiscard]] Result<void> checkpoint(pid_t pid) const override {
        return move("checkpoint", pid, State::locked, State::checkpointed);
    }
    [[nodiscard]] Result<void> restore(pid_t pid, std::span<const GpuPair>) const override {
        return move("restore", pid, State::checkpointed, State::locked);
    }
    [[nodiscard]] Result<void> unlock(pid_t pid) const override {
        return move("unlock", pid, State::locked, State::running);
    }

    mutable State stands;
    mutable std::string calls; ///< but for "state"
    std::map<std::string, ErrorCode> failures;
    std::string breaks;

private:
    [[nodiscard]] Result<void> call(const std::string& name, pid_t pid) const {
        REQUIRE(pid == k_pid);
        const auto failure = failures.find(name);
        if (failure != failures.end()) return fails(name, failure->second);
        return {};
    }
    [[nodiscard]] Result<void> move(const std::string& name, pid_t pid, State from, State to) const {
        calls += name + ' ';
        GPU_SLEEP_TRY(call(name, pid));
        if (stands == from)
            stands = name == breaks ? State::failed : to;
        else
            return make_error(ErrorCode::driver_failed, "illegal state");
        if (stands == State::failed) return fails(name);
        return {};
    }
    [[nodiscard]] static Error fails(const std::string& name, ErrorCode code = ErrorCode::driver_failed) {
        return {code, name + " fails", name, k_status};
    }
};

enum class Step : std::uint8_t { lock, checkpoint, undo, restore, unlock, settle };
constexpr std::array k_steps{Step::lock,    Step::checkpoint, Step::undo,
                             Step::restore, Step::unlock,     Step::settle};

Result<void> take(Step step, const FakeDriver& driver, Kept kept = Kept::nothing) {
    const Steps engine(driver, k_pid, kept);
    switch (step) {
    case Step::lock: return engine.lock(Milliseconds(1'000), driver.stands);
    case Step::checkpoint: return engine.checkpoint();
    case Step::undo: return engine.undo(make_error(ErrorCode::cancelled, "interrupted"));
    case Step::restore: return engine.restore({});
    case Step::unlock: return engine.unlock();
    case Step::settle: break;
    }
    const auto is_away = GPU_SLEEP_TRY(engine.settle(driver.stands));
    CHECK(is_away == (driver.stands == State::checkpointed));
    return {};
}

struct Case {
    Step step;
    State before;
    std::map<std::string, ErrorCode> failures;
    State after;
    std::optional<ErrorCode> code;
    std::string words{}, breaks{};
};

} // namespace

TEST_CASE("Checkpoint: what each step does, and what its failure means", "[checkpoint]") {
    using enum State;
    constexpr auto k_failed = ErrorCode::driver_failed;
    constexpr auto k_lost = ErrorCode::context_lost;
    constexpr auto k_late = ErrorCode::timed_out;
    constexpr auto k_full = ErrorCode::out_of_device_memory;
    constexpr auto k_invalid = ErrorCode::invalid_argument;
    constexpr auto k_cancelled = ErrorCode::cancelled;
    const std::vector<Case> cases{
        {Step::lock, running, {}, locked, {}},
        {Step::lock, running, {{"lock", k_late}}, running, k_late, "did not finish within 1000 ms"},
        {Step::lock, running, {{"lock", k_failed}}, running, k_failed, "did not lock it: lock fails"},
        {Step::lock, running, {}, failed, k_lost, "did not lock it", "lock"},
        {Step::lock, locked, {}, locked, {}}, // by unlocking it first, as the next test shows
        {Step::lock, locked, {{"lock", k_late}}, running, k_late},
        {Step::lock, locked, {{"unlock", k_failed}}, locked, k_failed},
        {Step::lock, locked, {}, failed, k_lost, "did not unlock it: unlock fails", "unlock"},
        {Step::lock, checkpointed, {}, checkpointed, k_failed},
        {Step::lock, failed, {}, failed, k_lost, "cannot be saved; end the process"},
        {Step::checkpoint, locked, {}, checkpointed, {}},
        {Step::checkpoint, locked, {{"checkpoint", k_failed}}, running, k_failed, "did not checkpoint it"},
        {Step::checkpoint,
         locked,
         {{"checkpoint", k_failed}, {"unlock", k_failed}},
         locked,
         k_failed,
         "the driver did not unlock it: unlock fails"},
        {Step::checkpoint, locked, {{"checkpoint", k_failed}, {"state", k_failed}}, running, k_failed},
        {Step::checkpoint, locked, {}, failed, k_lost, "checkpoint fails: it is lost", "checkpoint"},
        {Step::checkpoint, running, {}, running, k_failed},
        {Step::checkpoint, checkpointed, {}, checkpointed, k_failed},
        {Step::undo, locked, {}, running, k_cancelled, "interrupted"},
        {Step::undo, locked, {{"unlock", k_failed}}, locked, k_cancelled, "the driver did not unlock it"},
        {Step::undo, locked, {}, failed, k_lost, "interrupted; the driver did not unlock it", "unlock"},
        {Step::undo, running, {}, running, k_cancelled},
        {Step::undo, failed, {}, failed, k_lost},
        {Step::restore, checkpointed, {}, locked, {}},
        {Step::restore,
         checkpointed,
         {{"restore", k_full}},
         checkpointed,
         k_lost,
         "with too little GPU memory, and cannot try again: restore fails"},
        {Step::restore, checkpointed, {{"restore", k_invalid}}, checkpointed, k_invalid, "without --gpu"},
        {Step::restore, checkpointed, {{"restore", k_failed}}, checkpointed, k_failed},
        {Step::restore, checkpointed, {}, failed, k_lost, "it is lost", "restore"},
        {Step::unlock, locked, {}, running, {}},
        {Step::unlock, locked, {}, failed, k_lost, "did not unlock it", "unlock"},
        {Step::settle, running, {}, running, {}},
        {Step::settle, locked, {}, running, {}},
        {Step::settle, locked, {{"unlock", k_failed}}, locked, k_failed},
        {Step::settle, locked, {}, failed, k_lost, "did not unlock it", "unlock"},
        {Step::settle, checkpointed, {}, checkpointed, {}},
        {Step::settle, failed, {}, failed, k_lost, "the driver failed partway: it is lost"},
    };
    for (std::size_t i = 0; i < cases.size(); ++i) {
        INFO("case " << i);
        const auto& each = cases[i];
        FakeDriver driver(each.before);
        driver.failures = each.failures;
        driver.breaks = each.breaks;
        const auto done = take(each.step, driver);
        INFO((done ? std::string() : done.error().message));
        CHECK(driver.stands == each.after);
        REQUIRE(done.has_value() == !each.code);
        if (done) continue;
        CHECK(done.error().code == *each.code);
        CHECK_THAT(done.error().message, mentions(each.words));
    }
}

TEST_CASE("Checkpoint: one that was left locked may be at work, and is locked anew", "[checkpoint]") {
    const FakeDriver driver(State::locked);
    CHECK(take(Step::lock, driver));
    CHECK(driver.calls == "unlock lock ");
}

TEST_CASE("Checkpoint: whatever fails, nothing is taken or given back that was not to be", "[checkpoint]") {
    for (const auto before : k_states)
        for (const auto step : k_steps)
            for (unsigned failing = 0; failing < 1U << 9; ++failing) {
                FakeDriver driver(before);
                const std::array names{"state", "lock", "checkpoint", "restore", "unlock"};
                for (std::size_t i = 0; i < names.size(); ++i)
                    if ((failing >> i & 1U) != 0) driver.failures[names[i]] = ErrorCode::driver_failed;
                const auto breaks = failing >> names.size();
                if (std::popcount(breaks) > 1) continue;
                for (std::size_t i = 1; i < names.size(); ++i)
                    if ((breaks >> (i - 1) & 1U) != 0) driver.breaks = names[i];
                const auto done = take(step, driver);
                INFO(static_cast<int>(step) << " from " << static_cast<int>(before));
                if (before == State::failed) CHECK(driver.stands == before);
                if (driver.stands == State::failed) {
                    REQUIRE_FALSE(done);
                    if (!driver.failures.contains("state"))
                        CHECK(done.error().code == ErrorCode::context_lost);
                    continue;
                }
                if (before == State::checkpointed && (step != Step::restore || !done))
                    CHECK(driver.stands == before);
                if (before == State::running && (step != Step::lock || !done)) CHECK(driver.stands == before);
                if (before == State::locked && driver.stands == State::checkpointed)
                    CHECK((step == Step::checkpoint && done));
                if (!done) CHECK(done.error().code != ErrorCode::context_lost);
            }
}

TEST_CASE("Checkpoint: of a lost process with an agent what is kept can be saved", "[checkpoint]") {
    CHECK_THAT(test::error_of(take(Step::settle, FakeDriver(State::failed), Kept::by_agent)).message,
               mentions("the driver has lost it (the driver failed partway)") &&
                   mentions("--store file --dir DIR --keep-files"));
    FakeDriver driver(State::checkpointed);
    driver.breaks = "restore";
    const auto broken = test::error_of(take(Step::restore, driver, Kept::by_agent));
    CHECK(broken.where == "restore");
    CHECK(broken.driver_status == k_status);
}

TEST_CASE("Checkpoint room: one without an agent needs what became free, or what it had", "[checkpoint]") {
    CHECK(need_of_all(14 * k_mib, 20 * k_mib) == 20 * k_mib);
    CHECK(need_of_all(14 * k_mib, 14 * k_mib) == 14 * k_mib); // it may have had all of the GPU
    CHECK(need_of_all(13 * k_mib, 7 * k_mib) == 29 * k_mib);  // others have taken some meanwhile
    CHECK(need_of_all(0, 0) == 0);
    CHECK(need_of_all({}, 40 * k_mib) == 40 * k_mib);
    CHECK(need_of_all({}, 16 * k_mib) == 0);
}

TEST_CASE("Checkpoint room: with an agent: its rest, and the larger of woken and uncounted", "[checkpoint]") {
    const auto need = [](Bytes used, Bytes freed, Bytes waking) {
        return need_of(rest_of(used, freed), waking);
    };
    CHECK(need(8 * k_mib, 8 * k_mib, 6 * k_mib) == 24 * k_mib);
    CHECK(need(8 * k_mib, 38 * k_mib, 6 * k_mib) == 38 * k_mib);
    CHECK(need(8 * k_mib, k_gib, 6 * k_mib) == 264 * k_mib); // most of that was somebody else's
    CHECK(need(8 * k_mib, 0, 0) == 24 * k_mib);              // somebody else took as much
    CHECK(need(8 * k_mib, 8 * k_mib, k_gib) == k_gib + 8 * k_mib);
    CHECK(rest_of(0, 5 * k_mib).bytes == 5 * k_mib);
    CHECK(rest_of(0, 0).bytes == 2 * k_gib); // nothing is known of it
}

TEST_CASE("Checkpoint room: what others set aside is not free, and four come back at once", "[checkpoint]") {
    CHECK(left_to_others(3, 5 * k_gib) == 5 * k_gib);
    CHECK_FALSE(left_to_others(4, 0));
    const BytesByGpu others{{"GPU-1", 5}, {"GPU-2", 0}};
    CHECK(free_besides(others, "GPU-1", 8) == 3);
    CHECK(free_besides(others, "GPU-1", 3) == 0);
    CHECK(free_besides(others, "GPU-3", 8) == 8);
    const BytesByGpu room{{"GPU-1", 2}};
    CHECK(*judge_count(room, true, others));
    CHECK_FALSE(*judge_count(room, false, others));
    const auto too_little = make_error(ErrorCode::out_of_device_memory, "too little");
    const auto waits = judge_count(too_little, false, others); // until they are back
    REQUIRE(waits);
    CHECK_FALSE(*waits);
    CHECK_FALSE(judge_count(too_little, false, {{"GPU-2", 0}}));
    CHECK_FALSE(judge_count(make_error(ErrorCode::driver_failed, "not known"), false, others));
}

TEST_CASE("Checkpoint room: who counts or has room shares a GPU's lock", "[checkpoint]") {
    CHECK(Claim().hold() == Hold::none);
    CHECK(Claim{.is_counting = true}.hold() == Hold::shared);
    CHECK(Claim{.room = 1}.hold() == Hold::shared);
    CHECK(Claim{.has_lock = true, .room = 1}.hold() == Hold::alone);
}

} // namespace gpu_sleep::checkpoint
