// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The payload of one message of each kind, byte for byte, with a value of its own in every field: a number, a
// width or a value of the format that changes is seen here, also when writer and reader change alike. And
// what stands for a field that is not sent.

#include "protocol/wire.hpp"
#include "random_messages.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::model;
using namespace gpu_sleep::protocol;
using namespace gpu_sleep::test;

namespace {

/// The type of the frame, a colon, and the payload, both in hexadecimal.
std::string payload_text(const std::vector<std::byte>& frame) {
    const std::span bytes(frame);
    return in_hexadecimal(bytes.subspan(6, 1)) + ':' + in_hexadecimal(bytes.subspan(k_header_bytes));
}

void check_bytes(const Request& request, const std::string& text) {
    const auto bytes = *encode(request);
    CHECK(payload_text(bytes) == text);
    CHECK(same(*decode_request(*frame_in(bytes)), request));
}

void check_bytes(const Reply& reply, const std::string& text) {
    const auto bytes = *encode(reply);
    CHECK(payload_text(bytes) == text);
    CHECK(same(*decode_reply(*frame_in(bytes)), reply));
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
    report.asleep_byte_seconds = 0x64;
    report.lock_tags = {"l"};
    report.sharers = {0x65};
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
    sleep.party = 0x0d0e;
    sleep.ignore_unknown_tags = true;
    sleep.for_lock = true;
    return sleep;
}

WakeRequest wake_to_send() {
    return {{true, Milliseconds(0x0506), true},
            {"w"},
            Milliseconds(0x0708),
            true,
            Milliseconds(0x0b0c),
            true,
            true,
            0x0d0e,
            true,
            {{"f", "t"}}};
}

Progress progress_to_send() {
    return {Progress::Phase::drained, 0x71, 0x72, 0x73};
}

Failure failure_to_send() {
    return {{ErrorCode::out_of_disk, "full", "write", -28, 4096}, State::partial};
}

/// The fields of a new struct that are not zero, empty or unset: "number:bytes", or "number{its fields}".
template <class T>
std::string defaults_of() {
    std::string text;
    const T initial{};
    any_field(initial, initial, [&](auto field, const auto& its) {
        using Value = std::remove_cvref_t<decltype(its)>;
        if constexpr (HasFields<Value>) {
            if (const auto inner = defaults_of<Value>(); !inner.empty())
                text += fmt::format("{}{{{}}} ", field.k_number, inner);
        } else {
            Writer out;
            out.write(its);
            const auto hex = in_hexadecimal(out.bytes());
            if (hex.find_first_not_of('0') != std::string::npos)
                text += fmt::format("{}:{} ", field.k_number, hex);
        }
        return false;
    });
    return text;
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
                             "520001000000015d80080000000e0d000000000000"
                             "60800100000001";
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
    wake.members = {0x66};
    check_bytes(wake, "03:"
                      "018005000000010000007702800100000001"
                      "038008000000060500000000000004800100000001"
                      "0500080000000807000000000000"
                      "07800100000001"
                      "0880080000000c0b00000000000009800100000001"
                      "0a80120000000e0000000180010000006602800100000074"
                      "4880080000000f0e000000000000520001000000015a000100000001"
                      "5d80080000000e0d00000000000061000100000001"
                      "65000c000000080000006600000000000000");
    check_bytes(Directive{Directive::Kind::let_through, 8}, "06:"
                                                            "0180010000000102800400000008000000");
    check_bytes(InhibitRequest{true, Milliseconds(0x0910)}, "05:"
                                                            "018001000000010280080000001009000000000000");
    TimerRequest timer;
    timer.after = Milliseconds(0x61);
    timer.deep = timer.store_is_named = timer.spill = timer.keep_files = true;
    timer.on_touch = OnTouch::fail;
    timer.store = Store::file;
    timer.stores = {{"a", Store::file}};
    timer.directory = "/d";
    check_bytes(timer, "07:"
                       "0180080000006100000000000000028001000000010380010000000204800100000001"
                       "0580120000000e0000000180010000006102800100000001"
                       "06800100000001078002000000"
                       "2f64"
                       "08800100000001098001000000"
                       "01");
    check_bytes(SharedMemoryRequest{{0x61, 0x62}, 0x63, 0x6400000000000001},
                "04:"
                "01801000000061000000000000006200000000000000"
                "0280080000006300000000000000"
                "0380080000000100000000000064");
}

TEST_CASE("Protocol: the bytes of each reply", "[protocol]") {
    check_bytes(progress_to_send(), "10:"
                                    "018001000000070200080000007100000000000000"
                                    "0300080000007200000000000000"
                                    "0500080000007300000000000000");
    check_bytes(failure_to_send(), "12:"
                                   "010035000000010002000000170002000400000066756c6c"
                                   "0300050000007772697465040004000000e4ffffff"
                                   "560008000000000000000000b040"
                                   "02000100000002");
    check_bytes(SharedMemory{0x81, 0x82, 0x83, {0x84, 0x85}}, "13:"
                                                              "0180080000008100000000000000"
                                                              "0280080000008200000000000000"
                                                              "6200080000008300000000000000"
                                                              "63001000000084000000000000008500000000000000");
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
                "1d005b000800000064000000000000005e0005000000010000006c"
                "64000c000000080000006500000000000000");
}

TEST_CASE("Protocol: what stands for an unsent field stays, for old and new to read the same", "[protocol]") {
    CHECK(defaults_of<SleepRequest>() == "1:01 7:3075000000000000 ");
    CHECK(defaults_of<WakeRequest>() == "3:3075000000000000 8:3075000000000000 72:ffffffffffffffff ");
    CHECK(defaults_of<LiveRequest>() == "7:3075000000000000 70:01 71:ffffffffffffffff ");
    CHECK(defaults_of<CallRequest>() == "7:3075000000000000 ");
    CHECK(defaults_of<ReleaseRequest>() == "7:3075000000000000 19:01 ");
    CHECK(defaults_of<IdleSleepRequest>() == "1:01 7:3075000000000000 ");
    CHECK(defaults_of<Directive>() == "2:01000000 ");
    CHECK(defaults_of<Failure>() == "1{1:0100 } ");
    CHECK(defaults_of<Report>() == "2:01 ");
    for (const auto& all_zero :
         {defaults_of<StatusRequest>(), defaults_of<SharedMemoryRequest>(), defaults_of<InhibitRequest>(),
          defaults_of<TimerRequest>(), defaults_of<Progress>(), defaults_of<SharedMemory>()})
        CHECK(all_zero.empty());
}
