// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What people read: two goldens for the layout, and the rest by meaning.

#include "cli/show/render.hpp"
#include "cli/show/table.hpp"
#include "cli/show/terminal.hpp"

#include "support/catch.hpp"
#include "support/hostile_text.hpp"
#include "support/printed.hpp"

#include <sys/ioctl.h>

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::control;

namespace {

using namespace test;
using Sentences = std::vector<std::string>;

} // namespace

// The layout, character by character; the tests around it read by meaning.
TEST_CASE("Render: the listing has a line for each process and each of its tags", "[render]") {
    auto other = sample_process();
    other.pid = 77;
    other.command = "python3 train.py";
    auto status = test::sample_status();
    status.tags[1].needs_refill = true;
    auto asleep = test::sample_sleep();
    asleep.name.clear();
    asleep.state_seconds = 125;
    const auto text = render_listing({{sample_process(), status}, {other, asleep}, {other, Error{}}});
    CHECK(
        text ==
        R"( PID  USER  NAME              STATE             TAG       DEVICE     BYTES  WHERE                            POLICY
4242  root  llama             awake 1 h 0 min   2 tags    2 GPUs  39.0 GiB  GPU (zeros: needs refill)
                              awake             weights   GPU 0   15.0 GiB  GPU                              offload, refillable
                              awake             kv_cache  GPU 1   24.0 GiB  GPU (zeros: needs refill)        discard
  77  root  python3 train.py  asleep 2 min 5 s  2 tags    2 GPUs  39.0 GiB  host 15.0 GiB, dropped 24.0 GiB
                              asleep            weights   GPU 0   15.0 GiB  host                             offload, refillable
                              asleep            kv_cache  GPU 1   24.0 GiB  dropped                          discard
  77  root  python3 train.py  no answer
)");
}

TEST_CASE("Render: the listing says what is in files", "[render]") {
    auto report = test::sample_sleep_in_files();
    report.tags.pop_back();
    const auto listed = [&] { return Printed(render_listing({{sample_process(), report}})); };
    auto printed = listed();
    CHECK(printed.sentences.empty());
    const std::string holds = "BYTES 15.0 GiB; WHERE host 10.0 GiB, file 5.00 GiB";
    CHECK(printed.lines ==
          Sentences{"PID 4242; USER root; NAME llama; STATE asleep 0 us; TAG 1 tag; DEVICE 1 GPU; " + holds,
                    "STATE asleep; TAG weights; DEVICE GPU 0; " + holds + "; POLICY offload, refillable"});
    report.tags[0].in_files = report.tags[0].kept;
    printed = listed();
    REQUIRE(printed.rows.size() == 2);
    for (const auto& row : printed.rows) CHECK(row.at("WHERE") == "file");
}

TEST_CASE("Render: the listing says how the gate stands and what stays with the driver", "[render]") {
    auto intercepted = test::sample_intercepted_sleep();
    intercepted.state_seconds = 125;
    intercepted.tags.pop_back();
    auto awake = test::sample_status();
    awake.tags.pop_back();
    awake.intercepts = true;
    awake.notes = {"a sentence of the agent"};
    const Printed asleep(render_listing({{sample_process(), intercepted}}));
    REQUIRE(asleep.rows.size() == 2);
    CHECK(asleep.rows[0].at("STATE") == "asleep 2 min 5 s");
    CHECK(asleep.rows[1].at("WHERE") == "host");
    CHECK(asleep.sentences ==
          Sentences{"gate shut: work on the GPU wakes the process; 2 threads wait; held 17 times so far, "
                    "last cuLaunchKernel",
                    "sleeps are inhibited for another 2 h 0 min",
                    "stays on GPU 0: managed 1.00 GiB in 3 allocations (the driver moves it by itself)",
                    "stays on GPU 1: array 4.00 KiB in 1 allocation",
                    "a wake of weights, kv_cache has waited 12.50 s for GPU memory: too little"});
    const Printed both(render_listing({{sample_process(), intercepted}, {sample_process(), awake}}));
    REQUIRE(both.rows.size() == 4);
    CHECK(both.rows[2].at("STATE") == "awake 1 h 0 min");
    for (const int row : {2, 3}) CHECK(both.rows[static_cast<std::size_t>(row)].at("WHERE") == "GPU");
    auto from_notebook = sample_process();
    from_notebook.origin.notebook = "work/a.ipynb";
    CHECK(Printed(render_listing({{from_notebook, awake}})).sentences.at(0) == "notebook work/a.ipynb");
    const Printed in_full(render_listing({{sample_process(), intercepted}}, Detail::all));
    REQUIRE(in_full.sentences.size() == asleep.sentences.size() + 1);
    CHECK(in_full.sentences[4] == "cannot sleep deeply: it has managed memory");
    intercepted.notes = {"it has managed memory, says a note"};
    CHECK(Printed(render_listing({{sample_process(), intercepted}}, Detail::all)).sentences[4] ==
          "cannot sleep deeply");
    REQUIRE(both.sentences.size() == asleep.sentences.size() + 2);
    CHECK(both.sentences[5] == "gate open; once asleep, work on the GPU waits");
    CHECK(both.sentences[6] == "a sentence of the agent");
}

