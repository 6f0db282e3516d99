// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// An intercepted program that may start no thread when it first uses CUDA, and may later.

#include "devices.hpp"
#include "gpu_sleep/gpu_sleep.h"
#include "support/failing_call.hpp"

using namespace gpu_sleep::test;

namespace {

/// What is written to standard error while it lives.
class StandardError : NotCopied {
public:
    StandardError() : before_(::dup(STDERR_FILENO)), file_(::memfd_create("errors", 0)) {
        // For writing alone: the agent writes to nothing that may be a database.
        const auto name = "/proc/self/fd/" + std::to_string(file_);
        const int written = ::open(name.c_str(), O_WRONLY);
        ::dup2(written, STDERR_FILENO);
        ::close(written);
    }
    ~StandardError() {
        ::dup2(before_, STDERR_FILENO);
        ::close(before_);
        ::close(file_);
    }
    [[nodiscard]] std::string text() const {
        std::array<char, 4096> buffer;
        const auto got = ::pread(file_, buffer.data(), buffer.size(), 0);
        return got > 0 ? std::string(buffer.data(), static_cast<std::size_t>(got)) : std::string();
    }

private:
    int before_, file_;
};

} // namespace

TEST_CASE("Short of threads: the agent says so, and starts once it can", "[short_threads]") {
    std::string said;
    bool was_run = false;
    CUresult begun = CUDA_ERROR_UNKNOWN;
    {
        const StandardError errors;
        was_run = with_failing_calls({{SYS_clone3, EAGAIN}, {SYS_clone, EAGAIN}}, [&] { begun = cuInit(0); });
        said = errors.text();
    }
    if (!was_run) return;
    CHECK(begun == CUDA_SUCCESS);
    CHECK_THAT(said, mentions("cannot start a thread"));
    CUcontext context = nullptr; // by hand: one more cuInit would start it
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    const auto left = allocate(); // before it is time to try again
    std::this_thread::sleep_for(std::chrono::milliseconds(3'500));
    const auto intercepted = allocate();
    CHECK(gpu_sleep_sleep(1, nullptr, 0) == GPU_SLEEP_OK);
    CHECK(gpu_sleep_asleep_bytes() == k_bytes);
    CHECK(gpu_sleep_wake(nullptr, 0) == GPU_SLEEP_OK);
    CHECK(cuMemFree(intercepted) == CUDA_SUCCESS);
    CHECK(cuMemFree(left) == CUDA_SUCCESS);
    CHECK(cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS);
}
