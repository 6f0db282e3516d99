// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Running code that may touch memory which is not there.

#pragma once

namespace gpu_sleep::sim {

/// Takes SIGSEGV and SIGBUS for guarded code; any other fault goes to the handler that was there before.
/// Once.
void install_fault_handler();

/// Runs `body(argument)`; false if it faulted or called abandon_guarded(). Objects that lived in it then are
/// not destroyed, so it holds no lock and owns nothing. Does not nest.
[[nodiscard]] bool run_guarded(void (*body)(void*), void* argument);

/// The same for a callable that takes nothing.
template <class Body>
[[nodiscard]] bool run_guarded(Body& body) {
    return run_guarded([](void* argument) { (*static_cast<Body*>(argument))(); }, &body);
}

/// Leaves the guarded code of the calling thread as a fault would.
[[noreturn]] void abandon_guarded();

} // namespace gpu_sleep::sim
