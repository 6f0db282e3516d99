// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that a program exports by descriptors. Its agent marks each with the process's id, and keeps a
// duplicate, by which it tells the agent of who imports it what it is. The memory sleeps with all who have it
// if each descriptor was imported by a process with an agent, and none of them is left.

#include "intercepted/sharing.hpp"

#include "base/files.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace gpu_sleep::agent::intercepted {
namespace {

/// Whether both lead to one open file. Source: fcntl(2), kcmp(2); the first is Linux 6.10's.
bool is_same_file(int one, int other) noexcept {
    constexpr int k_dupfd_query = 1027; // F_DUPFD_QUERY
    const int same = ::fcntl(one, k_dupfd_query, other);
    return same >= 0 ? same == 1 : ::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, one, other) == 0;
}

/// The numbers that are names in a directory of /proc, such as processes or descriptors; nothing where it
/// cannot be read.
std::optional<std::vector<int>> numbers_in(const std::string& path) {
    constexpr std::size_t k_most = 1 << 20;
    const UniqueFd directory(open_file(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto names =
        directory ? names_in(directory.get(), k_most) : Result<std::vector<std::string>>(Error());
    if (!names) return std::nullopt;
    std::vector<int> numbers;
    for (const auto& name : *names) {
        int number = 0;
        const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
        if (read.ptr == name.data() + name.size()) numbers.push_back(number);
    }
    return numbers;
}

/// The exports that may lead somewhere still: which files they are, the numbers of our duplicates, and
/// whether each was imported by a process that has an agent.
struct Open {
    std::set<std::pair<dev_t, ino_t>> files;
    std::set<int> copies;
    bool were_all_opened = true;
};
Open open_exports() {
    Open open;
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles)
        for (const auto& each : handle.exports) {
            open.files.emplace(each.copy.identity().device, each.copy.identity().inode);
            open.copies.insert(each.copy.get());
            open.were_all_opened &= each.was_opened;
        }
    return open;
}

/// Whether it is of this user, and has no agent; nor is it one that an agent has started.
bool is_stranger(pid_t pid) {
    struct stat status = {};
    const auto name = read_small_file(fmt::format("/proc/{}/comm", pid));
    if (::stat(fmt::format("/proc/{}", pid).c_str(), &status) != 0 || status.st_uid != ::geteuid() || !name ||
        name->starts_with("gpu-sleep"))
        return false;
    const auto start_time = start_time_of(pid);
    if (!start_time) return false;
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::has_passed;
    const auto said = server::ask_for_memory({pid, *start_time}, asked, Clock::now() + k_patience);
    return !said && said.error().code == ErrorCode::no_agent;
}

/// A process that may have one of the files, and of which no agent tells.
std::optional<pid_t> stranger_with(std::set<std::pair<dev_t, ino_t>> files) {
    // All of the driver's are one device for control. Who has used memory of a GPU has this one.
    const auto replace = [&](const char* control, const char* used) {
        const auto one = FileIdentity::of(AT_FDCWD, control);
        const auto other = FileIdentity::of(AT_FDCWD, used);
        if (one && other && files.erase({one->device, one->inode}) != 0)
            files.emplace(other->device, other->inode);
    };
    replace("/dev/nvidiactl", "/dev/nvidia-uvm");
    const auto processes = numbers_in("/proc");
    if (!processes) return 0;
    for (const pid_t pid : *processes) {
        if (pid == ::getpid()) continue;
        const auto path = fmt::format("/proc/{}/fd", pid);
        const auto descriptors = numbers_in(path); // none of another user's
        const auto has_one = [&](int number) {
            struct stat status = {};
            return ::stat(fmt::format("{}/{}", path, number).c_str(), &status) == 0 &&
                   files.contains({status.st_dev, status.st_ino});
        };
        if (descriptors && std::ranges::any_of(*descriptors, has_one) && is_stranger(pid)) return pid;
    }
    return std::nullopt;
}

} // namespace

