// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The payload of one message of each kind, byte for byte, with a value of its own in every field: a number, a
// width or a value of the format that changes is seen here, also when writer and reader change alike. And
// what version 7 wrote, which stays as it was.

#include "protocol/messages.hpp"
#include "protocol/version_7.hpp"

#include "random_messages.hpp"
#include "support/catch.hpp"

#include <string>
#include <string_view>
#include <vector>

using namespace gpu_sleep;
using namespace gpu_sleep::model;
using namespace gpu_sleep::protocol;
using namespace gpu_sleep::test;

namespace {

/// The type of the frame, a colon, and the payload, both in hexadecimal.
std::string payload_text(const std::vector<std::byte>& frame) {
    std::string text = fmt::format("{:02x}:", std::to_integer<unsigned>(frame.at(6)));
    for (std::size_t i = k_header_bytes; i < frame.size(); ++i)
        text += fmt::format("{:02x}", std::to_integer<unsigned>(frame[i]));
    return text;
}

FrameReader::Frame frame_in(const std::vector<std::byte>& bytes) {
    FrameReader reader;
    reader.append(bytes);
    return **reader.next();
}

std::vector<std::byte> bytes_of(std::string_view text) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < text.size(); i += 2)
        bytes.push_back(static_cast<std::byte>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
    return bytes;
}

/// Reads a frame that version 7 wrote.
Reply reply_of_7(std::string_view frame) {
    return *decode_reply(frame_in(bytes_of(frame)));
}

/// The payload of `value` in version 7, which writes all that is as in a new one, too.
template <class T>
std::vector<std::byte> payload_of_7(const T& value) {
    Writer7 out;
    out.write(value);
    return out.bytes();
}

void check_bytes(const Request& request, const std::string& text) {
    const auto bytes = *encode(request);
    CHECK(payload_text(bytes) == text);
    CHECK(same(*decode_request(frame_in(bytes)), request));
}

void check_bytes(const Reply& reply, const std::string& text) {
    const auto bytes = *encode(reply);
    CHECK(payload_text(bytes) == text);
    CHECK(same(*decode_reply(frame_in(bytes)), reply));
}

TagReport tag_to_send() {
    TagReport tag;
    tag.tag = "kv";
    tag.device = -2;
    tag.policy = {Retention::discard, true};
    tag.state = State::partial;
    tag.ranges = 0x11;
    tag.bytes = 0x12;
    tag.resident = 0x13;
    tag.kept = 0x14;
    tag.in_files = 0x15;
    tag.dropped = 0x16;
    tag.damaged = 0x17;
    tag.needs_refill = true;
    tag.allocated = 0x1800000000000001;
    tag.host_backed = 0x19;
    tag.in_place = 0x1a;
    return tag;
}

Report report_to_send() {
    Report report;
    report.operation = model::Operation::wake;
    report.level = Level::drop;
    report.dry_run = true;
    report.changed = true;
    report.pid = 0x01020304;
    report.name = "llama";
    report.state = State::damaged;
    report.host_bytes = 0x21;
    report.file_bytes = 0x22;
    report.retained_bytes = 0x23;
    report.state_seconds = 0.5;
    report.times = {1, 2, 4, 8, 16};
    report.tags = {tag_to_send(), TagReport()};
    report.devices = {{3,
                       "H200",
                       0x31,
                       0x32,
                       0x33,
                       0x34,
                       0x35,
                       0x36,
                       0x37,
                       0x38,
                       {1, 2, 4, 8, 16, 32, 64, 128, 256, 512},
                       0x39,
                       "GPU-1"}};
    report.dropped_without_refill = {"a"};
    report.notes = {"n", ""};
    report.intercepts = true;
    report.gate = GateState::shut;
    report.on_touch = OnTouch::wake;
    report.waiting = 0x41;
    report.touches = 0x42;
    report.last_touch = "cuX";
    report.residual = {{"ipc", 4, 0x51, 0x52, "why"}};
    report.wakes_waiting = {{{"b", "c"}, true, 32, "full", 0x53}};
    report.idle_seconds = 64;
    report.inhibited = true;
    report.inhibited_seconds = 128;
    report.woken_bytes = 0x61;
    report.woken_seconds = 256;
    report.transitions = {{Transition::move,
                           {0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x7b, 0x7c, 0x7d},
                           512,
                           {{ErrorCode::out_of_disk, 0x7e}}}};
    report.deep = true;
    report.deep_bytes = 0x62;
    report.seconds_since_wake = 1024;
    report.group = "g";
    report.deep_refusal = "r";
    report.version = "v";
    report.features = {"f"};
    report.directories = {"d"};
    report.unreleased_bytes = 0x63;
    report.longest_pause = 2048;
    report.reply = "y";
    report.refusal = "z";
    report.lost = true;
    report.refusal_code = ErrorCode::stopped;
    return report;
}

