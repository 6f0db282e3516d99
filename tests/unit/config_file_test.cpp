// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Configuration files: what is read, what is said of mistakes, and whose files are trusted.

#include "control/policy/policies.hpp"
#include "support/catch.hpp"
#include "support/files_of.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep::control::policy;
using namespace gpu_sleep::test;
using namespace std::chrono_literals;

namespace {

std::string complaint_about_toml(std::string_view text, Author author = Author::administrator) {
    const auto file = parse_configuration(text, "c.toml", author);
    return file ? "none" : file.error().message;
}

bool can_read() {
    return parse_configuration("", "c.toml", Author::user).has_value(); // toml++ was there
}

std::string example() {
    return test::content_of(test::source_file("cli/gpu-sleep.toml"));
}

/// The example with what it shows in comments: lines such as "#spill = true", and its ladder.
std::string uncommented(std::string text) {
    const std::string plain = "idle = \"15m\"\n";
    text.erase(text.find(plain), plain.size());
    text.replace(text.find("# idle = ["), 2, "");
    for (auto at = text.find("\n#"); at != std::string::npos; at = text.find("\n#", at + 1))
        if (at + 2 < text.size() && text[at + 2] != ' ' && text[at + 2] != '\n') text.erase(at + 1, 1);
    return text;
}

} // namespace

TEST_CASE("Configuration: the administrator's file alone names a program to notify", "[config_file]") {
    if (!can_read()) return;
    const auto* const text = "[reclaim]\nnotify = \"/sbin/tell\"\n";
    CHECK(parse_configuration(text, "c.toml", Author::administrator)->notify == "/sbin/tell");
    CHECK_THAT(complaint_about_toml(text, Author::user),
               mentions("c.toml:2: reclaim.notify: only the administrator's file names a program to run"));
    CHECK_THAT(complaint_about_toml("[reclaim]\nnotify = \"tell\"\n"), mentions("not an absolute path"));
    CHECK_THAT(complaint_about_toml("[user.a]\nnotify = \"/tell\"\n"), mentions("there is no such key"));
}

TEST_CASE("Configuration: all sections and keys are read", "[config_file]") {
    if (!can_read()) return;
    const auto file = parse_configuration(R"(
[reclaim]
idle = ["15m:host", "4h:file"]
min-awake = "1m"
directory = "/data/{user}"
spill = true
[host]
budget = "200GiB"
per-user = "64GiB"
[user.alice]
exempt = true
host-budget = "1GiB"
[command."my server"]
idle = "5m"
[command.notebook]
idle = "never"
[tag.weights]
store = "file"
[tag.kv_cache]
exempt = true
)",
                                          "c.toml", Author::administrator);
    REQUIRE(file);
    CHECK(file->reclaim.idle == Ladder{{15min, Tier::host}, {4h, Tier::file}});
    CHECK(file->reclaim.min_awake == 1min);
    CHECK(file->reclaim.directory == "/data/{user}");
    CHECK(file->reclaim.spill == true);
    CHECK_FALSE(file->reclaim.exempt);
    CHECK(file->machine_budget == 200 * k_gib);
    CHECK(file->user_budget == 64 * k_gib);
    CHECK(file->users.at("alice").exempt == true);
    CHECK(file->users.at("alice").host_budget == k_gib);
    CHECK(file->commands.at("my server").idle == Ladder{{5min, Tier::host}});
    CHECK(file->commands.at("notebook").exempt == true);
    CHECK(file->tags.at("weights").store == model::Store::file);
    CHECK(file->tags.at("kv_cache").exempt == true);
}

