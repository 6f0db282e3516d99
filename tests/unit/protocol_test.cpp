// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The protocol: every message survives, nothing damaged does.

#include "protocol/messages.hpp"
#include "protocol/wire.hpp"

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <tuple>

using namespace gpu_sleep;
using namespace gpu_sleep::model;
using namespace gpu_sleep::protocol;
using Bytestring = std::vector<std::byte>;

namespace {

/// Values that are random, valid for their field, and never zero.
class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}

    std::uint64_t number(std::uint64_t most = ~std::uint64_t{0}) {
        return std::uniform_int_distribution<std::uint64_t>(1, most)(engine_);
    }
    int small() { return static_cast<int>(number(1'000'000)); }
    double seconds() { return std::uniform_real_distribution<double>(0.001, 1e6)(engine_); }
    bool boolean() { return number(2) == 1; }
    template <class T>
    T enumerator(T last) {
        return static_cast<T>(number(static_cast<std::uint64_t>(last)));
    }
    std::string text() {
        std::string text(number(40), '\0');
        for (auto& c : text) c = static_cast<char>(number(255));
        return text;
    }
    std::vector<std::string> texts() {
        std::vector<std::string> texts(number(4));
        for (auto& item : texts) item = text();
        return texts;
    }

private:
    std::mt19937_64 engine_;
};

SleepRequest random_sleep(Dice& dice) {
    SleepRequest request;
    request.level = dice.enumerator(Level::drop);
    for (auto* tags : {&request.tags, &request.keep, &request.discard}) *tags = dice.texts();
    for (auto* flag : {&request.require_refill, &request.dry_run, &request.force}) *flag = dice.boolean();
    request.timeout = Milliseconds(dice.small());
    if (dice.boolean()) request.gate = dice.enumerator(GateMode::checked);
    request.store = dice.enumerator(Store::file);
    for (auto count = dice.number(4); count-- > 0;)
        request.stores.push_back({dice.text(), dice.enumerator(Store::file)});
    request.directory = dice.text();
    for (auto* flag : {&request.spill, &request.keep_files}) *flag = dice.boolean();
    if (dice.boolean()) request.on_touch = dice.enumerator(OnTouch::fail);
    if (dice.boolean()) request.touch_limit = Milliseconds(dice.small());
    return request;
}

WakeRequest random_wake(Dice& dice) {
    return {dice.texts(), dice.boolean(), Milliseconds(dice.small()), Milliseconds(dice.small())};
}

TagReport random_tag(Dice& dice) {
    TagReport tag;
    tag.tag = dice.text();
    tag.device = dice.small();
    tag.policy = {dice.enumerator(Retention::discard), dice.boolean()};
    tag.state = dice.enumerator(State::damaged);
    for (auto* value : {&tag.ranges, &tag.bytes, &tag.resident, &tag.kept, &tag.in_files, &tag.dropped,
                        &tag.damaged, &tag.allocated})
        *value = dice.number();
    tag.needs_refill = dice.boolean();
    return tag;
}

DeviceReport random_device(Dice& dice) {
    return {dice.small(),  dice.text(),   dice.number(), dice.number(),
            dice.number(), dice.number(), dice.number(), dice.number()};
}

Residual random_residual(Dice& dice) {
    return {dice.text(), dice.small(), dice.number(), dice.number(), dice.text()};
}

Report random_report(Dice& dice) {
    Report report;
    report.operation = dice.enumerator(Operation::wake);
    report.level = dice.enumerator(Level::drop);
    report.dry_run = dice.boolean();
    report.changed = dice.boolean();
    report.pid = dice.small();
    report.name = dice.text();
    report.state = dice.enumerator(State::damaged);
    report.host_bytes = dice.number();
    report.file_bytes = dice.number();
    report.state_seconds = dice.seconds();
    report.times = {dice.seconds(), dice.seconds(), dice.seconds(), dice.seconds(), dice.seconds()};
    for (auto count = dice.number(4); count-- > 0;) report.tags.push_back(random_tag(dice));
    for (auto count = dice.number(4); count-- > 0;) report.devices.push_back(random_device(dice));
    report.dropped_without_refill = dice.texts();
    report.notes = dice.texts();
    report.captures = dice.boolean();
    report.gate = dice.enumerator(GateState::shut);
    report.on_touch = dice.enumerator(OnTouch::fail);
    report.waiting = dice.number();
    report.touches = dice.number();
    report.last_touch = dice.text();
    for (auto count = dice.number(4); count-- > 0;) report.residual.push_back(random_residual(dice));
    return report;
}

