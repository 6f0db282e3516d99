// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which call names which addresses in its arguments: for a gate that lets work pass in part asleep, and for
// who passes it asleep.

#pragma once

#include "hooks/inspect.hpp"
#include "intercepted/virtual_memory.hpp"

#include <tuple>
#include <type_traits>

namespace gpu_sleep::hooks {

/// A copy, which the driver makes whichever device's memory it is. Those between two contexts that the call
/// names (cuMemcpyPeer and its like) it was seen to make without any access granted.
struct CopiedNames {
    static constexpr bool k_copies = true;
};

// One address and its size, by the places of the two among the arguments.
template <std::size_t address, std::size_t bytes, std::size_t scale = 1>
struct NamesOne {
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        const auto all = std::tie(arguments...);
        add_span(named, std::get<address>(all), static_cast<std::size_t>(std::get<bytes>(all)) * scale);
    }
};

// An address and whatever lies there, by its place.
template <std::size_t address>
struct NamesByte {
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        add_span(named, std::get<address>(std::tie(arguments...)), 1);
    }
};

// All that the given parts name.
template <class... Each>
struct NamesAll {
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        (Each::add(named, arguments...), ...);
    }
};

// Host memory too, for the driver takes any address on either side.
struct NamesTwo : CopiedNames, NamesAll<NamesOne<0, 2>, NamesOne<1, 2>> {};
using NamesPeers = NamesAll<NamesOne<0, 4>, NamesOne<2, 4>>;

struct NamesRows {
    template <class Value, class... Rest>
    static void add(gate::Named& named, CUdeviceptr to, std::size_t pitch, Value, std::size_t width,
                    std::size_t height, const Rest&...) {
        add_rows(named, to, pitch, width * sizeof(Value), height);
    }
};

struct NamesPeerCopy {
    template <class Copy, class... Rest>
    static void add(gate::Named& named, const Copy* copy, const Rest&...) {
        if (copy) add_copy(named, *copy);
    }
};

struct NamesCopy : CopiedNames, NamesPeerCopy {};

struct NamesBatch : CopiedNames {
    template <class... Rest>
    static void add(gate::Named& named, const CUdeviceptr* to, const CUdeviceptr* from,
                    const std::size_t* bytes, std::size_t count, const Rest&...) {
        if (!to || !from || !bytes) return;
        for (std::size_t i = 0; i < count; ++i) {
            add_span(named, to[i], bytes[i]);
            add_span(named, from[i], bytes[i]);
        }
    }
    template <class Copy, class... Rest>
    static void add(gate::Named& named, std::size_t count, const Copy* copies, const Rest&...) {
        if (!copies) return;
        for (std::size_t i = 0; i < count; ++i) add_copy(named, copies[i]);
    }
};

struct NamesList {
    template <class... Rest>
    static void add(gate::Named& named, const CUdeviceptr* addresses, const std::size_t* bytes,
                    std::size_t count, const Rest&...) {
        if (!addresses || !bytes) return;
        for (std::size_t i = 0; i < count; ++i) add_span(named, addresses[i], bytes[i]);
    }
};

struct NamesNumber {
    template <class Number>
    static void add(gate::Named& named, CUstream, CUdeviceptr address, Number, unsigned) {
        add_span(named, address, sizeof(Number));
    }
};

struct NamesOperations {
    static void add(gate::Named& named, CUstream, unsigned count, const CUstreamBatchMemOpParams* operations,
                    unsigned) {
        add_operations(named, operations, count);
    }
};

struct NamesDecompressed {
    template <class Operation, class... Rest>
    static void add(gate::Named& named, const Operation* operations, std::size_t count, const Rest&...) {
        for (std::size_t i = 0; operations && i < count; ++i) add_decompressed(named, operations[i]);
    }
};

struct NamesTexture {
    template <class... Rest>
    static void add(gate::Named& named, const CUtexObject*, const CUDA_RESOURCE_DESC* resource,
                    const Rest&...) {
        if (resource) add_resource(named, *resource);
    }
    static void add(gate::Named& named, CUtexref, const CUDA_ARRAY_DESCRIPTOR* rows, CUdeviceptr address,
                    std::size_t pitch) {
        if (rows) add_rows(named, address, pitch, pitch, rows->Height);
    }
};

