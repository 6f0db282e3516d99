// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for other processes that sleep or wake together with this one. The command alone knows them all,
// and says when to go on.

#pragma once

#include "model/model.hpp"
#include "server/request_queue.hpp"

namespace gpu_sleep::agent::operations {

/// Why an operation ends whose asker does not want it any more.
[[nodiscard]] inline Error withdrawn() {
    return make_error(ErrorCode::cancelled, "the request was withdrawn");
}
/// Why nothing is done any more.
[[nodiscard]] inline Error process_is_ending() {
    return make_error(ErrorCode::no_process, "the process is ending");
}

/// Of an operation that no other process takes part in.
inline const server::DirectiveSource k_alone{};

/// The places of an operation where it waits for its command's word, if the request is joint. Used on the
/// operations thread.
///
/// A command may hang, or be stopped, and the gate is shut meanwhile: one that says nothing for k_patience is
/// not waited for.
class Joint {
public:
    static constexpr Milliseconds k_patience{10'000};

    /// All outlive it. The operation is joint if `directives` are not k_alone, too.
    Joint(bool is_joint, const server::ProgressSink& progress,
          const server::DirectiveSource& directives) noexcept
        : is_joint_(is_joint && directives), progress_(progress), directives_(directives) {}

    [[nodiscard]] bool is_joint() const noexcept { return is_joint_; }

    /// Says that the operation has begun: the command asks the next process then. Errors: cancelled.
    [[nodiscard]] Result<void> announce();

    /// Whether the command has said, since the last call, that a submission is to be let through. Does not
    /// wait. Who has withdrawn is not noticed here.
    [[nodiscard]] bool wants_one_through();

    /// The device is drained: waits for `let_through` or `prepare`, and returns it. Tells the command whether
    /// `held`, the number of submissions that could be let through, is zero. Errors: cancelled, timed_out.
    [[nodiscard]] Result<model::Directive> wait_drained(const std::function<std::uint64_t()>& held);

    /// All is ready: waits for `commit`, once. False, at once, where the request is not joint. Errors:
    /// cancelled, timed_out.
    [[nodiscard]] Result<bool> wait_ready();

private:
    using Kind = model::Directive::Kind;
    /// Waits for anything but `hold_on`, with `held` looked at every `look`.
    [[nodiscard]] Result<model::Directive> wait(model::Progress::Phase phase, Milliseconds look,
                                                const std::function<std::uint64_t()>& held);

    const bool is_joint_;
    bool is_told_ = false;    ///< to commit
    std::uint64_t heard_ = 0; ///< of `let_through`; it is told, for words cross each other on their ways
    const server::ProgressSink& progress_;
    const server::DirectiveSource& directives_;
};

} // namespace gpu_sleep::agent::operations
