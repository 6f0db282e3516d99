// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Deep sleep: the agent's, and then the driver's checkpoint. What is free then, what is held, what is
// answered, and what wakes it.

#include "deep_machine.hpp"

#include "support/configuration.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Deep: nothing of the process is left on the GPU, and all comes back", "[quick][deep]") {
    DeepMachine machine;
    Host other(machine.plain());
    other.tell("start");
    const auto before = free_bytes(other);
    for (int round = 0; round < 2; ++round) {
        machine.fall_asleep();
        CHECK(free_bytes(other) >= before + k_piece_bytes + k_context_bytes);
        const auto listed = machine.command("gpu-ps");
        CHECK(listed.json("/processes/0/report/deep_bytes") == std::to_string(k_context_bytes));
        CHECK(listed.json("/processes/0/gpu_bytes") == "0");
        machine.expect_held();
        CHECK(ended(machine.command("deep")).json("/processes/0/report/changed") == "false");
        CHECK(ended(machine.command("gpu-wake", {"--dry-run"})).json("/processes/0/state") == "asleep");
        machine.wake();
        CHECK(free_bytes(other) == before);
        machine.expect_works();
    }
}

TEST_CASE("Deep: what slept already, in whole or in part, goes deep as a whole", "[deep]") {
    DeepMachine machine;
    CHECK(machine.command("gpu-ps").json("/processes/0/gpu_bytes") == "null"); // awake
    REQUIRE(machine.command("gpu-sleep").status == 0);
    const auto listed = machine.command("gpu-ps");
    CHECK(listed.json("/processes/0/report/deep") == "false");
    CHECK(listed.json("/processes/0/gpu_bytes") == std::to_string(k_context_bytes));
    machine.fall_asleep();
    // How touches are met may change.
    CHECK(machine.command("gpu-sleep", {"--on-touch", "wake"}).status == 0);
    CHECK(machine.is_deep());
    check_intact(machine.host, machine.piece);
    machine.expect_awake();
}

TEST_CASE("Deep: what slept already has a line in the history when it goes deep", "[deep][history]") {
    DeepMachine machine;
    REQUIRE(machine.command("gpu-sleep").status == 0);
    machine.fall_asleep();
    REQUIRE(machine.command("gpu-sleep", {"--on-touch", "wake"}).status == 0); // moves no memory
    machine.wake();
    Output output;
    REQUIRE(becomes_true([&] {
        output = machine.command("gpu-ps", {"--history"});
        return output.json("/history/2/pid") != "none";
    }));
    std::string lines;
    for (int event = 0; event < 4; ++event)
        for (const auto* const field : {"operation", "deep", "moved_bytes"})
            lines += output.json(fmt::format("/history/{}/{}", event, field)) + ' ';
    const auto own = std::stoull(output.json("/history/0/moved_bytes"));
    CHECK(own >= k_piece_bytes);
    CHECK(lines == fmt::format("sleep false {} sleep true {} wake false {} none none none ", own,
                               k_context_bytes, own + k_context_bytes));
}

TEST_CASE("Deep: what is given up while it is stopped changes nothing of a sleep, deep or not", "[deep]") {
    DeepMachine machine;
    REQUIRE(machine.command(GENERATE("gpu-sleep", "deep")).status == 0);
    machine.host.process().signal(SIGSTOP);
    CHECK(machine.command("gpu-sleep", {"--on-touch", "fail", "--timeout", "100ms"}).status == 4);
    machine.host.process().signal(SIGCONT);
    CHECK(machine.command("gpu-ps").json("/processes/0/report/gate/on_touch") == "wait");
    machine.wake_whole();
}

TEST_CASE("Deep: a process without memory that could sleep goes deep, too", "[deep]") {
    DeepMachine machine;
    machine.host.tell("free " + machine.piece.number);
    machine.fall_asleep();
    machine.host.process().send("alloc plain 4194304");
    pause_for(Milliseconds(50));
    machine.wake();
    CHECK(machine.host.process().read_line().substr(0, 3) == "ok ");
    machine.host.tell("free 1");
    machine.fall_asleep({"--on-touch", "wake"});
    machine.host.tell("alloc plain 4194304");
    CHECK_FALSE(machine.is_deep());
}

