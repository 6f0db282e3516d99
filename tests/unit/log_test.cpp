// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Log lines where standard error cannot take them; entries for the journal, and that sending one never waits.

#include "base/log.hpp"
#include "support/broken_error.hpp"
#include "support/fake_journal.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

void say(std::string_view text) {
    log::write(log::Severity::error, text);
}

[[nodiscard]] bool pipe_signal_is_pending() {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
}

} // namespace

TEST_CASE("Log: a line goes to standard error whole, up to what a pipe takes in one piece", "[log]") {
    const PipeAsError pipe;
    say("hello");
    const auto start = "gpu-sleep[" + std::to_string(::getpid()) + "]: ";
    CHECK(pipe.read() == start + "hello\n");
    say(std::string(100'000, 'x'));
    const auto cut = pipe.read();
    CHECK(cut.size() == PIPE_BUF);
    CHECK(cut.starts_with(start + "xxx"));
    CHECK(cut.ends_with("x\n"));
}

TEST_CASE("Log: what is quoted can neither steer the terminal nor write a line of its own", "[log]") {
    const PipeAsError pipe;
    log::error("'{}' is not {}",
               "\033[2J\x9B"
               "31m\ngpu-sleep[1]: all is well",
               "a tag");
    const auto start = "gpu-sleep[" + std::to_string(::getpid()) + "]: ";
    CHECK(pipe.read() == start + "'?[2J?31m?gpu-sleep[1]: all is well' is not a tag\n");
}

TEST_CASE("Log: nothing is written to a connection, nor to what may be a database", "[log]") {
    const Scratch scratch;
    const auto file = scratch.file("file");
    const UniqueFd before(::dup(STDERR_FILENO));
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd peer(ends[0]);
    const UniqueFd connection(ends[1]);
    const auto written_as = [&](int flags) {
        const UniqueFd opened(::open(file.c_str(), flags | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        ::dup2(opened.get(), STDERR_FILENO);
        say("hello");
        return std::filesystem::file_size(file);
    };
    const auto as_database = written_as(O_RDWR);
    const auto as_log = written_as(O_WRONLY);
    ::dup2(connection.get(), STDERR_FILENO);
    say("hello");
    ::dup2(before.get(), STDERR_FILENO);
    std::array<char, 8> got{};
    CHECK(as_database == 0);
    CHECK(as_log > 0);
    CHECK(::recv(peer.get(), got.data(), got.size(), MSG_DONTWAIT) < 0);
}

TEST_CASE("Log: a line that nobody will read raises no signal", "[log]") {
    PipeAsError pipe;
    pipe.close_reader();
    say("hello"); // SIGPIPE would end this program
    CHECK_FALSE(pipe_signal_is_pending());
}

TEST_CASE("Log: a line for which there is no room is dropped", "[log]") {
    const PipeAsError pipe;
    pipe.fill();
    say("hello"); // blocked, it would wait for ever
    CHECK_THAT(pipe.read(), !mentions("hello"));
    say("again");
    CHECK_THAT(pipe.read(), mentions("again"));
}

TEST_CASE("Journal: a value has one line, whatever is in it", "[journal]") {
    const journal::Field fields[] = {{"MESSAGE", "two\nlines=1"}, {"PRIORITY", "6"}, {"EMPTY", ""}};
    CHECK(journal::encode(fields) == "MESSAGE=two?lines=1\nPRIORITY=6\nEMPTY=\n");
    const auto entry = parse_entry(journal::encode(fields));
    CHECK(entry == Entry{{"MESSAGE", "two?lines=1"}, {"PRIORITY", "6"}, {"EMPTY", ""}});
}

TEST_CASE("Journal: what is not taken at once is lost, and nobody waits", "[journal]") {
    const Scratch scratch;
    const journal::Field fields[] = {{"MESSAGE", "hello"}};
    const auto path = scratch.file("socket");
    CHECK_FALSE(journal::send(path, fields)); // nobody is there
    CHECK_FALSE(journal::send("", fields));
    CHECK_FALSE(journal::send('/' + std::string(200, 'x'), fields));
    {
        const FakeJournal taker(path);
        CHECK(journal::send(path, fields));
        CHECK(taker.next() == Entry{{"MESSAGE", "hello"}});
        const auto start = Clock::now();
        int taken = 0;
        while (taken < 100'000 && journal::send(path, fields)) ++taken;
        CHECK(taken > 0);
        CHECK(taken < 100'000); // its queue is full
        CHECK(seconds_since(start) < 30);
    }
    CHECK_FALSE(journal::send(path, fields)); // its file is there still, and it has gone
}