TEST_CASE("Render: the listing says how long a pass over what runs from host memory takes", "[render]") {
    auto report = test::sample_sleep();
    report.tags.at(0).host_backed = 4 * k_gib;
    CHECK(Printed(render_listing({{sample_process(), report}}, Detail::all)).sentences.empty());
    CHECK(Printed(render_listing({{sample_process(), report}}, Detail::all, 64.0 * k_gib)).sentences ==
          Sentences{"runs from host memory: reading it once over PCIe takes at least 62.5 ms"});
    report.tags.at(0).host_backed = 0;
    CHECK(Printed(render_listing({{sample_process(), report}}, Detail::all, 64.0 * k_gib)).sentences.empty());
}

TEST_CASE("Render: the listing says of a deep sleeper what the driver took, and what is left", "[render]") {
    auto report = test::sample_sleep();
    report.deep = true;
    report.deep_bytes = k_gib;
    control::Outcome outcome{sample_process(), report};
    outcome.gpu_bytes = 0;
    Printed printed(render_listing({outcome}));
    CHECK(printed.rows.at(0).at("STATE") == "deeply asleep 0 us");
    CHECK(printed.sentences == Sentences{"the driver has also removed the rest from the GPU: 1.00 GiB",
                                         "it has nothing left on the GPUs"});
    outcome.gpu_bytes = 8 * k_mib;
    CHECK(Printed(render_listing({outcome})).sentences.at(1) ==
          "still on the GPUs: 8.00 MiB (contexts, modules, residual memory; during a wake, also contents)");
}

TEST_CASE("Render: the listing says what the driver holds of a process without an agent", "[render]") {
    model::Report report;
    report.state = model::State::asleep;
    report.host_bytes = 3 * k_gib;
    const Printed printed(
        render_listing({{sample_process(), report, model::Operation::status, false, true}}));
    REQUIRE(printed.rows.size() == 1);
    CHECK(printed.rows[0].at("BYTES") == "3.00 GiB");
    CHECK(printed.rows[0].at("WHERE") == "host");
}

TEST_CASE("Render: a sleep says what stays, and what touching it does", "[render]") {
    auto report = test::sample_intercepted_sleep();
    report.gate = model::GateState::checked;
    report.on_touch = model::OnTouch::fail;
    report.waiting = report.touches = 0;
    report.dropped_without_refill.clear();
    const Printed printed(render_operation(sample_process(), report));
    CHECK(printed.rows.size() == 2);
    CHECK(printed.sentences ==
          Sentences{"4242 llama is asleep at level 1 after 0.46 s:",
                    "stays on GPU 0: managed 1.00 GiB in 3 allocations (the driver moves it by itself)",
                    "stays on GPU 1: array 4.00 KiB in 1 allocation",
                    "gate checked: work that names a sleeping address fails", "a sentence of the agent"});
}

TEST_CASE("Render: a sleep in files names their directories", "[render]") {
    auto report = test::sample_sleep_in_files();
    report.dropped_without_refill.clear();
    const auto said = [&] { return Printed(render_operation(sample_process(), report)).sentences.at(1); };
    const std::string size = ": 5.00 GiB, 3.00 GiB on disk";
    CHECK(said() == "contents in files in /fast/ann" + size);
    report.directories.emplace_back("/slow\n");
    CHECK(said() == "contents in files in /fast/ann, /slow?" + size);
    report.dry_run = true;
    CHECK_THAT(said(), !mentions("in files"));
}

