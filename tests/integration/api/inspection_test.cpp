// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What calls name, seen in their arguments: in part asleep each passes a checked gate, and is let through
// for a callback, where it names what is awake alone.

#include "callbacks.hpp"
#include "support/simulated_driver/testing.hpp"

using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_tag_bytes = 4 * k_mib;
constexpr Bytes k_row_bytes = 64;

/// A call that names `address`. It need not succeed, nor be one that the simulated driver has.
struct Call {
    const char* name;
    CUresult (*make)(CUdeviceptr address);
};

CUcontext current() {
    CUcontext context = nullptr;
    cuCtxGetCurrent(&context);
    return context;
}

void* host(CUdeviceptr address) {
    return reinterpret_cast<void*>(address);
}

CUDA_MEMCPY3D_PEER peer_copy(CUdeviceptr to, CUdeviceptr from) {
    CUDA_MEMCPY3D_PEER copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcContext = copy.dstContext = current();
    copy.srcDevice = from;
    copy.dstDevice = to;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = k_row_bytes;
    copy.srcHeight = copy.dstHeight = copy.Height = 2;
    copy.Depth = 1;
    return copy;
}

CUstreamBatchMemOpParams write_of(CUdeviceptr address) {
    CUstreamBatchMemOpParams write{};
    write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    write.writeValue.address = address;
    write.writeValue.value64 = 1;
    return write;
}

CUresult batch_of_operations(CUdeviceptr address) {
    std::array<CUstreamBatchMemOpParams, 2> operations{write_of(address), write_of(address)};
    operations[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[1].waitValue.value = 1;
    return cuStreamBatchMemOp(nullptr, 2, operations.data(), 0);
}

CUresult decompress(CUdeviceptr from, CUdeviceptr to, CUdeviceptr bytes_written) {
    CUmemDecompressParams operation{};
    operation.src = host(from);
    operation.srcNumBytes = from ? k_row_bytes : 0;
    operation.dst = host(to);
    operation.dstActBytes = static_cast<cuuint32_t*>(host(bytes_written));
    return cuMemBatchDecompressAsync(&operation, 1, 0, nullptr, nullptr);
}

CUresult make_texture(CUresourcetype type, CUdeviceptr address) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = type;
    if (type == CU_RESOURCE_TYPE_LINEAR) {
        resource.res.linear.devPtr = address;
        resource.res.linear.sizeInBytes = k_row_bytes;
    } else {
        resource.res.pitch2D.devPtr = address;
        resource.res.pitch2D.pitchInBytes = k_row_bytes;
        resource.res.pitch2D.height = 2;
    }
    CUtexObject texture = 0;
    const CUDA_TEXTURE_DESC how{};
    return cuTexObjectCreate(&texture, &resource, &how, nullptr);
}

/// In a graph that is never launched: the driver looks at the memory as it makes the node.
template <class Add>
CUresult add_node(Add&& add) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    cuGraphCreate(&graph, 0);
    const auto answer = add(&node, graph);
    cuGraphDestroy(graph);
    return answer;
}

CUDA_MEMCPY3D copy_of(CUdeviceptr address) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = address;
    copy.dstDevice = address + k_row_bytes;
    copy.WidthInBytes = k_row_bytes;
    copy.Height = copy.Depth = 1;
    return copy;
}

CUresult add_copy_node(CUdeviceptr address) {
    return add_node([=](CUgraphNode* node, CUgraph graph) {
        const auto copy = copy_of(address);
        return cuGraphAddMemcpyNode(node, graph, nullptr, 0, &copy, current());
    });
}

CUresult add_any_node(CUdeviceptr address) {
    return add_node([=](CUgraphNode* node, CUgraph graph) {
        CUgraphNodeParams parameters{};
        parameters.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        parameters.memcpy.copyParams = copy_of(address);
        return cuGraphAddNode(node, graph, nullptr, nullptr, 0, &parameters);
    });
}

CUDA_MEMSET_NODE_PARAMS fill_of(CUdeviceptr address) {
    return {address, 0, 7, 1, k_row_bytes, 1};
}

CUresult add_memset_node(CUdeviceptr address) {
    return add_node([=](CUgraphNode* node, CUgraph graph) {
        const auto fill = fill_of(address);
        return cuGraphAddMemsetNode(node, graph, nullptr, 0, &fill, current());
    });
}

/// In no graph that there is: the gate comes first.
CUresult change_memset_node(CUdeviceptr address) {
    const auto fill = fill_of(address);
    return cuGraphExecMemsetNodeSetParams(nullptr, nullptr, &fill, current());
}

CUresult change_batch_node(CUdeviceptr address) {
    auto write = write_of(address);
    const CUDA_BATCH_MEM_OP_NODE_PARAMS writes{current(), 1, &write, 0};
    return cuGraphExecBatchMemOpNodeSetParams(nullptr, nullptr, &writes);
}

