// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// For tests that are GPU programs themselves: linked to the agent and to libcuda, real or simulated, and put
// to sleep by the real commands. What fails, fails the test.

#pragma once

#include "gpu_sleep/gpu_sleep.h"
#include "support/catch.hpp"
#include "support/process.hpp"

#include <cuda.h>

namespace gpu_sleep::test {

inline void check(CUresult status) {
    const char* reason = "an unknown error";
    if (status != CUDA_SUCCESS) cuGetErrorString(status, &reason);
    INFO(reason);
    REQUIRE(status == CUDA_SUCCESS);
}

inline void check(gpu_sleep_status status) {
    INFO(gpu_sleep_last_error());
    REQUIRE(status == GPU_SLEEP_OK);
}

using Words = std::vector<std::uint32_t>;

/// Words that are never zero; the same for the same seed.
inline Words random_words(Bytes bytes, unsigned seed) {
    std::mt19937 random(seed);
    Words words(bytes / sizeof(std::uint32_t));
    for (auto& word : words) word = static_cast<std::uint32_t>(random()) | 1U;
    return words;
}

/// A device's primary context, retained, and current on this thread from enter() on.
class Gpu : NotCopied {
public:
    explicit Gpu(int device = 0) : device_(device) {
        check(cuInit(0));
        check(cuDevicePrimaryCtxRetain(&context_, device));
        enter();
    }
    ~Gpu() { cuDevicePrimaryCtxRelease(device_); }

    void enter() const { check(cuCtxSetCurrent(context_)); }
    [[nodiscard]] int device() const noexcept { return device_; }
    /// Free memory of the device. Makes its context current.
    [[nodiscard]] Bytes free_bytes() const {
        enter();
        std::size_t free = 0, total = 0;
        check(cuMemGetInfo(&free, &total));
        return free;
    }

private:
    int device_;
    CUcontext context_ = nullptr;
};

/// Memory of the agent under a tag, on device 0, that the test frees.
[[nodiscard]] inline void* allocate_tagged(const char* tag, Bytes bytes) {
    void* memory = nullptr;
    check(gpu_sleep_alloc(&memory, bytes, 0, tag));
    return memory;
}

/// Memory of the agent under a tag, freed when destroyed. Its copies need the context of any device that may
/// access it.
class TaggedMemory {
public:
    TaggedMemory(const char* tag, Bytes bytes, int device = 0) : bytes_(bytes) {
        check(gpu_sleep_alloc(&pointer_, bytes, device, tag));
    }
    TaggedMemory(TaggedMemory&& other) noexcept
        : pointer_(std::exchange(other.pointer_, nullptr)), bytes_(other.bytes_) {}
    TaggedMemory& operator=(TaggedMemory&&) = delete;
    ~TaggedMemory() { gpu_sleep_free(pointer_); }

    [[nodiscard]] void* pointer() const noexcept { return pointer_; }
    [[nodiscard]] CUdeviceptr address() const noexcept { return reinterpret_cast<CUdeviceptr>(pointer_); }
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

    void write(const Words& words) const { check(cuMemcpyHtoD(address(), words.data(), bytes_)); }
    [[nodiscard]] Words read() const {
        Words words(bytes_ / sizeof(std::uint32_t));
        check(cuMemcpyDtoH(words.data(), address(), bytes_));
        return words;
    }

private:
    void* pointer_ = nullptr;
    Bytes bytes_;
};

/// Runs a command of this build, such as "gpu-sleep", for this very process. Returns its exit status.
inline int command(std::string_view name, std::vector<std::string> arguments = {}) {
    constexpr Milliseconds k_for_tens_of_gigabytes{300'000};
    arguments.insert(arguments.begin(), {command_file(name), std::to_string(::getpid())});
    const auto done = run({std::move(arguments), {}, true, k_for_tens_of_gigabytes});
    UNSCOPED_INFO(done.out << done.err);
    return done.status;
}

} // namespace gpu_sleep::test
