// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A program on two devices that reach each other's memory, from kernels and by copies, inside captured
// graphs.

#include "support/driver_kernels.hpp"
#include "support/gpu.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::test;

namespace {

constexpr Bytes k_bytes_each = 32 * k_mib;
constexpr Bytes k_half = k_bytes_each / 2;

/// What one of the two devices holds.
struct Holding {
    explicit Holding(int device)
        : weights("weights", k_bytes_each, device), cache("kv_cache", k_bytes_each, device) {}

    void allow_access(int device) const {
        check(gpu_sleep_allow_access(weights.pointer(), device));
        check(gpu_sleep_allow_access(cache.pointer(), device));
    }

    TaggedMemory weights;
    TaggedMemory cache;
};

/// A graph of one device that reads the other's memory in a kernel and writes it by a copy: its own cache
/// gets the first half of the other's weights, the other's cache the second half of its own.
class PeerGraph {
public:
    PeerGraph(const Gpu& gpu, const Holding& own, const Holding& other) : gpu_(gpu) {
        gpu_.enter();
        check(cuModuleLoadData(&module_, driver_testing::k_kernels_ptx));
        check(cuModuleGetFunction(&kernel_, module_, "sim_copy"));
        check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        check(gpu_sleep_hold());
        check(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
        submit(own, other);
        CUgraph graph = nullptr;
        check(cuStreamEndCapture(stream_, &graph));
        check(gpu_sleep_resume());
        check(cuGraphInstantiate(&executable_, graph, 0));
        check(cuGraphDestroy(graph));
    }
    PeerGraph(const PeerGraph&) = delete;
    PeerGraph& operator=(const PeerGraph&) = delete;
    ~PeerGraph() {
        gpu_.enter();
        cuGraphExecDestroy(executable_);
        cuStreamDestroy(stream_);
        cuModuleUnload(module_);
    }

    void replay() const {
        gpu_.enter();
        check(cuGraphLaunch(executable_, stream_));
        check(cuStreamSynchronize(stream_));
    }

private:
    void submit(const Holding& own, const Holding& other) const {
        constexpr unsigned k_threads = 256;
        std::uint64_t to = own.cache.address();
        std::uint64_t from = other.weights.address();
        std::uint64_t count = k_half / sizeof(std::uint32_t);
        void* arguments[] = {&to, &from, &count};
        const auto blocks = static_cast<unsigned>((count + k_threads - 1) / k_threads);
        check(cuLaunchKernel(kernel_, blocks, 1, 1, k_threads, 1, 1, 0, stream_, arguments, nullptr));
        check(cuMemcpyDtoDAsync(other.cache.address() + k_half, own.weights.address() + k_half, k_half,
                                stream_));
    }

    const Gpu& gpu_;
    CUmodule module_ = nullptr;
    CUfunction kernel_ = nullptr;
    CUstream stream_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

bool can_reach_each_other() {
    int forth = 0;
    int back = 0;
    check(cuInit(0));
    check(cuDeviceCanAccessPeer(&forth, 0, 1));
    check(cuDeviceCanAccessPeer(&back, 1, 0));
    return forth != 0 && back != 0;
}

} // namespace

TEST_CASE("Two devices: graphs over each other's memory replay after sleeping", "[two_devices]") {
    if (!can_reach_each_other()) return skip("devices 0 and 1 cannot reach each other's memory");
    const std::array<Gpu, 2> gpus{Gpu(0), Gpu(1)};
    const std::array<Holding, 2> held{Holding(0), Holding(1)};
    held[0].allow_access(1);
    held[1].allow_access(0);
    const std::array<Words, 2> weights{random_words(k_bytes_each, 1), random_words(k_bytes_each, 2)};
    for (std::size_t i = 0; i < 2; ++i) {
        gpus[i].enter();
        held[i].weights.write(weights[i]);
    }
    const std::array<PeerGraph, 2> graphs{PeerGraph(gpus[0], held[0], held[1]),
                                          PeerGraph(gpus[1], held[1], held[0])};

    for (unsigned cycle = 0; cycle < 5; ++cycle) {
        const std::array<Words, 2> before{random_words(k_bytes_each, 10 + cycle),
                                          random_words(k_bytes_each, 20 + cycle)};
        std::array<Bytes, 2> free_awake{};
        for (std::size_t i = 0; i < 2; ++i) {
            free_awake[i] = gpus[i].free_bytes();
            held[i].cache.write(before[i]);
        }

        REQUIRE(command("gpu-sleep", {"--level", "1"}) == 0);
        for (std::size_t i = 0; i < 2; ++i)
            CHECK(gpus[i].free_bytes() >= free_awake[i] + 2 * k_bytes_each * 9 / 10); // others come and go
        REQUIRE(command("gpu-wake", {"--tags", "weights"}) == 0);
        REQUIRE(command("gpu-wake", {"--tags", "kv_cache"}) == 0);

        for (std::size_t i = 0; i < 2; ++i) {
            gpus[i].enter();
            CHECK(held[i].weights.read() == weights[i]);
            CHECK(held[i].cache.read() == before[i]);
        }
        for (const auto& graph : graphs) graph.replay();
        for (std::size_t i = 0; i < 2; ++i) {
            gpus[i].enter();
            CHECK(held[i].cache.read() == weights[1 - i]);
        }
    }
}
