// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Conversations with agents that answer, err, fall silent and vanish; and the exit status of each end.

#include "unit/questions.hpp"

#include "control/tasks.hpp"

#include "support/fake_agent.hpp"
#include "support/proc_tree.hpp"
#include "support/sample_reports.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>

using namespace gpu_sleep;
using namespace gpu_sleep::control;
using namespace gpu_sleep::client;
using namespace std::chrono_literals;

namespace {

constexpr Milliseconds k_patience{5'000};

/// This process with a scripted agent inside.
class Stage {
public:
    explicit Stage(test::FakeAgent::Script script)
        : agent_(tree_.add_agent_directory("gpu-sleep-0") / agent_socket_name(::getpid(), 99),
                 std::move(script)) {
        tree_.add({.pid = ::getpid(), .start_time = 99});
    }

    [[nodiscard]] Finder finder() const { return Finder(ProcFs(tree_.proc()), tree_.root()); }
    [[nodiscard]] Process process() const { return *finder().proc().read(::getpid()); }
    [[nodiscard]] const test::ProcTree& tree() const { return tree_; }

    [[nodiscard]] Question question(protocol::Request request, Milliseconds patience = k_patience) const {
        const auto& asked = asked_.emplace_back(std::move(request));
        return {*finder().connect(process()), &asked, {.answer = patience}};
    }

    [[nodiscard]] Answer ask(protocol::Request request, Milliseconds patience = k_patience) const {
        return ask_all(test::questions(question(std::move(request), patience))).front();
    }

    [[nodiscard]] const test::FakeAgent& agent() const { return agent_; }

private:
    test::ProcTree tree_;
    test::FakeAgent agent_;
    mutable std::deque<protocol::Request> asked_;
};

const model::Progress k_release{model::Progress::Phase::release, 0, 0};

/// What an agent does that says nothing, or one thing.
void silent(const protocol::Request& /*unused*/, const test::FakeConnection& connection) {
    connection.wait_for_close();
}
test::FakeAgent::Script reply(protocol::Reply said) {
    return [said = std::move(said)](const auto&, auto& connection) { connection.send(said); };
}
test::FakeAgent::Script reply_bytes(std::vector<std::byte> said) {
    return [said = std::move(said)](const auto&, auto& connection) { connection.send_bytes(said); };
}

/// A command that asks one agent and can be interrupted from the agent's script.
class Interrupting : public Interruptions {
public:
    Interrupting() : Interruptions(UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE))) {}

    void interrupt() const { ::eventfd_write(fd(), 1); }
    [[nodiscard]] Answer ask(const Stage& stage) {
        Conversations conversations(test::questions(stage.question(model::SleepRequest{})), this);
        for (;;) {
            auto event = *conversations.next();
            if (std::holds_alternative<PastReturn>(event.what)) ++warnings_;
            if (auto* const answer = std::get_if<Answer>(&event.what)) return std::move(*answer);
        }
    }
    [[nodiscard]] int warnings() const { return warnings_; }
    bool has_come() noexcept override {
        eventfd_t taken = 0;
        return ::eventfd_read(fd(), &taken) == 0;
    }

private:
    int warnings_ = 0;
};

/// The answer of one, and how much was done when it told of that.
Answer ask_and_note(Question question, std::vector<Bytes>& seen) {
    Conversations conversations(test::questions(std::move(question)));
    for (;;) {
        auto event = *conversations.next();
        if (auto* const answer = std::get_if<Answer>(&event.what)) return std::move(*answer);
        seen.push_back(std::get<model::Progress>(event.what).done);
    }
}

ErrorCode error_code(const Answer& answer) {
    REQUIRE(std::holds_alternative<Error>(answer));
    return std::get<Error>(answer).code;
}

} // namespace

TEST_CASE("Client: a request arrives as it was made, progress and the report come back", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        for (Bytes done : {1, 2, 3})
            connection.send(model::Progress{model::Progress::Phase::transfer, done, 3});
        connection.send(test::sample_sleep());
    });
    model::SleepRequest request;
    request.tags = {"weights"};
    std::vector<Bytes> seen;
    const auto answer = ask_and_note(stage.question(request), seen);
    REQUIRE(std::holds_alternative<model::Report>(answer));
    CHECK(std::get<model::Report>(answer).name == "llama");
    CHECK(seen == std::vector<Bytes>{1, 2, 3});
    const auto requests = stage.agent().requests();
    REQUIRE(requests.size() == 1);
    CHECK(std::get<model::SleepRequest>(requests[0]).tags == request.tags);
}

