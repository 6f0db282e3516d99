// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reads the facts that the checks judge. Nothing here judges; a fact that cannot be read is missing.

#pragma once

#include "control/targets.hpp"
#include "driver/capabilities.hpp"
#include "driver/checkpoint.hpp"
#include "driver/management.hpp"
#include "model/unseen_libraries.hpp"
#include "store/host_memory.hpp"
#include "store/snapshot_directory.hpp"

namespace gpu_sleep::doctor {

/// Facts that the kernel tells about the machine and this command.
struct KernelFacts {
    enum class Access : std::uint8_t { absent, denied, granted };

    std::optional<std::string> module_version; ///< of the driver's kernel module, if it is loaded
    Access control_device = Access::absent;    ///< /dev/nvidiactl, through which all is asked
    std::optional<int> ptrace_scope;           ///< Yama's; missing without Yama
    bool may_trace = false;                    ///< this command has CAP_SYS_PTRACE
    std::optional<std::uint64_t> max_mappings; ///< of one process
    std::string huge_pages;                    ///< transparent ones: always, madvise, never, or empty
    Bytes reserved_huge_pages = 0;             ///< hugetlb pages that nobody uses
    Bytes host_total = 0;
    store::Headroom headroom; ///< of this command
    bool has_mps_daemon = false;
};

/// A directory for files.
struct DirectoryFacts {
    std::string path;
    Result<store::SnapshotDirectory::FreeSpace> space;
};

struct MachineFacts {
    KernelFacts kernel;
    Result<driver::Setup> setup;
    Result<driver::Capabilities> capabilities;
    /// One for each device of `capabilities`; empty if nobody asked.
    std::vector<Result<driver::LinkSpeed>> links;
    std::optional<DirectoryFacts> directory;
};

/// The C library that a process has, and the one that the agent which lies ready for it needs. Of glibc 2.N:
/// N; 0: not known.
struct CLibraryFacts {
    bool is_musl = false;
    int has = 0;
    int agent_needs = 0;
};

/// Facts that the kernel tells about one process.
struct ProcessKernelFacts {
    bool is_stopped = false;
    std::optional<std::uint64_t> mappings; ///< missing where they may not be read
    std::vector<model::UnseenUse> unseen;  ///< libraries
    store::Headroom headroom;              ///< of its control group, too
    CLibraryFacts c_library{};
};

struct ProcessFacts {
    control::Process process;
    ProcessKernelFacts kernel;
    client::Answer status;    ///< of its agent
    client::Answer rehearsal; ///< of a sleep of all of it at level 1, whatever inhibits it
    /// By the driver; missing where it was not asked: the agent is to be.
    std::optional<Result<checkpoint::State>> checkpoint;
    client::Answer wake{};      ///< the rehearsal of one of all of it
    std::string how_to_go_on{}; ///< if it is stopped
};

/// Reads files of the kernel below `root`, which is "/" but for tests.
[[nodiscard]] KernelFacts read_kernel(const std::filesystem::path& root = "/");
[[nodiscard]] ProcessKernelFacts read_process(pid_t pid, const std::filesystem::path& root = "/");

/// Which questions to ask about the machine.
struct MachineQuestions {
    Milliseconds timeout{10'000}; ///< for each question
    bool measures = false;        ///< copies across the link of each GPU, by a context of its own
    std::string directory;        ///< empty: none
};

/// Asks what may hang or crash, such as a broken driver, so that it harms nobody: in a process of its own,
/// within `limit`. Errors: those of `ask`; timed_out; driver_failed (it has crashed); io_failed,
/// out_of_threads.
using AskApart =
    std::function<Result<std::string>(Milliseconds limit, const std::function<Result<std::string>()>& ask)>;

/// Asks all but the kernel apart.
[[nodiscard]] MachineFacts examine_machine(const MachineQuestions& questions, const AskApart& apart);

/// The same of one process, whose agent `outcome` has been asked for its status. Changes nothing in it, and
/// wakes nobody.
[[nodiscard]] ProcessFacts examine_process(control::Finder& finder, control::Outcome outcome,
                                           Milliseconds timeout, const AskApart& apart);

} // namespace gpu_sleep::doctor
