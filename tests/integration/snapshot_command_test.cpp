// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot lists and verifies, whole snapshots and damaged ones, for people and for programs.

#include "snapshot_command.hpp"
#include "support/man_page.hpp"
#include "support/printed.hpp"
#include "support/tree.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test::snapshot_command;

TEST_CASE("gpu-snapshot ls: a file, a directory, for people and for programs", "[snapshot]") {
    const Stage stage;
    const auto one = run("ls " + stage.path.string());
    CHECK(one.status == exit_status::done);
    INFO(one.output);
    const test::Printed printed(one.output);
    CHECK(printed.sentences == std::vector<std::string>{""}); // before the table of the extents
    REQUIRE(printed.rows.size() == 3);
    CHECK(printed.rows[0].at("SNAPSHOT") == stage.path.filename().string());
    CHECK(printed.rows[0].at("PID") == std::to_string(::getpid()));
    CHECK(printed.rows[0].at("STATE") == "asleep");
    CHECK(printed.rows[0].at("CONTENTS") == "6.00 MiB");
    CHECK(printed.rows[1].at("ADDRESS") == "0x7f0000000000");
    CHECK(printed.rows[1].at("TAG") == "weights");
    CHECK(printed.rows[1].at("BYTES") == "6.00 MiB");
    CHECK(printed.rows[2].at("EXTENT") == "1");
    CHECK(printed.rows[2].at("TAG") == "kv_cache");
    CHECK(printed.rows[2].at("BYTES") == "77 B");
    const auto all = run("ls --json " + stage.directory.path().string());
    CHECK(all.status == exit_status::done);
    const auto json = nlohmann::json::parse(all.output, nullptr, false);
    REQUIRE(json.is_object());
    CHECK(json["schema"] == 1);
    REQUIRE(json["snapshots"].size() == 1);
    CHECK(json["snapshots"][0]["owner"]["pid"] == ::getpid());
    CHECK(json["snapshots"][0]["owner"]["boot"] == boot_id());
    CHECK(json["snapshots"][0]["extents"][0]["bytes"] == stage.first.size());
    CHECK(run("ls " + stage.elsewhere.path().string()).output == "no snapshots\n");
}

TEST_CASE("gpu-snapshot ls: a name that says something else of the owner than the file does", "[snapshot]") {
    const Stage stage;
    const auto& owner = stage.contents.description.owner;
    auto name = stage.snapshot->file.name();
    SECTION("another process") {
        name.owner.pid = owner.pid + 1;
    }
    SECTION("kept") {
        name.owner.pid = owner.pid + 1;
        name.kind = store::SnapshotName::Kind::kept;
    }
    CHECK(has(run("ls " + stage.path.string()), "asleep"));
    const auto renamed = stage.directory.path() / name.text();
    std::filesystem::rename(stage.path, renamed);
    const auto listed = run("ls " + renamed.string());
    CHECK(listed.status == exit_status::done);
    CHECK(has(listed, "misnamed"));
    CHECK(has(listed, " " + std::to_string(owner.pid) + " "));
    const auto elsewhere = stage.elsewhere.path() / "any name";
    std::filesystem::rename(renamed, elsewhere);
    CHECK(has(run("ls '" + elsewhere.string() + "'"), "asleep"));
}

TEST_CASE("gpu-snapshot verify: good, damaged, cut, and no snapshot at all", "[snapshot]") {
    const Stage stage;
    const auto good = run("verify " + stage.directory.path().string());
    CHECK(good.status == exit_status::done);
    CHECK(has(good, "good"));
    auto bytes = test::read_file(stage.path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    test::write_file(stage.path, bytes);
    const auto damaged = run("verify " + stage.path.string());
    CHECK(damaged.status == exit_status::damaged);
    CHECK(has(damaged, "checksum"));
    std::filesystem::resize_file(stage.path, bytes.size() - 4096);
    CHECK(run("verify " + stage.directory.path().string()).status == exit_status::damaged);
    CHECK(run("ls " + stage.path.string()).status == exit_status::damaged);
    test::write_file(stage.path, test::random_bytes(10'000));
    const auto none = run("verify " + stage.path.string());
    CHECK(none.status == exit_status::damaged);
    CHECK_FALSE(has(none, "gpu-sleep --")); // it need not be a snapshot of any process
    test::write_file(stage.path, test::random_bytes(1));
    const auto cut = run("verify " + stage.path.string());
    CHECK(has(cut, "it has 1 byte\n"));
    CHECK(has(cut, "cannot verify " + stage.path.string() + ": the snapshot"));
    std::filesystem::create_symlink(stage.path, stage.elsewhere.path() / "link");
    CHECK(run("verify " + (stage.elsewhere.path() / "link").string()).status == exit_status::not_permitted);
    const auto missing = run("verify " + (stage.elsewhere.path() / "missing").string());
    CHECK(missing.status == exit_status::failed_awake);
    CHECK(has(missing, "missing: No such file or directory"));
    CHECK_FALSE(has(missing, "missing: " + (stage.elsewhere.path() / "missing").string()));
    const auto empty = stage.elsewhere.path() / "empty";
    std::filesystem::create_directory(empty);
    for (const auto* const command : {"ls ", "verify "}) {
        const auto nothing = run(command + empty.string());
        CHECK(nothing.status == exit_status::done);
        CHECK(has(nothing, "no snapshots\n"));
    }
}

TEST_CASE("gpu-snapshot: JSON says how it went, as that of the other commands does", "[snapshot]") {
    const Stage stage;
    const auto command = GENERATE(as<std::string>(), "ls ", "verify ");
    const auto good = ask(command + stage.path.string());
    CHECK(good["exit_status"] == 0);
    CHECK_FALSE(good.contains("error"));
    if (command == "verify ") CHECK(good["snapshots"][0]["good"] == true);
    CHECK(ask(command + stage.elsewhere.path().string())["snapshots"].empty());
    test::write_file(stage.path, test::random_bytes(10'000));
    const auto damaged = ask(command + stage.path.string());
    CHECK(damaged["exit_status"] == exit_status::damaged);
    check_error(damaged["snapshots"][0], "damaged");
    if (command == "verify ") CHECK(damaged["snapshots"][0]["good"] == false);
    const auto wrong = ask(command + "--no-such-option");
    CHECK(wrong["exit_status"] == exit_status::usage);
    CHECK(wrong["snapshots"].empty());
    check_error(wrong, "invalid_argument");
}

TEST_CASE("gpu-snapshot: the manual page names every member of the JSON, and no other", "[snapshot]") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    test::Members members;
    for (const auto& arguments :
         {"ls " + stage.directory.path().string(), "ls " + stage.path.string(),
          "verify " + stage.path.string(), "clean " + stage.directory.path().string(),
          "extract " + stage.path.string() + " --extent 0 -o " + out.string(), "ls " + out.string()})
        test::add_members(ask(arguments), "The object", members);
    for (const auto* common : {"schema", "program", "version", "exit_status", "snapshots", "error"})
        members["The object"].erase(common); // these are in gpu-ps(1), as "error" is
    members.erase("error");
    CHECK(test::documented_members(test::source_file("cli/man/gpu-snapshot.1")) == members);
}

TEST_CASE("gpu-snapshot: a result that cannot be written is a failure", "[snapshot]") {
    const Stage stage;
    for (const std::string command : {"ls ", "ls --json ", "verify ", "verify --json "}) {
        const auto lost = run(command + stage.path.string() + " 2>&1 >/dev/full; exit");
        CHECK(lost.status == exit_status::failed_awake);
        CHECK(has(lost, "cannot write the result: No space left on device"));
    }
}
