// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot clean: what ended processes have left goes, and what living ones have stays.

#include "snapshot_command.hpp"
#include "support/failing_call.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test::snapshot_command;

TEST_CASE("gpu-snapshot: clean removes what ended processes have left in a directory", "[snapshot]") {
    const Stage stage; // whose owner lives
    using Kind = store::SnapshotName::Kind;
    std::set<std::string> left;
    const auto make = [&](std::uint64_t number, Kind kind, const std::string& boot) {
        const store::SnapshotName name{test::k_nobody, number, kind, boot};
        std::filesystem::copy_file(stage.path, stage.directory.path() / name.text());
        return name.text();
    };
    left.insert(make(1, Kind::sleeping, boot_id()));
    left.insert(make(2, Kind::partial, boot_id()));
    left.insert(make(3, Kind::sleeping, std::string(32, 'a'))); // before a crash
    const auto kept = make(4, Kind::kept, boot_id());
    const auto directory = stage.directory.path().string();
    const std::string clean = "clean " + directory;

    SECTION("and no other command does") {
        const auto command = GENERATE(as<std::string>(), "ls ", "verify ");
        const auto looked = run(command + directory);
        CHECK_FALSE(has(looked, "removed"));
        CHECK(has(looked, *left.begin()));
        CHECK_FALSE(ask(command + directory).contains("removed"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("but no single file") {
        CHECK(run(clean + "/" + *left.begin()).status == exit_status::usage);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("unless there is none") {
        CHECK(run(clean + "/none").status == exit_status::usage);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("unless others can look into it, too") {
        REQUIRE(::chmod(directory.c_str(), 0750) == 0);
        CHECK(run(clean).status == exit_status::not_permitted);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("unless it is reached by a link") {
        const auto link = stage.elsewhere.path() / "link";
        std::filesystem::create_directory_symlink(directory, link);
        CHECK(run("clean " + link.string()).status == exit_status::not_permitted);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("and fails where it may remove none") {
        nlohmann::json cleaned;
        if (!test::with_failing_calls({{SYS_unlinkat, EROFS, {}}}, [&] { cleaned = ask(clean); }))
            return test::skip_without_right("filter its system calls");
        CHECK(cleaned["exit_status"] == exit_status::failed_awake);
        check_error(cleaned, "io_failed");
        CHECK(cleaned["error"]["message"].get<std::string>().find("gpu-sleep-") != std::string::npos);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("and says which") {
        const auto looked = run(clean);
        CHECK(looked.status == exit_status::done);
        for (const auto& name : left)
            CHECK(has(looked, "removed " + name + ": its process no longer uses it\n"));
        CHECK_FALSE(has(looked, "removed " + kept));
        CHECK(stage.directory.file_count() == 2);
        CHECK(std::filesystem::exists(stage.path));
        CHECK(has(run(clean), "nothing is left over"));
    }
    SECTION("and says which to programs") {
        const auto looked = ask(clean);
        CHECK(looked["exit_status"] == 0);
        CHECK(looked["removed"].get<std::set<std::string>>() == left);
        CHECK(ask(clean)["removed"] == nlohmann::json::array());
    }
}

TEST_CASE("gpu-snapshot: a living sleeper of another pid namespace is asleep and stays", "[snapshot]") {
    const Stage stage; // whose pid and start time are nobody's in the new namespace
    test::MemoryContents contents("weights", stage.first);
    contents.description.owner = test::k_nobody;
    const auto theirs = test::written(stage.directory, contents, {});
    const auto file = theirs->file.path();
    const auto inside = [&](const std::string& arguments) {
        return "unshare --user --map-root-user --pid --fork --mount-proc " +
               test::command_file("gpu-snapshot") + " " + arguments;
    };
    if (run_command(inside("ls " + stage.elsewhere.path().string())).status != 0)
        return test::skip_without_right("make namespaces");
    for (const auto& path : {stage.path, file}) {
        CHECK(has(run("ls " + path.string()), "asleep"));
        const auto listed = run_command(inside("ls " + path.string() + " --json"));
        const auto json = nlohmann::json::parse(listed.output, nullptr, false);
        REQUIRE(json.is_object());
        CHECK(json["snapshots"][0]["state"] == "asleep");
        CHECK(json["snapshots"][0]["owner"]["alive"] == true);
    }
    CHECK(has(run_command(inside("clean " + stage.directory.path().string())), "nothing is left over"));
    CHECK(stage.directory.file_count() == 2);
}

TEST_CASE("gpu-snapshot: where locks may be lost, what is of another pid namespace stays", "[snapshot]") {
    const Stage stage;
    store::SnapshotName name{test::k_nobody, 1, store::SnapshotName::Kind::sleeping, boot_id(),
                             pid_namespace()};
    REQUIRE(name.pid_namespace != 0);
    const auto ended = stage.directory.path() / name.text();
    ++name.pid_namespace;
    const auto unseen = stage.directory.path() / name.text();
    test::MemoryContents contents("weights", stage.first);
    contents.description.owner = test::k_nobody;
    auto theirs = test::written(stage.directory, contents, {});
    for (const auto& file : {ended, unseen}) std::filesystem::copy_file(theirs->file.path(), file);
    nlohmann::json cleaned, looked;
    const auto body = [&] {
        cleaned = ask("clean " + stage.directory.path().string());
        looked = ask("ls " + stage.directory.path().string());
    };
    // As on a file system that nothing is known of.
    if (!test::with_failing_calls({{SYS_fstatfs, EIO, {}}}, body))
        return test::skip_without_right("filter its system calls");
    CHECK(cleaned["removed"] == nlohmann::json::array({ended.filename().string()}));
    REQUIRE(looked["snapshots"].size() == 3);
    for (const auto& each : looked["snapshots"])
        CHECK(each["state"] == (each["path"] == unseen.string() ? "of another pid namespace" : "asleep"));
    CHECK(std::filesystem::exists(unseen));
    CHECK(has(run("ls " + stage.directory.path().string()), "left over")); // the lock tells
}
