// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Record locks.

#include "peers/gpu_line.hpp"

#include "base/agent_directory.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>
#include <utility>

namespace gpu_sleep::peers {
namespace {

constexpr off_t k_lock = 0;
constexpr off_t k_first_place = 1;

struct flock span_of(short type, off_t start, off_t bytes) {
    struct flock lock = {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = start;
    lock.l_len = bytes;
    return lock;
}

/// Returns an errno or 0.
int set(int file, short type, off_t byte) noexcept {
    const auto lock = span_of(type, byte, 1);
    while (::fcntl(file, F_SETLK, &lock) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

bool is_taken(int failure) noexcept {
    return failure == EAGAIN || failure == EACCES;
}

/// Some lock of another process from `start` up to `end`; F_UNLCK: there is none.
struct flock find(int file, off_t start, off_t end) {
    auto lock = span_of(F_WRLCK, start, end - start);
    if (start >= end || ::fcntl(file, F_GETLK, &lock) != 0) lock.l_type = F_UNLCK;
    return lock;
}

std::uint32_t count(int file, off_t start, off_t end) {
    constexpr std::uint32_t k_most = 10'000;
    std::uint32_t found = 0;
    // The kernel may name any of them: those before it are counted first.
    while (found < k_most) {
        const auto lock = find(file, start, end);
        if (lock.l_type == F_UNLCK) return found;
        found += 1 + count(file, start, lock.l_start);
        start = lock.l_start + std::max<off_t>(lock.l_len, 1);
    }
    return found;
}

off_t now() noexcept {
    timespec time = {};
    ::clock_gettime(CLOCK_BOOTTIME, &time);
    constexpr off_t k_nanoseconds = 1'000'000'000;
    return k_first_place + time.tv_sec * k_nanoseconds + time.tv_nsec;
}

} // namespace

Result<GpuLine> GpuLine::open(int directory, std::string_view uuid) {
    const bool is_name = !uuid.empty() && uuid.find('/') == std::string_view::npos;
    if (!is_name) return make_error(ErrorCode::io_failed, "a GPU without a UUID has no line");
    auto name = fmt::format("room-{}", uuid);
    auto file = open_private_file(directory, name);
    if (!file) return std::move(file).error();
    return GpuLine(*std::move(file), std::move(name));
}

bool GpuLine::is_in_place(int directory) const {
    struct stat status = {};
    struct stat its = {};
    return file_.is_held() && ::fstat(file_.get(), &its) == 0 &&
           ::fstatat(directory, name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
           status.st_dev == its.st_dev && status.st_ino == its.st_ino;
}

Result<void> GpuLine::stand() {
    constexpr int k_tries = 100; // somebody may have come in the same nanosecond
    if (stands()) return {};
    int failure = 0;
    const auto time = now();
    for (int i = 0; i < k_tries; ++i) {
        failure = set(file_.get(), F_WRLCK, time + i);
        if (failure == 0) {
            place_ = time + i;
            return {};
        }
        if (!is_taken(failure)) break;
    }
    return errno_error(ErrorCode::io_failed, failure, "fcntl", "cannot stand in line for a GPU");
}

std::uint32_t GpuLine::before() const {
    return count(file_.get(), k_first_place, stands() ? place_ : std::numeric_limits<off_t>::max());
}

bool GpuLine::lock() {
    return set(file_.get(), F_WRLCK, k_lock) == 0;
}

void GpuLine::unlock() noexcept {
    if (file_.is_held()) set(file_.get(), F_UNLCK, k_lock);
}

void GpuLine::leave() noexcept {
    const auto place = std::exchange(place_, 0);
    if (place != 0 && file_.is_held()) set(file_.get(), F_UNLCK, place);
}

pid_t GpuLine::holder() const {
    const auto lock = find(file_.get(), k_lock, k_lock + 1);
    return lock.l_type == F_UNLCK ? 0 : lock.l_pid;
}

} // namespace gpu_sleep::peers