TEST_CASE("Render: a sleep of some tags that shuts the gate says what lets the rest work", "[render]") {
    auto report = test::sample_sleep();
    report.gate = model::GateState::shut;
    model::SleepRequest request;
    const auto says_it = [&] {
        return render_operation(sample_process(), report, &request).find("--gate checked") !=
               std::string::npos;
    };
    CHECK_FALSE(says_it());
    request.tags = {"weights"};
    CHECK(says_it());
    request.gate = model::GateMode::shut; // as asked
    CHECK_FALSE(says_it());
    request.gate.reset();
    report.gate = model::GateState::checked;
    CHECK_FALSE(says_it());
}

// The layout, character by character; the tests around it read by meaning.
TEST_CASE("Render: a sleep names what each device gave back, kept and dropped", "[render]") {
    CHECK(render_operation(sample_process(), test::sample_sleep()) ==
          R"(4242 llama is asleep at level 1 after 0.46 s:
  DEVICE                FREED      KEPT   DROPPED  USED BY ALL
  GPU 0 NVIDIA H200  15.0 GiB  15.0 GiB       0 B     25.0 GiB
  GPU 1 NVIDIA H200  24.0 GiB       0 B  24.0 GiB            -
  dropped with no declared refill: kv_cache
  a sentence of the agent
)");
}

TEST_CASE("Render: what others free and take meanwhile is not said of a process", "[render]") {
    auto report = test::sample_sleep();
    report.devices.resize(1);
    report.devices[0].free_after += 7 * k_gib;
    const Printed slept(render_operation(sample_process(), report));
    CHECK(slept.rows.at(0).at("FREED") == "15.0 GiB");
    report.operation = model::Operation::wake;
    report.devices[0].free_after = 0;
    const Printed woken(render_operation(sample_process(), report));
    CHECK(woken.rows.at(0).at("TAKEN") == "15.0 GiB");
}

TEST_CASE("Render: of several the total is said, what the driver has taken among it", "[render]") {
    auto report = test::sample_sleep(); // 39 GiB
    std::vector<control::Outcome> outcomes{{sample_process(), report}};
    CHECK(render_total(outcomes).empty());
    report.deep_bytes = k_gib;
    outcomes.push_back({sample_process(), report});
    CHECK(render_total(outcomes) == "79.0 GiB of GPU memory freed in all\n");
    report.changed = false;
    outcomes.push_back({sample_process(), report}); // slept already
    CHECK(render_total(outcomes) == "79.0 GiB of GPU memory freed in all\n");
}

TEST_CASE("Render: a wake names what each device took and got back", "[render]") {
    auto report = test::sample_status();
    report.operation = model::Operation::wake;
    report.changed = true;
    report.times.total = 0.31;
    report.devices = {{0, "NVIDIA H200", 15 * k_gib, 15 * k_gib, 0, 115 * k_gib, 100 * k_gib, 140 * k_gib}};
    const Printed printed(render_operation(sample_process(), report));
    CHECK(printed.sentences == Sentences{"4242 llama is awake after 0.31 s:"});
    CHECK(printed.lines == Sentences{"DEVICE GPU 0 NVIDIA H200; TAKEN 15.0 GiB; RESTORED 15.0 GiB; "
                                     "ZEROED 0 B; GPU FREE 100.0 GiB"});
}

TEST_CASE("Render: a dry run says what would be", "[render]") {
    auto report = test::sample_sleep();
    report.dry_run = true;
    report.changed = false;
    const Printed printed(render_operation(sample_process(), report));
    CHECK(printed.sentences == Sentences{"4242 llama would sleep at level 1; nothing was changed:",
                                         "would drop with no declared refill: kv_cache",
                                         "a sentence of the agent"});
    CHECK(printed.lines ==
          Sentences{
              "DEVICE GPU 0 NVIDIA H200; WOULD FREE 15.0 GiB; KEEP 15.0 GiB; DROP 0 B; USED BY ALL 40.0 GiB",
              "DEVICE GPU 1 NVIDIA H200; WOULD FREE 24.0 GiB; KEEP 0 B; DROP 24.0 GiB; USED BY ALL -"});
    model::SleepRequest request;
    request.deep = true;
    CHECK(Printed(render_operation(sample_process(), report, &request)).sentences.front() ==
          "4242 llama would sleep deeply at level 1; nothing was changed:");
    CHECK(render_together({{sample_process(), report}, {sample_process(), report}}, &request)
              .starts_with("2 processes would sleep deeply; "));
    refuse(report, "sleeps are inhibited");
    CHECK(Printed(render_operation(sample_process(), report)).sentences.front() ==
          "4242 llama would not sleep at level 1; nothing was changed:");
    report = {};
    report.operation = model::Operation::sleep;
    report.dry_run = true;
    report.state = model::State::asleep; // what is left of it goes as well
    CHECK(render_operation(sample_process(), report, &request) ==
          "4242 python3 serve.py would sleep deeply at level 1; nothing was changed\n");
    report.deep = true;
    CHECK_THAT(render_operation(sample_process(), report, &request), mentions("already deeply asleep"));
}

