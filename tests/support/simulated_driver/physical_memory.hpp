// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Physical device memory: one sparse memory file for each device, handed out lowest offset first, so that
// what is created in order can be mapped in order with one system call.

#pragma once

#include "base/fd.hpp"
#include "support/not_copied.hpp"
#include "support/simulated_driver/shared_state.hpp"

#include <cuda.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace gpu_sleep::sim {

/// The memory file of one device, or of the host for allocations that name a NUMA node. Guarded by the
/// driver's lock.
class PhysicalPool {
public:
    static constexpr int k_host = -1;

    /// `device` is charged for what is taken; k_host charges nobody.
    explicit PhysicalPool(int device) : device_(device), free_{{0, k_end}} {}

    /// Takes `bytes` (of 4 KiB pages): their offset in the file; k_end when the device is full or the host
    /// refuses.
    [[nodiscard]] std::uint64_t take(std::uint64_t bytes);
    void give_back(std::uint64_t offset, std::uint64_t bytes);

    [[nodiscard]] int fd() const noexcept { return file_.get(); }
    [[nodiscard]] int device() const noexcept { return device_; }
    /// Where this process always has what was taken there, with pages of the host for all of it; or null.
    [[nodiscard]] std::byte* window(std::uint64_t offset, std::uint64_t bytes) const noexcept {
        return offset + bytes <= poisoned_ ? window_ + offset : nullptr;
    }
    /// Bytes taken by this process.
    [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

    static constexpr std::uint64_t k_end = std::uint64_t{1} << 46;

private:
    [[nodiscard]] bool open();
    [[nodiscard]] std::uint64_t take_lowest(std::uint64_t bytes);
    void insert_free(std::uint64_t offset, std::uint64_t bytes);
    void make_fresh(std::uint64_t offset, std::uint64_t bytes);
    void punch_released();

    int device_;
    UniqueFd file_;
    std::byte* window_ = nullptr; ///< the poisoned part of the file, mapped
    std::uint64_t poisoned_ = 0;  ///< its length
    std::uint64_t filled_ = 0;    ///< of that, what was ever filled
    std::uint64_t taken_ = 0;
    std::uint64_t released_bytes_ = 0;                              ///< the sum of released_
    std::map<std::uint64_t, std::uint64_t> free_;                   ///< offset and length, neighbours merged
    std::vector<std::pair<std::uint64_t, std::uint64_t>> released_; ///< still holds pages of the host
};

/// One allocation of physical memory: what a generic allocation handle and its mappings hold together. Its
/// bytes lie in the device's file or, once it was exported, in a file of its own. Guarded by the driver's
/// lock.
class Physical : test::NotCopied {
public:
    /// Null when the device is full.
    [[nodiscard]] static std::shared_ptr<Physical> create(PhysicalPool& pool, std::uint64_t bytes,
                                                          const CUmemAllocationProp& properties);
    /// Memory of the pool's device, that can be shared as `handle_types` say; else as above.
    [[nodiscard]] static std::shared_ptr<Physical>
    create(PhysicalPool& pool, std::uint64_t bytes,
           CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE);
    /// Memory that another process exported, of which `fd` is a descriptor. Null if it is none.
    [[nodiscard]] static std::shared_ptr<Physical> import(int fd, Standing kind = Standing::import);

    ~Physical();

    [[nodiscard]] int fd() const noexcept { return own_file_ ? own_file_.get() : pool_->fd(); }
    [[nodiscard]] std::uint64_t offset() const noexcept { return own_file_ ? 0 : offset_; }
    [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
    /// As PhysicalPool::window().
    [[nodiscard]] std::byte* window() const noexcept {
        return pool_ && !own_file_ ? pool_->window(offset_, bytes_) : nullptr;
    }
    [[nodiscard]] const CUmemAllocationProp& properties() const noexcept { return properties_; }
    /// The device that it lies on; PhysicalPool::k_host for host memory.
    [[nodiscard]] int device() const noexcept;
    /// Whether `fd` leads to this memory.
    [[nodiscard]] bool is_exported_as(int fd) const;
    [[nodiscard]] bool is_imported() const noexcept { return !pool_; }
    /// Whether other processes may have it too.
    [[nodiscard]] bool is_shared() const noexcept { return static_cast<bool>(own_file_); }

    /// Moves the contents to a file of their own, which other processes can have: the caller must map every
    /// mapping of this memory again before the next access. False if the host refuses.
    [[nodiscard]] bool move_out();
    /// A descriptor that other processes can import, once it has moved out; each time another file.
    [[nodiscard]] UniqueFd export_fd() const;

    CUmemGenericAllocationHandle handle =
        0; ///< the handle that names it; 0 once all references were released

private:
    void note(Standing kind);
    Physical(PhysicalPool* pool, std::uint64_t offset, std::uint64_t bytes,
             const CUmemAllocationProp& properties)
        : pool_(pool), offset_(offset), bytes_(bytes), properties_(properties) {}

    PhysicalPool* pool_; ///< null for imported memory
    std::uint64_t offset_, bytes_;
    CUmemAllocationProp properties_;
    UniqueFd own_file_; ///< holds it for this process
    std::optional<Standing> standing_;
};

} // namespace gpu_sleep::sim
