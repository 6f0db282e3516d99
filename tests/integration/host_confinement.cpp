// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Roots, mounts, users, filters of system calls.

#include "host_confinement.hpp"

#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace gpu_sleep::test {
namespace {

Answer said(int status, const char* call) {
    if (status != 0) return errno_error(ErrorCode::io_failed, errno, call, "confinement");
    return std::string();
}

} // namespace

Answer change_root(Words& words) {
    const auto directory = next<std::string>(words);
    if (::chroot(directory.c_str()) != 0) return said(-1, "chroot");
    return said(::chdir("/"), "chdir");
}

Answer have_own_tmp(Words&) {
    if (::unshare(CLONE_NEWNS) != 0) return said(-1, "unshare");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return said(-1, "mount");
    return said(::mount("none", "/tmp", "tmpfs", 0, nullptr), "mount");
}

Answer become_user(Words& words) {
    const auto user = next<uid_t>(words);
    const auto group = next<gid_t>(words);
    if (::setgroups(0, nullptr) != 0 || ::setgid(group) != 0) return said(-1, "setgid");
    return said(::setuid(user), "setuid");
}

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

} // namespace gpu_sleep::test
