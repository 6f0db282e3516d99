// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A process that sleep_bench puts to sleep by the real commands: what it does, and what can be seen of it
// from outside.

#pragma once

#include "base/units.hpp"
#include "support/process.hpp"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::bench {

using Sizes = std::vector<Bytes>;

/// The process itself: answers lines of standard input on standard output, until `quit` or the end of input,
/// and returns the exit status. Sizes are in bytes; what fails is answered by "error: " and a sentence.
///
///     hold KIND BYTES...   allocates and fills ranges of the agent: `kept` or `dropped` at level 1, or
///                          `zeros`, which are kept; or `plain` ones with the driver alone. KIND is their tag
///     change NTH           changes a word in every NTH MiB of what was filled
///     tensors HOST CYCLES PAUSE_MS KEPT BYTES...
///                          has a PerTensor, with host memory `retained` or `given_back`, sleep and wake
///                          CYCLES times after pauses; the first KEPT tensors are kept, and compared at the
///                          end. The seconds of each sleep and wake in turn
///     launch COUNT         seconds for each of so many launches that do nothing
///     memory               the free memory of the device, as the driver says
///     device               "real NAME" or "simulated NAME"
///     link                 "TO_HOST TO_DEVICE": page-locked copies, in bytes a second
[[nodiscard]] int serve();

/// Ranges of these sizes. `kind` as serve() has it.
struct Memory {
    std::string kind;
    Sizes sizes;
};

/// What a command did, and how long it took from its start to its exit.
struct Timed {
    double seconds = 0;
    double inside_seconds = 0; ///< of those, the operation itself, as the agent says
    Bytes kept = 0;            ///< contents moved to, or brought back from, host memory
    Bytes stored = 0;          ///< of those kept, by a sleep, all but blocks of zeros
    Bytes host_bytes = 0;      ///< host memory that the agent holds for contents afterwards, as it says
    std::map<std::string, double, std::less<>> steps; ///< seconds of threads at each, over all devices
};

/// The first device.
struct Device {
    bool is_simulated = false;
    std::string name;
};

/// Copies between page-locked host memory and the device, in bytes a second.
struct Link {
    double to_host = 0, to_device = 0;
};

/// serve() in a process of its own; killed when destroyed. One thread at a time. Move-only. All throws
/// test::ProcessFailure where the server or a command does not do its part.
class Subject {
public:
    /// `environment`: "NAME=VALUE", besides what is inherited.
    explicit Subject(std::vector<std::string> environment = {});

    [[nodiscard]] pid_t pid() const noexcept { return server_.pid(); }

    /// Tells it a line of serve(). Returns its answer.
    std::string ask(const std::string& line);
    /// The same, where the answer is numbers.
    [[nodiscard]] std::vector<double> ask_numbers(const std::string& line);

    void hold(const Memory& memory);
    [[nodiscard]] Bytes free_gpu_memory();
    [[nodiscard]] Device device();
    [[nodiscard]] Link link();
    /// Seconds for each of `count` launches that do nothing.
    double launch(unsigned count);

    /// Runs gpu-sleep or gpu-wake for this process, with more `arguments`.
    Timed sleep(std::vector<std::string> arguments = {}) const;
    Timed wake() const;
    /// The agent's figure of this name, such as "host_bytes" that it holds for contents now.
    [[nodiscard]] Bytes reported(std::string_view field) const;
    /// Memory of the host that the process has, without what it shares: the simulated driver keeps device
    /// memory there. Source: proc_pid_smaps_rollup(5).
    [[nodiscard]] Bytes resident_bytes() const;

private:
    [[nodiscard]] std::string run_command(std::string_view command, std::vector<std::string> arguments,
                                          double& seconds) const;
    [[nodiscard]] Timed run(std::string_view command, std::vector<std::string> arguments) const;

    test::Process server_;
};

/// "BYTES BYTES ...".
[[nodiscard]] std::string listed(const Sizes& sizes);

} // namespace gpu_sleep::bench
