// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemAlloc, cuMemAllocPitch and cuMemFree on ranges.

#include "intercepted/plain.hpp"

#include "common/lock_order.hpp"
#include "driver/context.hpp"
#include "intercepted/allocations.hpp"
#include "intercepted/answer.hpp"
#include "intercepted/captures.hpp"
#include "intercepted/contexts.hpp"
#include "intercepted/contexts_lock.hpp"
#include "intercepted/ipc.hpp"
#include "intercepted/peers.hpp"
#include "intercepted/pending_work.hpp"
#include "intercepted/rules.hpp"
#include "intercepted/state.hpp"
#include "intercepted/taken.hpp"
#include "intercepted/trimming.hpp"

#include "base/immortal.hpp"

#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>

namespace gpu_sleep::agent::intercepted {
namespace {

/// What the driver was seen to give as pitch: rows begin at multiples of this.
constexpr std::size_t k_pitch_alignment = 512;

/// Frees that have to wait: waiting for work would break a capture, and so would not waiting.
struct Later {
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Known> allocations GPU_SLEEP_GUARDED_BY(mutex);
    static Later& instance() {
        static Immortal<Later> s_later;
        return *s_later;
    }
};

/// Some of them, while they are freed. What is not by its end waits again: memory was short, say.
class Due {
public:
    Due() = default;
    Due(const Due&) = delete;
    Due& operator=(const Due&) = delete;
    ~Due() { put_back(); }

    void take(const std::function<bool(const Known&)>& wanted) {
        auto& later = Later::instance();
        const MutexLock lock(later.mutex);
        allocations_ = move_out(later.allocations, wanted);
    }
    void give_back(ProgramMemory& memory) {
        for (; !allocations_.empty(); allocations_.erase(allocations_.begin()))
            give_allocation(memory, allocations_.begin()->second);
    }
    void put_back() noexcept {
        auto& later = Later::instance();
        const MutexLock lock(later.mutex);
        later.allocations.merge(allocations_);
    }
    /// Those that they were made in are gone, and all work in them.
    void forget_contexts() noexcept {
        for (auto& [address, allocation] : allocations_) allocation.context = nullptr;
    }
    [[nodiscard]] auto begin() const { return allocations_.begin(); }
    [[nodiscard]] auto end() const { return allocations_.end(); }

private:
    std::map<CUdeviceptr, Known> allocations_;
};

/// Notes all work that may use the allocation, for which the driver's free waits. Memory of a pool outlives
/// the context that it was made in, and other contexts of its device may use it too. The caller holds
/// contexts_mutex(), until it has waited.
void note_work(ProgramMemory& memory, const Known& allocation, PendingWork& work) {
    if (allocation.pool) return note_work_on(memory, allocation.device, work);
    work.note(allocation.context);
}

/// Allocates a range or a part of one, and gives back caches before it gives up. Errors: those of
/// Heap::allocate; refused (not to be intercepted: `left` says why).
Result<driver::DeviceAddress> take_range(ProgramMemory& memory, int device, std::size_t bytes, Left& left) {
    const auto tag = TagChoice()(bytes);
    if (!tag) {
        left.reason = TagChoice::why_not(bytes);
        return make_error(ErrorCode::refused, "not to be intercepted");
    }
    const auto try_once = [&] { return memory.allocate(device, *tag, bytes); };
    auto address = try_once();
    const auto is_short = [&] { return !address && address.error().code == ErrorCode::out_of_device_memory; };
    if (is_short()) {
        trim();
        address = try_once();
    }
    if (is_short() && free_amid_captures(memory)) address = try_once();
    if (is_short()) memory.note_shortage(device, bytes);
    return address;
}

} // namespace

void note_work_on(ProgramMemory& memory, int device, PendingWork& work) {
    const auto& api = memory.api();
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

Answer allocate(CUdeviceptr* address, std::size_t bytes, Left& left) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!with || !address || bytes == 0) return std::nullopt;
        free_waiting();
        const auto device = current_device(*with);
        CUcontext context = nullptr;
        if (!device || with->api().cuCtxGetCurrent(&context) != CUDA_SUCCESS) return std::nullopt;
        const auto range = take_range(*with, *device, bytes, left);
        if (!range) {
            left.context = owner_of_memory_in(context);
            left.device = *device;
            if (is_shortage(range.error())) return CUDA_ERROR_OUT_OF_MEMORY;
            log::debug("left to the driver: {}", range.error().message);
            return std::nullopt;
        }
        const auto added = guarded([&]() -> Result<void> {
            Allocations::instance().add(
                {*range, bytes, *device, owner_of_memory_in(context), nullptr, 0, false});
            return {};
        });
        if (!added) {
            give_range(*with, *range);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        // Who enables access from here on finds it in the index; what was enabled before is granted now.
        ignoring_errors([&] { grant_peers(*with, *device, *range); });
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

void Freeing::free_later() noexcept {
    if (record_.empty()) return;
    auto& later = Later::instance();
    const MutexLock lock(later.mutex);
    later.allocations.insert(std::move(record_));
}

Taken take_waiting_of(ProgramMemory& memory, const std::function<bool(const Known&)>& dies) {
    const auto due = std::make_shared<Due>();
    auto gone = [=, &memory] {
        due->forget_contexts();
        due->give_back(memory);
    };
    Taken taken{std::move(gone), [=] { due->put_back(); }};
    due->take(dies); // last: it takes no memory
    return taken;
}

void free_waiting() noexcept {
    close_waiting();
    ignoring_errors([] {
        auto& later = Later::instance();
        {
            const MutexLock lock(later.mutex);
            if (later.allocations.empty() || captures_open() != 0) return;
        }
        const auto with = memory();
        if (!with) return;
        let_contexts_end();
        // From here on none of their contexts ends; those that ended took theirs with them.
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(with->api());
        {
            const std::shared_lock order(capture_order());
            if (captures_open() != 0) return;
            due.take([](const Known&) { return true; });
            for (const auto& [address, allocation] : due) note_work(*with, allocation, work);
        }
        work.wait();
        due.give_back(*with);
    });
}

bool free_amid_captures(ProgramMemory& memory) noexcept {
    bool is_any_free = false;
    ignoring_errors([&] {
        let_contexts_end();
        const std::shared_lock contexts(contexts_mutex());
        Due due;
        PendingWork work(memory.api(), PendingWork::Way::amid_captures);
        // What is of a pool may have been freed in a stream that captures: until then it is in use.
        due.take([](const Known& allocation) { return !allocation.pool; });
        for (const auto& [address, allocation] : due)
            if (!work.note(allocation.context)) return;
        work.wait();
        is_any_free = due.begin() != due.end();
        due.give_back(memory);
    });
    return is_any_free;
}

namespace {

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
