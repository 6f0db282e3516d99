// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that a program exports by descriptors. Its agent marks each with the process's id, and with a lock
// that stands until the last copy is closed, wherever that is. The memory sleeps with all who have it once no
// descriptor is left; where the program keeps one, a ticket lies in its place meanwhile, which is marked
// alike.

#include "sharing/inside.hpp"

#include "base/files.hpp"
#include "intercepted/virtual_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <functional>
#include <set>
#include <utility>

namespace gpu_sleep::agent::sharing {
namespace {

constexpr std::uint64_t k_lock_bits = (std::uint64_t{1} << 62) - 1; // all are positive
constexpr std::uint64_t k_number_bits = (std::uint64_t{1} << 32) - 1;
constexpr const char* k_ticket_name = "gpu-sleep-ticket";
constexpr std::string_view k_ticket_path = "/memfd:gpu-sleep-ticket";

/// Where the descriptors of an export are locked: processes have places of their own. Nothing without random
/// numbers.
std::optional<off_t> lock_of(std::uint64_t number) {
    const auto words = secret();
    if (!words) return std::nullopt;
    return static_cast<off_t>((words->front() & k_lock_bits & ~k_number_bits) | (number & k_number_bits));
}

bool mark(int descriptor, off_t lock, pid_t owner = ::getpid()) noexcept {
    return ::fcntl(descriptor, F_SETOWN, owner) == 0 && share_byte(descriptor, lock);
}

/// Where a descriptor is locked that mark() has marked. Source: proc_pid_fdinfo(5). Errors: not_owned (none
/// has); io_failed.
Result<off_t> lock_at(int descriptor) {
    const auto info = read_small_file(fmt::format("/proc/thread-self/fdinfo/{}", descriptor));
    if (!info) return make_error(ErrorCode::io_failed, "its locks are not known");
    std::string_view rest = *info;
    while (const auto line = take_line(rest)) {
        constexpr const char* k_format = " OFDLCK ADVISORY READ %*d %*s %lld";
        const auto kind = std::min(line->find(" OFDLCK "), line->size());
        long long start = 0;
        if (std::sscanf(std::string(line->substr(kind)).c_str(), k_format, &start) == 1 &&
            start <= static_cast<long long>(k_lock_bits))
            return static_cast<off_t>(start);
    }
    return make_error(ErrorCode::not_owned, "no agent has marked it");
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

/// The other processes of this user; nothing if they cannot be listed.
std::optional<std::vector<int>> others_of_user() {
    auto others = numbers_in("/proc");
    const auto is_no_other = [](pid_t pid) {
        struct stat status = {};
        const auto path = fmt::format("/proc/{}", pid);
        return pid == ::getpid() || ::stat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid();
    };
    if (others) std::erase_if(*others, is_no_other);
    return others;
}

/// By the thread: the links of a process whose first thread has ended cannot be read.
std::string link_of(int descriptor) {
    return fmt::format("/proc/thread-self/fd/{}", descriptor);
}

} // namespace

std::string path_of(int descriptor) {
    std::array<char, 4096> path{};
    const auto link = link_of(descriptor);
    return ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 ? path.data() : std::string();
}

std::string name_of(pid_t pid) {
    const auto name = read_small_file(fmt::format("/proc/{}/comm", pid)).value_or("?");
    return name.substr(0, name.find('\n'));
}

bool has_no_agent(pid_t pid) {
    const auto tasks = fmt::format("/proc/{}/task", pid);
    const auto threads = numbers_in(tasks);
    const auto may_be_its = [&](int thread) {
        const auto name = read_small_file(fmt::format("{}/{}/comm", tasks, thread));
        return !name || name->starts_with(k_control_thread);
    };
    return threads && std::ranges::none_of(*threads, may_be_its);
}

namespace {

/// Whether a descriptor is left of exports that are locked there, in whatever process, or on its way.
/// `of` knows their file.
template <class Of>
bool is_left(off_t lock, off_t count, const Of& of) {
    const LockedFile file(UniqueFd(open_file(AT_FDCWD, of.path.c_str(), O_RDWR | O_CLOEXEC)));
    return !file || file.identity() != of.file || file.find_lock(LockedFile::Holder::descriptor, lock, count);
}

/// The tool's own programs, which may use the driver and import nothing: as the kernel cuts their names.
constexpr std::string_view k_own_programs[] = {
    "cr_client", "cuda-checkpoint", "gpu-doctor",      "gpu-ps",     "gpu-reclaim",
    "gpu-sleep", "gpu-sleep-http",  "gpu-sleep-outsi", "gpu-switch", "gpu-wake"};

/// Whether its agent answers, which tells of all that the process imports.
bool answers(const ProcessIdentity& process) {
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::tells;
    return server::ask_for_memory(process, asked, Clock::now() + k_until_told).has_value();
}

/// Whether the process may have imported memory, and nobody has said so. A child of who has an agent has not:
/// CUDA works in it with an agent of its own, or not at all.
bool may_have_imported(pid_t process) {
    constexpr unsigned k_forked = 0x40; // and runs no other program: PF_FORKNOEXEC
    const auto there = start_time_of(process);
    if (!there && there.error().code == ErrorCode::no_process) return false;
    for (auto pid = process;;) {
        if (pid == ::getpid() || std::ranges::find(k_own_programs, name_of(pid)) != std::end(k_own_programs))
            return false;
        const auto start_time = start_time_of(pid);
        if (start_time && answers({pid, *start_time})) return false;
        const auto stat = stat_of(pid);
        if (!stat || (stat->flags & k_forked) == 0) break;
        pid = stat->parent;
    }
    return !there || !is_gone_soon({process, *there});
}

/// Whether the process has one of the files open. It is asked by a thread that lives, for what one that has
/// ended had cannot be read, though it is the first. Nothing if this process lacks descriptors to tell.
std::optional<bool> has_open(const std::set<FileKey>& files, pid_t pid) {
    const auto tasks = fmt::format("/proc/{}/task", pid);
    const auto threads = numbers_in(tasks);
    if (!threads) return errno == EMFILE || errno == ENFILE ? std::nullopt : std::optional(false);
    for (const int thread : *threads) {
        const auto path = fmt::format("{}/{}/fd", tasks, thread);
        const auto numbers = numbers_in(path);
        if (!numbers && (errno == EMFILE || errno == ENFILE)) return std::nullopt;
        const auto is_one = [&](int number) {
            return files.contains(key_of(fmt::format("{}/{}", path, number)));
        };
        if (numbers && !numbers->empty()) return std::ranges::any_of(*numbers, is_one);
    }
    return false;
}

/// Whether a process has no agent, and uses the files at `paths`. All descriptors of the driver's are of one
/// device; who has used memory of a GPU has another one, too.
bool is_used_unseen(const std::set<std::string>& paths) {
    std::set<FileKey> files;
    for (const auto& path : paths) files.insert(key_of(path));
    if (files.erase(key_of("/dev/nvidiactl")) != 0) files.insert(key_of("/dev/nvidia-uvm"));
    const auto processes = others_of_user();
    if (!processes) return true;
    for (const pid_t pid : *processes) {
        const auto uses = has_open(files, pid);
        if (!uses || (*uses && may_have_imported(pid))) return true;
    }
    return false;
}

/// Of what the program exports, and may be left.
std::map<off_t, Export> exports_of(const std::set<std::uint64_t>& handles) {
    std::map<off_t, Export> found;
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [at, each] : all.exports)
        if (handles.contains(each.handle) && !each.is_gone) found.emplace(at, each);
    return found;
}

/// Puts `by` in the place of a descriptor of the program that `is_it`, which is asked just before. Between
/// the two calls the program may have closed it and opened another: no call of the kernel replaces one file
/// alone.
bool replace(int number, int by, const std::function<bool()>& is_it) {
    const int flags = ::fcntl(number, F_GETFD);
    return flags >= 0 && is_it() && ::dup3(by, number, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) == number;
}

/// Calls `use(number, lock, owner)` for each descriptor of this process that an agent has marked. The owner
/// is 0 once it has ended.
template <class Use>
void for_each_marked(const Use& use) {
    const auto numbers = numbers_in("/proc/self/fd");
    if (!numbers) return;
    for (const int number : *numbers) {
        const pid_t owner = ::fcntl(number, F_GETOWN);
        const auto lock = owner >= 0 ? lock_at(number) : Result<off_t>(Error());
        if (lock) use(number, *lock, owner);
    }
}

/// What can be imported in place of the memory itself; empty where it cannot be made.
UniqueFd make_ticket(off_t lock, pid_t owner) {
    auto ticket = opened([&] { return ::memfd_create(k_ticket_name, MFD_CLOEXEC); });
    if (ticket && !mark(ticket.get(), lock, owner)) ticket.reset();
    return ticket;
}

/// Puts tickets in the place of the descriptors that this process keeps of the handles' memory.
void leave_tickets(const std::set<std::uint64_t>& handles) {
    for_each_marked([&](int number, off_t lock, pid_t owner) {
        if (owner != ::getpid()) return;
        const auto ticket = make_ticket(lock, owner);
        const auto file = FileIdentity::of(ticket.get());
        if (!file) return;
        auto& all = books().handles;
        const MutexLock mutex(all.mutex);
        const auto found = all.exports.find(lock);
        if (found == all.exports.end()) return;
        auto& its = found->second;
        if (!its.was_opened || !handles.contains(its.handle)) return;
        its.tickets.push_back({number, *file});
        const auto is_own = [=] { return ::fcntl(number, F_GETOWN) == owner; };
        if (!replace(number, ticket.get(), is_own)) its.tickets.pop_back();
    });
}

/// Whether the descriptor is one by which the program has imported memory, and that it keeps.
bool is_of_import(int number, off_t lock, pid_t owner) {
    if (owner == ::getpid() || path_of(number).starts_with(k_ticket_path)) return false;
    const auto is_it = [=](const PassingImport& import) {
        return import.lock == lock && (owner == 0 || import.from.pid == owner);
    };
    if (std::ranges::none_of(imported_handles(), is_it)) return false;
    auto& all = books().handles;
    const MutexLock mutex(all.mutex);
    const auto is_held = [=](const HeldFile& file) { return file.get() == number; };
    return std::ranges::none_of(all.unseen_imports, is_held);
}

} // namespace

std::vector<ProcessIdentity> others_with_agents() {
    const auto pids = others_of_user();
    if (!pids) return {ProcessIdentity()};
    std::vector<ProcessIdentity> others;
    for (const pid_t pid : *pids) {
        const auto start_time = start_time_of(pid);
        if (start_time ? has_no_agent(pid) : start_time.error().code == ErrorCode::no_process) continue;
        const auto other = start_time ? ProcessIdentity{pid, *start_time} : ProcessIdentity();
        // Who sees another /tmp, and does not answer here, cannot ask agents here.
        const auto tmp = FileIdentity::of(AT_FDCWD, fmt::format("/proc/{}/root/tmp", pid).c_str());
        if (!tmp || tmp == FileIdentity::of(AT_FDCWD, "/tmp") || answers(other)) others.push_back(other);
    }
    return others;
}

bool note_export(Handles& all, Handle& handle, int descriptor) {
    const auto file = FileIdentity::of(descriptor);
    const auto path = path_of(descriptor);
    const auto lock = lock_of(++all.next);
    if (!file || path.empty() || !lock || !mark(descriptor, *lock)) return false;
    all.exports.insert_or_assign(*lock, Export{handle.number, path, *file});
    return handle.is_exported = true;
}

Result<PassingImport> recognise(int descriptor) {
    const off_t lock = GPU_SLEEP_TRY(lock_at(descriptor));
    const pid_t pid = ::fcntl(descriptor, F_GETOWN);
    const auto none = [] {
        return make_error(ErrorCode::not_owned, "its process has ended, or cannot be seen");
    };
    if (pid <= 0) return none();
    const ProcessIdentity owner{pid, GPU_SLEEP_TRY(start_time_of(pid))};
    if (pid == ::getpid()) {
        auto& all = books().handles;
        const MutexLock mutex(all.mutex);
        const auto found = all.exports.find(lock);
        if (found == all.exports.end()) return none();
        return PassingImport{owner, {.allocation = found->second.handle}, lock};
    }
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::exported;
    asked.address = static_cast<std::uint64_t>(lock);
    const auto said = GPU_SLEEP_TRY(server::ask_for_memory(owner, asked, Clock::now() + k_patience));
    return PassingImport{
        owner,
        {.secret = said.what.secret, .address = said.what.number, .allocation = said.what.number},
        lock};
}

bool note_unseen_import(int descriptor) {
    const auto lock = lock_at(descriptor);
    if (!lock) return lock.error().code == ErrorCode::not_owned || ::fcntl(descriptor, F_GETOWN) == 0;
    auto& all = books().handles;
    const MutexLock mutex(all.mutex);
    const auto file = FileIdentity::of(descriptor);
    for (const auto& each : all.unseen_imports)
        if (each.is_held() && each.identity() == file && share_byte(each.get(), *lock)) return true;
    UniqueFd made(open_file(AT_FDCWD, link_of(descriptor).c_str(), O_RDWR | O_CLOEXEC));
    // Where it cannot be opened, a copy stands for the lock, and keeps the memory as well.
    if (!made || !share_byte(made.get(), *lock))
        made.reset(::fcntl(descriptor, F_DUPFD_CLOEXEC, k_first_own_number));
    if (!made) return false;
    all.unseen_imports.emplace_back(std::move(made));
    return true;
}

Result<server::SharedMemory> answer_of_exports(const model::SharedMemoryRequest& request) {
    const auto words = secret();
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto found = all.exports.find(static_cast<off_t>(request.address));
    auto* const handle = found == all.exports.end() ? nullptr : all.find(found->second.handle);
    if (!handle || !words) return make_error(ErrorCode::not_owned, "there is no such export");
    if (std::ranges::none_of(handle->mappings, &Mapping::in_ledger)) {
        handle->stay_reason = k_exported; // for the driver alone knows who imports it
        return make_error(ErrorCode::not_owned, "that cannot sleep");
    }
    found->second.was_opened = true;
    server::SharedMemory answer;
    answer.what.number = handle->number;
    answer.what.secret = *words;
    return answer;
}

bool can_go(const model::SharedMemoryRequest& asked) {
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    return std::ranges::none_of(all.handles, [&](const auto& each) {
        const auto& handle = each.second;
        return handle.import && handle.import->asked.secret == asked.secret &&
               handle.import->asked.allocation == asked.allocation &&
               (handle.mappings.empty() || !std::ranges::all_of(handle.mappings, &Mapping::in_ledger));
    });
}

std::set<std::uint64_t> exported_elsewhere(const std::set<std::uint64_t>& handles) {
    const auto exports = exports_of(handles);
    const auto may_be_left = [](const auto& each) {
        return !each.second.was_opened || is_left(each.first, 1, each.second);
    };
    const bool is_any_left = std::ranges::any_of(exports, may_be_left);
    if (is_any_left) leave_tickets(handles);
    std::set<std::uint64_t> elsewhere;
    std::set<std::string> paths;
    for (const auto& each : exports) {
        paths.insert(each.second.path);
        if (is_any_left && may_be_left(each)) elsewhere.insert(each.second.handle);
    }
    if (!exports.empty() && elsewhere.size() < handles.size() && is_used_unseen(paths)) return handles;
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [at, each] : exports) {
        const auto found = all.exports.find(at);
        if (!elsewhere.contains(each.handle) && found != all.exports.end())
            found->second.is_gone = true; // but it can be imported by its tickets
    }
    return elsewhere;
}

