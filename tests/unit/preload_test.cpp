// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// LD_PRELOAD, and where the agent is looked for.

#include "cli/preload.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;

TEST_CASE("Preload: the agent comes first, once, and the rest stays", "[preload]") {
    const std::string agent = "/opt/lib/libgpu-sleep-agent.so";
    CHECK(with_agent(agent, "") == agent);
    CHECK(with_agent(agent, agent) == agent);
    CHECK(with_agent(agent, "libm.so.6 /a/libb.so") == agent + ":libm.so.6:/a/libb.so");
    CHECK(with_agent(agent, "libm.so.6:" + agent) == agent + ":libm.so.6");
    CHECK(with_agent(agent, "/old/libgpu-sleep-agent.so.0::libm.so.6:") == agent + ":libm.so.6");
    CHECK(with_agent(agent, "libgpu-sleep-agent.so2") == agent + ":libgpu-sleep-agent.so2");
    CHECK(with_agent(agent, "/opt/lib/libgpu-sleep-login.so:libm.so.6") == agent + ":libm.so.6");
    CHECK(without_agent("libm.so.6:" + agent + " /opt/lib/libgpu-sleep-login.so") == "libm.so.6");
    CHECK(without_agent(agent).empty());
}

TEST_CASE("Preload: the audit library comes first, once, and the rest stays", "[preload]") {
    const std::string audit = "/opt/lib/libgpu-sleep-audit.so";
    CHECK(with_audit(audit, "") == audit);
    CHECK(with_audit(audit, "/a b.so:/old/libgpu-sleep-audit.so::libx.so") == audit + ":/a b.so:libx.so");
}

TEST_CASE("Preload: what others may not read is not enabled for them", "[preload]") {
    namespace fs = std::filesystem;
    const test::Scratch scratch; // private
    const auto directory = fs::path(scratch.path()) / "lib";
    fs::create_directory(directory);
    const auto library = directory / "libgpu-sleep-login.so";
    std::ofstream(library) << "library";
    const auto refusal = [&] {
        const auto open = check_open_to_all(library);
        return open ? std::string() : open.error().message;
    };
    CHECK_THAT(refusal(), test::mentions("may not enter " + fs::path(scratch.path()).native() + ";"));
    fs::permissions(scratch.path(), fs::perms::others_exec, fs::perm_options::add);
    fs::permissions(directory, fs::perms::others_exec, fs::perm_options::add);
    fs::permissions(library, fs::perms::others_read, fs::perm_options::remove);
    CHECK_THAT(refusal(), test::mentions("may not read " + library.native()));
    fs::permissions(library, fs::perms::others_read, fs::perm_options::add);
    CHECK(refusal().empty());
}

TEST_CASE("Preload: the agent lies beside the commands", "[preload]") {
    const test::Scratch scratch;
    const auto root = scratch.path();
    const auto make = [&](const std::filesystem::path& directory) {
        std::filesystem::create_directories(root / directory / "bin");
        std::filesystem::create_directories(root / directory / "lib");
        std::ofstream(root / directory / "lib" / "libgpu-sleep-agent.so") << "x";
        return find_library(root / directory / "bin", k_agent_library);
    };
    CHECK(*make("plain") == (root / "plain/lib/libgpu-sleep-agent.so").native());
    for (const auto* bad : {"with space", "with:colon", "with$ORIGIN"}) {
        const auto refused = make(bad);
        REQUIRE_FALSE(refused);
        CHECK(refused.error().code == ErrorCode::invalid_argument);
        CHECK_THAT(refused.error().message, test::mentions("in its path"));
    }
    std::filesystem::remove(root / "plain/lib/libgpu-sleep-agent.so");
    CHECK(find_library(root / "plain/bin", k_agent_library).error().code == ErrorCode::io_failed);
    CHECK(find_library("/nonexistent/bin", k_agent_library).error().code == ErrorCode::io_failed);
}
