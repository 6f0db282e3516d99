// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program of the CUDA runtime that uses every kind of its allocations, in streams and graphs.
// Built with the static and with the shared runtime. `--managed no`: of every kind but managed memory.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>

namespace {

using Word = unsigned;
constexpr std::size_t k_mib = 1 << 20;

__global__ void fill(Word* words, std::size_t count, Word seed) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words[i] = (static_cast<Word>(i) ^ seed) * 2654435761U;
}

__global__ void mix(Word* words, const Word* others, std::size_t count, Word salt) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words[i] = words[i] * 1664525U + 1013904223U + (others[count - 1 - i] ^ salt);
}

/// A span of words, wherever it lies.
struct Buffer {
    Word* words = nullptr;
    std::size_t bytes = 0;
    [[nodiscard]] std::size_t count() const { return bytes / sizeof(Word); }
};

void fill(Buffer buffer, Word seed, cudaStream_t stream) {
    fill<<<256, 256, 0, stream>>>(buffer.words, buffer.count(), seed);
    CHECKED(cudaGetLastError());
}

void mix(Buffer buffer, Buffer others, Word salt, cudaStream_t stream) {
    mix<<<256, 256, 0, stream>>>(buffer.words, others.words, std::min(buffer.count(), others.count()), salt);
    CHECKED(cudaGetLastError());
}

