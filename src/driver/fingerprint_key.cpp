// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Random keys, the one of this process, and the kernels, carried inside the library.

#include "driver/fingerprint_key.hpp"

#include "driver/kernels/image.hpp"

#include <atomic>
#include <cerrno>
#include <memory>
#include <new>

namespace gpu_sleep::driver {

Result<FingerprintKey> make_fingerprint_key(RandomSource source) {
    FingerprintKey key;
    auto rest = std::as_writable_bytes(std::span(&key, 1));
    while (!rest.empty()) {
        const auto got = source(rest.data(), rest.size(), 0);
        // A signal may cut short what is longer than 256 bytes.
        if (got > 0)
            rest = rest.subspan(static_cast<std::size_t>(got));
        else if (got == 0 || errno != EINTR)
            return errno_error(ErrorCode::io_failed, got == 0 ? EIO : errno, "getrandom",
                               "cannot make a key for fingerprints");
    }
    return key;
}

Result<const FingerprintKey*> process_fingerprint_key() {
    static std::atomic<const FingerprintKey*> of_process{nullptr};
    if (const auto* const key = of_process.load(std::memory_order_acquire)) return key;
    const auto made = GPU_SLEEP_TRY(make_fingerprint_key());
    std::unique_ptr<const FingerprintKey> mine(new (std::nothrow) FingerprintKey(made));
    if (!mine) return make_error(ErrorCode::out_of_host_memory, "cannot keep a key for fingerprints");
    const FingerprintKey* first = nullptr;
    if (!of_process.compare_exchange_strong(first, mine.get(), std::memory_order_acq_rel)) return first;
    return mine.release();
}

} // namespace gpu_sleep::driver

GPU_SLEEP_KERNEL_IMAGE(gpu_sleep_kernel_image, GPU_SLEEP_FATBIN);

namespace gpu_sleep::driver {

const void* kernel_image() noexcept {
    return gpu_sleep_kernel_image;
}

} // namespace gpu_sleep::driver