TEST_CASE("Client: an agent that says nothing is given up after the time allowed", "[client]") {
    const Stage stage(silent);
    const auto start = Clock::now();
    CHECK(error_code(stage.ask(model::WakeRequest{}, 50ms)) == ErrorCode::timed_out);
    CHECK(Clock::now() - start >= 50ms);
}

TEST_CASE("Client: an agent that makes progress for ever is given up, and learns of it", "[client]") {
    std::atomic<bool> could_not_send{false};
    const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
        const auto progress = *protocol::encode(protocol::Reply(model::Progress{}));
        while (::send(connection.fd(), progress.data(), progress.size(), MSG_NOSIGNAL) > 0)
            std::this_thread::sleep_for(20ms);
        could_not_send = true;
    });
    const auto start = Clock::now();
    CHECK(error_code(stage.ask(model::SleepRequest{}, 300ms)) == ErrorCode::timed_out);
    CHECK(error_code(stage.ask(model::StatusRequest{}, 300ms)) == ErrorCode::timed_out);
    CHECK(Clock::now() - start < 5s);
    CHECK(could_not_send);
}

TEST_CASE("Client: an agent that waits for a word which only a group hears is given up", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        connection.send(model::Progress{model::Progress::Phase::ready, 0, 0});
        std::this_thread::sleep_for(1s); // it would be lost then
    });
    CHECK(error_code(stage.ask(model::SleepRequest{}, 50ms)) == ErrorCode::timed_out);
}

TEST_CASE("Client: each answer is told as it comes", "[client]") {
    std::promise<void> first_is_told;
    const Stage late([&](const protocol::Request&, test::FakeConnection& connection) {
        if (first_is_told.get_future().wait_for(k_patience) == std::future_status::ready)
            connection.send(test::sample_sleep());
    });
    const Stage early(reply(test::sample_sleep()));
    std::vector<std::size_t> order;
    Conversations conversations(test::questions(late.question(model::SleepRequest{}), //
                                                early.question(model::SleepRequest{})));
    while (const auto event = conversations.next()) {
        const auto* const answer = std::get_if<Answer>(&event->what);
        REQUIRE(answer);
        CHECK(std::holds_alternative<model::Report>(*answer));
        if (order.empty()) first_is_told.set_value();
        order.push_back(event->question);
    }
    CHECK(order == std::vector<std::size_t>{1, 0});
}

TEST_CASE("Client: a process that is stopped is given up sooner, and named so", "[client]") {
    const Stage stage(silent);
    auto questions = test::questions(stage.question(model::SleepRequest{}));
    questions.front().timeout = {.answer = 60s};
    questions.front().is_stopped = [] { return true; };
    const auto start = Clock::now();
    const auto answers = ask_all(std::move(questions));
    CHECK(Clock::now() - start < 30s);
    CHECK(error_code(answers[0]) == ErrorCode::stopped);
    CHECK(std::get<Error>(answers[0]).message.find("it is stopped") == 0);
}

TEST_CASE("Client: an agent that writes faster than anybody reads is given up all the same", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        const auto progress = *protocol::encode(protocol::Reply(model::Progress{}));
        std::vector<std::byte> burst; // of whole messages, each burst written at once
        while (burst.size() < 20'000) burst.insert(burst.end(), progress.begin(), progress.end());
        std::vector<std::thread> writers(12);
        for (auto& writer : writers)
            writer = std::thread([&] {
                const auto until = Clock::now() + 20s;
                while (Clock::now() < until &&
                       ::send(connection.fd(), burst.data(), burst.size(), MSG_NOSIGNAL) > 0) {
                }
            });
        for (auto& writer : writers) writer.join();
    });
    const auto start = Clock::now();
    CHECK(error_code(stage.ask(model::StatusRequest{}, 100ms)) == ErrorCode::timed_out);
    CHECK(Clock::now() - start < 15s); // they write for 20
}

TEST_CASE("Client: an interruption withdraws what is not past the point of no return", "[client]") {
    Interrupting asking;
    SECTION("and hears how that ended") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            asking.interrupt();
            connection.wait_for_close();
            connection.send(model::Failure{make_error(ErrorCode::cancelled, "undone"), model::State::awake});
        });
        const auto answer = asking.ask(stage);
        REQUIRE(std::holds_alternative<model::Failure>(answer));
        CHECK(std::get<model::Failure>(answer).error.message == "undone");
    }
    SECTION("and does not wait for long to hear it") {
        std::atomic<bool> could_send{true};
        {
            const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
                asking.interrupt();
                std::this_thread::sleep_for(2s);
                const auto release = *protocol::encode(protocol::Reply(k_release));
                could_send = ::send(connection.fd(), release.data(), release.size(), MSG_NOSIGNAL) > 0;
            });
            CHECK(error_code(asking.ask(stage)) == ErrorCode::cancelled);
        }
        CHECK_FALSE(could_send);
    }
    SECTION("an agent that closes without a word has not gone on") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            asking.interrupt();
            connection.wait_for_close();
        });
        CHECK(error_code(asking.ask(stage)) == ErrorCode::cancelled);
    }
    CHECK(asking.warnings() == 0);
}

