// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The smallest of all limits, and claims: near a limit, the processes that share it take turns.

#include "store/host_budget.hpp"

#include "base/guard.hpp"
#include "base/memory.hpp"

#include <thread>

namespace gpu_sleep::store {

HostClaim::~HostClaim() {
    // A child of fork() may share the descriptor for a moment.
    if (turn_.is_held()) turn_.unlock();
    turn_.reset();
    under_way_ -= bytes_;
}

HostBudget& HostBudget::own() noexcept {
    return immortal<HostBudget>();
}

void HostBudget::begin_anew_in_child() noexcept {
    HostAccount::begin_anew_in_child();
    under_way_ = 0; // of the parent's threads
}

Headroom HostBudget::headroom() const {
    auto found = options_.headroom();
    found.bytes -= std::min(found.bytes, options_.reserve);
    return found;
}

Headroom HostBudget::room() {
    // Where address space is limited, the threads and the buffers that write and read files need some, too.
    constexpr Bytes k_left_of_address_space = 128 * k_mib;
    auto found = headroom();
    const auto addresses = address_space_left();
    if (const auto left = addresses - std::min(addresses, k_left_of_address_space); left < found.bytes)
        found = {left, "the process's limit on address space, ulimit -v"};
    if (const auto room = HostAccount::room(); room && room->bytes < found.bytes)
        found = {room->bytes, "this user's limit for all processes"};
    return found;
}

Result<void> HostBudget::check(Bytes needed, Bytes ready) {
    auto room = this->room().bytes;
    room += std::min(~room, ready);
    if (needed <= room) return {};
    return make_error(ErrorCode::out_of_host_memory, "needs {} of host memory, and there is room for {}",
                      format_bytes(needed), format_bytes(room));
}

Bytes HostBudget::room_to_retain() {
    constexpr unsigned k_most_pressure = 10; // percent: programs wait for memory, whatever is available
    if (options_.pressure() >= k_most_pressure || is_wanted()) return 0;
    const auto available = options_.headroom().bytes;
    const bool is_known = available != std::numeric_limits<Bytes>::max();
    return is_known ? available - std::min(available, k_left_available) : 0;
}

Result<HostClaim> HostBudget::claim(Bytes bytes, const ClaimOptions& options,
                                    const std::function<std::string()>& needed,
                                    const std::function<Result<void>()>& look, Bytes ahead) {
    constexpr Milliseconds k_pause{20};
    constexpr Milliseconds k_pause_for_turn{2};
    const auto reserve = options.spends_reserve ? 0 : options_.reserve;
    const auto start = Clock::now();
    UnsharedFd turn;
    bool does_without = false; // the turn that it has just tried to get
    for (;;) {
        Result<Headroom> headroom = Headroom{};
        bool is_enough = false;
        {
            // Claimed before asking: what another thread takes in between counts twice, never not at all.
            HostClaim claim(under_way_, bytes);
            claim.turn_ = std::exchange(turn, UnsharedFd()); // which ends with it, if it comes to nothing
            headroom = guarded([&]() -> Result<Headroom> { return options_.headroom(); });
            if (!headroom) return headroom.error();
            // Else nothing that sleeps in files could wake.
            if (headroom->is_unknown && options.spends_reserve) return claim;
            const auto wanted = claim.others_ + bytes + reserve;
            is_enough = wanted <= headroom->bytes;
            const bool needs_turn = is_enough && headroom->bytes - wanted < k_turn_threshold &&
                                    !headroom->shared.empty() && !does_without;
            if (is_enough && headroom->bytes - wanted >= k_plenty) claim.add(ahead);
            if (is_enough && (claim.turn_ || !needs_turn)) return claim;
        }
        if (is_enough)
            turn = try_turn(headroom->shared, start);
        else if (Clock::now() >= start + options.patience)
            return Error{
                ErrorCode::out_of_host_memory,
                fmt::format("not enough host memory to keep the contents: {} more are needed and {} must "
                            "stay free, but {} are available (limited by {})",
                            needed(), format_bytes(reserve), format_bytes(headroom->bytes),
                            headroom->limited_by),
                std::string(k_where)};
        does_without = is_enough && !turn && Clock::now() < turns_again_.load();
        if (turn || does_without) continue;
        GPU_SLEEP_TRY(look());
        std::this_thread::sleep_for(is_enough ? k_pause_for_turn : k_pause);
    }
}

UnsharedFd HostBudget::try_turn(const std::filesystem::path& shared, Clock::time_point since) {
    constexpr std::chrono::minutes k_without_turns{1};
    LockedFile file(
        UniqueFd(open_file(AT_FDCWD, shared.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)));
    const auto lock = file.lock();
    if (lock == LockedFile::Lock::taken) {
        last_turn_ = Clock::now();
        turns_again_ = Clock::time_point{};
        return UnsharedFd(std::move(file));
    }
    // While others of this process get theirs, it goes on.
    const bool is_late = Clock::now() >= std::max(since, last_turn_.load()) + options_.turn_patience;
    if (lock != LockedFile::Lock::held || is_late) turns_again_ = Clock::now() + k_without_turns;
    return {};
}

} // namespace gpu_sleep::store
