// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program that parts the GPU into green contexts, with memory and streams in each.

#include "checked.hpp"
#include "program.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

namespace {

using Word = unsigned;
constexpr unsigned k_parts = 2;
constexpr unsigned k_multiprocessors = 16; // of each part

__global__ void mix(Word* words, const Word* others, std::size_t count, Word salt) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words[i] = words[i] * 1664525U + 1013904223U + (others[count - 1 - i] ^ salt ^ static_cast<Word>(i));
}

/// A green context, with memory that was allocated in it.
struct Part {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    Word* words = nullptr;
};

class Program {
public:
    explicit Program(double scale) : bytes_((static_cast<std::size_t>(256 * scale) + 1) << 20) {
        CHECKED(cudaSetDevice(0));
        CHECKED(cudaFree(nullptr));
        CUdevResource all{};
        CUdevResource resources[k_parts];
        CHECKED(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
        unsigned count = k_parts;
        CHECKED(cuDevSmResourceSplitByCount(resources, &count, &all, nullptr, 0, k_multiprocessors));
        for (unsigned i = 0; i < k_parts; ++i) {
            auto& part = parts_[i];
            CUdevResourceDesc description = nullptr;
            CUgreenCtx green = nullptr;
            CHECKED(cuDevResourceGenerateDesc(&description, &resources[i], 1));
            CHECKED(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
            CHECKED(cuGreenCtxStreamCreate(&part.stream, green, CU_STREAM_NON_BLOCKING, 0));
            CHECKED(cuCtxFromGreenCtx(&part.context, green));
            CHECKED(cuCtxSetCurrent(part.context));
            CHECKED(cudaMalloc(&part.words, bytes_));
            CHECKED(cudaMemset(part.words, 0x21 + static_cast<int>(i), bytes_));
            CHECKED(cuCtxSynchronize());
        }
    }

    void step(int number) {
        const auto half = bytes_ / sizeof(Word) / 2;
        for (unsigned i = 0; i < k_parts; ++i) {
            auto& part = parts_[i];
            CHECKED(cuCtxSetCurrent(part.context));
            mix<<<64, 256, 0, part.stream>>>(part.words, part.words + half, half,
                                             static_cast<Word>(number) * k_parts + i);
            CHECKED(cudaGetLastError());
            CHECKED(
                cudaMemcpyAsync(part.words + half, part.words, bytes_ / 2, cudaMemcpyDefault, part.stream));
        }
        if (number % 4 == 0)
            for (const auto& part : parts_) CHECKED(cuStreamSynchronize(part.stream));
    }

    std::string digest() {
        Digest digest;
        std::vector<unsigned char> host(bytes_);
        for (const auto& part : parts_) {
            CHECKED(cuCtxSetCurrent(part.context));
            CHECKED(cuStreamSynchronize(part.stream));
            CHECKED(cudaMemcpy(host.data(), part.words, bytes_, cudaMemcpyDefault));
            digest.add(host.data(), host.size());
        }
        return digest.finish();
    }

private:
    std::size_t bytes_;
    std::array<Part, k_parts> parts_;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    return run(options, Program(options.scale));
}