struct NamesKernel {
    static CUstream stream_of(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, CUstream stream, void**, void** = nullptr) {
        return stream;
    }
    static CUstream stream_of(const CUlaunchConfig* config, CUfunction, void**, void**) {
        return config ? config->hStream : nullptr;
    }
    static void add(gate::Named& named, CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, unsigned, CUstream, void** parameters, void** extra = nullptr) {
        add_kernel(named, function, parameters, extra);
    }
    static void add(gate::Named& named, const CUlaunchConfig*, CUfunction function, void** parameters,
                    void** extra) {
        add_kernel(named, function, parameters, extra);
    }
};

struct NamesKernels {
    static void add(gate::Named& named, const CUDA_LAUNCH_PARAMS* launches, unsigned count, unsigned) {
        for (unsigned i = 0; launches && i < count; ++i)
            add_kernel(named, launches[i].function, launches[i].kernelParams, nullptr);
    }
};

struct NamesGraph {
    static void add(gate::Named& named, CUgraphExec graph, CUstream) { add_graph(named, graph); }
};

/// The memory that the driver looks at when it makes a graph executable: it must be there.
struct NamesInstantiated {
    template <class Executable, class... Rest>
    static void add(gate::Named& named, const Executable&, CUgraph graph, const Rest&...) {
        add_checked_nodes(named, graph);
    }
};

// The parameters of a graph's node, before it has run: of a new one, or of one that is changed.
struct NamesNode {
    template <class Parameters, class... Rest>
    static void add(gate::Named& named, CUgraphNode*, CUgraph, const CUgraphNode*, std::size_t,
                    const Parameters* parameters, const Rest&...) {
        add(named, nullptr, parameters);
    }
    template <class Parameters>
    static void add(gate::Named& named, CUgraphNode, const Parameters* parameters) {
        if (parameters) add_node(named, *parameters);
    }
};

struct NamesCopyNode : NamesNode {
    static constexpr bool k_copies = true;
};

// The program's own handles, by their place: nobody else may have their memory while it sleeps.
template <std::size_t handle>
struct NamesHandle {
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        intercepted::add_mappings_of(std::get<handle>(std::tie(arguments...)), named);
    }
};

using NamesMapped = NamesAll<NamesOne<0, 1>, NamesHandle<3>>;

