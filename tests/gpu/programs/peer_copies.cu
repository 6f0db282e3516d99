// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An ordinary program on two GPUs: peer access, peer copies, and kernels that read the other GPU's memory;
// or, with
// `--peer-access no`, the copies alone, which the driver makes without access too.

#include "checked.hpp"
#include "program.hpp"

#include <cuda_runtime.h>

namespace {

using Word = unsigned;
constexpr int k_devices = 2;

/// Mixes what the other GPU holds into `words`.
__global__ void mix(Word* words, const Word* others, std::size_t count, Word salt) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x)
        words[i] = words[i] * 1664525U + 1013904223U + (others[count - 1 - i] ^ salt ^ static_cast<Word>(i));
}

struct Device {
    cudaStream_t stream = nullptr;
    Word* words = nullptr;
    Word* inbox = nullptr;
};

class Program {
public:
    Program(double scale, bool has_access)
        : has_access_(has_access), bytes_((static_cast<std::size_t>(256 * scale) + 1) << 20) {
        for (int i = 0; i < k_devices; ++i) {
            CHECKED(cudaSetDevice(i));
            auto& device = devices_[i];
            CHECKED(cudaStreamCreate(&device.stream));
            if (i == 1) CHECKED(cudaMalloc(&device.inbox, bytes_)); // one before access is enabled, one after
            if (has_access) CHECKED(cudaDeviceEnablePeerAccess(1 - i, 0));
            CHECKED(cudaMalloc(&device.words, bytes_));
            if (i == 0) CHECKED(cudaMalloc(&device.inbox, bytes_));
            CHECKED(cudaMemset(device.words, 0x11 + i, bytes_));
            CHECKED(cudaMemset(device.inbox, 0x33 + i, bytes_));
        }
        synchronize();
    }

    void step(int number) {
        const auto count = bytes_ / sizeof(Word);
        for (int i = 0; i < k_devices; ++i) {
            CHECKED(cudaSetDevice(i));
            const auto& others = devices_[has_access_ ? 1 - i : i];
            mix<<<256, 256, 0, devices_[i].stream>>>(devices_[i].words, others.inbox, count,
                                                     static_cast<Word>(number * k_devices + i));
            CHECKED(cudaGetLastError());
        }
        synchronize();
        for (int i = 0; i < k_devices; ++i)
            CHECKED(cudaMemcpyPeerAsync(devices_[1 - i].inbox, 1 - i, devices_[i].words, i, bytes_,
                                        devices_[i].stream));
        synchronize();
    }

    std::string digest() {
        Digest digest;
        std::vector<unsigned char> host(bytes_);
        for (const auto& device : devices_)
            for (const auto* words : {device.words, device.inbox}) {
                CHECKED(cudaMemcpy(host.data(), words, bytes_, cudaMemcpyDefault));
                digest.add(host.data(), host.size());
            }
        return digest.finish();
    }

private:
    void synchronize() {
        for (int i = 0; i < k_devices; ++i) {
            CHECKED(cudaSetDevice(i));
            CHECKED(cudaDeviceSynchronize());
        }
    }

    bool has_access_;
    std::size_t bytes_;
    std::array<Device, k_devices> devices_;
};

} // namespace

int main(int count, char** words) {
    const ProgramOptions options(count, words);
    const auto forbids_access = [](const char* word) { return std::strcmp(word, "no") == 0; };
    return run(options, Program(options.scale, std::none_of(words + 1, words + count, forbids_access)));
}
