// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What the files of this module use of each other: opening memory of its owner, and descriptors of it.

#pragma once

#include "intercepted/calls.hpp"
#include "server/shared_memory.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <set>

namespace gpu_sleep::agent::sharing {

using namespace intercepted; // whose frame of calls this has, too

/// A process that shares answers at once, also during a sleep, unless it is stopped or its driver is busy.
inline constexpr Milliseconds k_patience{10'000};
/// How long where a process that is stopped must hold nobody up.
inline constexpr Milliseconds k_until_told{1'000};

/// A number that only processes know to which this one gave memory; nothing without random numbers.
[[nodiscard]] std::optional<std::array<std::uint64_t, 2>> secret();
/// The driver's handle of memory that came by a descriptor. Errors: driver_failed, context_lost.
[[nodiscard]] Result<driver::PhysicalMemory> import_memory(const driver::Api& api, int memory);
/// Asks again while the memory sleeps at its owner, as a touch waits. Errors: those of
/// server::ask_for_memory(); cancelled (this process sleeps, and touches fail).
[[nodiscard]] Result<server::SharedMemory> ask_until_awake(const ProcessIdentity& owner,
                                                           model::SharedMemoryRequest asked);
/// Whether it has ended, for all that can be known.
[[nodiscard]] bool has_ended(const ProcessIdentity& process);
/// The name of its first thread.
[[nodiscard]] std::string name_of(pid_t pid);
/// Whether the process certainly has no agent.
[[nodiscard]] bool has_no_agent(pid_t pid);
/// The other processes of this user that may have an agent; the pid is 0 where that cannot be known.
[[nodiscard]] std::vector<ProcessIdentity> others_with_agents();
/// Whether a process that does not answer is about to end; waits a second for that.
[[nodiscard]] bool is_gone_soon(const ProcessIdentity& process);
/// The status of the driver's call that failed: nothing else fails while shared memory is mapped.
[[nodiscard]] inline CUresult to_status(const Error& error) noexcept {
    return error.driver_status != 0 ? static_cast<CUresult>(error.driver_status) : CUDA_ERROR_UNKNOWN;
}
/// Memory that is being opened, from now on until this goes.
class Passing {
public:
    /// May throw for want of memory.
    explicit Passing(const PassingImport& import);
    Passing& operator=(Passing&&) = delete;
    ~Passing();

private:
    std::list<PassingImport>::iterator here_;
};

/// Marks a descriptor by which the program exports memory. False if it cannot be marked: then nobody knows
/// who gets it. May throw for want of memory.
[[nodiscard]] bool note_export(Handles& all, Handle& handle, int descriptor) GPU_SLEEP_REQUIRES(all.mutex);
/// Where the descriptor's file can be opened anew; empty if that is not known.
[[nodiscard]] std::string path_of(int descriptor);
/// The program's handles of other processes' memory. May throw for want of memory.
[[nodiscard]] std::vector<PassingImport> imported_handles();
/// Whose memory a descriptor is, and by which values it is asked for. Errors: not_owned, io_failed, those of
/// server::ask_for_memory().
[[nodiscard]] Result<PassingImport> recognise(int descriptor);
/// Of a descriptor that the driver has imported, and the agent whose memory it is was not told: that sees a
/// lock while this process lives. False if it would not. May throw for want of memory.
[[nodiscard]] bool note_unseen_import(int descriptor);
/// Whether all handles that the program has of that memory of another process, if any, are of what the ledger
/// has.
[[nodiscard]] bool can_go(const model::SharedMemoryRequest& asked);
/// What its agent says of an export of this process: see model::SharingQuestion. Errors: not_owned.
[[nodiscard]] Result<server::SharedMemory> answer_of_exports(const model::SharedMemoryRequest& request);
/// Those of the handles of which a descriptor may be left anywhere, or may have been imported unseen. Tickets
/// lie in the place of those that this process keeps afterwards.
[[nodiscard]] std::set<std::uint64_t> exported_elsewhere(const std::set<std::uint64_t>& handles);
/// Whether a descriptor of that memory, whose owner has ended, may be left anywhere or may have been imported
/// unseen, or this process has several handles of it.
[[nodiscard]] bool is_left_anywhere(const model::SharedMemoryRequest& asked);
/// Puts tickets in the place of descriptors of other processes' memory that this one has imported. They stay
/// there: by them it can be imported again where there is an agent.
void leave_tickets_of_imports();
/// Puts descriptors in the place of the tickets for all that is awake.
void put_descriptors_back(const LockedMemory& locked) noexcept;

} // namespace gpu_sleep::agent::sharing