TEST_CASE("Render: what was so already is said to be so", "[render]") {
    model::Report report;
    report.operation = model::Operation::wake;
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py holds no memory that could sleep; nothing to do\n");
    report.tags = {test::sample_weights()};
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py is already awake, as asked; nothing to do\n");
    report.operation = model::Operation::sleep;
    report.state = model::State::asleep;
    CHECK(render_operation(sample_process(), report, nullptr, true) ==
          "4242 python3 serve.py is asleep, so nothing moved; wake it first\n");
    report.state = model::State::partial;
    CHECK(render_operation(sample_process(), report, nullptr, true) ==
          "4242 python3 serve.py is already partly asleep, as asked; nothing to do\n");
    report.state = model::State::awake;
    report.notes = {"it is not idle"};
    report.devices.emplace_back(); // of which there are no figures
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py stays awake; nothing was changed:\n  it is not idle\n");
}

TEST_CASE("Render: where contents are damaged, the listing and the next sleep say what to do", "[render]") {
    model::Report report;
    report.state = model::State::damaged;
    const auto check_advice = [](const std::string& text) {
        CHECK_THAT(text, mentions("restore it, then: gpu-wake 4242") &&
                             mentions("gpu-sleep 4242 --tags TAG --discard TAG && gpu-wake 4242"));
    };
    check_advice(render_listing({{sample_process(), report}}));
    report.operation = model::Operation::sleep;
    const auto text = render_operation(sample_process(), report);
    CHECK(text.starts_with("4242 python3 serve.py is already asleep, damaged, and nothing was changed:\n  "
                           "contents are damaged"));
    check_advice(text);
}

TEST_CASE("Render: a pause says that it frees nothing, and its end that work goes on", "[render]") {
    model::Report report;
    report.operation = model::Operation::sleep;
    report.level = model::Level::pause;
    report.times.total = 0.5;
    report.dry_run = true;
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py would be paused, which frees nothing; nothing was changed\n");
    model::SleepRequest pause;
    pause.level = report.level;
    CHECK(render_together({{sample_process(), report}, {sample_process(), report}}, &pause) ==
          "2 processes would be paused; 0 B of GPU memory would be freed; nothing was changed\n");
    report.dry_run = false;
    report.changed = true;
    report.state = model::State::paused;
    report.gate = model::GateState::shut;
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py is paused after 0.50 s:\n  gate shut: work on the GPU waits\n");
    report.state = model::State::partial;
    report.notes = {"it is paused as well"};
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py is partly asleep after 0.50 s:\n  gate shut: work on the GPU waits\n"
          "  it is paused as well\n");
    report.state = model::State::paused;
    report.notes.clear();
    report.changed = false;
    report.gate = model::GateState::open;
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py is already paused, as asked; nothing to do\n");
    report.operation = model::Operation::wake;
    report.dry_run = true;
    CHECK(render_operation(sample_process(), report) ==
          "4242 python3 serve.py would wake; nothing was changed\n");
    report.dry_run = false;
    report.changed = true;
    report.state = model::State::awake;
    CHECK(render_operation(sample_process(), report) == "4242 python3 serve.py is awake after 0.50 s\n");
}

TEST_CASE("Render: an error says what failed, for whom, why, and what to do", "[render]") {
    const auto error = make_error(ErrorCode::out_of_device_memory, "needs 61.2 GiB on GPU 0, 40.1 GiB free");
    CHECK(
        render_error("gpu-wake", "wake " + title(sample_process()), error) ==
        "gpu-wake: cannot wake 4242 (python3 serve.py): needs 61.2 GiB on GPU 0, 40.1 GiB free\n"
        "  now: free GPU memory, retry with --wait 60s, or put other processes to sleep with --make-room\n");
    CHECK(render_error("gpu-reclaim", "free 1 GiB on GPU 0", error)
              .ends_with("free GPU memory, and try again\n"));
    CHECK(render_error("gpu-ps", "", make_error(ErrorCode::invalid_argument, "no")) == "gpu-ps: no\n");
}

