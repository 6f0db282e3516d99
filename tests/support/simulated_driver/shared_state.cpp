// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The table of the processes that share the devices.

#include "support/simulated_driver/shared_state.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>

namespace gpu_sleep::sim {
namespace {

constexpr int k_max_processes = 256;
constexpr std::uint64_t k_magic = 0x35304D49535F5347; // "GS_SIM05"

[[noreturn]] void give_up(const char* call) {
    std::perror(call);
    std::abort();
}

struct flock record_lock(short type, std::ptrdiff_t place) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = place;
    lock.l_len = 1;
    return lock;
}

} // namespace

struct SharedState::Table {
    std::uint64_t magic;
    pthread_mutex_t mutex;
    std::atomic<int> taken; ///< places from here on were never taken
    std::atomic<bool> shares_memory;
    SharedProcess processes[k_max_processes];
};

CUuuid uuid_of(int gpu) noexcept {
    CUuuid uuid{};
    std::memcpy(uuid.bytes, "gpu-sleep-sim--", sizeof uuid.bytes);
    // Another for each machine that several processes share.
    const auto machine = std::hash<std::string>()(settings().state_file);
    if (!settings().state_file.empty()) std::memcpy(uuid.bytes + 4, &machine, 6);
    uuid.bytes[sizeof uuid.bytes - 1] = static_cast<char>(gpu);
    return uuid;
}

SharedState& SharedState::instance() {
    static SharedState& state = *new SharedState;
    return state;
}

SharedState::SharedState() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (!settings().state_file.empty()) {
        file_ = ::open(settings().state_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file_ < 0 || ::flock(file_, LOCK_EX) != 0 || ::ftruncate(file_, sizeof(Table)) != 0)
            give_up(settings().state_file.c_str());
        flags = MAP_SHARED;
    }
    void* memory = ::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, flags, file_, 0);
    if (memory == MAP_FAILED) give_up("simulated driver: mmap of the state");
    table_ = static_cast<Table*>(memory);
    if (table_->magic != k_magic) {
        pthread_mutexattr_t attributes;
        ::pthread_mutexattr_init(&attributes);
        ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        ::pthread_mutex_init(&table_->mutex, &attributes);
        ::pthread_mutexattr_destroy(&attributes);
        table_->magic = k_magic;
    }
    claim();
    if (file_ >= 0) ::flock(file_, LOCK_UN);
}

// Others may look already; nobody else takes a place, for the file is locked.
void SharedState::claim() {
    for (own_ = 0; file_ >= 0; ++own_) {
        if (own_ == k_max_processes) give_up("simulated driver: too many processes share the state");
        auto wanted = record_lock(F_WRLCK, own_);
        if (::fcntl(file_, F_SETLK, &wanted) == 0) break;
    }
    auto& place = table_->processes[own_];
    place.pid = 0;
    std::iota(std::begin(place.gpus), std::end(place.gpus), 0);
    for (auto& bytes : place.used) bytes = 0;
    for (auto& bytes : place.put_away) bytes = 0;
    place.state = 0;
    place.lost = false;
    place.managed = 0;
    for (auto& count : place.standing) count = 0;
    for (auto& span : place.registered) span.end = 0;
    place.hidden = false;
    place.restored = false;
    place.cannot = settings().fails_checkpoints;
    place.calls = 0;
    place.work = 0;
    place.pid = ::getpid();
    if (table_->taken <= own_) table_->taken = own_ + 1;
}

SharedState::Lock::Lock() {
    auto& mutex = instance().table_->mutex;
    if (::pthread_mutex_lock(&mutex) == EOWNERDEAD) ::pthread_mutex_consistent(&mutex);
}

SharedState::Lock::~Lock() {
    ::pthread_mutex_unlock(&instance().table_->mutex);
}

SharedProcess& SharedState::own() noexcept {
    return table_->processes[own_];
}

std::atomic<bool>& SharedState::shares_memory() noexcept {
    return table_->shares_memory;
}

std::span<SharedProcess> SharedState::processes() noexcept {
    return {table_->processes, static_cast<std::size_t>(table_->taken.load())};
}

bool SharedState::is_alive(const SharedProcess& process) const {
    const auto place = &process - table_->processes;
    if (place == own_) return true;
    auto probe = record_lock(F_WRLCK, place);
    return file_ >= 0 && ::fcntl(file_, F_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
}

SharedProcess* SharedState::find(pid_t pid) {
    for (auto& process : processes())
        if (process.pid == pid && is_alive(process)) return &process;
    return nullptr;
}

} // namespace gpu_sleep::sim