TEST_CASE("Deep: a touch wakes it", "[quick][deep]") {
    DeepMachine machine;
    for (int round = 0; round < 2; ++round) {
        machine.fall_asleep({"--on-touch", "wake"});
        machine.expect_awake();
    }
}

TEST_CASE("Deep: a call that a plain sleep would let pass wakes all of it", "[deep]") {
    DeepMachine machine;
    for (int round = 0; round < 3; ++round) {
        machine.fall_asleep({"--on-touch", "wake"});
        machine.host.tell("query " + machine.piece.number + " 0");
        CHECK(becomes_true([&] { return machine.state() == "awake"; }));
    }
    machine.expect_awake();
}

TEST_CASE("Deep: such a call that comes while it goes deep wakes all of it, too", "[deep]") {
    DeepMachine machine;
    Process sleeping(machine.launch("deep", {"--on-touch", "wake"},
                                    {"GPU_SLEEP_SIM_DELAY=cuCheckpointProcessCheckpoint:600ms"}));
    REQUIRE(becomes_true([&] { return machine.state() == "asleep"; }));
    pause_for(Milliseconds(150));
    machine.host.tell("query " + machine.piece.number + " 0");
    CHECK(sleeping.finish().status == 0);
    CHECK(becomes_true([&] { return machine.state() == "awake"; }));
    machine.expect_awake();
}

TEST_CASE("Deep: who asks for the end of work is answered, and other questions wait", "[quick][deep]") {
    DeepSleeper machine;
    CHECK(machine.host.tell("poll") == "0 0 0");
    machine.host.process().send("query " + machine.piece.number + " 0");
    pause_for(Milliseconds(100));
    const auto listed = machine.command("gpu-ps");
    CHECK(listed.json("/processes/0/report/deep /processes/0/report/gate/waiting_threads") == "true 1");
    machine.wake();
    CHECK(machine.host.process().read_line().substr(0, 7) == "ok type");
    machine.expect_works();
}

TEST_CASE("Deep: who frees is answered at once, or in its stream's turn; it is free afterwards", "[deep]") {
    DeepMachine machine;
    const auto plain = make_piece(machine.host, "plain", k_piece_bytes);
    const auto async = make_piece(machine.host, "async", k_piece_bytes);
    const auto before = free_bytes(machine.host);
    machine.fall_asleep();
    machine.host.tell("free " + plain.number);
    machine.host.process().send("free " + async.number); // waits
    pause_for(Milliseconds(50));
    CHECK(machine.is_deep());
    machine.wake();
    CHECK(machine.host.process().read_line() == "ok ");
    machine.expect_works();
    CHECK(free_bytes(machine.host) >= before + 2 * k_piece_bytes);
}

TEST_CASE("Deep: it ends when it is told to", "[deep]") {
    DeepSleeper machine;
    SECTION("by a signal") {
        machine.host.process().signal(SIGTERM);
        CHECK(machine.host.wait() == 128 + SIGTERM);
    }
    SECTION("by itself") {
        machine.host.process().send("exit 3");
        CHECK(machine.host.wait() == 3);
    }
    CHECK(machine.command("gpu-wake").status == 3);
}

