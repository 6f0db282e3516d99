// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Memory that a program exports by descriptors. Its agent marks each with the process's id, and with a lock
// that stands until the last copy is closed, wherever that is. The memory sleeps with all who have it once no
// descriptor is left: those that the program keeps become tickets, marked alike, by which it is imported.

#include "intercepted/sharing.hpp"

#include "base/files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <set>

namespace gpu_sleep::agent::intercepted {
namespace {

constexpr std::uint64_t k_lock_bits = (std::uint64_t{1} << 62) - 1; // all are positive
constexpr std::uint64_t k_number_bits = (std::uint64_t{1} << 32) - 1;

/// Where the descriptors of an export are locked: processes have places of their own. Nothing without random
/// numbers.
std::optional<off_t> lock_of(std::uint64_t number) {
    const auto words = secret();
    if (!words) return std::nullopt;
    return static_cast<off_t>((words->front() & k_lock_bits & ~k_number_bits) | (number & k_number_bits));
}

bool mark(int descriptor, pid_t owner, off_t lock) noexcept {
    return ::fcntl(descriptor, F_SETOWN, owner) == 0 && share_byte(descriptor, lock);
}

/// Where a descriptor is locked that mark() has marked. Source: proc_pid_fdinfo(5). Errors: not_owned (none
/// has); io_failed.
Result<off_t> lock_at(int descriptor) {
    const auto info = read_small_file(fmt::format("/proc/self/fdinfo/{}", descriptor));
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

/// Where the descriptor's file can be opened anew.
std::string path_of(int descriptor) {
    std::array<char, 4096> path{};
    const auto link = fmt::format("/proc/self/fd/{}", descriptor);
    return ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 ? path.data() : std::string();
}

/// Whether a descriptor of that export is left, in whatever process, or on its way.
bool is_left(const Export& each) {
    const auto lock = lock_of(each.number);
    const LockedFile file(UniqueFd(open_file(AT_FDCWD, each.path.c_str(), O_RDWR | O_CLOEXEC)));
    return !lock || !file || file.find_lock(LockedFile::Holder::descriptor, *lock, 1);
}

/// Whether the process may have imported memory, and nobody has said so. Those that agents have started have
/// none, nor has a child of who has an agent: CUDA works in it with an agent of its own, or not at all.
bool may_have_imported(pid_t pid) {
    constexpr unsigned k_forked = 0x40; // and runs no other program: PF_FORKNOEXEC
    for (;;) {
        const auto path = fmt::format("/proc/{}/", pid);
        const auto name = read_small_file(path + "comm");
        const auto start_time = start_time_of(pid);
        if (!name || !start_time || name->starts_with("gpu-sleep")) return false;
        if (pid == ::getpid() || server::has_agent({pid, *start_time})) return false;
        const auto stat = read_small_file(path + "stat").value_or("");
        const auto name_end = stat.rfind(") ");
        unsigned flags = 0;
        if (name_end == std::string::npos ||
            std::sscanf(stat.c_str() + name_end, ") %*c %d %*d %*d %*d %*d %u", &pid, &flags) != 2 ||
            (flags & k_forked) == 0)
            return true;
    }
}

/// Whether a process has no agent, and uses the files at `paths`. All descriptors of the driver's are of one
/// device; who has used memory of a GPU has another one, too.
bool is_used_unseen(const std::set<std::string>& paths) {
    std::set<FileKey> files;
    for (const auto& path : paths) files.insert(key_of(path));
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
        if (numbers && std::ranges::any_of(*numbers, has_one) && may_have_imported(pid)) return true;
    }
    return false;
}

/// An export of this process, and whose it is; null if there is none.
struct Found {
    Handle* handle = nullptr;
    Export* its = nullptr;
};
Found find_export(Handles& all, std::uint64_t lock) GPU_SLEEP_REQUIRES(all.mutex) {
    for (auto& [number, handle] : all.handles)
        for (auto& each : handle.exports)
            if (const auto its = lock_of(each.number); its && static_cast<std::uint64_t>(*its) == lock)
                return {&handle, &each};
    return {};
}

} // namespace

bool note_export(Handles& all, Handle& handle, int descriptor) {
    Export made{++all.next, path_of(descriptor)};
    const auto lock = lock_of(made.number);
    if (!lock || !mark(descriptor, ::getpid(), *lock)) return false;
    handle.exports.push_back(std::move(made));
    return true;
}

Result<PassingImport> recognise(int descriptor) {
    model::SharedMemoryRequest asked;
    asked.question = model::SharingQuestion::exported;
    asked.address = static_cast<std::uint64_t>(GPU_SLEEP_TRY(lock_at(descriptor)));
    const pid_t pid = ::fcntl(descriptor, F_GETOWN);
    if (pid <= 0) return make_error(ErrorCode::not_owned, "its process has ended, or cannot be seen");
    const ProcessIdentity owner{pid, GPU_SLEEP_TRY(start_time_of(pid))};
    const auto said = pid == ::getpid() ? answer_of_exports(asked)
                                        : server::ask_for_memory(owner, asked, Clock::now() + k_patience);
    if (!said) return said.error();
    return PassingImport{
        owner, {.secret = said->what.secret, .address = said->what.number, .allocation = said->what.number}};
}

bool note_unseen_import(int descriptor) {
    const auto lock = lock_at(descriptor);
    if (!lock) return lock.error().code == ErrorCode::not_owned;
    UniqueFd file(open_file(AT_FDCWD, path_of(descriptor).c_str(), O_RDWR | O_CLOEXEC));
    if (!file || !share_byte(file.get(), *lock)) return false;
    auto& all = books().handles;
    const MutexLock mutex(all.mutex);
    all.unseen_imports.emplace_back(std::move(file));
    return true;
}

Result<server::SharedMemory> answer_of_exports(const model::SharedMemoryRequest& request) {
    const auto words = secret();
    auto& all = books().handles;
    const MutexLock lock(all.mutex);
    const auto [handle, found] = find_export(all, request.address);
    if (!found || !words) return make_error(ErrorCode::not_owned, "there is no such export");
    const bool is_in_ledger =
        std::ranges::any_of(handle->mappings, [&](CUdeviceptr at) GPU_SLEEP_REQUIRES(all.mutex) {
            return all.mappings.at(at).in_ledger;
        });
    if (!is_in_ledger) {
        handle->stay_reason = k_exported; // for the driver alone knows who imports it
        return make_error(ErrorCode::not_owned, "that cannot sleep");
    }
    found->was_opened = true;
    server::SharedMemory answer;
    answer.what.number = handle->number;
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

void leave_tickets() {
    const auto numbers = numbers_in("/proc/self/fd");
    if (!numbers) return;
    for (const int number : *numbers) {
        const pid_t owner = ::fcntl(number, F_GETOWN);
        if (owner <= 0) continue;
        const auto lock = lock_at(number);
        if (!lock) continue;
        const auto ticket = opened([&] { return ::memfd_create("gpu-sleep-ticket", MFD_CLOEXEC); });
        const int flags = ::fcntl(number, F_GETFD);
        if (flags < 0 || !ticket || !mark(ticket.get(), owner, *lock)) continue;
        ::dup3(ticket.get(), number, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
    }
}

std::set<std::uint64_t> exported_elsewhere() {
    std::set<std::uint64_t> elsewhere; // handles
    std::set<std::uint64_t> others;
    std::set<std::uint64_t> gone; // exports
    std::set<std::string> paths;
    auto& all = books().handles;
    {
        const MutexLock lock(all.mutex);
        for (auto& [number, handle] : all.handles) {
            for (const auto& each : handle.exports) {
                if (each.path.empty()) continue;
                paths.insert(each.path);
                const bool is_gone = each.was_opened && !is_left(each);
                (is_gone ? others : elsewhere).insert(number);
                if (is_gone) gone.insert(each.number);
            }
        }
    }
    if (gone.empty()) return elsewhere;
    if (is_used_unseen(paths)) {
        elsewhere.merge(others);
        return elsewhere;
    }
    const MutexLock lock(all.mutex);
    for (auto& [number, handle] : all.handles)
        for (auto& each : handle.exports)
            if (gone.contains(each.number)) each.path.clear();
    return elsewhere;
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
