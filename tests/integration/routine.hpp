// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An intercepted program that runs one of its routines, as a test holds it.

#pragma once

#include "support/host.hpp"

namespace gpu_sleep::test {

inline const Milliseconds k_end_limit{is_sanitized() ? 20'000 : 2'000};

inline constexpr const char* k_intercepted_bytes = "tags/0/bytes"; ///< in the report of a process
inline constexpr const char* k_four_mib = "4194304";               ///< what safety/ allocates at a time

/// A program that runs a routine of safety/, under gpu-run.
class Program : public Controlled {
public:
    explicit Program(Arguments words, Arguments options = {}, Arguments environment = {},
                     const char* file = "intercepted_program_linked")
        : Controlled(launch(std::move(words), std::move(options), std::move(environment), file)) {}

    static Program loader(Arguments words, Arguments options = {}) {
        return Program(std::move(words), std::move(options), {}, "intercepted_program_dlsym");
    }

    /// One that has said that it is ready.
    [[nodiscard]] static Program ready(Arguments words, Arguments options = {}, Arguments environment = {},
                                       const char* file = "intercepted_program_linked") {
        Program program(std::move(words), std::move(options), std::move(environment), file);
        REQUIRE(program.line() == "ready");
        return program;
    }

    [[nodiscard]] std::string line() { return process_.read_line(); }
    void go_on(const std::string& with = "") { process_.send(with); }

    void go_on_to(const std::string& said) {
        go_on();
        REQUIRE(line() == said);
    }
    [[nodiscard]] static Output command_for(pid_t pid, const std::string& name, Arguments arguments = {}) {
        Arguments words{command_file(name), std::to_string(pid)};
        return run({with(std::move(words), arguments)});
    }
    /// Its end, which has to come soon.
    [[nodiscard]] Output ends() {
        const auto start = Clock::now();
        auto output = process_.finish();
        INFO(output.err);
        CHECK(Clock::now() - start < k_end_limit);
        return output;
    }
    /// Goes on to its end, with this status.
    Output go_on_to_end(int status = 0) {
        go_on();
        return ended(ends(), status);
    }

private:
    static Launch launch(Arguments words, Arguments options, Arguments environment, const char* file) {
        options.insert(options.end(), {"--", command_file(file)});
        options.insert(options.end(), words.begin(), words.end());
        return gpu_run(std::move(options), std::move(environment));
    }
};

} // namespace gpu_sleep::test