class Program {
public:
    Program(double scale, bool has_managed) {
        const auto size = [=](double mib) { return static_cast<std::size_t>(mib * scale + 1) * k_mib; };
        CHECKED(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CHECKED(cudaStreamCreate(&other_stream_));
        CHECKED(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
        make_plain(size(256));
        make_plain(size(100));
        for (int i = 0; i < 24; ++i) make_plain(size(8) + 4096 * i); // of odd sizes
        for (int i = 0; i < 100; ++i) make_plain(40'000);            // and small
        make_pitched(size(64));
        make_ordered(size(128));
        make_pooled(size(128));
        make_array();
        if (has_managed) make_managed(size(16));
        CHECKED(cudaHostAlloc(&mapped_host_, size(16), cudaHostAllocMapped));
        CHECKED(cudaHostGetDevicePointer(&mapped_.words, mapped_host_, 0));
        mapped_.bytes = size(16);
        buffers_.push_back(mapped_);
        for (std::size_t i = 0; i < buffers_.size(); ++i)
            fill(buffers_[i], static_cast<Word>(i + 1), stream_);
        CHECKED(cudaStreamSynchronize(stream_));
        capture();
    }

    void step(int number) {
        const auto salt = static_cast<Word>(number) * 40503U;
        for (std::size_t i = 0; i < buffers_.size(); ++i) {
            auto other = (i * 7 + 1) % buffers_.size();
            if (other == i) other = (i + 1) % buffers_.size(); // with itself it would race
            mix(buffers_[i], buffers_[other], salt, stream_);
        }
        CHECKED(cudaGraphLaunch(graph_, stream_));
        CHECKED(cudaEventRecord(event_, stream_));
        CHECKED(cudaStreamWaitEvent(other_stream_, event_, 0));
        copy_between(number);
        allocate_for_a_step(salt);
        through_the_array(number);
        CHECKED(cudaStreamSynchronize(other_stream_));
        CHECKED(cudaStreamSynchronize(stream_));
        if (managed_.words) managed_.words[number] ^= mapped_host_[number]; // the host's turn
        digest_.add(mapped_host_, 4096);
    }

    std::string digest() {
        std::vector<unsigned char> host;
        for (const auto& buffer : buffers_) {
            host.resize(buffer.bytes);
            CHECKED(cudaMemcpy(host.data(), buffer.words, buffer.bytes, cudaMemcpyDefault));
            digest_.add(host.data(), host.size());
        }
        return digest_.finish();
    }

private:
    void make_plain(std::size_t bytes) {
        Buffer buffer{nullptr, bytes};
        CHECKED(cudaMalloc(&buffer.words, bytes));
        buffers_.push_back(buffer);
    }
    void make_managed(std::size_t bytes) {
        managed_.bytes = bytes;
        CHECKED(cudaMallocManaged(&managed_.words, bytes));
        buffers_.push_back(managed_);
    }
    void make_pitched(std::size_t bytes) {
        constexpr std::size_t k_width = 10'000;
        void* made = nullptr;
        std::size_t pitch = 0;
        const auto rows = bytes / k_width;
        CHECKED(cudaMallocPitch(&made, &pitch, k_width, rows));
        buffers_.push_back({static_cast<Word*>(made), pitch * rows});
    }
    void make_ordered(std::size_t bytes) {
        Buffer buffer{nullptr, bytes};
        CHECKED(cudaMallocAsync(&buffer.words, bytes, stream_));
        buffers_.push_back(buffer);
    }
    void make_pooled(std::size_t bytes) {
        cudaMemPoolProps properties{};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location = {cudaMemLocationTypeDevice, 0};
        CHECKED(cudaMemPoolCreate(&pool_, &properties));
        std::uint64_t keep = ~std::uint64_t{0};
        CHECKED(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &keep));
        Buffer buffer{nullptr, bytes};
        CHECKED(cudaMallocFromPoolAsync(&buffer.words, bytes, pool_, stream_));
        buffers_.push_back(buffer);
    }
    void make_array() {
        const auto format = cudaCreateChannelDesc<unsigned>();
        CHECKED(cudaMallocArray(&array_, &format, k_array_side, k_array_side));
    }

    void capture() {
        cudaGraph_t graph = nullptr;
        CHECKED(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
        mix(buffers_[0], buffers_[1], 17, stream_);
        CHECKED(cudaMemcpyAsync(buffers_[2].words, buffers_[0].words, buffers_[2].bytes,
                                cudaMemcpyDeviceToDevice, stream_));
        CHECKED(cudaMemsetAsync(buffers_[3].words, 0x5A, buffers_[3].bytes / 2, stream_));
        mix(buffers_[3], buffers_[2], 18, stream_);
        CHECKED(cudaStreamEndCapture(stream_, &graph));
        CHECKED(cudaGraphInstantiate(&graph_, graph, 0));
        CHECKED(cudaGraphDestroy(graph));
    }

    void copy_between(int number) {
        const auto& from = buffers_[static_cast<std::size_t>(number) % buffers_.size()];
        const auto& to = buffers_[static_cast<std::size_t>(number * 5 + 2) % buffers_.size()];
        if (from.words == to.words) return;
        CHECKED(cudaMemcpyAsync(to.words, from.words, std::min(from.bytes, to.bytes), cudaMemcpyDefault,
                                other_stream_));
    }

    /// Memory that lives for a step: of the stream, and of the device.
    void allocate_for_a_step(Word salt) {
        Buffer ordered{nullptr, 32 * k_mib}, plain{nullptr, 16 * k_mib};
        CHECKED(cudaStreamSynchronize(other_stream_));
        CHECKED(cudaMallocAsync(&ordered.words, ordered.bytes, stream_));
        CHECKED(cudaMalloc(&plain.words, plain.bytes));
        fill(ordered, salt, stream_);
        fill(plain, ~salt, stream_);
        mix(buffers_[0], ordered, salt, stream_);
        mix(buffers_[1], plain, salt, stream_);
        CHECKED(cudaFreeAsync(ordered.words, stream_));
        CHECKED(cudaStreamSynchronize(stream_));
        CHECKED(cudaFree(plain.words));
    }

    void through_the_array(int number) {
        constexpr std::size_t k_pitch = k_array_side * sizeof(Word);
        const auto& from = buffers_[0];
        const auto& to = buffers_[1];
        CHECKED(cudaMemcpy2DToArrayAsync(array_, 0, 0, from.words + number, k_pitch, k_pitch, k_array_side,
                                         cudaMemcpyDeviceToDevice, stream_));
        CHECKED(cudaMemcpy2DFromArrayAsync(to.words, k_pitch, array_, 0, 0, k_pitch, k_array_side,
                                           cudaMemcpyDeviceToDevice, stream_));
    }

    static constexpr std::size_t k_array_side = 512;
    cudaStream_t stream_ = nullptr, other_stream_ = nullptr;
    cudaEvent_t event_ = nullptr;
    cudaMemPool_t pool_ = nullptr;
    cudaArray_t array_ = nullptr;
    cudaGraphExec_t graph_ = nullptr;
    std::vector<Buffer> buffers_;
    Buffer managed_{}, mapped_{};
    Word* mapped_host_ = nullptr;
    Digest digest_;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    const auto forbids_managed = [](const char* word) { return std::strcmp(word, "no") == 0; };
    return run(options, Program(options.scale, std::none_of(words + 1, words + count, forbids_managed)));
}
