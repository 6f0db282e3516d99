// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The payload of one message of each kind, byte for byte, with a value of its own in every field: an order, a
// width or a value of the format that changes is seen here, also when writer and reader change alike.

#include "protocol/messages.hpp"

#include "random_messages.hpp"
#include "support/catch.hpp"

#include <string>
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
    return report;
}

} // namespace

TEST_CASE("Protocol: the bytes of each request", "[protocol]") {
    check_bytes(StatusRequest{}, "01:");

    SleepRequest sleep;
    sleep.level = Level::drop;
    sleep.tags = {"t"};
    sleep.keep = {"k", "kk"};
    sleep.discard = {"d"};
    sleep.require_refill = true;
    sleep.dry_run = false;
    sleep.timeout = Milliseconds(0x0102);
    sleep.bounds_all = true;
    sleep.on_touch = OnTouch::fail;
    sleep.gate = GateMode::checked;
    sleep.force = false;
    sleep.touch_limit = Milliseconds(0x0304);
    sleep.store = Store::file;
    sleep.stores = {{"s", Store::host}, {"ss", Store::file}};
    sleep.directory = "/d";
    sleep.spill = true;
    sleep.keep_files = false;
    sleep.copy_all = true;
    sleep.release_retained = false;
    sleep.only_if_idle = Milliseconds(0x0708);
    sleep.ignore_inhibitors = true;
    sleep.check_copies = true;
    sleep.store_is_named = true;
    sleep.host_budget = 0x0a0b;
    sleep.deep = true;
    sleep.min_awake = Milliseconds(0x090a);
    sleep.joint = true;
    check_bytes(sleep, "02:"
                       "02"
                       "010000000100000074"
                       "02000000010000006b020000006b6b"
                       "010000000100000064"
                       "0100"
                       "0201000000000000"
                       "01"
                       "0102"
                       "0101"
                       "00"
                       "010403000000000000"
                       "01"
                       "0200000001000000730002000000737301"
                       "020000002f64"
                       "01000100"
                       "010807000000000000"
                       "01"
                       "01"
                       "01"
                       "010b0a000000000000"
                       "01"
                       "010a09000000000000"
                       "01");

    check_bytes(WakeRequest{{"w"},
                            true,
                            Milliseconds(0x0506),
                            false,
                            Milliseconds(0x0708),
                            {"o"},
                            true,
                            Milliseconds(0x0b0c),
                            true,
                            {{"f", "t"}}},
                "03:"
                "010000000100000077"
                "01"
                "0605000000000000"
                "00"
                "0807000000000000"
                "01000000010000006f"
                "01"
                "0c0b000000000000"
                "01"
                "0100000001000000660100000074");
    check_bytes(Directive{Directive::Kind::let_through, 8}, "06:0108000000");
    check_bytes(InhibitRequest{true, Milliseconds(0x0910)}, "05:"
                                                            "01"
                                                            "011009000000000000");
    check_bytes(ShareRequest{{0x61, 0x62}, 0x63, 0x6400000000000001}, "04:"
                                                                      "61000000000000006200000000000000"
                                                                      "6300000000000000"
                                                                      "0100000000000064");
}

TEST_CASE("Protocol: the bytes of each reply", "[protocol]") {
    check_bytes(Progress{Progress::Phase::drained, 0x71, 0x72, "t", 0x73}, "10:"
                                                                           "07"
                                                                           "71000000000000007200000000000000"
                                                                           "0100000074"
                                                                           "7300000000000000");
    check_bytes(Failure{{ErrorCode::out_of_disk, "full", "write", -28}, State::partial}, "12:"
                                                                                         "1700"
                                                                                         "0400000066756c6c"
                                                                                         "050000007772697465"
                                                                                         "e4ffffff"
                                                                                         "02");
    check_bytes(Shared{0x81, 0x82}, "13:"
                                    "81000000000000008200000000000000");
    check_bytes(report_to_send(),
                "11:"
                "02020101"
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
                "0100000072");
}
