// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAlloc, cuMemAllocPitch and cuMemFree on ranges.

#include "caught/pending_work.hpp"
#include "caught/state.hpp"
#include "driver/context.hpp"

#include <mutex>
#include <shared_mutex>

namespace gpu_sleep::agent::caught {
namespace {

/// What the driver was seen to give as pitch: rows begin at multiples of this.
constexpr std::size_t k_pitch_alignment = 512;

/// Frees that have to wait: waiting for work would break a capture, and so would not waiting.
struct Later {
    std::mutex mutex; ///< guards allocations
    std::vector<Known> allocations;
    static Later& instance() {
        static auto* const later = new Later;
        return *later;
    }
};

/// Notes all work that may use the allocation, for which the driver's free waits. Memory of a pool outlives
/// the context that it was made in, and other contexts of its device may use it too. The caller holds
/// contexts_mutex(), until it has waited.
void note_work(const Agent::Memory& memory, const Known& allocation, PendingWork& work) {
    if (allocation.pool) return note_work_on(memory, allocation.device, work);
    work.note(allocation.context);
}

} // namespace

void note_work_on(const Agent::Memory& memory, int device, PendingWork& work) {
    const auto& api = memory.api;
    CUcontext current = nullptr;
    if (current_device(memory) == device && api.cuCtxGetCurrent(&current) == CUDA_SUCCESS) work.note(current);
    unsigned flags = 0;
    int is_active = 0;
    if (api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS && is_active) {
        const auto primary = driver::PrimaryContext::retain(api, device);
        if (primary && holds_primary(device)) work.note(primary->get());
        if (primary && !holds_primary(device)) work.wait_for(primary->get()); // it ends when we let go
    }
    for (auto* const context : own_contexts_of(device)) work.note(context);
}

Answer allocate(CUdeviceptr* address, std::size_t bytes) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !address || bytes == 0) return std::nullopt;
        free_waiting();
        const auto device = current_device(*with);
        CUcontext context = nullptr;
        if (!device || with->api.cuCtxGetCurrent(&context) != CUDA_SUCCESS) return std::nullopt;
        const auto range = take_range(*with, *device, bytes);
        if (!range) {
            if (range.error().code == ErrorCode::out_of_device_memory) return CUDA_ERROR_OUT_OF_MEMORY;
            log::debug("left to the driver: {}", range.error().message);
            return std::nullopt;
        }
        Allocations::instance().add({*range, bytes, *device, owner_of_memory_in(context), nullptr, 0, false});
        *address = *range;
        return CUDA_SUCCESS;
    });
}

Answer allocate_pitched(CUdeviceptr* address, std::size_t* pitch, std::size_t width, std::size_t height,
                        unsigned element_bytes) noexcept {
    const bool is_valid = address && pitch && width != 0 && height != 0 &&
                          (element_bytes == 4 || element_bytes == 8 || element_bytes == 16) &&
                          width < (std::size_t{1} << 40) && height < (std::size_t{1} << 40) / width;
    if (!is_valid) return std::nullopt; // the driver says what is wrong
    const auto row = round_up(width, k_pitch_alignment);
    const auto answer = allocate(address, row * height);
    if (answer == CUDA_SUCCESS) *pitch = row;
    return answer;
}

void free_later(const Known& allocation) {
    auto& later = Later::instance();
    const std::lock_guard lock(later.mutex);
    later.allocations.push_back(allocation);
}

Taken take_waiting_of(const Agent::Memory& memory, const std::function<bool(const Known&)>& dies) {
    auto& later = Later::instance();
    std::vector<Known> taken;
    {
        const std::lock_guard lock(later.mutex);
        for (const auto& allocation : later.allocations)
            if (dies(allocation)) taken.push_back(allocation);
        std::erase_if(later.allocations, dies);
    }
    auto gone = [=] {
        for (const auto& allocation : taken) give_range(memory, allocation.address);
    };
    auto stays = [=] {
        for (const auto& allocation : taken) free_later(allocation);
    };
    return {std::move(gone), std::move(stays)};
}

void free_waiting() noexcept {
    close_waiting();
    noted([] {
        auto& later = Later::instance();
        {
            const std::lock_guard lock(later.mutex);
            if (later.allocations.empty() || captures_open() != 0) return;
        }
        const auto with = memory();
        if (!with) return;
        // From here on none of their contexts ends; those that ended took theirs with them.
        const std::shared_lock contexts(contexts_mutex());
        PendingWork work(with->api);
        std::vector<Known> due;
        {
            const std::shared_lock order(capture_order());
            if (captures_open() != 0) return;
            {
                const std::lock_guard lock(later.mutex);
                due.swap(later.allocations);
            }
            for (const auto& allocation : due) note_work(*with, allocation, work);
        }
        work.wait();
        for (const auto& allocation : due) give_range(*with, allocation.address);
    });
}

Answer free(CUdeviceptr address) noexcept {
    return answered([&]() -> Answer {
        auto& index = Allocations::instance();
        if (const auto known = index.find(address); !known || known->address != address) return std::nullopt;
        free_waiting();
        // While the record is out of the index its context must not end: it would be worked in all the same.
        const std::shared_lock contexts(contexts_mutex());
        // The record goes first: behind the free the address may at once be somebody else's.
        const auto allocation = index.take(address);
        if (!allocation) return std::nullopt;
        if (allocation->is_virtual) {
            index.put_back(*allocation);
            return std::nullopt;
        }
        const auto with = memory();
        if (!with) return CUDA_SUCCESS; // the process is ending: the driver takes everything back
        if (allocation->pool) freed_from_pool(*allocation);
        PendingWork work(with->api);
        {
            const std::shared_lock order(capture_order());
            if (captures_open() != 0) {
                free_later(*allocation);
                return CUDA_SUCCESS;
            }
            note_work(*with, *allocation, work);
        }
        work.wait();
        give_range(*with, allocation->address);
        return CUDA_SUCCESS;
    });
}

std::optional<Known> find(CUdeviceptr address) noexcept {
    return Allocations::instance().find(address);
}

} // namespace gpu_sleep::agent::caught
