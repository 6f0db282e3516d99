// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program of two processes that add up their words by kernels of their own, as servers of large
// models do: each opens the other's buffer by CUDA IPC, once, and graphs hold its address. The kernels of one
// wait on the GPU for those of the other. With `--gpus 2` each process has a GPU of its own.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace {

using Word = unsigned;
constexpr int k_blocks = 16;
constexpr int k_threads = 256;
constexpr int k_reductions = 2; // in a graph
constexpr int k_replays = 5;    // in a step

/// The beginning of a buffer that both processes have; its words follow.
struct alignas(128) Signals {
    Word arrived[k_blocks]; // written by the other
    Word passed[k_blocks];
};

__device__ Word* words_of(Signals* buffer) {
    return reinterpret_cast<Word*>(buffer + 1);
}

/// Waits until the same block of the other process is here, too.
__device__ void meet(Signals* own, Signals* others) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        const Word turn = ++own->passed[blockIdx.x];
        *static_cast<volatile Word*>(&others->arrived[blockIdx.x]) = turn;
        while (static_cast<int>(*static_cast<volatile Word*>(&own->arrived[blockIdx.x]) - turn) < 0) {
        }
        __threadfence_system();
    }
    __syncthreads();
}

__global__ void reduce(Signals* own, Signals* others, Word* sums, std::size_t count) {
    meet(own, others);
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        sums[i] = words_of(own)[i] + static_cast<volatile Word*>(words_of(others))[i];
    meet(own, others);
}

/// Makes new words from the sums, of which each process makes others.
__global__ void continue_with(Signals* own, const Word* sums, std::size_t count, Word rank) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words_of(own)[i] = words_of(own)[i] * 1664525U + (sums[i] ^ (rank + static_cast<Word>(i)));
}

class Rank {
public:
    Rank(int rank, int gpus, double scale, int socket)
        : count_((static_cast<std::size_t>(16 * scale) + 1) << 18) {
        CHECKED(cudaSetDevice(rank % gpus));
        CHECKED(cudaStreamCreate(&stream_));
        const auto bytes = sizeof(Signals) + count_ * sizeof(Word);
        CHECKED(cudaMalloc(&own_, bytes));
        CHECKED(cudaMalloc(&sums_, count_ * sizeof(Word)));
        CHECKED(cudaMemset(own_, 0, sizeof(Signals)));
        CHECKED(cudaMemset(own_ + 1, 0x21 + rank, count_ * sizeof(Word)));
        CHECKED(cudaDeviceSynchronize());
        cudaIpcMemHandle_t handle{};
        CHECKED(cudaIpcGetMemHandle(&handle, own_));
        checked(::write(socket, &handle, sizeof handle), "write");
        if (::recv(socket, &handle, sizeof handle, MSG_WAITALL) != sizeof handle) std::exit(1);
        void* opened = nullptr;
        CHECKED(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
        others_ = static_cast<Signals*>(opened);
        capture(static_cast<Word>(rank));
    }

    void step(int) {
        for (int i = 0; i < k_replays; ++i) CHECKED(cudaGraphLaunch(graph_, stream_));
        CHECKED(cudaStreamSynchronize(stream_));
    }

    std::string digest() {
        Digest digest;
        std::vector<Word> host(count_);
        for (const void* words : {static_cast<const void*>(own_ + 1), static_cast<const void*>(sums_)}) {
            CHECKED(cudaMemcpy(host.data(), words, count_ * sizeof(Word), cudaMemcpyDeviceToHost));
            digest.add(host.data(), count_ * sizeof(Word));
        }
        return digest.finish();
    }

private:
    void capture(Word rank) {
        cudaGraph_t captured = nullptr;
        CHECKED(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
        for (int i = 0; i < k_reductions; ++i) {
            reduce<<<k_blocks, k_threads, 0, stream_>>>(own_, others_, sums_, count_);
            continue_with<<<k_blocks, k_threads, 0, stream_>>>(own_, sums_, count_, rank);
        }
        CHECKED(cudaStreamEndCapture(stream_, &captured));
        CHECKED(cudaGraphInstantiate(&graph_, captured, 0));
        CHECKED(cudaGraphDestroy(captured));
    }

    std::size_t count_;
    cudaStream_t stream_ = nullptr;
    cudaGraphExec_t graph_ = nullptr;
    Signals* own_ = nullptr;
    Signals* others_ = nullptr;
    Word* sums_ = nullptr;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    int gpus = 1;
    for (int i = 1; i + 1 < count; ++i)
        if (std::strcmp(words[i], "--gpus") == 0) gpus = std::atoi(words[i + 1]);
    std::array<int, 2> ends{};
    checked(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), "socketpair");
    const auto partner = checked(::fork(), "fork"); // before CUDA, which no child inherits
    if (partner == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int number = partner == 0 ? 1 : 0;
    const int socket = ends[number];
    ::close(ends[1 - number]);
    Rank rank(number, gpus, options.scale, socket);
    run_paced(options, [&](int step) { rank.step(step); });
    auto text = rank.digest();
    if (partner == 0) return ::write(socket, text.data(), text.size()) > 0 ? 0 : 1;
    std::array<char, 16> others{};
    if (::recv(socket, others.data(), others.size(), MSG_WAITALL) != static_cast<ssize_t>(others.size()))
        return 1;
    Digest both;
    both.add(text.data(), text.size());
    both.add(others.data(), others.size());
    std::printf("%s\n", both.finish().c_str());
    return ::waitpid(partner, nullptr, 0) == partner ? 0 : 1;
}
