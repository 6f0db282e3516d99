// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// How much host memory the processes of a user hold together for contents: each writes its part into one
// file, and a budget for all of them is kept where memory is taken. Several that go to sleep at one moment
// would otherwise each find the same room. HostBudget asks it for everybody else.

#pragma once

#include "base/thread_safety.hpp"
#include "store/own_file.hpp"

#include <sys/types.h>

#include <new>

namespace gpu_sleep::store {

/// A process's part of the account, which lies in a private directory of its user's. The file has a place of
/// 16 bytes for each process, which holds a lock on it as long as it lives: the part of one that was killed
/// does not count. Behind the places is the time of the last refusal: whoever can do without what it holds
/// then gives it back. Nothing is kept open where a page of the file that is mapped holds the lock: the
/// program cannot close it, and children do not get it. On overlayfs and network file systems a descriptor
/// holds it: a program that closes that does not count until it takes more. Where there is no such directory,
/// or no room in it, a process counts what it holds itself. Thread-safe. Source: fcntl(2), open file
/// description locks.
class HostAccount {
public:
    /// `directory` is the file's, private to the user.
    explicit HostAccount(std::string directory) : directory_(std::move(directory)) {}
    HostAccount(const HostAccount&) = delete;
    HostAccount& operator=(const HostAccount&) = delete;
    ~HostAccount();
    /// In a child of fork(), before all else: a thread of the parent may have been amid any call.
    void begin_anew_in_child() noexcept { new (&mutex_) Mutex; }

    /// What all processes of the user may hold together, from here on; unset: any amount.
    void limit(std::optional<Bytes> most) noexcept;
    /// What more may be taken now; nothing without a limit.
    struct Room {
        Bytes bytes = 0;
        bool is_exceeded = false; ///< the limit was lowered, or not everybody knew it
        Bytes spare = 0;          ///< what others hold and can do without
    };
    [[nodiscard]] std::optional<Room> room() noexcept;
    /// Adds to what this process holds, before it is taken. Errors: out_of_host_memory (beyond the limit, or
    /// with a limit and a file that cannot be written).
    [[nodiscard]] Result<void> take(Bytes bytes);
    /// Error::where of what is refused for a limit: it is of no use to try with smaller buffers.
    static constexpr std::string_view k_where = "host headroom";
    void give(Bytes bytes) noexcept;
    /// Takes a place again where somebody has removed the file that it was in. To be called now and then:
    /// until then the others do not see what it holds.
    void stay_counted() noexcept;

    /// How much of what this process holds it can do without. A hint: it may be out of date.
    void note_spare(Bytes bytes) noexcept;
    /// Whether what can be done without is to be given back: somebody was refused just now, or all hold more
    /// than they may.
    [[nodiscard]] bool is_wanted() noexcept;
    /// Waits until there is room for `bytes`, for no longer than `patience`, and only while others can do
    /// without what they hold: has them give it back. `look` is called meanwhile; its error ends the wait.
    [[nodiscard]] Result<void> await(Bytes bytes, Milliseconds patience,
                                     const std::function<Result<void>()>& look);

private:
    class Locked;

    /// Forgets what a parent of fork() had, or the place whose lock ended when the program closed the
    /// descriptor. Before any file is opened, which may get that number.
    void look_for_fork() noexcept GPU_SLEEP_REQUIRES(mutex_);
    /// A process's place in the file.
    struct Place {
        std::uint64_t held = 0;
        std::uint64_t spare = 0;
    };
    /// What the others hold.
    [[nodiscard]] Place others(const LockedFile& file) const noexcept GPU_SLEEP_REQUIRES(mutex_);
    /// Finds a place in the file, if this process has none there.
    void find_place(const LockedFile& file) noexcept GPU_SLEEP_REQUIRES(mutex_);
    void leave_place() noexcept GPU_SLEEP_REQUIRES(mutex_);
    /// Whether it has a place in `file`, and not in one that somebody has removed.
    [[nodiscard]] bool has_place_in(const LockedFile& file) const noexcept GPU_SLEEP_REQUIRES(mutex_);
    /// Returns false, with errno set, if it has a place that cannot be written.
    bool write(const LockedFile& file) const noexcept GPU_SLEEP_REQUIRES(mutex_);

    Mutex mutex_;
    const std::string directory_;
    std::optional<Bytes> limit_ GPU_SLEEP_GUARDED_BY(mutex_);
    Place own_ GPU_SLEEP_GUARDED_BY(mutex_);
    pid_t process_ GPU_SLEEP_GUARDED_BY(mutex_) = 0;
    std::optional<std::size_t> place_ GPU_SLEEP_GUARDED_BY(mutex_);
    Anchor anchor_ GPU_SLEEP_GUARDED_BY(mutex_);     ///< while there is a place
    FileIdentity file_ GPU_SLEEP_GUARDED_BY(mutex_); ///< in which it is
    UnsharedFd holder_ GPU_SLEEP_GUARDED_BY(mutex_); ///< where the page does not hold the lock
};

/// What was taken of an account, and is given back at the end. Move-only; used by one thread at a time.
class HostShare {
public:
    HostShare() noexcept = default;
    HostShare(HostShare&& other) noexcept { absorb(other, other.bytes_); }
    ~HostShare() { give(bytes_); }

    /// Takes more, always of the same account, which outlives it. Errors: those of HostAccount::take().
    [[nodiscard]] Result<void> take(HostAccount& account, Bytes bytes);
    /// Takes over so much of `other`, or all that it has.
    void absorb(HostShare& other, Bytes bytes) noexcept;
    /// Gives so much back, or all that it has.
    void give(Bytes bytes) noexcept;
    [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }

private:
    HostAccount* account_ = nullptr;
    Bytes bytes_ = 0;
};

} // namespace gpu_sleep::store