TEST_CASE("Configuration: a mistake is named with its file, line and key", "[config_file]") {
    if (!can_read()) return;
    CHECK(complaint_about_toml("\n[reclaim]\nidel = \"15m\"\n") ==
          "c.toml:3: reclaim.idel: there is no such key; did you mean 'idle'?");
    CHECK(
        complaint_about_toml("[reclaim]\nxyzzy = 1\n") ==
        "c.toml:2: reclaim.xyzzy: there is no such key; there are idle, min-awake, exempt, directory, spill");
    CHECK(complaint_about_toml("[reclam]\nidle = \"15m\"\n") ==
          "c.toml:2: reclam.idle: there is no such section; did you mean 'reclaim'?");
    CHECK(complaint_about_toml("[reclam]\n") ==
          "c.toml:1: reclam: there is no such section; did you mean 'reclaim'?");
    CHECK(complaint_about_toml("[reclaim]\nidle = 900\n") ==
          "c.toml:2: reclaim.idle: this is a number, and must be a time, or a list of times: write it as "
          "\"15m\" or [\"15m:host\", \"4h:file\"]");
    CHECK(complaint_about_toml("[reclaim]\nidle = [\"1h\", 5]\n") ==
          "c.toml:2: reclaim.idle: this is a list of something other than strings, and must be a time, or a "
          "list of times: write it as \"15m\" or [\"15m:host\", \"4h:file\"]");
    CHECK(complaint_about_toml("[reclaim]\nidle = [\"900\", \"4h:file\"]\n") ==
          "c.toml:2: reclaim.idle: '900' is not a duration; write it as 250ms, 30s, 15m or 2h");
    CHECK(complaint_about_toml("[host]\nbudget = \"4096\"\n") ==
          "c.toml:2: host.budget: '4096' is not a size; write it as 512MiB, 40GiB or 1.5GB");
    CHECK(complaint_about_toml("[reclaim]\nidle = [\"1h:file\", \"2h:host\"]\n") ==
          "c.toml:2: reclaim.idle: 'host' after 2h must be deeper than 'file'");
    CHECK(complaint_about_toml("[reclaim]\nidle = \"1h:disk\"\n") ==
          "c.toml:2: reclaim.idle: 'disk' is not a place: the places are host, file and deep");
    CHECK(complaint_about_toml("[reclaim]\nexempt = \"yes\"\n") ==
          "c.toml:2: reclaim.exempt: this is a string, and must be true or false");
    CHECK(complaint_about_toml("[reclaim]\ndirectory = \"sleep\"\n") ==
          "c.toml:2: reclaim.directory: 'sleep' is not an absolute path");
    CHECK(complaint_about_toml("[reclaim]\nhost-budget = \"1GiB\"\n")
              .starts_with("c.toml:2: reclaim.host-budget: there is no such key"));
    CHECK(complaint_about_toml("[host]\nbudget = 5\n") ==
          "c.toml:2: host.budget: this is a number, and must be a string: write it as \"64GiB\"");
    CHECK(complaint_about_toml("[tag.\"a b\"]\nexempt = true\n") ==
          "c.toml:2: tag.a b.exempt: 'a b' is not a tag");
    CHECK(complaint_about_toml("[tag.a]\nstore = \"disk\"\n") ==
          "c.toml:2: tag.a.store: 'disk' is not a store; the stores are host and file");
    CHECK(complaint_about_toml("idle = \"15m\"\n") ==
          "c.toml:1: idle: it is in no section: write [reclaim] above it");
    CHECK(complaint_about_toml("budget = \"64GiB\"\n") ==
          "c.toml:1: budget: it is in no section: write [host] above it");
    CHECK(complaint_about_toml("reclam = \"15m\"\n").ends_with("did you mean 'reclaim'?"));
    for (const auto* const bare : {"15m:host", "1h", "host", "never"})
        CHECK(complaint_about_toml(fmt::format("[reclaim]\nexempt = true\nidle = {} # each\n", bare))
                  .ends_with(fmt::format("; write it as idle = \"{}\"", bare)));
    CHECK(complaint_about_toml("reclaim = 5\n") ==
          "c.toml:1: reclaim: it should be a section, [reclaim], with keys");
    CHECK(complaint_about_toml("[command]\npython3 = true\n") ==
          "c.toml:2: command.python3: it should be sections such as [command.NAME]");
    CHECK(complaint_about_toml("[reclaim.idle.x]\ny = 1\n") ==
          "c.toml:2: reclaim.idle.x.y: there is no such key");
    CHECK(
        complaint_about_toml("[reclaim]\ncommand.python3.idle = \"1h\"\n") ==
        "c.toml:2: reclaim.command.python3.idle: it is in the section [reclaim]: write [command.NAME] above "
        "it");
    CHECK(complaint_about_toml("reclaim.exempt = yes\n")
              .ends_with("; write it as reclaim.exempt = true, or = false"));
    CHECK(complaint_about_toml("[reclaim]\nidle = \"15m\"\nidle = \"16m\"\n").starts_with("c.toml:3: "));
    CHECK(complaint_about_toml("[reclaim\n").starts_with("c.toml:1: "));
    CHECK(complaint_about_toml("[reclaim]\n\n[=\nidle = \"1m\"\n") == "c.toml: this is not TOML");
    CHECK(complaint_about_toml("# gr\xC3\xBC\xC3\x9F\n[command.\"gr\\u00FC\\u00DF\"]\nexempt = true\n") ==
          "none");
    CHECK(complaint_about_toml("[command.\"\xEF\xBB\xBF\"]\n")
              .starts_with("c.toml:1: there is a non-ASCII character"));
    CHECK(complaint_about_toml({"[reclaim]\n\n[\0]", 14}) == "c.toml:3: there is a control character");
    CHECK(complaint_about_toml("[reclaim]\n[host]\n[command.x]\n") == "none");
}

TEST_CASE("Configuration: deeply nested keys and values are refused, and harm no stack", "[config_file]") {
    if (!can_read()) return;
    const auto repeated = [](std::string_view text, int times) {
        std::string all;
        for (int i = 0; i < times; ++i) all += text;
        return all;
    };
    constexpr int k_many = 300'000;
    CHECK(complaint_about_toml("[reclaim]\n" + repeated("a.", k_many) + "a = 1\n") ==
          "c.toml:2: there are too many dots in one line");
    CHECK(complaint_about_toml("[" + repeated("\"\" . ", k_many / 5) + "a]\n").starts_with("c.toml:1: "));
    // A text over several lines makes a comment of what is none.
    CHECK(complaint_about_toml("a = {b = \"\"\"\n#\"\"\"," + repeated("a.", k_many) + "a = 1}\n")
              .starts_with("c.toml:2: "));
    CHECK(complaint_about_toml("a = " + repeated("[\n", 200) + repeated("]", 200)).starts_with("c.toml:"));
    const auto within = "a." + repeated("a.", 60) + "a = {";
    CHECK(complaint_about_toml(repeated(within, 200) + repeated("}", 200)).starts_with("c.toml:1: "));
    CHECK(complaint_about_toml("# " + repeated(".", k_many) + "\n[reclaim]\n") == "none");
}