TEST_CASE("Deep: what the driver cannot checkpoint is refused before anything is done", "[deep]") {
    DeepMachine machine;
    const Scratch place;
    const std::string kind =
        GENERATE("managed", "shared", "exported", "exported on the host", "imported", "multicast", "decoder");
    if (kind == "managed") machine.host.tell("alloc managed 4194304");
    if (kind == "shared") machine.host.tell("share " + machine.piece.number);
    std::optional<Host> other;
    const auto pass_on = [&](Host& giver, Host& taker, const std::string& what) {
        const auto piece = make_piece(giver, what, k_piece_bytes);
        taker.process().send(fmt::format("import {} {}", place.file("socket"), k_piece_bytes));
        giver.tell(fmt::format("export {} {}", piece.number, place.file("socket")));
        CHECK(taker.process().read_line().starts_with("ok "));
    };
    if (kind == "multicast") machine.host.tell("multicast " + machine.piece.number);
    if (kind == "decoder") {
        machine.host.tell("free " + machine.piece.number); // without memory that could sleep, too
        machine.host.tell("load " + library_file("unseen/libnvcuvid.so.1"));
    }
    if (kind == "exported" || kind == "exported on the host" || kind == "imported")
        other.emplace(machine.plain());
    if (kind == "exported") pass_on(machine.host, *other, "shared");
    if (kind == "exported on the host") pass_on(machine.host, *other, "host_shared");
    if (kind == "imported") pass_on(*other, machine.host, "host_shared");
    const std::string why = kind == "managed"                        ? "managed memory"
                            : kind == "multicast"                    ? "multicast memory"
                            : kind == "shared" || kind == "exported" ? "put all of them to sleep together"
                            : kind == "decoder" ? "libnvcuvid.so.1 for the GPU's video and JPEG decoders"
                                                : "NCCL_P2P_DISABLE=1 and NCCL_CUMEM_HOST_ENABLE=0";
    if (kind == "managed") { // gpu-ps says so beforehand, and so does a rehearsal
        CHECK_THAT(machine.command("gpu-ps").json("/processes/0/report/deep_refusal"), mentions(why));
        CHECK(machine.command("deep", {"--force"}).status == 1);
        CHECK_THAT(ended(machine.command("deep", {"--dry-run"}), 1).json("/processes/0/report/notes/0"),
                   mentions(why));
    }
    const auto refused = ended(machine.command("deep"), 1);
    CHECK(refused.json("/processes/0/state") == "awake");
    CHECK_THAT(refused.err, mentions(why));
    if (kind != "managed") return;
    REQUIRE(machine.command("gpu-sleep").status == 0);
    check_ended(machine.command("deep"), 7,
                mentions("it is asleep, but it cannot sleep deeply: it has managed memory"));
}

TEST_CASE("Deep: what others have a part in is refused for as long as any of it may be there", "[deep]") {
    DeepMachine machine;
    const auto row =
        GENERATE(Arguments{"pool", "shares memory"}, Arguments{"imported_pool", "shares memory"},
                 Arguments{"memory", "from outside CUDA"}, Arguments{"semaphore", "from outside CUDA"});
    INFO(row[0]);
    machine.host.tell("shared_object " + row[0]);
    const auto refused = ended(machine.command("deep"), 1);
    CHECK(refused.json("/processes/0/state") == "awake");
    CHECK_THAT(refused.err, mentions(row[1]));
    machine.host.tell("destroy_shared");
    if (row[1] == "shares memory" || row[0] == "memory") { // what was allocated or mapped there lives on
        CHECK_THAT(machine.command("deep").err, mentions(row[1]));
        return;
    }
    machine.fall_asleep();
    machine.wake_whole();
}

TEST_CASE("Deep: events that processes share do not stand in its way", "[deep]") {
    DeepMachine machine;
    Host other(machine.plain()); // which has to live when its event is opened
    const auto handle = other.tell("shared_object event");
    machine.host.tell(GENERATE(false, true) ? "shared_object event" : "shared_object opened_event " + handle);
    machine.fall_asleep();
    machine.wake_whole();
    machine.host.tell("destroy_shared");
}

TEST_CASE("Deep: it wakes though its program outside is gone or another, as amid an upgrade", "[deep]") {
    const Scratch place;
    const auto library = place.file("libgpu-sleep-agent.so");
    const auto outside = place.file("gpu-sleep-outside");
    std::filesystem::copy_file(agent_file(), library);
    std::filesystem::copy_file(library_file("gpu-sleep-outside"), outside);
    DeepMachine machine({"LD_PRELOAD=" + library});
    machine.fall_asleep();
    std::filesystem::remove(outside);
    if (GENERATE(false, true)) std::filesystem::copy_file("/bin/false", outside);
    machine.wake_whole();
}

