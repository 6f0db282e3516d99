// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Programs with a library whose use of the GPU cannot be seen: a sleep refuses, unless forced.

#include "intercepted_host.hpp"

#include "support/tree.hpp"

using namespace gpu_sleep::test;

namespace {

const std::string k_load = "load " + library_file("unseen/libnvcuvid.so.1");
const std::string k_named = "video decoding (libnvcuvid.so.1)";

/// The integration host, with the library from its start.
Launch host_with_library(Arguments prefix) {
    return host_launch(environment_for_others({"LD_PRELOAD=" + library_file("unseen/libnvcuvid.so.1")}),
                       std::move(prefix));
}

} // namespace

TEST_CASE("Unseen library: a sleep refuses and says why; forced, it goes on", "[unseen_library]") {
    const std::string how = GENERATE("", " apart"); // in a namespace of the loader's own
    if (!how.empty() && is_sanitized()) return skip("a sanitizer refuses namespaces of the loader");
    INFO(how);
    Captured host(k_runtime);
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    const auto before = free_bytes(host);
    CHECK_THAT(host.command("gpu-sleep", {"--dry-run"}).out, !mentions("cannot see"));
    host.tell(k_load + how);

    const auto refused = ended(host.command("gpu-sleep"), 1);
    CHECK_THAT(refused.err, mentions(k_named));
    CHECK(host.state() == "awake");
    CHECK(free_bytes(host) == before);
    check_intact(host, piece);

    CHECK_THAT(ended(host.command("gpu-sleep", {"--dry-run"}), 1).out,
               mentions(k_named + "; refused without --force"));
    CHECK_THAT(host.command("gpu-ps").out, mentions(k_named));

    CHECK_THAT(ended(host.command("gpu-sleep", {"--force"})).out,
               mentions(k_named + "; its work is not held back"));
    CHECK(host.state() == "asleep");
    CHECK(free_bytes(host) > before);
    CHECK(host.command("gpu-sleep").status == 0); // it is asleep already
    CHECK(host.command("gpu-wake").status == 0);
    check_intact(host, piece);
}

TEST_CASE("Unseen library: who sleeps by itself, or is not intercepted, answers for it", "[unseen_library]") {
    LoadedHost intercepted(host_with_library({command_file("gpu-run")}));
    CHECK(intercepted.command("gpu-sleep").status == 1);
    intercepted.tell("sleep 1");
    CHECK(intercepted.state() == "asleep");
    intercepted.wake_whole();

    LoadedHost plain(host_with_library({}));
    CHECK(plain.command("gpu-sleep").status == 0);
    CHECK(plain.state() == "asleep");
    plain.wake_whole();
}

TEST_CASE("Unseen library: a plug-in that bypasses the agent is refused, or audited", "[unseen_library]") {
    if (is_sanitized()) return skip("a sanitizer refuses such libraries");
    struct Row {
        const char* file;
        const char* how;
        bool is_seen, is_seen_with_audit;
    };
    const auto row = GENERATE(Row{"libsafety_plugin.so", "", true, true}, // linked to libcuda
                              Row{"libsafety_plugin.so", "deep", false, true},
                              Row{"libsafety_plugin.so", "apart", false, true},
                              Row{"unseen/libruntime_plugin.so", "", true, true}, // as the runtime does
                              Row{"unseen/libruntime_plugin.so", "deep", false, true},
                              Row{"unseen/libruntime_plugin.so", "apart", false, false},
                              Row{"unseen/libother_plugin.so", "deep", true, true}, // without CUDA
                              Row{"unseen/libother_plugin.so", "apart", true, true});
    const bool is_audited = GENERATE(false, true);
    INFO(row.file << " " << row.how << (is_audited ? " with --audit" : ""));
    const auto file = library_file(row.file);
    Captured host(k_runtime,
                  is_audited ? Arguments{"LD_AUDIT=" + library_file("libgpu-sleep-audit.so")} : Arguments{});
    const auto piece = make_piece(host, "plain", k_piece_bytes);
    host.tell("load " + file + " " + row.how);
    const auto done = host.command("gpu-sleep");
    if (is_audited ? row.is_seen_with_audit : row.is_seen) {
        REQUIRE(succeeded(done));
        CHECK(host.command("gpu-wake").status == 0);
        check_intact(host, piece);
        return;
    }
    CHECK(done.status == 1);
    const auto name = file.substr(file.rfind('/') + 1);
    CHECK_THAT(done.err, mentions("calls that bypass the agent; use gpu-run --audit (" + name));
    CHECK(host.state() == "awake");
    CHECK(host.command("gpu-doctor", {"--json"}).status != 0);
    REQUIRE(succeeded(host.command("gpu-sleep", {"--force"})));
    CHECK(host.command("gpu-wake").status == 0);
    check_intact(host, piece);
}