/// The same, as version 7 could tell it.
Report report_of_7() {
    auto report = report_to_send();
    report.version.clear();
    report.features.clear();
    report.directories.clear();
    report.unreleased_bytes = 0;
    report.longest_pause = 0;
    report.reply.clear();
    report.refusal.clear();
    report.lost = false;
    report.refusal_code.reset();
    report.tags[0].host_backed = 0;
    report.tags[0].in_place = 0;
    return report;
}

SleepRequest sleep_to_send() {
    SleepRequest sleep;
    sleep.level = Level::drop;
    sleep.tags = {"t"};
    sleep.keep = {"k", "kk"};
    sleep.discard = {"d"};
    sleep.require_refill = true;
    sleep.dry_run = true;
    sleep.timeout = Milliseconds(0x0102);
    sleep.bounds_all = true;
    sleep.on_touch = OnTouch::fail;
    sleep.gate = GateMode::checked;
    sleep.force = true;
    sleep.touch_limit = Milliseconds(0x0304);
    sleep.store = Store::file;
    sleep.stores = {{"s", Store::host}, {"ss", Store::file}};
    sleep.directory = "/d";
    sleep.spill = true;
    sleep.keep_files = true;
    sleep.copy_all = true;
    sleep.ignore_inhibitors = true;
    sleep.check_copies = true;
    sleep.store_is_named = true;
    sleep.host_budget = 0x0a0b;
    sleep.deep = true;
    sleep.min_awake = Milliseconds(0x090a);
    sleep.joint = true;
    sleep.ignore_unknown_tags = true;
    return sleep;
}

WakeRequest wake_to_send() {
    return {{true, Milliseconds(0x0506), true},
            {"w"},
            Milliseconds(0x0708),
            {"o"},
            true,
            Milliseconds(0x0b0c),
            true,
            {{"f", "t"}}};
}

Progress progress_to_send() {
    return {Progress::Phase::drained, 0x71, 0x72, "t", 0x73};
}

Failure failure_to_send() {
    return {{ErrorCode::out_of_disk, "full", "write", -28, 4096}, State::partial};
}

/// A field of the time of version 7, and two that are newer.
struct Extended {
    bool old = false;
    bool restricts = false;
    bool tells = false;
};

auto fields(Is<Extended> auto& e) {
    return all_fields(must<1>(e.old), must<k_first_after_7>(e.restricts), may<k_first_after_7 + 1>(e.tells));
}

} // namespace

