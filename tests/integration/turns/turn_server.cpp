// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Usage: turn_server RANGES BYTES SEED
//
// A server as far as its memory goes; it knows nothing of sleeping. It holds RANGES ranges of BYTES bytes on
// the first device, of words that depend on SEED. For each line "work" it compares all of them, fills one
// anew, and answers "ok", or "error" and what is wrong. Ends with 3 if there is too little GPU memory.

#include "base/result.hpp"
#include "support/commanded.hpp"

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace gpu_sleep::test {
namespace {

Result<void> checked(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return {};
    const auto code =
        status == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::out_of_device_memory : ErrorCode::driver_failed;
    return make_error(code, "{} gave {}", call, static_cast<int>(status));
}

/// One range, and what its words follow from.
struct Range {
    CUdeviceptr address = 0;
    std::uint64_t seed = 0;
};

class Server {
public:
    Server(std::size_t ranges, std::size_t bytes, std::uint64_t seed)
        : random_(seed), words_(bytes / sizeof(std::uint64_t)), ranges_(ranges) {}

    Result<void> begin() {
        CUcontext context = nullptr;
        GPU_SLEEP_TRY(checked(cuInit(0), "cuInit"));
        GPU_SLEEP_TRY(checked(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain"));
        GPU_SLEEP_TRY(checked(cuCtxSetCurrent(context), "cuCtxSetCurrent"));
        for (auto& range : ranges_) {
            GPU_SLEEP_TRY(checked(cuMemAlloc(&range.address, bytes()), "cuMemAlloc"));
            GPU_SLEEP_TRY(fill(range));
        }
        return {};
    }

    Answer work() {
        for (const auto& range : ranges_) GPU_SLEEP_TRY(compare(range));
        GPU_SLEEP_TRY(fill(ranges_[random_() % ranges_.size()]));
        return std::string();
    }

private:
    [[nodiscard]] std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }

    /// Never zero: zeros hide what was not written.
    static std::uint64_t word(std::uint64_t seed, std::uint64_t at) noexcept {
        return ((seed + at) * 0x9E3779B97F4A7C15) | 1;
    }

    Result<void> fill(Range& range) {
        range.seed = random_();
        for (std::size_t at = 0; at < words_.size(); ++at) words_[at] = word(range.seed, at);
        return checked(cuMemcpyHtoD(range.address, words_.data(), bytes()), "cuMemcpyHtoD");
    }

    Result<void> compare(const Range& range) {
        GPU_SLEEP_TRY(checked(cuMemcpyDtoH(words_.data(), range.address, bytes()), "cuMemcpyDtoH"));
        for (std::size_t at = 0; at < words_.size(); ++at)
            if (words_[at] != word(range.seed, at))
                return make_error(ErrorCode::damaged, "word {} is {:x} and was {:x}", at, words_[at],
                                  word(range.seed, at));
        return {};
    }

    std::mt19937_64 random_;
    std::vector<std::uint64_t> words_; ///< of one range, on their way
    std::vector<Range> ranges_;
};

} // namespace
} // namespace gpu_sleep::test

int main(int argc, char** argv) {
    using namespace gpu_sleep::test;
    const auto number = [&](int i) { return argc > i ? std::strtoull(argv[i], nullptr, 10) : 1; };
    Server server(number(1), number(2), number(3));
    if (const auto begun = server.begin(); !begun) {
        std::fprintf(stderr, "turn_server: %s\n", begun.error().message.c_str());
        return begun.error().code == gpu_sleep::ErrorCode::out_of_device_memory ? 3 : EXIT_FAILURE;
    }
    obey({{"work", [&](Words&) { return server.work(); }}});
    return EXIT_SUCCESS;
}