std::vector<PassingImport> imported_handles() {
    std::vector<PassingImport> found;
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    for (const auto& [number, handle] : all.handles)
        if (handle.import) found.push_back(*handle.import);
    return found;
}

bool is_left_anywhere(const model::SharedMemoryRequest& asked) {
    auto imports = imported_handles();
    std::erase_if(imports, [&](const auto& each) { return each.asked != asked; });
    if (imports.empty()) return false; // it came by CUDA IPC, which only agents pass on
    const auto& import = imports.front();
    // Others may have it by other exports of its owner, which are not known here: any of them counts.
    constexpr off_t k_exports = off_t{1} << 32;
    return imports.size() > 1 || is_left(import.lock / k_exports * k_exports, k_exports, import) ||
           is_used_unseen({import.path});
}

void leave_tickets_of_imports() {
    if (imported_handles().empty()) return;
    for_each_marked([&](int number, off_t lock, pid_t owner) {
        if (!is_of_import(number, lock, owner)) return;
        const auto ticket = make_ticket(lock, owner);
        const auto is_it = [&] {
            const auto there = lock_at(number);
            return there && *there == lock && ::fcntl(number, F_GETOWN) == owner;
        };
        if (ticket) static_cast<void>(replace(number, ticket.get(), is_it));
    });
}