TEST_CASE("Protocol: the bytes of each request", "[protocol]") {
    check_bytes(StatusRequest{}, "01:");
    const std::string first = "02:"
                              "018001000000020280050000000100000074"
                              "03800b000000010000006b020000006b6b"
                              "048005000000010000006405800100000001"
                              "068001000000010780080000000201000000000000"
                              "08800100000001098001000000020a800100000001"
                              "0b0001000000010c80080000000403000000000000"
                              "0d8001000000010e801e0000000700000001800100000073"
                              "0f000000018002000000737302800100000001"
                              "0f80020000002f641000010000000111800100000001"
                              "12800100000001";
    const std::string last = "15000100000001"
                             "1680010000000117800100000001"
                             "1880080000000b0a00000000000019800100000001"
                             "1a80080000000a090000000000001b800100000001"
                             "52000100000001";
    check_bytes(sleep_to_send(), first + last);
    check_bytes(IdleSleepRequest{sleep_to_send(), Milliseconds(0x0708)},
                first + "1480080000000807000000000000" + last);
    check_bytes(IdleSleepRequest{}, "02:1480080000000000000000000000");
    check_bytes(ReleaseRequest{{true, Milliseconds(0x0102), true}},
                "02:068001000000010780080000000201000000000000"
                "0880010000000113800100000001");
    check_bytes(ReleaseRequest{}, "02:13800100000001");
    check_bytes(LiveRequest{{true, Milliseconds(0x0102), true}, {"t"}, 0x0c0d, true, true},
                "02:0280050000000100000074"
                "068001000000010780080000000201000000000000"
                "088001000000010b00010000000115000100000001"
                "468001000000014780080000000d0c000000000000");
    check_bytes(LiveRequest{}, "02:46800100000001");
    check_bytes(CallRequest{{true, Milliseconds(0x0102), true}, "n", "a"},
                "02:068001000000010780080000000201000000000000"
                "088001000000014380010000006e50800100000061");
    check_bytes(CallRequest{}, "02:438000000000");
    auto wake = wake_to_send();
    wake.live_bytes = 0x0e0f;
    wake.ignore_unknown_tags = true;
    check_bytes(wake, "03:"
                      "018005000000010000007702800100000001"
                      "038008000000060500000000000004800100000001"
                      "0500080000000807000000000000"
                      "068005000000010000006f07800100000001"
                      "0880080000000c0b00000000000009800100000001"
                      "0a80120000000e0000000180010000006602800100000074"
                      "4880080000000f0e00000000000052000100000001");
    check_bytes(Directive{Directive::Kind::let_through, 8}, "06:"
                                                            "0180010000000102800400000008000000");
    check_bytes(InhibitRequest{true, Milliseconds(0x0910)}, "05:"
                                                            "018001000000010280080000001009000000000000");
    check_bytes(ShareRequest{{0x61, 0x62}, 0x63, 0x6400000000000001},
                "04:"
                "01801000000061000000000000006200000000000000"
                "0280080000006300000000000000"
                "0380080000000100000000000064");
}

TEST_CASE("Protocol: the bytes of each reply", "[protocol]") {
    check_bytes(progress_to_send(), "10:"
                                    "018001000000070200080000007100000000000000"
                                    "030008000000720000000000000004000100000074"
                                    "0500080000007300000000000000");
    check_bytes(failure_to_send(), "12:"
                                   "010035000000010002000000170002000400000066756c6c"
                                   "0300050000007772697465040004000000e4ffffff"
                                   "560008000000000000000000b040"
                                   "02000100000002");
    check_bytes(Shared{0x81, 0x82}, "13:"
                                    "0180080000008100000000000000"
                                    "0280080000008200000000000000");
    check_bytes(report_to_send(),
                "11:"
                "010001000000020200010000000203000100000001"
                "0400010000000105000400000004030201"
                "0600050000006c6c616d6107000100000003"
                "0800080000002100000000000000"
                "0900080000002200000000000000"
                "0a00080000002300000000000000"
                "0b0008000000000000000000e03f0c0046000000"
                "010008000000000000000000f03f"
                "0200080000000000000000000040"
                "0300080000000000000000001040"
                "0400080000000000000000002040"
                "05000800000000000000000030400d00c8000000c0000000"
                "0100020000006b76020004000000feffffff03000e000000"
                "010001000000020200010000000104000100000002"
                "0500080000001100000000000000"
                "0600080000001200000000000000"
                "0700080000001300000000000000"
                "0800080000001400000000000000"
                "0900080000001500000000000000"
                "0a00080000001600000000000000"
                "0b00080000001700000000000000"
                "0c000800000001000000000000180d000100000001"
                "4900080000001900000000000000"
                "4b00080000001a00000000000000"
                "000000000e00f7000000f300000001000400000003000000"
                "020004000000483230300300080000003100000000000000"
                "0400080000003200000000000000"
                "0500080000003300000000000000"
                "0600080000003400000000000000"
                "0700080000003500000000000000"
                "0800080000003600000000000000"
                "0900080000003700000000000000"
                "0a00080000003800000000000000"
                "0b0050000000000000000000f03f0000000000000040000000000000104000000000000020400000"
                "00000000304000000000000040400000000000005040000000000000604000000000000070400000"
                "0000000080400c00080000003900000000000000"
                "0d00050000004750552d310f00050000000100000061"
                "100009000000010000006e0000000011000100000001"
                "1200010000000213000100000001"
                "1400080000004100000000000000"
                "1500080000004200000000000000160003000000637558"
                "17003c00000038000000010003000000697063"
                "020004000000040000000300080000005100000000000000"
                "0400080000005200000000000000050003000000776879"
                "18003d00000039000000"
                "01000a0000000100000062010000006302000100000001"
                "030008000000000000000000404004000400000066756c6c"
                "050004000000530000001900080000000000000000005040"
                "1a0001000000011b00080000000000000000006040"
                "1c00080000006100000000000000"
                "1d000800000000000000000070401e00a7000000a3000000"
                "01000100000002"
                "02006800000071000000000000007200000000000000730000000000000074000000000000007500"
                "00000000000076000000000000007700000000000000780000000000000079000000000000007a00"
                "0000000000007b000000000000007c000000000000007d00000000000000"
                "030008000000000000000000804004001a00000016000000"
                "01000200000017000200080000007e00000000000000"
                "1f0001000000012000080000006200000000000000"
                "210008000000000000000000904022000100000067"
                "2300010000007240000100000076"
                "4100050000000100000066"
                "42000500000001000000644400080000006300000000000000"
                "4a0008000000000000000000a040"
                "510001000000795300010000007a"
                "54000100000001550002000000"
                "1d00");
}