std::vector<Request> random_requests(unsigned seed) {
    Dice dice(seed);
    return {StatusRequest{}, random_sleep(dice), random_wake(dice),
            ShareRequest{{dice.number(), dice.number()}, dice.number(), dice.number()}};
}

std::vector<Reply> random_replies(unsigned seed) {
    Dice dice(seed);
    return {Progress{dice.enumerator(Progress::Phase::waiting), dice.number(), dice.number()},
            random_report(dice),
            Failure{{dice.enumerator(ErrorCode::unseen_library), dice.text(), dice.text(), dice.small()},
                    dice.enumerator(State::damaged)},
            Shared{dice.number(), dice.number()}};
}

// Every field of every message, so that one that the codec forgot on both sides is missed here.
auto fields(const StatusRequest&) {
    return std::tuple();
}
auto fields(const SleepRequest& r) {
    return std::tuple(r.level, r.tags, r.keep, r.discard, r.require_refill, r.dry_run, r.timeout, r.on_touch,
                      r.gate, r.force, r.touch_limit, r.store, r.stores, r.directory, r.spill, r.keep_files);
}
auto fields(const WakeRequest& r) {
    return std::tuple(r.tags, r.dry_run, r.timeout, r.wait);
}
auto fields(const ShareRequest& r) {
    return std::tuple(r.secret, r.address, r.allocation);
}
auto fields(const Shared& s) {
    return std::tuple(s.bytes, s.offset);
}
auto fields(const Progress& p) {
    return std::tuple(p.phase, p.done, p.total);
}
auto fields(const Failure& f) {
    return std::tuple(f.error.code, f.error.message, f.error.where, f.error.driver_status, f.state);
}
auto fields(const TagReport& t) {
    return std::tuple(t.tag, t.device, t.policy.retention, t.policy.refillable, t.state, t.ranges, t.bytes,
                      t.resident, t.kept, t.in_files, t.dropped, t.damaged, t.needs_refill, t.allocated);
}
auto fields(const DeviceReport& d) {
    return std::tuple(d.device, d.name, d.released, d.kept, d.dropped, d.free_before, d.free_after, d.total);
}
auto fields(const Residual& r) {
    return std::tuple(r.kind, r.device, r.bytes, r.count, r.reason);
}
template <class T>
auto fields(const std::vector<T>& items) {
    std::vector<decltype(fields(items.front()))> all;
    for (const auto& item : items) all.push_back(fields(item));
    return all;
}
auto fields(const Report& r) {
    return std::tuple(r.operation, r.level, r.dry_run, r.changed, r.pid, r.name, r.state, r.host_bytes,
                      r.file_bytes, r.state_seconds, r.times.callbacks, r.times.drain, r.times.transfer,
                      r.times.release, r.times.total, fields(r.tags), fields(r.devices),
                      r.dropped_without_refill, r.notes, r.captures, r.gate, r.on_touch, r.waiting, r.touches,
                      r.last_touch, fields(r.residual));
}

template <class Message>
bool same(const Message& left, const Message& right) {
    return left.index() == right.index() && std::visit(
                                                [&](const auto& value) {
                                                    using T = std::decay_t<decltype(value)>;
                                                    return fields(value) == fields(std::get<T>(right));
                                                },
                                                left);
}

Result<Request> decode(const FrameReader::Frame& frame, const Request&) {
    return decode_request(frame);
}
Result<Reply> decode(const FrameReader::Frame& frame, const Reply&) {
    return decode_reply(frame);
}

/// Whether `bytes` give a whole message of this kind.
template <class Message>
bool is_accepted(const Bytestring& bytes, const Message& kind) {
    FrameReader reader;
    reader.append(bytes);
    const auto frame = reader.next();
    return frame && frame->has_value() && decode(**frame, kind);
}

