// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The protocol: every message survives, nothing damaged does, and reports of many tags reach the command,
// cut.

#include "protocol/wire.hpp"
#include "random_messages.hpp"
#include "support/result_printing.hpp"
#include "support/sanitized.hpp"

#include <cmath>

using namespace gpu_sleep;
using namespace gpu_sleep::model;
using namespace gpu_sleep::protocol;
using namespace gpu_sleep::test;
using Bytestring = std::vector<std::byte>;

namespace {

/// Under a sanitizer every seventh bit and length is tried: the fuzz targets try more.
const std::size_t k_step = is_sanitized() ? 7 : 1;

Result<Request> decode(const FrameReader::Frame& frame, const Request&) {
    return decode_request(frame);
}
Result<Reply> decode(const FrameReader::Frame& frame, const Reply&) {
    return decode_reply(frame);
}

/// Whether `bytes` give a whole message of this kind.
template <class Message>
bool is_accepted(const Bytestring& bytes, const Message& kind) {
    const auto frame = frame_in(bytes);
    return frame && decode(*frame, kind);
}

template <class Message>
void check_round_trip(const Message& message) {
    const auto bytes = need(encode(message));
    FrameReader reader;
    for (const auto byte : bytes) { // in the smallest pieces that can arrive
        REQUIRE_FALSE(need(reader.next()).has_value());
        reader.append(std::span(&byte, 1));
    }
    const auto frame = need(reader.next());
    REQUIRE(frame.has_value());
    CHECK(same(message, need(decode(*frame, message))));
}

template <class Message>
void check_damage(const Message& message) {
    const auto bytes = *encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length)
        REQUIRE_FALSE(is_accepted(
            Bytestring(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)), message));
    for (std::size_t bit = 0; bit < bytes.size() * 8; bit += k_step) {
        auto damaged = bytes;
        damaged[bit / 8] ^= std::byte{1} << (bit % 8);
        REQUIRE_FALSE(is_accepted(damaged, message));
    }
}

/// A frame as `encode` would make it, of any payload.
Bytestring frame_of(std::uint16_t type, const Bytestring& payload, std::uint16_t version = k_version) {
    Writer frame;
    for (const char c : {'G', 'S', 'L', 'P'}) frame.number(c);
    frame.number(version);
    frame.number(type);
    frame.number(static_cast<std::uint32_t>(payload.size()));
    frame.number(crc32c(payload, crc32c(frame.bytes())));
    frame.bytes().insert(frame.bytes().end(), payload.begin(), payload.end());
    return frame.bytes();
}

Bytestring operator+(Bytestring left, const Bytestring& right) {
    left.insert(left.end(), right.begin(), right.end());
    return left;
}

Bytestring bytes_of(std::initializer_list<int> values) {
    Bytestring bytes;
    for (const auto value : values) bytes.push_back(static_cast<std::byte>(value));
    return bytes;
}

/// A field as a Writer would make it, of any value.
Bytestring field(unsigned number, bool must, const Bytestring& value) {
    Writer out;
    out.number(static_cast<std::uint16_t>(number | (must ? k_must_bit : 0)));
    out.number(static_cast<std::uint32_t>(value.size()));
    return out.bytes() + value;
}
Bytestring field(unsigned number, bool must, std::initializer_list<int> value) {
    return field(number, must, bytes_of(value));
}

Bytestring payload_of(const Bytestring& frame) {
    return {frame.begin() + k_header_bytes, frame.end()};
}

} // namespace

TEST_CASE("Protocol: every message survives the way, byte by byte", "[protocol]") {
    const auto seed = GENERATE(range(1U, 20U));
    for (const auto& request : random_requests(seed)) check_round_trip(request);
    for (const auto& reply : random_replies(seed)) check_round_trip(reply);
}

TEST_CASE("Protocol: a frame that is cut anywhere, or has any bit flipped, is refused", "[protocol]") {
    for (const auto& request : random_requests(5)) check_damage(request);
    for (const auto& reply : random_replies(5)) check_damage(reply);
}

TEST_CASE("Protocol: frames that arrive together are told apart", "[protocol]") {
    FrameReader reader;
    const auto replies = random_replies(7);
    for (const auto& reply : replies) reader.append(*encode(reply));
    for (const auto& reply : replies) {
        const auto frame = need(reader.next());
        REQUIRE(frame.has_value());
        CHECK(same(*decode_reply(*frame), reply));
    }
    CHECK_FALSE(reader.next()->has_value());
}

TEST_CASE("Protocol: a payload that is cut in a field, or too long, is refused in any case", "[protocol]") {
    for (const auto& reply : random_replies(11)) {
        const auto frame = *encode(reply);
        const auto type = static_cast<std::uint16_t>(frame[6]);
        auto payload = payload_of(frame);
        REQUIRE(is_accepted(frame_of(type, payload), reply));
        payload.push_back(std::byte{1});
        CHECK_FALSE(is_accepted(frame_of(type, payload), reply));
        for (payload.pop_back(); payload.size() >= k_step;) {
            payload.resize(payload.size() - k_step);
            const auto shorter = decode_reply(*frame_in(frame_of(type, payload)));
            // Between two fields it is cut to a whole message that has less in it.
            if (shorter) REQUIRE(*encode(*shorter) == frame_of(type, payload));
        }
    }
}