TEST_CASE("Deep: it sleeps and wakes though unknown descriptors are closed, or no number is left", "[deep]") {
    DeepMachine machine;
    const std::string numbers = GENERATE("closed", "taken", "used");
    machine.host.tell("descriptors " + numbers);
    machine.fall_asleep();
    machine.wake();
    machine.host.tell("descriptors left");
    machine.expect_awake();
}

TEST_CASE("Deep: gpu-ps says what a process lacks for it", "[deep]") {
    const auto refusal = [](const Host& host) {
        return host.command("gpu-ps", {"--json"}).json("/processes/0/report/deep_refusal");
    };
    SECTION("its program outside") {
        const Scratch place;
        std::filesystem::copy_file(agent_file(), place.file("libgpu-sleep-agent.so"));
        const DeepMachine machine({"LD_PRELOAD=" + place.file("libgpu-sleep-agent.so")});
        CHECK_THAT(refusal(machine.host), mentions("gpu-sleep-outside is missing"));
    }
    SECTION("a process that may start another") {
        const Scratch place;
        const auto valgrind = place.file("vgpreload_core-amd64-linux.so");
        std::filesystem::copy_file(library_file("unseen/libnvcuvid.so.1"), valgrind);
        const DeepMachine machine({"LD_PRELOAD=" + agent_file() + ":" + valgrind});
        CHECK_THAT(refusal(machine.host), mentions("valgrind"));
    }
    SECTION("a management library that works") {
        const DeepMachine machine({"GPU_SLEEP_SIM_FAIL=cuDeviceGetName:1:999"});
        CHECK_THAT(machine.command("deep").err, mentions("nvmlInit says"));
    }
    SECTION("a GPU of its own") {
        const auto sharing = GENERATE(Arguments{"GPU_SLEEP_SIM_SHARING=mig", "(MIG)"},
                                      Arguments{"GPU_SLEEP_SIM_SHARING=mps", "MPS"});
        const DeepMachine machine({sharing[0]});
        CHECK_THAT(refusal(machine.host), mentions(sharing[1]));
    }
    SECTION("a management library that answers") {
        const DeepMachine machine({"GPU_SLEEP_SIM_DELAY=nvmlDeviceGetMemoryInfo:20000ms"});
        CHECK(refusal(machine.host) == "null"); // nobody has asked it yet
        CHECK_THAT(machine.command("deep").err, mentions("does not answer"));
        CHECK_THAT(refusal(machine.host), mentions("does not answer"));
        CHECK(machine.command("gpu-ps").json("/processes/0/state") == "awake");
    }
    SECTION("calls that it sees") {
        LoadedHost host;
        CHECK_THAT(refusal(host), mentions("not intercepted"));
        CHECK_THAT(host.ask(fmt::format("sleep {}", 1 | GPU_SLEEP_DEEP)), mentions("not intercepted"));
    }
}

TEST_CASE("Deep: nothing that was retained is pinned in it, though a context ends just before", "[deep]") {
    static_cast<void>(GENERATE(range(0, 3))); // in between it may be given back in time
    const Scratch place;
    const auto trace = place.file("trace");
    DeepMachine machine({"GPU_SLEEP_SIM_DELAY=cuCtxDestroy:500ms", "GPU_SLEEP_SIM_TRACE=" + trace});
    REQUIRE(machine.command("gpu-sleep").status == 0);
    REQUIRE(machine.command("gpu-wake").status == 0);
    machine.host.tell("contexts 1");
    pause_for(Milliseconds(200));
    machine.host.tell("free " + machine.piece.number);
    machine.fall_asleep();
    CHECK(calls_done(trace, "cuMemHostRegister_v2") > 0);
    CHECK(calls_done(trace, "cuMemHostRegister_v2") == calls_done(trace, "cuMemHostUnregister"));
    machine.wake();
    machine.host.tell("contexts 0");
}

