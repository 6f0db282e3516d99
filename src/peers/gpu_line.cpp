// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Record locks.

#include "peers/gpu_line.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <limits>
#include <optional>
#include <utility>

namespace gpu_sleep::peers {
namespace {

constexpr off_t k_lock = 0;
constexpr off_t k_first_place = 1;
constexpr auto k_holder = LockedFile::Holder::process;

/// Some lock of another process from `start` up to `end`.
std::optional<struct flock> find(const LockedFile& file, off_t start, off_t end) {
    return start < end ? file.find_lock(k_holder, start, end - start) : std::nullopt;
}

std::uint32_t count(const LockedFile& file, off_t start, off_t end) {
    constexpr std::uint32_t k_most = 10'000;
    std::uint32_t found = 0;
    // The kernel may name any of them: those before it are counted first.
    while (found < k_most) {
        const auto lock = find(file, start, end);
        if (!lock) return found;
        found += 1 + count(file, start, lock->l_start);
        start = lock->l_start + std::max<off_t>(lock->l_len, 1);
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
    auto file = LockedFile::open(directory, name);
    if (!file) return std::move(file).error();
    return GpuLine(*std::move(file), std::move(name));
}

bool GpuLine::is_in_place(int directory) const {
    return file_.is_held() && file_.is_named(directory, name_.c_str());
}

Result<void> GpuLine::stand() {
    constexpr int k_tries = 100; // somebody may have come in the same nanosecond
    if (stands()) return {};
    const auto time = now();
    for (int i = 0; i < k_tries; ++i) {
        const auto lock = file_.lock(k_holder, time + i, 1);
        if (lock == LockedFile::Lock::taken) {
            place_ = time + i;
            return {};
        }
        if (lock == LockedFile::Lock::failed) break;
    }
    return errno_error(ErrorCode::io_failed, errno, "fcntl", "cannot stand in line for a GPU");
}

std::uint32_t GpuLine::before() const {
    return count(file_, k_first_place, stands() ? place_ : std::numeric_limits<off_t>::max());
}

bool GpuLine::lock() {
    return file_.lock(k_holder, k_lock, 1) == LockedFile::Lock::taken;
}

void GpuLine::unlock() noexcept {
    if (file_.is_held()) file_.unlock(k_holder, k_lock, 1);
}

void GpuLine::leave() noexcept {
    const auto place = std::exchange(place_, 0);
    if (place != 0 && file_.is_held()) file_.unlock(k_holder, place, 1);
}

pid_t GpuLine::holder() const {
    const auto lock = file_.find_lock(k_holder, k_lock, 1);
    return lock ? lock->l_pid : 0;
}

} // namespace gpu_sleep::peers
