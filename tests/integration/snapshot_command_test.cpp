// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The built command gpu-snapshot, on whole and on damaged snapshots.

#include "base/error.hpp"
#include "support/failing_call.hpp"
#include "support/man_page.hpp"
#include "support/process.hpp"
#include "support/skip.hpp"
#include "support/snapshots.hpp"

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

using namespace gpu_sleep;

namespace {

struct Answer {
    int status = -1;
    std::string output; ///< both streams
};

/// Through the shell.
Answer run_command(const std::string& command) {
    auto done = test::run({{"sh", "-c", command + " 2>&1"}});
    return {done.status, std::move(done.out)};
}

Answer run(const std::string& arguments) {
    return run_command(test::command_file("gpu-snapshot") + " " + arguments);
}

bool has(const Answer& answer, const std::string& text) {
    return answer.output.find(text) != std::string::npos;
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

struct Stage {
    Stage() {
        contents.add("weights", first);
        contents.add("kv_cache", second);
        contents.description.owner = {::getpid(), *own_start_time()};
        auto made = store::write_snapshot(test::opened(directory), contents.description, contents, {});
        REQUIRE(made);
        snapshot.emplace(*std::move(made));
        path = snapshot->file.path();
    }
    test::Scratch directory;
    test::Scratch elsewhere;
    test::ByteVector first = test::normal_bf16(3 * k_mib + 1);
    test::ByteVector second = test::random_bytes(77);
    test::MemoryContents contents;
    std::optional<store::Snapshot> snapshot;
    std::filesystem::path path;
};

} // namespace

TEST_CASE("gpu-snapshot ls: a file, a directory, for people and for programs", "[snapshot]") {
    const Stage stage;
    const auto one = run("ls " + stage.path.string());
    CHECK(one.status == exit_status::done);
    for (const auto* text : {"asleep", "weights", "kv_cache", "0x7f0000000000", "6.00 MiB", "77 B"})
        if (!has(one, text)) FAIL("no " << text << " in\n" << one.output);
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
    SECTION("another start") {
        name.owner.start_time = owner.start_time + 1;
    }
    SECTION("another machine") {
        name.boot.assign(32, 'a');
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

TEST_CASE("gpu-snapshot: looking at a directory removes what ended processes have left there", "[snapshot]") {
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
    const auto command = GENERATE(as<std::string>(), "ls ", "verify ");
    const auto directory = stage.directory.path().string();

    SECTION("unless it is only to be looked at") {
        const auto looked = run(command + directory + " --keep-leftovers");
        CHECK_FALSE(has(looked, "removed"));
        CHECK(has(looked, *left.begin()));
        CHECK_FALSE(ask(command + directory + " --keep-leftovers").contains("removed"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("or a single file is named") {
        CHECK_FALSE(has(run(command + directory + "/" + *left.begin()), "removed"));
        CHECK_FALSE(ask(command + directory + "/" + *left.begin()).contains("removed"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("or others can look into it, too") {
        REQUIRE(::chmod(directory.c_str(), 0750) == 0);
        const auto looked = run(command + directory);
        CHECK(looked.status == exit_status::done);
        CHECK_FALSE(has(looked, "removed"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("or it is reached by a link") {
        const auto link = stage.elsewhere.path() / "link";
        std::filesystem::create_directory_symlink(directory, link);
        CHECK_FALSE(has(run(command + link.string()), "removed"));
        CHECK(stage.directory.file_count() == 5);
    }
    SECTION("and says which") {
        const auto looked = run(command + directory);
        CHECK(looked.status == exit_status::done);
        for (const auto& name : left)
            CHECK(has(looked, "removed " + name + ": its process has let go of it\n"));
        CHECK_FALSE(has(looked, "removed " + kept));
        CHECK(has(looked, kept));
        CHECK(has(looked, stage.path.filename().string()));
        CHECK(stage.directory.file_count() == 2);
        CHECK(std::filesystem::exists(stage.path));
        CHECK_FALSE(has(run(command + directory), "removed"));
    }
    SECTION("and says which to programs") {
        const auto looked = ask(command + directory);
        CHECK(looked["exit_status"] == 0);
        CHECK(looked["removed"].get<std::set<std::string>>() == left);
        CHECK(looked["snapshots"].size() == 2);
        CHECK(ask(command + directory)["removed"] == nlohmann::json::array());
    }
}

TEST_CASE("gpu-snapshot: what a killed process left in a directory goes, what a living one has stays",
          "[snapshot]") {
    const Stage stage;
    const auto name = [&](const std::string& text) { return stage.directory.path() / text; };
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const auto child = ::fork();
    if (child == 0) {
        const auto directory = store::SnapshotDirectory::open(stage.directory.path());
        auto file = store::SnapshotFile::create(*directory, {::getpid(), *own_start_time()}, false);
        if (!file || !file->commit()) ::_exit(1);
        const auto text = file->name().text();
        if (::write(ready[1], text.data(), text.size()) > 0) ::pause();
        ::_exit(1);
    }
    char text[256];
    const auto bytes = ::read(ready[0], text, sizeof(text));
    REQUIRE(bytes > 0);
    const auto file = name({text, static_cast<std::size_t>(bytes)});
    CHECK(ask("ls " + stage.directory.path().string())["removed"].empty());
    CHECK(std::filesystem::exists(file));
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const auto looked = ask("ls " + stage.directory.path().string());
    CHECK(looked["removed"] == nlohmann::json::array({file.filename().string()}));
    CHECK(looked["exit_status"] == 0);
    CHECK_FALSE(std::filesystem::exists(file));
    CHECK(std::filesystem::exists(stage.path));
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST_CASE("gpu-snapshot: a living sleeper of another pid namespace is asleep and stays", "[snapshot]") {
    const Stage stage; // whose pid and start time are nobody's in the new namespace
    test::MemoryContents contents;
    contents.add("weights", stage.first);
    contents.description.owner = test::k_nobody;
    const auto theirs =
        store::write_snapshot(test::opened(stage.directory), contents.description, contents, {});
    REQUIRE(theirs);
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
    CHECK_FALSE(has(run_command(inside("ls " + stage.directory.path().string())), "removed"));
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
    test::MemoryContents contents;
    contents.add("weights", stage.first);
    contents.description.owner = test::k_nobody;
    auto theirs = store::write_snapshot(test::opened(stage.directory), contents.description, contents, {});
    REQUIRE(theirs);
    for (const auto& file : {ended, unseen}) std::filesystem::copy_file(theirs->file.path(), file);
    nlohmann::json looked;
    const auto body = [&] { looked = ask("ls " + stage.directory.path().string()); };
    // As on a file system that nothing is known of.
    if (!test::with_failing_calls({{SYS_fstatfs, EIO, {}}}, body))
        return test::skip_without_right("filter its system calls");
    CHECK(looked["removed"] == nlohmann::json::array({ended.filename().string()}));
    REQUIRE(looked["snapshots"].size() == 3);
    for (const auto& each : looked["snapshots"])
        CHECK(each["state"] == (each["path"] == unseen.string() ? "of another pid namespace" : "asleep"));
    CHECK(std::filesystem::exists(unseen));
    CHECK(has(run("ls --keep-leftovers " + stage.directory.path().string()), "left over")); // the lock tells
}

TEST_CASE("gpu-snapshot: JSON says how it went, as that of the other commands does", "[snapshot]") {
    const Stage stage;
    const auto command = GENERATE(as<std::string>(), "ls ", "verify ");
    const auto good = ask(command + stage.path.string());
    CHECK(good["exit_status"] == 0);
    CHECK_FALSE(good.contains("error"));
    CHECK(ask(command + stage.elsewhere.path().string())["snapshots"].empty());
    test::write_file(stage.path, test::random_bytes(10'000));
    const auto damaged = ask(command + stage.path.string());
    CHECK(damaged["exit_status"] == exit_status::damaged);
    check_error(damaged["snapshots"][0], "damaged");
    const auto wrong = ask(command + "--no-such-option");
    CHECK(wrong["exit_status"] == exit_status::usage);
    CHECK(wrong["snapshots"].empty());
    check_error(wrong, "invalid_argument");
}

TEST_CASE("gpu-snapshot verify: JSON says of each whether it is good", "[snapshot]") {
    const Stage stage;
    const auto good = ask("verify " + stage.directory.path().string());
    REQUIRE(good["snapshots"].size() == 1);
    CHECK(good["snapshots"][0]["good"] == true);
    CHECK(good["snapshots"][0]["content_bytes"] == stage.first.size() + stage.second.size());
    auto bytes = test::read_file(stage.path);
    bytes[bytes.size() / 2] ^= std::byte{1};
    test::write_file(stage.path, bytes);
    const auto damaged = ask("verify " + stage.directory.path().string());
    CHECK(damaged["exit_status"] == exit_status::damaged);
    const auto& one = damaged["snapshots"][0];
    CHECK(one["good"] == false);
    CHECK(one["state"] == "asleep"); // its header can be read
    check_error(one, "damaged");
    CHECK_FALSE(ask("ls " + stage.path.string())["snapshots"][0].contains("good"));
}

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

TEST_CASE("gpu-snapshot: the manual page names every member of the JSON, and no other", "[snapshot]") {
    const Stage stage;
    const auto out = stage.elsewhere.path() / "out";
    test::Members members;
    for (const auto& arguments :
         {"ls " + stage.directory.path().string(), "ls " + stage.path.string(),
          "verify " + stage.path.string(),
          "extract " + stage.path.string() + " --extent 0 -o " + out.string(), "ls " + out.string()})
        test::add_members(ask(arguments), "The object", members);
    for (const auto* common : {"schema", "program", "version", "exit_status", "snapshots", "error"})
        members["The object"].erase(common); // these are in gpu-ps(1), as "error" is
    members.erase("error");
    CHECK(test::documented_members(GPU_SLEEP_TEST_MANUALS "/gpu-snapshot.1") == members);
}

TEST_CASE("gpu-snapshot: a result that cannot be written is a failure", "[snapshot]") {
    const Stage stage;
    for (const std::string command : {"ls ", "ls --json ", "verify ", "verify --json "}) {
        const auto lost = run(command + stage.path.string() + " 2>&1 >/dev/full; exit");
        CHECK(lost.status == exit_status::failed_awake);
        CHECK(has(lost, "cannot write the result: No space left on device"));
    }
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
    CHECK(extract(1).status == exit_status::failed_awake); // it exists
    CHECK(test::read_file(out) == stage.first);
    std::filesystem::remove(out);
    CHECK(extract(1).status == exit_status::done);
    CHECK(test::read_file(out) == stage.second);
    std::filesystem::remove(out);
    CHECK(extract(2).status == exit_status::usage);
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
    constexpr std::uint32_t k_nameless = O_TMPFILE | O_RDWR | O_CLOEXEC;
    constexpr test::FailingCall k_no_nameless{SYS_openat, EOPNOTSUPP, k_nameless};
    SECTION("file systems where every file has a name: what cannot be named is not left") {
        Answer answer;
        const auto body = [&] { answer = run(arguments + out.string()); };
        if (!test::with_failing_calls({k_no_nameless, {SYS_renameat2, EIO, {}}}, body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status == exit_status::failed_awake);
        CHECK(stage.elsewhere.file_count() == 0);
    }
    SECTION("what cannot be flushed, or not be named, is not left") {
        const auto failing =
            GENERATE(test::FailingCall{SYS_fsync, EIO, {}}, test::FailingCall{SYS_linkat, EIO, {}},
                     test::FailingCall{SYS_write, ENOSPC, 4U << 20U});
        Answer answer;
        const auto body = [&] { answer = run(arguments + out.string()); };
        if (!test::with_failing_calls({failing}, body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status ==
              (failing.error == ENOSPC ? exit_status::no_host_memory : exit_status::failed_awake));
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
    SECTION("file systems that cannot rename without replacing") {
        Answer answer;
        const auto body = [&] { answer = run(arguments + out.string()); };
        if (!test::with_failing_calls({k_no_nameless, {SYS_renameat2, EINVAL, {}}}, body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status == exit_status::done);
        CHECK(test::read_file(out) == stage.first);
        CHECK(stage.elsewhere.file_count() == 1);
    }
    SECTION("file systems that have no links either") {
        Answer answer;
        Answer again;
        const auto body = [&] {
            answer = run(arguments + out.string());
            again = run(arguments + out.string());
        };
        const auto error = static_cast<std::uint32_t>(GENERATE(EPERM, EOPNOTSUPP));
        if (!test::with_failing_calls({k_no_nameless, {SYS_renameat2, EINVAL, {}}, {SYS_linkat, error, {}}},
                                      body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status == exit_status::done);
        CHECK(test::read_file(out) == stage.first);
        CHECK(again.status == exit_status::failed_awake); // it exists
        CHECK(stage.elsewhere.file_count() == 1);
        struct stat status = {};
        REQUIRE(::stat(out.c_str(), &status) == 0);
        CHECK((status.st_mode & 0777) == 0600);
    }
    SECTION("a file that has its name is there, though the other name stays") {
        Answer answer;
        const auto body = [&] { answer = run(arguments + out.string()); };
        if (!test::with_failing_calls({k_no_nameless, {SYS_renameat2, EINVAL, {}}, {SYS_unlinkat, EPERM, {}}},
                                      body))
            return test::skip_without_right("filter its system calls");
        CHECK(answer.status == exit_status::done);
        CHECK(test::read_file(out) == stage.first);
        CHECK(stage.elsewhere.file_count() == 2);
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

TEST_CASE("gpu-snapshot: wrong usage", "[snapshot]") {
    for (const auto* arguments : {"", "ls", "remove x", "extract x", "ls x y", "verify --quiet x"})
        CHECK(run(arguments).status == exit_status::usage);
    CHECK(run("--version").status == exit_status::done);
    const auto help = run("--help");
    CHECK(has(help, "verify"));
    CHECK(has(help, "1 failed,"));
    CHECK_FALSE(has(help, "asleep,")); // as the commands say that ask processes
}
