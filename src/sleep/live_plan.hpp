// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which contents move while the program runs, in what pieces, and when a piece has been tried often enough.
// Decides alone: reads the ledger and changes nothing.

#pragma once

#include "driver/memory.hpp"
#include "ledger/ledger.hpp"

namespace gpu_sleep::sleep {

/// Where the contents of a running program move.
enum class Direction : std::uint8_t { to_host, to_device };

/// A backing that is to move. It may be gone, or sleep, by the time it does: its number tells.
struct LivePart {
    std::uint64_t number = 0; ///< Backing::number
    driver::AddressSpan span;
    int device = 0;
};

/// The backings that move: those of `tags`, one tag after another, or of all for none, each in the order in
/// which they were allocated, that are awake and need not stay. To the host: until `bytes` of them are there,
/// those that are already among them. To the device: until `bytes` have come back; for model::k_all_bytes all
/// but what each tag has there from the start (ledger::Tag::live_bytes). The last may go beyond. Errors:
/// unknown_tag, to the host; a wake has looked at its own.
[[nodiscard]] Result<std::vector<LivePart>> plan_live(const ledger::Ledger& ledger, Direction direction,
                                                      const std::vector<std::string>& tags, Bytes bytes);

/// The beginning of `parts`, which is not empty, that moves in one piece: on one device, and of `limit` at
/// most, but for a first part that is larger: a backing moves whole.
[[nodiscard]] std::span<const LivePart> first_piece(std::span<const LivePart> parts, Bytes limit) noexcept;

[[nodiscard]] Bytes bytes_of(std::span<const LivePart> parts) noexcept;

inline constexpr Bytes k_least_piece = 64 * k_mib;
inline constexpr Bytes k_most_piece = k_gib;

/// The limit for the first piece, and for one after a piece of `bytes` for which work was held back for
/// `pause`: how much may move at once decides for how long that is.
[[nodiscard]] Bytes first_piece_limit(Direction direction) noexcept;
[[nodiscard]] Bytes next_piece_limit(Direction direction, Bytes bytes,
                                     std::chrono::duration<double> pause) noexcept;

/// What becomes of a piece of `bytes` of which `changed` were written since they were copied, in its `round`,
/// from 1: little is copied while the program's work is held back; of much, the next round copies it again
/// beforehand.
enum class Verdict : std::uint8_t { move, again, stay };
inline constexpr int k_most_rounds = 3;
[[nodiscard]] Verdict judge_round(Bytes changed, Bytes bytes, int round) noexcept;

/// How long the move of `parts` takes, and for how long their largest piece holds work back, if nothing is
/// written meanwhile.
struct LiveEstimate {
    std::chrono::duration<double> time{};
    std::chrono::duration<double> pause{};
};
[[nodiscard]] LiveEstimate estimate_move(Direction direction, std::span<const LivePart> parts) noexcept;

} // namespace gpu_sleep::sleep
