// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program with kernels that fail: each step is a process of its own, which works, rests, launches
// a kernel whose assertion does not hold, and notes which of its next calls say so.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cassert>
#include <csignal>

namespace {

using Word = unsigned;

__global__ void fill(Word* words, std::size_t count, Word salt) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words[i] = (static_cast<Word>(i) ^ salt) * 2654435761U;
}

__global__ void expect_below(const Word* words, Word limit) {
    assert(words[threadIdx.x] < limit);
}

/// Whether each call after the failure fails, and not how: after a restore of a checkpoint the driver calls a
/// failed assertion CUDA_ERROR_ILLEGAL_INSTRUCTION, also without gpu-sleep.
void add_failures(Digest& digest, Word* words, cudaStream_t stream, cudaEvent_t event) {
    auto polled = cudaStreamQuery(stream);
    while (polled == cudaErrorNotReady) polled = cudaStreamQuery(stream);
    Word word = 0;
    for (const auto status :
         {polled, cudaDeviceSynchronize(), cudaStreamSynchronize(stream), cudaEventQuery(event),
          cudaEventSynchronize(event), cudaMemcpy(&word, words, sizeof word, cudaMemcpyDefault),
          cudaMemsetAsync(words, 0, sizeof word, stream), cudaGetLastError()}) {
        const bool has_failed = status != cudaSuccess;
        digest.add(&has_failed, sizeof has_failed);
        if (!has_failed) std::fprintf(stderr, "a call after a failed assertion said success\n");
    }
}

int run_step(int number, const ProgramOptions& options, int pipe) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto count = (static_cast<std::size_t>(64 * options.scale) + 16) << 18;
    Word* words = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    CHECKED(cudaMalloc(&words, count * sizeof(Word)));
    CHECKED(cudaStreamCreate(&stream));
    CHECKED(cudaEventCreate(&event));
    fill<<<64, 256, 0, stream>>>(words, count, static_cast<Word>(number));
    CHECKED(cudaGetLastError());
    CHECKED(cudaStreamSynchronize(stream));
    std::this_thread::sleep_for(shortest_step(options));
    std::vector<Word> host(count);
    CHECKED(cudaMemcpy(host.data(), words, count * sizeof(Word), cudaMemcpyDefault));
    Digest digest;
    digest.add(host.data(), count * sizeof(Word));

    expect_below<<<1, 32, 0, stream>>>(words, 1);
    static_cast<void>(cudaEventRecord(event, stream));       // which may hear of it already
    std::this_thread::sleep_for(shortest_step(options) / 4); // a sleep comes before anybody knows, too
    add_failures(digest, words, stream, event);
    const auto text = digest.finish();
    checked(::write(pipe, text.data(), text.size()), "write");
    return 0;
}

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    Digest digest;
    for (int number = 0; number < options.steps; ++number) {
        std::fprintf(stderr, "step %d\n", number);
        std::array<int, 2> ends{};
        checked(::pipe(ends.data()), "pipe");
        const auto process = checked(::fork(), "fork"); // this one does without CUDA, which no child inherits
        if (process == 0) return run_step(number, options, ends[1]);
        ::close(ends[1]);
        std::array<char, 16> text{}; // a digest
        const auto got = checked(::read(ends[0], text.data(), text.size()), "read");
        ::close(ends[0]);
        int status = 0;
        checked(::waitpid(process, &status, 0), "waitpid");
        if (got != static_cast<int>(text.size()) || status != 0) return 1;
        digest.add(text.data(), text.size());
    }
    std::printf("%s\n", digest.finish().c_str());
    return 0;
}
