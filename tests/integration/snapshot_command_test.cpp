// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// gpu-snapshot lists and verifies, whole snapshots and damaged ones, for people and for programs; it extracts
// a file that is there whole, or not at all; and it removes what ended processes have left, and nothing else.

#include "support/failing_call.hpp"
#include "support/man_page.hpp"
#include "support/printed.hpp"
#include "support/process.hpp"
#include "support/snapshots.hpp"
#include "support/tree.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <atomic>
#include <thread>

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

struct Answer {
    int status = -1;
    std::string output; ///< both streams
};

/// Through the shell.
Answer run_command(const std::string& command) {
    auto done = run({{"sh", "-c", command + " 2>&1"}});
    return {done.status, std::move(done.out)};
}

Answer run(const std::string& arguments) {
    return run_command(command_file("gpu-snapshot") + " " + arguments);
}

bool has(const Answer& answer, const std::string& text) {
    return answer.output.find(text) != std::string::npos;
}

void check_says(const Answer& answer, int status, const std::string& text) {
    CHECK(answer.status == status);
    CHECK_THAT(answer.output, mentions(text));
}

/// What the command answers in JSON, of the form that all commands share.
nlohmann::json ask(const std::string& arguments) {
    const auto answer = run(arguments + " --json 2>/dev/null; exit");
    auto json = nlohmann::json::parse(answer.output, nullptr, false);
    REQUIRE(json.is_object());
    CHECK(json["schema"] == 1);
    CHECK(json["program"] == "gpu-snapshot");
    CHECK(json["exit_status"] == answer.status);
    return json;
}

void check_error(const nlohmann::json& json, const std::string& code) {
    REQUIRE(json.contains("error"));
    const auto& error = json["error"];
    CHECK(error["code"] == code);
    for (const auto* member : {"message", "advice", "where", "driver_status"}) CHECK(error.contains(member));
}

/// A snapshot of this very process, and an empty directory.
struct Stage {
    Stage() {
        contents.add("weights", first);
        contents.add("kv_cache", second);
        contents.description.owner = {::getpid(), *own_start_time()};
        snapshot.emplace(need(write_snapshot(test::opened(directory), contents.description, contents, {})));
        path = snapshot->file.path();
    }
    [[nodiscard]] std::string extract(int extent, const std::string& output) const {
        return fmt::format("extract {} --extent {} -o {}", path.string(), extent, output);
    }
    Scratch directory, elsewhere;
    ByteVector first = normal_bf16(3 * k_mib + 1);
    ByteVector second = random_bytes(77);
    MemoryContents contents;
    std::optional<store::Snapshot> snapshot;
    std::filesystem::path path;
};

} // namespace

