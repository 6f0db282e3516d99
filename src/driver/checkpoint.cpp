// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The calls of the checkpoint, by declarations of our own: cuda.h has them from 12.8 on.

#include "driver/checkpoint.hpp"

#include "driver/library.hpp"

#include <cuda.h>
#include <signal.h>

#include <cerrno>
#include <charconv>
#include <cstddef>

namespace gpu_sleep::driver {
struct Checkpoint::Calls : SymbolTable {
    using SymbolTable::SymbolTable;

    /// CUcheckpointLockArgs.
    struct LockArgs {
        std::uint32_t timeout_ms = 0; ///< 0: none
        std::uint32_t reserved = 0;
        std::uint64_t more_reserved[7] = {};
    };
    static_assert(sizeof(LockArgs) == 64);

    /// CUcheckpointRestoreArgs, and the pairs that it points to.
    struct Pair {
        CUuuid from;
        CUuuid to;
    };
    struct RestoreArgs {
        const Pair* pairs = nullptr;
        unsigned count = 0;
        char reserved[52 - sizeof(void*)] = {};
        std::uint64_t more_reserved = 0;
    };
    static_assert(sizeof(RestoreArgs) == 64);

    CUresult(CUDAAPI* init)(unsigned) = needed("cuInit");
    CUresult(CUDAAPI* version)(int*) = needed("cuDriverGetVersion");
    CUresult(CUDAAPI* error_name)(CUresult, const char**) = needed("cuGetErrorName");
    CUresult(CUDAAPI* state)(int, int*) = needed("cuCheckpointProcessGetState");
    CUresult(CUDAAPI* restore_thread)(int, int*) = needed("cuCheckpointProcessGetRestoreThreadId");
    CUresult(CUDAAPI* lock)(int, LockArgs*) = needed("cuCheckpointProcessLock");
    CUresult(CUDAAPI* checkpoint)(int, void*) = needed("cuCheckpointProcessCheckpoint");
    CUresult(CUDAAPI* restore)(int, RestoreArgs*) = needed("cuCheckpointProcessRestore");
    CUresult(CUDAAPI* unlock)(int, void*) = needed("cuCheckpointProcessUnlock");
};

namespace {

/// The bytes of "GPU-8a5b...", 32 hexadecimal digits and any dashes; nothing for any other text.
std::optional<CUuuid> parse_uuid(std::string_view text) {
    constexpr std::string_view k_beginning = "GPU-";
    if (!text.starts_with(k_beginning)) return {};
    std::string digits(text.substr(k_beginning.size()));
    std::erase(digits, '-');
    CUuuid uuid{};
    if (digits.size() != 2 * sizeof uuid.bytes) return {};
    for (std::size_t i = 0; i < sizeof uuid.bytes; ++i) {
        unsigned char byte = 0;
        const char* const begin = digits.data() + 2 * i;
        const auto [end, failure] = std::from_chars(begin, begin + 2, byte, 16);
        if (failure != std::errc{} || end != begin + 2) return {};
        uuid.bytes[i] = static_cast<char>(byte);
    }
    return uuid;
}

} // namespace

Result<Checkpoint> Checkpoint::load() {
    const auto library = GPU_SLEEP_TRY(open_libcuda());
    static const auto& calls = *new Calls(library);
    if (!calls.is_complete())
        return make_error(
            ErrorCode::no_driver,
            "the CUDA driver is too old to checkpoint processes: this needs one for CUDA 12.8 or later");
    return Checkpoint(calls);
}

Result<void> Checkpoint::initialise() const {
    return done(calls_->init(0), "cuInit", 0);
}

Result<void> Checkpoint::done(int status, std::string_view call, pid_t pid) const {
    if (status == CUDA_SUCCESS) return {};
    const char* name = nullptr;
    if (calls_->error_name(static_cast<CUresult>(status), &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    Error error{ErrorCode::driver_failed, {}, std::string(call), status};
    switch (status) {
    case CUDA_ERROR_NO_DEVICE: error.code = ErrorCode::no_driver; break;
    case CUDA_ERROR_NOT_INITIALIZED: error.code = ErrorCode::no_process; break;
    case CUDA_ERROR_NOT_PERMITTED: error.code = ErrorCode::not_permitted; break;
    case CUDA_ERROR_NOT_READY: error.code = ErrorCode::timed_out; break;
    case CUDA_ERROR_OUT_OF_MEMORY: error.code = ErrorCode::out_of_device_memory; break;
    case CUDA_ERROR_OPERATING_SYSTEM: // it could not be reached, whyever
        if (pid != 0 && ::kill(pid, 0) != 0)
            error.code = errno == EPERM ? ErrorCode::not_permitted : ErrorCode::no_process;
        break;
    default: break;
    }
    if (pid == 0)
        error.message = fmt::format("cannot initialise CUDA: {} ({} gave {})", name, call, status);
    else if (status == CUDA_ERROR_NOT_INITIALIZED)
        error.message = fmt::format("it does not use CUDA, the driver says ({} gave {})", call, status);
    else if (error.code == ErrorCode::no_process)
        error.message = "it has ended";
    else
        error.message = fmt::format("the driver says {} ({} gave {})", name, call, status);
    if (status == CUDA_ERROR_NOT_SUPPORTED)
        error.message += "; for example, it cannot checkpoint managed memory";
    return error;
}

Result<checkpoint::State> Checkpoint::state(pid_t pid) const {
    int state = 0;
    GPU_SLEEP_TRY(done(calls_->state(pid, &state), "cuCheckpointProcessGetState", pid));
    const auto stands = static_cast<checkpoint::State>(state);
    if (state < 0 || stands > checkpoint::State::failed)
        return make_error(ErrorCode::driver_failed, "the driver gives a state that is not known ({})", state);
    return stands;
}

Result<int> Checkpoint::restore_thread(pid_t pid) const {
    int thread = 0;
    GPU_SLEEP_TRY(done(calls_->restore_thread(pid, &thread), "cuCheckpointProcessGetRestoreThreadId", pid));
    return thread;
}

Result<void> Checkpoint::lock(pid_t pid, Milliseconds timeout) const {
    Calls::LockArgs args;
    args.timeout_ms = static_cast<std::uint32_t>(
        std::clamp<Milliseconds::rep>(timeout.count(), 1, std::numeric_limits<std::uint32_t>::max()));
    return done(calls_->lock(pid, &args), "cuCheckpointProcessLock", pid);
}

Result<void> Checkpoint::checkpoint(pid_t pid) const {
    return done(calls_->checkpoint(pid, nullptr), "cuCheckpointProcessCheckpoint", pid);
}

Result<void> Checkpoint::restore(pid_t pid, std::span<const GpuPair> pairs) const {
    constexpr const char* k_call = "cuCheckpointProcessRestore";
    constexpr int k_takes_pairs = 13000; // older ones have nothing but reserved bytes there
    if (pairs.empty()) return done(calls_->restore(pid, nullptr), k_call, pid);
    int version = 0;
    if (calls_->version(&version) != CUDA_SUCCESS || version < k_takes_pairs)
        return make_error(ErrorCode::invalid_argument,
                          "this driver restores a process only on the GPU where it was: another GPU needs a "
                          "driver for CUDA 13.0 or later");
    std::vector<Calls::Pair> list;
    for (const auto& pair : pairs) {
        const auto from = parse_uuid(pair.from);
        const auto to = parse_uuid(pair.to);
        if (!from || !to)
            return make_error(ErrorCode::invalid_argument,
                              "'{}' is not a GPU that a process can be restored on",
                              from ? pair.to : pair.from);
        list.push_back({*from, *to});
    }
    Calls::RestoreArgs args;
    args.pairs = list.data();
    args.count = static_cast<unsigned>(list.size());
    auto restored = done(calls_->restore(pid, &args), k_call, pid);
    if (!restored && restored.error().driver_status == CUDA_ERROR_INVALID_VALUE)
        restored.error().code =
            ErrorCode::invalid_argument; // of what it was given the pairs alone can be wrong
    return restored;
}

Result<void> Checkpoint::unlock(pid_t pid) const {
    return done(calls_->unlock(pid, nullptr), "cuCheckpointProcessUnlock", pid);
}

} // namespace gpu_sleep::driver
