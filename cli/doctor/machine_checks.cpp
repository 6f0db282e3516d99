// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks of the machine: their table, and what the kernel's figures mean.

#include "cli/doctor/driver_checks.hpp"

#include "base/text.hpp"

#include <algorithm>
#include <array>

namespace gpu_sleep::cli::doctor {
namespace {

Findings judge_ptrace(const MachineFacts& machine) {
    // Source: Documentation/admin-guide/LSM/Yama.rst
    constexpr int k_descendants = 1;
    constexpr int k_privileged = 2;
    const auto& kernel = machine.kernel;
    if (!kernel.ptrace_scope || *kernel.ptrace_scope == 0) return {};
    const auto scope = fmt::format("Yama's ptrace_scope is {}", *kernel.ptrace_scope);
    if (*kernel.ptrace_scope > k_privileged)
        return {warn(scope + ", so no process may be checkpointed",
                     "processes without an agent cannot sleep; a lower scope needs a reboot")};
    if (kernel.may_trace) return {};
    if (*kernel.ptrace_scope == k_descendants)
        return {warn(scope + ": the driver may checkpoint only processes that allow it",
                     "only root can put processes without an agent to sleep; sysctl "
                     "kernel.yama.ptrace_scope=0 lets their users do so")};
    return {warn(scope + ": the driver may checkpoint only for root",
                 "use gpu-sleep --engine driver as root, or set kernel.yama.ptrace_scope to 0")};
}

Findings judge_huge_pages(const MachineFacts& machine) {
    constexpr Bytes k_large_part = 8; // one part of so many
    const auto& kernel = machine.kernel;
    Findings findings;
    if (kernel.huge_pages == "never")
        findings.push_back(warn("never used for programs' memory",
                                "first sleeps take longer; echo madvise > "
                                "/sys/kernel/mm/transparent_hugepage/enabled, as root"));
    if (kernel.reserved_huge_pages > kernel.host_total / k_large_part)
        findings.push_back(warn(format_bytes(kernel.reserved_huge_pages) +
                                    " of host memory are reserved for hugetlb and unused",
                                "sleeps do not use them; a smaller vm.nr_hugepages leaves more room"));
    return findings;
}

Findings judge_mapping_limit(const MachineFacts& machine) {
    constexpr std::uint64_t k_usual = 65'530;
    const auto& limit = machine.kernel.max_mappings;
    if (!limit || *limit >= k_usual) return {};
    return {warn(fmt::format("a process may have {}", *limit),
                 "programs with many allocations may run out: sysctl vm.max_map_count=262144, as root")};
}

Findings judge_memory(const MachineFacts& machine) {
    const auto& kernel = machine.kernel;
    if (kernel.host_total == 0) return {};
    Bytes largest = 0;
    if (machine.capabilities)
        for (const auto& gpu : machine.capabilities->devices) largest = std::max(largest, gpu.total);
    auto text = fmt::format("{} of {} still available, limited by {}", format_bytes(kernel.headroom.bytes),
                            format_bytes(kernel.host_total), kernel.headroom.limited_by);
    if (kernel.headroom.bytes < largest)
        return {
            warn(std::move(text),
                 fmt::format(
                     "less than one GPU has ({}): what does not fit needs --spill, --store file or --level 2",
                     format_bytes(largest)))};
    return {ok(std::move(text))};
}

Findings judge_directory(const MachineFacts& machine) {
    if (!machine.directory) return {};
    const auto& [path, space] = *machine.directory;
    if (!space)
        return {bad(space.error().message, "with --dir, name a directory that only this user may enter",
                    traits(space.error().code).exit_status)};
    auto text = fmt::format("{} has {} free", path, format_bytes(space->bytes));
    if (space->in_memory) return {warn(text + ", but is in host memory", "name a directory on a disk")};
    return {ok(std::move(text))};
}

constexpr std::array k_machine_checks = {
    MachineCheck{"driver", "driver", judge_driver},
    MachineCheck{"module", "kernel module", judge_module},
    MachineCheck{"management", "management library", judge_management},
    MachineCheck{"gpu", "GPU", judge_gpus},
    MachineCheck{"compute_mode", "compute mode", judge_modes},
    MachineCheck{"persistence", "persistence mode", judge_persistence},
    MachineCheck{"mig", "MIG", judge_mig},
    MachineCheck{"mps", "MPS", judge_mps},
    MachineCheck{"checkpoint", "checkpoint", judge_checkpoint},
    MachineCheck{"ptrace", "permission", judge_ptrace},
    MachineCheck{"link", "link", judge_link},
    MachineCheck{"host_memory", "host memory", judge_memory},
    MachineCheck{"huge_pages", "huge pages", judge_huge_pages},
    MachineCheck{"mapping_limit", "mappings", judge_mapping_limit},
    MachineCheck{"directory", "files", judge_directory},
};

} // namespace

std::span<const MachineCheck> machine_checks() noexcept {
    return k_machine_checks;
}

Findings judge(const MachineFacts& machine) {
    Findings all;
    for (const auto& check : k_machine_checks)
        for (auto& finding : check.judge(machine)) {
            finding.id = check.id;
            finding.subject = check.subject;
            all.push_back(std::move(finding));
        }
    return all;
}

} // namespace gpu_sleep::cli::doctor
