// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The shared count of device memory.

#include "support/simulated_driver/device_budget.hpp"

#include "support/simulated_driver/settings.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace gpu_sleep::sim {
namespace {

constexpr int k_max_processes = 256;
constexpr std::uint64_t k_magic = 0x31304D49535F5347; // "GS_SIM01"

/// Locks a robust mutex: if its last owner died, what it guards is plain sums, at worst one update behind.
class RobustLock {
public:
    explicit RobustLock(pthread_mutex_t& mutex) : mutex_(mutex) {
        if (::pthread_mutex_lock(&mutex_) == EOWNERDEAD) ::pthread_mutex_consistent(&mutex_);
    }
    ~RobustLock() { ::pthread_mutex_unlock(&mutex_); }
    RobustLock(const RobustLock&) = delete;
    RobustLock& operator=(const RobustLock&) = delete;

private:
    pthread_mutex_t& mutex_;
};

[[noreturn]] void give_up(const char* call) {
    std::perror(call);
    std::abort();
}

struct flock record_lock(short type, int slot) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = slot;
    lock.l_len = 1;
    return lock;
}

} // namespace

struct DeviceBudget::Shared {
    std::uint64_t magic;
    pthread_mutex_t mutex;
    int slots_used; ///< slots from here on were never claimed
    std::uint64_t used[k_max_processes][k_max_devices];
};

DeviceBudget& DeviceBudget::instance() {
    static DeviceBudget& budget = *new DeviceBudget;
    return budget;
}

DeviceBudget::DeviceBudget() {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (!settings().state_file.empty()) {
        file_ = ::open(settings().state_file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (file_ < 0 || ::flock(file_, LOCK_EX) != 0 || ::ftruncate(file_, sizeof(Shared)) != 0)
            give_up(settings().state_file.c_str());
        flags = MAP_SHARED;
    }
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, flags, file_, 0);
    if (memory == MAP_FAILED) give_up("simulated driver: mmap of the state");
    shared_ = static_cast<Shared*>(memory);
    if (shared_->magic != k_magic) {
        pthread_mutexattr_t attributes;
        ::pthread_mutexattr_init(&attributes);
        ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        ::pthread_mutex_init(&shared_->mutex, &attributes);
        ::pthread_mutexattr_destroy(&attributes);
        shared_->magic = k_magic;
    }
    claim_slot();
    if (file_ >= 0) ::flock(file_, LOCK_UN);
}

void DeviceBudget::claim_slot() {
    const RobustLock lock(shared_->mutex);
    for (slot_ = 0; file_ >= 0; ++slot_) {
        if (slot_ == k_max_processes) give_up("simulated driver: too many processes share the state");
        auto wanted = record_lock(F_WRLCK, slot_);
        if (::fcntl(file_, F_SETLK, &wanted) == 0) break;
    }
    for (auto& bytes : shared_->used[slot_]) bytes = 0;
    if (shared_->slots_used <= slot_) shared_->slots_used = slot_ + 1;
}

bool DeviceBudget::slot_is_locked_by_another(int slot) const {
    auto probe = record_lock(F_WRLCK, slot);
    return ::fcntl(file_, F_GETLK, &probe) == 0 && probe.l_type != F_UNLCK;
}

void DeviceBudget::sweep_dead_processes() {
    for (int slot = 0; slot < shared_->slots_used; ++slot) {
        if (slot == slot_ || file_ < 0 || slot_is_locked_by_another(slot)) continue;
        for (auto& bytes : shared_->used[slot]) bytes = 0;
    }
}

std::uint64_t DeviceBudget::used(int device) const {
    std::uint64_t sum = 0;
    for (int slot = 0; slot < shared_->slots_used; ++slot) sum += shared_->used[slot][device];
    return sum;
}

bool DeviceBudget::take(int device, std::uint64_t bytes) {
    const RobustLock lock(shared_->mutex);
    const auto fits = [&] {
        return bytes <= settings().memory_bytes && used(device) <= settings().memory_bytes - bytes;
    };
    if (!fits()) {
        sweep_dead_processes();
        if (!fits()) return false;
    }
    shared_->used[slot_][device] += bytes;
    return true;
}

void DeviceBudget::give_back(int device, std::uint64_t bytes) {
    const RobustLock lock(shared_->mutex);
    shared_->used[slot_][device] -= bytes;
}

std::uint64_t DeviceBudget::free_bytes(int device) {
    const RobustLock lock(shared_->mutex);
    sweep_dead_processes();
    const auto taken = used(device);
    return taken < settings().memory_bytes ? settings().memory_bytes - taken : 0;
}

} // namespace gpu_sleep::sim
