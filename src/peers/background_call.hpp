// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A call that may take long, beside a poll loop.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <functional>
#include <memory>
#include <optional>

namespace gpu_sleep::peers {

/// A call on a thread of its own. Move-only. Destroyed while the call is under way, it leaves it to itself:
/// nobody can end a call of the driver.
class BackgroundCall {
public:
    /// Errors: out_of_threads, io_failed (no descriptor is left).
    [[nodiscard]] static Result<BackgroundCall> start(std::function<Result<void>()> call);

    /// Readable once the call has ended.
    [[nodiscard]] int end_fd() const noexcept;
    /// Nothing before it has ended.
    [[nodiscard]] std::optional<Result<void>> result() const;

    /// Closes `fd` when the call has ended, and not before.
    void close_after(UniqueFd fd);

    /// Whether any of this process is under way. Then it must not run its exit handlers, among which are
    /// those of the library that is being called.
    [[nodiscard]] static bool is_any_under_way() noexcept;

private:
    struct State;
    explicit BackgroundCall(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    std::shared_ptr<State> state_; ///< shared with the thread
};

} // namespace gpu_sleep::peers
