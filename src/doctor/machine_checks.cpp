// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The checks of the machine: what the answers of the driver and the kernel's figures mean, and their table.

#include "doctor/diagnosis.hpp"

#include "base/text.hpp"

namespace gpu_sleep::doctor {
namespace {

/// A status of cuInit that shows something wrong with the machine. Source: CUDA Driver API, CUresult.
struct StartFailure {
    int status;
    std::string_view advice;
};
constexpr std::array k_start_failures = {
    StartFailure{34, "libcuda.so.1 is the toolkit's stub: take its directory off LD_LIBRARY_PATH"},
    StartFailure{46, "another process has exclusive use of the GPU: nvidia-smi -c DEFAULT"},
    StartFailure{100, "there is no GPU that this process may use: check CUDA_VISIBLE_DEVICES, and give a "
                      "container its GPUs (--gpus all)"},
    StartFailure{304,
                 "may this user open /dev/nvidia*? is the module nvidia_uvm loaded (nvidia-modprobe -u)?"},
    StartFailure{802, "start the fabric manager (systemctl start nvidia-fabricmanager), and wait for it"},
    StartFailure{803, "the driver was replaced under its kernel module: restart the machine"},
    StartFailure{804, "a forward-compatibility library does not support this GPU: take the directory of "
                      "cuda-compat off LD_LIBRARY_PATH"},
    StartFailure{999,
                 "look for NVRM and Xid in dmesg; is the module nvidia_uvm loaded (nvidia-modprobe -u)?"},
};

std::string advice_for(const Error& error) {
    if (error.code == ErrorCode::timed_out)
        return "look for NVRM and Xid in dmesg; the machine may have to be restarted";
    for (const auto& failure : k_start_failures)
        if (failure.status == error.driver_status) return std::string(failure.advice);
    if (error.driver_status == 0 && error.code == ErrorCode::no_driver)
        return "install the NVIDIA driver, or a newer one; give a container its GPUs (--gpus all)";
    return "does nvidia-smi work? look for NVRM and Xid in dmesg";
}

std::string version_words(int cuda_version) {
    return fmt::format("CUDA {}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
}

std::string name_of(const driver::DeviceCapabilities& gpu) {
    return fmt::format("GPU {} {}", gpu.device, gpu.name);
}

std::string name_of(const driver::GpuSetup& gpu) {
    return fmt::format("GPU {} {}", gpu.index, gpu.name);
}

/// "GPU 0, GPU 3": those of which `is_so` holds.
template <class Predicate>
std::string list_of(const driver::Setup& setup, Predicate&& is_so) {
    std::string list;
    for (const auto& gpu : setup.gpus)
        if (is_so(gpu)) list += fmt::format("{}GPU {}", list.empty() ? "" : ", ", gpu.index);
    return list;
}

/// Why processes of this GPU cannot sleep; empty if they can.
std::string trouble_with(const driver::DeviceCapabilities& gpu) {
    constexpr int k_turing = 75;
    if (!gpu.has_virtual_memory) return "has no virtual memory management, without which nothing can sleep";
    if (gpu.compute_major * 10 + gpu.compute_minor < k_turing)
        return fmt::format("is older than the Turing generation (compute capability {}.{})",
                           gpu.compute_major, gpu.compute_minor);
    return {};
}

/// The measured speed of the GPU of this uuid.
const Result<driver::LinkSpeed>* measured(const MachineFacts& machine, const std::string& uuid) {
    if (!machine.capabilities) return nullptr;
    const auto& devices = machine.capabilities->devices;
    for (std::size_t i = 0; i < machine.links.size() && i < devices.size(); ++i)
        if (devices[i].uuid == uuid) return &machine.links[i];
    return nullptr;
}

Finding judge_link_of(const MachineFacts& machine, const driver::GpuSetup& gpu) {
    constexpr double k_least = 0.6; // of what the link could do
    const auto* const speed = measured(machine, gpu.uuid);
    auto text = fmt::format("GPU {}: PCIe {}.0 x{}", gpu.index, gpu.max_link_generation, gpu.max_link_width);
    const bool is_narrow = gpu.link_width != 0 && gpu.link_width < gpu.max_link_width;
    if (is_narrow) text += fmt::format(", of which {} lanes are used", gpu.link_width);
    if (speed && !*speed)
        return warn(text + "; its speed could not be measured: " + speed->error().message,
                    "free half a GiB on the GPU, or leave out --measure");
    if (speed)
        text += fmt::format(", {:.1f} GB/s to the host and {:.1f} GB/s from it, measured",
                            (*speed)->to_host / 1e9, (*speed)->to_device / 1e9);
    if (is_narrow)
        return warn(std::move(text), "the slot, a riser or the BIOS gives it fewer lanes: sleeps and wakes "
                                     "take longer");
    const double best = pcie_bytes_per_second(gpu.max_link_generation, gpu.max_link_width);
    if (speed && std::min((*speed)->to_host, (*speed)->to_device) < k_least * best)
        return warn(std::move(text),
                    fmt::format("the link could do {:.0f} GB/s: is another program copying, is the GPU on "
                                "another CPU socket, or is the machine virtual?",
                                best / 1e9));
    return ok(std::move(text));
}

Findings judge_driver(const MachineFacts& machine) {
    if (!machine.capabilities) {
        const auto& error = machine.capabilities.error();
        const auto status =
            error.code == ErrorCode::timed_out ? exit_status::timed_out : exit_status::failed_awake;
        return {bad(error.message, advice_for(error), status)};
    }
    const auto& found = *machine.capabilities;
    const auto version = machine.setup ? machine.setup->driver_version : std::string();
    auto text = version.empty() ? "version not known" : version;
    return {ok(fmt::format("{}, up to {}, {}", text, version_words(found.cuda_version),
                           counted(found.devices.size(), "GPU")))};
}

Findings judge_module(const MachineFacts& machine) {
    using Access = KernelFacts::Access;
    const auto& kernel = machine.kernel;
    if (kernel.control_device == Access::denied)
        return {
            bad("this user may not open /dev/nvidiactl",
                "add the user to the group that owns it, or load the module with NVreg_DeviceFileMode=0666",
                exit_status::not_permitted)};
    if (machine.capabilities && !kernel.module_version) return {}; // it works in some other way
    if (!kernel.module_version)
        return {bad("not loaded", "load it (modprobe nvidia); for a container, on the host")};
    const auto& library = machine.setup ? machine.setup->driver_version : *kernel.module_version;
    if (!library.empty() && library != *kernel.module_version)
        return {warn(fmt::format("{}, but the libraries are from {}", *kernel.module_version, library),
                     "the driver was replaced: restart the machine")};
    if (kernel.control_device == Access::absent && !machine.capabilities)
        return {bad(fmt::format("{}, but there is no /dev/nvidiactl", *kernel.module_version),
                    "nvidia-modprobe creates it; give a container its GPUs (--gpus all)")};
    return {};
}

Findings judge_management(const MachineFacts& machine) {
    if (machine.setup || !machine.capabilities) return {}; // without a driver that is no news
    return {warn(machine.setup.error().message,
                 "processes without an agent are not listed, and woken only with gpu-wake --force")};
}

Findings judge_gpus(const MachineFacts& machine) {
    Findings findings;
    if (!machine.capabilities) return findings;
    const auto& devices = machine.capabilities->devices;
    const bool has_good = std::any_of(devices.begin(), devices.end(),
                                      [](const auto& gpu) { return trouble_with(gpu).empty(); });
    if (devices.empty())
        findings.push_back(bad("there is none that this process may use",
                               "check CUDA_VISIBLE_DEVICES, and give a container its GPUs (--gpus all)"));
    for (const auto& gpu : devices) {
        const auto trouble = trouble_with(gpu);
        if (trouble.empty())
            findings.push_back(
                ok(fmt::format("{}, {}, compute capability {}.{}", name_of(gpu), format_bytes(gpu.total),
                               gpu.compute_major, gpu.compute_minor)));
        else if (has_good)
            findings.push_back(warn(fmt::format("{} {}", name_of(gpu), trouble),
                                    "use the other GPUs for programs that should sleep"));
        else
            findings.push_back(bad(fmt::format("{} {}", name_of(gpu), trouble), "use a newer GPU"));
    }
    return findings;
}

Findings judge_checkpoint(const MachineFacts& machine) {
    constexpr int k_moves = 13000; // the first whose restore takes pairs of GPUs
    if (!machine.capabilities) return {};
    const auto& found = *machine.capabilities;
    if (!found.has_checkpoint)
        return {warn(fmt::format("this driver (up to {}) cannot checkpoint processes",
                                 version_words(found.cuda_version)),
                     "processes without an agent can sleep with a driver for CUDA 12.8 or later")};
    if (found.cuda_version < k_moves)
        return {ok("the driver can checkpoint processes without an agent, and restore them on the same GPU")};
    return {ok("the driver can checkpoint processes without an agent, and restore them on another GPU")};
}

Findings judge_host_backing(const MachineFacts& machine) {
    Findings findings;
    if (!machine.capabilities) return findings;
    for (const auto& gpu : machine.capabilities->devices)
        if (!gpu.maps_host_memory)
            findings.push_back(
                warn(fmt::format("GPU {}: the driver cannot map host memory at its addresses", gpu.device),
                     "gpu-sleep --live does not work on this GPU: it needs host memory from cuMemCreate "
                     "(HOST_NUMA)"));
    return findings;
}

Findings judge_persistence(const MachineFacts& machine) {
    if (!machine.setup || machine.setup->gpus.empty()) return {};
    const auto without = list_of(*machine.setup, [](const auto& gpu) { return !gpu.is_persistent; });
    if (without.empty()) return {};
    return {warn("off for " + without, "a program that finds the GPU unused restarts the driver, which takes "
                                       "seconds: nvidia-smi -pm 1, or run nvidia-persistenced")};
}

Findings judge_modes(const MachineFacts& machine) {
    Findings findings;
    if (!machine.setup) return findings;
    for (const auto& gpu : machine.setup->gpus) {
        if (gpu.is_prohibited)
            findings.push_back(
                bad(name_of(gpu) + " allows no compute work", "nvidia-smi -c DEFAULT, as root"));
        if (gpu.is_exclusive)
            findings.push_back(warn(name_of(gpu) + " is for one process at a time",
                                    "a sleeping process keeps its context, so no other process can use the "
                                    "GPU: nvidia-smi -c DEFAULT, as root"));
    }
    return findings;
}

Findings judge_mig(const MachineFacts& machine) {
    if (!machine.setup || machine.setup->gpus.empty()) return {};
    const auto divided = list_of(*machine.setup, [](const auto& gpu) { return gpu.is_divided; });
    if (divided.empty()) return {};
    return {warn(divided + " divided into instances",
                 "the driver does not checkpoint processes there, and gpu-sleep has not been tested there: "
                 "try a sleep with --check first")};
}

Findings judge_mps(const MachineFacts& machine) {
    constexpr std::string_view k_advice =
        "the driver does not checkpoint clients of MPS, and gpu-sleep has not been tested with it: stop it "
        "(echo quit | nvidia-cuda-mps-control), or try a sleep with --check first";
    const auto uses = [](const auto& gpu) { return gpu.uses_mps; };
    const bool is_used = machine.capabilities && std::any_of(machine.capabilities->devices.begin(),
                                                             machine.capabilities->devices.end(), uses);
    if (is_used)
        return {
            warn("programs share their contexts through the multi-process service", std::string(k_advice))};
    if (machine.kernel.has_mps_daemon)
        return {warn("the multi-process service daemon seems to be running", std::string(k_advice))};
    return {};
}

Findings judge_link(const MachineFacts& machine) {
    Findings findings;
    if (!machine.setup) return findings;
    for (const auto& gpu : machine.setup->gpus)
        if (gpu.max_link_generation != 0 || measured(machine, gpu.uuid))
            findings.push_back(judge_link_of(machine, gpu));
    return findings;
}

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
    if (!space) { // with advice of its own, but for one that this user may not use
        const bool is_forbidden = space.error().code == ErrorCode::not_permitted;
        return {bad(space.error().message,
                    is_forbidden ? "with --dir, name a directory that only this user may enter" : "",
                    traits(space.error().code).exit_status)};
    }
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
    MachineCheck{"host_backing", "host backing", judge_host_backing},
    MachineCheck{"ptrace", "permission", judge_ptrace},
    MachineCheck{"link", "link", judge_link},
    MachineCheck{"host_memory", "host memory", judge_memory},
    MachineCheck{"huge_pages", "huge pages", judge_huge_pages},
    MachineCheck{"mapping_limit", "mappings", judge_mapping_limit},
    MachineCheck{"directory", "files", judge_directory},
};

} // namespace

double pcie_bytes_per_second(int generation, int width) noexcept {
    // A lane, with the coding of its generation: from 8 of 10 bits to 128 of 130.
    constexpr std::array k_lane = {0.0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
    if (generation <= 0 || width <= 0) return 0;
    return k_lane[std::min(static_cast<std::size_t>(generation), k_lane.size() - 1)] * width;
}

std::optional<LinkRate> link_rate(const MachineFacts& machine) {
    constexpr double k_usable = 0.85; // of the link's own figure: 55 of 63 GB/s were measured
    std::optional<LinkRate> slowest;
    const auto take = [&](double rate, bool is_measured) {
        if (rate > 0 && (!slowest || rate < slowest->bytes_per_second)) slowest = {rate, is_measured};
    };
    for (const auto& link : machine.links)
        if (link) take(std::min(link->to_host, link->to_device), true);
    if (slowest || !machine.setup) return slowest;
    for (const auto& gpu : machine.setup->gpus) {
        const int width = gpu.link_width != 0 ? gpu.link_width : gpu.max_link_width;
        take(k_usable * pcie_bytes_per_second(gpu.max_link_generation, width), false);
    }
    return slowest;
}

std::span<const MachineCheck> machine_checks() noexcept {
    return k_machine_checks;
}

} // namespace gpu_sleep::doctor
