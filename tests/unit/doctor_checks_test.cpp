// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What gpu-doctor makes of what it has read: machines and processes that there need not be.

#include "cli/doctor/diagnosis.hpp"

#include "support/catch.hpp"
#include "support/sample_reports.hpp"
#include "support/tree.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace gpu_sleep::doctor {
namespace {

using cli::doctor::render;
using cli::doctor::to_json;
using test::sample_process;

driver::GpuSetup good_gpu(int index) {
    driver::GpuSetup gpu;
    gpu.index = index;
    gpu.uuid = fmt::format("GPU-{}", index);
    gpu.name = "NVIDIA H200";
    gpu.is_persistent = true;
    gpu.link_generation = 1;
    gpu.link_width = 16;
    gpu.max_link_generation = 5;
    gpu.max_link_width = 16;
    return gpu;
}

driver::DeviceCapabilities good_device(int index) {
    return {index, "NVIDIA H200", fmt::format("GPU-{}", index), 9, 0, true, false, 140 * k_gib, true};
}

/// A machine on which all is as it should be.
MachineFacts good_machine() {
    MachineFacts machine{{},
                         driver::Setup{"580.159", {good_gpu(0)}},
                         driver::Capabilities{13000, true, {good_device(0)}},
                         {},
                         {}};
    auto& kernel = machine.kernel;
    kernel.module_version = "580.159";
    kernel.control_device = KernelFacts::Access::granted;
    kernel.max_mappings = 65'530;
    kernel.huge_pages = "madvise";
    kernel.host_total = 1024 * k_gib;
    kernel.headroom = {800 * k_gib, "free host memory"};
    return machine;
}

/// A process with an agent that sees all, and would free 16 GiB.
ProcessFacts good_process() {
    model::Report status;
    status.intercepts = true;
    auto rehearsal = status;
    rehearsal.operation = model::Operation::sleep;
    rehearsal.dry_run = true;
    rehearsal.devices.push_back({0, "NVIDIA H200", 16 * k_gib, 10 * k_gib, 6 * k_gib});
    ProcessKernelFacts kernel;
    kernel.mappings = 1'000;
    kernel.headroom = {800 * k_gib, "free host memory"};
    return {sample_process(), kernel, status, rehearsal, {}};
}

model::Report& status_of(ProcessFacts& process) {
    return std::get<model::Report>(process.status);
}

model::Report& rehearsal_of(ProcessFacts& process) {
    return std::get<model::Report>(process.rehearsal);
}

/// The findings of the check `id` that are of `level`, one after another.
std::string said(const Findings& findings, std::string_view id, Level level) {
    std::string text;
    for (const auto& finding : findings)
        if (finding.id == id && finding.level == level) text += finding.text + " | " + finding.advice + '\n';
    return text;
}

bool has(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

bool is_near(double figure, double expected) {
    return std::abs(figure - expected) < 0.01 * expected;
}

Findings judged(const MachineFacts& machine) {
    return judge(machine);
}
Findings judged(const ProcessFacts& process) {
    return judge(good_machine(), process);
}

/// The check `id` says `part` of `facts` at that level, and their exit status is `status`.
template <class Facts>
void check_says(Level level, const Facts& facts, std::string_view id, std::string_view part, int status) {
    const auto findings = judged(facts);
    INFO(said(findings, id, level));
    CHECK(has(said(findings, id, level), part));
    CHECK(exit_status_of(findings) == status);
}
template <class Facts>
void check_warns(const Facts& facts, std::string_view id, std::string_view part) {
    check_says(Level::warn, facts, id, part, 0);
}
template <class Facts>
void check_bad(const Facts& facts, std::string_view id, std::string_view part, int status = 1) {
    check_says(Level::bad, facts, id, part, status);
}

} // namespace

TEST_CASE("Doctor: a good machine and a good process have nothing but ok", "[doctor]") {
    const auto machine = good_machine();
    for (const auto& findings : {judge(machine), judge(machine, good_process())}) {
        CHECK(exit_status_of(findings) == 0);
        for (const auto& finding : findings) {
            INFO(finding.subject << ": " << finding.text);
            CHECK(finding.level == Level::ok);
            CHECK(finding.advice.empty());
            CHECK_FALSE(finding.text.empty());
        }
    }
    // Nothing is said of what is usual, and nothing to anybody's use.
    for (const auto* id : {"module", "mig", "mps", "persistence", "huge_pages", "mapping_limit"})
        CHECK(said(judge(machine), id, Level::ok).empty());
}

TEST_CASE("Doctor: the main job's status follows from what is bad, and from that alone", "[doctor]") {
    CHECK(exit_status_of(Findings{ok("x"), warn("y", "z")}) == 0);
    CHECK(exit_status_of(Findings{ok("x"), bad("y", "z", 4), bad("y", "z", 5)}) == 4);
    CHECK(exit_status_of(Diagnosis{{ok("x")}, {{sample_process(), {bad("y", "z", 3)}}}}) == 3);
    CHECK(exit_status_of(Diagnosis{{bad("x", "", 1)}, {{sample_process(), {bad("y", "z", 3)}}}}) == 1);
}

TEST_CASE("Doctor: a driver that is missing, hangs or fails is bad", "[doctor]") {
    auto machine = good_machine();
    machine.setup = make_error(ErrorCode::no_driver, "cannot open the driver's management library");
    check_warns(machine, "management", "cannot open");
    machine.capabilities = make_error(ErrorCode::no_driver, "cannot open the CUDA driver");
    machine.kernel.module_version.reset();
    machine.kernel.control_device = KernelFacts::Access::absent;
    check_bad(machine, "driver", "install the NVIDIA driver");
    check_bad(machine, "module", "not loaded");
    machine.capabilities = make_error(ErrorCode::timed_out, "no answer within 10 s");
    check_bad(machine, "driver", "dmesg", 4);
    machine.capabilities = Error{ErrorCode::no_driver, "cannot initialise CUDA", "cuInit", 803};
    check_bad(machine, "driver", "restart the machine");
    machine.capabilities = Error{ErrorCode::driver_failed, "cannot initialise CUDA", "cuInit", 4711};
    check_bad(machine, "driver", "nvidia-smi");
}

TEST_CASE("Doctor: the kernel module may be closed to the user, or of another version", "[doctor]") {
    auto machine = good_machine();
    machine.kernel.module_version = "570.1";
    check_warns(machine, "module", "570.1, but the libraries are from 580.159");
    machine.kernel.control_device = KernelFacts::Access::denied;
    check_bad(machine, "module", "may not open /dev/nvidiactl", 5);
    machine.kernel.control_device = KernelFacts::Access::absent;
    machine.kernel.module_version.reset();
    CHECK(exit_status_of(judge(machine)) == 0); // it works in some other way
}

TEST_CASE("Doctor: a GPU that cannot do it is bad if there is no other", "[doctor]") {
    auto machine = good_machine();
    machine.capabilities->devices[0].has_virtual_memory = false;
    check_bad(machine, "gpu", "virtual memory");
    machine.capabilities->devices.push_back(good_device(1));
    check_warns(machine, "gpu", "virtual memory");
    machine.capabilities->devices[1].compute_major = 7;
    check_bad(machine, "gpu", "Turing");
    machine.capabilities->devices.clear();
    check_bad(machine, "gpu", "none");
    machine = good_machine();
    machine.setup->gpus[0].is_prohibited = true;
    check_bad(machine, "compute_mode", "allows no compute work");
}

TEST_CASE("Doctor: what makes it slower, or less, is a warning", "[doctor]") {
    const auto changed = [](auto&& change) {
        auto machine = good_machine();
        change(machine);
        return machine;
    };
    check_warns(changed([](auto& m) { m.capabilities->has_checkpoint = false; }), "checkpoint", "12.8");
    check_warns(changed([](auto& m) { m.capabilities->devices[0].maps_host_memory = false; }), "host_backing",
                "host memory");
    check_warns(changed([](auto& m) { m.setup->gpus[0].is_persistent = false; }), "persistence", "GPU 0");
    check_warns(changed([](auto& m) { m.setup->gpus[0].is_divided = true; }), "mig", "GPU 0");
    check_warns(changed([](auto& m) { m.setup->gpus[0].is_exclusive = true; }), "compute_mode", "context");
    check_warns(changed([](auto& m) { m.kernel.has_mps_daemon = true; }), "mps", "daemon");
    check_warns(changed([](auto& m) { m.capabilities->devices[0].uses_mps = true; }), "mps", "share");
    check_warns(changed([](auto& m) { m.kernel.ptrace_scope = 1; }), "ptrace", "scope is 1");
    check_warns(changed([](auto& m) { m.kernel.ptrace_scope = 2; }), "ptrace", "only for root");
    check_warns(changed([](auto& m) {
                    m.kernel.ptrace_scope = 3;
                    m.kernel.may_trace = true;
                }),
                "ptrace", "no process");
    check_warns(changed([](auto& m) { m.kernel.huge_pages = "never"; }), "huge_pages", "madvise");
    check_warns(changed([](auto& m) { m.kernel.reserved_huge_pages = 512 * k_gib; }), "huge_pages",
                "512.0 GiB");
    check_warns(changed([](auto& m) { m.kernel.max_mappings = 1'000; }), "mapping_limit", "1000");
    check_warns(changed([](auto& m) {
                    m.kernel.headroom = {k_gib, "the memory limit of control group /x"};
                }),
                "host_memory", "control group /x");
}

TEST_CASE("Doctor: who may trace is allowed what Yama forbids others", "[doctor]") {
    auto machine = good_machine();
    machine.kernel.may_trace = true;
    for (const int scope : {0, 1, 2}) {
        machine.kernel.ptrace_scope = scope;
        CHECK(said(judge(machine), "ptrace", Level::warn).empty());
    }
}

TEST_CASE("Doctor: a link is held against what it could do", "[doctor]") {
    auto machine = good_machine();
    CHECK(is_near(pcie_bytes_per_second(5, 16), 63.0e9));
    CHECK(pcie_bytes_per_second(0, 16) == 0);
    CHECK(pcie_bytes_per_second(9, 1) == pcie_bytes_per_second(6, 1)); // the newest that is known
    const auto by_width = test::need(link_rate(machine));
    CHECK_FALSE(by_width.is_measured);
    CHECK(is_near(by_width.bytes_per_second, 53.5e9));
    machine.links = {driver::LinkSpeed{55.1e9, 54.9e9}};
    CHECK(has(said(judge(machine), "link", Level::ok), "55.1 GB/s to the host and 54.9 GB/s from it"));
    CHECK(link_rate(machine)->is_measured);
    CHECK(link_rate(machine)->bytes_per_second == 54.9e9);
    machine.links = {driver::LinkSpeed{55.1e9, 12e9}};
    check_warns(machine, "link", "could do 63 GB/s");
    machine.links = {make_error(ErrorCode::out_of_device_memory, "out of memory")};
    check_warns(machine, "link", "could not be measured: out of memory");
    machine.links.clear();
    machine.setup->gpus[0].link_width = 8;
    check_warns(machine, "link", "8 lanes");
    CHECK(is_near(link_rate(machine)->bytes_per_second, 26.8e9));
    machine.setup->gpus[0].max_link_generation = 0;
    CHECK_FALSE(link_rate(machine));
}

TEST_CASE("Doctor: a directory for files is looked at", "[doctor]") {
    auto machine = good_machine();
    using Space = store::SnapshotDirectory::FreeSpace;
    machine.directory = DirectoryFacts{"/data", Space{k_gib, false}};
    CHECK(has(said(judge(machine), "directory", Level::ok), "/data has 1.00 GiB free"));
    machine.directory->space = Space{k_gib, true};
    check_warns(machine, "directory", "host memory");
    machine.directory->space = make_error(ErrorCode::not_permitted, "/data is open to others");
    check_bad(machine, "directory", "name a directory that only this user", 5);
    machine.directory->space = make_error(ErrorCode::io_failed, "make the directory above it first");
    CHECK_FALSE(has(said(judge(machine), "directory", Level::bad), "only this user"));
}

TEST_CASE("Doctor: a process that cannot be asked is bad, each in its way", "[doctor]") {
    auto process = good_process();
    process.kernel.is_stopped = true;
    process.how_to_go_on = "scontrol resume 471";
    check_bad(process, "agent", "to resume it: scontrol resume 471", 4);
    process = good_process();
    const auto fail = [&](ErrorCode code) { process.status = process.rehearsal = make_error(code, "so"); };
    fail(ErrorCode::no_agent);
    check_bad(process, "agent", "so", 3);
    process.checkpoint = checkpoint::State::running;
    CHECK(has(said(judge(good_machine(), process), "driver_engine", Level::warn),
              "gpu-sleep 4242 --engine driver"));
    process.checkpoint = checkpoint::State::failed;
    CHECK(has(said(judge(good_machine(), process), "driver_engine", Level::bad), "end it"));
    process.checkpoint.reset();
    fail(ErrorCode::not_permitted);
    check_bad(process, "agent", "so", 5);
    fail(ErrorCode::timed_out);
    check_bad(process, "agent", "so", 4);
}

TEST_CASE("Doctor: an image's C library that cannot load the agent is bad", "[doctor]") {
    auto process = good_process();
    process.kernel.c_library = {true, 0, 0};
    CHECK(said(judge(good_machine(), process), "c_library", Level::bad).empty()); // for it has an agent
    process.status = process.rehearsal = make_error(ErrorCode::no_agent, "so");
    check_bad(process, "c_library", "musl", 3);
    process.kernel.c_library = {false, 31, 35};
    check_bad(process, "c_library", "glibc 2.31, and the agent needs 2.35", 3);
    for (const auto& good :
         {CLibraryFacts{false, 35, 35}, CLibraryFacts{false, 0, 35}, CLibraryFacts{false, 31, 0}}) {
        process.kernel.c_library = good;
        CHECK(said(judge(good_machine(), process), "c_library", Level::bad).empty());
    }
}

TEST_CASE("Doctor: what would refuse a sleep is bad", "[doctor]") {
    auto process = good_process();
    status_of(process).inhibited = true;
    status_of(process).inhibited_seconds = 60;
    check_bad(process, "inhibitors", "1 min");
    process = good_process();
    rehearsal_of(process).refusal_code = ErrorCode::unseen_library;
    rehearsal_of(process).refusal =
        "GPU use that the agent cannot see: video decoding (libnvcuvid.so.1); refused without --force";
    check_bad(process, "reach", "libnvcuvid.so.1");
    rehearsal_of(process).refusal_code.reset();
    rehearsal_of(process).refusal = "the program holds sleeps back";
    check_bad(process, "sleep", "the program holds sleeps back");
    CHECK_FALSE(has(said(judged(process), "reach", Level::bad), "holds sleeps back"));
    process = good_process();
    process.rehearsal = model::Failure{make_error(ErrorCode::out_of_host_memory, "too little"), {}};
    check_bad(process, "sleep", "a sleep would fail: too little", 8);
    process = good_process();
    process.kernel.headroom = {k_gib, "the memory limit of control group /x"};
    check_bad(process, "room", "10.0 GiB needed, 1.00 GiB still available", 8);
    process = good_process();
    status_of(process).state = model::State::damaged;
    check_bad(process, "sleep", "damaged", 6);
}

TEST_CASE("Doctor: what a process cannot have asleep is a warning", "[doctor]") {
    auto process = good_process();
    status_of(process).intercepts = false;
    check_warns(process, "reach", "gpu-run");
    process = good_process();
    status_of(process).residual = {{"managed", 0, 512 * k_mib, 3, "x"}, {"ipc", 0, k_gib, 1, "y"}};
    check_warns(process, "residual", "512.0 MiB of managed memory");
    CHECK(
        has(said(judge(good_machine(), process), "residual", Level::ok), "1.00 GiB stays on the GPU (ipc)"));
    process = good_process();
    CHECK(has(said(judge(good_machine(), process), "deep", Level::ok), "nothing known prevents"));
    status_of(process).deep_refusal = "it is a client of MPS";
    check_warns(process, "deep", "it cannot sleep deeply: it is a client of MPS");
    process = good_process();
    process.kernel.mappings = 60'000;
    check_warns(process, "mappings", "60000 of 65530");
}

TEST_CASE("Doctor: a directory takes what host memory has no room for", "[doctor]") {
    auto machine = good_machine();
    auto process = good_process();
    process.kernel.headroom = {4 * k_gib, "free host memory"};
    using Space = store::SnapshotDirectory::FreeSpace;
    machine.directory = DirectoryFacts{"/data", Space{8 * k_gib, false}};
    auto findings = judge(machine, process);
    CHECK(has(said(findings, "room", Level::warn), "--spill /data"));
    CHECK(exit_status_of(findings) == 0);
    machine.directory->space->bytes = k_gib;
    findings = judge(machine, process);
    CHECK(exit_status_of(findings) == 8);
    CHECK(has(said(findings, "room", Level::warn), "/data has 1.00 GiB free"));
}

TEST_CASE("Doctor: says what a sleep would take", "[doctor]") {
    auto machine = good_machine();
    machine.links = {driver::LinkSpeed{50e9, 50e9}};
    auto process = good_process();
    auto text = said(judge(machine, process), "sleep", Level::ok);
    CHECK(has(text, "would free 16.0 GiB, keep 10.0 GiB and drop 6.00 GiB: 0.21 s across the link at 50 GB/s "
                    "(measured), and longer the first time"));
    status_of(process).retained_bytes = 10 * k_gib;
    text = said(judge(machine, process), "sleep", Level::ok);
    CHECK(has(text, "at most 0.21 s"));
    CHECK(has(text, "less for what has not changed"));
    CHECK(has(said(judge(machine, process), "room", Level::ok), "0 B needed"));
    status_of(process).state = model::State::asleep;
    CHECK(has(said(judge(machine, process), "sleep", Level::ok), "it sleeps"));
    auto& wake = std::get<model::Report>(process.wake);
    wake.devices.push_back({1, "NVIDIA H200", 2 * k_gib, 0, 0, k_gib, 0, 140 * k_gib});
    CHECK(has(said(judge(machine, process), "sleep", Level::warn), "needs 2.00 GiB on GPU 1, 1.00 GiB free"));
    process.wake = make_error(ErrorCode::driver_failed, "so");
    check_bad(process, "sleep", "a wake would fail: so", 7);
    status_of(process).lost = true;
    check_bad(process, "sleep", "no wake is possible", 7);
    CHECK(said(judge(machine, process), "deep", Level::ok).empty());
}

TEST_CASE("Doctor: lines line up, and name the process", "[doctor]") {
    const Diagnosis diagnosis{
        {ok("580.159")},
        {{sample_process(), {warn("few", "do so"), bad("no\nanswer \x1B[31m", "try again", 4)}}}};
    auto named = diagnosis;
    named.machine[0].subject = "driver";
    named.processes[0].findings[0].subject = "reach";
    named.processes[0].findings[1].subject = "agent";
    CHECK(render(named, false) == "ok    driver:     580.159\n"
                                  "warn  4242 reach: few; do so\n"
                                  "bad   4242 agent: no?answer ?[31m; try again\n");
    CHECK(render(named, true) == "bad   4242 agent: no?answer ?[31m; try again\n");
}

TEST_CASE("Doctor: JSON has every finding, and the manual every check", "[doctor]") {
    const auto machine = good_machine();
    auto process = good_process();
    process.rehearsal = make_error(ErrorCode::timed_out, "so");
    const auto value =
        nlohmann::json::parse(to_json({judge(machine), {{process.process, judge(machine, process)}}}));
    CHECK(value["program"] == "gpu-doctor");
    CHECK(value["exit_status"] == 4);
    CHECK(value["machine"].size() == judge(machine).size());
    CHECK(value["machine"][0] == nlohmann::json::parse(R"({"id": "driver", "level": "ok", "subject": "driver",
        "finding": "580.159, up to CUDA 13.0, 1 GPU", "advice": "", "exit_status": 0})"));
    CHECK(value["processes"][0]["pid"] == 4242);
    CHECK(value["processes"][0]["exit_status"] == 4);
    CHECK(value["processes"][0]["checks"].size() == judge(machine, process).size());
    const auto manual = read_small_file(test::source_file("cli/man/gpu-doctor.1")).value_or("");
    std::set<std::string_view> ids;
    for (const auto& check : machine_checks()) ids.insert(check.id);
    for (const auto& check : process_checks()) ids.insert(check.id);
    CHECK(ids.size() == machine_checks().size() + process_checks().size());
    for (const auto id : ids) {
        INFO(id);
        CHECK(has(manual, fmt::format("\n.B {}\n", id)));
    }
}

} // namespace gpu_sleep::doctor
