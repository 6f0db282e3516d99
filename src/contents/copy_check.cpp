// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Fingerprints on several threads.

#include "contents/copy_check.hpp"

#include "driver/fingerprint_key.hpp"

namespace gpu_sleep::contents {

bool is_as_sealed(const driver::FingerprintKey& key, const std::byte* memory, Bytes bytes,
                  const driver::Fingerprint& seal) noexcept {
    const driver::FingerprintBlock block{reinterpret_cast<std::uintptr_t>(memory), bytes};
    driver::Fingerprint found;
    driver::fingerprint_on_host(key, &block, &found, 1);
    return found == seal;
}

Result<std::unique_ptr<CopyCheck>> CopyCheck::start(std::vector<Copy> copies, unsigned threads) {
    constexpr std::size_t k_at_once = 32; // 3 ms
    const auto key = GPU_SLEEP_TRY(driver::process_fingerprint_key());
    std::unique_ptr<CopyCheck> check(new CopyCheck(std::move(copies), *key));
    const auto count = check->copies_.size();
    if (count == 0) return check;
    const auto useful = std::min<std::size_t>({threads, std::thread::hardware_concurrency(), count});
    check->threads_ = GPU_SLEEP_TRY(
        ThreadPool::start("gpu-sleep-check", static_cast<unsigned>(std::max<std::size_t>(1, useful))));
    for (std::size_t first = 0; first < count; first += k_at_once)
        check->threads_->post([raw = check.get(), first, some = std::min(k_at_once, count - first)](
                                  std::size_t) { raw->check(first, some); });
    return check;
}

void CopyCheck::check(std::size_t first, std::size_t count) noexcept {
    auto done = guarded([&] {
        std::vector<std::byte> buffer;
        for (auto i = first; i < first + count && !is_ended_; ++i) {
            const auto& copy = copies_[i];
            const auto* const memory = read_block(copy.place, copy.device.bytes, buffer);
            if (memory && is_as_sealed(key_, memory, copy.device.bytes, copy.seal)) continue;
            const MutexLock lock(mutex_);
            damaged_.push_back(copy);
        }
    });
    if (!done) failure_.note(std::move(done).error());
    const MutexLock lock(mutex_);
    checked_ += count;
    changed_.notify_all();
}

Result<std::vector<CopyCheck::Copy>> CopyCheck::finish(const std::function<Result<void>()>& listen) {
    constexpr Milliseconds k_between{100};
    MutexLock lock(mutex_);
    const auto is_over = [this]() GPU_SLEEP_REQUIRES(mutex_) { return checked_ == copies_.size(); };
    while (!changed_.wait_for(mutex_, k_between, is_over)) {
        lock.unlock();
        GPU_SLEEP_TRY(listen());
        lock.lock();
    }
    GPU_SLEEP_TRY(failure_.result());
    return std::exchange(damaged_, {});
}

} // namespace gpu_sleep::contents
