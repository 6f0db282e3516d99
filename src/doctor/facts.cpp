// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading what the kernel says in /proc, /sys and /dev, and asking the driver and a file system, apart;
// their answers come as JSON.

#include "doctor/facts.hpp"

#include "base/guard.hpp"

#include <nlohmann/json.hpp>

#include <elf.h>
#include <link.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <charconv>
#include <cstring>

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

/// Returns the rest of the line of `text` that begins with `key`.
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

/// Reads a regular file of the process whose root directory this is. Whoever owns that can put anything in
/// its place: no link leads out, a device is not even opened, and what the kernel makes up, some of which is
/// gone once read, is not read.
std::optional<std::string> read_in_root(int root, const fs::path& file) {
    constexpr std::size_t k_most = std::size_t{32} << 20;
    const auto found = open_in_root(root, file.c_str(), O_PATH);
    struct stat status = {};
    struct statfs system = {};
    if (::fstat(found.get(), &status) != 0 || ::fstatfs(found.get(), &system) != 0) return {};
    const bool is_the_kernels = system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC;
    if (!S_ISREG(status.st_mode) || is_the_kernels) return {};
    const auto again = fmt::format("/proc/self/fd/{}", found.get());
    const UniqueFd opened(open_file(AT_FDCWD, again.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
    return read_open_file(opened.get(), k_most);
}

/// The names of the symbols of an ELF library, and of their versions. Empty if it has none.
std::string_view dynamic_names(std::string_view library) {
    const auto read = [&](auto& value, std::uint64_t at) {
        if (at > library.size() || library.size() - at < sizeof(value)) return false;
        std::memcpy(&value, library.data() + at, sizeof(value));
        return true;
    };
    ElfW(Ehdr) header{};
    ElfW(Shdr) section{};
    const auto read_section = [&](std::uint64_t index) {
        return read(section, header.e_shoff + index * sizeof(section));
    };
    unsigned index = 0;
    if (!read(header, 0)) return {};
    while (index < header.e_shnum && read_section(index) && section.sh_type != SHT_DYNSYM) ++index;
    if (index >= header.e_shnum || section.sh_type != SHT_DYNSYM || !read_section(section.sh_link)) return {};
    return library.substr(std::min<std::uint64_t>(section.sh_offset, library.size()), section.sh_size);
}

/// The newest version of glibc, 2.N, that the library has or asks for: N, or 0 if it names none. It may look
/// up others at run time, and goes without them.
int newest_glibc_in(std::string_view library) {
    constexpr std::string_view k_version = "GLIBC_2.";
    auto names = dynamic_names(library);
    int newest = 0;
    for (;;) {
        const auto at = names.find(k_version);
        if (at == std::string_view::npos) return newest;
        names.remove_prefix(at + k_version.size());
        newest = std::max(newest, number_in<int>(names.substr(0, 2)).value_or(0));
    }
}

/// By the files that are mapped, each kind read once: there may be many mappings.
CLibraryFacts read_c_library(std::string_view mappings, const fs::path& root) {
    const UniqueFd root_directory(open_file(AT_FDCWD, root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    fs::path c_library;
    fs::path agent;
    CLibraryFacts facts;
    while (const auto line = take_line(mappings)) {
        const fs::path file(line->substr(std::min(line->find('/'), line->size())));
        const auto name = file.filename().native();
        if (name.starts_with("ld-musl-")) facts.is_musl = true;
        if (name == "libc.so.6" || name.starts_with("libc-2.")) c_library = file;
        if (name.starts_with("libgpu-sleep-login.so")) agent = file.parent_path() / "libgpu-sleep-agent.so";
    }
    const auto newest_in = [&](const fs::path& file) {
        return newest_glibc_in(read_in_root(root_directory.get(), file).value_or(""));
    };
    facts.has = newest_in(c_library);
    facts.agent_needs = newest_in(agent);
    return facts;
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
        facts.c_library = read_c_library(*mappings, own / "root");
    }
    facts.headroom = store::host_headroom({proc, root / "sys/fs/cgroup", std::to_string(pid)});
    return facts;
}

} // namespace gpu_sleep::doctor

// Each beside its type, where the library looks for it.
namespace gpu_sleep::driver {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GpuSetup, index, uuid, name, is_persistent, is_divided, is_exclusive,
                                   is_prohibited, link_generation, link_width, max_link_generation,
                                   max_link_width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Setup, driver_version, gpus)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DeviceCapabilities, device, name, uuid, compute_major, compute_minor,
                                   has_virtual_memory, uses_mps, total, maps_host_memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Capabilities, cuda_version, has_checkpoint, devices)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LinkSpeed, to_host, to_device)
} // namespace gpu_sleep::driver
namespace gpu_sleep::store {
static void to_json(nlohmann::json& json, const SnapshotDirectory::FreeSpace& space) {
    json = {space.bytes, space.in_memory};
}
static void from_json(const nlohmann::json& json, SnapshotDirectory::FreeSpace& space) {
    space = {json.at(0).get<Bytes>(), json.at(1).get<bool>()};
}
} // namespace gpu_sleep::store

