// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program that scripts/demo puts to sleep: it holds weights and a cache, has captured a CUDA graph over
// both, and answers questions about them on standard input. It knows nothing of gpu-sleep.

#include <cuda.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace {

constexpr std::size_t k_mib = std::size_t{1} << 20;
constexpr std::size_t k_chunk_words = 16 * k_mib / sizeof(std::uint64_t);

constexpr const char* k_usage =
    "usage: demo_program --probe            print the first GPU's name, free MiB and total MiB\n"
    "       demo_program --take MIB         fill that much GPU memory, then give it back\n"
    "       demo_program WEIGHTS_MIB CACHE_MIB\n"
    "                                       hold memory; answers on standard output to\n"
    "                                       checksum, replay and quit\n";

void check(CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    const char* reason = "unknown error";
    cuGetErrorString(result, &reason);
    std::fprintf(stderr, "demo_program: %s: %s\n", call, reason);
    std::exit(EXIT_FAILURE);
}

/// The first device's primary context, current on the thread that made it.
class Context {
public:
    Context() {
        check(cuInit(0), "cuInit");
        check(cuDeviceGet(&device_, 0), "cuDeviceGet");
        check(cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
        check(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;
    ~Context() { cuDevicePrimaryCtxRelease(device_); }

    [[nodiscard]] CUdevice device() const noexcept { return device_; }

private:
    CUdevice device_ = 0;
    CUcontext context_ = nullptr;
};

/// Numbers that look random and differ from run to run of the generator: splitmix64.
class Noise {
public:
    explicit Noise(std::uint64_t seed) : state_(seed) {}

    std::uint64_t next() noexcept {
        std::uint64_t value = state_ += 0x9E3779B97F4A7C15U;
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
        value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
        return value ^ (value >> 31);
    }

private:
    std::uint64_t state_;
};

class Memory {
public:
    explicit Memory(std::size_t bytes) : bytes_(bytes) { check(cuMemAlloc(&address_, bytes), "cuMemAlloc"); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { cuMemFree(address_); }

    [[nodiscard]] CUdeviceptr address() const noexcept { return address_; }
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    void fill(Noise& noise) const {
        for_each_chunk([&](CUdeviceptr address, std::span<std::uint64_t> words) {
            std::generate(words.begin(), words.end(), [&] { return noise.next(); });
            check(cuMemcpyHtoD(address, words.data(), words.size_bytes()), "cuMemcpyHtoD");
        });
    }

    [[nodiscard]] std::uint64_t checksum() const {
        std::uint64_t sum = 0;
        for_each_chunk([&](CUdeviceptr address, std::span<std::uint64_t> words) {
            check(cuMemcpyDtoH(words.data(), address, words.size_bytes()), "cuMemcpyDtoH");
            for (const auto word : words) sum = std::rotl(sum ^ word, 27) * 0x9E3779B97F4A7C15U;
        });
        return sum;
    }

private:
    template <class Visit>
    void for_each_chunk(Visit visit) const {
        std::vector<std::uint64_t> buffer(std::min(k_chunk_words, bytes_ / sizeof(std::uint64_t)));
        for (std::size_t offset = 0; offset < bytes_; offset += k_chunk_words * sizeof(std::uint64_t)) {
            const auto words = std::min(k_chunk_words, (bytes_ - offset) / sizeof(std::uint64_t));
            visit(address() + offset, std::span(buffer).first(words));
        }
    }

    CUdeviceptr address_ = 0;
    std::size_t bytes_;
};

/// A captured graph that computes the cache from the weights: half of it a constant, half a copy.
class Graph {
public:
    Graph(const Memory& weights, const Memory& cache) {
        const std::size_t half = cache.bytes() / 2;
        check(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        check(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
        check(cuMemsetD8Async(cache.address(), 0xA5, half, stream_), "cuMemsetD8Async");
        check(cuMemcpyDtoDAsync(cache.address() + half, weights.address(), half, stream_),
              "cuMemcpyDtoDAsync");
        CUgraph graph = nullptr;
        check(cuStreamEndCapture(stream_, &graph), "cuStreamEndCapture");
        check(cuGraphInstantiate(&executable_, graph, 0), "cuGraphInstantiate");
        check(cuGraphDestroy(graph), "cuGraphDestroy");
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    ~Graph() {
        cuGraphExecDestroy(executable_);
        cuStreamDestroy(stream_);
    }

    /// Replays the graph and waits for it. Returns the time that took.
    [[nodiscard]] std::chrono::duration<double, std::micro> replay() const {
        const auto start = std::chrono::steady_clock::now();
        check(cuGraphLaunch(executable_, stream_), "cuGraphLaunch");
        check(cuStreamSynchronize(stream_), "cuStreamSynchronize");
        return std::chrono::steady_clock::now() - start;
    }

private:
    CUstream stream_ = nullptr;
    CUgraphExec executable_ = nullptr;
};

/// The bytes of `text`, a whole number of MiB that is at least 2.
std::size_t parse_mib(std::string_view text) {
    std::size_t mib = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), mib);
    if (failure != std::errc{} || end != text.data() + text.size() || mib < 2 ||
        mib > (std::size_t{1} << 30)) {
        std::fputs(k_usage, stderr);
        std::exit(2);
    }
    return mib * k_mib;
}

/// The GPU's name and memory, or failure where no driver finds a GPU.
void probe() {
    const Context context;
    char name[256] = {};
    check(cuDeviceGetName(name, sizeof name, context.device()), "cuDeviceGetName");
    std::size_t free = 0, total = 0;
    check(cuMemGetInfo(&free, &total), "cuMemGetInfo");
    std::printf("%s|%zu|%zu\n", name, free / k_mib, total / k_mib);
}

/// Another program that wants memory: takes it, writes all of it, and gives it back.
void take(std::size_t bytes) {
    const Context context;
    CUdeviceptr memory = 0;
    check(cuMemAlloc(&memory, bytes), "cuMemAlloc");
    check(cuMemsetD8(memory, 0x5C, bytes), "cuMemsetD8");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    check(cuMemFree(memory), "cuMemFree");
}

/// Answers one line on standard output to each command on standard input, until `quit` or the end of input.
void serve(std::size_t weights_bytes, std::size_t cache_bytes) {
    const Context context;
    Noise noise(0x6A09E667F3BCC908U);
    const Memory weights(weights_bytes);
    const Memory cache(cache_bytes);
    weights.fill(noise);
    cache.fill(noise);
    const Graph graph(weights, cache);
    std::puts("ready");
    std::fflush(stdout);

    for (std::string command; std::getline(std::cin, command) && command != "quit";) {
        if (command == "checksum") {
            std::printf("%016jx-%016jx\n", std::uintmax_t{weights.checksum()},
                        std::uintmax_t{cache.checksum()});
        } else if (command == "replay") {
            cache.fill(noise); // a replay that does nothing must not look like one that worked
            const auto time = graph.replay();
            std::printf("%016jx %.0f\n", std::uintmax_t{cache.checksum()}, time.count());
        } else {
            std::printf("unknown command\n");
        }
        std::fflush(stdout);
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::vector<std::string_view> arguments(argv + 1, argv + argc);
    if (arguments.size() == 1 && arguments[0] == "--probe") {
        probe();
    } else if (arguments.size() == 2 && arguments[0] == "--take") {
        take(parse_mib(arguments[1]));
    } else if (arguments.size() == 2) {
        const auto weights_bytes = parse_mib(arguments[0]);
        serve(weights_bytes, std::min(parse_mib(arguments[1]), weights_bytes));
    } else {
        std::fputs(k_usage, stderr);
        return 2;
    }
    return EXIT_SUCCESS;
}
