// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies between the intercepted memory of two devices.

#include "devices.hpp"

using namespace gpu_sleep::test;

namespace {

/// Copies `bytes` in a stream of the first device's.
using Copy = std::function<CUresult(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream)>;

CUresult copy_batch(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    std::size_t first = 0;
    return cuMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &first, 1, stream);
}

CUresult copy_batch_of_rows(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    CUDA_MEMCPY3D_BATCH_OP copy{};
    copy.src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copy.src.op.ptr.ptr = from;
    copy.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    copy.dst.op.ptr.ptr = to;
    copy.extent = {bytes / 2, 2, 1};
    copy.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return cuMemcpy3DBatchAsync(1, &copy, 0, stream);
}

CUDA_MEMCPY3D copy_of_rows(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes / 2;
    copy.srcHeight = copy.dstHeight = copy.Height = 2;
    copy.Depth = 1;
    return copy;
}

CUgraphNodeParams node_of(const CUDA_MEMCPY3D& copy, CUcontext context) {
    CUgraphNodeParams node{};
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.memcpy.copyCtx = context;
    node.memcpy.copyParams = copy;
    return node;
}

/// A graph of one copy, of memory of the first device's until it is told of other.
struct CopyGraph : NotCopied {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;

    CopyGraph() { REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS); }
    ~CopyGraph() { CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS); }

    void add(const CUDA_MEMCPY3D& copy, CUcontext context) {
        REQUIRE(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, context) == CUDA_SUCCESS);
    }
    void run(const std::function<void(CUgraphExec)>& change = {}) const {
        CUgraphExec executable = nullptr;
        REQUIRE(cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS);
        if (change) change(executable);
        CHECK(cuGraphLaunch(executable, nullptr) == CUDA_SUCCESS);
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(cuGraphExecDestroy(executable) == CUDA_SUCCESS);
    }
};

/// Allocates on the device of `owner` in several threads, and meanwhile lets that of `accessor` at it. How
/// many of the allocations it does not reach, and all of them.
std::pair<std::size_t, std::size_t> miss_some(CUcontext owner, CUcontext accessor) {
    constexpr std::size_t k_most = 100;
    std::array<std::vector<CUdeviceptr>, 3> made;
    std::atomic<unsigned> working{0};
    std::atomic<bool> is_enabled{false};
    std::vector<std::thread> threads;
    for (auto& mine : made)
        threads.emplace_back([&] {
            cuCtxSetCurrent(owner);
            ++working;
            for (CUdeviceptr address = 0; !is_enabled && mine.size() < k_most; mine.push_back(address))
                if (cuMemAlloc(&address, k_bytes) != CUDA_SUCCESS) break;
        });
    REQUIRE(cuCtxSetCurrent(accessor) == CUDA_SUCCESS);
    while (working < made.size()) std::this_thread::yield();
    CHECK(cuCtxEnablePeerAccess(owner, 0) == CUDA_SUCCESS);
    is_enabled = true;
    for (auto& thread : threads) thread.join();
    std::pair<std::size_t, std::size_t> missed{0, 0};
    for (const auto& mine : made)
        for (const auto address : mine) {
            missed.first += cuMemsetD8(address, 1, 4096) == CUDA_SUCCESS ? 0U : 1U;
            ++missed.second;
        }
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    for (const auto& mine : made)
        for (const auto address : mine) CHECK(cuMemFree(address) == CUDA_SUCCESS);
    return missed;
}

} // namespace

