// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The list of such memory, and of the driver's handles.

#include "intercepted/residents.hpp"

#include "base/immortal.hpp"
#include "common/lock_order.hpp"
#include "intercepted/own_contexts.hpp"
#include "intercepted/state.hpp"
#include "intercepted/taken.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

namespace gpu_sleep::agent::intercepted {
namespace {

struct Residents {
    struct Resident {
        Bytes bytes;
        const char* kind;
        const char* reason;
        int device;
        CUcontext context; ///< whose end takes it; null: none that is known
    };
    Mutex mutex GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<CUdeviceptr, Resident> by_address GPU_SLEEP_GUARDED_BY(mutex);
    /// A handle of the driver's that is none of ours: of memory on the host, or of another process.
    struct Foreign {
        unsigned references = 0;
        unsigned mappings = 0;
        const char* shared = nullptr; ///< with other processes, and how
    };
    std::map<CUmemGenericAllocationHandle, Foreign> foreign GPU_SLEEP_GUARDED_BY(mutex);
    std::map<CUdeviceptr, CUmemGenericAllocationHandle>
        foreign_mappings GPU_SLEEP_GUARDED_BY(mutex); ///< and whose they are
    static Residents& instance() {
        static Immortal<Residents> s_residents;
        return *s_residents;
    }
};

void add_resident(CUdeviceptr address, Residents::Resident resident) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        if (with) resident.device = current_device(*with).value_or(0);
        auto& residents = Residents::instance();
        const MutexLock lock(residents.mutex);
        residents.by_address.insert_or_assign(address, resident);
    });
}

} // namespace

void stays_in_context(CUdeviceptr address, Bytes bytes, const char* kind, const char* reason) noexcept {
    ignoring_errors([&] {
        const auto with = memory();
        CUcontext context = nullptr;
        if (with && with->api().cuCtxGetCurrent(&context) == CUDA_SUCCESS)
            context = owner_of_memory_in(context);
        add_resident(address, {bytes, kind, reason, 0, context});
    });
}

void managed_allocated(CUdeviceptr address, std::size_t bytes) noexcept {
    stays_in_context(address, bytes, "managed", "the driver moves it between host and device itself");
}

void imported(CUdeviceptr address, std::size_t bytes, const char* kind) noexcept {
    add_resident(address, {bytes, kind, k_of_another_process, 0, nullptr});
}

void forget_residual(CUdeviceptr address) noexcept {
    ignoring_errors([&] {
        auto& residents = Residents::instance();
        const MutexLock lock(residents.mutex);
        residents.by_address.erase(address);
    });
}

namespace {

/// Forgets the handle once nothing holds its memory: the driver may give it out again.
void forget_if_unused(Residents& residents, CUmemGenericAllocationHandle handle)
    GPU_SLEEP_REQUIRES(residents.mutex) {
    const auto found = residents.foreign.find(handle);
    if (found != residents.foreign.end() && found->second.references == 0 && found->second.mappings == 0)
        residents.foreign.erase(found);
}

} // namespace

void handle_taken(CUmemGenericAllocationHandle handle) noexcept {
    ignoring_errors([&] {
        auto& residents = Residents::instance();
        const MutexLock lock(residents.mutex);
        ++residents.foreign[handle].references;
    });
}

void handle_shared(CUmemGenericAllocationHandle handle, const char* how) noexcept {
    ignoring_errors([&] {
        auto& residents = Residents::instance();
        const MutexLock lock(residents.mutex);
        residents.foreign[handle].shared = how;
    });
}

void handle_released(CUmemGenericAllocationHandle handle) noexcept {
    auto& residents = Residents::instance();
    const MutexLock lock(residents.mutex);
    const auto found = residents.foreign.find(handle);
    if (found == residents.foreign.end()) return;
    if (found->second.references != 0) --found->second.references;
    forget_if_unused(residents, handle);
}

void mapped_by_driver(CUdeviceptr address, std::size_t bytes, CUmemGenericAllocationHandle handle) noexcept {
    bool is_imported = false;
    ignoring_errors([&] {
        auto& residents = Residents::instance();
        const MutexLock lock(residents.mutex);
        auto& foreign = residents.foreign[handle];
        residents.foreign_mappings.insert_or_assign(address, handle);
        ++foreign.mappings;
        is_imported = foreign.shared == k_of_another_process;
    });
    if (is_imported) imported(address, bytes, "virtual");
}

void unmapped_by_driver(CUdeviceptr address, std::size_t bytes) noexcept {
    auto& residents = Residents::instance();
    const MutexLock lock(residents.mutex);
    residents.by_address.erase(residents.by_address.lower_bound(address),
                               residents.by_address.lower_bound(address + bytes));
    auto& mappings = residents.foreign_mappings;
    for (auto at = mappings.lower_bound(address); at != mappings.end() && at->first < address + bytes;) {
        const auto handle = at->second;
        at = mappings.erase(at);
        --residents.foreign[handle].mappings;
        forget_if_unused(residents, handle);
    }
}

Taken take_managed_of(CUcontext context) {
    using Taking = std::map<CUdeviceptr, Residents::Resident>;
    const auto taken = std::make_shared<Taking>();
    Taken both{[] {},
               [taken] {
                   auto& residents = Residents::instance();
                   const MutexLock lock(residents.mutex);
                   residents.by_address.merge(*taken);
               }};
    auto& residents = Residents::instance();
    const MutexLock lock(residents.mutex);
    for (auto next = residents.by_address.begin(); next != residents.by_address.end();) {
        const auto here = next++;
        if (here->second.context == context) taken->insert(residents.by_address.extract(here));
    }
    return both;
}

void add_to_sum(std::vector<Residual>& sums, const Residual& row) {
    const auto same = std::find_if(sums.begin(), sums.end(), [&](const Residual& s) {
        return std::string_view(s.kind) == row.kind && s.device == row.device &&
               std::string_view(s.reason) == row.reason;
    });
    if (same == sums.end()) return sums.push_back(row);
    same->bytes += row.bytes;
    same->count += row.count;
}

void add_residents(std::vector<Residual>& rows) {
    auto& residents = Residents::instance();
    const MutexLock lock(residents.mutex);
    for (const auto& [address, resident] : residents.by_address)
        rows.push_back({resident.kind, resident.device, resident.bytes, 1, resident.reason});
    // On the host, or not mapped: it takes nothing of a GPU, and decides what the driver can do.
    for (const auto& [handle, foreign] : residents.foreign)
        if (foreign.shared && (foreign.shared == k_exported || foreign.mappings == 0))
            rows.push_back({"virtual", 0, 0, 1, foreign.shared});
}

} // namespace gpu_sleep::agent::intercepted
