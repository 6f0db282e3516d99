// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Record locks.

#include "client/gpu_queue.hpp"

#include <ctime>

namespace gpu_sleep::client {
namespace {

constexpr off_t k_lock = 0;
constexpr off_t k_first_place = 1;
/// Behind all places: thirty-six years after the machine has started.
constexpr off_t k_counting = off_t{1} << 60;
constexpr off_t k_first_room = k_counting + 1;
/// From the room of one process to that of the next pid, in MiB.
constexpr off_t k_most_room = off_t{1} << 32;
constexpr off_t k_end_of_rooms = std::numeric_limits<off_t>::max();
constexpr auto k_holder = LockedFile::Holder::process;

/// Some lock of another process from `start` up to `end`.
std::optional<struct flock> find(const LockedFile& file, off_t start, off_t end) {
    return start < end ? file.find_lock(k_holder, start, end - start) : std::nullopt;
}

/// How many locks others have from `start` up to `end`, and of how many bytes.
struct Count {
    std::uint32_t locks = 0;
    off_t bytes = 0;
};

Count count(const LockedFile& file, off_t start, off_t end) {
    constexpr std::uint32_t k_most = 10'000;
    Count found;
    // The kernel may name any of them: those before it are counted first.
    while (found.locks < k_most) {
        const auto lock = find(file, start, end);
        if (!lock) return found;
        const auto before = count(file, start, lock->l_start);
        found.locks += 1 + before.locks;
        found.bytes += lock->l_len + before.bytes;
        start = lock->l_start + std::max<off_t>(lock->l_len, 1);
    }
    return found;
}

off_t start_of_own_room() noexcept {
    return k_first_room + ::getpid() * k_most_room;
}

off_t now() noexcept {
    timespec time = {};
    ::clock_gettime(CLOCK_BOOTTIME, &time);
    constexpr off_t k_nanoseconds = 1'000'000'000;
    return k_first_place + time.tv_sec * k_nanoseconds + time.tv_nsec;
}

} // namespace

GpuQueue::GpuQueue(LockedFile file, std::string_view uuid)
    : file_(std::move(file)), uuid_(uuid), name_(fmt::format("room-{}", uuid)) {}

Result<GpuQueue> GpuQueue::open(int directory, std::string_view uuid) {
    const bool is_name = !uuid.empty() && uuid.find('/') == std::string_view::npos;
    if (!is_name) return make_error(ErrorCode::io_failed, "a GPU without a UUID has no queue");
    auto file = GPU_SLEEP_TRY(LockedFile::open(directory, fmt::format("room-{}", uuid)));
    return GpuQueue(std::move(file), uuid);
}

bool GpuQueue::is_in_place(int directory) const {
    return file_.is_held() && file_.is_named(directory, name_.c_str());
}

Result<void> GpuQueue::stand() {
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
    return errno_error(ErrorCode::io_failed, errno, "fcntl", "cannot queue for a GPU");
}

std::uint32_t GpuQueue::before() const {
    return count(file_, k_first_place, stands() ? place_ : k_counting).locks;
}

bool GpuQueue::lock_as_needed() noexcept {
    if (!file_.is_held()) return false;
    switch (claim_.hold()) {
    case checkpoint::Hold::alone: return true; // by lock()
    case checkpoint::Hold::shared: return file_.share(k_holder, k_lock, 1) == LockedFile::Lock::taken;
    case checkpoint::Hold::none: file_.unlock(k_holder, k_lock, 1);
    }
    return true;
}

bool GpuQueue::lock() {
    if (!claim_.has_lock) claim_.has_lock = file_.lock(k_holder, k_lock, 1) == LockedFile::Lock::taken;
    return claim_.has_lock;
}

void GpuQueue::unlock() noexcept {
    claim_.has_lock = false;
    lock_as_needed();
}

std::optional<Bytes> GpuQueue::room_of_others() const {
    const auto others = count(file_, k_first_room, k_end_of_rooms);
    const auto bytes = static_cast<Bytes>(std::min(others.bytes, k_most_room)) * k_mib;
    return checkpoint::left_to_others(others.locks, bytes);
}

bool GpuQueue::set_aside(Bytes bytes) noexcept {
    const auto room = static_cast<off_t>(std::min<Bytes>(bytes / k_mib + 1, k_most_room));
    if (!file_.is_held()) return false;
    // A process of another pid namespace may have the same number.
    if (file_.lock(k_holder, start_of_own_room(), room) != LockedFile::Lock::taken) return false;
    claim_.room = static_cast<Bytes>(room) * k_mib;
    return true;
}

void GpuQueue::give_room_back() noexcept {
    const auto room = std::exchange(claim_.room, 0);
    if (room == 0 || !file_.is_held()) return;
    file_.unlock(k_holder, start_of_own_room(), static_cast<off_t>(room / k_mib));
    lock_as_needed();
}

void GpuQueue::leave() noexcept {
    const auto place = std::exchange(place_, 0);
    if (place != 0 && file_.is_held()) file_.unlock(k_holder, place, 1);
}

pid_t GpuQueue::holder() const {
    const auto lock = file_.find_lock(k_holder, k_lock, 1);
    return lock ? lock->l_pid : 0;
}

bool GpuQueue::is_shared() const {
    const auto lock = file_.find_lock(k_holder, k_lock, 1);
    return lock && lock->l_type == F_RDLCK;
}

std::optional<Bytes> GpuQueue::begin_counting() noexcept {
    if (!file_.is_held()) return std::nullopt;
    claim_.is_counting = file_.lock(k_holder, k_counting, 1) == LockedFile::Lock::taken;
    // The first byte before the look: who has it alone may be about to take memory.
    return claim_.is_counting && lock_as_needed() ? room_of_others() : std::nullopt;
}

void GpuQueue::end_counting() noexcept {
    const bool was_counting = std::exchange(claim_.is_counting, false);
    if (!was_counting || !file_.is_held()) return;
    file_.unlock(k_holder, k_counting, 1);
    lock_as_needed();
}

std::vector<GpuQueue> open_queues(int directory, const BytesByGpu& gpus) {
    std::vector<GpuQueue> lines;
    for (const auto& [uuid, bytes] : gpus)
        if (auto line = GpuQueue::open(directory, uuid)) lines.push_back(*std::move(line));
    return lines;
}

std::optional<BytesByGpu> begin_counting(const std::vector<GpuQueue*>& lines) {
    BytesByGpu of_others;
    for (const auto* line : lines) of_others[line->uuid_] = 0; // from here on nothing takes memory
    for (auto* const line : lines) {
        const auto room = line->begin_counting();
        if (room) {
            of_others.find(line->uuid_)->second = *room;
            continue;
        }
        for (auto* const each : lines) each->end_counting();
        return std::nullopt;
    }
    return of_others;
}

Result<bool> end_counting(const std::vector<GpuQueue*>& lines, const BytesByGpu& of_others,
                          const Result<BytesByGpu>& room) {
    const bool is_set = room && std::ranges::all_of(lines, [&](GpuQueue* line) {
                            const auto needed = room->find(line->uuid_);
                            return needed == room->end() || line->set_aside(needed->second);
                        });
    for (auto* const line : lines) {
        if (!is_set) line->give_room_back();
        line->end_counting();
    }
    return checkpoint::judge_count(room, is_set, of_others);
}

} // namespace gpu_sleep::client
