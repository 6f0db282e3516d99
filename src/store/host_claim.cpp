// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking for headroom until it is there, and for the turn.

#include "store/host_claim.hpp"

#include "base/guard.hpp"

#include <fcntl.h>

#include <algorithm>

namespace gpu_sleep::store {

HostClaim::~HostClaim() {
    // A child of fork() may share the descriptor for a moment.
    if (turn_.is_held()) turn_.unlock();
    turn_.reset();
    under_way_ -= bytes_;
}

Result<HostClaim> HostClaims::make(Bytes bytes, const std::function<std::string()>& needed,
                                   const Pause& pause, Bytes ahead) {
    constexpr Milliseconds k_pause{20};
    constexpr Milliseconds k_pause_for_turn{2};
    const auto start = Clock::now();
    UnsharedFd turn;
    for (;;) {
        Result<Headroom> headroom = Headroom{};
        bool is_enough = false;
        {
            // Claimed before asking: what another thread takes in between counts twice, never not at all.
            HostClaim claim(bytes);
            claim.turn_ = std::exchange(turn, UnsharedFd()); // which ends with it, if it comes to nothing
            headroom = guarded([&]() -> Result<Headroom> { return options_.headroom(); });
            if (!headroom) return headroom.error();
            const auto wanted = claim.others_ + bytes + options_.reserve;
            is_enough = wanted <= headroom->bytes;
            const bool needs_turn = is_enough && headroom->bytes - wanted < k_turn_threshold &&
                                    !headroom->shared.empty() && takes_turns_;
            if (is_enough && headroom->bytes - wanted >= k_plenty) claim.add(ahead);
            if (is_enough && (claim.turn_ || !needs_turn)) return claim;
        }
        if (is_enough)
            turn = try_turn(headroom->shared, start);
        else if (Clock::now() >= start + options_.patience)
            return shortage(needed(), *headroom);
        if (!turn && pause(is_enough ? k_pause_for_turn : k_pause))
            return make_error(ErrorCode::cancelled, "host memory is no longer needed");
    }
}

UnsharedFd HostClaims::try_turn(const std::filesystem::path& shared, Clock::time_point since) {
    LockedFile file(
        UniqueFd(open_file(AT_FDCWD, shared.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)));
    const auto lock = file.lock();
    if (lock == LockedFile::Lock::taken) {
        last_turn_ = Clock::now();
        return UnsharedFd(std::move(file));
    }
    // While others of this process get theirs, it goes on.
    const bool is_late = Clock::now() >= std::max(since, last_turn_.load()) + options_.turn_patience;
    if (lock != LockedFile::Lock::held || is_late) takes_turns_ = false;
    return {};
}

Error HostClaims::shortage(const std::string& needed, const Headroom& headroom) const {
    auto error = make_error(
        ErrorCode::out_of_host_memory,
        "not enough host memory to keep the contents: {} more are needed and {} must stay free, but "
        "{} are available (limited by {})",
        needed, format_bytes(options_.reserve), format_bytes(headroom.bytes), headroom.limited_by);
    error.where = k_where;
    return error;
}

} // namespace gpu_sleep::store
