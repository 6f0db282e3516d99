// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Conversations with agents that answer, err, fall silent and vanish; and the exit status of each end.

#include "cli/client.hpp"
#include "cli/operation.hpp"

#include "support/catch.hpp"
#include "support/fake_agent.hpp"
#include "support/proc_tree.hpp"
#include "support/sample_reports.hpp"

#include <unistd.h>

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
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
        return {*finder().connect(process()), std::move(request), patience};
    }

    [[nodiscard]] Answer ask(protocol::Request request, Milliseconds patience = k_patience) const {
        std::vector<Question> questions;
        questions.push_back(question(std::move(request), patience));
        return ask_all(std::move(questions), [](std::size_t, const model::Progress&) {}).front();
    }

    [[nodiscard]] const test::FakeAgent& agent() const { return agent_; }

private:
    test::ProcTree tree_;
    test::FakeAgent agent_;
};

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
    std::vector<Question> questions;
    questions.push_back(stage.question(request));
    const auto answers =
        ask_all(std::move(questions), [&](std::size_t index, const model::Progress& progress) {
            CHECK(index == 0);
            seen.push_back(progress.done);
        });
    REQUIRE(answers.size() == 1);
    REQUIRE(std::holds_alternative<model::Report>(answers[0]));
    CHECK(std::get<model::Report>(answers[0]).name == "llama");
    CHECK(seen == std::vector<Bytes>{1, 2, 3});
    const auto requests = stage.agent().requests();
    REQUIRE(requests.size() == 1);
    CHECK(std::get<model::SleepRequest>(requests[0]).tags == request.tags);
}

TEST_CASE("Client: an agent that says nothing is given up after the time allowed", "[client]") {
    const Stage stage(
        [](const protocol::Request&, test::FakeConnection& connection) { connection.wait_for_close(); });
    const auto start = Clock::now();
    CHECK(error_code(stage.ask(model::WakeRequest{}, 50ms)) == ErrorCode::timed_out);
    CHECK(Clock::now() - start >= 50ms);
}

TEST_CASE("Client: progress is a sign of life in a sleep, and none in a status", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        for (int i = 0; i < 8; ++i) {
            std::this_thread::sleep_for(50ms);
            connection.send(model::Progress{});
        }
        connection.send(test::sample_sleep());
    });
    CHECK(std::holds_alternative<model::Report>(stage.ask(model::SleepRequest{}, 300ms)));
    CHECK(error_code(stage.ask(model::StatusRequest{}, 300ms)) == ErrorCode::timed_out);
}

TEST_CASE("Client: a connection that closes early is lost, wherever it closes", "[client]") {
    auto bytes = *protocol::encode(protocol::Reply(test::sample_sleep()));
    const auto length = GENERATE_COPY(std::size_t{0}, std::size_t{1}, std::size_t{16}, bytes.size() - 1);
    bytes.resize(length);
    const Stage stage(
        [&](const protocol::Request&, test::FakeConnection& connection) { connection.send_bytes(bytes); });
    CHECK(error_code(stage.ask(model::SleepRequest{})) == ErrorCode::connection_lost);
}

TEST_CASE("Client: garbage is refused", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        connection.send_bytes(std::vector<std::byte>(100'000, std::byte{'x'}));
    });
    CHECK(error_code(stage.ask(model::StatusRequest{})) == ErrorCode::protocol_mismatch);
}

TEST_CASE("Client: one silent agent does not keep the others' answers", "[client]") {
    const Stage silent(
        [](const protocol::Request&, test::FakeConnection& connection) { connection.wait_for_close(); });
    const Stage good([](const protocol::Request&, test::FakeConnection& connection) {
        connection.send(test::sample_status());
    });
    std::vector<Question> questions;
    questions.push_back(silent.question(model::StatusRequest{}, 100ms));
    questions.push_back(good.question(model::StatusRequest{}, 100ms));
    const auto answers = ask_all(std::move(questions), [](std::size_t, const model::Progress&) {});
    CHECK(error_code(answers[0]) == ErrorCode::timed_out);
    CHECK(std::holds_alternative<model::Report>(answers[1]));
}

TEST_CASE("Client: a request too long for the protocol is not sent", "[client]") {
    const Stage stage([](const protocol::Request&, test::FakeConnection&) {});
    model::WakeRequest request;
    request.tags = {std::string(protocol::k_max_payload_bytes, 'x')};
    CHECK(error_code(stage.ask(request)) == ErrorCode::invalid_argument);
}

TEST_CASE("Operation: after a lost connection the process is asked how it stands", "[client]") {
    const Error lost = make_error(ErrorCode::connection_lost, "gone");
    const Stage stage([](const protocol::Request&, test::FakeConnection& connection) {
        connection.send(test::sample_sleep());
    });
    const auto settled = [&](const Process& process) {
        std::vector<Outcome> outcomes{{process, lost}};
        auto finder = stage.finder();
        settle(finder, outcomes);
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

TEST_CASE("Exit status: each failure has its own, for a process awake and for one asleep", "[client]") {
    struct Row {
        ErrorCode code;
        int awake;
        int asleep;
    };
    const auto row = GENERATE(values<Row>({
        {ErrorCode::internal, 1, 7},        {ErrorCode::invalid_argument, 2, 2},
        {ErrorCode::unknown_tag, 2, 2},     {ErrorCode::no_process, 3, 3},
        {ErrorCode::no_agent, 3, 3},        {ErrorCode::timed_out, 4, 4},
        {ErrorCode::not_permitted, 5, 5},   {ErrorCode::damaged, 6, 6},
        {ErrorCode::driver_failed, 1, 7},   {ErrorCode::out_of_device_memory, 1, 7},
        {ErrorCode::refused, 1, 7},         {ErrorCode::capture_in_progress, 4, 4},
        {ErrorCode::cancelled, 1, 7},       {ErrorCode::protocol_mismatch, 1, 7},
        {ErrorCode::connection_lost, 1, 7}, {ErrorCode::io_failed, 1, 7},
        {ErrorCode::no_refill, 1, 7},       {ErrorCode::no_driver, 1, 7},
        {ErrorCode::not_owned, 1, 7},       {ErrorCode::context_lost, 1, 7},
    }));
    const Error error{row.code, "", "", 0};
    CHECK(exit_status_of(Outcome{{}, model::Failure{error, model::State::awake}}) == row.awake);
    CHECK(exit_status_of(Outcome{{}, model::Failure{error, model::State::asleep}}) == row.asleep);
    CHECK(exit_status_of(Outcome{{}, model::Failure{error, model::State::partial}}) == row.asleep);
    CHECK(exit_status_of(Outcome{{}, error}) == row.awake);
}

TEST_CASE("Exit status: of several processes, the first that failed decides", "[client]") {
    const Error late{ErrorCode::timed_out, "", "", 0};
    const Error full{ErrorCode::out_of_host_memory, "", "", 0};
    CHECK(exit_status_of(std::vector<Outcome>{}) == 0);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, model::Report{}}}) == 0);
    CHECK(exit_status_of(std::vector<Outcome>{{{}, model::Report{}}, {{}, late}, {{}, full}}) == 4);
}