TEST_CASE("Render: a sentence names its process or file once", "[render]") {
    const auto subject = title(sample_process());
    const auto said = [&](const std::string& message) {
        return without(subject, make_error(ErrorCode::no_agent, "{}", message)).message;
    };
    CHECK(said("process " + subject + " has ended") == "it has ended");
    CHECK(said("there is no agent in process " + subject + ": it has no socket") ==
          "there is no agent in it: it has no socket");
    CHECK(said("it may be, and cannot be asked: process " + subject + " does not accept connections") ==
          "it may be, and cannot be asked: it does not accept connections");
    CHECK(said("there is no process 1") == "there is no process 1");
    const auto missing = make_error(ErrorCode::io_failed, "/x: No such file or directory (open)");
    CHECK(without("/x", missing).message == "No such file or directory (open)");
    CHECK(without("/y", missing).message == missing.message);
}

TEST_CASE("Render: advice fits the command", "[render]") {
    const auto advice = [](std::string_view program, ErrorCode code) {
        return std::string(advice_from(program, make_error(code, "")));
    };
    CHECK_THAT(advice("gpu-sleep", ErrorCode::out_of_host_memory),
               mentions("--spill DIR") && mentions("--level 2"));
    CHECK_THAT(advice("gpu-wake", ErrorCode::out_of_host_memory), !mentions("--level 2"));
    CHECK_THAT(advice("gpu-wake", ErrorCode::out_of_device_memory), mentions("--wait 60s"));
    CHECK_THAT(advice("gpu-sleep", ErrorCode::out_of_device_memory), !mentions("gpu-wake"));
    const auto error = make_error(ErrorCode::out_of_device_memory, "no");
    const control::Outcome waited{sample_process(), error, model::Operation::wake, true};
    CHECK(render_error("gpu-wake", "wake 1", error, &waited) ==
          "gpu-wake: cannot wake 1: no\n"
          "  now: free GPU memory, or give gpu-wake --make-room or a longer --wait\n"
          "  next time: start it with gpu-run --share, and it makes room itself\n");
    const Error too_long{ErrorCode::out_of_disk, "the file would be too long", {}, EFBIG};
    CHECK_THAT(advice_from("gpu-sleep", too_long), mentions("prlimit --fsize"));
    CHECK_THAT(advice("gpu-sleep", ErrorCode::out_of_disk), mentions("free disk space"));
    const Error closed{ErrorCode::not_permitted, "/x: Permission denied (open)", "open", EACCES};
    const control::Outcome asleep{sample_process(), closed};
    CHECK_THAT(advice_from("gpu-sleep", closed, &asleep), mentions("name a directory"));
    CHECK(advice_from("gpu-wake", closed, &waited).empty());
    for (const auto which : {&control::Outcome::by_driver, &control::Outcome::nobody_can_sleep}) {
        auto alone = waited;
        alone.*which = true;
        CHECK(advice_from("gpu-wake", error, &alone) == "free GPU memory, or give gpu-wake a longer --wait");
        alone.has_waited = false;
        CHECK(advice_from("gpu-wake", error, &alone) ==
              "free GPU memory, or retry for longer with --wait 60s");
    }
    auto by_driver = waited;
    by_driver.by_driver = true;
    CHECK_THAT(advice_from("gpu-sleep-http", error, &by_driver), !mentions("--make-room"));
    auto after_others = waited;
    after_others.has_made_room = true;
    CHECK(advice_from("gpu-wake", error, &after_others) ==
          "free GPU memory, or give gpu-wake a longer --wait");
    CHECK_THAT(advice_from("gpu-sleep-http", error, &after_others), !mentions("--make-room"));
    std::get<Error>(after_others.answer).retry_seconds = 9;
    CHECK(advice_from("gpu-wake", error, &after_others) ==
          "free GPU memory, give gpu-wake a longer --wait, or use gpu-switch 4242");
    CHECK_THAT(advice_from("gpu-sleep-http", error, &waited), mentions("--make-room"));
    CHECK(advice("gpu-sleep-http", error.code) == "free GPU memory, and try again");
    CHECK_THAT(advice("gpu-inhibit", ErrorCode::timed_out), !mentions("--timeout"));
    CHECK_THAT(advice("gpu-sleep-http", ErrorCode::timed_out), !mentions("--timeout"));
    CHECK_THAT(advice("gpu-wake", ErrorCode::damaged), mentions("gpu-sleep PID --tags TAG"));
    CHECK_THAT(advice_from("gpu-wake", make_error(ErrorCode::damaged, ""), &waited),
               mentions("gpu-sleep 4242 --tags TAG --discard TAG && gpu-wake 4242"));
    for (const auto* const program : {"gpu-sleep", "gpu-wake", "gpu-reclaim", "gpu-run", "gpu-inhibit"})
        for (const auto& row : all_errors()) // a directory is the user's to choose
            CHECK(advice(program, row.code).find('/') == std::string::npos);
    for (const auto& row : all_errors())
        if (row.code != ErrorCode::internal && row.code != ErrorCode::out_of_disk)
            CHECK_THAT(advice("gpu-snapshot", row.code), !mentions("gpu-"));
    CHECK(render_error("gpu-snapshot", "verify x", make_error(ErrorCode::damaged, "no")) ==
          "gpu-snapshot: cannot verify x: no\n");
}

