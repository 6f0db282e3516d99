// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Descriptors of the host program.

#include "host_descriptors.hpp"

#include "base/fd.hpp"

#include <ext/stdio_filebuf.h>

#include <atomic>
#include <ios>
#include <thread>
#include <vector>

namespace gpu_sleep::test {
namespace {

std::vector<int> g_usurped;
std::vector<UniqueFd> g_used;
std::atomic<std::uint64_t> g_muttered{0};

} // namespace

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

Answer check_usurped(Words&) {
    for (const int number : g_usurped) {
        struct stat status = {};
        if (::fstat(number, &status) != 0 || !S_ISCHR(status.st_mode)) return std::string("harmed");
    }
    return std::string("unharmed");
}

Answer use_descriptors(Words&) {
    for (;;) {
        UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!file) return std::to_string(g_used.size());
        g_used.push_back(std::move(file));
    }
}

Answer leave_descriptors(Words&) {
    g_used.clear();
    return std::string();
}

Answer close_standard(Words&) {
    using Stream = __gnu_cxx::stdio_filebuf<char>;
    // As long as the program runs.
    static Stream s_in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, k_first_own_number), std::ios::in);
    static Stream s_out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, k_first_own_number), std::ios::out);
    std::cin.rdbuf(&s_in);
    std::cout.rdbuf(&s_out);
    for (int number = 0; number < k_first_own_number; ++number) ::close(number);
    return std::string();
}

Answer start_muttering(Words&) {
    std::thread([] {
        for (;;)
            for (int number = 0; number < k_first_own_number; ++number)
                if (::write(number, "a warning\n", 10) >= 0 || errno != EBADF) ++g_muttered;
    }).detach();
    return std::string();
}

Answer count_muttered(Words&) {
    return std::to_string(g_muttered);
}

} // namespace gpu_sleep::test