std::optional<PassingImport> recognise(int descriptor) {
    const pid_t pid = ::fcntl(descriptor, F_GETOWN);
    if (pid <= 0 || pid == ::getpid()) return std::nullopt;
    const auto start_time = start_time_of(pid);
    if (!start_time) return std::nullopt;
    const ProcessIdentity owner{pid, *start_time};
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::exported;
    asked.allocation = ~std::uint64_t{0};
    for (;;) { // the newest first: it was made for this import, as a rule
        const auto said = server::ask_for_memory(owner, asked, Clock::now() + k_patience);
        if (!said) return std::nullopt;
        asked.allocation = said->what.number;
        if (is_same_file(descriptor, said->memory.get())) break;
    }
    asked.question = model::SharingQuestion::recognised;
    const auto said = server::ask_for_memory(owner, asked, Clock::now() + k_patience);
    if (!said) return std::nullopt;
    return PassingImport{
        owner, {.secret = said->what.secret, .address = said->what.number, .allocation = said->what.number}};
}

Result<server::SharedMemory> answer_of_exports(const model::SharedMemoryRequest& request) {
    const auto words = secret();
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const bool looks = request.question == model::SharingQuestion::exported;
    Handle* of = nullptr;
    Export* found = nullptr;
    for (auto& [number, handle] : all.handles)
        for (auto& each : handle.exports)
            if (looks ? each.number < request.allocation && (!found || each.number > found->number)
                      : each.number == request.allocation) {
                of = &handle;
                found = &each;
            }
    if (!found || !words) return make_error(ErrorCode::not_owned, "there is no such export");
    server::SharedMemory answer;
    if (looks) {
        answer.what.number = found->number;
        answer.memory = UniqueFd(::fcntl(found->copy.get(), F_DUPFD_CLOEXEC, k_first_own_number));
        return answer;
    }
    const bool is_in_ledger =
        std::ranges::any_of(of->mappings, [&](CUdeviceptr at) GPU_SLEEP_REQUIRES(all.mutex) {
            return all.mappings.at(at).in_ledger;
        });
    if (!is_in_ledger) {
        of->stay_reason = k_exported; // for the driver alone knows who imports it
        return make_error(ErrorCode::not_owned, "that cannot sleep");
    }
    found->was_opened = true;
    answer.what.number = of->number;
    answer.what.secret = *words;
    return answer;
}

std::optional<pid_t> owner_of_import(const model::SharedMemoryRequest& asked) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles)
        if (handle.import && handle.import->asked.secret == asked.secret &&
            handle.import->asked.allocation == asked.allocation)
            return handle.import->from.pid;
    return std::nullopt;
}

bool has_descriptor_of(pid_t owner) {
    const auto copies = open_exports().copies;
    const auto numbers = numbers_in("/proc/self/fd");
    return !numbers || std::ranges::any_of(*numbers, [&](int number) {
        return !copies.contains(number) && ::fcntl(number, F_GETOWN) == owner;
    });
}

std::optional<pid_t> unknown_sharer() {
    const auto open = open_exports();
    if (open.files.empty()) return std::nullopt;
    if (!open.were_all_opened || has_descriptor_of(::getpid())) return 0;
    return stranger_with(open.files);
}

void begin_import_at(CUdeviceptr address, const Handle& handle, driver::DeviceMask access) {
    std::list<Import> made(1);
    made.front().from = handle.import->from;
    made.front().asked = handle.import->asked;
    made.front().at = address;
    made.front().access = access;
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.all.splice(imports.all.end(), made);
}

void end_import_at(CUdeviceptr address) noexcept {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.all.remove_if([&](const Import& each) { return each.at == address; });
}

Passing::Passing(PassingImport import) : import_{std::move(import)}, here_(import_.begin()) {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.passing.splice(imports.passing.end(), import_, here_);
}

Passing::~Passing() {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    import_.splice(import_.end(), imports.passing, here_);
}

} // namespace gpu_sleep::agent::intercepted