namespace gpu_sleep::doctor {
namespace {

/// Runs `ask`, a function that returns a Result<Value>, in a child process. Errors: those of AskApart.
template <class Value, class Ask>
Result<Value> asked(const AskApart& apart, Milliseconds limit, Ask&& ask) {
    constexpr auto k_replace = nlohmann::json::error_handler_t::replace;
    const auto text = GPU_SLEEP_TRY(apart(limit, [&]() -> Result<std::string> {
        const Result<Value> answer = ask();
        if (!answer) return answer.error();
        return nlohmann::json(*answer).dump(-1, ' ', false, k_replace);
    }));
    const auto value = nlohmann::json::parse(text, nullptr, false);
    if (value.is_discarded()) return make_error(ErrorCode::internal, "its answer cannot be read");
    return guarded([&]() -> Result<Value> { return value.template get<Value>(); });
}

std::vector<Result<driver::LinkSpeed>> measure(const driver::Capabilities& capabilities,
                                               const AskApart& apart, Milliseconds limit) {
    std::vector<Result<driver::LinkSpeed>> links;
    for (const auto& each : capabilities.devices)
        links.push_back(
            asked<driver::LinkSpeed>(apart, limit, [&] { return driver::measure_link(each.device); }));
    return links;
}

/// Asks for the checkpoint state of a process that has no agent.
Result<checkpoint::State> ask_checkpoint(pid_t pid, const AskApart& apart, Milliseconds limit) {
    return asked<checkpoint::State>(apart, limit, [&]() -> Result<checkpoint::State> {
        const auto loaded = GPU_SLEEP_TRY(driver::Checkpoint::load());
        return loaded.state(pid);
    });
}

} // namespace

MachineFacts examine_machine(const MachineQuestions& questions, const AskApart& apart) {
    const auto limit = questions.timeout;
    MachineFacts facts{read_kernel(),
                       asked<driver::Setup>(apart, limit, driver::look_at_setup),
                       asked<driver::Capabilities>(apart, limit, driver::look_at_capabilities),
                       {},
                       {}};
    if (questions.measures && facts.capabilities) facts.links = measure(*facts.capabilities, apart, limit);
    if (!questions.directory.empty()) {
        using Space = store::SnapshotDirectory::FreeSpace;
        const auto look = [&] { return store::SnapshotDirectory::free_space_in(questions.directory); };
        facts.directory = DirectoryFacts{questions.directory, asked<Space>(apart, limit, look)};
    }
    return facts;
}

ProcessFacts examine_process(control::Finder& finder, control::Outcome outcome, Milliseconds timeout,
                             const AskApart& apart) {
    ProcessFacts facts{outcome.process, read_process(outcome.process.pid), std::move(outcome.answer), {}, {}};
    facts.rehearsal = facts.status;
    facts.how_to_go_on = finder.proc().how_to_go_on(facts.process);
    const auto* const error = std::get_if<Error>(&facts.status);
    if (error && error->code == ErrorCode::no_agent && !facts.kernel.is_stopped)
        facts.checkpoint = ask_checkpoint(facts.process.pid, apart, timeout);
    if (!std::holds_alternative<model::Report>(facts.status)) return facts;
    model::SleepRequest request;
    request.dry_run = true;
    request.ignore_inhibitors = true; // whether there are any, the status says
    request.timeout = timeout / 2;    // to wait for another operation
    model::WakeRequest wake;
    wake.dry_run = true;
    wake.timeout = request.timeout;
    const auto rehearsed = [&](const protocol::Request& asked) -> client::Answer {
        auto socket = GPU_SLEEP_TRY(finder.connect(facts.process));
        control::Targets target;
        target.reached.push_back({facts.process, std::move(socket)});
        return ask_each(finder, std::move(target), asked, timeout).front().answer;
    };
    facts.rehearsal = rehearsed(request);
    facts.wake = rehearsed(wake);
    return facts;
}

} // namespace gpu_sleep::doctor
