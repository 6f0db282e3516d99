// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that sleep_bench puts to sleep by the real commands, and what can be seen of it from outside.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "support/process.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpu_sleep::bench {

/// What a command did, and how long it took from its start to its exit.
struct Timed {
    double seconds = 0;
    double inside_seconds = 0; ///< of those, the operation itself, as the agent says
    Bytes kept = 0;            ///< contents moved to, or brought back from, host memory
    Bytes copied = 0;          ///< of those, by a sleep, what had changed
    Bytes stored = 0;          ///< of those kept, by a sleep, all but blocks of zeros
    Bytes host_bytes = 0;      ///< host memory that the agent holds for contents afterwards, as it says
    std::map<std::string, double, std::less<>>
        steps; ///< seconds of threads at each, over all devices, as the agent says
};

/// GPU memory as the driver reports it.
struct GpuMemory {
    Bytes free = 0;
    Bytes total = 0;
};

/// What the driver is, and what it has.
struct Devices {
    bool is_simulated = false;
    int count = 0;
    std::string name; ///< of the first
};

/// Copies between page-locked host memory and the device, in bytes a second.
struct Link {
    double to_host = 0;
    double to_device = 0;
};

/// A sleep_server in a process of its own; killed when destroyed. One thread at a time. Move-only.
class Subject {
public:
    /// Errors, as of all below: io_failed (a process did not do its part), driver_failed (in words of the
    /// server).
    /// `environment`: "NAME=VALUE", besides what is inherited.
    [[nodiscard]] static Result<Subject> start(std::vector<std::string> environment = {});

    [[nodiscard]] pid_t pid() const noexcept { return server_.pid(); }

    /// Allocates one range or more of these sizes, under `tag`. `retention` as in gpu_sleep.h.
    [[nodiscard]] Result<void> hold(std::string_view tag, int retention, const std::vector<Bytes>& sizes,
                                    int device = 0);
    /// The same, of zeros.
    [[nodiscard]] Result<void> hold_zeros(std::string_view tag, const std::vector<Bytes>& sizes);
    /// Changes a word in every `nth` MiB of what hold() has filled on the first device.
    [[nodiscard]] Result<void> change(Bytes nth);
    /// As hold(), without the agent.
    [[nodiscard]] Result<void> hold_plainly(const std::vector<Bytes>& sizes);
    [[nodiscard]] Result<GpuMemory> gpu_memory();
    [[nodiscard]] Result<Devices> devices();
    [[nodiscard]] Result<Link> link();

    /// From now on tensors are those of a PerTensor, which has none yet.
    [[nodiscard]] Result<void> begin_tensors(bool retains_host_memory);
    [[nodiscard]] Result<void> hold_tensors(bool kept, const std::vector<Bytes>& sizes);
    /// The seconds that it takes, inside of the process.
    [[nodiscard]] Result<double> sleep_tensors();
    [[nodiscard]] Result<double> wake_tensors();
    /// Fails unless the contents of those that are kept are what they were.
    [[nodiscard]] Result<void> check_tensors();

    /// Seconds for each of `count` launches that do nothing, or passes over what hold() has filled.
    [[nodiscard]] Result<double> launch(unsigned count);
    [[nodiscard]] Result<double> read(unsigned count);

    /// Runs gpu-sleep or gpu-wake for this process, with more `arguments`. Errors: also failed commands.
    [[nodiscard]] Result<Timed> sleep(std::vector<std::string> arguments = {}) const;
    [[nodiscard]] Result<Timed> wake(std::vector<std::string> arguments = {}) const;
    /// Host memory that the agent holds for contents now, as it says.
    [[nodiscard]] Result<Bytes> host_bytes() const;
    /// Host memory that it holds besides, for the next sleep, as it says.
    [[nodiscard]] Result<Bytes> retained_bytes() const;

    /// Memory of the host that the process has, without what it shares: the simulated driver keeps device
    /// memory there. Source: proc_pid_smaps_rollup(5), proc_pid_status(5).
    [[nodiscard]] Result<Bytes> resident_bytes() const;

private:
    explicit Subject(test::Process server) noexcept : server_(std::move(server)) {}
    [[nodiscard]] Result<std::string> ask(const std::string& line);
    /// The same, where the answer says no more than that it is done.
    [[nodiscard]] Result<void> tell(const std::string& line);
    [[nodiscard]] Result<double> ask_number(const std::string& line);
    [[nodiscard]] Result<test::Output> run_command(std::string_view command,
                                                   std::vector<std::string> arguments) const;
    [[nodiscard]] Result<Timed> run(std::string_view command, std::vector<std::string> arguments) const;
    [[nodiscard]] Result<Bytes> reported(std::string_view field) const;

    test::Process server_;
};

} // namespace gpu_sleep::bench
