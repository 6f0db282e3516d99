// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The program behind the door: carrying out what a request asks for, and the answer to it.

#pragma once

#include "cli/http/routes.hpp"
#include "control/dispatch.hpp"

namespace gpu_sleep::cli::http {

inline constexpr std::string_view k_program = "gpu-sleep-http";

/// How the door wakes.
struct WakeOptions {
    Milliseconds wait{0};
    bool make_room = false;         ///< where the program is one process
    Milliseconds min_awake{30'000}; ///< with `make_room`
};

/// One or several processes. Immutable; thread-safe. Each call asks the agents, and takes as long as they do.
class Backend {
public:
    Backend(control::Selection whom, WakeOptions waking) : whom_(std::move(whom)), waking_(waking) {}

    using Outcomes = Result<std::vector<control::Outcome>>;

    /// Finds its processes, which can be asked `request` then.
    [[nodiscard]] Result<control::Dispatch> find(protocol::Request request = {}) const;
    /// How its processes stand, which answers any number of looks.
    [[nodiscard]] Outcomes ask() const;
    [[nodiscard]] static Answer look(const Route& route, const Outcomes& outcomes);
    [[nodiscard]] Answer measure() const;
    /// 200 while there is a program, however it stands: one that is stopped is asked nothing where its pid is
    /// known.
    [[nodiscard]] Answer probe() const;
    /// 200 to a sleep or a wake once the driver shows the memory free, or has it back with fingerprints that
    /// agree; or where all is so already. Each process that has a callback runs it; 404 where none has,
    /// unless that is asked for by GET.
    [[nodiscard]] Answer change(const Route& route, const Wish& wish,
                                control::Interruptions& interruptions) const;

private:
    [[nodiscard]] Answer call(const model::CallRequest& request, bool is_optional,
                              control::Interruptions& interruptions) const;
    [[nodiscard]] std::optional<Answer> abort(control::Interruptions& interruptions) const;
    [[nodiscard]] protocol::Request request_for(const Route& route, const Wish& wish, const Plan& plan,
                                                std::size_t processes) const;

    control::Selection whom_;
    WakeOptions waking_;
};

} // namespace gpu_sleep::cli::http
