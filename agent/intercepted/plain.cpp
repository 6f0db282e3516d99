// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAlloc, cuMemAllocPitch and cuMemFree on ranges.

#include "intercepted/plain.hpp"

#include "intercepted/allocations.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/peers.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/rules.hpp"
#include "intercepted/state.hpp"
#include "intercepted/trimming.hpp"
#include "intercepted/waiting_frees.hpp"

#include <shared_mutex>

namespace gpu_sleep::agent::intercepted {
namespace {

/// What the driver was seen to give as pitch: rows begin at multiples of this.
constexpr std::size_t k_pitch_alignment = 512;

/// Allocates a range or a part of one, and gives back caches before it gives up. Errors: those of
/// Heap::allocate; refused (not to be intercepted: `left` says why).
Result<driver::DeviceAddress> take_range(ProgramMemory& memory, int device, std::size_t bytes, Left& left) {
    const auto tag = TagChoice()(bytes);
    if (!tag) {
        left.reason = TagChoice::why_not(bytes);
        return make_error(ErrorCode::refused, "not to be intercepted");
    }
    const auto is_short = [](const auto& address) {
        return !address && address.error().code == ErrorCode::out_of_device_memory;
    };
    auto address = try_for_memory(
        memory, [&] { return memory.allocate(device, *tag, bytes); }, is_short);
    if (is_short(address)) memory.note_shortage(device, bytes);
    return address;
}

/// Unless a capture is open. Returns what went wrong with the work before. The caller holds contexts_mutex().
CUresult free_now(ProgramMemory& memory, Freeing& allocation) {
    PendingWork work(memory.api());
    {
        const std::shared_lock order(capture_order());
        if (captures_open() != 0) {
            allocation.free_later();
            return CUDA_SUCCESS;
        }
        note_work(memory, *allocation, work);
    }
    const auto status = work.wait();
    give_allocation(memory, *allocation);
    allocation.done();
    return status;
}

} // namespace

Answer allocate(CUdeviceptr* address, std::size_t bytes, Left& left) noexcept {
    return answered_with_memory([&](ProgramMemory& memory) -> Answer {
        if (!address || bytes == 0) return std::nullopt;
        free_waiting();
        const auto device = current_device(memory);
        CUcontext context = nullptr;
        if (!device || memory.api().cuCtxGetCurrent(&context) != CUDA_SUCCESS) return std::nullopt;
        const auto range = take_range(memory, *device, bytes, left);
        if (!range) {
            left.context = owner_of_memory_in(context);
            left.device = *device;
            if (is_shortage(range.error())) return CUDA_ERROR_OUT_OF_MEMORY;
            log::debug("left to the driver: {}", range.error().message);
            return std::nullopt;
        }
        const auto added = guarded([&] {
            immortal<Allocations>().add(
                {*range, bytes, *device, owner_of_memory_in(context), nullptr, 0, false});
        });
        if (!added) {
            give_range(memory, *range);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // Who enables access from here on finds it in the index; what was enabled before is granted now.
        ignoring_errors([&] { grant_peers(memory, *device, *range); });
        *address = *range;
        return CUDA_SUCCESS;
    });
}

Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                        unsigned element_bytes, Left& left) noexcept {
    const bool is_valid = address && pitch && width != 0 && height != 0 &&
                          (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                          width < (std::size_t{1} << 40) && height < (std::size_t{1} << 40) / width;
    if (!is_valid) return std::nullopt; // the driver says what is wrong
    const auto row = round_up(width, k_pitch_alignment);
    const auto answer = allocate(address, row * height, left);
    if (answer == CUDA_SUCCESS) *pitch = row;
    return answer;
}

Answer free(CUdeviceptr address) noexcept {
    return answered([&]() -> Answer {
        free_waiting();
        let_contexts_end();
        // While the record is out of the index its context must not end: it would be worked in all the same.
        const std::shared_lock contexts(contexts_mutex());
        return free_known(address, [](ProgramMemory& memory, Freeing& allocation) -> Answer {
            if (allocation->pool) freed_from_pool(*allocation);
            auto status = CUDA_SUCCESS;
            ignoring_errors([&] { status = free_now(memory, allocation); });
            return status; // it is freed all the same, now or later
        });
    });
}

} // namespace gpu_sleep::agent::intercepted
