// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a command does, without a terminal: select, hear, withdraw.

#include "find_fixture.hpp"

#include "control/dispatch.hpp"
#include "control/driver_engine.hpp"
#include "control/tasks.hpp"

#include "support/failing_call.hpp"

#include <sys/eventfd.h>

using namespace gpu_sleep;
using namespace gpu_sleep::control;

namespace {

/// This process with a scripted agent inside.
class ScriptedProcess {
public:
    explicit ScriptedProcess(test::FakeAgent::Script script)
        : agent_(tree_.add_agent_directory(k_directory) / agent_socket_name(::getpid(), 99),
                 std::move(script)) {
        tree_.add({.pid = ::getpid(), .start_time = 99});
    }
    [[nodiscard]] Result<Dispatch> select(Selection whom, protocol::Request request) const {
        return Dispatch::select({.whom = std::move(whom), .request = std::move(request)}, finder_of(tree_));
    }
    [[nodiscard]] std::vector<protocol::Request> requests() const { return agent_.requests(); }
    [[nodiscard]] const test::ProcTree& tree() const { return tree_; }

private:
    test::ProcTree tree_;
    test::FakeAgent agent_;
};

Selection this_process() {
    return {.words = {std::to_string(::getpid())}};
}

class Heard : public Listener {
public:
    void progress(const Process& process, const model::Progress& progress) override {
        CHECK(process.pid == ::getpid());
        done = progress.done;
    }
    void past_return(const Process& /*process*/) override { ++past_returns; }
    void ended(const Outcome& outcome) override { outcomes.push_back(outcome); }

    Bytes done = 0;
    int past_returns = 0;
    std::vector<Outcome> outcomes;
};

/// Comes whenever the agent's script says so.
class Interrupted : public Interruptions {
public:
    Interrupted() : Interruptions(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE))) {}
    void interrupt() const { CHECK(::eventfd_write(fd(), 1) == 0); }
    bool has_come() noexcept override {
        eventfd_t taken = 0;
        return ::eventfd_read(fd(), &taken) == 0;
    }
};

} // namespace

TEST_CASE("Dispatch: the driver is asked about no process that has another's number", "[dispatch]") {
    Process ended;
    ended.pid = ::getpid();
    ended.uid = ::geteuid();
    ended.start_time = *start_time_of(::getpid()) - 1;
    Interruptions none;
    const auto answer = run_by_driver(ended, {.request = model::SleepRequest()}, none);
    REQUIRE(std::holds_alternative<Error>(answer));
    CHECK(std::get<Error>(answer).code == ErrorCode::no_process);
}

TEST_CASE("Dispatch: progress and outcomes are heard as they come", "[dispatch]") {
    const ScriptedProcess process([](const protocol::Request&, test::FakeConnection& connection) {
        connection.send(model::Progress{model::Progress::Phase::transfer, 5, 8});
        connection.send(test::sample_sleep());
    });
    model::SleepRequest request;
    request.tags = {"weights"};
    request.deep = GENERATE(false, true);
    auto dispatch = test::need(process.select(this_process(), request));
    CHECK(dispatch.losses().empty());
    Heard heard;
    Interruptions none;
    const auto outcomes = dispatch.carry_out(heard, none);
    REQUIRE(outcomes);
    REQUIRE(outcomes->size() == 1);
    CHECK(std::get<model::Report>(outcomes->front().answer).state == model::State::asleep);
    CHECK(outcomes->front().deep_asked == request.deep);
    REQUIRE(process.requests().size() == 1);
    CHECK(std::get<model::SleepRequest>(process.requests().front()).tags == request.tags);
    CHECK(heard.done == 5);
    REQUIRE(heard.outcomes.size() == 1);
    CHECK(std::holds_alternative<model::Report>(heard.outcomes.front().answer));
}

