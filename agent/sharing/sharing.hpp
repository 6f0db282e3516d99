// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that processes share: by CUDA IPC, by pools, and by descriptors of virtual memory. What the calls of
// the program mean, what other processes are answered, and how all that share memory put it to sleep
// together.

#pragma once

#include "intercepted/calls.hpp"
#include "model/request.hpp"
#include "server/shared_memory.hpp"

namespace gpu_sleep::agent::sharing {

using intercepted::Answer;

// Legacy CUDA IPC of plain memory. Source: CUDA Driver API, cuIpcGetMemHandle.

/// A handle of ours for a plain allocation, which stays on the GPU from now on.
[[nodiscard]] Answer ipc_handle(CUipcMemHandle* handle, CUdeviceptr address) noexcept;
/// Opens such a handle of another process; waits for that one.
[[nodiscard]] Answer open_ipc(CUdeviceptr* address, const CUipcMemHandle& handle, unsigned flags) noexcept;
[[nodiscard]] Answer close_ipc(CUdeviceptr address) noexcept;

// Pools that the program shares, and memory of pools that it imports. What the driver made is left to it.
// Source: CUDA Driver API, Stream Ordered Memory Allocator.

/// Makes a descriptor that stands for a pool of ours.
[[nodiscard]] Answer export_pool(int* descriptor, CUmemoryPool pool) noexcept;
/// Makes a pool for who has such a descriptor: an empty one, by which what is of the other's is imported.
[[nodiscard]] Answer import_pool(CUmemoryPool* pool, int descriptor) noexcept;
/// Makes what others import a block of such a pool by, which stays on the GPU from now on.
[[nodiscard]] Answer export_pointer(CUmemPoolPtrExportData* data, CUdeviceptr address) noexcept;
/// As open_ipc(). The program frees it as memory of the pool.
[[nodiscard]] Answer import_pointer(CUdeviceptr* address, CUmemoryPool pool,
                                    const CUmemPoolPtrExportData* data) noexcept;

// Handles of virtual memory. Source: CUDA Driver API, Virtual Memory Management.

/// Imports memory that a process with an agent has exported; waits for that one. No answer for all other
/// descriptors.
[[nodiscard]] Answer import_handle(CUmemGenericAllocationHandle* handle, int descriptor) noexcept;
/// Runs `import`, which has the driver import such a descriptor.
CUresult import_unseen(const CUmemGenericAllocationHandle* handle, int descriptor,
                       const std::function<CUresult()>& import) noexcept;
/// Runs `use`, which exports the driver's handle behind the program's, or the handle itself when it is none
/// of ours, to the number that `descriptor` points to then. Its memory sleeps if all sleep who have it, or
/// stays where that cannot be known. The caller passes the gate meanwhile, so that nothing moves.
CUresult export_handle(CUmemGenericAllocationHandle handle, const int* descriptor,
                       const std::function<CUresult(CUmemGenericAllocationHandle)>& use) noexcept;

/// Answers another process about memory of which one of both made a handle. Thread-safe; does not wait for a
/// sleep. Errors: those of model::SharedMemoryRequest, driver_failed.
[[nodiscard]] Result<server::SharedMemory> share(const model::SharedMemoryRequest& request, pid_t asker);

// A sleep of memory that processes share: of its owner and of all that opened it, in one party. All are
// drained when they ask each other, and none has released anything.

/// Whether the program has any such memory.
[[nodiscard]] bool shares_any(ProgramMemory& memory);
/// The party of this process alone, where all that others have opened of its memory by CUDA IPC or pools is
/// closed, or they have ended; 0 otherwise, and where all of it sleeps. Waits a second for who does not
/// answer.
[[nodiscard]] std::uint64_t party_of_one(ProgramMemory& memory);
/// The pids of those that live, and with whom it shares memory. May throw for want of memory.
[[nodiscard]] std::vector<std::uint64_t> sharers(ProgramMemory& memory);
/// For a dry run of several processes as one: what is shared counts as going to sleep until settle_shared().
void expect_shared_to_go(ProgramMemory& memory, LockedMemory& locked);
/// Makes what the program has imported ready to sleep: what is mapped nowhere yet, and descriptors that it
/// keeps. The gate is shut until settle_shared().
void prepare_imports(ProgramMemory& memory) noexcept;
/// Asks the others, and has what goes to sleep with them be as any other memory until settle_shared().
/// Returns what stays, with the reason. Errors: timed_out, cancelled, those of server::ask_for_memory(): it
/// is not known who goes.
[[nodiscard]] Result<std::vector<std::string>> agree_on_shared(ProgramMemory& memory,
                                                               const model::SleepRequest& request,
                                                               Clock::time_point deadline,
                                                               const std::function<bool()>& keep_going);
/// What is awake stays from now on, and others get it; with a `waking` party, that alone, and what this wake
/// has mapped of the tags that it `wakes`, too.
void settle_shared(
    ProgramMemory& memory, LockedMemory& locked, std::uint64_t waking = 0,
    const std::function<bool(ledger::TagId)>& wakes = [](auto) { return true; });
/// Whether memory that this process has opened sleeps. May throw for want of memory.
[[nodiscard]] bool any_import_sleeps(LockedMemory& locked);
/// What sleeps here and has no owner any more becomes this process's own. Returns what of it is lost.
[[nodiscard]] std::vector<std::string> adopt_orphans(ProgramMemory& memory);
/// Gets the memory of sleeping imports from their owners, and gives `wanted` the handles, but for those that
/// were closed meanwhile, or were not asked for and sleep at their owner. `descriptors` gets theirs,
/// to close once the memory is mapped: before, the driver takes 1 ms for each. `keep_going` is asked while it
/// waits. Errors: driver_failed (the owner sleeps, too), timed_out, cancelled; those of
/// server::ask_for_memory().
[[nodiscard]] Result<void> fetch_imports(const driver::Api& api, std::span<ledger::Backing* const> wanted,
                                         std::vector<UnsharedFd>& descriptors,
                                         const model::WakeRequest& request, Clock::time_point deadline,
                                         const std::function<bool()>& keep_going);
/// The command is gone, or has withdrawn, when all was ready: whether it has told any of those that share
/// memory with this process to go on. Then this one has to go on, too, for no memory may become two. Waits
/// for the others, half a second as a rule.
[[nodiscard]] bool party_has_passed(ProgramMemory& memory, std::uint64_t party);

} // namespace gpu_sleep::agent::sharing