TEST_CASE("Configuration: a ladder that leads to files needs a directory for it", "[config_file]") {
    if (!can_read()) return;
    const std::string ladder = "idle = [\"15m\", \"4h:file\"]\n";
    const std::string directory = "directory = \"/data\"\n";
    const auto complaint = [](const std::string& text) { return complaint_about_toml(text, Author::user); };
    CHECK(complaint("[reclaim]\n" + ladder)
              .starts_with("c.toml:2: reclaim.idle: idle moves contents to files, but no directory"));
    CHECK(complaint("[command.x]\n" + ladder + "[command.y]\n" + directory)
              .starts_with("c.toml:2: command.x.idle: idle moves"));
    CHECK(complaint("[reclaim]\n" + directory + "[command.x]\n" + ladder) == "none");
    CHECK(complaint("[command.x]\n" + ladder + directory) == "none");
    CHECK(complaint("[reclaim]\nidle = [\"15m\", \"4h:deep\"]\n") == "none");
    CHECK(parse_configuration("[reclaim]\n" + ladder, "c.toml", Author::user, true));
    CHECK(complaint_about_toml("[reclaim]\n" + ladder) == "none"); // users' files may name their own
}

TEST_CASE("Configuration: a section may have the name of a key", "[config_file]") {
    if (!can_read()) return;
    for (const auto* text : {"[command.idle]", "[user.idle]", "[command.idle]\nidle = \"1h\""})
        CHECK(complaint_about_toml(text) == "none");
}

TEST_CASE("Configuration: what is the administrator's to say is refused in a user's file", "[config_file]") {
    if (!can_read()) return;
    CHECK(complaint_about_toml("[user.alice]\nidle = \"1d\"\n", Author::user) ==
          "c.toml:2: user.alice.idle: only the administrator's file has sections for users");
    CHECK(complaint_about_toml("[host]\nbudget = \"1TiB\"\n", Author::user) ==
          "c.toml:2: host.budget: only the administrator's file has a budget for the machine; use per-user "
          "for your own");
    CHECK(complaint_about_toml("[host]\nper-user = \"1GiB\"\n", Author::user) == "none");
}

TEST_CASE("Configuration: the example says what holds without it, and can be used", "[config_file]") {
    if (!can_read()) return;
    const auto plain = need(parse_configuration(example(), "example", Author::administrator));
    CHECK(plain.reclaim.idle == Ladder{{15min, Tier::host}});
    const auto all = parse_configuration(uncommented(example()), "example", Author::administrator);
    INFO((all ? "" : all.error().message));
    REQUIRE(all);
    CHECK(all->reclaim.idle->size() > 1);
    CHECK(all->machine_budget);
    CHECK(all->user_budget);
    CHECK_FALSE(all->users.empty());
    const auto kernel =
        control::program_name({"/usr/bin/python3", "-m", "ipykernel_launcher", "-f", "kernel-1.json"});
    CHECK(settings_for(*all, {"ann", "", kernel}).idle == Ladder{{1h, Tier::host}});
    CHECK_FALSE(all->tags.empty());
}

TEST_CASE("Configuration: a file that others could have written is not used", "[config_file]") {
    const Scratch scratch;
    const auto path = scratch.path() / "c.toml";
    const auto read = [&](uid_t owner) { return read_configuration(path, Author::user, owner); };
    const auto missing = need(read(::geteuid()));
    CHECK_FALSE(missing);
    std::ofstream(path) << "[reclaim]\nidle = \"15m\"\n";
    REQUIRE(::chmod(path.c_str(), 0644) == 0);
    if (can_read()) CHECK(read(::geteuid())->has_value());
    for (const mode_t mode : {0664U, 0646U}) {
        REQUIRE(::chmod(path.c_str(), mode) == 0);
        CHECK(read(::geteuid()).error().code == ErrorCode::not_permitted);
    }
    REQUIRE(::chmod(path.c_str(), 0600) == 0);
    if (::geteuid() != 0) CHECK(read(::geteuid() + 1).error().code == ErrorCode::not_permitted);
    if (::geteuid() == 0 && ::chown(path.c_str(), 4242, 4242) == 0)
        CHECK(read(4243).error().code == ErrorCode::not_permitted); // nor does a link to it help
    std::filesystem::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK(read(::geteuid()).error().code == ErrorCode::not_permitted); // and nobody waits for a writer
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(read(::geteuid()).error().code == ErrorCode::not_permitted);
}
