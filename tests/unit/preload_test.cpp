// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What LD_PRELOAD becomes, which file a command is, and which files the agent cannot be loaded into.

#include "cli/preload.hpp"
#include "support/catch.hpp"
#include "support/files_of.hpp"

#include <elf.h>
#include <sys/xattr.h>

using namespace gpu_sleep;
using namespace gpu_sleep::cli;
using namespace gpu_sleep::test;

namespace {

namespace fs = std::filesystem;

constexpr const char* k_some_program = "/bin/true";

void write(const std::string& file, const std::string& content, mode_t mode = 0755) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
    REQUIRE(::chmod(file.c_str(), mode) == 0);
}

/// A program whose ELF header, and segments, `change` has changed.
using Change = std::function<void(Elf64_Ehdr&, Elf64_Phdr&)>;
void write_changed(const std::string& file, const Change& change) {
    auto bytes = content_of(k_some_program);
    Elf64_Ehdr header{};
    std::memcpy(&header, bytes.data(), sizeof(header));
    for (std::size_t i = 0; i < header.e_phnum; ++i) {
        Elf64_Phdr segment{};
        auto* place = bytes.data() + header.e_phoff + i * sizeof(segment);
        std::memcpy(&segment, place, sizeof(segment));
        change(header, segment);
        std::memcpy(place, &segment, sizeof(segment));
    }
    std::memcpy(bytes.data(), &header, sizeof(header));
    write(file, bytes);
}

int status_of(const std::string& file) {
    const auto refusal = check_preloadable(file);
    return refusal ? refusal->exit_status : 0;
}

std::string message_of(const std::string& file) {
    const auto refusal = check_preloadable(file);
    return refusal ? refusal->message : "none";
}

std::string found(const std::string& name, const std::string& path) {
    const auto program = find_program(name, path);
    if (const auto* refusal = std::get_if<Refusal>(&program)) return std::to_string(refusal->exit_status);
    return std::get<std::string>(program);
}

} // namespace

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
        const auto refused = test::error_of(make(bad));
        CHECK(refused.code == ErrorCode::invalid_argument);
        CHECK_THAT(refused.message, test::mentions("in its path"));
    }
    std::filesystem::remove(root / "plain/lib/libgpu-sleep-agent.so");
    CHECK(find_library(root / "plain/bin", k_agent_library).error().code == ErrorCode::io_failed);
    CHECK(find_library("/nonexistent/bin", k_agent_library).error().code == ErrorCode::io_failed);
}

TEST_CASE("Program file: it is found as a shell finds it", "[program_file]") {
    const Scratch scratch;
    for (const auto* directory : {"a", "b"}) fs::create_directory(scratch.path() / directory);
    write(scratch.file("a/tool"), "x", 0644);
    write(scratch.file("a/other"), "x", 0644);
    write(scratch.file("b/tool"), "x");
    fs::create_directory(scratch.path() / "a/dir");
    const auto path = "/nonexistent:" + scratch.file("a") + ":" + scratch.file("b");
    CHECK(found("tool", path) == scratch.file("b/tool"));
    CHECK(found("other", path) == "126");
    CHECK(found("dir", path) == "127");
    CHECK(found("nothing", path) == "127");
    CHECK(found("", path) == "127");
    CHECK(found(scratch.file("b/tool"), "") == scratch.file("b/tool"));
    CHECK(found(scratch.file("a/tool"), "") == "126");
    CHECK(found(scratch.file("a"), "") == "126");
    CHECK(found(scratch.file("a/tool/x"), "") == "127");
    CHECK(found(scratch.file("c/tool"), "") == "127");
}

TEST_CASE("Program file: an ordinary program takes the agent", "[program_file]") {
    CHECK(message_of(k_some_program) == "none");
    CHECK(message_of("/proc/self/exe") == "none");
}

TEST_CASE("Program file: a script takes the agent if its interpreter does", "[program_file]") {
    const Scratch scratch;
    const auto script = scratch.file("script");
    write(script, "#! /bin/sh -e\nexit 0\n");
    CHECK(message_of(script) == "none");
    write(script, "exit 0\n"); // run by the shell
    CHECK(message_of(script) == "none");
    write(scratch.file("outer"), "#!" + script);
    CHECK(message_of(scratch.file("outer")) == "none");
    write(script, "#!/nonexistent/sh\n");
    CHECK(status_of(script) == 127);
    CHECK_THAT(message_of(scratch.file("outer")), mentions("/nonexistent/sh"));
    write(script, "#!\n");
    CHECK(status_of(script) == 126);
    write(script, "#!" + script + "\n");
    CHECK(status_of(script) == 126);
    const auto bare = scratch.file("bare");
    write_changed(bare, [](Elf64_Ehdr&, Elf64_Phdr& segment) {
        if (segment.p_type == PT_INTERP) segment.p_type = PT_NULL;
    });
    write(script, "#!" + bare + "\n");
    CHECK(status_of(script) == 2);
}

TEST_CASE("Program file: what the loader cannot load the agent into is refused", "[program_file]") {
    const Scratch scratch;
    const auto file = scratch.file("program");
    const auto message_after = [&](const Change& change) {
        write_changed(file, change);
        CHECK(status_of(file) == 2);
        return message_of(file);
    };
    CHECK_THAT(message_after([](Elf64_Ehdr&, Elf64_Phdr& segment) {
                   if (segment.p_type == PT_INTERP) segment.p_type = PT_NULL;
               }),
               mentions("statically linked"));
    CHECK_THAT(message_after([](Elf64_Ehdr& header, Elf64_Phdr&) { header.e_ident[EI_CLASS] = ELFCLASS32; }),
               mentions("32-bit"));
    CHECK_THAT(message_after([](Elf64_Ehdr& header, Elf64_Phdr&) { header.e_machine = EM_S390; }),
               mentions("another machine"));
    write(file, "\177ELF\2");
    CHECK(status_of(file) == 126);
}

TEST_CASE("Program file: one with privileges is refused, as it would ignore the agent", "[program_file]") {
    const Scratch scratch;
    const auto file = scratch.file("program");
    write(file, content_of(k_some_program), 04755);
    CHECK(status_of(file) == 2);
    CHECK_THAT(message_of(file), mentions("set-user-id"));
    write(file, content_of(k_some_program), 02755);
    CHECK_THAT(message_of(file), mentions("set-group-id"));
    write(file, content_of(k_some_program), 02745); // without execution for the group it means something else
    CHECK(message_of(file) == "none");
    // cap_net_raw, effective and permitted. Source: linux/capability.h, VFS_CAP_REVISION_2.
    constexpr std::array<std::uint32_t, 5> k_net_raw{0x02000001, 1U << 13, 0, 0, 0};
    write(file, content_of(k_some_program));
    if (::setxattr(file.c_str(), "security.capability", k_net_raw.data(), sizeof(k_net_raw), 0) == 0)
        CHECK_THAT(message_of(file), mentions("file capabilities"));
}
