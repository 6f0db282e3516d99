// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Opening files while the numbers of the standard streams are filled.

#include "base/fd.hpp"

#include "base/thread_safety.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <new>

namespace gpu_sleep {
namespace {

/// One for all threads: if one thread filled the numbers, another that found them filled needs them so until
/// it is done.
Mutex s_mutex;
int s_users GPU_SLEEP_GUARDED_BY(s_mutex) = 0;
std::array<bool, k_first_own_number> s_is_filled GPU_SLEEP_GUARDED_BY(s_mutex) = {};

/// Closes what fills them, unless the program has put a file of its own there, by dup2().
void empty_all() noexcept GPU_SLEEP_REQUIRES(s_mutex) {
    for (int number = 0; number < k_first_own_number; ++number) {
        if (!std::exchange(s_is_filled[static_cast<std::size_t>(number)], false)) continue;
        const int flags = ::fcntl(number, F_GETFL);
        if (flags >= 0 && (flags & O_PATH) != 0) ::close(number);
    }
}

} // namespace

StandardNumbers::StandardNumbers() noexcept {
    const MutexLock lock(s_mutex);
    ++s_users;
    for (int number = 0; number < k_first_own_number; ++number) {
        if (::fcntl(number, F_GETFD) >= 0) continue;
        auto& is_filled = s_is_filled[static_cast<std::size_t>(number)];
        is_filled = true; // before it is: a fork may come in between
        const int filling = ::open("/", O_PATH | O_CLOEXEC);
        if (filling == number) continue;
        is_filled = false;
        if (filling >= 0) ::close(filling); // the program has opened or closed another
    }
}

StandardNumbers::~StandardNumbers() {
    const int errno_before = errno;
    const MutexLock lock(s_mutex);
    s_users = std::max(s_users - 1, 0); // a child of fork by a signal's handler has begun anew
    if (s_users == 0) empty_all();
    errno = errno_before;
}

void StandardNumbers::leave_in_child() noexcept {
    new (&s_mutex) Mutex; // a thread of the parent may have it
    const MutexLock lock(s_mutex);
    s_users = 0;
    empty_all();
}

UniqueFd open_file(int directory, const char* path, int flags, mode_t mode) noexcept {
    return opened([&] { return ::openat(directory, path, flags, mode); });
}

} // namespace gpu_sleep
