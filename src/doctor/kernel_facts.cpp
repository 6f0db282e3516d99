// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading what the kernel says in /proc, /sys and /dev.

#include "doctor/facts.hpp"

#include "base/small_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

namespace gpu_sleep::doctor {
namespace {

namespace fs = std::filesystem;

/// The number at the beginning of `text`, after blanks.
template <class Number>
std::optional<Number> number_in(std::string_view text, int base = 10) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    Number number{};
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    return failure == std::errc{} ? std::optional(number) : std::nullopt;
}

template <class Number>
std::optional<Number> number_of(const fs::path& file) {
    const auto text = read_small_file(file);
    return text ? number_in<Number>(*text) : std::nullopt;
}

/// What follows `key` in the line of `text` that begins with it.
std::optional<std::string> line_after(std::string_view text, std::string_view key) {
    while (const auto line = take_line(text))
        if (line->starts_with(key)) return std::string(line->substr(key.size()));
    return {};
}

/// The first word of `text` that looks like a version of the driver: "580.159.03".
std::optional<std::string> version_in(std::string_view text) {
    constexpr std::string_view k_blanks = " \t\n";
    while (!text.empty()) {
        text.remove_prefix(std::min(text.find_first_not_of(k_blanks), text.size()));
        const auto word = text.substr(0, text.find_first_of(k_blanks));
        const bool is_version = word.find('.') != std::string_view::npos &&
                                word.find_first_not_of("0123456789.") == std::string_view::npos;
        if (is_version) return std::string(word);
        text.remove_prefix(word.size());
    }
    return {};
}

KernelFacts::Access access_to(const fs::path& device) {
    if (::access(device.c_str(), R_OK | W_OK) == 0) return KernelFacts::Access::granted;
    return errno == ENOENT || errno == ENOTDIR ? KernelFacts::Access::absent : KernelFacts::Access::denied;
}

/// The word in brackets: "always [madvise] never".
std::string chosen_in(std::string_view text) {
    const auto begin = text.find('[');
    const auto end = text.find(']', std::min(begin, text.size()));
    return end == std::string_view::npos ? std::string()
                                         : std::string(text.substr(begin + 1, end - begin - 1));
}

void read_memory(KernelFacts& facts, const fs::path& proc) {
    const auto text = read_small_file(proc / "meminfo").value_or("");
    const auto figure = [&](std::string_view key) {
        const auto line = line_after(text, key);
        return line ? number_in<Bytes>(*line).value_or(0) : 0;
    };
    facts.host_total = figure("MemTotal:") * k_kib;
    facts.reserved_huge_pages = figure("HugePages_Free:") * figure("Hugepagesize:") * k_kib;
}

} // namespace

KernelFacts read_kernel(const fs::path& root) {
    constexpr unsigned k_sys_ptrace = 19; // CAP_SYS_PTRACE
    const auto proc = root / "proc";
    KernelFacts facts;
    if (const auto text = read_small_file(proc / "driver/nvidia/version"))
        facts.module_version = version_in(*text);
    facts.control_device = access_to(root / "dev/nvidiactl");
    facts.ptrace_scope = number_of<int>(proc / "sys/kernel/yama/ptrace_scope");
    const auto status = read_small_file(proc / "self/status").value_or("");
    const auto effective = number_in<std::uint64_t>(line_after(status, "CapEff:").value_or(""), 16);
    facts.may_trace = effective && ((*effective >> k_sys_ptrace) & 1U) != 0;
    facts.max_mappings = number_of<std::uint64_t>(proc / "sys/vm/max_map_count");
    facts.huge_pages =
        chosen_in(read_small_file(root / "sys/kernel/mm/transparent_hugepage/enabled").value_or(""));
    read_memory(facts, proc);
    facts.headroom = store::host_headroom({proc, root / "sys/fs/cgroup"});
    std::error_code ignored;
    facts.has_mps_daemon = fs::exists(root / "tmp/nvidia-mps/control", ignored);
    return facts;
}

ProcessKernelFacts read_process(pid_t pid, const fs::path& root) {
    const auto proc = root / "proc";
    const auto own = proc / std::to_string(pid);
    ProcessKernelFacts facts;
    const auto state = line_after(read_small_file(own / "status").value_or(""), "State:").value_or("");
    facts.is_stopped = state.find_first_of("Tt") == state.find_first_not_of(" \t") && !state.empty();
    if (const auto mappings = read_small_file(own / "maps")) {
        facts.mappings = static_cast<std::uint64_t>(std::count(mappings->begin(), mappings->end(), '\n'));
        facts.unseen = model::unseen_libraries(*mappings);
    }
    facts.headroom = store::host_headroom({proc, root / "sys/fs/cgroup", std::to_string(pid)});
    return facts;
}

} // namespace gpu_sleep::doctor