TEST_CASE("Protocol: an agent of version 7 is asked as commands of its time asked it", "[protocol]") {
    CHECK(*encode_for_7(StatusRequest{}) == bytes_of("47534c5007000100000000005b46caa2"));
    CHECK(
        *encode_for_7(wake_to_send()) ==
        bytes_of(
            "47534c50070003003c0000008fb871190100000001000000770106050000000000000108070000000000000100000001"
            "0000006f010c0b000000000000010100000001000000660100000074"));
    CHECK(*encode_for_7(Directive{Directive::Kind::let_through, 8}) ==
          bytes_of("47534c5007000600050000009a7d02890108000000"));
    for (const auto& request : {Request(SleepRequest{}), Request(ShareRequest{}), Request(InhibitRequest{})})
        CHECK(encode_for_7(request).error().code == ErrorCode::protocol_mismatch);
}

TEST_CASE("Protocol: what an agent of version 7 says is read", "[protocol]") {
    CHECK(same(
        reply_of_7(
            "47534c50070010001e0000003d835752077100000000000000720000000000000001000000747300000000000000"),
        Reply(progress_to_send())));
    auto failure = failure_to_send();
    failure.error.retry_seconds.reset();
    CHECK(same(reply_of_7("47534c500700120018000000b6cd7dd617000400000066756c6c050000007772697465e4ffffff02"),
               Reply(failure)));
    CHECK(same(*decode_reply(frame_in(*make_frame(
                   17,
                   bytes_of("02020101"
                            "04030201"
                            "050000006c6c616d61"
                            "03"
                            "21000000000000002200000000000000"
                            "2300000000000000"
                            "000000000000e03f"
                            "000000000000f03f0000000000000040"
                            "000000000000104000000000000020400000000000003040"
                            "02000000"
                            "020000006b76"
                            "feffffff"
                            "020102"
                            "1100000000000000120000000000000013000000000000001400000000000000"
                            "1500000000000000160000000000000017000000000000000100000000000018"
                            "01"
                            "00000000"
                            "00000000"
                            "000000"
                            "0000000000000000000000000000000000000000000000000000000000000000"
                            "0000000000000000000000000000000000000000000000000000000000000000"
                            "00"
                            "01000000030000000400000048323030"
                            "310000000000000032000000000000003300000000000000"
                            "340000000000000035000000000000003600000000000000"
                            "37000000000000003800000000000000"
                            "000000000000f03f00000000000000400000000000001040"
                            "000000000000204000000000000030400000000000004040"
                            "000000000000504000000000000060400000000000007040"
                            "0000000000008040"
                            "3900000000000000"
                            "050000004750552d31"
                            "010000000100000061"
                            "02000000010000006e00000000"
                            "010201"
                            "41000000000000004200000000000000"
                            "03000000637558"
                            "0100000003000000697063040000005100000000000000520000000000000003000000776879"
                            "0100000002000000010000006201000000630100000000000040400400000066756c6c"
                            "53000000"
                            "010000000000005040"
                            "01"
                            "010000000000006040"
                            "61000000000000000000000000007040"
                            "0100000002"
                            "71000000000000007200000000000000730000000000000074000000000000007500000000000000"
                            "76000000000000007700000000000000780000000000000079000000000000007a00000000000000"
                            "7b000000000000007c000000000000007d00000000000000"
                            "0000000000008040"
                            "0100000017007e00000000000000"
                            "01"
                            "6200000000000000"
                            "010000000000009040"
                            "0100000067"
                            "0100000072"),
                   k_older_version))),
               Reply(report_of_7())));

    const auto asleep = std::get<Report>(reply_of_7(
        "47534c50070011000501000014d638bd0001000092100000050000006c6c616d61010000004000000000000000000000"
        "000000000000000000000000000000004e40000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000100000007000000776569676874730000000000000101000000000000000000004000000000"
        "000000000000000000000040000000000000000000000000000000000000000000000000000000000000004000000000"
        "000000000000000000000000000102000000000000000000000000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000000000000000000000"));
    CHECK(asleep.name == "llama");
    CHECK(asleep.pid == 4242);
    CHECK(asleep.state == State::asleep);
    REQUIRE(asleep.tags.size() == 1);
    CHECK(asleep.tags[0].kept == k_gib);

    const auto refusal = std::get<Failure>(reply_of_7(
        "47534c5007001200560000005c34bc280f0047000000746865206f74686572207369646520737065616b732076657273"
        "696f6e2038206f66207468652070726f746f636f6c2c20616e642074686973206f6e652076657273696f6e2037000000"
        "000000000001"));
    CHECK(refusal.state == State::asleep);
    CHECK(refusal.error.code == ErrorCode::protocol_mismatch);
    CHECK(refusal.error.message ==
          "its agent speaks version 7 of the protocol, and this side version 8: to use this, "
          "start the process again");
}

