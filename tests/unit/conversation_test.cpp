// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the command does for agents in the phase deep, beside all conversations.

#include "unit/questions.hpp"

#include "support/catch.hpp"
#include "support/fake_agent.hpp"
#include "support/sample_reports.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>

using namespace gpu_sleep;
using namespace gpu_sleep::client;
using namespace std::chrono_literals;

namespace {

/// An agent whose process has fallen asleep, and waits for the driver's part.
class SleepyAgent {
public:
    explicit SleepyAgent(Milliseconds last_word = 0ms) {
        int ends[2] = {-1, -1};
        REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
        near_.reset(ends[0]);
        thread_ = std::thread([this, last_word, connection = test::FakeConnection(UniqueFd(ends[1]))] {
            using Phase = model::Progress::Phase;
            connection.send(model::Progress{Phase::release, 0, 0});
            connection.send(model::Progress{Phase::deep, 0, 0});
            connection.wait_for_close();
            goes_on_ = true;
            std::this_thread::sleep_for(last_word);
            auto report = test::sample_sleep();
            report.state = model::State::asleep;
            connection.send(report);
        });
    }
    ~SleepyAgent() { thread_.join(); }

    /// Whether it waits for the driver's part no more.
    [[nodiscard]] bool goes_on() const noexcept { return goes_on_; }

    [[nodiscard]] Question question(std::vector<std::function<Result<void>()>> steps) {
        REQUIRE(::fcntl(near_.get(), F_SETFL, O_NONBLOCK) == 0);
        Question question{std::move(near_), &request_, {.answer = 10s}};
        question.deep_steps = std::move(steps);
        return question;
    }

private:
    const protocol::Request request_ = model::SleepRequest{};
    UniqueFd near_;
    std::atomic<bool> goes_on_ = false;
    std::thread thread_;
};

} // namespace

TEST_CASE("Conversation: the driver's part of several goes on side by side", "[conversation]") {
    SleepyAgent one, other;
    std::promise<void> met;
    const auto meeting = met.get_future().share();
    const auto wait = [&]() -> Result<void> {
        if (meeting.wait_for(10s) == std::future_status::ready) return {};
        return make_error(ErrorCode::timed_out, "the other has not begun");
    };
    const auto meet = [&]() -> Result<void> {
        met.set_value();
        return {};
    };
    for (const auto& answer : ask_all(test::questions(one.question({wait}), other.question({meet}))))
        CHECK(std::holds_alternative<model::Report>(answer));
}

TEST_CASE("Conversation: of those together none takes a step before all took the last", "[conversation]") {
    SleepyAgent one, other;
    std::promise<void> goes_on;
    const auto gone_on = goes_on.get_future();
    const auto lock = [] { return Result<void>(); };
    const auto slow_lock = [&]() -> Result<void> {
        if (gone_on.wait_for(200ms) == std::future_status::timeout) return {};
        return make_error(ErrorCode::internal, "the other has gone on");
    };
    const auto checkpoint = [] { return Result<void>(); };
    const auto telling_checkpoint = [&]() -> Result<void> {
        goes_on.set_value();
        return {};
    };
    const Joint joint;
    auto questions =
        test::questions(one.question({lock, telling_checkpoint}), other.question({slow_lock, checkpoint}));
    for (const auto& answer : ask_all(std::move(questions), nullptr, &joint))
        CHECK(std::holds_alternative<model::Report>(answer));
}

TEST_CASE("Conversation: the first step that fails is the last, and becomes the answer", "[conversation]") {
    SleepyAgent agent;
    std::string taken;
    const auto step = [&](char name, bool works) {
        return [&taken, name, works]() -> Result<void> {
            taken += name;
            if (works) return {};
            return make_error(ErrorCode::driver_failed, "the driver does not want to");
        };
    };
    const auto answers =
        ask_all(test::questions(agent.question({step('a', true), step('b', false), step('c', true)})));
    REQUIRE(std::holds_alternative<model::Failure>(answers[0]));
    const auto& failure = std::get<model::Failure>(answers[0]);
    CHECK(failure.error.message == "the driver does not want to");
    CHECK(failure.state == model::State::asleep);
    CHECK(taken == "ab");
}

TEST_CASE("Conversation: where nothing is to be done the agent hears so at once", "[conversation]") {
    SleepyAgent agent;
    CHECK(std::holds_alternative<model::Report>(ask_all(test::questions(agent.question({})))[0]));
}

TEST_CASE("Conversation: no step for an agent that knows of a withdrawal, without wait", "[conversation]") {
    SleepyAgent agent(200ms);
    const auto is_taken = std::make_shared<std::atomic<bool>>(false);
    const auto take = [is_taken]() -> Result<void> {
        *is_taken = true;
        return {};
    };
    Conversations conversations(test::questions(agent.question({take})));
    conversations.withdraw();
    while (const auto event = conversations.next())
        if (const auto* const answer = std::get_if<Answer>(&event->what)) {
            REQUIRE(std::holds_alternative<model::Failure>(*answer));
            CHECK(std::get<model::Failure>(*answer).state == model::State::asleep);
        }
    CHECK_FALSE(*is_taken);
}

TEST_CASE("Answer: a refusal is one whatever the figures say; nothing done has a reason", "[conversation]") {
    model::Report report;
    CHECK(refusal_in(report).empty());
    report.notes = {"files stay in /d"};
    CHECK(refusal_in(report) == "files stay in /d");
    report.devices.emplace_back().relocated = 1;
    CHECK(refusal_in(report).empty());
    refuse(report, "sleeps are inhibited");
    CHECK(refusal_in(report) == "sleeps are inhibited");
    CHECK(report.notes.back() == "sleeps are inhibited");
    CHECK(refusal_in(make_error(ErrorCode::timed_out, "late")) == "late");
}

TEST_CASE("Conversation: a step without end is left alone by the second interruption", "[conversation]") {
    SleepyAgent agent(500ms);
    std::promise<void> go_on, has_ended;
    struct Events : Interruptions {
        Events() : Interruptions(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE))) {}
        bool has_come() noexcept override {
            eventfd_t taken = 0;
            return ::eventfd_read(fd(), &taken) == 0;
        }
    } interruptions;
    const auto stay = [&]() -> Result<void> {
        ::eventfd_write(interruptions.fd(), 2);
        go_on.get_future().wait();
        has_ended.set_value();
        return {};
    };
    std::vector<client::Event> events;
    Conversations conversations(test::questions(agent.question({stay})), &interruptions);
    while (auto event = conversations.next())
        if (!std::holds_alternative<model::Progress>(event->what)) events.push_back(*std::move(event));
    REQUIRE(events.size() == 2);
    CHECK(std::holds_alternative<PastReturn>(events[0].what));
    const auto answer = std::get<Answer>(events[1].what);
    REQUIRE(std::holds_alternative<Error>(answer));
    CHECK(std::get<Error>(answer).code == ErrorCode::outcome_unknown);
    std::this_thread::sleep_for(50ms);
    CHECK_FALSE(agent.goes_on()); // else the step would lock a process that nobody unlocks
    go_on.set_value();
    has_ended.get_future().wait();
}
