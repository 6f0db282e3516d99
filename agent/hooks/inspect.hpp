// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The addresses that a call names in its arguments: for a gate that lets work pass in part asleep.

#pragma once

#include "hooks/driver_table.hpp"

#include <tuple>

namespace gpu_sleep::hooks {

/// Adds the span that a pointer argument and a size make.
void add_span(gate::Named& named, CUdeviceptr address, std::size_t bytes);
/// Adds what a 2D or 3D copy reads and writes.
void add_copy(gate::Named& named, const CUDA_MEMCPY2D& copy);
void add_copy(gate::Named& named, const CUDA_MEMCPY3D& copy);
void add_copy(gate::Named& named, const CUDA_MEMCPY3D_BATCH_OP& copy);
/// Adds every word among a kernel's parameters that may be an address. Source: CUDA Driver API,
/// cuFuncGetParamInfo.
void add_kernel(gate::Named& named, CUfunction function, void** parameters, void** extra);
/// Adds what the graph's nodes name, as they were when it was instantiated or last changed; knows nothing of
/// an executable graph that it did not see made.
void add_graph(gate::Named& named, CUgraphExec graph);

/// Says what a call of `entry` names. The general case names nothing that is known.
template <Entry entry>
struct Names {
    static constexpr bool k_known = false;
    template <class... Arguments>
    static void add(gate::Named&, const Arguments&...) {}
};

// One address and its size, by the places of the two among the arguments.
template <std::size_t address, std::size_t bytes, std::size_t scale = 1>
struct NamesOne {
    static constexpr bool k_known = true;
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        const auto all = std::tie(arguments...);
        add_span(named, static_cast<CUdeviceptr>(std::get<address>(all)),
                 static_cast<std::size_t>(std::get<bytes>(all)) * scale);
    }
};

/// The same for a copy, which the driver makes whichever device's memory it is. Those between two contexts
/// that the call names (cuMemcpyPeer and its like) it was seen to make without any access granted.
template <std::size_t address, std::size_t bytes>
struct NamesCopied : NamesOne<address, bytes> {
    static constexpr bool k_copies = true;
};

struct NamesByte {
    static constexpr bool k_known = true;
    static void add(gate::Named& named, CUdeviceptr address) { add_span(named, address, 1); }
};

struct NamesTwo {
    static constexpr bool k_known = true;
    static constexpr bool k_copies = true;
    template <class... Rest>
    static void add(gate::Named& named, CUdeviceptr to, CUdeviceptr from, std::size_t bytes, const Rest&...) {
        add_span(named, to, bytes);
        add_span(named, from, bytes);
    }
};

struct NamesRows {
    static constexpr bool k_known = true;
    template <class Value, class... Rest>
    static void add(gate::Named& named, CUdeviceptr to, std::size_t pitch, Value, std::size_t width,
                    std::size_t height, const Rest&...) {
        const auto row = width * sizeof(Value);
        if (height != 0) add_span(named, to, height > 1 ? pitch * (height - 1) + row : row);
    }
};

struct NamesCopy {
    static constexpr bool k_known = true;
    static constexpr bool k_copies = true;
    template <class Copy, class... Rest>
    static void add(gate::Named& named, const Copy* copy, const Rest&...) {
        if (copy) add_copy(named, *copy);
    }
};

struct NamesBatch {
    static constexpr bool k_known = true;
    static constexpr bool k_copies = true;
    template <class... Rest>
    static void add(gate::Named& named, const CUdeviceptr* to, const CUdeviceptr* from,
                    const std::size_t* bytes, std::size_t count, const Rest&...) {
        if (!to || !from || !bytes) return;
        for (std::size_t i = 0; i < count; ++i) {
            add_span(named, to[i], bytes[i]);
            add_span(named, from[i], bytes[i]);
        }
    }
    template <class... Rest>
    static void add(gate::Named& named, std::size_t count, const CUDA_MEMCPY3D_BATCH_OP* copies,
                    const Rest&...) {
        if (!copies) return;
        for (std::size_t i = 0; i < count; ++i) add_copy(named, copies[i]);
    }
};

struct NamesKernel {
    static constexpr bool k_known = true;
    static void add(gate::Named& named, CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, unsigned, CUstream, void** parameters, void** extra = nullptr) {
        add_kernel(named, function, parameters, extra);
    }
    static void add(gate::Named& named, const CUlaunchConfig*, CUfunction function, void** parameters,
                    void** extra) {
        add_kernel(named, function, parameters, extra);
    }
};

struct NamesGraph {
    static constexpr bool k_known = true;
    static void add(gate::Named& named, CUgraphExec graph, CUstream) { add_graph(named, graph); }
};

#define GPU_SLEEP_NAMES(kind, ...)                                                                           \
    template <>                                                                                              \
    struct Names<Entry::__VA_ARGS__> : kind {};