TEST_CASE("Render: a wake that waits is listed, and that of a touch is left to its note", "[render]") {
    auto status = test::sample_status();
    status.wakes_waiting = {
        {{"weights"}, false, 12.5, "needs more"}, {{}, false, 3, ""}, {{"x"}, true, 1, ""}};
    const auto text = render_listing({{sample_process(), status}});
    CHECK_THAT(text, mentions("a wake of weights has waited 12.50 s for GPU memory: needs more\n"));
    CHECK_THAT(text, mentions("a wake of all tags has waited 3.00 s for GPU memory\n"));
    CHECK_THAT(text, !mentions("of x"));
    status.wakes_waiting = {{{}, true, 3, "short", 2}, {{"y"}, false, 1, "", 11}};
    const auto lines = render_listing({{sample_process(), status}});
    CHECK_THAT(lines, mentions("a wake of all tags has waited 3.00 s for room, 2nd in the queue: short\n"));
    CHECK_THAT(lines, mentions("a wake of y has waited 1.00 s for room, 11th in the queue\n"));
    status.notes = {"it could not wake: short"};
    CHECK_THAT(render_listing({{sample_process(), status}}), mentions("2nd in the queue\n"));
}

TEST_CASE("Render: a process cannot steer the terminal by what it calls itself, nor add lines", "[render]") {
    auto process = sample_process();
    process.command = test::hostile_text();
    auto unnamed = test::sample_status();
    unnamed.name.clear();
    const auto failure = test::hostile_failure(ErrorCode::internal);
    const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
    for (const auto operation : {model::Operation::status, model::Operation::sleep, model::Operation::wake}) {
        auto report = test::hostile_report(operation);
        const auto listing = render_listing({{process, report}, {process, unnamed}, {process, failure}});
        CHECK(test::is_safe(listing));
        CHECK(lines(listing) == (operation == model::Operation::status ? 15 : 13));
        report.dry_run = GENERATE(false, true);
        const auto text = render_operation(process, report);
        CHECK(test::is_safe(text));
        CHECK(lines(text) == (operation == model::Operation::sleep ? 10 : 8));
    }
    const auto line = render_error("gpu-sleep", "wake " + title(process), failure.error);
    CHECK(test::is_safe(line));
    CHECK(lines(line) == 2); // with that of the advice
    CHECK(test::is_safe(progress_line({model::Progress::Phase::transfer, 1, ~0ULL})));
}

TEST_CASE("Render: long commands are shortened by characters, not bytes", "[render]") {
    CHECK(shortened("0123456789", 10) == "0123456789");
    CHECK(shortened("0123456789a", 10) == "0123456...");
    CHECK(shortened("\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC\xC3\xBC", 4) == "\xC3\xBC...");
    CHECK(shortened("\xE6\xA8\xA1\xE5\x9E\x8B\xE6\xA8\xA1", 5) == "\xE6\xA8\xA1..."); // two columns each
    std::string heap = "a";
    for (int i = 0; i < 1000; ++i) heap += "\xCC\x81"; // accents on one letter
    CHECK(shortened(heap, 10).size() < 50);
}