TEST_CASE("Client: what is past the point of no return is waited for, and told", "[client]") {
    Interrupting asking;
    SECTION("when it was past it before the interruption") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            connection.send(k_release);
            asking.interrupt();
            std::this_thread::sleep_for(200ms);
            connection.send(test::sample_sleep());
        });
        CHECK(std::holds_alternative<model::Report>(asking.ask(stage)));
        CHECK(asking.warnings() == 1);
    }
    SECTION("when the interruption came just too late") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            asking.interrupt();
            connection.wait_for_close();
            connection.send(k_release);
            std::this_thread::sleep_for(1500ms); // longer than a withdrawal may take
            connection.send(test::sample_sleep());
        });
        CHECK(std::holds_alternative<model::Report>(asking.ask(stage)));
        CHECK(asking.warnings() == 1);
    }
    SECTION("a second interruption ends that, and the outcome is not known") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            connection.send(k_release);
            asking.interrupt();
            std::this_thread::sleep_for(200ms);
            asking.interrupt();
            connection.wait_for_close();
        });
        CHECK(error_code(asking.ask(stage)) == ErrorCode::outcome_unknown);
    }
    SECTION("a connection that is lost there leaves it unknown") {
        const Stage stage(reply(k_release));
        CHECK(error_code(asking.ask(stage)) == ErrorCode::outcome_unknown);
    }
    SECTION("and so does garbage") {
        const Stage stage([&](const protocol::Request&, test::FakeConnection& connection) {
            connection.send(k_release);
            connection.send_bytes(std::vector<std::byte>(100, std::byte{'x'}));
        });
        CHECK(error_code(asking.ask(stage)) == ErrorCode::outcome_unknown);
    }
}

TEST_CASE("Client: a connection that closes early is lost, wherever it closes", "[client]") {
    auto bytes = *protocol::encode(protocol::Reply(test::sample_sleep()));
    const auto length = GENERATE_COPY(std::size_t{0}, std::size_t{1}, std::size_t{16}, bytes.size() - 1);
    bytes.resize(length);
    const Stage stage(reply_bytes(bytes));
    CHECK(error_code(stage.ask(model::SleepRequest{})) == ErrorCode::connection_lost);
}

