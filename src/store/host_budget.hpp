// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The host memory that this process may take: asked for, handed out, and taken back. At the limit the kernel
// does not refuse memory, it kills a process.

#pragma once

#include "base/process.hpp"
#include "store/host_account.hpp"
#include "store/host_memory.hpp"

#include <atomic>

namespace gpu_sleep::store {

class HostBudget;
struct ClaimOptions;

/// Memory that no other claim of the process counts as available until this is destroyed: by then it has been
/// taken, or is not wanted any more. Near the limit, no other process that shares the limit can make a claim
/// meanwhile, so keep it only briefly. Move-only.
class HostClaim {
public:
    HostClaim(HostClaim&& other) noexcept
        : under_way_(other.under_way_), bytes_(std::exchange(other.bytes_, 0)),
          turn_(std::move(other.turn_)) {}
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
    friend class HostBudget;
    HostClaim(std::atomic<Bytes>& under_way, Bytes bytes) noexcept
        : under_way_(under_way), bytes_(bytes), others_(under_way_.fetch_add(bytes)) {}
    void add(Bytes bytes) noexcept {
        bytes_ += bytes;
        under_way_ += bytes;
    }

    std::atomic<Bytes>& under_way_; ///< of the budget
    Bytes bytes_;
    Bytes others_ = 0; ///< what was under way before
    UnsharedFd turn_;  ///< locked while this process has the turn; empty where it needs none
};

/// What a process may take of host memory, by the machine, its control groups, its own limit on address
/// space, and what its user's processes may hold together. A sleep looks whether there is room, takes its
/// share of what the user may hold, and claims the memory itself piece by piece, just before it is taken.
/// Thread-safe; each look opens and reads a handful of small files.
class HostBudget : private HostAccount {
public:
    using HostAccount::await;
    using HostAccount::k_where;
    using HostAccount::limit;
    using HostAccount::note_spare;
    using HostAccount::stay_counted;

    struct Options {
        std::string directory = agent_directory(::geteuid()); ///< of the user's account
        Bytes reserve = 256 * k_mib;                          ///< left to everybody else
        /// How long a claim waits for its turn. Then claims do without turns for a while, or until one is
        /// free: the process that has it may be stopped.
        Milliseconds turn_patience{3000};
        std::function<Headroom()> headroom = [] { return host_headroom(); };
        std::function<unsigned()> pressure = [] { return memory_pressure(); };
    };
    /// Of this process.
    [[nodiscard]] static HostBudget& own() noexcept;

    HostBudget() : HostBudget(Options()) {}
    explicit HostBudget(Options options) : HostAccount(options.directory), options_(std::move(options)) {}
    /// In a child of fork(), before all else.
    void begin_anew_in_child() noexcept;

    /// What may be taken now, and what limits it: for buffers, and for contents.
    [[nodiscard]] Headroom headroom() const;
    [[nodiscard]] Headroom room();
    /// Whether there is room now for contents that need so much, beside what they have `ready`. Errors:
    /// out_of_host_memory.
    [[nodiscard]] Result<void> check(Bytes needed, Bytes ready = 0);
    /// Left available when contents are retained: more than all programs together take between two looks at
    /// it, as a rule. Where they take more, the kernel may end one of them.
    static constexpr Bytes k_left_available = 4 * k_gib;
    /// How much may be retained: what is available besides, less k_left_available. Nothing where that cannot
    /// be told, while programs wait for memory for a tenth of the time, and while others of the user need it.
    [[nodiscard]] Bytes room_to_retain();

    /// Counts `bytes` of contents among what the user's processes hold together, until `to` gives them back.
    /// Errors: out_of_host_memory (that is too much).
    [[nodiscard]] Result<void> take(HostShare& to, Bytes bytes) { return to.take(*this, bytes); }

    /// Waits for headroom for `bytes` besides what all others of the process have under way; where there is
    /// plenty, `ahead` are claimed, too. An error says that `needed()` are needed. `look` is called before
    /// each pause; its error ends the wait. Errors: out_of_host_memory (with k_where; says what limited it),
    /// those of `look`.
    [[nodiscard]] Result<HostClaim> claim(Bytes bytes, const ClaimOptions& options,
                                          const std::function<std::string()>& needed,
                                          const std::function<Result<void>()>& look, Bytes ahead = 0);

    /// With so much headroom besides the claim, processes take no turns: it is more than the claims of
    /// several processes of a host that go to sleep at one moment, 32 MiB on each of eight threads.
    static constexpr Bytes k_turn_threshold = 4 * k_gib;
    /// With so much headroom besides the claim, one may be made ahead. To look takes 0.1 ms, and 1 ms while
    /// other threads take memory: to do that for each piece made a first sleep a quarter slower.
    static constexpr Bytes k_plenty = 32 * k_gib;

private:
    /// Locks `shared`, if nobody else has. Empty where somebody has, and where nobody can.
    [[nodiscard]] UnsharedFd try_turn(const std::filesystem::path& shared, Clock::time_point since);

    const Options options_;
    std::atomic<Bytes> under_way_{0}; ///< claimed and not yet taken: devices are put to sleep side by side
    std::atomic<Clock::time_point> last_turn_{Clock::time_point{}};
    std::atomic<Clock::time_point> turns_again_{Clock::time_point{}}; ///< no claim waits until then
};

/// How a transaction waits for memory that it claims.
struct ClaimOptions {
    HostBudget* budget = &HostBudget::own();
    /// Before a claim fails: virtual machines may grow while they are used.
    Milliseconds patience{2000};
    bool spends_reserve = false; ///< HostBudget::Options::reserve; also where limits cannot be read
};

} // namespace gpu_sleep::store