TEST_CASE("Deep: a request drops kept copies, and is refused, as of a plain sleeper", "[deep]") {
    DeepMachine machine;
    const auto rehearse = [&] {
        std::vector<std::string> told;
        for (const auto& request :
             {Arguments{"--level", "2"}, Arguments{"--discard", "default"},
              Arguments{"--level", "2", "--require-refill"}, Arguments{"--tags", "nosuch"},
              Arguments{"--discard", "nosuch"}, Arguments{"--keep", "nosuch"}, Arguments{}}) {
            auto options = request;
            options.emplace_back("--dry-run");
            const auto output = machine.command("gpu-sleep", options);
            told.push_back(std::to_string(output.status) + " " +
                           output.json("/processes/0/report/devices/0/dropped"));
        }
        for (const auto& options :
             {Arguments{"--tags", "nosuch"}, Arguments{"--level", "2", "--require-refill"}})
            told.push_back(std::to_string(machine.command("gpu-sleep", options).status));
        return told;
    };
    REQUIRE(machine.command("gpu-sleep").status == 0);
    const auto plain = rehearse();
    CHECK(plain[3].substr(0, 1) == "2");
    machine.fall_asleep();
    CHECK(rehearse() == plain);
    const auto dropped = ended(machine.command("gpu-sleep", {"--level", "2", "--yes"}));
    CHECK(dropped.json("/processes/0/report/changed") == "true");
    CHECK("0 " + dropped.json("/processes/0/report/devices/0/dropped") == plain[0]);
    CHECK(machine.is_deep());
    CHECK(machine.command("gpu-sleep", {"--level", "2", "--yes"}).json("/processes/0/report/changed") ==
          "false");
    machine.wake();
}

TEST_CASE("Deep: what is kept can go to files meanwhile, and to nowhere else", "[deep]") {
    const Scratch place;
    DeepSleeper machine;
    const auto asked = machine.command("gpu-sleep", {"--release-retained"}); // of which there is nothing
    CHECK(asked.status == 0);
    CHECK(asked.json("/processes/0/report/changed") == "false");
    const auto to_files = [&](Arguments more) {
        return machine.command("gpu-sleep",
                               with(std::move(more), {"--store", "file", "--dir", place.file("files")}));
    };
    const auto kept = [&] { return machine.command("gpu-ps").json("/processes/0/report/host_bytes"); };
    CHECK(std::stoull(to_files({"--dry-run"}).json("/processes/0/report/devices/0/relocated_bytes")) >=
          k_piece_bytes);
    CHECK(std::stoull(kept()) >= k_piece_bytes);
    const auto moved = ended(to_files({}));
    CHECK(moved.json("/processes/0/report/changed /processes/0/report/deep") == "true true");
    CHECK(kept() == "0");
    CHECK(to_files({}).json("/processes/0/report/changed") == "false");
    CHECK(machine.command("gpu-sleep", {"--store", "host"}).status == 7);
    machine.wake_whole();
}

TEST_CASE("Deep: the last rung of gpu-reclaim's ladder, by what has slept on the others", "[deep]") {
    if (!reads_configurations()) return;
    const Scratch place;
    DeepMachine machine;
    const auto pass = [&](const std::string& last) {
        const Configuration ladder(fmt::format(
            "[reclaim]\nidle = [\"10ms:host\", \"{}\"]\ndirectory = \"{}\"\n", last, place.file("files")));
        const auto output = ended(machine.command("gpu-reclaim", {"--config", ladder.file()}));
        return output.json("/processes/0/report/changed") == "true";
    };
    REQUIRE(becomes_true([&] { return pass("1h:deep"); })); // idle by now
    CHECK(machine.state() == "asleep");
    pause_for(Milliseconds(20));
    CHECK(pass("20ms:deep"));
    const auto listed = machine.command("gpu-ps");
    CHECK(listed.json("/processes/0/report/deep") == "true");
    CHECK(listed.json("/processes/0/report/host_bytes") == "0"); // but in files
    CHECK_FALSE(pass("20ms:deep"));
    machine.expect_awake(); // a touch
}