TEST_CASE("Protocol: what is too long is refused before it has arrived", "[protocol]") {
    Writer header;
    for (const char c : {'G', 'S', 'L', 'P'}) header.number(c);
    header.number(k_version);
    header.number(std::uint16_t{1});
    header.number(k_max_payload_bytes + 1);
    header.number(std::uint32_t{0});
    CHECK(error_of(frame_in(header.bytes())).code == ErrorCode::invalid_argument);
    SleepRequest request;
    request.tags = {std::string(k_max_payload_bytes, 'x')};
    CHECK(error_of(encode(Request(request))).code == ErrorCode::invalid_argument);
}

TEST_CASE("Protocol: lists of more items than a message may have are refused both ways", "[protocol]") {
    SleepRequest request;
    request.tags.resize(k_max_items / 2);
    request.keep.resize(k_max_items / 2);
    CHECK(is_accepted(*encode(Request(request)), Request()));
    request.keep.emplace_back();
    CHECK(encode(Request(request)).error().code == ErrorCode::invalid_argument);
    Writer payload;
    payload.write(request);
    CHECK_FALSE(is_accepted(frame_of(2, payload.bytes()), Request()));
}

TEST_CASE("Protocol: a message has one form: its fields once, in order, whole, not as new", "[protocol]") {
    const auto accepts = [](const Bytestring& payload) {
        return is_accepted(frame_of(3, payload), Request());
    };
    const auto dry_run = field(2, true, {1});
    const auto joint = field(9, true, {1});
    CHECK(accepts(dry_run + joint));
    CHECK_FALSE(accepts(joint + dry_run));
    CHECK_FALSE(accepts(dry_run + dry_run));
    CHECK_FALSE(accepts(field(2, true, {0})));    // the default
    CHECK_FALSE(accepts(field(2, true, {})));     // cut
    CHECK_FALSE(accepts(field(2, true, {1, 0}))); // too long
    CHECK_FALSE(accepts(field(2, false, {1})));   // must be known, and says that it need not be
    CHECK_FALSE(accepts(field(0, false, {1})));
    CHECK_FALSE(accepts(field(1, true, {2, 0, 0, 0, 'a'}))); // a text of two bytes in a list of five
}

TEST_CASE("Protocol: an unknown field is skipped where it may be, and else refused by number", "[protocol]") {
    const auto decode_with = [](std::uint16_t type, const Bytestring& payload) {
        return decode_request(*frame_in(frame_of(type, payload)));
    };
    const auto dry_run = field(6, true, {1});
    SleepRequest expected;
    expected.dry_run = true;
    const auto skipped = need(decode_with(2, dry_run + field(900, false, {1, 2, 3})));
    CHECK(same(skipped, Request(expected)));

    const auto refused = error_of(decode_with(2, dry_run + field(900, true, {1})));
    CHECK(refused.code == ErrorCode::protocol_mismatch);
    CHECK(refused.message ==
          "the other side is newer: both speak version 8 of the protocol, but it sent something unknown "
          "(field 900 of message 2)");

    // A struct that has nothing else which is known here: it is not the default that its sender saw.
    const auto in_failure = [](const Bytestring& error) {
        return is_accepted(frame_of(18, field(1, false, error)), Reply());
    };
    CHECK(in_failure(field(900, false, {1})));
    CHECK_FALSE(in_failure({}));

    // In a store of a tag, which is an item of a list.
    const auto in_item = [&](const Bytestring& unknown) {
        const auto item = field(1, true, {'t'}) + unknown;
        return decode_with(2, field(14, true, bytes_of({static_cast<int>(item.size()), 0, 0, 0}) + item));
    };
    CHECK(in_item(field(900, false, {1})));
    CHECK_THAT(error_of(in_item(field(900, true, {1}))).message,
               mentions("(field 900 of field 14 of message 2)"));
}

TEST_CASE("Protocol: a value that is not known is refused, and said with its field", "[protocol]") {
    SleepRequest request;
    request.level = static_cast<Level>(9);
    const auto refused = error_of(decode_request(*frame_in(*encode(Request(request)))));
    CHECK(refused.code == ErrorCode::protocol_mismatch);
    CHECK_THAT(refused.message, mentions("(value 9 of field 1 of message 2)"));
}

