// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot extract: a file that is there whole, or not at all.

#include "snapshot_command.hpp"
#include "support/failing_call.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test::snapshot_command;

TEST_CASE("gpu-snapshot extract: JSON says what was written, or why not", "[snapshot]") {
    const Stage stage;
    const auto out = (stage.elsewhere.path() / "out").string();
    const auto extract = [&](int extent, const std::string& output) {
        return ask("extract " + stage.path.string() + " --extent " + std::to_string(extent) + " -o " +
                   output);
    };
    const auto done = extract(1, out);
    CHECK(done["exit_status"] == 0);
    REQUIRE(done["snapshots"].size() == 1);
    CHECK(done["snapshots"][0]["path"] == stage.path.string());
    CHECK(done["snapshots"][0]["extracted"] ==
          nlohmann::json({{"extent", 1}, {"output", out}, {"bytes", stage.second.size()}}));
    CHECK(test::read_file(out) == stage.second);
    const auto again = extract(1, out); // it exists
    CHECK(again["exit_status"] == exit_status::failed_awake);
    CHECK_FALSE(again["snapshots"][0].contains("extracted"));
    check_error(again["snapshots"][0], "io_failed");
    check_error(extract(2, out + "2")["snapshots"][0], "invalid_argument");
    const auto both = extract(0, "-"); // one standard output is not for both
    CHECK(both["exit_status"] == exit_status::usage);
    check_error(both, "invalid_argument");
}

TEST_CASE("gpu-snapshot extract: the bytes of one extent, and nothing where it fails", "[snapshot]") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    const auto extract = [&](int extent) {
        return run("extract " + stage.path.string() + " --extent " + std::to_string(extent) + " -o " +
                   out.string());
    };
    CHECK(extract(0).status == exit_status::done);
    CHECK(test::read_file(out) == stage.first);
    struct stat status = {};
    REQUIRE(::stat(out.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    std::filesystem::remove(out);
    auto bytes = test::read_file(stage.path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    test::write_file(stage.path, bytes);
    CHECK(extract(0).status == exit_status::damaged);
    CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("gpu-snapshot extract: a file is there whole and flushed, or not at all", "[snapshot]") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    const auto arguments = "extract " + stage.path.string() + " --extent 0 -o ";
    SECTION("nothing is left where the command is killed in the middle") {
        const auto killed = run_command("ulimit -c 0; ulimit -f 1; " + test::command_file("gpu-snapshot") +
                                        " " + arguments + out.string() + "; exit");
        CHECK(killed.status != exit_status::done);
        CHECK(stage.elsewhere.file_count() == 0);
    }
    SECTION("nor what cannot be flushed to standard output") {
        Answer answer;
        const auto body = [&] { answer = run(arguments + "- > " + out.string()); };
        if (!test::with_failing_calls({{SYS_fsync, EIO, {}}}, body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status == exit_status::failed_awake);
    }
    SECTION("a pipe needs no flush") {
        CHECK(run(arguments + "- | cat > " + out.string()).status == exit_status::done);
        CHECK(test::read_file(out) == stage.first);
    }
    SECTION("a link in its place is not followed") {
        std::filesystem::create_symlink(stage.elsewhere.path() / "victim", out);
        CHECK(run(arguments + out.string()).status == exit_status::failed_awake);
        CHECK(stage.elsewhere.file_count() == 1);
    }
    SECTION("a disk that is full") {
        CHECK(run(arguments + "- > /dev/full").status == exit_status::no_host_memory);
    }
}

TEST_CASE("gpu-snapshot extract: what a file system lacks or fails is done without, or nothing is left",
          "[snapshot]") {
    static constexpr test::FailingCall k_no_nameless{SYS_openat, EOPNOTSUPP, O_TMPFILE | O_RDWR | O_CLOEXEC};
    static constexpr test::FailingCall k_no_exclusive{SYS_renameat2, EINVAL, {}};
    struct Row {
        std::vector<test::FailingCall> calls;
        int status;
        std::size_t files; ///< that are there afterwards
    };
    const auto row = GENERATE(values<Row>({
        {{{SYS_fsync, EIO, {}}}, exit_status::failed_awake, 0},
        {{{SYS_linkat, EIO, {}}}, exit_status::failed_awake, 0},
        {{{SYS_write, ENOSPC, 4U << 20U}}, exit_status::no_host_memory, 0},
        {{k_no_nameless, {SYS_renameat2, EIO, {}}}, exit_status::failed_awake, 0},
        {{k_no_nameless, k_no_exclusive}, exit_status::done, 1},
        {{k_no_nameless, k_no_exclusive, {SYS_linkat, EPERM, {}}}, exit_status::done, 1},
        {{k_no_nameless, k_no_exclusive, {SYS_linkat, EOPNOTSUPP, {}}}, exit_status::done, 1},
        {{k_no_nameless, k_no_exclusive, {SYS_unlinkat, EPERM, {}}}, exit_status::done, 2}, // the other name
    }));
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    Answer answer, again;
    std::size_t files = 0;
    const auto body = [&] {
        const auto command = "extract " + stage.path.string() + " --extent 0 -o " + out.string();
        answer = run(command);
        files = stage.elsewhere.file_count();
        again = run(command);
    };
    if (!test::with_failing_calls(row.calls, body))
        return test::skip_without_right("filter its system calls");
    CHECK(answer.status == row.status);
    CHECK(files == row.files);
    if (row.status != exit_status::done) return;
    CHECK(test::read_file(out) == stage.first);
    CHECK(again.status == exit_status::failed_awake); // it exists
    struct stat status = {};
    REQUIRE(::stat(out.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
}