struct NamesArrayMaps {
    static void add(gate::Named& named, const CUarrayMapInfo* maps, unsigned count, CUstream) {
        for (unsigned i = 0; maps && i < count; ++i)
            if (maps[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
                intercepted::add_mappings_of(maps[i].memHandle.memHandle, named);
    }
};

// Arrays do not sleep.
struct NamesNothing {
    template <class... Arguments>
    static void add(gate::Named&, const Arguments&...) {}
};

using NamesFilled = NamesOne<0, 2>;
using NamesFilled16 = NamesOne<0, 2, 2>;
using NamesFilled32 = NamesOne<0, 2, 4>;
using NamesFirst = NamesOne<0, 1>;
using NamesSecond = NamesOne<1, 2>;
using NamesThird = NamesOne<2, 3>;
using NamesFromArray = NamesOne<0, 3>;

/// Says what a call of the entry point names; void where nothing is known of that.
template <Entry entry>
struct NamesOf {
    using Type = void;
};
template <Entry entry>
using Names = typename NamesOf<entry>::Type;

#define GPU_SLEEP_NAMES(kind, name)                                                                          \
    template <>                                                                                              \
    struct NamesOf<Entry::name> {                                                                            \
        using Type = kind;                                                                                   \
    };
#define GPU_SLEEP_NAMES_PTDS(kind, name) GPU_SLEEP_NAMES(kind, name) GPU_SLEEP_NAMES(kind, name##_ptds)
#define GPU_SLEEP_NAMES_PTSZ(kind, name) GPU_SLEEP_NAMES(kind, name) GPU_SLEEP_NAMES(kind, name##_ptsz)
// clang-format off
GPU_SLEEP_NAMES(NamesFirst, cuMemAdvise)
GPU_SLEEP_NAMES(NamesFirst, cuMemAdvise_v2)
GPU_SLEEP_NAMES(NamesFirst, cuMemUnmap)
GPU_SLEEP_NAMES(NamesFirst, cuMemSetAccess)
GPU_SLEEP_NAMES(NamesKernels, cuLaunchCooperativeKernelMultiDevice)
GPU_SLEEP_NAMES(NamesInstantiated, cuGraphInstantiate)
GPU_SLEEP_NAMES(NamesInstantiated, cuGraphInstantiate_v2)
GPU_SLEEP_NAMES(NamesInstantiated, cuGraphInstantiateWithFlags)
GPU_SLEEP_NAMES(NamesInstantiated, cuGraphExecUpdate)
GPU_SLEEP_NAMES(NamesInstantiated, cuGraphExecUpdate_v2)
GPU_SLEEP_NAMES(NamesCopyNode, cuGraphAddMemcpyNode)
GPU_SLEEP_NAMES(NamesCopyNode, cuGraphMemcpyNodeSetParams)
GPU_SLEEP_NAMES(NamesNode, cuGraphAddMemsetNode)
GPU_SLEEP_NAMES(NamesNode, cuGraphMemsetNodeSetParams)
GPU_SLEEP_NAMES(NamesNode, cuGraphAddBatchMemOpNode)
GPU_SLEEP_NAMES(NamesNode, cuGraphBatchMemOpNodeSetParams)
GPU_SLEEP_NAMES(NamesTexture, cuTexObjectCreate)
GPU_SLEEP_NAMES(NamesTexture, cuTexRefSetAddress2D_v2)
GPU_SLEEP_NAMES(NamesTexture, cuTexRefSetAddress2D_v3)
GPU_SLEEP_NAMES(NamesThird, cuTexRefSetAddress_v2)
GPU_SLEEP_NAMES(NamesMapped, cuMemMap)
GPU_SLEEP_NAMES(NamesHandle<1>, cuMemExportToShareableHandle)
GPU_SLEEP_NAMES(NamesHandle<2>, cuMulticastBindMem)
GPU_SLEEP_NAMES(NamesByte<1>, cuIpcGetMemHandle)
GPU_SLEEP_NAMES(NamesByte<2>, cuPointerSetAttribute)
GPU_SLEEP_NAMES(NamesSecond, cuMemGetHandleForAddressRange)
GPU_SLEEP_NAMES(NamesThird, cuMulticastBindAddr)
GPU_SLEEP_NAMES_PTDS(NamesTwo, cuMemcpyHtoD_v2)
GPU_SLEEP_NAMES_PTDS(NamesTwo, cuMemcpyDtoH_v2)
GPU_SLEEP_NAMES_PTDS(NamesTwo, cuMemcpyDtoD_v2)
GPU_SLEEP_NAMES_PTDS(NamesTwo, cuMemcpy)
GPU_SLEEP_NAMES_PTDS(NamesPeers, cuMemcpyPeer)
GPU_SLEEP_NAMES_PTDS(NamesPeerCopy, cuMemcpy3DPeer)
GPU_SLEEP_NAMES_PTDS(NamesCopy, cuMemcpy2D_v2)
GPU_SLEEP_NAMES_PTDS(NamesCopy, cuMemcpy2DUnaligned_v2)
GPU_SLEEP_NAMES_PTDS(NamesCopy, cuMemcpy3D_v2)
GPU_SLEEP_NAMES_PTDS(NamesThird, cuMemcpyHtoA_v2)
GPU_SLEEP_NAMES_PTDS(NamesThird, cuMemcpyDtoA_v2)
GPU_SLEEP_NAMES_PTDS(NamesFromArray, cuMemcpyAtoH_v2)
GPU_SLEEP_NAMES_PTDS(NamesFromArray, cuMemcpyAtoD_v2)
GPU_SLEEP_NAMES_PTDS(NamesNothing, cuMemcpyAtoA_v2)
GPU_SLEEP_NAMES_PTDS(NamesFilled, cuMemsetD8_v2)
GPU_SLEEP_NAMES_PTDS(NamesFilled16, cuMemsetD16_v2)
GPU_SLEEP_NAMES_PTDS(NamesFilled32, cuMemsetD32_v2)
GPU_SLEEP_NAMES_PTDS(NamesRows, cuMemsetD2D8_v2)
GPU_SLEEP_NAMES_PTDS(NamesRows, cuMemsetD2D16_v2)
GPU_SLEEP_NAMES_PTDS(NamesRows, cuMemsetD2D32_v2)
GPU_SLEEP_NAMES_PTSZ(NamesTwo, cuMemcpyHtoDAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesTwo, cuMemcpyDtoHAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesTwo, cuMemcpyDtoDAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesTwo, cuMemcpyAsync)
GPU_SLEEP_NAMES_PTSZ(NamesPeers, cuMemcpyPeerAsync)
GPU_SLEEP_NAMES_PTSZ(NamesPeerCopy, cuMemcpy3DPeerAsync)
GPU_SLEEP_NAMES_PTSZ(NamesCopy, cuMemcpy2DAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesCopy, cuMemcpy3DAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesThird, cuMemcpyHtoAAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesFromArray, cuMemcpyAtoHAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesBatch, cuMemcpyBatchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesBatch, cuMemcpyBatchAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesBatch, cuMemcpy3DBatchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesBatch, cuMemcpy3DBatchAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesFilled, cuMemsetD8Async)
GPU_SLEEP_NAMES_PTSZ(NamesFilled16, cuMemsetD16Async)
GPU_SLEEP_NAMES_PTSZ(NamesFilled32, cuMemsetD32Async)
GPU_SLEEP_NAMES_PTSZ(NamesRows, cuMemsetD2D8Async)
GPU_SLEEP_NAMES_PTSZ(NamesRows, cuMemsetD2D16Async)
GPU_SLEEP_NAMES_PTSZ(NamesRows, cuMemsetD2D32Async)
GPU_SLEEP_NAMES_PTSZ(NamesFirst, cuMemPrefetchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesFirst, cuMemPrefetchAsync_v2)
GPU_SLEEP_NAMES_PTSZ(NamesList, cuMemPrefetchBatchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesList, cuMemDiscardBatchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesList, cuMemDiscardAndPrefetchBatchAsync)
GPU_SLEEP_NAMES_PTSZ(NamesDecompressed, cuMemBatchDecompressAsync)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWaitValue32)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWaitValue32_v2)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWaitValue64)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWaitValue64_v2)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWriteValue32)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWriteValue32_v2)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWriteValue64)
GPU_SLEEP_NAMES_PTSZ(NamesNumber, cuStreamWriteValue64_v2)
GPU_SLEEP_NAMES_PTSZ(NamesOperations, cuStreamBatchMemOp)
GPU_SLEEP_NAMES_PTSZ(NamesOperations, cuStreamBatchMemOp_v2)
GPU_SLEEP_NAMES_PTSZ(NamesKernel, cuLaunchKernel)
GPU_SLEEP_NAMES_PTSZ(NamesKernel, cuLaunchCooperativeKernel)
GPU_SLEEP_NAMES_PTSZ(NamesKernel, cuLaunchKernelEx)
GPU_SLEEP_NAMES_PTSZ(NamesGraph, cuGraphLaunch)
GPU_SLEEP_NAMES_PTSZ(NamesInstantiated, cuGraphInstantiateWithParams)
GPU_SLEEP_NAMES_PTSZ(NamesArrayMaps, cuMemMapArrayAsync)
// clang-format on
#undef GPU_SLEEP_NAMES_PTSZ
#undef GPU_SLEEP_NAMES_PTDS
#undef GPU_SLEEP_NAMES