TEST_CASE("Dispatch: what a sleep drops is known before, and is asked for afterwards", "[dispatch]") {
    const ScriptedProcess process([](const protocol::Request& request, test::FakeConnection& connection) {
        auto report = test::sample_sleep();
        report.dry_run = model::sleep_in(request)->dry_run;
        connection.send(report);
    });
    model::SleepRequest sleep;
    sleep.level = model::Level::drop;
    sleep.joint = true;
    const model::IdleSleepRequest idle{sleep, Milliseconds(5'000)};
    const auto request = GENERATE_COPY(protocol::Request(sleep), protocol::Request(idle));
    auto dispatch = test::need(process.select(this_process(), request));
    const auto losses = dispatch.losses();
    REQUIRE(losses.size() == 1);
    CHECK(losses.front().tags == std::vector<std::string>{"kv_cache"});
    REQUIRE(process.requests().size() == 1);
    auto rehearsed = process.requests().front();
    CHECK(std::exchange(model::sleep_in(rehearsed)->dry_run, false));
    CHECK(rehearsed.index() == request.index());
    CHECK(*model::sleep_in(rehearsed) == sleep);
    Heard heard;
    Interruptions none;
    const auto outcomes = test::need(dispatch.carry_out(heard, none));
    CHECK_FALSE(std::get<model::Report>(outcomes.front().answer).dry_run);
}

TEST_CASE("Dispatch: an interruption withdraws it, but not past the point of no return", "[dispatch]") {
    const bool is_late = GENERATE(false, true);
    Interrupted interrupted;
    Heard heard;
    const ScriptedProcess process([&](const protocol::Request&, test::FakeConnection& connection) {
        if (is_late) connection.send(model::Progress{model::Progress::Phase::release, 0, 0});
        interrupted.interrupt();
        if (!is_late) return connection.wait_for_close();
        const auto end = Clock::now() + Milliseconds(5'000);
        while (heard.past_returns == 0 && Clock::now() < end) std::this_thread::sleep_for(Milliseconds(1));
        connection.send(test::sample_sleep());
    });
    auto dispatch = test::need(process.select(this_process(), model::SleepRequest()));
    const auto outcomes = dispatch.carry_out(heard, interrupted);
    REQUIRE(outcomes);
    CHECK(heard.past_returns == (is_late ? 1 : 0));
    const auto* const error = client::error_of(outcomes->front().answer);
    if (is_late)
        CHECK_FALSE(error);
    else
        CHECK((error && error->code == ErrorCode::cancelled));
    CHECK(heard.outcomes.size() == 1);
}

TEST_CASE("Dispatch: a pass withdraws what is not done by its end, whatever agents say", "[dispatch]") {
    constexpr Milliseconds k_limit{300};
    const bool is_past_return = GENERATE(false, true);
    const ScriptedProcess process([&](const protocol::Request&, test::FakeConnection& connection) {
        // It is in a call, copies for ever, and begins anew.
        for (Bytes n = 0; n < 40; ++n) {
            connection.send(model::Progress{.phase = model::Progress::Phase::transfer,
                                            .done = n % 20 * k_gib,
                                            .total = 20 * k_gib,
                                            .in_call = n % 3 == 0});
            std::this_thread::sleep_for(k_limit / 20);
            if (is_past_return && n == 10)
                connection.send(model::Progress{model::Progress::Phase::release, 0, 0});
        }
        if (is_past_return) connection.send(test::sample_sleep());
    });
    auto finder = finder_of(process.tree());
    auto targets = test::need(find_targets(finder, std::to_string(::getpid())));
    const protocol::Request request = model::IdleSleepRequest();
    std::vector<Task> tasks;
    tasks.push_back({std::move(targets.reached.front()), &request});
    Heard heard;
    Interruptions none;
    const auto start = Clock::now();
    const auto outcomes = carry_out(finder, std::move(tasks), {.end = start + k_limit}, heard, none);
    CHECK(Clock::now() - start < Milliseconds(20'000));
    const auto* const error = client::error_of(outcomes.front().answer);
    CHECK((error == nullptr) == is_past_return); // what cannot be undone any more is waited for
    if (!error) return;
    CHECK(error->code == ErrorCode::timed_out);
    CHECK_THAT(error->message, test::mentions("--timeout"));
}

TEST_CASE("Dispatch: of all processes, none that has nothing to do with it is heard of", "[dispatch]") {
    const auto code = GENERATE(ErrorCode::unknown_tag, ErrorCode::inhibited);
    const ScriptedProcess process([=](const protocol::Request&, test::FakeConnection& connection) {
        connection.send(model::Failure{make_error(code, "no"), model::State::awake});
    });
    auto dispatch = test::need(process.select({}, model::SleepRequest()));
    Heard heard;
    Interruptions none;
    const auto outcomes = dispatch.carry_out(heard, none);
    if (code == ErrorCode::unknown_tag) {
        CHECK(code_of(outcomes) == code); // somebody may have mistyped it
        CHECK(heard.outcomes.empty());
    } else {
        REQUIRE(outcomes);
        CHECK(exit_status_of(*outcomes) == exit_status::failed_awake);
        CHECK(heard.outcomes.size() == 1);
    }
}

TEST_CASE("Dispatch: where one of those that go together cannot be asked, nobody is", "[dispatch]") {
    const ScriptedProcess process([](const protocol::Request&, test::FakeConnection&) {});
    process.tree().add({.pid = 20, .parent = ::getpid()});
    process.tree().write("proc/20/task/5/comm", "gpu-sleep-ctl\n");
    auto whom = this_process();
    whom.tree = true;
    model::SleepRequest request;
    request.joint = true;
    auto dispatch = test::need(process.select(whom, request));
    Heard heard;
    Interruptions none;
    const auto outcomes = dispatch.carry_out(heard, none);
    REQUIRE(outcomes);
    CHECK(process.requests().empty());
    REQUIRE(heard.outcomes.size() == 2);
    CHECK(client::error_of(heard.outcomes[0].answer)->code == ErrorCode::agent_unreachable);
    CHECK(client::error_of(heard.outcomes[1].answer)->code == ErrorCode::cancelled);
}

TEST_CASE("Dispatch: without a thread to open the driver on, a deep sleep's first step does", "[dispatch]") {
    std::string said;
    const auto make = [&] {
        try {
            const auto done = DeepLocker().steps({}, Milliseconds(0)).front()();
            said = done ? "" : done.error().message;
        } catch (const std::system_error&) {
        }
    };
    if (!test::with_failing_calls({{SYS_clone3, EAGAIN}, {SYS_clone, EAGAIN}}, make)) return;
    CHECK(said.starts_with("it is asleep, but not deeply: ")); // of no process, whichever driver there is
}