CUresult change_any_node(CUdeviceptr address) {
    CUgraphNodeParams parameters{};
    parameters.type = CU_GRAPH_NODE_TYPE_MEMSET;
    const auto fill = fill_of(address);
    parameters.memset = {fill.dst,   fill.pitch,  fill.value, fill.elementSize,
                         fill.width, fill.height, current()};
    return cuGraphExecNodeSetParams(nullptr, nullptr, &parameters);
}

/// The parameters of a kernel node; `arguments`: address, count of words, value.
CUDA_KERNEL_NODE_PARAMS fill_by_kernel(void** arguments) {
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = sim::testing::kernel("sim_fill");
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    return kernel;
}

/// A tensor map is a parameter of this length that begins with the address, as was seen on an H200.
CUresult launch_with_tensor_map(CUdeviceptr address) {
    struct TensorMap {
        CUdeviceptr address;
        std::array<std::uint64_t, 15> shape;
    } map{address, {1, 2, 3}};
    constexpr const char* k_kernel = "read_by_tensor_map";
    const std::array bytes{sizeof map};
    sim_register_kernel(
        k_kernel, [](const sim_launch*, void**) {}, bytes.data(), bytes.size());
    return sim::testing::launch(sim::testing::kernel(k_kernel), nullptr, map);
}

constexpr std::size_t k_one_row_bytes = k_row_bytes;
constexpr CUmemLocation k_device{CU_MEM_LOCATION_TYPE_DEVICE, 0};

const std::array k_calls = {
    Call{
        "peer copy to",
        [](CUdeviceptr at) { return cuMemcpyPeer(at, current(), at + k_row_bytes, current(), k_row_bytes); }},
    Call{"peer copy in a stream",
         [](CUdeviceptr at) {
             return cuMemcpyPeerAsync(at, current(), at + k_row_bytes, current(), k_row_bytes, nullptr);
         }},
    Call{"3D peer copy",
         [](CUdeviceptr at) {
             const auto copy = peer_copy(at, at + 2 * k_row_bytes);
             return cuMemcpy3DPeer(&copy);
         }},
    Call{"3D peer copy in a stream",
         [](CUdeviceptr at) {
             const auto copy = peer_copy(at, at + 2 * k_row_bytes);
             return cuMemcpy3DPeerAsync(&copy, nullptr);
         }},
    Call{"write of 32 bits", [](CUdeviceptr at) { return cuStreamWriteValue32(nullptr, at, 1, 0); }},
    Call{"write of 64 bits", [](CUdeviceptr at) { return cuStreamWriteValue64(nullptr, at, 1, 0); }},
    Call{"wait for 32 bits", [](CUdeviceptr at) { return cuStreamWaitValue32(nullptr, at, 0, 0); }},
    Call{"wait for 64 bits", [](CUdeviceptr at) { return cuStreamWaitValue64(nullptr, at, 0, 0); }},
    Call{"batch of operations", batch_of_operations},
    Call{"copy to what is said to be the host",
         [](CUdeviceptr at) { return cuMemcpyDtoH(host(at), at, k_row_bytes); }},
    Call{"copy to the host",
         [](CUdeviceptr at) {
             std::array<std::byte, k_row_bytes> row{};
             return cuMemcpyDtoH(row.data(), at, row.size());
         }},
    Call{"copy from an array", [](CUdeviceptr at) { return cuMemcpyAtoD(at, nullptr, 0, k_row_bytes); }},
    Call{"copy to an array", [](CUdeviceptr at) { return cuMemcpyDtoA(nullptr, 0, at, k_row_bytes); }},
    Call{"prefetch",
         [](CUdeviceptr at) { return cuMemPrefetchAsync(at, k_row_bytes, k_device, 0, nullptr); }},
    Call{
        "advice",
        [](CUdeviceptr at) { return cuMemAdvise(at, k_row_bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, k_device); }},
    Call{"prefetch of a list",
         [](CUdeviceptr at) {
             auto bytes = k_one_row_bytes;
             auto where = k_device;
             std::size_t first = 0;
             return cuMemPrefetchBatchAsync(&at, &bytes, 1, &where, &first, 1, 0, nullptr);
         }},
    Call{"discarding",
         [](CUdeviceptr at) {
             auto bytes = k_one_row_bytes;
             return cuMemDiscardBatchAsync(&at, &bytes, 1, 0, nullptr);
         }},
    Call{"decompression from", [](CUdeviceptr at) { return decompress(at, 0, 0); }},
    Call{"decompression to", [](CUdeviceptr at) { return decompress(0, at, 0); }},
    Call{"decompression, its size to", [](CUdeviceptr at) { return decompress(0, 0, at); }},
    Call{"texture of a row", [](CUdeviceptr at) { return make_texture(CU_RESOURCE_TYPE_LINEAR, at); }},
    Call{"texture of rows", [](CUdeviceptr at) { return make_texture(CU_RESOURCE_TYPE_PITCH2D, at); }},
    Call{"copy in a graph", add_copy_node},
    Call{"copy in a graph, as any node", add_any_node},
    Call{"memset in a graph", add_memset_node},
    Call{"memset in an executable graph", change_memset_node},
    Call{"batch of operations in an executable graph", change_batch_node},
    Call{"memset in an executable graph, as any node", change_any_node},
    Call{"launch with a tensor map", launch_with_tensor_map},
    Call{"attribute",
         [](CUdeviceptr at) {
             const unsigned yes = 1;
             return cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
         }},
};

