// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that a program exports by descriptors. Its agent marks each with the process's id, and keeps a
// duplicate, by which it tells the agent of who imports it what it is. The memory sleeps with all who have it
// if each descriptor was imported by a process with an agent, and none of them is left.

#include "intercepted/sharing.hpp"

#include "base/files.hpp"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <sys/stat.h>
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
    if (same >= 0) return same == 1;
    // A filter might end the process for it.
    return !has_call_filter() && ::syscall(SYS_kcmp, ::getpid(), ::getpid(), KCMP_FILE, one, other) == 0;
}

/// What tells files apart: of devices, whatever name they have; 0, 0 if it is not known.
using FileKey = std::pair<std::uint64_t, std::uint64_t>;
/// It waits for no file system.
FileKey key_of(const std::string& path) noexcept {
    struct statx status = {};
    if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO, &status) != 0) return {};
    const auto join = [](std::uint64_t major, std::uint64_t minor) { return major << 32 | minor; };
    return S_ISCHR(status.stx_mode)
               ? FileKey(join(status.stx_rdev_major, status.stx_rdev_minor), 0)
               : FileKey(join(status.stx_dev_major, status.stx_dev_minor), status.stx_ino);
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

/// Our duplicates, by their numbers, and whether each of what they are of was imported by a process whose
/// agent has said so, and by no other.
struct Exports {
    std::set<int> copies;
    bool were_all_opened = true;
};
Exports open_exports() {
    Exports open;
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles)
        for (const auto& each : handle.exports) {
            open.copies.insert(each.copy.get());
            open.were_all_opened &= each.was_opened && ::fcntl(each.copy.get(), F_GETOWN) == ::getpid();
        }
    return open;
}

/// Whether it may have a descriptor of this process's memory, for all that its agent says, if it has one.
/// Those that agents have started have none.
bool may_have_one(pid_t pid) {
    constexpr Milliseconds k_moment{1'000}; // the program waits, and others may be stopped
    const auto name = read_small_file(fmt::format("/proc/{}/comm", pid));
    if (!name || name->starts_with("gpu-sleep")) return false;
    const auto start_time = start_time_of(pid);
    if (!start_time) return false;
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::has_none;
    return !server::ask_for_memory({pid, *start_time}, asked, Clock::now() + k_moment);
}

/// Whether another process may have one of the descriptors. All descriptors of the driver's are of one
/// device; who has used memory of a GPU has another one, too.
bool have_others(const std::set<int>& descriptors) {
    std::set<FileKey> files;
    for (const int each : descriptors) files.insert(key_of(fmt::format("/proc/self/fd/{}", each)));
    if (files.erase(key_of("/dev/nvidiactl")) != 0) files.insert(key_of("/dev/nvidia-uvm"));
    const auto processes = numbers_in("/proc");
    if (!processes) return true;
    for (const pid_t pid : *processes) {
        const auto path = fmt::format("/proc/{}", pid);
        struct stat status = {};
        if (pid == ::getpid() || ::stat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
        const auto numbers = numbers_in(path + "/fd");
        if (!numbers && (errno == EMFILE || errno == ENFILE)) return true;
        const auto has_one = [&](int number) {
            return files.contains(key_of(fmt::format("{}/fd/{}", path, number)));
        };
        if (numbers && std::ranges::any_of(*numbers, has_one) && may_have_one(pid)) return true;
    }
    return false;
}

} // namespace

Result<PassingImport> recognise(int descriptor) {
    const pid_t pid = ::fcntl(descriptor, F_GETOWN);
    const auto none = [] { return make_error(ErrorCode::not_owned, "no agent tells of it"); };
    if (pid <= 0 || pid == ::getpid()) return none();
    const ProcessIdentity owner{pid, GPU_SLEEP_TRY(start_time_of(pid))};
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::exported;
    asked.address = static_cast<std::uint64_t>(::fcntl(descriptor, F_GETSIG));
    asked.allocation = ~std::uint64_t{0};
    for (;;) { // the newest first: it was made for this import, as a rule
        const auto said = GPU_SLEEP_TRY(server::ask_for_memory(owner, asked, Clock::now() + k_patience));
        if (said.what.number >= asked.allocation) return none();
        asked.allocation = said.what.number;
        if (is_same_file(descriptor, said.memory.get())) break;
    }
    asked.question = model::SharingQuestion::recognised;
    const auto said = GPU_SLEEP_TRY(server::ask_for_memory(owner, asked, Clock::now() + k_patience));
    return PassingImport{
        owner, {.secret = said.what.secret, .address = said.what.number, .allocation = said.what.number}};
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
    if (!found && looks && request.address != static_cast<std::uint64_t>(ExportCopy::mark_of(all.sleeps)))
        return make_error(ErrorCode::refused, "its memory has slept meanwhile, and is another now");
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

bool can_go(const model::SharedMemoryRequest& asked) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto stands = [&](CUdeviceptr at)
                            GPU_SLEEP_REQUIRES(all.mutex) { return !all.mappings.at(at).in_ledger; };
    return std::ranges::none_of(all.handles, [&](const auto& each) GPU_SLEEP_REQUIRES(all.mutex) {
        const auto& handle = each.second;
        return handle.import && handle.import->asked.secret == asked.secret &&
               handle.import->asked.allocation == asked.allocation &&
               (handle.mappings.empty() || std::ranges::any_of(handle.mappings, stands));
    });
}

bool has_descriptor_of(pid_t owner) {
    const auto copies = open_exports().copies;
    const auto numbers = numbers_in("/proc/self/fd");
    return !numbers || std::ranges::any_of(*numbers, [&](int number) {
        return !copies.contains(number) && ::fcntl(number, F_GETOWN) == owner;
    });
}

bool may_be_elsewhere() {
    const auto open = open_exports();
    return !open.copies.empty() &&
           (!open.were_all_opened || has_descriptor_of(::getpid()) || have_others(open.copies));
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

Passing::Passing(PassingImport import) : import_{import}, here_(import_.begin()) {
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
