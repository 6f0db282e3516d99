// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which call names which addresses in its arguments: for a gate that lets work pass in part asleep, and for
// who passes it asleep.

#pragma once

#include "hooks/inspect.hpp"
#include "intercepted/virtual_memory.hpp"

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
};

// Each item of a list, by the places of the list and of how many there are.
template <std::size_t items, std::size_t count>
struct NamesEach {
    template <class... Arguments>
    static void add(gate::Named& named, const Arguments&... arguments) {
        const auto all = std::tie(arguments...);
        add_each(named, std::get<items>(all), std::get<count>(all));
    }
};

struct NamesCopies : CopiedNames, NamesEach<1, 0> {};

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

// Arrays do not sleep.
struct NamesNothing {
    template <class... Arguments>
    static void add(gate::Named&, const Arguments&...) {}
};

/// What the calls of an entry point name.
template <class Names, Entry entry>
struct CallNames {};
template <class Names, Entry... entries>
struct CallsName : CallNames<Names, entries>... {};

/// The table of that. The twin of an entry point, whose default stream is each thread's own, names the same.
namespace table {
using enum Entry;
struct Rows
    : CallsName<NamesOne<0, 1>, cuMemAdvise, cuMemAdvise_v2, cuMemUnmap, cuMemSetAccess, cuMemPrefetchAsync,
                cuMemPrefetchAsync_v2>,
      CallsName<NamesEach<0, 1>, cuMemMapArrayAsync, cuMemBatchDecompressAsync,
                cuLaunchCooperativeKernelMultiDevice>,
      CallsName<NamesInstantiated, cuGraphInstantiate, cuGraphInstantiate_v2, cuGraphInstantiateWithFlags,
                cuGraphExecUpdate, cuGraphExecUpdate_v2, cuGraphInstantiateWithParams>,
      CallsName<NamesCopyNode, cuGraphAddMemcpyNode, cuGraphMemcpyNodeSetParams>,
      CallsName<NamesNode, cuGraphAddMemsetNode, cuGraphMemsetNodeSetParams, cuGraphAddBatchMemOpNode,
                cuGraphBatchMemOpNodeSetParams>,
      CallsName<NamesTexture, cuTexObjectCreate, cuTexRefSetAddress2D_v2, cuTexRefSetAddress2D_v3>,
      CallsName<NamesOne<2, 3>, cuTexRefSetAddress_v2, cuMulticastBindAddr, cuMemcpyHtoA_v2, cuMemcpyDtoA_v2,
                cuMemcpyHtoAAsync_v2>,
      CallsName<NamesMapped, cuMemMap>,
      CallsName<NamesHandle<1>, cuMemExportToShareableHandle>,
      CallsName<NamesHandle<2>, cuMulticastBindMem>,
      CallsName<NamesByte<1>, cuIpcGetMemHandle, cuMemPoolExportPointer>,
      CallsName<NamesByte<2>, cuPointerSetAttribute>,
      CallsName<NamesOne<1, 2>, cuMemGetHandleForAddressRange>,
      CallsName<NamesTwo, cuMemcpyHtoD_v2, cuMemcpyDtoH_v2, cuMemcpyDtoD_v2, cuMemcpy, cuMemcpyHtoDAsync_v2,
                cuMemcpyDtoHAsync_v2, cuMemcpyDtoDAsync_v2, cuMemcpyAsync>,
      CallsName<NamesPeers, cuMemcpyPeer, cuMemcpyPeerAsync>,
      CallsName<NamesPeerCopy, cuMemcpy3DPeer, cuMemcpy3DPeerAsync>,
      CallsName<NamesCopy, cuMemcpy2D_v2, cuMemcpy2DUnaligned_v2, cuMemcpy3D_v2, cuMemcpy2DAsync_v2,
                cuMemcpy3DAsync_v2>,
      CallsName<NamesOne<0, 3>, cuMemcpyAtoH_v2, cuMemcpyAtoD_v2, cuMemcpyAtoHAsync_v2>,
      CallsName<NamesNothing, cuMemcpyAtoA_v2>,
      CallsName<NamesOne<0, 2>, cuMemsetD8_v2, cuMemsetD8Async>,
      CallsName<NamesOne<0, 2, 2>, cuMemsetD16_v2, cuMemsetD16Async>,
      CallsName<NamesOne<0, 2, 4>, cuMemsetD32_v2, cuMemsetD32Async>,
      CallsName<NamesRows, cuMemsetD2D8_v2, cuMemsetD2D16_v2, cuMemsetD2D32_v2, cuMemsetD2D8Async,
                cuMemsetD2D16Async, cuMemsetD2D32Async>,
      CallsName<NamesBatch, cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2>,
      CallsName<NamesCopies, cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2>,
      CallsName<NamesList, cuMemPrefetchBatchAsync, cuMemDiscardBatchAsync,
                cuMemDiscardAndPrefetchBatchAsync>,
      CallsName<NamesNumber, cuStreamWaitValue32, cuStreamWaitValue32_v2, cuStreamWaitValue64,
                cuStreamWaitValue64_v2, cuStreamWriteValue32, cuStreamWriteValue32_v2, cuStreamWriteValue64,
                cuStreamWriteValue64_v2>,
      CallsName<NamesEach<2, 1>, cuStreamBatchMemOp, cuStreamBatchMemOp_v2>,
      CallsName<NamesKernel, cuLaunchKernel, cuLaunchCooperativeKernel, cuLaunchKernelEx>,
      CallsName<NamesGraph, cuGraphLaunch> {};
} // namespace table

/// The entry point of which this one is the twin, or itself.
constexpr Entry without_suffix(Entry entry) noexcept {
    std::string_view name = k_entry_points[static_cast<std::size_t>(entry)].symbol;
    if (!name.ends_with("_ptds") && !name.ends_with("_ptsz")) return entry;
    name.remove_suffix(5);
    const auto* const twin = std::ranges::find(k_entry_points, name, &EntryPoint::symbol);
    return static_cast<Entry>(twin - k_entry_points);
}

template <Entry entry, class Names>
Names names_in(const CallNames<Names, entry>&);
template <Entry>
void names_in(...);
/// Says what a call of the entry point names; void where nothing is known of that.
template <Entry entry>
using Names = decltype(names_in<without_suffix(entry)>(table::Rows()));

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
