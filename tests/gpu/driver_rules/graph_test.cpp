// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Graphs that a program builds itself, or changes, and the numbers that streams set and await.

#include "rules.hpp"

using namespace gpu_sleep::driver_rules;

namespace {

CUDA_KERNEL_NODE_PARAMS kernel_node(CUfunction function, void** parameters) {
    CUDA_KERNEL_NODE_PARAMS node{};
    node.func = function;
    node.gridDimX = node.gridDimY = node.gridDimZ = 1;
    node.blockDimX = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = parameters;
    return node;
}

} // namespace

TEST_CASE_METHOD(Session, "Driver: a graph that was built node by node", "[driver_rules]") {
    const Range from;
    const Range to;
    const auto stream = make_stream();
    CUgraph graph = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    CUgraphNode nodes[3] = {};
    const CUDA_MEMSET_NODE_PARAMS memset{from.address, 0, 10, 4, 16, 1};
    REQUIRE(cuGraphAddMemsetNode(&nodes[0], graph, nullptr, 0, &memset, context) == CUDA_SUCCESS);
    auto address = from.address;
    auto count = std::uint64_t{16};
    auto increment = std::uint32_t{5};
    void* arguments[] = {&address, &count, &increment};
    auto add = kernel_node(kernel("sim_add"), arguments);
    REQUIRE(cuGraphAddKernelNode(&nodes[1], graph, nodes, 1, &add) == CUDA_SUCCESS);
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.address;
    copy.dstDevice = to.address;
    copy.WidthInBytes = 64;
    copy.srcPitch = copy.dstPitch = 64;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
    REQUIRE(cuGraphAddMemcpyNode(&nodes[2], graph, nodes, 2, &copy, context) == CUDA_SUCCESS);
    CHECK(cuGraphAddMemcpyNode(&nodes[2], nullptr, nodes, 2, &copy, context) == CUDA_ERROR_INVALID_VALUE);

    CUDA_MEMSET_NODE_PARAMS shown_memset{};
    REQUIRE(cuGraphMemsetNodeGetParams(nodes[0], &shown_memset) == CUDA_SUCCESS);
    CHECK(shown_memset.dst == from.address);
    CHECK(shown_memset.width == 16);
    CUDA_MEMCPY3D shown_copy{};
    REQUIRE(cuGraphMemcpyNodeGetParams(nodes[2], &shown_copy) == CUDA_SUCCESS);
    CHECK(shown_copy.srcDevice == from.address);
    CHECK(shown_copy.dstDevice == to.address);
    CHECK(shown_copy.WidthInBytes == 64);
    CHECK(cuGraphMemcpyNodeGetParams(nodes[0], &shown_copy) == CUDA_ERROR_INVALID_VALUE);

    CUgraphExec exec = nullptr;
    REQUIRE(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    const auto replay = [&] {
        REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
        REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
        return first_word(to.address);
    };
    CHECK(replay() == 15);
    SECTION("and a node of the instance was changed") {
        increment = 7;
        REQUIRE(cuGraphExecKernelNodeSetParams(exec, nodes[1], &add) == CUDA_SUCCESS);
        CHECK(cuGraphExecKernelNodeSetParams(exec, nodes[0], &add) == CUDA_ERROR_INVALID_VALUE);
        CHECK(replay() == 17);
    }
    SECTION("and a node of the graph was changed, and the instance after it") {
        increment = 8;
        REQUIRE(cuGraphKernelNodeSetParams(nodes[1], &add) == CUDA_SUCCESS);
        CHECK(replay() == 15);
        CUgraphExecUpdateResultInfo result{};
        REQUIRE(cuGraphExecUpdate(exec, graph, &result) == CUDA_SUCCESS);
        CHECK(replay() == 18);
        CUgraph other = nullptr;
        REQUIRE(cuGraphCreate(&other, 0) == CUDA_SUCCESS);
        CHECK(cuGraphExecUpdate(exec, other, &result) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        CHECK(result.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
        REQUIRE(cuGraphDestroy(other) == CUDA_SUCCESS);
    }
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE_METHOD(OnRange, "Driver: a capture can extend a graph, which its failure destroys",
                 "[driver_rules]") {
    const auto stream = make_stream();
    CUgraph graph = nullptr;
    CUgraph captured = nullptr;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    const auto begin = [&] {
        return cuStreamBeginCaptureToGraph(stream, graph, nullptr, nullptr, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
    };
    REQUIRE(begin() == CUDA_SUCCESS);
    REQUIRE(cuMemsetD8Async(range.address, 3, 16, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS);
    CHECK(captured == graph);
    std::size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    CHECK(count == 1);
    REQUIRE(begin() == CUDA_SUCCESS);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &captured) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(captured == nullptr);
    CHECK(cuGraphGetNodes(graph, nullptr, &count) == CUDA_ERROR_INVALID_VALUE);
    if (const auto* sim = simulated()) CHECK(sim->live_objects().graphs == 0);
}

TEST_CASE_METHOD(OnRange, "Driver: streams set and await numbers in memory", "[driver_rules]") {
    const auto waiter = make_stream();
    const auto setter = make_stream();
    REQUIRE(cuMemsetD8(range.address, 0, 64) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitValue32(waiter, range.address, 5, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32Async(range.address + 16, 77, 1, waiter) == CUDA_SUCCESS);
    REQUIRE(cuStreamWriteValue32(setter, range.address, 4, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(setter) == CUDA_SUCCESS);
    CHECK(cuStreamQuery(waiter) == CUDA_ERROR_NOT_READY);
    REQUIRE(cuStreamWriteValue32(setter, range.address, 5, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(waiter) == CUDA_SUCCESS);
    CHECK(first_word(range.address + 16) == 77);
    REQUIRE(cuStreamWriteValue64(setter, range.address + 8, 6, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitValue64(setter, range.address + 8, 6, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
    REQUIRE(cuStreamWaitValue64(setter, range.address + 8, 2, CU_STREAM_WAIT_VALUE_AND) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(setter) == CUDA_SUCCESS);
    CHECK(cuStreamWriteValue32(setter, range.address + 2, 0, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuStreamWaitValue32(setter, CUdeviceptr{4096}, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_METHOD(OnRange, "Driver: several numbers are set and awaited at once, in a stream and in a graph",
                 "[driver_rules]") {
    const auto stream = make_stream();
    CUstreamBatchMemOpParams operations[2] = {};
    operations[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, range.address, {5}, 0, 0};
    operations[1].waitValue = {
        CU_STREAM_MEM_OP_WAIT_VALUE_32, range.address, {5}, CU_STREAM_WAIT_VALUE_EQ, 0};
    REQUIRE(cuStreamBatchMemOp(stream, 2, operations, 0) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(first_word(range.address) == 5);

    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphExec exec = nullptr;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch{context, 1, operations, 0};
    operations[0].writeValue.value = 6;
    REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
    REQUIRE(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &batch) == CUDA_SUCCESS);
    CUDA_BATCH_MEM_OP_NODE_PARAMS shown{};
    REQUIRE(cuGraphBatchMemOpNodeGetParams(node, &shown) == CUDA_SUCCESS);
    REQUIRE(shown.count == 1);
    CHECK(shown.paramArray[0].writeValue.address == range.address);
    REQUIRE(cuGraphInstantiate(&exec, graph, 0) == CUDA_SUCCESS);
    operations[0].writeValue.value = 7;
    REQUIRE(cuGraphExecBatchMemOpNodeSetParams(exec, node, &batch) == CUDA_SUCCESS);
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    CHECK(first_word(range.address) == 7);
    REQUIRE(cuGraphExecDestroy(exec) == CUDA_SUCCESS);
    REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}