TEST_CASE("Protocol: a reply of version 7 that is cut, too long or out of range is refused", "[protocol]") {
    auto payload = payload_of_7(report_to_send());
    const auto is_accepted = [&] { return decode_reply({17, payload, k_older_version}).has_value(); };
    CHECK(is_accepted());
    payload.push_back(std::byte{0});
    CHECK_FALSE(is_accepted());
    payload.pop_back();
    payload[0] = std::byte{3}; // the operation
    CHECK_FALSE(is_accepted());
    payload[0] = std::byte{2};
    for (; !payload.empty(); payload.pop_back())
        if (payload.size() < payload_of_7(report_to_send()).size()) REQUIRE_FALSE(is_accepted());
}

TEST_CASE("Protocol: an agent takes no request of version 7", "[protocol]") {
    const auto request = decode_request(frame_in(*encode_for_7(WakeRequest{})));
    REQUIRE_FALSE(request);
    CHECK(request.error().code == ErrorCode::protocol_mismatch);
    CHECK(request.error().message ==
          "the other side speaks version 7 of the protocol, and this one version 8");
}

TEST_CASE("Protocol: what is newer than version 7 is left out for it, unless it must be known",
          "[protocol]") {
    const auto is_whole = [](const Extended& value) {
        Writer7 out;
        out.write(value);
        CHECK(out.bytes() == bytes_of(value.old ? "01" : "00"));
        return out.is_whole();
    };
    CHECK(is_whole({true, false, true}));
    CHECK_FALSE(is_whole({true, true, false}));
}

TEST_CASE("Protocol: what stands for a field that is not sent stays as version 7 wrote it", "[protocol]") {
    const auto payload = [](std::string_view frame) { return bytes_of(frame.substr(2 * k_header_bytes)); };
    CHECK(
        payload_of_7(WakeRequest{}) ==
        payload(
            "47534c5007000300280000007c0d7b360000000000307500000000000000000000000000000000000000003075000000"
            "0000000000000000"));
    CHECK(payload_of_7(Directive{}) == payload("47534c50070006000500000068db129a0001000000"));
    CHECK(
        payload_of_7(Report{}) ==
        payload(
            "47534c5007001100ad0000007aaefe2a0001000000000000000000000000000000000000000000000000000000000000"
            "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
            "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"));
}