TEST_CASE("Client: garbage is refused", "[client]") {
    const Stage stage(reply_bytes(std::vector<std::byte>(100'000, std::byte{'x'})));
    CHECK(error_code(stage.ask(model::StatusRequest{})) == ErrorCode::protocol_mismatch);
}

TEST_CASE("Client: a message damaged on the way is no fault of the command line", "[client]") {
    auto bytes = *protocol::encode(protocol::Reply(test::sample_sleep()));
    bytes.back() ^= std::byte{1};
    const Stage stage(reply_bytes(bytes));
    CHECK(error_code(stage.ask(model::SleepRequest{})) == ErrorCode::connection_lost);
}

TEST_CASE("Client: one silent agent does not keep the others' answers", "[client]") {
    const Stage mute(silent);
    const Stage good(reply(test::sample_status()));
    const auto answers = ask_all(test::questions(mute.question(model::StatusRequest{}, 100ms),
                                                 good.question(model::StatusRequest{}, 100ms)));
    CHECK(error_code(answers[0]) == ErrorCode::timed_out);
    CHECK(std::holds_alternative<model::Report>(answers[1]));
}

TEST_CASE("Client: an agent has its time although others are slow to connect to", "[client]") {
    const Stage good([](const protocol::Request&, test::FakeConnection& connection) {
        std::this_thread::sleep_for(50ms);
        connection.send(test::sample_status());
    });
    auto questions = test::questions(good.question(model::StatusRequest{}, 500ms));
    const protocol::Request status = model::StatusRequest{};
    questions.push_back({{}, &status, {}});
    questions.back().connect = []() -> Result<UniqueFd> {
        std::this_thread::sleep_for(1s);
        return make_error(ErrorCode::no_agent, "it has gone");
    };
    const auto answers = ask_all(std::move(questions));
    CHECK(std::holds_alternative<model::Report>(answers[0]));
    CHECK(error_code(answers[1]) == ErrorCode::no_agent);
}

TEST_CASE("Client: a request too long for the protocol is not sent", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection&) {});
    model::WakeRequest request;
    request.tags = {std::string(protocol::k_max_payload_bytes, 'x')};
    CHECK(error_code(stage.ask(request)) == ErrorCode::invalid_argument);
}

TEST_CASE("Operation: after a lost connection the process is asked how it stands", "[client]") {
    const Error lost = make_error(ErrorCode::connection_lost, "gone");
    const Stage stage(reply(test::sample_sleep()));
    const auto settled = [&](const Process& process) {
        std::vector<Outcome> outcomes{{process, lost}};
        auto finder = stage.finder();
        ask_again(finder, outcomes);
        return outcomes.front();
    };
    const auto asleep = settled(stage.process());
    REQUIRE(std::holds_alternative<model::Failure>(asleep.answer));
    CHECK(std::get<model::Failure>(asleep.answer).state == model::State::asleep);
    CHECK(exit_status_of(asleep) == exit_status::failed_asleep);

    auto another = stage.process();
    another.start_time = 98; // the pid has been given to a new process since
    const auto ended = settled(another);
    CHECK(error_code(ended.answer) == ErrorCode::no_process);
    CHECK(exit_status_of(ended) == exit_status::no_process);

    const auto own = std::to_string(::getpid());
    const auto program = stage.tree().proc() / own / "task" / own / "exe";
    std::filesystem::remove(program);
    CHECK(error_code(settled(stage.process()).answer) == ErrorCode::no_process);
    std::filesystem::create_symlink("/bin/program", program);

    std::filesystem::remove_all(stage.tree().root() / "tmp"); // as after exec
    CHECK(error_code(settled(stage.process()).answer) == ErrorCode::no_agent);
}

TEST_CASE("Exit status: of several processes, the worst decides that was not only withdrawn", "[client]") {
    const Error late{ErrorCode::timed_out, "", "", 0};
    const Error full{ErrorCode::out_of_host_memory, "", "", 0};
    const Error withdrawn{ErrorCode::cancelled, "", "", 0};
    CHECK(exit_status_of(std::vector<Outcome>{}) == 0);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, model::Report{}}}) == 0);
    model::Report rehearsed;
    rehearsed.operation = model::Operation::wake;
    rehearsed.dry_run = true;
    rehearsed.state = model::State::asleep;
    rehearsed.refusal = "too little room";
    rehearsed.refusal_code = ErrorCode::out_of_device_memory;
    CHECK(exit_status_of(Outcome{{}, rehearsed}) == 7);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, model::Report{}}, {{}, full}, {{}, late}}) == 4);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, withdrawn}, {{}, late}}) == 4);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, withdrawn}}) == traits(withdrawn.code).exit_status);
    CHECK(worse_of(6, 9) == 6);
    CHECK(worse_of(3, 1) == 1);
    CHECK(worse_of(2, 0) == 2);
    CHECK(worse_of(0, 0) == 0);
    CHECK(worse_of(0, 99) == 99); // one that was forgotten
}

TEST_CASE("Exit status: a sleep whose memory is not released has failed, and nothing else", "[client]") {
    const auto status_of = [](const protocol::Request& request, bool changed) {
        auto report = test::sample_sleep();
        report.changed = changed;
        report.unreleased_bytes = 4096;
        Outcome outcome{{}, report};
        outcome.unreleased = unreleased_by(request, report);
        return exit_status_of(outcome);
    };
    model::SleepRequest pause;
    pause.level = model::Level::pause;
    model::SleepRequest later;
    later.min_awake = Milliseconds(1);
    CHECK(status_of(model::SleepRequest(), true) == exit_status::failed_asleep);
    CHECK(status_of(model::SleepRequest(), false) == exit_status::failed_asleep); // it still holds it
    CHECK(status_of(model::IdleSleepRequest(), true) == exit_status::failed_asleep);
    CHECK(status_of(model::IdleSleepRequest(), false) == exit_status::done);
    CHECK(status_of(later, false) == exit_status::done);
    CHECK(status_of(pause, true) == exit_status::done);
    CHECK(status_of(model::ReleaseRequest(), true) == exit_status::done);
    CHECK(status_of(model::LiveRequest(), true) == exit_status::done);
    CHECK(status_of(model::WakeRequest(), true) == exit_status::done);
}
