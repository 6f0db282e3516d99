// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What pool_rules asks a driver with: a context with two streams that it can hold back, pools, and lines that
// are the same in every run. No project code, so that it also builds where only CUDA is.

#pragma once

#include "programs/checked.hpp"

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

namespace pool_rules {

inline constexpr std::size_t k_mib = std::size_t{1} << 20;
/// What the driver takes at a time: blocks of such sizes have the same figures however they are kept.
inline constexpr std::size_t k_chunk = 32 * k_mib;
inline constexpr std::uint64_t k_all = ~std::uint64_t{0};

/// Whether the bytes reserved are told as they are, or by what any keeper of blocks has to hold.
inline bool g_is_exact = false;

inline std::string in_words(CUresult status) {
    const char* name = nullptr;
    return cuGetErrorName(status, &name) == CUDA_SUCCESS ? name : "an unknown status";
}

inline std::string size(std::uint64_t bytes) {
    if (bytes == k_all) return "everything";
    if (bytes != 0 && bytes % k_mib == 0) return std::to_string(bytes / k_mib) + "M";
    return std::to_string(bytes);
}

inline const char* yes_or_no(bool is_so) {
    return is_so ? "yes" : "no";
}

/// Long enough for the driver to notice by itself, if it did.
inline void wait_a_little() {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// Words in pinned memory that streams wait for and write.
class Flags {
public:
    Flags() {
        void* memory = nullptr;
        CHECKED(cuMemHostAlloc(&memory, k_count * sizeof(std::uint32_t), CU_MEMHOSTALLOC_DEVICEMAP));
        words_ = static_cast<std::uint32_t*>(memory);
        CHECKED(cuMemHostGetDevicePointer(&device_, memory, 0));
        for (std::size_t i = 0; i < k_count; ++i) words_[i] = 0;
    }
    /// Holds the stream back until open().
    std::size_t hold(CUstream stream) {
        CHECKED(cuStreamWaitValue32(stream, at(next_), 1, CU_STREAM_WAIT_VALUE_EQ));
        return next_++;
    }
    void open(std::size_t flag) { __atomic_store_n(&words_[flag], 1, __ATOMIC_SEQ_CST); }
    /// Has the stream say when it gets there.
    std::size_t mark(CUstream stream) {
        CHECKED(cuStreamWriteValue32(stream, at(next_), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
        return next_++;
    }
    [[nodiscard]] bool is_there(std::size_t flag) const {
        return __atomic_load_n(&words_[flag], __ATOMIC_SEQ_CST) != 0;
    }
    /// Whether the stream gets there by itself; a busy machine may take its time over it.
    [[nodiscard]] bool gets_there(std::size_t flag) const {
        constexpr std::chrono::milliseconds k_patience{400};
        const auto end = std::chrono::steady_clock::now() + k_patience;
        while (!is_there(flag) && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        return is_there(flag);
    }
    /// Waits without a call of the driver.
    void await(std::size_t flag) const {
        while (!is_there(flag)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

private:
    static constexpr std::size_t k_count = 1 << 14;
    [[nodiscard]] CUdeviceptr at(std::size_t flag) const { return device_ + flag * sizeof(std::uint32_t); }

    std::uint32_t* words_ = nullptr;
    CUdeviceptr device_ = 0;
    std::size_t next_ = 0;
};

/// A pool, and what it says of itself.
class Pool {
public:
    explicit Pool(CUmemoryPool handle) : handle_(handle) {}
    static Pool make(std::size_t most_bytes = 0) {
        CUmemPoolProps properties{};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
        properties.maxSize = most_bytes;
        CUmemoryPool handle = nullptr;
        CHECKED(cuMemPoolCreate(&handle, &properties));
        return Pool(handle);
    }
    [[nodiscard]] CUmemoryPool handle() const { return handle_; }

    [[nodiscard]] std::uint64_t get(CUmemPool_attribute attribute) const {
        cuuint64_t value = 0;
        CHECKED(cuMemPoolGetAttribute(handle_, attribute, &value));
        return value;
    }
    void set(CUmemPool_attribute attribute, std::uint64_t value) const {
        cuuint64_t wide = value;
        CHECKED(cuMemPoolSetAttribute(handle_, attribute, &wide));
    }
    void keep(std::uint64_t bytes) const { set(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes); }
    void allow(CUmemPool_attribute reuse, bool is_allowed) const {
        int value = is_allowed ? 1 : 0;
        CHECKED(cuMemPoolSetAttribute(handle_, reuse, &value));
    }
    void trim(std::size_t keep) const { CHECKED(cuMemPoolTrimTo(handle_, keep)); }
    [[nodiscard]] std::uint64_t reserved() const { return get(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); }

    /// Null where there is no memory.
    [[nodiscard]] CUdeviceptr take(std::size_t bytes, CUstream stream) const {
        CUdeviceptr address = 0;
        const auto status = cuMemAllocFromPoolAsync(&address, bytes, handle_, stream);
        if (status != CUDA_SUCCESS) std::printf("  %s: %s\n", size(bytes).c_str(), in_words(status).c_str());
        return status == CUDA_SUCCESS ? address : 0;
    }
    [[nodiscard]] std::vector<CUdeviceptr> take_many(std::size_t count, std::size_t bytes,
                                                     CUstream stream) const {
        std::vector<CUdeviceptr> blocks;
        for (std::size_t i = 0; i < count; ++i) blocks.push_back(take(bytes, stream));
        return blocks;
    }
    void reset_highs() const {
        set(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
        set(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    }
    /// Back to having nothing. Everything is freed.
    void clear() const {
        CHECKED(cuCtxSynchronize());
        trim(0);
        reset_highs();
    }

    /// A line about all four figures. `is_exact`: blocks are whole chunks.
    void show(const std::string& situation, bool is_exact = false) const {
        const auto used = get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        const auto used_high = get(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
        const auto now = reserved();
        const auto high = get(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
        std::printf("  %s: used %s, at most %s; reserved ", situation.c_str(), size(used).c_str(),
                    size(used_high).c_str());
        if (g_is_exact || is_exact)
            std::printf("%s, at most %s\n", size(now).c_str(), size(high).c_str());
        else
            std::printf("%s, at most %s\n",
                        now < used ? "TOO LITTLE"
                        : now == 0 ? "nothing"
                                   : "enough",
                        high < now || high < used_high ? "TOO LITTLE" : "enough");
    }

private:
    CUmemoryPool handle_;
};

/// Everything that a question needs.
struct Probe {
    Probe() {
        CHECKED(cuInit(0));
        CHECKED(cuDeviceGet(&device, 0));
        CHECKED(cuDevicePrimaryCtxRetain(&context, device));
        CHECKED(cuCtxSetCurrent(context));
        CHECKED(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
        CHECKED(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
        flags = new Flags;
        CUmemoryPool handle = nullptr;
        CHECKED(cuDeviceGetDefaultMemPool(&handle, device));
        of_device = Pool(handle);
        own = Pool::make();
    }
    void free_in(CUstream stream, const std::vector<CUdeviceptr>& blocks) const {
        for (const auto block : blocks) CHECKED(cuMemFreeAsync(block, stream));
    }
    /// Waits until the stream got where it is now, without synchronising with it.
    void get_there(CUstream stream) const {
        flags->await(flags->mark(stream));
        wait_a_little();
    }

    CUdevice device = 0;
    CUcontext context = nullptr;
    CUstream a = nullptr;
    CUstream b = nullptr;
    Flags* flags = nullptr; ///< never destroyed
    Pool of_device{nullptr};
    Pool own{nullptr};
};

/// The questions of pool_reuse.cpp.
void ask_about_reuse(const Probe& probe);

inline void title(const std::string& text) {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
}

} // namespace pool_rules
