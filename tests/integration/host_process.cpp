// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Roots, mounts, users, filters of system calls, descriptors, and a pread() that comes before the C
// library's: the program's own definition is the one its libraries use.

#include "host_process.hpp"

#include "base/fd.hpp"

#include <ext/stdio_filebuf.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace {

std::atomic<std::uint64_t> g_microseconds{0};
std::atomic<std::uint64_t> g_good{UINT64_MAX};

bool is_good() noexcept {
    auto left = g_good.load();
    while (left != UINT64_MAX && left != 0 && !g_good.compare_exchange_weak(left, left - 1)) {
    }
    return left != 0;
}

} // namespace

extern "C" __attribute__((visibility("default"))) ssize_t pread(int fd, void* data, std::size_t bytes,
                                                                off_t offset) {
    if (const auto wait = g_microseconds.load(); wait != 0)
        std::this_thread::sleep_for(std::chrono::microseconds(wait));
    if (is_good()) return ::syscall(SYS_pread64, fd, data, bytes, offset);
    errno = EIO;
    return -1;
}

namespace gpu_sleep::test {
namespace {

std::vector<int> g_usurped;
std::vector<UniqueFd> g_used;
std::atomic<std::uint64_t> g_muttered{0};

Answer said(int status, const char* call) {
    if (status != 0) return errno_error(ErrorCode::io_failed, errno, call, "confinement");
    return {};
}

/// chroot DIRECTORY: of the whole process.
Answer change_root(Words& words) {
    const auto directory = next<std::string>(words);
    if (::chroot(directory.c_str()) != 0) return said(-1, "chroot");
    return said(::chdir("/"), "chdir");
}

/// own_tmp: the calling thread, which is the first, has an empty /tmp of its own.
Answer have_own_tmp(Words&) {
    if (::unshare(CLONE_NEWNS) != 0) return said(-1, "unshare");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return said(-1, "mount");
    return said(::mount("none", "/tmp", "tmpfs", 0, nullptr), "mount");
}

/// become USER GROUP: all threads, for good.
Answer become_user(Words& words) {
    const auto user = next<uid_t>(words);
    const auto group = next<gid_t>(words);
    if (::setgroups(0, nullptr) != 0 || ::setgid(group) != 0) return said(-1, "setgid");
    return said(::setuid(user), "setuid");
}

/// forbid CALL ERROR: the number of a system call fails with ERROR (a number of errno) from here on, on all
/// threads; with ERROR 0 it ends the process.
Answer forbid_call(Words& words) {
    const auto call = next<std::uint32_t>(words);
    const auto error = next<std::uint32_t>(words);
    const std::uint32_t verdict = error == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | error;
    std::array<sock_filter, 4> steps = {{
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call},
        {BPF_RET | BPF_K, 0, 0, verdict},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    }};
    const sock_fprog program{static_cast<unsigned short>(steps.size()), steps.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return said(-1, "prctl");
    const auto status = ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
    return said(static_cast<int>(status), "seccomp");
}

/// usurp_sockets: puts a file of the program's in the place of every socket, as one that closes all
/// descriptors may. The answer is how many there were.
Answer usurp_sockets(Words&) {
    g_usurped.clear();
    const int file = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int number = STDERR_FILENO + 1; number < 1024; ++number) {
        struct stat status = {};
        if (::fstat(number, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
        if (::dup2(file, number) == number) g_usurped.push_back(number);
    }
    return std::to_string(g_usurped.size());
}

/// usurped: whether those are all still there, "unharmed" or "harmed".
Answer check_usurped(Words&) {
    for (const int number : g_usurped) {
        struct stat status = {};
        if (::fstat(number, &status) != 0 || !S_ISCHR(status.st_mode)) return "harmed";
    }
    return "unharmed";
}

/// use_descriptors: until there are none left.
Answer use_descriptors(Words&) {
    for (;;) {
        UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!file) return std::to_string(g_used.size());
        g_used.push_back(std::move(file));
    }
}

/// leave_descriptors: gives those back.
Answer leave_descriptors(Words&) {
    g_used.clear();
    return {};
}

/// close_standard: 0, 1 and 2, as a daemon does. It is commanded by others from there on.
Answer close_standard(Words&) {
    using Stream = __gnu_cxx::stdio_filebuf<char>;
    // As long as the program runs.
    static Stream s_in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, k_first_own_number), std::ios::in);
    static Stream s_out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, k_first_own_number), std::ios::out);
    std::cin.rdbuf(&s_in);
    std::cout.rdbuf(&s_out);
    for (int number = 0; number < k_first_own_number; ++number) ::close(number);
    return {};
}

/// mutter: a thread writes to 0, 1 and 2 all the time from here on, as if they were open.
Answer start_muttering(Words&) {
    std::thread([] {
        for (;;)
            for (int number = 0; number < k_first_own_number; ++number)
                if (::write(number, "a warning\n", 10) >= 0 || errno != EBADF) ++g_muttered;
    }).detach();
    return {};
}

/// muttered: how much of that came to anything.
Answer count_muttered(Words&) {
    return std::to_string(g_muttered);
}

/// reads MICROSECONDS [GOOD]: each pread() of the process, the agent's among them, takes so much longer, and
/// all after the next GOOD ones fail with EIO, as on a disk that goes bad.
Answer spoil_reads(Words& words) {
    g_microseconds = next<std::uint64_t>(words);
    g_good = next(words, UINT64_MAX);
    return {};
}

} // namespace

void add_process_commands(Commands& commands) {
    commands.insert({{"chroot", change_root},
                     {"own_tmp", have_own_tmp},
                     {"become", become_user},
                     {"forbid", forbid_call},
                     {"usurp_sockets", usurp_sockets},
                     {"usurped", check_usurped},
                     {"use_descriptors", use_descriptors},
                     {"leave_descriptors", leave_descriptors},
                     {"close_standard", close_standard},
                     {"mutter", start_muttering},
                     {"muttered", count_muttered},
                     {"reads", spoil_reads}});
}

} // namespace gpu_sleep::test
