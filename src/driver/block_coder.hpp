// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The kernels that code blocks, in one context, and how they are launched.

#pragma once

#include "driver/api.hpp"
#include "driver/kernels/block_task.hpp"

#include <memory>

namespace gpu_sleep::driver {

enum class BlockWork : std::uint8_t { measure, encode, decode };

/// Where coded blocks are written or read.
enum class CodedSide : std::uint8_t {
    device,
    host, ///< page-locked memory: few multiprocessors fill the link, and the rest are left to others
};

/// Thread-safe.
class BlockCoder {
public:
    /// Source: CUDA Driver API, cuModuleLoadData. Errors: driver_failed, context_lost.
    [[nodiscard]] static Result<std::unique_ptr<BlockCoder>> load(const Api& api);
    BlockCoder(const BlockCoder&) = delete;
    BlockCoder& operator=(const BlockCoder&) = delete;
    /// Its work has to be done, and its context current.
    ~BlockCoder();
    /// Its module went with the context.
    void forget() noexcept { module_ = nullptr; }

    /// Queues the work on `stream`, of the context that load() found current, and returns. `tasks` lie in
    /// page-locked memory (MappedBuffer); they are the kernel's until the work is done, which then has set
    /// what BlockTask says. Errors: driver_failed, context_lost.
    [[nodiscard]] Result<void> run(BlockWork work, std::span<BlockTask> tasks, CodedSide side,
                                   CUstream stream) const;

private:
    explicit BlockCoder(const Api& api) noexcept : api_(api) {}

    const Api& api_;
    CUmodule module_ = nullptr;
    CUfunction kernels_[3] = {}; ///< by BlockWork
};

} // namespace gpu_sleep::driver