void put_descriptors_back(const LockedMemory& locked) noexcept {
    const auto with = memory();
    if (!with) return;
    ignoring_errors([&] {
        auto& all = books().handles;
        const MutexLock mutex(all.mutex);
        for (auto& [lock, each] : all.exports) {
            const auto* const handle = each.tickets.empty() ? nullptr : all.find(each.handle);
            const auto real = handle ? real_handle(locked, *handle) : std::nullopt;
            if (!real) continue; // it sleeps
            for (const auto& ticket : std::exchange(each.tickets, {})) {
                const auto is_it = [&] { return FileIdentity::of(ticket.number) == ticket.file; };
                const auto again = is_it() ? driver::export_memory(with->api(), *real) : Error();
                if (!again || !mark(again->get(), lock)) continue;
                each.path = path_of(again->get());
                each.file = FileIdentity::of(again->get()).value_or(FileIdentity());
                if (replace(ticket.number, again->get(), is_it)) each.is_gone = false;
            }
        }
    });
}

Passing::Passing(const PassingImport& import) {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    here_ = imports.passing.insert(imports.passing.end(), import);
}

Passing::~Passing() {
    auto& imports = books().imports;
    const MutexLock lock(imports.mutex);
    imports.passing.erase(here_);
}

} // namespace gpu_sleep::agent::sharing
