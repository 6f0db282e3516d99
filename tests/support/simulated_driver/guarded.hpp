// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running code that may touch memory which is not there.

#pragma once

namespace gpu_sleep::sim {

/// Runs `body(argument)`; false if it faulted or called abandon_guarded(). Any other fault, and a SIGSEGV or
/// SIGBUS that somebody sends, goes to the handler that the program has, or does what it does by default.
/// Objects that lived in `body` when it was left are not destroyed, so it holds no lock and owns nothing.
/// Does not nest.
[[nodiscard]] bool run_guarded(void (*body)(void*), void* argument);

/// The same for a callable that takes nothing.
template <class Body>
[[nodiscard]] bool run_guarded(Body& body) {
    return run_guarded([](void* argument) { (*static_cast<Body*>(argument))(); }, &body);
}

/// Leaves the guarded code of the calling thread as a fault would.
[[noreturn]] void abandon_guarded();

} // namespace gpu_sleep::sim