// clang-format off
using NamesFilled = NamesOne<0, 2>;
using NamesWritten = NamesCopied<0, 2>;
using NamesRead = NamesCopied<1, 2>;
using NamesFilled16 = NamesOne<0, 2, 2>;
using NamesFilled32 = NamesOne<0, 2, 4>;
GPU_SLEEP_NAMES(NamesWritten, cuMemcpyHtoD_v2)
GPU_SLEEP_NAMES(NamesWritten, cuMemcpyHtoD_v2_ptds)
GPU_SLEEP_NAMES(NamesWritten, cuMemcpyHtoDAsync_v2)
GPU_SLEEP_NAMES(NamesWritten, cuMemcpyHtoDAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesRead, cuMemcpyDtoH_v2)
GPU_SLEEP_NAMES(NamesRead, cuMemcpyDtoH_v2_ptds)
GPU_SLEEP_NAMES(NamesRead, cuMemcpyDtoHAsync_v2)
GPU_SLEEP_NAMES(NamesRead, cuMemcpyDtoHAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyDtoD_v2)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyDtoD_v2_ptds)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyDtoDAsync_v2)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyDtoDAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpy)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpy_ptds)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyAsync)
GPU_SLEEP_NAMES(NamesTwo, cuMemcpyAsync_ptsz)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2D_v2)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2D_v2_ptds)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2DUnaligned_v2)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2DUnaligned_v2_ptds)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2DAsync_v2)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy2DAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy3D_v2)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy3D_v2_ptds)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy3DAsync_v2)
GPU_SLEEP_NAMES(NamesCopy, cuMemcpy3DAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpyBatchAsync)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpyBatchAsync_ptsz)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpyBatchAsync_v2)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpyBatchAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpy3DBatchAsync)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpy3DBatchAsync_ptsz)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpy3DBatchAsync_v2)
GPU_SLEEP_NAMES(NamesBatch, cuMemcpy3DBatchAsync_v2_ptsz)
GPU_SLEEP_NAMES(NamesFilled, cuMemsetD8_v2)
GPU_SLEEP_NAMES(NamesFilled, cuMemsetD8_v2_ptds)
GPU_SLEEP_NAMES(NamesFilled, cuMemsetD8Async)
GPU_SLEEP_NAMES(NamesFilled, cuMemsetD8Async_ptsz)
GPU_SLEEP_NAMES(NamesFilled16, cuMemsetD16_v2)
GPU_SLEEP_NAMES(NamesFilled16, cuMemsetD16_v2_ptds)
GPU_SLEEP_NAMES(NamesFilled16, cuMemsetD16Async)
GPU_SLEEP_NAMES(NamesFilled16, cuMemsetD16Async_ptsz)
GPU_SLEEP_NAMES(NamesFilled32, cuMemsetD32_v2)
GPU_SLEEP_NAMES(NamesFilled32, cuMemsetD32_v2_ptds)
GPU_SLEEP_NAMES(NamesFilled32, cuMemsetD32Async)
GPU_SLEEP_NAMES(NamesFilled32, cuMemsetD32Async_ptsz)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D8_v2)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D8_v2_ptds)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D8Async)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D8Async_ptsz)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D16_v2)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D16_v2_ptds)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D16Async)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D16Async_ptsz)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D32_v2)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D32_v2_ptds)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D32Async)
GPU_SLEEP_NAMES(NamesRows, cuMemsetD2D32Async_ptsz)
GPU_SLEEP_NAMES(NamesByte, cuIpcGetMemHandle)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchKernel)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchKernel_ptsz)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchCooperativeKernel)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchCooperativeKernel_ptsz)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchKernelEx)
GPU_SLEEP_NAMES(NamesKernel, cuLaunchKernelEx_ptsz)
GPU_SLEEP_NAMES(NamesGraph, cuGraphLaunch)
GPU_SLEEP_NAMES(NamesGraph, cuGraphLaunch_ptsz)
// clang-format on
#undef GPU_SLEEP_NAMES

template <Entry entry>
inline constexpr bool k_copies = requires {
    Names<entry>::k_copies;
};

/// The arguments of one call, looked at only when the gate asks.
template <Entry entry, class... Arguments>
class CallInspector final : public gate::Inspector {
public:
    explicit CallInspector(const Arguments&... arguments) noexcept : arguments_(arguments...) {}

    [[nodiscard]] gate::Named inspect() const override {
        gate::Named named;
        named.known = true;
        std::apply([&](const auto&... each) { Names<entry>::add(named, each...); }, arguments_);
        return named;
    }
    /// Null for a call of which nothing is known.
    [[nodiscard]] const gate::Inspector* if_known() const noexcept {
        return Names<entry>::k_known ? this : nullptr;
    }

private:
    std::tuple<const Arguments&...> arguments_;
};

} // namespace gpu_sleep::hooks
