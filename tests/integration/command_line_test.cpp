// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How the commands read what was typed, and how they answer.

#include "host.hpp"
#include "mentions.hpp"

#include <string>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

TEST_CASE("Command line: an option with an equals sign and no value takes nothing else for it",
          "[command_line]") {
    Host host;
    host.tell("alloc weights 4096 0");
    const auto refuse = [](const Output& output, const std::string& option) {
        INFO(option);
        CHECK(output.status == 2);
        CHECK_THAT(output.err, mentions("'" + option + "' has no value"));
    };
    for (const std::string option : {"--dir=", "--spill=", "--tags=", "--timeout=", "--store=", "--json="})
        refuse(host.command("gpu-sleep", {"--store", "file", option, "--dry-run"}), option);
    refuse(host.command("gpu-wake", {"--wait=", "--dry-run"}), "--wait=");
    refuse(host.command("gpu-ps", {"--watch=", "--json"}), "--watch=");
    for (const std::string option : {"--name=", "--tag=", "--rules="})
        refuse(run(gpu_run({option, "--audit", "--", "true"})), option);
    if (!is_sanitized()) CHECK(run(gpu_run({"--", "test", "--name=", "=", "--name="})).status == 0);
    CHECK(host.state() == "awake");
}
