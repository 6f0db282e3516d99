// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What a command is told that does not read for a while.

#include "server/connection.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep;
using agent::server::Connection;
using model::Progress;

TEST_CASE("Connection: what a command waits for comes before the answer, however far back", "[connection]") {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0);
    const UniqueFd command(ends[1]);
    auto connection = test::need(Connection::adopt(UniqueFd(ends[0])));
    for (int i = 0; i < 60; ++i) // as often as what is held changes
        REQUIRE((connection)->tell({Progress::Phase::drained, 0, 0, 1}));
    REQUIRE((connection)->tell({Progress::Phase::drained, 0, 0, 2}));
    REQUIRE((connection)->tell({Progress::Phase::transfer, 1, 2}));
    REQUIRE((connection)->tell({Progress::Phase::ready, 0, 0}));
    (connection)->answer(model::Failure{make_error(ErrorCode::cancelled, "over"), model::State::awake});

    protocol::FrameReader reader;
    std::array<std::byte, 4096> buffer{};
    for (ssize_t got = 0; (got = ::recv(command.get(), buffer.data(), buffer.size(), 0)) > 0;)
        reader.append(std::span(buffer).first(static_cast<std::size_t>(got)));
    std::vector<Progress> told;
    bool is_answered = false;
    for (;;) {
        const auto frame = test::need(reader.next());
        if (!frame) break;
        const auto reply = test::need(protocol::decode_reply(*frame));
        CHECK_FALSE(is_answered);
        is_answered = !std::holds_alternative<Progress>(reply);
        if (!is_answered) told.push_back(std::get<Progress>(reply));
    }
    CHECK(is_answered);
    REQUIRE(told.size() == 62);
    CHECK(told[60].held == 2);
    CHECK(told[61].phase == Progress::Phase::ready);
}
