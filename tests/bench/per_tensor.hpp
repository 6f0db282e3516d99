// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A plain algorithm that sleeps and wakes tensor by tensor, to compare with: what allocators with a sleep
// mode do inside a server. Written for the benchmark; the CUDA driver API alone, nothing of gpu-sleep.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"

#include <cuda.h>

#include <vector>

namespace gpu_sleep::bench {

/// Tensors with memory of their own. To sleep, each in its turn is copied to page-locked host memory of its
/// own, unmapped and released; to wake, each is created, mapped and copied back. In the current context; one
/// thread at a time. Nothing is given back at the end: the end of the process does that.
class PerTensor {
public:
    /// Whether the contents are kept; if not, the tensor comes back with any.
    enum class Contents { kept, dropped };
    /// Whether the host memory is given back by waking, or stays for the next sleep.
    enum class HostMemory { given_back, retained };

    explicit PerTensor(HostMemory host) noexcept : host_(host) {}

    struct Tensor {
        CUdeviceptr address = 0;
        Bytes bytes = 0; ///< as requested
        Bytes size = 0;  ///< rounded up
        bool is_kept = true;
        CUmemGenericAllocationHandle handle = 0;
        void* host = nullptr;
    };

    /// Makes a tensor, and returns where it is: there it stays. Errors, as of all below: driver_failed.
    [[nodiscard]] Result<CUdeviceptr> add(Bytes bytes, Contents contents);
    [[nodiscard]] Result<void> sleep();
    [[nodiscard]] Result<void> wake();

    [[nodiscard]] const std::vector<Tensor>& tensors() const noexcept { return tensors_; }

private:
    HostMemory host_;
    std::vector<Tensor> tensors_;
};

/// Errors: driver_failed, with the name of `call`.
[[nodiscard]] Result<void> check(CUresult status, const char* call);

} // namespace gpu_sleep::bench
