// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The order in which several processes that sleep or wake together are asked, and told to go on: all prepare
// before any commits. Only decides; the client talks to the agents.

#pragma once

#include "model/report.hpp"
#include "model/request.hpp"

namespace gpu_sleep::client {

/// The command's part of a two-phase commit, fed by what the members say. Not thread-safe.
///
/// Members are asked one after another, each once the one before it has begun: of two commands for the same
/// processes, one waits at the first of them, and neither has a part that the other waits for.
///
/// A member is drained only when what it has submitted is done, and that may wait for work that another
/// member's gate holds, as of a collective. So while some member is not drained, those that are let what they
/// hold through, one member at a time, which keeps its turn until its device has to wait, too. Whoever is
/// drained by that comes next, then who has waited longest for a turn: if members went on that nobody waits
/// for, such as the stages of a pipeline that have passed theirs on, the members would wait for each other in
/// a circle for ever. Members of which one was drained in another's turn work together; where they have come
/// to a common point, they stay there while there are others to let something through. In a long turn more
/// and more go through at a time, for a member may be hundreds of submissions behind. Where nobody who is
/// drained holds anything, the work may wait for more of its own process: then the others let through, more
/// and more rarely.
class Together {
public:
    using Kind = model::Directive::Kind;

    /// How long all must have stayed as they are before something is let through: what was let through last
    /// may be about to end everywhere.
    static constexpr Milliseconds k_rest{3};
    /// After so many turns, or rounds, the rest becomes twice as long, up to k_longest_rest, for processes
    /// that are slow to say that they are drained.
    static constexpr unsigned k_turns_at_a_pace = 128;
    static constexpr unsigned k_rounds_at_a_pace = 32;
    /// In a turn so many rounds let one through each, and each after them twice as many as the one before.
    static constexpr unsigned k_rounds_of_one = 8;
    static constexpr unsigned k_most_doublings = 6;
    /// A member that was told to let so many through may take so long for each, and k_longest_word for all,
    /// before it is taken to wait for others: only then another has its turn, and only who is drained after
    /// that was drained by another.
    static constexpr Milliseconds k_each_takes{3}, k_longest_word{40};
    /// How much a turn lets through at most; twice as much each time that all may have had one.
    static constexpr std::uint32_t k_turn = 32;
    static constexpr Milliseconds k_longest_rest{80};
    /// How long before the first round where nobody is drained, and all wait for their devices.
    static constexpr Milliseconds k_rest_of_undrained{50};
    /// The same where somebody is drained, but holds nothing, for its next submission is probably on its way;
    /// twice as long each time.
    static constexpr Milliseconds k_rest_beside_drained{1'000};
    /// How often members that wait hear that the command lives; see Joint::k_patience of the agent.
    static constexpr Milliseconds k_sign_of_life{1'000};
    /// A command that was stopped for longer goes back: some member may have stopped waiting for it.
    static constexpr Milliseconds k_longest_silence{5'000};

    /// `end`: when all must be ready. `is_sleep`: members have to be drained.
    Together(std::size_t members, bool is_sleep, Clock::time_point end);

    /// Whoever is to be asked now; each member once.
    [[nodiscard]] std::optional<std::size_t> next_to_ask() noexcept;

    void hear(std::size_t member, const model::Progress& progress, Clock::time_point now) noexcept;
    /// It has answered, or will not.
    void end(std::size_t member, bool has_failed) noexcept;

    struct Word {
        std::size_t member;
        model::Directive directive;
        friend bool operator==(const Word&, const Word&) = default;
    };
    /// The messages to send now.
    [[nodiscard]] std::vector<Word> due(Clock::time_point now);
    /// When due(), or why_not(), may have something new to say, unless a member says something first.
    [[nodiscard]] Clock::time_point next_time(Clock::time_point now) const noexcept;

    /// Whether all are ready, or have nothing to do, and somebody waits for `commit`.
    [[nodiscard]] bool all_are_ready() const noexcept;
    /// All go on: whom to tell. Nobody can be withdrawn any more.
    [[nodiscard]] std::vector<std::size_t> commit();

    /// Why all are to go back, while they can.
    enum class Why { member_failed, late, command_was_stopped };
    [[nodiscard]] std::optional<Why> why_not(Clock::time_point now) const noexcept;
    /// Whether the member is one that the others wait for.
    [[nodiscard]] bool is_behind(std::size_t member) const noexcept;

private:
    enum class State : std::uint8_t {
        unasked,
        asked,     ///< and nothing was heard yet
        begun,     ///< on its way to be drained; a wake, to be ready
        drained,   ///< waits
        preparing, ///< on its way to be ready
        ready,     ///< waits
        done,
        failed,
    };
    struct Member {
        State state = State::unasked;
        bool holds = false;          ///< submissions that it could let through; of one that is drained
        bool drains = false;         ///< begun, and waits for its device
        bool is_freed = false;       ///< it was drained in another's turn, and has had none since
        std::uint64_t told = 0;      ///< to let something through, so many times
        std::uint64_t last_turn = 0; ///< when it let something through last; 0: never
        std::size_t group = 0;       ///< the same number for all that are known to work together
        void enter(State entered) noexcept;
    };

    [[nodiscard]] bool any(State state) const noexcept;
    [[nodiscard]] bool anyone_waits() const noexcept { return any(State::drained) || any(State::ready); }
    void add_releases(std::vector<Word>& words, Clock::time_point now);
    /// All members of the two groups work together.
    void join(std::size_t group, std::size_t other) noexcept;
    [[nodiscard]] bool can_let_through(std::size_t member) const noexcept;
    /// Whether all that are known to work with it are drained, or it seems to work alone.
    [[nodiscard]] bool is_settled(std::size_t member) const noexcept;
    /// The one that has waited longest, of all that hold something, of those that somebody may wait for, or
    /// of those that are freed.
    enum class Of { all, unsettled, freed };
    [[nodiscard]] std::optional<std::size_t> longest_waiting(Of whom) const noexcept;
    /// Chooses the drained member whose turn it is to let held work through, and how many calls.
    [[nodiscard]] Word next_in_turn() noexcept;
    /// The members of which one lets held work through next.
    enum class Source { nobody, drained, undrained };
    [[nodiscard]] Source source() const noexcept;
    /// Before that.
    [[nodiscard]] Milliseconds rest() const noexcept;

    std::vector<Member> members_;
    const bool is_sleep_;
    Clock::time_point end_;
    bool has_committed_ = false;
    std::optional<std::size_t> turn_; ///< of this member
    bool turn_is_guess_ = false;
    unsigned rounds_in_turn_ = 0;
    std::uint32_t let_through_ = 0; ///< in this turn
    std::uint32_t last_count_ = 0;  ///< with the last word
    std::uint64_t turns_ = 0;
    unsigned rounds_of_undrained_ = 0; ///< of letting through what the others hold, since one was drained
    unsigned rounds_beside_drained_ = 0;
    Clock::time_point changed_{}; ///< when a member last began to drain, was drained, or let one through
    std::optional<Clock::time_point> last_sign_; ///< to those that wait; nothing while nobody does
};

} // namespace gpu_sleep::client