template <class Message>
void check_round_trip(const Message& message) {
    const auto bytes = encode(message);
    REQUIRE(bytes);
    FrameReader reader;
    for (const auto byte : *bytes) { // in the smallest pieces that can arrive
        const auto early = reader.next();
        REQUIRE(early);
        REQUIRE_FALSE(early->has_value());
        reader.append(std::span(&byte, 1));
    }
    const auto frame = reader.next();
    REQUIRE(frame);
    REQUIRE(frame->has_value());
    const auto decoded = decode(**frame, message);
    REQUIRE(decoded);
    CHECK(same(message, *decoded));
}

template <class Message>
void check_damage(const Message& message) {
    const auto bytes = *encode(message);
    for (std::size_t length = 0; length < bytes.size(); ++length)
        REQUIRE_FALSE(is_accepted(
            Bytestring(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)), message));
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
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
        const auto frame = reader.next();
        REQUIRE(frame);
        REQUIRE(frame->has_value());
        CHECK(same(*decode_reply(**frame), reply));
    }
    CHECK_FALSE(reader.next()->has_value());
}

TEST_CASE("Protocol: a payload that is cut or too long is refused though its checksum is right",
          "[protocol]") {
    for (const auto& reply : random_replies(11)) {
        const auto frame = *encode(reply);
        const auto type = static_cast<std::uint16_t>(frame[6]);
        auto payload = payload_of(frame);
        REQUIRE(is_accepted(frame_of(type, payload), reply));
        payload.push_back(std::byte{1});
        CHECK_FALSE(is_accepted(frame_of(type, payload), reply));
        for (payload.pop_back(); !payload.empty();) {
            payload.pop_back();
            REQUIRE_FALSE(is_accepted(frame_of(type, payload), reply));
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
    FrameReader reader;
    reader.append(header.bytes());
    const auto frame = reader.next();
    REQUIRE_FALSE(frame);
    CHECK(frame.error().code == ErrorCode::invalid_argument);

    SleepRequest request;
    request.tags = {std::string(k_max_payload_bytes, 'x')};
    const auto encoded = encode(Request(request));
    REQUIRE_FALSE(encoded);
    CHECK(encoded.error().code == ErrorCode::invalid_argument);
}

TEST_CASE("Protocol: a count that the payload cannot hold is refused before anything is allocated",
          "[protocol]") {
    Writer payload;
    payload.number(Level::drop);
    payload.number(~std::uint32_t{0});
    CHECK_FALSE(is_accepted(frame_of(2, payload.bytes()), Request()));
}

TEST_CASE("Protocol: another version, another protocol and unknown types are mismatches", "[protocol]") {
    const auto code_of = [](const Bytestring& bytes) {
        FrameReader reader;
        reader.append(bytes);
        const auto frame = reader.next();
        if (!frame) return frame.error().code;
        const auto request = decode_request(**frame);
        return request ? ErrorCode::internal : request.error().code;
    };
    CHECK(code_of(frame_of(1, {}, k_version + 1)) == ErrorCode::protocol_mismatch);
    CHECK(code_of(frame_of(77, {})) == ErrorCode::protocol_mismatch);
    CHECK(code_of(*encode(Reply(Progress{}))) == ErrorCode::protocol_mismatch);
    CHECK(code_of(Bytestring(100, std::byte{'x'})) == ErrorCode::protocol_mismatch);

    FrameReader reader;
    reader.append(frame_of(1, {}, 9));
    CHECK(reader.next().error().message == "the peer speaks version 9 of the protocol, this is version 2");
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
    CHECK_FALSE(accepts_level(0));
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
    const auto bytes = *encode(Request(request));
    std::string text;
    for (const auto byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    CHECK(text == "47534c50"
                  "0200"
                  "0200"
                  "32000000"
                  "f46f2562"
                  "02"
                  "01000000"
                  "08000000"
                  "6b765f6361636865"
                  "00000000"
                  "00000000"
                  "00"
                  "01"
                  "3075000000000000"
                  "00"
                  "00"
                  "00"
                  "00"
                  "00"
                  "00000000"
                  "00000000"
                  "00"
                  "00");
}
