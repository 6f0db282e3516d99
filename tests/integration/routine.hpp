// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An intercepted program that runs one of its routines, as a test holds it.

#pragma once

#include "support/catch.hpp"
#include "support/host.hpp"

#include <string>
#include <utility>

namespace gpu_sleep::test {

inline const Milliseconds k_end_limit{is_sanitized() ? 20'000 : 2'000};

inline constexpr const char* k_intercepted_bytes = "report/tags/0/bytes"; ///< in the JSON of a process
inline constexpr const char* k_four_mib = "4194304"; ///< what safety/ allocates at a time

/// A program that runs a routine of safety/, under gpu-run.
class Program {
public:
    explicit Program(Arguments words, Arguments options = {}, Arguments environment = {},
                     const char* file = "intercepted_program_linked")
        : process_(launch(std::move(words), std::move(options), std::move(environment), file)) {}

    static Program loader(Arguments words, Arguments options = {}) {
        return Program(std::move(words), std::move(options), {}, "intercepted_program_dlsym");
    }

    [[nodiscard]] Process& process() { return process_; }
    [[nodiscard]] std::string line() { return process_.read_line(); }
    void go_on(const std::string& with = "") { process_.send(with); }

    [[nodiscard]] Output command(const std::string& name, Arguments arguments = {}) const {
        return command_for(process_.pid(), name, std::move(arguments));
    }
    [[nodiscard]] static Output command_for(pid_t pid, const std::string& name, Arguments arguments = {}) {
        Arguments words{command_file(name), std::to_string(pid)};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return run({std::move(words)});
    }
    void sleep(Arguments arguments = {}) const {
        const auto slept = command("gpu-sleep", std::move(arguments));
        INFO(slept.err);
        REQUIRE(slept.status == 0);
    }
    void wake() const {
        const auto woken = command("gpu-wake");
        INFO(woken.err);
        REQUIRE(woken.status == 0);
    }
    [[nodiscard]] std::string status(const std::string& pointer) const {
        return command("gpu-ps", {"--json"}).json("/processes/0/" + pointer);
    }
    [[nodiscard]] bool waits_at_the_gate() const {
        return becomes_true([&] { return status("report/gate/waiting_threads") == "1"; });
    }
    /// Its end, which has to come soon.
    [[nodiscard]] Output ends() {
        const auto start = Clock::now();
        auto output = process_.finish();
        INFO(output.err);
        CHECK(Clock::now() - start < k_end_limit);
        return output;
    }

private:
    static Launch launch(Arguments words, Arguments options, Arguments environment, const char* file) {
        options.insert(options.end(), {"--", command_file(file)});
        options.insert(options.end(), words.begin(), words.end());
        return gpu_run(std::move(options), std::move(environment));
    }

    Process process_;
};

} // namespace gpu_sleep::test