TEST_CASE("gpu-snapshot ls: a file, a directory, for people and for programs") {
    const Stage stage;
    const auto one = run("ls " + stage.path.string());
    CHECK(one.status == exit_status::done);
    INFO(one.output);
    const Printed printed(one.output);
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

TEST_CASE("gpu-snapshot ls: a name that says something else of the owner than the file does") {
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
    check_says(listed, exit_status::done, "misnamed");
    CHECK(has(listed, " " + std::to_string(owner.pid) + " "));
    const auto elsewhere = stage.elsewhere.path() / "any name";
    std::filesystem::rename(renamed, elsewhere);
    CHECK(has(run("ls '" + elsewhere.string() + "'"), "asleep"));
}

TEST_CASE("gpu-snapshot verify: good, damaged, cut, and no snapshot at all") {
    const Stage stage;
    check_says(run("verify " + stage.directory.path().string()), exit_status::done, "good");
    auto bytes = read_file(stage.path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    write_file(stage.path, bytes);
    check_says(run("verify " + stage.path.string()), exit_status::damaged, "checksum");
    std::filesystem::resize_file(stage.path, bytes.size() - 4096);
    CHECK(run("verify " + stage.directory.path().string()).status == exit_status::damaged);
    CHECK(run("ls " + stage.path.string()).status == exit_status::damaged);
    write_file(stage.path, random_bytes(10'000));
    const auto none = run("verify " + stage.path.string());
    CHECK(none.status == exit_status::damaged);
    CHECK_FALSE(has(none, "gpu-sleep --")); // it need not be a snapshot of any process
    write_file(stage.path, random_bytes(1));
    const auto cut = run("verify " + stage.path.string());
    CHECK(has(cut, "it has 1 byte\n"));
    CHECK(has(cut, "cannot verify " + stage.path.string() + ": the snapshot"));
    std::filesystem::create_symlink(stage.path, stage.elsewhere.path() / "link");
    CHECK(run("verify " + (stage.elsewhere.path() / "link").string()).status == exit_status::not_permitted);
    const auto missing = run("verify " + (stage.elsewhere.path() / "missing").string());
    check_says(missing, exit_status::failed_awake, "missing: No such file or directory");
    CHECK_FALSE(has(missing, "missing: " + (stage.elsewhere.path() / "missing").string()));
    CHECK_FALSE(has(missing, "directory above"));
    const auto beyond = run("ls " + (stage.elsewhere.path() / "missing" / "file").string());
    check_says(beyond, exit_status::failed_awake, "No such file or directory");
    CHECK_FALSE(has(beyond, "directory above"));
    CHECK_FALSE(has(beyond, "SNAPSHOT"));
    const auto empty = stage.elsewhere.path() / "empty";
    std::filesystem::create_directory(empty);
    for (const auto* const command : {"ls ", "verify "})
        check_says(run(command + empty.string()), exit_status::done, "no snapshots\n");
}

TEST_CASE("gpu-snapshot verify: of several the worst counts, whichever comes first") {
    const Stage stage;
    auto damaged = read_file(stage.path);
    damaged[damaged.size() / 2] ^= std::byte{1};
    write_file(stage.path, damaged);
    for (const auto* const name : {"gpu-sleep-1-1-1.kept", "gpu-sleep-999999999-1-1.kept"}) // before, behind
        std::filesystem::create_symlink("/none", stage.directory.path() / name);
    const auto all = run("verify " + stage.directory.path().string());
    CHECK(has(all, "symbolic link"));
    CHECK(all.status == exit_status::damaged);
}

TEST_CASE("gpu-snapshot: what has gone since its directory was listed is skipped") {
    const Stage stage;
    const auto other =
        stage.directory.path() / "gpu-sleep-1-1-1.kept"; // of a process that wakes all the time
    std::atomic<bool> ends{false};
    std::thread process([&] {
        while (!ends) {
            std::filesystem::create_hard_link(stage.path, other);
            std::filesystem::remove(other);
        }
    });
    for (int i = 0; i < 40; ++i)
        CHECK(run((i % 2 == 0 ? "ls " : "verify ") + stage.directory.path().string()).status == 0);
    ends = true;
    process.join();
}

TEST_CASE("gpu-snapshot: JSON says how it went, as that of the other commands does") {
    const Stage stage;
    const auto command = GENERATE(as<std::string>(), "ls ", "verify ");
    const auto good = ask(command + stage.path.string());
    CHECK(good["exit_status"] == 0);
    CHECK_FALSE(good.contains("error"));
    if (command == "verify ") CHECK(good["snapshots"][0]["good"] == true);
    CHECK(ask(command + stage.elsewhere.path().string())["snapshots"].empty());
    write_file(stage.path, random_bytes(10'000));
    const auto damaged = ask(command + stage.path.string());
    CHECK(damaged["exit_status"] == exit_status::damaged);
    check_error(damaged["snapshots"][0], "damaged");
    if (command == "verify ") CHECK(damaged["snapshots"][0]["good"] == false);
    const auto wrong = ask(command + "--no-such-option");
    CHECK(wrong["exit_status"] == exit_status::usage);
    CHECK(wrong["snapshots"].empty());
    check_error(wrong, "invalid_argument");
}

TEST_CASE("gpu-snapshot: the manual page names every member of the JSON, and no other") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    Members members;
    for (const auto& arguments : {"ls " + stage.directory.path().string(), "ls " + stage.path.string(),
                                  "verify " + stage.path.string(), "clean " + stage.directory.path().string(),
                                  stage.extract(0, out), "ls " + out.string()})
        add_members(ask(arguments), "The object", members);
    for (const auto* common : {"schema", "program", "version", "exit_status", "snapshots", "error"})
        members["The object"].erase(common); // these are in gpu-ps(1), as "error" is
    members.erase("error");
    CHECK(documented_members(source_file("cli/man/gpu-snapshot.1")) == members);
}

TEST_CASE("gpu-snapshot: a result that cannot be written is a failure") {
    const Stage stage;
    for (const std::string command : {"ls ", "ls --json ", "verify ", "verify --json "})
        check_says(run(command + stage.path.string() + " 2>&1 >/dev/full; exit"), exit_status::failed_awake,
                   "cannot write the result: No space left on device");
}

TEST_CASE("gpu-snapshot extract: JSON says what was written, or why not") {
    const Stage stage;
    const auto out = (stage.elsewhere.path() / "out").string();
    const auto done = ask(stage.extract(1, out));
    CHECK(done["exit_status"] == 0);
    REQUIRE(done["snapshots"].size() == 1);
    CHECK(done["snapshots"][0]["path"] == stage.path.string());
    CHECK(done["snapshots"][0]["extracted"] ==
          nlohmann::json({{"extent", 1}, {"output", out}, {"bytes", stage.second.size()}}));
    CHECK(read_file(out) == stage.second);
    const auto again = ask(stage.extract(1, out)); // it exists
    CHECK(again["exit_status"] == exit_status::failed_awake);
    CHECK_FALSE(again["snapshots"][0].contains("extracted"));
    check_error(again["snapshots"][0], "io_failed");
    check_error(ask(stage.extract(2, out + "2"))["snapshots"][0], "invalid_argument");
    const auto both = ask(stage.extract(0, "-")); // one standard output is not for both
    CHECK(both["exit_status"] == exit_status::usage);
    check_error(both, "invalid_argument");
}

TEST_CASE("gpu-snapshot extract: the bytes of one extent, and nothing where it fails") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    CHECK(run(stage.extract(0, out)).status == exit_status::done);
    CHECK(read_file(out) == stage.first);
    struct stat status = {};
    REQUIRE(::stat(out.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    std::filesystem::remove(out);
    auto bytes = read_file(stage.path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    write_file(stage.path, bytes);
    CHECK(run(stage.extract(0, out)).status == exit_status::damaged);
    CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("gpu-snapshot extract: a file is there whole and flushed, or not at all") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    SECTION("nothing is left where the command is killed in the middle") {
        int count = 0;
        for (const auto* const seconds : {"0.001", "0.003", "0.01", "0.03", "0.1"}) {
            run_command(fmt::format("timeout -s KILL {} {} {}; exit", seconds, command_file("gpu-snapshot"),
                                    stage.extract(0, out)));
            if (stage.elsewhere.file_count() == 0) {
                ++count;
                continue;
            }
            CHECK(stage.elsewhere.file_count() == 1);
            CHECK(read_file(out) == stage.first);
            std::filesystem::remove(out);
        }
        CHECK(count > 0);
    }
    SECTION("nor where it is larger than a file may be, which is as a full disk") {
        check_says(run_command("ulimit -f 1; " + command_file("gpu-snapshot") + " " + stage.extract(0, out)),
                   exit_status::no_host_memory, "File too large");
        CHECK(stage.elsewhere.file_count() == 0);
    }
    SECTION("a pipe whose reader is slow, and that somebody has made not to block, gets all of it") {
        std::array<int, 2> pipe{};
        REQUIRE(::pipe2(pipe.data(), O_NONBLOCK) == 0);
        std::thread command([&] {
            CHECK(run_command(command_file("gpu-snapshot") + " " + stage.extract(0, "- >&") +
                              std::to_string(pipe[1]))
                      .status == exit_status::done);
            ::close(pipe[1]);
        });
        ByteVector read;
        for (ByteVector part(1 << 16);;) {
            std::this_thread::sleep_for(Milliseconds(1));
            const auto got = ::read(pipe[0], part.data(), part.size());
            if (got == 0) break;
            if (got > 0) read.insert(read.end(), part.begin(), part.begin() + got);
        }
        command.join();
        ::close(pipe[0]);
        CHECK((read == stage.first)); // not to be printed
    }
    SECTION("nor what cannot be flushed to standard output") {
        Answer answer;
        const auto body = [&] { answer = run(stage.extract(0, "- > " + out.string())); };
        if (!with_failing_calls({{SYS_fsync, EIO, {}}}, body)) return;
        CHECK(answer.status == exit_status::failed_awake);
    }
    SECTION("a pipe needs no flush") {
        CHECK(run(stage.extract(0, "- | cat > " + out.string())).status == exit_status::done);
        CHECK(read_file(out) == stage.first);
    }
    SECTION("a link in its place is not followed") {
        std::filesystem::create_symlink(stage.elsewhere.path() / "victim", out);
        CHECK(run(stage.extract(0, out)).status == exit_status::failed_awake);
        CHECK(stage.elsewhere.file_count() == 1);
    }
    SECTION("a disk that is full") {
        CHECK(run(stage.extract(0, "- > /dev/full")).status == exit_status::no_host_memory);
    }
}

TEST_CASE("gpu-snapshot extract: what a file system lacks or fails is done without, or nothing is left") {
    static constexpr FailingCall k_no_nameless{SYS_openat, EOPNOTSUPP, O_TMPFILE | O_RDWR | O_CLOEXEC};
    static constexpr FailingCall k_no_exclusive{SYS_renameat2, EINVAL, {}};
    struct Row {
        std::vector<FailingCall> calls;
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
        answer = run(stage.extract(0, out));
        files = stage.elsewhere.file_count();
        again = run(stage.extract(0, out));
    };
    if (!with_failing_calls(row.calls, body)) return;
    CHECK(answer.status == row.status);
    CHECK(files == row.files);
    if (row.status != exit_status::done) return;
    CHECK(read_file(out) == stage.first);
    CHECK(again.status == exit_status::failed_awake); // it exists
    struct stat status = {};
    REQUIRE(::stat(out.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
}

TEST_CASE("gpu-snapshot: clean removes what ended processes have left in a directory") {
    const Stage stage; // whose owner lives
    using Kind = store::SnapshotName::Kind;
    std::set<std::string> left;
    const auto make = [&](std::uint64_t number, Kind kind, const std::string& boot) {
        const store::SnapshotName name{k_nobody, number, kind, boot};
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
    SECTION("but no single file, nothing that is not there, or by a link, or open to others") {
        const auto link = stage.elsewhere.path() / "link";
        std::filesystem::create_directory_symlink(directory, link);
        CHECK(run(clean + "/" + *left.begin()).status == exit_status::usage);
        CHECK(run(clean + "/none").status == exit_status::usage);
        CHECK(run("clean " + link.string()).status == exit_status::not_permitted);
        REQUIRE(::chmod(directory.c_str(), 0750) == 0);
        CHECK(run(clean).status == exit_status::not_permitted);
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("and fails where it may remove none") {
        nlohmann::json cleaned;
        if (!with_failing_calls({{SYS_unlinkat, EROFS, {}}}, [&] { cleaned = ask(clean); })) return;
        CHECK(cleaned["exit_status"] == exit_status::failed_awake);
        check_error(cleaned, "io_failed");
        CHECK_THAT(cleaned["error"]["message"].get<std::string>(), mentions("gpu-sleep-"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("and says which") {
        const auto looked = run(clean);
        for (const auto& name : left)
            check_says(looked, exit_status::done, "removed " + name + ": its process no longer uses it\n");
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

TEST_CASE("gpu-snapshot: a living sleeper of another pid namespace is asleep and stays") {
    const Stage stage; // whose pid and start time are nobody's in the new namespace
    MemoryContents contents("weights", stage.first);
    contents.description.owner = k_nobody;
    const auto theirs = written(stage.directory, contents, {});
    const auto file = theirs->file.path();
    const auto inside = [&](const std::string& arguments) {
        return "unshare --user --map-root-user --pid --fork --mount-proc " + command_file("gpu-snapshot") +
               " " + arguments;
    };
    if (run_command(inside("ls " + stage.elsewhere.path().string())).status != 0)
        return skip_without_right("make namespaces");
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

TEST_CASE("gpu-snapshot: where locks may be lost, what is of another pid namespace stays") {
    const Stage stage;
    store::SnapshotName name{k_nobody, 1, store::SnapshotName::Kind::sleeping, boot_id(), pid_namespace()};
    REQUIRE(name.pid_namespace != 0);
    const auto ended = stage.directory.path() / name.text();
    ++name.pid_namespace;
    const auto unseen = stage.directory.path() / name.text();
    MemoryContents contents("weights", stage.first);
    contents.description.owner = k_nobody;
    auto theirs = written(stage.directory, contents, {});
    for (const auto& file : {ended, unseen}) std::filesystem::copy_file(theirs->file.path(), file);
    nlohmann::json cleaned, looked;
    const auto body = [&] {
        cleaned = ask("clean " + stage.directory.path().string());
        looked = ask("ls " + stage.directory.path().string());
    };
    // As on a file system that nothing is known of.
    if (!with_failing_calls({{SYS_fstatfs, EIO, {}}}, body)) return;
    CHECK(cleaned["removed"] == nlohmann::json::array({ended.filename().string()}));
    REQUIRE(looked["snapshots"].size() == 3);
    for (const auto& each : looked["snapshots"])
        CHECK(each["state"] == (each["path"] == unseen.string() ? "of another pid namespace" : "asleep"));
    CHECK(std::filesystem::exists(unseen));
    CHECK(has(run("ls " + stage.directory.path().string()), "left over")); // the lock tells
}
