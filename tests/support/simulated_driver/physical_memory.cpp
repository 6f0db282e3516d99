// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The memory files, and what is taken from them.

#include "support/simulated_driver/physical_memory.hpp"

#include "support/simulated_driver/checkpoint_gate.hpp"
#include "support/simulated_driver/device_budget.hpp"
#include "support/simulated_driver/settings.hpp"
#include "support/simulated_driver/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace gpu_sleep::sim {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
constexpr std::uint64_t k_low_memory = std::uint64_t{128} << 20;
// Released pages go back to the host in heaps: one system call for many handles.
constexpr std::uint64_t k_released_at_most = std::uint64_t{64} << 20;
constexpr int k_pattern = 0xA7;
constexpr std::uint64_t k_copy_bytes = std::uint64_t{1} << 20;

/// What is a hole there stays one.
bool copy_contents(int to, int from, std::uint64_t offset, std::uint64_t bytes) {
    std::vector<std::byte> buffer(std::min(bytes, k_copy_bytes));
    const auto next = [&](std::uint64_t at) {
        return static_cast<std::uint64_t>(::lseek(from, static_cast<off_t>(at), SEEK_DATA)); // -1: no more
    };
    for (auto at = next(offset); at < offset + bytes; at = next(at)) {
        const auto piece = std::min<std::uint64_t>(buffer.size(), offset + bytes - at);
        const auto got = ::pread(from, buffer.data(), piece, static_cast<off_t>(at));
        if (got <= 0 || ::pwrite(to, buffer.data(), static_cast<std::size_t>(got),
                                 static_cast<off_t>(at - offset)) != got)
            return false;
        at += static_cast<std::uint64_t>(got);
    }
    return true;
}

} // namespace

bool PhysicalPool::open() {
    if (file_) return true;
    file_.reset(::memfd_create("gpu-sleep-sim", MFD_CLOEXEC));
    if (!file_ || ::ftruncate(file_.get(), static_cast<off_t>(k_end)) != 0) return false;
    if (settings().poison == Poison::none) return true;
    const auto wanted = settings().poison == Poison::all ? settings().memory_bytes : k_low_memory;
    void* memory =
        ::mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
    if (memory == MAP_FAILED) return false;
    window_ = static_cast<std::byte*>(memory);
    poisoned_ = wanted;
    return true;
}

std::uint64_t PhysicalPool::take_lowest(std::uint64_t bytes) {
    const auto hole =
        std::find_if(free_.begin(), free_.end(), [=](const auto& f) { return f.second >= bytes; });
    if (hole == free_.end()) return k_end;
    const auto [offset, length] = *hole;
    auto node = free_.extract(hole);
    if (length > bytes) {
        node.key() = offset + bytes;
        node.mapped() = length - bytes;
        free_.insert(std::move(node));
    }
    return offset;
}

std::uint64_t PhysicalPool::take(std::uint64_t bytes) {
    if (!open()) return k_end;
    if (device_ != k_host && !DeviceBudget::instance().take(device_, bytes)) return k_end;
    punch_released();
    const auto offset = take_lowest(bytes);
    if (offset == k_end) {
        if (device_ != k_host) DeviceBudget::instance().give_back(device_, bytes);
        return k_end;
    }
    taken_ += bytes;
    make_fresh(offset, bytes);
    return offset;
}

void PhysicalPool::make_fresh(std::uint64_t offset, std::uint64_t bytes) {
    if (offset >= poisoned_) return;
    const auto end = std::min(offset + bytes, poisoned_);
    if (end > filled_) { // one system call in place of a fault for each page
        ::madvise(window_ + filled_, end - filled_, MADV_POPULATE_WRITE);
        filled_ = end;
    }
    std::memset(window_ + offset, k_pattern, end - offset);
}

void PhysicalPool::insert_free(std::uint64_t offset, std::uint64_t bytes) {
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
        bytes += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == offset) {
            before->second += bytes;
            return;
        }
    }
    free_.emplace_hint(next, offset, bytes);
}

void PhysicalPool::give_back(std::uint64_t offset, std::uint64_t bytes) {
    if (device_ != k_host) DeviceBudget::instance().give_back(device_, bytes);
    taken_ -= bytes;
    insert_free(offset, bytes);
    // The poisoned part keeps its pages: it is filled again when it is taken, and small.
    const auto first = settings().poison == Poison::all ? offset : std::max(offset, poisoned_);
    if (first >= offset + bytes) return;
    const auto length = offset + bytes - first;
    if (!released_.empty() && released_.back().first + released_.back().second == first)
        released_.back().second += length;
    else
        released_.emplace_back(first, length);
    released_bytes_ += length;
    if (released_bytes_ >= k_released_at_most) punch_released();
}

void PhysicalPool::punch_released() {
    for (const auto& [offset, bytes] : released_)
        ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
    released_.clear();
    released_bytes_ = 0;
}

std::shared_ptr<Physical> Physical::create(PhysicalPool& pool, std::uint64_t bytes,
                                           const CUmemAllocationProp& properties) {
    const auto offset = pool.take(bytes);
    if (offset == PhysicalPool::k_end) return nullptr;
    return std::shared_ptr<Physical>(new Physical(&pool, offset, bytes, properties));
}

std::shared_ptr<Physical> Physical::create(PhysicalPool& pool, std::uint64_t bytes,
                                           CUmemAllocationHandleType handle_types) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = handle_types;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool.device()};
    return create(pool, bytes, properties);
}

std::shared_ptr<Physical> Physical::import(int fd, Standing kind) {
    const auto name = SharedName::of(fd);
    struct stat status {};
    if (!name || ::fstat(fd, &status) != 0) return nullptr;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.id = name->device;
    properties.location.type = static_cast<CUmemLocationType>(name->type);
    auto imported = std::shared_ptr<Physical>(
        new Physical(nullptr, 0, static_cast<std::uint64_t>(status.st_size), properties));
    imported->own_file_ = hold(fd, Holder::importer);
    if (!imported->own_file_) return nullptr;
    imported->note(kind);
    return imported;
}

void Physical::note(Standing kind) {
    standing_ = kind;
    note_standing(kind, 1);
}

Physical::~Physical() {
    if (standing_) note_standing(*standing_, -1);
    if (pool_) pool_->give_back(offset_, bytes_);
}

int Physical::device() const noexcept {
    return properties_.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? properties_.location.id
                                                                    : PhysicalPool::k_host;
}

bool Physical::is_exported_as(int fd) const {
    struct stat theirs {};
    struct stat ours {};
    return own_file_ && ::fstat(fd, &theirs) == 0 && ::fstat(own_file_.get(), &ours) == 0 &&
           theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev;
}

bool Physical::move_out() {
    auto file = make_shared({properties_.location.type, properties_.location.id}, bytes_);
    if (!file || !copy_contents(file.get(), fd(), offset(), bytes_)) return false;
    own_file_ = std::move(file);
    if (device() == PhysicalPool::k_host && !standing_) note(Standing::host_export);
    return true;
}

UniqueFd Physical::export_fd() const {
    return hold(own_file_.get(), Holder::descriptor);
}

} // namespace gpu_sleep::sim
