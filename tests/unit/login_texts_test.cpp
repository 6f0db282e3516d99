// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The login environment's texts, and what is read back of them.

#include "cli/login/texts.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep::cli;

namespace {

const std::string k_preloaded = "/opt/lib/libgpu-sleep-login.so";

} // namespace

TEST_CASE("Login texts: a script tells what it has noted", "[login_texts]") {
    const LoginRecords records{{"/home/u/.config", "/home/u/a b"}, {"/home/u/k/kernel.json"}};
    const auto read = read_records(login_script(k_preloaded, records));
    CHECK(read.made == records.made);
    CHECK(read.changed == records.changed);
    CHECK(read_records("").made.empty());
}

TEST_CASE("Login texts: each is known as ours, and others are not", "[login_texts]") {
    for (const auto& text : {login_script(k_preloaded, {}), login_csh_script(k_preloaded),
                             login_generator(k_preloaded), login_variables(k_preloaded)})
        CHECK(is_login_file(text));
    for (const auto* other :
         {"", "#!/bin/sh\n", "\n# gpu-sleep: the agent in the login environment.\n", "export A=1\n"})
        CHECK_FALSE(is_login_file(other));
}

TEST_CASE("Login texts: a profile has one line of ours, and without it is what it was", "[login_texts]") {
    for (const std::string profile : {"", "\n", "a", "a\n", "a\nb", "\r\na\r\n\r\n"}) {
        const auto once = with_login_line(profile, "/home/u/login.sh");
        CHECK(with_login_line(once, "/home/u/login.sh") == once);
        CHECK(without_login_line(once) == profile);
        CHECK(without_login_line(profile) == profile);
        CHECK(without_login_line("x\n" + once + "\ny") == "x\n" + profile + "\ny");
    }
}
