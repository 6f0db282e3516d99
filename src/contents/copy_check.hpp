// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Comparing copies in host memory with their seals, on the processors. Internal to this module.

#pragma once

#include "contents/transfer.hpp"

namespace gpu_sleep::contents {

/// Whether a block at `memory` in host memory is what its seal says. Thread-safe.
[[nodiscard]] bool is_as_sealed(const driver::FingerprintKey& key, const std::byte* memory, Bytes bytes,
                                const driver::Fingerprint& seal) noexcept;

/// Takes the fingerprints of copies on threads of its own, while other work goes on.
class CopyCheck {
public:
    using Copy = SealedMove;

    /// Begins. Nobody writes to `copies`, which are in host memory and within reach, until finish() has
    /// returned. Errors: out_of_threads, io_failed (no key).
    [[nodiscard]] static Result<std::unique_ptr<CopyCheck>> start(std::vector<Copy> copies, unsigned threads);
    CopyCheck(const CopyCheck&) = delete;
    CopyCheck& operator=(const CopyCheck&) = delete;
    /// Does not wait for what is not yet begun.
    ~CopyCheck() { is_ended_ = true; }

    /// Waits; calls `listen` now and then meanwhile. Returns the copies that are not what their seals say.
    /// Errors: out_of_host_memory, those of `listen`, which end the waiting.
    [[nodiscard]] Result<std::vector<Copy>> finish(const std::function<Result<void>()>& listen);

private:
    CopyCheck(std::vector<Copy> copies, const driver::FingerprintKey& key)
        : copies_(std::move(copies)), key_(key) {}
    /// Checks `count` copies from `first` on.
    void check(std::size_t first, std::size_t count) noexcept;

    const std::vector<Copy> copies_;
    const driver::FingerprintKey& key_;
    std::atomic<bool> is_ended_{false};
    Mutex mutex_;
    Condition changed_;
    std::size_t checked_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::vector<Copy> damaged_ GPU_SLEEP_GUARDED_BY(mutex_);
    FirstFailure failure_;
    std::unique_ptr<ThreadPool> threads_; ///< ended first
};

} // namespace gpu_sleep::contents