// Hidden: it needs many devices, for access once enabled stays so.
TEST_CASE("Peers: what is allocated while access is enabled can be reached", "[.peer_race]") {
    REQUIRE(cuInit(0) == CUDA_SUCCESS);
    int count = 0;
    REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
    REQUIRE(count > 2);
    std::vector<CUcontext> contexts(static_cast<std::size_t>(count));
    for (CUdevice device = 0; device < count; ++device)
        REQUIRE(cuDevicePrimaryCtxRetain(&contexts[static_cast<std::size_t>(device)], device) ==
                CUDA_SUCCESS);
    for (auto* const owner : contexts)
        for (auto* const accessor : contexts) {
            if (owner == accessor) continue;
            const auto [missed, all] = miss_some(owner, accessor);
            INFO(missed << " of " << all);
            CHECK(missed == 0);
        }
    for (CUdevice device = 0; device < count; ++device)
        CHECK(cuDevicePrimaryCtxRelease(device) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Peers: every kind of copy reaches another device's memory") {
    const auto copy_peer = [&](CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
        return cuMemcpyPeerAsync(to, contexts[0], from, contexts[1], bytes, stream);
    };
    for (const auto& copy : {Copy(copy_batch), Copy(copy_batch_of_rows), Copy(copy_peer)}) {
        const auto here = allocate();
        const There there(*this);
        const auto stream = make_stream();
        CHECK(copy(here, there.address, k_bytes, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        CHECK(there.is_in(here));
        CHECK(copy(here, there.address, 2 * k_bytes, stream) ==
              CUDA_ERROR_INVALID_VALUE); // not for want of access
        CHECK(cuStreamDestroy(stream) == CUDA_SUCCESS);
        CHECK(cuMemFree(here) == CUDA_SUCCESS);
    }
}

TEST_CASE_METHOD(Devices, "Peers: a graph's copy reaches another device's memory, however it is told of it") {
    const auto context = contexts[0];
    const auto here = allocate();
    const auto near = allocate();
    const auto add = [&](CopyGraph& graph, const CUDA_MEMCPY3D& copy) {
        CHECK(cuGraphAddMemcpyNode(&graph.node, graph.graph, nullptr, 0, &copy, context) == CUDA_SUCCESS);
        graph.run();
    };
    const auto add_any = [&](CopyGraph& graph, const CUDA_MEMCPY3D& copy) {
        auto node = node_of(copy, context);
        CHECK(cuGraphAddNode(&graph.node, graph.graph, nullptr, nullptr, 0, &node) == CUDA_SUCCESS);
        graph.run();
    };
    const auto set = [&](CopyGraph& graph, const CUDA_MEMCPY3D& copy) {
        graph.add(copy_of_rows(here, near, k_bytes), context);
        CHECK(cuGraphMemcpyNodeSetParams(graph.node, &copy) == CUDA_SUCCESS);
        graph.run();
    };
    const auto set_any = [&](CopyGraph& graph, const CUDA_MEMCPY3D& copy) {
        graph.add(copy_of_rows(here, near, k_bytes), context);
        auto node = node_of(copy, context);
        CHECK(cuGraphNodeSetParams(graph.node, &node) == CUDA_SUCCESS);
        graph.run();
    };
    const auto set_executable = [&](CopyGraph& graph, const CUDA_MEMCPY3D& copy) {
        graph.add(copy_of_rows(here, near, k_bytes), context);
        graph.run([&](CUgraphExec executable) {
            CHECK(cuGraphExecMemcpyNodeSetParams(executable, graph.node, &copy, context) == CUDA_SUCCESS);
        });
    };
    using Way = std::function<void(CopyGraph&, const CUDA_MEMCPY3D&)>;
    for (const auto& way : {Way(add), Way(add_any), Way(set), Way(set_any), Way(set_executable)}) {
        const There there(*this); // new each time: nobody was let at it yet
        REQUIRE(cuMemsetD8(here, 0, k_bytes) == CUDA_SUCCESS);
        CopyGraph graph;
        way(graph, copy_of_rows(here, there.address, k_bytes));
        CHECK(there.is_in(here));
    }
    CHECK(cuMemFree(here) == CUDA_SUCCESS);
    CHECK(cuMemFree(near) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(Devices, "Peers: a graph's filling of another device's memory is refused, as by a driver") {
    const There there(*this);
    CopyGraph graph;
    const CUDA_MEMSET_NODE_PARAMS fill{there.address, 0, 0, 1, k_bytes, 1};
    CHECK(cuGraphAddMemsetNode(&graph.node, graph.graph, nullptr, 0, &fill, contexts[0]) ==
          CUDA_ERROR_INVALID_VALUE);
}

// From here on the second device reaches the first's memory.
TEST_CASE_METHOD(Devices, "Peers: access between contexts is disabled once it was enabled") {
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    CHECK(cuCtxDisablePeerAccess(contexts[0]) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    CHECK(cuCtxEnablePeerAccess(contexts[0], 0) == CUDA_SUCCESS);
    CHECK(cuCtxDisablePeerAccess(contexts[0]) == CUDA_SUCCESS);
    CHECK(cuCtxEnablePeerAccess(contexts[0], 0) == CUDA_SUCCESS);
}
