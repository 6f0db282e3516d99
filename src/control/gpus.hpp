// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The machine's GPUs as commands see them, by NVML or, where it is missing, by what agents say; what sleepers
// still have of them, how they are numbered, and which takes the place of which.

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

// ---- Which GPU takes the place of which when the driver restores a process

/// The one of `gpus` with that uuid; null if there is none.
[[nodiscard]] const driver::Gpu* find_gpu(const std::vector<driver::Gpu>& gpus,
                                          const std::string& uuid) noexcept;

/// Reads "FROM=TO": each a number of NVML's or a uuid, as typed. Errors: invalid_argument.
[[nodiscard]] Result<GpuPair> parse_gpu_move(const std::string& text);

/// The list that the driver takes: all `gpus`, each once on each side. One that has to give its place and was
/// given none gets that of the last that moves in its chain; nothing of the process may be on it. `needs` is
/// what the process needs of which GPU; where it is not known, `gpus` alone is looked at. Errors:
/// invalid_argument (no such GPU; twice the same; not of the same kind; FROM has nothing of the process, or
/// TO has something that would have to go elsewhere).
[[nodiscard]] Result<std::vector<GpuPair>> plan_gpu_moves(const std::vector<GpuPair>& moves,
                                                          const std::vector<driver::Gpu>& gpus,
                                                          const client::BytesByGpu& needs);

/// `needs` where `pairs` puts them.
[[nodiscard]] client::BytesByGpu moved(const client::BytesByGpu& needs, const std::vector<GpuPair>& pairs);

} // namespace gpu_sleep::control
