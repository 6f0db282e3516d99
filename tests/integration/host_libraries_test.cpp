// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Libraries of programs that use the driver late, early, or apart: no program is harmed by the agent.

#include "routine.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::test;

TEST_CASE("Host safety: libraries that use CUDA, and libcuda, come late and go", "[host_safety]") {
    const auto words =
        GENERATE(Arguments{"driver"}, Arguments{"plugin", library_file("libsafety_plugin.so")});
    auto program = Program::loader(words);
    for (const char* line : {"ready", "again"}) {
        REQUIRE(program.line() == line);
        CHECK(program.report("tags/0/ranges") != "none");
        program.cycle();
        program.go_on();
    }
    CHECK(ended(program.ends()).err.empty());
}

TEST_CASE("Host safety: a program initialises CUDA while a library's constructor does", "[host_safety]") {
    // Neither waits for what the other has.
    auto program = Program::ready({"constructor", library_file("libsafety_constructor.so")});
    program.cycle();
    program.go_on_to_end();
}

TEST_CASE("Host safety: a library bound to its own first is intercepted with --audit", "[host_safety]") {
    if (is_sanitized()) return skip("a sanitizer refuses such libraries");
    const bool is_audited = GENERATE(false, true);
    auto program = Program::loader({"deep", library_file("libsafety_plugin.so")},
                                   is_audited ? Arguments{"--audit"} : Arguments{});
    for (const char* line : {"ready", "again"}) {
        REQUIRE(program.line() == line);
        if (is_audited) {
            CHECK(program.report(k_intercepted_bytes) ==
                  (line == std::string("ready") ? k_four_mib : "8388608"));
            program.sleep();
            program.go_on();
            REQUIRE(program.waits_at_the_gate());
            program.wake();
        } else {
            CHECK(program.command("gpu-sleep").status == 3); // the agent has seen nothing of CUDA
            program.go_on();
        }
    }
    REQUIRE(program.line() == "done");
    CHECK(program.go_on_to_end().err.empty());
}

TEST_CASE("Host safety: a library in its own namespace works with --audit and without", "[host_safety]") {
    if (is_sanitized()) return skip("a sanitizer refuses such libraries");
    const auto options = GENERATE(Arguments{}, Arguments{"--audit"});
    auto program = Program::loader({"apart", library_file("libsafety_plugin.so")}, options);
    for (const char* line : {"ready", "again"}) {
        REQUIRE(program.line() == line);
        program.go_on();
    }
    CHECK(program.ends().status == 0);
}

TEST_CASE("Host safety: a function that an older driver lacks is not found", "[host_safety]") {
    const auto end = ended(Program({"missing"}).ends());
    CHECK(end.out == "500\n"); // CUDA_ERROR_NOT_FOUND
}

TEST_CASE("Host safety: with a sanitizer, it starts, sleeps and wakes; TSan's not deeply", "[host_safety]") {
    const std::string sanitizer = GENERATE("address", "thread");
    const auto file = "safety_sanitized_" + sanitizer;
    if (is_sanitized() || !std::filesystem::exists(command_file(file)))
        return skip("there is no program with the " + sanitizer + " sanitizer alone");
    INFO(file);
    auto program = Program::ready({}, {}, {"ASAN_OPTIONS=detect_leaks=0"}, file.c_str());
    program.cycle();
    if (sanitizer == "thread") {
        CHECK_THAT(program.report("deep_refusal"), mentions("the thread sanitizer would end this process"));
        CHECK(program.command("gpu-sleep", {"--deep"}).status == 1);
    }
    CHECK(program.go_on_to_end().err.empty());
}