TEST_CASE("Protocol: another version, another protocol and unknown types are mismatches", "[protocol]") {
    const auto code_of = [](const Bytestring& bytes) {
        const auto frame = frame_in(bytes);
        return frame ? error_of(decode_request(*frame)).code : frame.error().code;
    };
    CHECK(code_of(frame_of(1, {}, k_version + 1)) == ErrorCode::protocol_mismatch);
    CHECK(code_of(frame_of(77, {})) == ErrorCode::protocol_mismatch);
    CHECK(code_of(*encode(Reply(Progress{}))) == ErrorCode::protocol_mismatch);
    CHECK(code_of(Bytestring(100, std::byte{'x'})) == ErrorCode::protocol_mismatch);

    CHECK(error_of(frame_in(frame_of(1, {}, 9))).message ==
          "the other side speaks version 9 of the protocol, and this one version 8");
}

TEST_CASE("Protocol: values out of range are refused", "[protocol]") {
    const auto accepts_timeout = [](std::int64_t timeout_ms) {
        WakeRequest request;
        request.timeout = Milliseconds(timeout_ms);
        return is_accepted(*encode(Request(request)), Request());
    };
    CHECK(accepts_timeout(0));
    CHECK(accepts_timeout(1'000'000'000'000));
    CHECK_FALSE(accepts_timeout(1'000'000'000'001));
    CHECK_FALSE(accepts_timeout(-1));

    const auto accepts_seconds = [](double seconds) {
        Report report;
        report.state_seconds = seconds;
        return is_accepted(*encode(Reply(report)), Reply());
    };
    CHECK(accepts_seconds(0.25));
    for (const double bad : {-1.0, 1e11, std::numeric_limits<double>::infinity(), std::nan("")})
        CHECK_FALSE(accepts_seconds(bad));

    const auto accepts_level = [](int level) {
        SleepRequest request;
        request.level = static_cast<Level>(level);
        return is_accepted(*encode(Request(request)), Request());
    };
    CHECK(accepts_level(0));
    CHECK(accepts_level(2));
    CHECK_FALSE(accepts_level(3));

    const auto accepts_gate = [](int on_touch, int gate) {
        SleepRequest request;
        request.on_touch = static_cast<OnTouch>(on_touch);
        request.gate = static_cast<GateMode>(gate);
        return is_accepted(*encode(Request(request)), Request());
    };
    CHECK(accepts_gate(2, 1));
    CHECK_FALSE(accepts_gate(3, 1));
    CHECK_FALSE(accepts_gate(2, 2));
}

TEST_CASE("Protocol: what is accepted of each enumeration", "[protocol]") {
    CHECK(k_last<Level> == 2);
    CHECK(k_last<Retention> == 2);
    CHECK(k_last<State> == 4);
    CHECK(k_last<OnTouch> == 2);
    CHECK(k_last<GateMode> == 1);
    CHECK(k_last<Store> == 1);
    CHECK(k_last<GateState> == 2);
    CHECK(k_last<model::Operation> == 2);
    CHECK(k_last<model::Transition> == 2);
    CHECK(k_last<Progress::Phase> == 8);
    CHECK(k_last<Directive::Kind> == 3);
    CHECK(k_last<ErrorCode> == 0xFFFF);
}

TEST_CASE("Protocol: the checksum is CRC-32C", "[protocol]") {
    const auto text = std::as_bytes(std::span("123456789", 9));
    CHECK(crc32c(text) == 0xE3069283);
    CHECK(crc32c(text.subspan(4), crc32c(text.first(4))) == 0xE3069283);
}

TEST_CASE("Protocol: the example of PROTOCOL.md is what is sent", "[protocol]") {
    SleepRequest request;
    request.level = Level::drop;
    request.tags = {"kv_cache"};
    request.dry_run = true;
    CHECK(in_hexadecimal(*encode(Request(request))) == "47534c50"
                                                       "0800"
                                                       "0200"
                                                       "20000000"
                                                       "70c45b4c"
                                                       "01800100000002"
                                                       "02800c00000008000000"
                                                       "6b765f6361636865"
                                                       "06800100000001");
}

TEST_CASE("Fitting: a report of more tags than a message holds is cut, and says so", "[protocol]") {
    model::Report report;
    report.changed = true;
    report.state = model::State::asleep;
    report.notes = {"a note"};
    constexpr std::size_t k_tags = 20'000;
    report.tags.resize(k_tags);
    for (auto& row : report.tags) row.tag = std::string(model::k_max_tag_length, 't');
    CHECK(encode(Reply(report)).error().code == ErrorCode::invalid_argument);

    const auto frame = need(frame_in(need(encode_what_fits(Reply(report)))));
    const auto told = std::get<Report>(need(decode_reply(frame)));
    CHECK(told.state == model::State::asleep);
    CHECK(told.changed);
    CHECK(told.tags.size() > 1000);
    REQUIRE(told.notes.size() == 2);
    CHECK(told.notes[1] ==
          fmt::format("only {} of 20000 rows of tags are listed: there are too many", told.tags.size()));

    report.tags.resize(10);
    CHECK(*encode_what_fits(Reply(report)) == *encode(Reply(report)));
}
