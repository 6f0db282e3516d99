// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// For how long processes without an agent have shown no work, as far as that can be seen from outside: NVML
// remembers seconds, so each pass leaves a note for the next.

#pragma once

#include "base/fd.hpp"
#include "base/process.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// What one glance at a process shows. Times are in seconds, `at` counts since the start of the machine.
struct Glance {
    double at = 0;
    double cpu = 0;                  ///< processor time that the process has used, of all threads
    std::optional<double> last_seen; ///< at work on a GPU, so long ago; nothing: not within `window`
    double window = 0;               ///< how far back NVML remembers
};

/// What a pass notes about a process.
struct Sighting {
    ProcessIdentity process;
    double idle_since = 0;
    double at = 0;  ///< of the last look
    double cpu = 0; ///< then
    friend bool operator==(const Sighting&, const Sighting&) = default;
};

/// The note after a glance, `before` being the last one. Between two looks that are farther apart than NVML
/// remembers, a process that has used more than a fiftieth of a processor may have worked.
[[nodiscard]] Sighting after(const std::optional<Sighting>& before, const ProcessIdentity& process,
                             const Glance& glance) noexcept;

/// The notes of this user's passes, in a file that is locked while this lives. Not thread-safe.
class IdleHistory {
public:
    /// Makes the file /tmp/gpu-sleep-UID/NAMESPACE.sightings if it is missing. Errors: io_failed, timed_out
    /// (another pass has it).
    [[nodiscard]] static Result<IdleHistory> open(Milliseconds timeout);

    /// Notes a glance, and returns for how many seconds the process has been idle.
    double note(const ProcessIdentity& process, const Glance& glance);
    /// Writes the notes of the processes that were looked at; others are forgotten. Errors: io_failed.
    [[nodiscard]] Result<void> save() const;

private:
    explicit IdleHistory(UniqueFd file) noexcept : file_(std::move(file)) {}

    UniqueFd file_;
    std::vector<Sighting> before_;
    std::vector<Sighting> now_;
};

/// The notes as a file has them, and back: nothing of a file that is not whole.
[[nodiscard]] std::string to_text(const std::vector<Sighting>& sightings);
[[nodiscard]] std::vector<Sighting> parse_sightings(std::string_view text);

/// Processor time that `pid` has used, in seconds. Errors: no_process. Source: proc_pid_stat(5).
[[nodiscard]] Result<double> processor_time_of(pid_t pid, const std::filesystem::path& proc = "/proc");

} // namespace gpu_sleep::cli
