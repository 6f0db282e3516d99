// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is left of the host's memory, and claims of it before it is taken: at the limit the kernel does not
// refuse memory, it kills a process. Near the limit, the processes that share it take turns.

#pragma once

#include "base/error.hpp"
#include "base/units.hpp"
#include "store/own_file.hpp"

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep::store {

/// Where the figures are read from; the defaults are the real ones, tests name others.
struct HostMemorySources {
    std::filesystem::path proc = "/proc";
    std::filesystem::path cgroup = "/sys/fs/cgroup";
    std::string process = "self"; ///< whose headroom: a name in `proc`
};

struct Headroom {
    Bytes bytes = 0;        ///< what may still be taken
    std::string limited_by; ///< the limit, for a message: "free host memory", or a control group's limit
    /// A file that all processes under this limit can see, as far as they see each other, for locks of ours.
    /// Empty without a limit.
    std::filesystem::path shared{};
};

/// The smallest of: MemAvailable, and for the process's control group and each of its ancestors (version 2
/// and version 1) the limit less what is used, where page cache and slabs that the kernel can take back count
/// as free. Swap does not count: pinned memory is never swapped. A figure that cannot be read does not limit;
/// with none at all the headroom is the largest number there is. Thread-safe; opens and reads a handful of
/// small files. Source: proc(5), Control Group v2 ("Memory"), Memory Resource Controller (version 1).
[[nodiscard]] Headroom host_headroom(const HostMemorySources& sources = {});

/// The same minus `reserve`, which is left to other processes.
[[nodiscard]] Headroom host_headroom_beyond(Bytes reserve);

/// How much of the last ten seconds some program has waited for memory, in percent: on the machine, or in the
/// process's control group, if that is more. 0 where the kernel does not tell. Thread-safe. Source: Pressure
/// Stall Information, /proc/pressure/memory and memory.pressure ("some", "avg10").
[[nodiscard]] unsigned memory_pressure(const HostMemorySources& sources = {});

/// The address space that the process's own limit (RLIMIT_AS) leaves; the largest number if there is no limit
/// or it cannot be read. Source: proc(5), "limits" and "status".
[[nodiscard]] Bytes address_space_left(const HostMemorySources& sources = {});

struct ClaimOptions {
    Bytes reserve = 256 * k_mib; ///< headroom that is left to other processes
    /// Asked again for every claim, by several threads at once.
    std::function<Headroom()> headroom = [] { return host_headroom(); };
    /// How long a claim waits for headroom before it fails: virtual machines may grow while they are used.
    Milliseconds patience{2000};
    /// How long it waits for its turn. After that, claims do without turns: the process that has it may be
    /// stopped.
    Milliseconds turn_patience{3000};
};

/// Memory that no other claim of the process counts as available until this is destroyed: by then it has been
/// taken, or is not wanted any more. Near the limit, no other process that shares the limit can make a claim
/// meanwhile, so keep it only briefly. Move-only.
class HostClaim {
public:
    HostClaim(HostClaim&& other) noexcept
        : bytes_(std::exchange(other.bytes_, 0)), turn_(std::move(other.turn_)) {}
    HostClaim& operator=(HostClaim&&) = delete;
    ~HostClaim();

    /// What is claimed and not yet taken.
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
    /// `bytes` of it are taken: from here on headroom tells of them.
    void note_taken(Bytes bytes) noexcept {
        bytes_ -= bytes;
        under_way_ -= bytes;
    }

private:
    friend class HostClaims;
    explicit HostClaim(Bytes bytes) noexcept : bytes_(bytes), others_(under_way_.fetch_add(bytes)) {}
    void add(Bytes bytes) noexcept {
        bytes_ += bytes;
        under_way_ += bytes;
    }

    /// Claimed and not yet taken, by all of the process: devices are put to sleep side by side.
    static inline std::atomic<Bytes> under_way_{0};

    Bytes bytes_;
    Bytes others_ = 0; ///< what was under way before
    UnsharedFd turn_;  ///< locked while this process has the turn; empty where it needs none
};

/// Makes claims for one transaction. Thread-safe.
class HostClaims {
public:
    explicit HostClaims(ClaimOptions options) : options_(std::move(options)) {}

    /// Waits for this time, or less, before headroom is read again; true ends the waiting.
    using Pause = std::function<bool(Milliseconds)>;
    /// With so much headroom besides the claim, processes take no turns: it is more than the claims of
    /// several processes of a host that go to sleep at one moment, 32 MiB on each of eight threads.
    static constexpr Bytes k_turn_threshold = 4 * k_gib;

    /// With so much headroom besides the claim, one may be made ahead. To look takes 0.1 ms, and 1 ms while
    /// other threads take memory: to do that for each piece made a first sleep a quarter slower.
    static constexpr Bytes k_plenty = 32 * k_gib;

    /// Waits for headroom for `bytes` besides what all others of the process have under way; where there is
    /// plenty, `ahead` are claimed, too. An error says that `needed()` are needed. Errors:
    /// out_of_host_memory (with k_where; says what limited it), cancelled.
    [[nodiscard]] Result<HostClaim> make(Bytes bytes, const std::function<std::string()>& needed,
                                         const Pause& pause, Bytes ahead = 0);

    /// Error::where of claims that failed.
    static constexpr std::string_view k_where = "host headroom";

private:
    /// Locks `shared`, if nobody else has. Empty where somebody has, and where nobody can.
    [[nodiscard]] UnsharedFd try_turn(const std::filesystem::path& shared, Clock::time_point since);
    [[nodiscard]] Error shortage(const std::string& needed, const Headroom& headroom) const;

    const ClaimOptions options_;
    std::atomic<bool> takes_turns_{true};                           ///< false once that has failed
    std::atomic<Clock::time_point> last_turn_{Clock::time_point{}}; ///< when there was one
};

} // namespace gpu_sleep::store
