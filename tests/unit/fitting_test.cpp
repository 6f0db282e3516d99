// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reports of many tags reach the command, cut.

#include "protocol/messages.hpp"

#include "support/result_printing.hpp"

using namespace gpu_sleep;

TEST_CASE("Fitting: a report of more tags than a message holds is cut, and says so", "[protocol]") {
    model::Report report;
    report.changed = true;
    report.state = model::State::asleep;
    report.notes = {"a note"};
    constexpr std::size_t k_tags = 20'000;
    report.tags.resize(k_tags);
    for (auto& row : report.tags) row.tag = std::string(model::k_max_tag_length, 't');
    CHECK(protocol::encode(protocol::Reply(report)).error().code == ErrorCode::invalid_argument);

    const auto bytes = test::need(protocol::encode_what_fits(protocol::Reply(report)));
    protocol::FrameReader reader;
    reader.append(bytes);
    const auto frame = test::need(reader.next());
    REQUIRE(frame.has_value());
    const auto reply = test::need(protocol::decode_reply(*frame));
    const auto& told = std::get<model::Report>(reply);
    CHECK(told.state == model::State::asleep);
    CHECK(told.changed);
    CHECK(told.tags.size() > 1000);
    REQUIRE(told.notes.size() == 2);
    CHECK(told.notes[1] ==
          fmt::format("only {} of 20000 rows of tags are listed: there are too many", told.tags.size()));

    report.tags.resize(10);
    CHECK(*protocol::encode_what_fits(protocol::Reply(report)) == *protocol::encode(protocol::Reply(report)));
}
