// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files beside the state file, whose names say which memory they are, and whose locks say who holds it.

#include "support/simulated_driver/shared_memory.hpp"

#include "support/byte_lock.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace gpu_sleep::sim {
namespace {

constexpr const char* k_name = "-exported-";
constexpr off_t k_locks = off_t{1} << 62; ///< beyond what a program locks

/// A process has two bytes, by its place among all.
off_t lock_of(Holder holder, const SharedProcess& process) {
    if (holder == Holder::descriptor) return k_locks;
    const auto place = &process - SharedState::instance().processes().data();
    return k_locks + 1 + 2 * place + (holder == Holder::importer ? 1 : 0);
}

bool is_locked(int file, off_t start) {
    auto lock = test::byte_lock(F_WRLCK, start);
    return ::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool take_lock(int file, Holder holder) {
    auto lock = test::byte_lock(F_RDLCK, lock_of(holder, SharedState::instance().own()));
    return ::fcntl(file, F_OFD_SETLK, &lock) == 0;
}

} // namespace

std::optional<SharedName> SharedName::parse(const std::string& path) {
    SharedName name;
    const auto begin = path.rfind(k_name);
    if (begin == std::string::npos ||
        std::sscanf(path.c_str() + begin + std::char_traits<char>::length(k_name), "%d-%d-%d-", &name.type,
                    &name.device, &name.gpu) != 3)
        return std::nullopt;
    return name;
}

std::optional<SharedName> SharedName::of(int descriptor) {
    std::array<char, 4096> path{};
    const auto link = "/proc/self/fd/" + std::to_string(descriptor);
    return ::readlink(link.c_str(), path.data(), path.size() - 1) > 0 ? parse(path.data()) : std::nullopt;
}

UniqueFd make_shared(SharedName name, std::uint64_t bytes) {
    auto& state = SharedState::instance();
    const SharedState::Lock lock; // nobody takes it for memory that is held no more
    if (name.type == CU_MEM_LOCATION_TYPE_DEVICE) name.gpu = state.own().gpus[name.device];
    auto path = settings().state_file + k_name + std::to_string(name.type) + '-' +
                std::to_string(name.device) + '-' + std::to_string(name.gpu) + "-XXXXXX";
    UniqueFd file(settings().state_file.empty() ? ::memfd_create(path.c_str(), MFD_CLOEXEC)
                                                : ::mkostemp(path.data(), O_CLOEXEC));
    if (!file || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
        !take_lock(file.get(), Holder::exporter))
        return {};
    state.shares_memory() = true;
    return file;
}

UniqueFd hold(int descriptor, Holder holder) {
    const auto link = "/proc/self/fd/" + std::to_string(descriptor);
    UniqueFd file(::open(link.c_str(), O_RDWR | O_CLOEXEC));
    return file && take_lock(file.get(), holder) ? std::move(file) : UniqueFd();
}

std::vector<SharedMemory> shared_memory() {
    std::vector<SharedMemory> result;
    auto& state = SharedState::instance();
    if (!state.shares_memory()) return result;
    const std::filesystem::path own(settings().state_file);
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(own.parent_path(), error)) {
        const auto path = entry.path().string();
        const auto name = path.starts_with(own.string() + k_name) ? SharedName::parse(path) : std::nullopt;
        const UniqueFd file(name ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
        struct stat status {};
        if (!file || ::fstat(file.get(), &status) != 0) continue;
        SharedMemory memory{name->gpu, static_cast<std::uint64_t>(status.st_size)};
        bool is_held = is_locked(file.get(), k_locks);
        bool is_kept = is_held;
        bool is_counted = false;
        for (const auto& process : state.processes()) {
            const bool is_exporter = is_locked(file.get(), lock_of(Holder::exporter, process));
            const bool is_importer = is_locked(file.get(), lock_of(Holder::importer, process));
            is_kept |= is_exporter || is_importer;
            // What a checkpointed process has takes nothing; a forked child keeps its parent's files.
            if (!state.is_alive(process) || process.state == CU_PROCESS_STATE_CHECKPOINTED) continue;
            is_counted |= is_exporter;
            if (is_importer && memory.importer == 0) memory.importer = process.pid;
            is_held |= is_exporter || is_importer;
        }
        if (!is_kept) ::unlink(path.c_str());
        if (is_held && !is_counted) result.push_back(memory);
    }
    return result;
}

} // namespace gpu_sleep::sim
