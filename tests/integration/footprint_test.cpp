// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the agent adds to the program that holds it: symbols, threads, files, descriptors, memory.

#include "declared_entry_points.hpp"
#include "support/files_of.hpp"
#include "support/host.hpp"
#include "support/tree.hpp"

#include <regex>

using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

std::string proc_file(pid_t process, std::string_view name) {
    return fmt::format("/proc/{}/{}", process, name);
}

/// The names of the threads of `process`, its own first one left out.
std::multiset<std::string> threads_of(pid_t process) {
    std::multiset<std::string> names;
    for (const auto& thread : fs::directory_iterator(proc_file(process, "task"))) {
        if (thread.path().filename() == std::to_string(process)) continue;
        const auto name = content_of(thread.path() / "comm");
        if (!name.empty()) names.insert(name.substr(0, name.size() - 1)); // empty when it has just ended
    }
    return names;
}

/// The agent's.
std::multiset<std::string> agent_threads_of(pid_t process) {
    auto names = threads_of(process);
    std::erase_if(names, [](const std::string& name) { return !name.starts_with("gpu-sleep-"); });
    return names;
}

/// The open descriptors of `process`, and whether each is closed on exec.
std::map<int, bool> descriptors_of(pid_t process) {
    std::map<int, bool> descriptors;
    for (const auto& file : fs::directory_iterator(proc_file(process, "fdinfo"))) {
        const auto text = content_of(file.path());
        const auto at = text.find("flags:");
        if (at == std::string::npos) continue; // it was closed just now
        const auto flags = std::stoi(text.substr(at + 6), nullptr, 8);
        descriptors[std::stoi(file.path().filename())] = (flags & O_CLOEXEC) != 0;
    }
    return descriptors;
}

std::size_t resident_kib(pid_t process) {
    const auto text = content_of(proc_file(process, "status"));
    return std::stoull(text.substr(text.find("VmRSS:") + 6));
}

/// The functions that the public header declares.
std::set<std::string> declared_functions() {
    const auto text = content_of(source_file("include/gpu_sleep/gpu_sleep.h"));
    const std::regex declaration(R"(\nGPU_SLEEP_API [^;(]*?(gpu_sleep_\w+)\()");
    std::set<std::string> names;
    for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end; ++found)
        names.insert((*found)[1]);
    return names;
}

} // namespace

TEST_CASE("Footprint: the agent exports what it declares and intercepts, no more", "[quick][footprint]") {
    const auto listed = ended(run({{"nm", "-D", "--defined-only", "--format=posix", agent_file()}}));
    std::set<std::string> exported;
    std::istringstream lines(listed.out);
    for (std::string line; std::getline(lines, line);) exported.insert(line.substr(0, line.find(' ')));
    REQUIRE(declared_functions().size() > 10);
    auto expected = declared_functions();
    // What has to be intercepted: the driver's entry points that touch, and the look-up of all others.
    expected.insert({"dlsym", "__asan_default_options",
#define GPU_SLEEP_NAME(name, touch, hook) #name,
                     GPU_SLEEP_DECLARED(GPU_SLEEP_NAME)
#undef GPU_SLEEP_NAME
    });
    CHECK(exported == expected);
}

TEST_CASE("Footprint: no thread, socket or descriptor before the first allocation", "[footprint]") {
    Host host;
    const auto threads = threads_of(host.pid());
    const auto descriptors = descriptors_of(host.pid());
    host.tell("policy weights preserve 0");
    host.tell("callback obey");
    host.tell("name early");
    host.tell("hold");
    host.tell("resume");
    CHECK(threads_of(host.pid()) == threads);
    CHECK(descriptors_of(host.pid()) == descriptors);
    CHECK_FALSE(fs::exists(socket_file(host.pid())));
    CHECK(host.command("gpu-sleep").status == 3);

    host.tell("alloc weights 4096 0");
    CHECK(agent_threads_of(host.pid()).count("gpu-sleep-ctl+") == 1);
    CHECK(fs::exists(socket_file(host.pid())));
    CHECK(fs::status(socket_file(host.pid())).permissions() == fs::perms(0600));
    CHECK(fs::status(fs::path(socket_file(host.pid())).parent_path()).permissions() == fs::perms(0700));
    REQUIRE(host.command("gpu-sleep", {"--level", "2"}).status == 0);
    CHECK_THAT(host.command("gpu-ps").out, mentions("early"));
}

TEST_CASE("Footprint: no descriptor of the agent survives an exec", "[footprint]") {
    Host host;
    const auto before = descriptors_of(host.pid());
    host.tell("alloc weights 4194304 0");
    REQUIRE(host.command("gpu-sleep").status == 0);
    const auto after = descriptors_of(host.pid());
    CHECK(after.size() > before.size());
    for (const auto& [number, is_closed] : after) {
        std::error_code gone; // a connection's, which is closed after the command has its answer
        INFO("descriptor " << number << " is "
                           << fs::read_symlink(proc_file(host.pid(), fmt::format("fd/{}", number)), gone));
        CHECK((is_closed || before.count(number) == 1));
    }
}

TEST_CASE("Footprint: sleeps and wakes leave no thread and no descriptor behind", "[footprint]") {
    LoadedHost host;
    host.tell("alloc weights 4194304 1");
    // What unpins memory, and a connection, may still be on their way out when a command has its answer.
    const std::multiset<std::string> resting{"gpu-sleep-ctl", "gpu-sleep-work"};
    const auto cycle_and_rest = [&] {
        host.cycle();
        CHECK(becomes_true([&] { return agent_threads_of(host.pid()) == resting; }));
    };
    cycle_and_rest();
    const auto descriptors = descriptors_of(host.pid()).size(); // that of a connection may be among them
    for (int i = 0; i < 3; ++i) cycle_and_rest();
    CHECK(becomes_true([&] { return descriptors_of(host.pid()).size() <= descriptors; }));
}

TEST_CASE("Footprint: a thousand ranges awake cost less than 20 MiB of the host's memory", "[footprint]") {
    if (is_sanitized()) return skip("a sanitizer's own memory counts too");
    Host host({"GPU_SLEEP_SIM_POISON=0"}); // so that what the driver simulates takes none
    host.tell("alloc weights 2097152 0");
    const auto before = resident_kib(host.pid());
    host.tell("alloc_many weights 1000 2097152");
    CHECK(host.command("gpu-ps", {"--json"}).tag("weights", "ranges") == "1001");
    CHECK(resident_kib(host.pid()) < before + 20 * 1024);
}
