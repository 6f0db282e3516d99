// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Doing copies and memsets, piece by piece, looking at the tables before each piece and once more at the end:
// memory that goes away meanwhile is noticed even if something else is put in its place.

#include "support/simulated_driver/transfer.hpp"

#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/guarded.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace gpu_sleep::sim {
namespace {

constexpr std::uint64_t k_piece = std::uint64_t{1} << 20;

std::byte* bytes_at(std::uint64_t address) noexcept {
    return reinterpret_cast<std::byte*>(address);
}

bool reachable_span(const Driver& driver, const Side& side, std::uint64_t begin, std::uint64_t bytes,
                    Access access, Generation space_as_of, Generation host_as_of) {
    switch (side.space) {
    case Space::device: return driver.space.accessible(begin, bytes, side.who, access, space_as_of);
    case Space::page_locked: return driver.host.covers(begin, bytes, host_as_of);
    case Space::pageable: return true;
    }
    return false;
}

/// Where this process has a span that is reachable.
std::byte* bytes_of(const Driver& driver, const Side& side, std::uint64_t begin, std::uint64_t bytes) {
    return side.space == Space::device ? driver.space.bytes_at(begin, bytes) : bytes_at(begin);
}

void flip_a_bit(std::uint64_t address) {
    auto flip = [=] { *bytes_at(address) ^= std::byte{1}; };
    if (run_guarded(flip)) ++Counts::instance().corrupted_copies;
}

} // namespace

Space space_of(const Driver& driver, const Side& side, std::uint64_t width, std::uint64_t height) {
    if (driver.space.is_reserved(side.address)) return Space::device;
    const auto extent = (height - 1) * side.pitch + width;
    return driver.host.overlaps(side.address, extent) ? Space::page_locked : Space::pageable;
}

bool reachable(const Driver& driver, const Side& side, std::uint64_t width, std::uint64_t height,
               Access access, Generation space_as_of, Generation host_as_of) {
    for (std::uint64_t row = 0; row < height; ++row)
        if (!reachable_span(driver, side, side.row(row), width, access, space_as_of, host_as_of))
            return false;
    return true;
}

bool will_be_reachable(const Driver& driver, const Side& side, std::uint64_t width, std::uint64_t height,
                       Access access) {
    const auto after = driver.graph_memory.upper_bound(side.address);
    if (after != driver.graph_memory.begin()) {
        const auto& memory = *std::prev(after)->second;
        const auto offset = side.address - memory.begin;
        if (offset < memory.bytes) return (height - 1) * side.pitch + width <= memory.bytes - offset;
    }
    return reachable(driver, side, width, height, access, driver.space.now(), driver.host.now());
}

void Copy::stage() {
    staged_ = std::make_unique_for_overwrite<std::byte[]>(width_ * height_);
    for (std::uint64_t row = 0; row < height_; ++row)
        std::memcpy(staged_.get() + row * width_, bytes_at(from_.row(row)), width_);
}

bool Copy::reachable_now(const Execution& execution, std::uint64_t row, std::uint64_t offset,
                         std::uint64_t bytes) const {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    return reachable_span(driver, to_, to_.row(row) + offset, bytes, Access::write, execution.space_as_of,
                          execution.host_as_of) &&
           reachable_span(driver, from_, from_.row(row) + offset, bytes, Access::read, execution.space_as_of,
                          execution.host_as_of);
}

bool Copy::copy_row(const Execution& execution, std::uint64_t row) const {
    auto& driver = Driver::instance();
    for (std::uint64_t offset = 0; offset < width_; offset += k_piece) {
        const auto bytes = std::min(k_piece, width_ - offset);
        if (execution.cancelled) return true;
        if (!reachable_now(execution, row, offset, bytes)) return false;
        std::unique_lock lock(driver.mutex);
        auto* const to = bytes_of(driver, to_, to_.row(row) + offset, bytes);
        const auto* const from = staged_ ? staged_.get() + row * width_ + offset
                                         : bytes_of(driver, from_, from_.row(row) + offset, bytes);
        lock.unlock();
        auto copy = [=] { std::memmove(to, from, bytes); };
        if (!run_guarded(copy)) return false;
    }
    return true;
}

CUresult Copy::run(const Execution& execution) const {
    for (std::uint64_t row = 0; row < height_; ++row)
        if (!copy_row(execution, row)) return illegal_access();
    for (std::uint64_t row = 0; row < height_; ++row)
        if (!reachable_now(execution, row, 0, width_)) return illegal_access();
    if (Faults::instance().next_corruption(execution.entry)) flip_a_bit(to_.address + width_ / 2);
    return CUDA_SUCCESS;
}

CUDA_MEMCPY3D Copy::node_parameters() const noexcept {
    CUDA_MEMCPY3D p{};
    p.srcMemoryType = from_.space == Space::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p.dstMemoryType = to_.space == Space::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    if (from_.space == Space::device)
        p.srcDevice = from_.address;
    else
        p.srcHost = bytes_at(from_.address);
    if (to_.space == Space::device)
        p.dstDevice = to_.address;
    else
        p.dstHost = bytes_at(to_.address);
    p.srcPitch = from_.pitch;
    p.dstPitch = to_.pitch;
    p.srcHeight = p.dstHeight = p.Height = height_;
    p.WidthInBytes = width_;
    p.Depth = 1;
    return p;
}

bool Memset::fill(std::uint64_t address, std::uint64_t count) const {
    auto& driver = Driver::instance();
    std::unique_lock lock(driver.mutex);
    auto* const to = bytes_of(driver, to_, address, count * element_bytes_);
    lock.unlock();
    auto write = [=, this] {
        if (element_bytes_ == 1)
            std::memset(to, static_cast<int>(value_), count);
        else if (element_bytes_ == 2)
            std::fill_n(reinterpret_cast<std::uint16_t*>(to), count, static_cast<std::uint16_t>(value_));
        else
            std::fill_n(reinterpret_cast<std::uint32_t*>(to), count, value_);
    };
    return run_guarded(write);
}

CUresult Memset::run(const Execution& execution) const {
    auto& driver = Driver::instance();
    const auto reachable_now = [&](std::uint64_t address, std::uint64_t bytes) {
        const std::lock_guard lock(driver.mutex);
        return reachable_span(driver, to_, address, bytes, Access::write, execution.space_as_of,
                              execution.host_as_of);
    };
    const auto piece = k_piece / element_bytes_;
    bool fine = true;
    for (std::uint64_t row = 0; row < height_ && fine; ++row) {
        for (std::uint64_t done = 0; done < width_ && fine; done += piece) {
            const auto count = std::min(piece, width_ - done);
            const auto address = to_.row(row) + done * element_bytes_;
            fine = reachable_now(address, count * element_bytes_) && fill(address, count);
        }
        fine = fine && reachable_now(to_.row(row), width_ * element_bytes_);
    }
    return fine ? CUDA_SUCCESS : illegal_access();
}

} // namespace gpu_sleep::sim
