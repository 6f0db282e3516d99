// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The login environment's texts and specifications of kernels: what is added, read back, and taken back.

#include "cli/login/texts.hpp"
#include "support/catch.hpp"

#include <nlohmann/json.hpp>

using namespace gpu_sleep::cli;
using Json = nlohmann::ordered_json;

namespace {

const std::string k_preloaded = "/opt/lib/libgpu-sleep-login.so";

const std::string k_library = "/opt/lib/libgpu-sleep-login.so";

constexpr const char* k_plain = R"({"argv": ["python3", "-m", "ipykernel_launcher"],
	"language": "python",  "display_name": "Größe" })";
constexpr const char* k_with_env =
    R"({"language": "python", "env": {"LD_PRELOAD": "/a.so", "A": "1"}, "metadata": {"debugger": true}}
)";

Json enabled(const std::string& text) {
    const auto changed = gpu_sleep::test::need(enabled_kernel(text, k_library));
    return Json::parse(changed);
}

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

TEST_CASE("Kernel specification: the library is in its environment, before others", "[kernel_spec]") {
    CHECK(enabled(k_plain)["env"] == Json{{"LD_PRELOAD", k_library}});
    CHECK(enabled(k_plain)["display_name"] == "Größe");
    CHECK(enabled(k_with_env)["env"]["LD_PRELOAD"] == k_library + ":/a.so");
    CHECK(enabled(k_with_env)["metadata"]["debugger"] == true);
}

TEST_CASE("Kernel specification: one that nobody has edited is restored byte for byte", "[kernel_spec]") {
    for (const std::string text : {k_plain, k_with_env}) {
        const auto once = enabled_kernel(text, k_library);
        REQUIRE(once);
        CHECK(enabled_kernel(*once, k_library) == once);
        CHECK(disabled_kernel(*once) == text);
        const auto moved = gpu_sleep::test::need(enabled_kernel(*once, "/usr/lib/libgpu-sleep-login.so"));
        CHECK(disabled_kernel(moved) == text);
    }
}

TEST_CASE("Kernel specification: of an edited one only our members are removed", "[kernel_spec]") {
    auto edited = enabled(k_plain);
    edited["argv"].push_back("--quiet");
    auto restored = disabled_kernel(edited.dump());
    REQUIRE(restored);
    auto expected = Json::parse(k_plain);
    expected["argv"].push_back("--quiet");
    CHECK(Json::parse(*restored) == expected);

    edited["env"]["B"] = "2";
    edited["env"]["LD_PRELOAD"] = "/mine.so:" + k_library + ":/other.so";
    restored = disabled_kernel(edited.dump());
    REQUIRE(restored);
    CHECK(Json::parse(*restored)["env"] == Json{{"LD_PRELOAD", "/mine.so:/other.so"}, {"B", "2"}});

    auto with_env = enabled(k_with_env);
    with_env["env"].erase("LD_PRELOAD");
    restored = disabled_kernel(with_env.dump());
    REQUIRE(restored);
    CHECK(Json::parse(*restored)["env"] == Json{{"A", "1"}});
}

TEST_CASE("Kernel specification: what is no Python kernel, or not ours, stays as it is", "[kernel_spec]") {
    for (const auto* text :
         {"", "{", "[]", "7", "{}", R"({"language": "R"})", R"({"language": 7})",
          R"({"language": "python", "env": 7})", R"({"language": "python", "metadata": []})",
          "{\"language\": \"python\", \"display_name\": \"\xFF\"}"}) {
        INFO(text);
        CHECK_FALSE(enabled_kernel(text, k_library));
        CHECK_FALSE(disabled_kernel(text));
    }
    CHECK_FALSE(disabled_kernel(k_plain));
    CHECK_FALSE(disabled_kernel(R"({"language": "python", "metadata": {"gpu-sleep": {"original": 7}}})"));
}
