// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Handles of virtual memory that the program exports by descriptors, and imports.

#include "sharing/sharing.hpp"

#include "intercepted/virtual_memory.hpp"
#include "sharing/inside.hpp"

#include <unistd.h>

namespace gpu_sleep::agent::sharing {

Answer import_handle(CUmemGenericAllocationHandle* handle, int descriptor) noexcept {
    return answered([&]() -> Answer {
        const auto with = memory();
        if (!handle) return std::nullopt;
        const auto import = with ? recognise(descriptor) : Result<PassingImport>(Error());
        if (!import) return std::nullopt;
        auto& memory = *with;
        auto& all = books().handles;
        if (import->from.pid == ::getpid()) {
            const MutexLock lock(all.mutex);
            auto* const own = all.find(import->asked.allocation);
            if (!own) return CUDA_ERROR_INVALID_VALUE;
            ++own->references;
            *handle = own->number;
            return CUDA_SUCCESS;
        }
        const Passing passing(*import);
        const auto shared = ask_until_awake(import->from, import->asked);
        if (!shared) return shared.error().code == ErrorCode::cancelled ? Answer(k_sleeps) : std::nullopt;
        auto made = make_entry<Handles::ByNumber>();
        auto& mine = made.mapped();
        mine.import = *import;
        mine.import->path = path_of(shared->memory.get());
        mine.import->file = FileIdentity::of(shared->memory.get()).value_or(FileIdentity());
        mine.bytes = shared->what.bytes;
        mine.references = 1;
        auto opened = import_memory(memory.api(), shared->memory.get());
        if (!opened) return to_status(opened.error());
        const auto status =
            memory.api().cuMemGetAllocationPropertiesFromHandle(&mine.properties, opened->get());
        if (status != CUDA_SUCCESS) return status;
        mine.imported_on = driver::current_device(memory.api()).value_or(mine.properties.location.id);
        mine.stay_reason =
            is_device(mine.properties.location) ? why_it_stays(mine.properties) : k_of_another_process;
        const MutexLock lock(all.mutex);
        mine.real = opened->release();
        *handle = all.add(std::move(made));
        return CUDA_SUCCESS;
    });
}

CUresult import_unseen(const CUmemGenericAllocationHandle* handle, int descriptor,
                       const std::function<CUresult()>& import) noexcept {
    const auto status = import();
    bool is_noted = false;
    ignoring_errors([&] { is_noted = status != CUDA_SUCCESS || note_unseen_import(descriptor); });
    if (is_noted) return status;
    log::warning("memory that came by descriptor {} cannot be opened: too few descriptors", descriptor);
    if (const auto with = memory()) with->api().cuMemRelease(*handle);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult export_handle(CUmemGenericAllocationHandle handle, const int* descriptor,
                       const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept {
    const auto real = real_handle_of(handle);
    if (!real) return k_sleeps;
    const auto status = use(*real);
    if (status != CUDA_SUCCESS) return status;
    bool is_known = false;
    with_handles([&](LockedMemory& locked, Handles& all) GPU_SLEEP_REQUIRES(all.mutex) {
        auto* const mine = all.find(handle);
        if (!mine || mine->stay_reason) return;
        const bool is_first = !mine->is_exported;
        if (!note_export(all, *mine, *descriptor)) return;
        if (is_first) share_handle(locked, *mine);
        is_known = true;
    });
    if (!is_known) make_handle_stay(handle, k_exported);
    return status;
}

} // namespace gpu_sleep::agent::sharing
