// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What gpu-doctor reads of the kernel, on machines that are made of files; and asking in a child process.

#include "cli/doctor/diagnosis.hpp"

#include "support/catch.hpp"

#include <elf.h>
#include <link.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

namespace gpu_sleep::doctor {
namespace {

using cli::doctor::run_in_child;

/// The root directory of a machine.
class Root {
public:
    void write(const std::string& name, const std::string& text) const {
        const auto file = path() / name;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text;
    }
    [[nodiscard]] const std::filesystem::path& path() const { return scratch_.path(); }

private:
    test::Scratch scratch_;
};

/// A library with these names of symbols and versions.
std::string library(const std::string& names, const std::string& text = "") {
    ElfW(Ehdr) header{};
    ElfW(Shdr) sections[2]{};
    header.e_shoff = sizeof(header);
    header.e_shnum = 2;
    sections[0].sh_type = SHT_DYNSYM;
    sections[0].sh_link = 1;
    sections[1].sh_offset = sizeof(header) + sizeof(sections);
    sections[1].sh_size = names.size();
    const auto bytes = [](const auto& value) {
        return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
    };
    return bytes(header) + bytes(sections) + names + text;
}

bool has_children() {
    return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD;
}

} // namespace

TEST_CASE("Doctor: reads what an image has for a C library, and what the agent in it needs", "[doctor]") {
    const Root root;
    const std::string process = "proc/42/";
    root.write(process + "maps", "7f00-7f01 r-xp 0 fe:00 1   /opt/lib/libgpu-sleep-login.so\n"
                                 "7f02-7f03 r-xp 0 fe:00 2   /usr/lib/libc-2.31.so\n");
    CHECK(read_process(42, root.path()).c_library.has == 0); // nothing can be read there
    root.write(process + "root/usr/lib/libc-2.31.so",
               library(std::string("\0GLIBC_2.2.5\0GLIBC_2.31\0GLIBC_2.4", 34)));
    root.write(process + "root/opt/lib/libgpu-sleep-agent.so",
               library("GLIBC_2.35 GLIBC_2.34", "GLIBC_2.38"));
    const auto old = read_process(42, root.path()).c_library;
    CHECK_FALSE(old.is_musl);
    CHECK(old.has == 31);
    CHECK(old.agent_needs == 35);                          // and not what it says elsewhere
    for (const std::size_t size : {0, 63, 64, 127, 191}) { // cut short
        root.write(process + "root/usr/lib/libc-2.31.so", library("GLIBC_2.31").substr(0, size));
        CHECK(read_process(42, root.path()).c_library.has == 0);
    }
    CHECK(read_process(::getpid()).c_library.has > 30); // this process's own
    root.write(process + "maps", "7f00-7f01 r-xp 0 fe:00 1   /lib/ld-musl-x86_64.so.1\n");
    CHECK(read_process(42, root.path()).c_library.is_musl);
}

TEST_CASE("Doctor: whatever is in the C library's place, nothing outside of its root is opened", "[doctor]") {
    namespace fs = std::filesystem;
    const Root root;
    root.write("proc/42/maps", "7f02-7f03 r-xp 0 fe:00 2   /lib/libc.so.6\n");
    root.write("proc/42/root/kept", library("GLIBC_2.31"));
    root.write("outside", library("GLIBC_2.36"));
    const auto place = root.path() / "proc/42/root/lib/libc.so.6";
    fs::create_directory(place.parent_path());
    const auto found = [&] {
        const int has = read_process(42, root.path()).c_library.has;
        fs::remove(place);
        return has;
    };
    fs::create_symlink("/kept", place); // as the process sees it
    CHECK(found() == 31);
    fs::create_symlink(root.path() / "outside", place);
    CHECK(found() == 0);
    fs::create_symlink("../../../../outside", place);
    CHECK(found() == 0);
    REQUIRE(::mkfifo(place.c_str(), 0600) == 0);
    const UniqueFd reader(::open(place.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    const UniqueFd writer(::open(place.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(::write(writer.get(), "GLIBC_2.36", 10) == 10);
    CHECK(found() == 0);
    int left = 0;
    CHECK((::ioctl(reader.get(), FIONREAD, &left) == 0 && left == 10));
    std::ofstream(place) << library("GLIBC_2.36") << std::string(std::size_t{33} << 20, ' ');
    CHECK(found() == 0);
}

TEST_CASE("Doctor: reads a machine", "[doctor]") {
    const Root root;
    root.write("proc/driver/nvidia/version",
               "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release Build\n"
               "GCC version:  gcc version 12.2.0\n");
    root.write("dev/nvidiactl", "");
    root.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
    root.write("proc/self/status",
               "Name:\tgpu-doctor\nCapPrm:\t0000000000000000\nCapEff:\t0000000000080000\n");
    root.write("proc/sys/vm/max_map_count", "262144\n");
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    root.write("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\nHugePages_Total:     6\n"
                               "HugePages_Free:       5\nHugepagesize:       2048 kB\n");
    root.write("proc/self/cgroup", "0::/x\n");
    root.write("sys/fs/cgroup/x/memory.max", "409600\n");
    root.write("sys/fs/cgroup/x/memory.current", "204800\n");
    root.write("tmp/nvidia-mps/control", "");
    const auto facts = read_kernel(root.path());
    CHECK(facts.module_version == "580.159.03");
    CHECK(facts.control_device == KernelFacts::Access::granted);
    CHECK(facts.ptrace_scope == 1);
    CHECK(facts.may_trace);
    CHECK(facts.max_mappings == 262'144);
    CHECK(facts.huge_pages == "madvise");
    CHECK(facts.host_total == 1000 * k_kib);
    CHECK(facts.reserved_huge_pages == 10 * k_mib);
    CHECK(facts.headroom.bytes == 200 * k_kib);
    CHECK(facts.has_mps_daemon);
}

TEST_CASE("Doctor: a machine without a driver, and of which nothing can be read", "[doctor]") {
    const Root root;
    auto facts = read_kernel(root.path());
    CHECK_FALSE(facts.module_version);
    CHECK(facts.control_device == KernelFacts::Access::absent);
    CHECK_FALSE(facts.ptrace_scope);
    CHECK_FALSE(facts.may_trace);
    CHECK_FALSE(facts.max_mappings);
    CHECK(facts.huge_pages.empty());
    CHECK_FALSE(facts.has_mps_daemon);
    root.write("proc/driver/nvidia/version", "");
    root.write("proc/sys/kernel/yama/ptrace_scope", "x");
    root.write("proc/self/status", "CapEff:\tno number\n");
    root.write("sys/kernel/mm/transparent_hugepage/enabled", "]always[");
    facts = read_kernel(root.path());
    CHECK_FALSE(facts.module_version);
    CHECK_FALSE(facts.ptrace_scope);
    CHECK_FALSE(facts.may_trace);
    CHECK(facts.huge_pages.empty());
}

TEST_CASE("Doctor: a device that the user may not open", "[doctor]") {
    constexpr uid_t k_nobody = 65'534; // root may open all
    const Root root;
    root.write("dev/nvidiactl", "");
    REQUIRE(::chmod(root.path().c_str(), 0755) == 0);
    REQUIRE(::chmod((root.path() / "dev/nvidiactl").c_str(), 0) == 0);
    const auto access = run_in_child(Milliseconds(30'000), [&]() -> Result<std::string> {
        if (::geteuid() == 0 && ::setuid(k_nobody) != 0) return std::string("no other user");
        return std::to_string(static_cast<int>(read_kernel(root.path()).control_device));
    });
    REQUIRE(access);
    CHECK(*access == std::to_string(static_cast<int>(KernelFacts::Access::denied)));
}

TEST_CASE("Doctor: reads a process", "[doctor]") {
    const Root root;
    CHECK_FALSE(read_process(7, root.path()).mappings);
    root.write("proc/7/status", "Name:\tpython3\nState:\tT (stopped)\n");
    root.write("proc/7/maps", "1000-2000 r-xp 00000000 08:01 1   /usr/lib/libnvcuvid.so.1\n"
                              "2000-3000 rw-p 00000000 00:00 0\n");
    root.write("proc/7/cgroup", "0::/y\n");
    root.write("proc/meminfo", "MemAvailable:    600 kB\n");
    root.write("sys/fs/cgroup/y/memory.max", "1024\n");
    root.write("sys/fs/cgroup/y/memory.current", "0\n");
    auto facts = read_process(7, root.path());
    CHECK(facts.is_stopped);
    CHECK(facts.mappings == 2);
    REQUIRE(facts.unseen.size() == 1);
    CHECK(facts.unseen[0].name == "libnvcuvid.so.1");
    CHECK(facts.headroom.bytes == 1024);
    root.write("proc/7/status", "Name:\tpython3\nState:\tS (sleeping)\n");
    facts = read_process(7, root.path());
    CHECK_FALSE(facts.is_stopped);
}

TEST_CASE("Doctor: a child answers with a text or an error, of any length", "[doctor]") {
    constexpr Milliseconds k_long{30'000};
    const std::string text(1'000'000, 'x');
    const auto answer = run_in_child(k_long, [&]() -> Result<std::string> { return text; });
    REQUIRE(answer);
    CHECK(*answer == text);
    const auto failed = run_in_child(k_long, []() -> Result<std::string> {
        return Error{ErrorCode::no_driver, "two\nlines", "a call", 803};
    });
    CHECK(test::error_of(failed).code == ErrorCode::no_driver);
    CHECK(failed.error().message == "two\nlines");
    CHECK(failed.error().where == "a call");
    CHECK(failed.error().driver_status == 803);
    CHECK_FALSE(has_children());
}

TEST_CASE("Doctor: a child that hangs or crashes does neither to the command", "[doctor]") {
    const auto start = Clock::now();
    const auto hung = run_in_child(Milliseconds(100), []() -> Result<std::string> {
        for (;;) ::pause();
    });
    CHECK(test::error_of(hung).code == ErrorCode::timed_out);
    CHECK(seconds_since(start) < 10);
    const auto crashed = run_in_child(Milliseconds(30'000), []() -> Result<std::string> {
        ::raise(SIGKILL);
        return std::string();
    });
    CHECK(test::error_of(crashed).code == ErrorCode::driver_failed);
    CHECK_THAT(crashed.error().message, test::mentions("Killed"));
    CHECK_FALSE(has_children());
}

} // namespace gpu_sleep::doctor
