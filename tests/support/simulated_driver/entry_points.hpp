// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The driver functions that are simulated: what each is called, since when, and when it may be called.

#pragma once

#include "simulated_entry_points.hpp" // made by the build of what is defined as SIM_ENTRY or SIM_OLDER

#include <cuda.h>

#include <cstdint>
#include <span>

namespace gpu_sleep::sim {

/// What distinguishes the calls of an entry point.
enum class Trait : std::uint8_t {
    early,  ///< works before cuInit
    apart,  ///< about another process: takes no lock of this one's, and waits for nobody who holds this one
    safe,   ///< may be called while a stream captures
    queued, ///< safe, and gives work to a stream: a delay applies when that is executed
    unsafe, ///< forbidden while a capture under way forbids it; then it breaks the capture
};

/// Names an entry point; the enumerators are spelled as the exported symbols.
enum class Entry : std::uint16_t {
#define GPU_SLEEP_SIM_ENUMERATOR(name, version, trait) name,
    GPU_SLEEP_SIM_ENTRY_POINTS(GPU_SLEEP_SIM_ENUMERATOR)
#undef GPU_SLEEP_SIM_ENUMERATOR
        count
};

struct EntryPoint {
    const char* name;   ///< as documented, and as cuGetProcAddress takes it: "cuMemAlloc"
    const char* symbol; ///< as exported: "cuMemAlloc_v2"
    void* function;
    int version;
    Trait trait;
};

/// Another symbol that a name means, or meant to older programs.
struct Symbol {
    const char* name;
    void* function;
    int version; ///< as in EntryPoint
};

/// The symbols for programs that were compiled with a per-thread default stream. Their calls count as those
/// of the entry point. Static.
[[nodiscard]] std::span<const Symbol> per_thread_symbols() noexcept;

/// All entry points, in the order of Entry. Static.
[[nodiscard]] std::span<const EntryPoint> entry_points() noexcept;

[[nodiscard]] inline const EntryPoint& entry_point(Entry entry) noexcept {
    return entry_points()[static_cast<std::size_t>(entry)];
}

} // namespace gpu_sleep::sim
