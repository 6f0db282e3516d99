// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Telling how far this process is, and listening.

#include "operations/joint.hpp"

namespace gpu_sleep::agent::operations {

Result<void> Joint::announce() {
    if (!is_joint_ || progress_({model::Progress::Phase::waiting, 0, 0})) return {};
    return withdrawn();
}

bool Joint::wants_one_through() {
    for (;;) {
        const auto said = directives_(Milliseconds(0));
        if (!said || !said->has_value()) return false;
        if ((*said)->kind != Kind::let_through) continue;
        ++heard_;
        return true;
    }
}

Result<model::Directive> Joint::wait(model::Progress::Phase phase, Milliseconds look,
                                     const std::function<std::uint64_t()>& held) {
    auto last_heard = Clock::now();
    std::optional<bool> told; // whether anything is held
    for (;;) {
        const auto count = held();
        if (told != (count > 0) && !progress_({phase, heard_, 0, count})) return withdrawn();
        told = count > 0;
        const auto said = directives_(look);
        if (!said) return withdrawn();
        if (said->has_value()) {
            heard_ += (*said)->kind == Kind::let_through;
            if ((*said)->kind != Kind::hold_on) return **said;
            last_heard = Clock::now();
        } else if (Clock::now() - last_heard >= k_patience) {
            return make_error(ErrorCode::timed_out,
                              "the command, which waits for other processes, has sent nothing for {}",
                              format_seconds(std::chrono::duration<double>(k_patience).count()));
        }
    }
}

Result<model::Directive> Joint::wait_drained(const std::function<std::uint64_t()>& held) {
    constexpr Milliseconds k_look{5};
    for (;;) {
        auto said = wait(model::Progress::Phase::drained, k_look, held);
        if (!said || said->kind != Kind::commit) return said; // which is too early
    }
}

Result<bool> Joint::wait_ready() {
    constexpr Milliseconds k_look{1'000};
    if (!is_joint_ || is_told_) return is_told_;
    for (;;) {
        const auto said = GPU_SLEEP_TRY(wait(model::Progress::Phase::ready, k_look, [] { return 0; }));
        if (said.kind == Kind::commit) return is_told_ = true;
    }
}

} // namespace gpu_sleep::agent::operations