/// What each call answers.
std::vector<CUresult> make_all(CUdeviceptr address) {
    std::vector<CUresult> answers;
    for (const auto& call : k_calls) answers.push_back(call.make(address));
    return answers;
}

void check_answers(const std::vector<CUresult>& awake, const std::vector<CUresult>& asleep) {
    REQUIRE(awake.size() == k_calls.size());
    REQUIRE(asleep.size() == k_calls.size());
    for (std::size_t i = 0; i < k_calls.size(); ++i) {
        INFO(k_calls[i].name);
        CHECK(awake[i] != CUDA_ERROR_SYSTEM_NOT_READY);
        CHECK(asleep[i] == CUDA_ERROR_SYSTEM_NOT_READY);
    }
}

/// Two tags of memory, whose words are neither zero nor negative.
struct TwoTags : NotCopied {
    Gpu gpu{0};
    TaggedMemory weights{"weights", k_tag_bytes};
    TaggedMemory cache{"kv_cache", k_tag_bytes};
    CUcontext context = current();

    TwoTags() {
        for (const auto* memory : {&weights, &cache}) check(cuMemsetD8(memory->address(), 1, k_tag_bytes));
        check(cuCtxSynchronize());
        sim_reset_counts();
    }
    ~TwoTags() {
        wake();
        CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(sim_fault_counts().illegal_accesses == 0);
    }
};

void sleep_checked(const char* tags) {
    REQUIRE(command("gpu-sleep", {"--tags", tags, "--gate", "checked", "--on-touch", "fail"}) == 0);
}

/// A graph of one node, instantiated.
class OneNode : NotCopied {
public:
    template <class Add>
    explicit OneNode(Add&& add) {
        check(cuGraphCreate(&graph_, 0));
        check(add(&node_, graph_));
        check(cuGraphInstantiate(&executable_, graph_, 0));
    }
    ~OneNode() {
        CHECK(cuGraphExecDestroy(executable_) == CUDA_SUCCESS);
        CHECK(cuGraphDestroy(graph_) == CUDA_SUCCESS);
    }

    [[nodiscard]] CUgraphExec executable() const { return executable_; }
    [[nodiscard]] CUgraphNode node() const { return node_; }
    [[nodiscard]] CUresult launch() const { return cuGraphLaunch(executable_, nullptr); }
    [[nodiscard]] CUresult instantiate_again() const {
        CUgraphExec again = nullptr;
        const auto status = cuGraphInstantiate(&again, graph_, 0);
        if (status == CUDA_SUCCESS) check(cuGraphExecDestroy(again));
        return status;
    }

private:
    CUgraph graph_ = nullptr;
    CUgraphNode node_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

} // namespace

TEST_CASE("Inspection: a checked gate holds the calls that name what sleeps, and no other", "[api]") {
    const TwoTags tags;
    sleep_checked("weights");
    check_answers(make_all(tags.cache.address()), make_all(tags.weights.address()));
}

TEST_CASE("Inspection: a callback is refused the calls that name what sleeps, and no other", "[api]") {
    const TwoTags tags;
    sleep("weights");
    std::vector<CUresult> awake, asleep;
    const Callbacks callbacks([&] {
        cuCtxSetCurrent(tags.context);
        awake = make_all(tags.cache.address());
        asleep = make_all(tags.weights.address());
    });
    sleep("kv_cache");
    check_answers(awake, asleep);
}