TEST_CASE("Render: columns line up, and nothing is left at the ends of lines", "[render]") {
    Table table({"A", ">LONG", "C"});
    table.add({"\xC3\xBC\xC3\xBC", "1", "x"});
    table.add({"v"});
    CHECK(table.text(1) == " A   LONG  C\n"
                           " \xC3\xBC\xC3\xBC     1  x\n"
                           " v\n");
    Table foreign({"NAME", "B"});
    foreign.add({"\xE6\xA8\xA1\xE5\x9E\x8B\xE6\xA8\xA1", "1"}); // three ideographs
    foreign.add({"e\xCC\x81", "2"});
    foreign.add({"\x9B"
                 "2J",
                 "3"});
    CHECK(foreign.text() == "NAME    B\n\xE6\xA8\xA1\xE5\x9E\x8B\xE6\xA8\xA1  1\n"
                            "e\xCC\x81       2\n?2J     3\n");
}

TEST_CASE("Progress: the line shows how much of it is done", "[render]") {
    using Phase = model::Progress::Phase;
    CHECK(progress_line({Phase::transfer, 10 * k_gib, 40 * k_gib}) ==
          "copying [#######-----------------------]  25%  10.0 GiB of 40.0 GiB");
    CHECK(progress_line({Phase::drain, 0, 0}) == "waiting for the GPU's work");
    CHECK_THAT(progress_line({Phase::verify, 2, 1}), mentions("100%"));
}

TEST_CASE("Progress: the line has room in any terminal", "[render]") {
    using Phase = model::Progress::Phase;
    const model::Progress progress{Phase::transfer, 10 * k_gib, 40 * k_gib};
    CHECK(progress_line(progress, 50) == "copying [###----------]  25%  10.0 GiB of 40.0 GiB");
    CHECK(progress_line(progress, 40) == "copying  25%  10.0 GiB of 40.0 GiB");
    CHECK(progress_line(progress, 20) == "copying  25%  10....");
    for (const auto phase : {Phase::callbacks, Phase::drain, Phase::transfer, Phase::waiting})
        for (std::size_t columns = 4; columns < 100; ++columns) {
            CHECK(progress_line({phase, 1023 * k_gib, 1023 * k_gib}, columns).size() <= columns);
            CHECK(progress_line({phase, 0, 0}, columns).size() <= columns);
        }
}

TEST_CASE("Progress: the bar is as long as the terminal is wide", "[render]") {
    const UniqueFd terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
    if (!terminal || ::unlockpt(terminal.get()) != 0) return test::skip("there are no pseudo-terminals");
    const UniqueFd end(::open(::ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!end) return test::skip("there are no pseudo-terminals");
    const winsize size{24, 41, 0, 0};
    REQUIRE(::ioctl(end.get(), TIOCSWINSZ, &size) == 0);
    {
        ProgressBar bar(end.get(), true);
        std::this_thread::sleep_for(Milliseconds{210});
        bar.show(0, {model::Progress::Phase::transfer, k_gib, 4 * k_gib});
    }
    const std::string expected = "\r\033[Kcopying  25%  1.00 GiB of 4.00 GiB\r\033[K";
    std::string shown; // it comes through in pieces
    std::array<char, 1024> buffer;
    for (pollfd wait{terminal.get(), POLLIN, 0};
         shown.size() < expected.size() && ::poll(&wait, 1, 2'000) == 1;) {
        const auto got = ::read(terminal.get(), buffer.data(), buffer.size());
        if (got <= 0) break;
        shown.append(buffer.data(), static_cast<std::size_t>(got));
    }
    CHECK(shown == expected);
}

TEST_CASE("Progress: the bar appears only where it is wanted, and is wiped", "[render]") {
    std::array<int, 2> pipe{};
    REQUIRE(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    const UniqueFd reader(pipe[0]);
    const UniqueFd writer(pipe[1]);
    const auto drawn = [&](bool visible) {
        {
            ProgressBar bar(writer.get(), visible);
            bar.show(0, {model::Progress::Phase::transfer, k_gib, 2 * k_gib}); // too early to draw
            std::this_thread::sleep_for(Milliseconds{210});
            bar.show(1, {model::Progress::Phase::transfer, 0, 2 * k_gib});
        }
        std::array<char, 1024> buffer;
        const auto got = ::read(reader.get(), buffer.data(), buffer.size());
        return std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    };
    CHECK(drawn(false).empty());
    CHECK(drawn(true) ==
          "\r\033[Kcopying [#######-----------------------]  25%  1.00 GiB of 4.00 GiB\r\033[K");
}
