// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents that nothing needs any more, until their memory and files are given back where that takes nobody's
// time.

#pragma once

#include "base/units.hpp"
#include "contents/contents.hpp"
#include "program_memory/program_memory.hpp"

namespace gpu_sleep::agent {

/// Used on the operations thread alone, but for host_bytes().
class RetiredContents {
public:
    explicit RetiredContents(ProgramMemory& memory) noexcept : memory_(memory) {}

    /// Takes over what has been retired since. Before any of the others, once the memory is open.
    void collect();
    /// Gives a little of it back: one piece of host memory after another, without the memory's mutex. False
    /// when nothing is left. The caller holds the contexts.
    [[nodiscard]] bool give_back_some();
    /// Closes retired files, whose room on the disk is free then. Returns whether there were any.
    [[nodiscard]] bool give_back_files();
    [[nodiscard]] bool has_any() const noexcept { return !retired_.is_empty(); }
    /// Whether there is something to give back, collected or not.
    [[nodiscard]] bool has_waste();
    /// Host memory that nothing needs any more. Thread-safe; `locked` is the memory.
    [[nodiscard]] Bytes host_bytes(const LockedMemory& locked) const noexcept;

private:
    /// Gives back dead contents of one piece of host memory. Returns whether there was one.
    [[nodiscard]] bool shrink_one();

    ProgramMemory& memory_;
    contents::Retired retired_; ///< being given back
};

} // namespace gpu_sleep::agent