TEST_CASE("Inspection: a graph's node that sets numbers in memory names them", "[api]") {
    const TwoTags tags;
    auto write = write_of(tags.cache.address());
    const CUDA_BATCH_MEM_OP_NODE_PARAMS writes{tags.context, 1, &write, 0};
    const auto add = [&](CUgraphNode* node, CUgraph graph) {
        return cuGraphAddBatchMemOpNode(node, graph, nullptr, 0, &writes);
    };
    const OneNode awake(add);
    const OneNode moved(add);
    write = write_of(tags.weights.address());
    const OneNode asleep(add);
    check(cuGraphExecBatchMemOpNodeSetParams(moved.executable(), moved.node(), &writes));
    sleep_checked("weights");
    CHECK(awake.launch() == CUDA_SUCCESS);
    CHECK(asleep.launch() == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK(moved.launch() == CUDA_ERROR_SYSTEM_NOT_READY);
}

TEST_CASE("Inspection: a graph is made executable while memory of its copies and fills is awake", "[api]") {
    const TwoTags tags;
    const auto fill = [&](CUdeviceptr address) {
        return OneNode([=](CUgraphNode* node, CUgraph graph) {
            const auto parameters = fill_of(address);
            return cuGraphAddMemsetNode(node, graph, nullptr, 0, &parameters, current());
        });
    };
    const auto awake = fill(tags.cache.address());
    const auto asleep = fill(tags.weights.address());
    sleep_checked("weights");
    CHECK(awake.instantiate_again() == CUDA_SUCCESS);
    CHECK(asleep.instantiate_again() == CUDA_ERROR_SYSTEM_NOT_READY);
}

TEST_CASE("Inspection: what describes or copies a graph is answered while its memory sleeps", "[api]") {
    const TwoTags tags;
    const auto copy = copy_of(tags.weights.address());
    const auto fill = fill_of(tags.weights.address());
    CUgraph graph = nullptr;
    CUgraphNode copying = nullptr, filling = nullptr;
    check(cuGraphCreate(&graph, 0));
    check(cuGraphAddMemcpyNode(&copying, graph, nullptr, 0, &copy, tags.context));
    check(cuGraphAddMemsetNode(&filling, graph, &copying, 1, &fill, tags.context));
    const auto ask = [&] {
        CUgraph other = nullptr;
        CUgraphNode node = nullptr;
        CUDA_MEMCPY3D is_copied{};
        CUDA_MEMSET_NODE_PARAMS is_filled{};
        std::size_t count = 0;
        unsigned type = 0;
        check(cuGraphCreate(&other, 0));
        std::vector<CUresult> answers{
            cuGraphAddChildGraphNode(&node, other, nullptr, 0, graph),
            cuGraphDestroy(other),
            cuGraphClone(&other, graph),
            cuGraphMemcpyNodeGetParams(copying, &is_copied),
            cuGraphMemsetNodeGetParams(filling, &is_filled),
            cuGraphDebugDotPrint(graph, "/dev/null", 0),
            cuGraphGetNodes(graph, nullptr, &count),
            cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, tags.weights.address())};
        CHECK(is_copied.srcDevice == tags.weights.address());
        CHECK(is_filled.dst == tags.weights.address());
        CHECK(count == 2);
        return answers;
    };
    const auto awake = ask();
    REQUIRE(command("gpu-sleep", {"--on-touch", "fail"}) == 0);
    CHECK(ask() == awake);
    CHECK(std::ranges::count(awake, CUDA_ERROR_SYSTEM_NOT_READY) == 0);
    CHECK(cuMemsetD8(tags.weights.address(), 1, 1) == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

TEST_CASE("Inspection: a graph's node that was changed no longer names what it did", "[api]") {
    const TwoTags tags;
    auto address = tags.weights.address();
    std::uint64_t count = 1;
    unsigned value = 7;
    std::array<void*, 3> arguments{&address, &count, &value};
    const auto kernel = fill_by_kernel(arguments.data());
    const OneNode fill([&](CUgraphNode* node, CUgraph graph) {
        return cuGraphAddKernelNode(node, graph, nullptr, 0, &kernel);
    });
    sleep_checked("weights");
    CHECK(fill.launch() == CUDA_ERROR_SYSTEM_NOT_READY);
    address = tags.cache.address();
    check(cuGraphExecKernelNodeSetParams(fill.executable(), fill.node(), &kernel));
    CHECK(fill.launch() == CUDA_SUCCESS);
}

TEST_CASE("Inspection: a graph names memory that was not there yet when it was made executable", "[api]") {
    const TwoTags tags;
    sim::testing::Range late;
    late.take_away();
    std::uint64_t count = 1;
    unsigned value = 7;
    std::array<void*, 3> arguments{&late.address, &count, &value};
    const auto kernel = fill_by_kernel(arguments.data());
    const OneNode fill([&](CUgraphNode* node, CUgraph graph) {
        return cuGraphAddKernelNode(node, graph, nullptr, 0, &kernel);
    });
    check(gpu_sleep_push_tag("late"));
    late.bring_back();
    check(gpu_sleep_pop_tag());
    sleep_checked("late");
    CHECK(fill.launch() == CUDA_ERROR_SYSTEM_NOT_READY);
    wake();
    CHECK(fill.launch() == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}
