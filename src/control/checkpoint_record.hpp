// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A record that a command leaves for the next one about a process that the driver has checkpointed: how much
// memory of which GPU it needs to come back, which the driver does not tell.

#pragma once

#include "base/files.hpp"
#include "client/room_plan.hpp"
#include "control/process_info.hpp"

#include <set>

namespace gpu_sleep::control {

/// The contents of a record.
struct Recorded {
    client::BytesByGpu needs{}; ///< empty where they are not known
    bool is_lost = false;       ///< a restore has found too little: the driver tries no other
};

/// The file /tmp/gpu-sleep-UID/PID-STARTTIME-NAMESPACE.checkpoint of the process's owner, whoever asks,
/// locked while this lives: one command at a time is at work with a process. It stays while the process is
/// checkpointed, and names the process beyond its end. The owner can change it, and hold its locks for ever.
class CheckpointRecord {
public:
    /// Makes the file if it is missing. Errors: io_failed, timed_out (another command has it).
    [[nodiscard]] static Result<CheckpointRecord> open(const Process& process, Milliseconds timeout);

    /// Returns what was last written.
    [[nodiscard]] Recorded read() const;
    /// Errors: io_failed (what was there stays, or nothing does).
    [[nodiscard]] Result<void> write(const Recorded& recorded) const;
    /// Removes the file: the process is awake.
    void remove() const { ::unlinkat(directory_.get(), name_.c_str(), 0); }

    /// Returns the file's directory, which the owner's agents use, too. Lent.
    [[nodiscard]] int directory() const noexcept { return directory_.get(); }

private:
    CheckpointRecord(UniqueFd directory, LockedFile file, std::string name)
        : directory_(std::move(directory)), file_(std::move(file)), name_(std::move(name)) {}

    UniqueFd directory_;
    LockedFile file_;
    std::string name_;
};

/// Reads the record of a process, if there is one, also while another command is at work with it.
[[nodiscard]] Recorded recorded_of(const Process& process);

/// Whether there is such a file of this very process, in its owner's directory.
[[nodiscard]] bool has_record(const Process& process);

/// The processes of this user, for root of all users, of which there is such a file. They may have ended
/// since, and others have their numbers: see has_record().
[[nodiscard]] std::set<pid_t> recorded_processes();

} // namespace gpu_sleep::control