template <Entry entry>
inline constexpr bool k_names_known = !std::is_void_v<Names<entry>>;

template <Entry entry>
inline constexpr bool k_copies = requires {
    Names<entry>::k_copies;
};

/// The arguments of one call, looked at only when the gate asks. `per_thread`: a null stream is the thread's
/// own.
template <class Names, bool per_thread, class... Arguments>
class CallInspector final : public gate::Inspector {
public:
    explicit CallInspector(const Arguments&... arguments) noexcept : arguments_(arguments...) {}

    [[nodiscard]] gate::Named inspect() const override {
        gate::Named named;
        named.known = true;
        std::apply([&](const auto&... each) { Names::add(named, each...); }, arguments_);
        return named;
    }
    /// Kernels alone: copies, fills and numbers in memory the driver looks at as soon as it has them.
    [[nodiscard]] bool records() const noexcept override {
        if constexpr (std::is_same_v<NamesKernel, Names>)
            return is_recorded(
                std::apply([](const auto&... each) { return Names::stream_of(each...); }, arguments_),
                per_thread);
        else
            return false;
    }

private:
    std::tuple<const Arguments&...> arguments_;
};

/// The inspector of a call with these arguments, which outlive it.
template <Entry entry, class... Arguments>
[[nodiscard]] auto inspector_of(const Arguments&... arguments) noexcept {
    constexpr bool k_null_is_own_stream = std::is_same_v<NamesKernel, Names<entry>> && k_per_thread<entry>;
    return CallInspector<Names<entry>, k_null_is_own_stream, Arguments...>(arguments...);
}

} // namespace gpu_sleep::hooks
