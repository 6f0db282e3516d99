// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What tests ask the driver to do wrong, and the counts of what went on.

#pragma once

#include "support/simulated_driver/control.h"
#include "support/simulated_driver/entry_points.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace gpu_sleep::sim {

/// Failures, delays and corruptions to come. Thread-safe.
class Faults {
public:
    /// The one of this process; what the environment asks for is in force from the start.
    static Faults& instance();

    void fail(const std::string& name, std::uint64_t nth, CUresult status, unsigned flags);
    void delay(const std::string& name, std::chrono::microseconds time);
    void corrupt_copy(const std::string& name, std::uint64_t nth);
    void clear();

    /// The status that this call of `entry` is to fail with, or CUDA_SUCCESS. Counts the call.
    [[nodiscard]] CUresult next_failure(Entry entry);
    [[nodiscard]] std::chrono::microseconds delay_of(Entry entry) const noexcept;
    /// Waits for the file that calls of `entry` are to wait for, unless `cancelled` becomes true.
    void await_file(Entry entry, const std::atomic<bool>& cancelled) const;
    /// Whether this copy, made by `entry`, is to be corrupted. Counts the copy.
    [[nodiscard]] bool next_corruption(Entry entry);

private:
    struct Failure {
        std::string name;
        std::uint64_t remaining;
        CUresult status;
        unsigned flags;
    };
    struct Corruption {
        std::string name;
        std::uint64_t remaining;
    };

    Faults();

    std::vector<std::pair<std::string, std::string>> awaited_files_; ///< by the names of calls
    std::mutex mutex_;                                               ///< guards the next two
    std::vector<Failure> failures_;
    std::vector<Corruption> corruptions_;
    std::atomic<bool> any_failures_{false};
    std::atomic<bool> any_corruptions_{false};
    std::array<std::atomic<std::int64_t>, static_cast<std::size_t>(Entry::count)> delays_us_{};
};

/// What was called, how long it took, and what was done wrong. Thread-safe.
struct Counts {
    static Counts& instance();

    /// Calls of `name`, or of all ("*").
    [[nodiscard]] std::uint64_t calls_of(const std::string& name) const;
    [[nodiscard]] sim_faults faults() const noexcept;
    void reset() noexcept;

    std::array<std::atomic<std::uint64_t>, static_cast<std::size_t>(Entry::count)> calls{};
    std::atomic<std::uint64_t> nanoseconds_inside{0};
    std::atomic<std::uint64_t> illegal_accesses{0};
    std::atomic<std::uint64_t> broken_captures{0};
    std::atomic<std::uint64_t> corrupted_copies{0};
    std::atomic<std::uint64_t> injected_failures{0};
    std::atomic<const char*> last_failed{""};
};

/// Counts one. Returns CUDA_ERROR_ILLEGAL_ADDRESS.
CUresult illegal_access();

/// Writes a line about a call to the file named by GPU_SLEEP_SIM_TRACE, if there is one. Thread-safe.
void trace_call(Entry entry, CUresult status, std::chrono::nanoseconds time);

/// The calling thread's number, as the kernel counts.
[[nodiscard]] int thread_id() noexcept;

} // namespace gpu_sleep::sim
