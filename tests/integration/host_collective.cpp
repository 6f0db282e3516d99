// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Each step adds to memory by a kernel, then meets the other ranks in a host function of the stream, which
// sums what all have brought, then copies the sum to memory. The host runs ahead of the GPU by some steps.

#include "host_collective.hpp"

#include "host_gpu.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace gpu_sleep::test {
namespace {

constexpr std::size_t k_max_ranks = 8;
constexpr std::uint64_t k_words = 1024;
constexpr std::uint64_t k_notice = 1'000; ///< steps from the word to end until the last

/// In the file, all zero at first.
struct Meeting {
    std::array<std::atomic<std::uint64_t>, k_max_ranks> arrived; ///< steps
    std::array<std::atomic<std::uint64_t>, k_max_ranks> brought; ///< sum of all so far
    std::array<std::atomic<std::uint64_t>, k_max_ranks> left;    ///< steps
    std::atomic<std::uint64_t> steps_left_to;                    ///< the last step, inverted: zero is none
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// What a rank brings to a step.
std::uint64_t share_of(std::uint64_t step, std::size_t rank) noexcept {
    return step * step + rank * 17;
}

struct Job {
    Meeting* meeting = nullptr;
    std::size_t ranks = 0, rank = 0;
    std::uint64_t met = 0;        ///< steps, by the host function
    std::uint64_t* sum = nullptr; ///< of all shares so far; pinned memory
    std::atomic<std::uint64_t> submitted{0};
    std::thread thread;
    std::string outcome;
};

Job& job() {
    static Job& instance = *new Job; // its thread may outlive main()
    return instance;
}

void wait_for_all(const std::array<std::atomic<std::uint64_t>, k_max_ranks>& steps, std::uint64_t step) {
    for (std::size_t i = 0; i < job().ranks; ++i)
        while (steps[i] < step) std::this_thread::sleep_for(std::chrono::microseconds(20));
}

/// The collective: returns on no rank before all have come.
void meet(void*) {
    auto& self = job();
    auto& meeting = *self.meeting;
    const auto step = ++self.met;
    meeting.brought[self.rank] = meeting.brought[self.rank] + share_of(step, self.rank);
    meeting.arrived[self.rank] = step;
    wait_for_all(meeting.arrived, step);
    *self.sum = 0;
    for (std::size_t i = 0; i < self.ranks; ++i) *self.sum += meeting.brought[i];
    meeting.left[self.rank] = step;
    wait_for_all(meeting.left, step); // nobody brings more before all have read
}

std::uint64_t last_step() {
    return ~job().meeting->steps_left_to.load();
}

/// Says what memory holds after `steps`, or that it is right.
Answer verdict(CUdeviceptr memory, CUdeviceptr total, std::uint64_t steps) {
    std::vector<std::uint32_t> words(k_words);
    std::uint64_t sum = 0;
    GPU_SLEEP_TRY(
        checked(cuMemcpyDtoH(words.data(), memory, words.size() * sizeof(words[0])), "cuMemcpyDtoH"));
    GPU_SLEEP_TRY(checked(cuMemcpyDtoH(&sum, total, sizeof(sum)), "cuMemcpyDtoH"));
    std::uint64_t expected = 0;
    for (std::size_t rank = 0; rank < job().ranks; ++rank)
        for (std::uint64_t step = 1; step <= steps; ++step) expected += share_of(step, rank);
    const bool adds_up = std::all_of(words.begin(), words.end(), [=](auto word) { return word == steps; });
    if (adds_up && sum == expected) return fmt::format("right {}", steps);
    return fmt::format("after {} steps memory holds {} and {}, not {}", steps, words.front(), sum, expected);
}

Answer run() {
    auto& self = job();
    GPU_SLEEP_TRY(use_device(0));
    CUmodule module = nullptr;
    CUfunction add = nullptr;
    CUstream stream = nullptr;
    CUdeviceptr memory = 0, total = 0;
    GPU_SLEEP_TRY(
        checked(cuModuleLoadData(&module, "any image has the built-in kernels"), "cuModuleLoadData"));
    GPU_SLEEP_TRY(checked(cuModuleGetFunction(&add, module, "sim_add"), "cuModuleGetFunction"));
    GPU_SLEEP_TRY(checked(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    GPU_SLEEP_TRY(
        checked(cuMemHostAlloc(reinterpret_cast<void**>(&self.sum), sizeof(*self.sum), 0), "cuMemHostAlloc"));
    for (auto* pointer : {&memory, &total}) {
        GPU_SLEEP_TRY(checked(cuMemAlloc(pointer, k_words * sizeof(std::uint32_t)), "cuMemAlloc"));
        GPU_SLEEP_TRY(checked(cuMemsetD8(*pointer, 0, k_words * sizeof(std::uint32_t)), "cuMemsetD8"));
    }
    GPU_SLEEP_TRY(checked(cuCtxSynchronize(), "cuCtxSynchronize"));
    std::mt19937 random(static_cast<unsigned>(self.rank));
    std::uint64_t words = k_words;
    std::uint32_t one = 1;
    std::array<void*, 3> parameters{&memory, &words, &one};
    std::uint64_t step = 0;
    while (step < last_step()) {
        GPU_SLEEP_TRY(checked(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters.data(), nullptr),
                              "cuLaunchKernel"));
        GPU_SLEEP_TRY(checked(cuLaunchHostFunc(stream, meet, nullptr), "cuLaunchHostFunc"));
        GPU_SLEEP_TRY(
            checked(cuMemcpyHtoDAsync(total, self.sum, sizeof(*self.sum), stream), "cuMemcpyHtoDAsync"));
        self.submitted = ++step;
        if (step % 4 == 0) GPU_SLEEP_TRY(checked(cuStreamSynchronize(stream), "cuStreamSynchronize"));
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
    GPU_SLEEP_TRY(checked(cuStreamSynchronize(stream), "cuStreamSynchronize"));
    return verdict(memory, total, step);
}

} // namespace

Answer start_collective(Words& words) {
    auto& self = job();
    const auto file = next<std::string>(words);
    self.ranks = next<std::size_t>(words);
    self.rank = next<std::size_t>(words);
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ::ftruncate(fd, sizeof(Meeting)) != 0)
        return errno_error(ErrorCode::io_failed, errno, "open", file);
    auto* const mapped = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    if (mapped == MAP_FAILED) return errno_error(ErrorCode::io_failed, errno, "mmap", file);
    self.meeting = static_cast<Meeting*>(mapped);
    self.thread = std::thread([&self] {
        const auto ended = run();
        self.outcome = ended ? *ended : ended.error().message;
    });
    return {};
}

Answer collective_steps(Words& /*unused*/) {
    return std::to_string(job().submitted);
}

Answer end_collective(Words& /*unused*/) {
    auto& self = job();
    if (!self.thread.joinable()) return make_error(ErrorCode::invalid_argument, "there is no loop");
    std::uint64_t most = 0;
    for (const auto& steps : self.meeting->arrived) most = std::max(most, steps.load());
    std::uint64_t nobody_said = 0;
    self.meeting->steps_left_to.compare_exchange_strong(nobody_said, ~(most + k_notice));
    self.thread.join();
    return self.outcome;
}

} // namespace gpu_sleep::test
