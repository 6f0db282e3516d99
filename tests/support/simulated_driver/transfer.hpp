// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies and memsets as work: what they touch, whether they may, and doing it.

#pragma once

#include "support/simulated_driver/work.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gpu_sleep::sim {

/// Where an address leads.
enum class Space : std::uint8_t { device, page_locked, pageable };

/// One side of a copy: rows of bytes, and the device that must be able to reach them.
struct Side {
    std::uint64_t address = 0;
    std::uint64_t pitch = 0; ///< from row to row; of no matter for one row
    Accessor who;
    Space space = Space::device;

    [[nodiscard]] std::uint64_t row(std::uint64_t index) const noexcept { return address + index * pitch; }
};

/// Says where `side` leads; the rows that follow it count.
[[nodiscard]] Space space_of(const Driver& driver, const Side& side, std::uint64_t width,
                             std::uint64_t height);

/// Whether all rows of `side` can be reached as `access` says, by memory that was there at the given times.
[[nodiscard]] bool reachable(const Driver& driver, const Side& side, std::uint64_t width,
                             std::uint64_t height, Access access, Generation space_as_of,
                             Generation host_as_of);

/// The same when work is submitted: memory that a graph is to allocate will be there in time.
[[nodiscard]] bool will_be_reachable(const Driver& driver, const Side& side, std::uint64_t width,
                                     std::uint64_t height, Access access);

/// A copy of `height` rows of `width` bytes.
class Copy : public Work {
public:
    Copy(Side to, Side from, std::uint64_t width, std::uint64_t height)
        : to_(to), from_(from), width_(width), height_(height) {}

    /// Reads the source now: it may change as soon as the call returns, because it is pageable.
    void stage();

    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_MEMCPY; }
    CUresult run(const Execution& execution) const override;

    /// As cuGraphMemcpyNodeGetParams shows it.
    [[nodiscard]] CUDA_MEMCPY3D node_parameters() const noexcept;

private:
    [[nodiscard]] bool reachable_now(const Execution& execution, std::uint64_t row, std::uint64_t offset,
                                     std::uint64_t bytes) const;
    [[nodiscard]] bool copy_row(const Execution& execution, std::uint64_t row) const;

    Side to_, from_;
    std::uint64_t width_, height_;
    std::unique_ptr<std::byte[]> staged_;
};

/// A memset of `height` rows of `width` elements of `element_bytes` bytes.
class Memset : public Work {
public:
    Memset(Side to, std::uint32_t value, unsigned element_bytes, std::uint64_t width, std::uint64_t height)
        : to_(to), value_(value), element_bytes_(element_bytes), width_(width), height_(height) {}

    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_MEMSET; }
    CUresult run(const Execution& execution) const override;

    /// As cuGraphMemsetNodeGetParams shows it.
    [[nodiscard]] CUDA_MEMSET_NODE_PARAMS node_parameters() const noexcept {
        return {to_.address, to_.pitch, value_, element_bytes_, width_, height_};
    }

private:
    [[nodiscard]] bool fill(std::uint64_t address, std::uint64_t count) const;

    Side to_;
    std::uint32_t value_;
    unsigned element_bytes_;
    std::uint64_t width_, height_;
};

/// Makes the work of a copy node. Errors: INVALID_VALUE, NOT_SUPPORTED (layers with gaps, arrays).
CUresult make_copy(const Call& call, const Context& context, const CUDA_MEMCPY3D& parameters,
                   std::shared_ptr<const Work>& work);

/// Makes the work of a memset node. Errors: INVALID_VALUE.
CUresult make_memset(const Call& call, const Context& context, const CUDA_MEMSET_NODE_PARAMS& parameters,
                     std::shared_ptr<const Work>& work);

} // namespace gpu_sleep::sim
