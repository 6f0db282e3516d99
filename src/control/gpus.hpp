// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The machine's GPUs as commands see them, by NVML or, where it is missing, by what agents say; what sleepers
// still have of them, and how they are numbered.

#pragma once

#include "client/room_plan.hpp"
#include "control/targets.hpp"
#include "driver/management.hpp"

namespace gpu_sleep::control {

/// Returns what an agent reports about a GPU, or null.
[[nodiscard]] const model::DeviceReport* device_of(const Answer& answer, const std::string& uuid) noexcept;

/// Notes of each of which all sleeps what NVML says that it has of the GPUs: contexts, modules, and what
/// stays. Asks NVML only if there is one. Leaves unset what NVML does not know, as in a container, where its
/// pids are others. Not thread-safe.
void note_gpu_use(std::vector<Outcome>& outcomes);

/// For what a person reads: has reports number GPUs as NVML does, and nvidia-smi. A program that sees some of
/// them alone, or was moved, has others. Asks NVML once it is needed. Not thread-safe.
class GpuNumbers {
public:
    /// As it was if NVML does not know all GPUs of the report.
    [[nodiscard]] model::Report in(model::Report report);
    /// The same, for all reports.
    void put_into(std::vector<Outcome>& outcomes);

private:
    std::optional<std::map<std::string, int>> by_uuid_;
};

/// Not thread-safe. What it is made of outlives it.
class Gpus {
public:
    /// `processes`: the statuses of all with an agent.
    Gpus(Finder& finder, const std::vector<Outcome>& processes);

    /// The GPU of that number or UUID, or the beginning of one; for an empty `text` the only one there is.
    /// Errors: invalid_argument, no_driver (nobody knows of any).
    [[nodiscard]] Result<driver::Gpu> choose(const std::string& text) const;
    /// All that are known.
    [[nodiscard]] const std::vector<driver::Gpu>& all() const noexcept { return all_; }
    /// Whether their numbers are the machine's, and not those of a program that sees some of them.
    [[nodiscard]] bool are_numbered() const noexcept { return has_management_; }
    /// How it is now. Errors: no_driver (nobody can be asked), those of driver::look_at_gpus().
    [[nodiscard]] Result<driver::Gpu> look(const std::string& uuid) const;

private:
    [[nodiscard]] Result<driver::Gpu> ask_agent(const std::string& uuid) const;

    Finder& finder_;
    const std::vector<Outcome>& processes_;
    bool has_management_ = false;
    std::vector<driver::Gpu> all_;
};

/// Returns the GPUs of `all` that a program sees with these values of CUDA_VISIBLE_DEVICES and
/// CUDA_DEVICE_ORDER, null if not set; at least one. Errors: no_driver (there is none), invalid_argument
/// (none of them is named, or only the driver knows which they are).
[[nodiscard]] Result<std::vector<driver::Gpu>>
visible_of(const std::vector<driver::Gpu>& all, bool are_numbered, const char* names, const char* order);

/// The processes that have memory of a GPU.
struct Holders {
    std::string text;       ///< how much each has, and whether it could sleep; empty if nobody says
    bool can_sleep = false; ///< one of them could, at once or soon
};

/// What all agents and the GPUs say. Not thread-safe.
class Neighbours {
public:
    /// Asks them, unless it has just done so: of many wakes that fail together each wants to know. False:
    /// they cannot be asked.
    [[nodiscard]] bool look();

    Finder finder;
    std::vector<Outcome> outcomes;
    std::vector<driver::Gpu> gpus;

private:
    std::optional<Clock::time_point> looked_;
};

/// Finds the processes, besides `process`, that have memory of `gpus`, and of the GPUs on which it sleeps if
/// it has an agent. `others_alone`: only those that its agent cannot ask. `moves`: the GPUs that it is to
/// come back to, as in a WakeRequest.
[[nodiscard]] Holders holders_beside(Neighbours& neighbours, const Process& process, bool others_alone,
                                     const std::vector<GpuPair>& moves, client::BytesByGpu gpus = {});

/// Why the agent of `asker` cannot ask that of `other`; empty: it can. An agent asks those of its own user
/// whose sockets lie in the same directory.
[[nodiscard]] std::string why_not_asked(Finder& finder, const Process& asker, const Process& other);

/// "4711 (python3) has 30.0 GiB: it has no agent (gpu-sleep 4711 --engine driver)", for each that NVML names
/// and of which `known` has no report: what can be done about it. `own`: who asks.
[[nodiscard]] std::vector<std::string> holders_without_agent(const Finder& finder, const driver::Gpu& gpu,
                                                             const std::vector<Outcome>& known, uid_t own);

} // namespace gpu_sleep::control
