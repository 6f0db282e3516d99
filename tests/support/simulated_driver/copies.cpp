// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuMemcpy*. What involves host memory is over when a synchronous call returns; what stays on devices is not.

#include "support/simulated_driver/captures.hpp"
#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <algorithm>
#include <optional>

namespace gpu_sleep::sim {
namespace {

enum class Wait : bool { no, yes };

/// What a typed copy promises about a side; any: found out from the address.
enum class Expect : std::uint8_t { any, device, host };

struct Request {
    Side to, from;
    Expect to_is = Expect::any, from_is = Expect::any;
    std::uint64_t width = 0, height = 1;
};

/// Copies reach plain allocations of every device.
Accessor copier(int device) noexcept {
    return {device, ~std::uint32_t{0}};
}

std::uint64_t to_address(const void* pointer) noexcept {
    return reinterpret_cast<std::uint64_t>(pointer);
}

/// Fills in where `side` leads; false if that is not as expected, or it cannot be reached.
bool resolve(const Call& c, Side& side, Expect expected, const Request& request, Access access) {
    side.space = space_of(c.driver, side, request.width, request.height);
    // Page-locked memory has a device address, which is its own.
    if (expected == Expect::device && side.space == Space::pageable) return false;
    if (side.space == Space::page_locked) {
        const auto* range = c.driver.host.find(side.address);
        const auto extent = (request.height - 1) * side.pitch + request.width;
        // A copy may not cross the border of a registration.
        if (!range || side.address - range->begin > range->bytes - extent || extent > range->bytes)
            return false;
    }
    return will_be_reachable(c.driver, side, request.width, request.height, access);
}

/// Fills in both sides. Errors: INVALID_VALUE.
CUresult resolve(const Call& c, Request& request) {
    return resolve(c, request.to, request.to_is, request, Access::write) &&
                   resolve(c, request.from, request.from_is, request, Access::read)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult copy(Call& c, Context& context, CUstream handle, Request request, Wait wait) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (request.width == 0 || request.height == 0) return CUDA_SUCCESS;
    SIM_TRY(resolve(c, request));
    if (stream->capture && wait == Wait::yes) return break_capture(*stream); // none is recorded
    const bool host = request.to.space != Space::device || request.from.space != Space::device;
    const bool into_pageable = request.to.space == Space::pageable;
    const auto work = std::make_shared<Copy>(request.to, request.from, request.width, request.height);
    if (request.from.space == Space::pageable && !into_pageable && wait == Wait::no && !stream->capture)
        work->stage();
    Submitted submitted;
    SIM_TRY(submit(c, *stream, work, &submitted));
    if (submitted.captured || !(into_pageable || (host && wait == Wait::yes))) return CUDA_SUCCESS;
    const auto owner = find_context(c.driver, stream->context.handle);
    return wait_for(c, *owner, {submitted.ticket});
}

CUresult copy_span(Call& c, Context& context, std::uint64_t to, Expect to_is, std::uint64_t from,
                   Expect from_is, std::size_t bytes, CUstream stream, Wait wait) {
    const auto who = copier(context.device);
    return copy(c, context, stream, {{to, 0, who}, {from, 0, who}, to_is, from_is, bytes, 1}, wait);
}

CUresult peer_copy(Call& c, Context& context, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                   CUcontext from_context, std::size_t bytes, CUstream stream, Wait wait) {
    const auto to_owner = find_context(c.driver, to_context);
    const auto from_owner = find_context(c.driver, from_context);
    if (!to_owner || !from_owner) return CUDA_ERROR_INVALID_CONTEXT;
    const Request request{{to, 0, copier(to_owner->device)},
                          {from, 0, copier(from_owner->device)},
                          Expect::device,
                          Expect::device,
                          bytes,
                          1};
    return copy(c, context, stream, request, wait);
}

/// A side of a 2D copy; nothing for arrays, which only copies of their own reach.
std::optional<Side> side_of(CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x,
                            std::size_t y, std::size_t pitch, Accessor who) {
    if (type == CU_MEMORYTYPE_ARRAY) return std::nullopt;
    const auto base = type == CU_MEMORYTYPE_HOST ? to_address(host) : device;
    return Side{base + y * pitch + x, pitch, who};
}

Expect expected(CUmemorytype type) noexcept {
    if (type == CU_MEMORYTYPE_HOST) return Expect::host;
    return type == CU_MEMORYTYPE_DEVICE ? Expect::device : Expect::any;
}

/// What a copy asks for whose sides begin in these rows. Errors: INVALID_VALUE, NOT_SUPPORTED.
template <class Parameters>
CUresult request_of(const Parameters& p, std::size_t to_row, std::size_t from_row, std::size_t height,
                    int device, Request& request) {
    const auto who = copier(device);
    const auto to = side_of(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstXInBytes, to_row, p.dstPitch, who);
    const auto from =
        side_of(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcXInBytes, from_row, p.srcPitch, who);
    if (!to || !from) return CUDA_ERROR_NOT_SUPPORTED;
    const bool overlapping_rows = height > 1 && (p.WidthInBytes > p.dstPitch || p.WidthInBytes > p.srcPitch);
    if (overlapping_rows) return CUDA_ERROR_INVALID_VALUE;
    request = {*to, *from, expected(p.dstMemoryType), expected(p.srcMemoryType), p.WidthInBytes, height};
    return CUDA_SUCCESS;
}

CUresult request_of(const CUDA_MEMCPY2D& p, int device, Request& request) {
    return request_of(p, p.dstY, p.srcY, p.Height, device, request);
}

/// A 3D copy as one of rows, which it is when it has one layer, or its layers follow each other without a
/// gap. Errors: NOT_SUPPORTED (any other).
CUresult request_of(const CUDA_MEMCPY3D& p, int device, Request& request) {
    const bool without_gaps =
        p.dstHeight == p.Height && p.srcHeight == p.Height && p.dstY == 0 && p.srcY == 0;
    if (p.Depth > 1 && !without_gaps) return CUDA_ERROR_NOT_SUPPORTED;
    return request_of(p, p.dstZ * p.dstHeight + p.dstY, p.srcZ * p.srcHeight + p.srcY, p.Height * p.Depth,
                      device, request);
}

template <class Parameters>
CUresult copy_of_rows(Call& c, Context& context, const Parameters* p) {
    Request request;
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    const auto status = request_of(*p, context.device, request);
    return status == CUDA_SUCCESS ? copy(c, context, nullptr, request, Wait::yes) : status;
}

} // namespace

CUresult make_copy(const Call& c, const Context& context, const CUDA_MEMCPY3D& parameters,
                   std::shared_ptr<const Work>& work) {
    Request request;
    SIM_TRY(request_of(parameters, context.device, request));
    if (request.width == 0 || request.height == 0) return CUDA_ERROR_INVALID_VALUE;
    SIM_TRY(resolve(c, request));
    work = std::make_shared<Copy>(request.to, request.from, request.width, request.height);
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(unsafe, 4000)
cuMemcpy(Call& c, Context& context, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy_span(c, context, to, Expect::any, from, Expect::any, bytes, nullptr, Wait::yes);
}

SIM_ENTRY(queued, 4000)
cuMemcpyAsync(Call& c, Context& context, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
              CUstream stream) {
    return copy_span(c, context, to, Expect::any, from, Expect::any, bytes, stream, Wait::no);
}

SIM_ENTRY(unsafe, 3020)
cuMemcpyHtoD(Call& c, Context& context, CUdeviceptr to, const void* from, std::size_t bytes) {
    return copy_span(c, context, to, Expect::device, to_address(from), Expect::host, bytes, nullptr,
                     Wait::yes);
}

SIM_ENTRY(queued, 3020)
cuMemcpyHtoDAsync(Call& c, Context& context, CUdeviceptr to, const void* from, std::size_t bytes,
                  CUstream stream) {
    return copy_span(c, context, to, Expect::device, to_address(from), Expect::host, bytes, stream, Wait::no);
}

SIM_ENTRY(unsafe, 3020)
cuMemcpyDtoH(Call& c, Context& context, void* to, CUdeviceptr from, std::size_t bytes) {
    return copy_span(c, context, to_address(to), Expect::host, from, Expect::device, bytes, nullptr,
                     Wait::yes);
}

SIM_ENTRY(queued, 3020)
cuMemcpyDtoHAsync(Call& c, Context& context, void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    return copy_span(c, context, to_address(to), Expect::host, from, Expect::device, bytes, stream, Wait::no);
}

SIM_ENTRY(unsafe, 3020)
cuMemcpyDtoD(Call& c, Context& context, CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy_span(c, context, to, Expect::device, from, Expect::device, bytes, nullptr, Wait::yes);
}

SIM_ENTRY(queued, 3020)
cuMemcpyDtoDAsync(Call& c, Context& context, CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                  CUstream stream) {
    return copy_span(c, context, to, Expect::device, from, Expect::device, bytes, stream, Wait::no);
}

SIM_ENTRY(unsafe, 3020)
cuMemcpyHtoA(Call& c, Context& context, CUarray to, std::size_t offset, const void* from, std::size_t bytes) {
    return copy_span(c, context, to_address(to) + offset, Expect::device, to_address(from), Expect::host,
                     bytes, nullptr, Wait::yes);
}

SIM_ENTRY(unsafe, 3020)
cuMemcpyAtoH(Call& c, Context& context, void* to, CUarray from, std::size_t offset, std::size_t bytes) {
    return copy_span(c, context, to_address(to), Expect::host, to_address(from) + offset, Expect::device,
                     bytes, nullptr, Wait::yes);
}

SIM_ENTRY(unsafe, 4000)
cuMemcpyPeer(Call& c, Context& context, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
             CUcontext from_context, std::size_t bytes) {
    return peer_copy(c, context, to, to_context, from, from_context, bytes, nullptr, Wait::yes);
}

SIM_ENTRY(queued, 4000)
cuMemcpyPeerAsync(Call& c, Context& context, CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                  CUcontext from_context, std::size_t bytes, CUstream stream) {
    return peer_copy(c, context, to, to_context, from, from_context, bytes, stream, Wait::no);
}

SIM_ENTRY(unsafe, 3020) cuMemcpy2D(Call& c, Context& context, const CUDA_MEMCPY2D* parameters) {
    return copy_of_rows(c, context, parameters);
}

SIM_ENTRY(unsafe, 3020) cuMemcpy3D(Call& c, Context& context, const CUDA_MEMCPY3D* parameters) {
    return copy_of_rows(c, context, parameters);
}

SIM_ENTRY(queued, 13000)
cuMemcpyBatchAsync(Call& c, Context& context, CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes,
                   std::size_t count, CUmemcpyAttributes* attributes, std::size_t* firsts,
                   std::size_t attribute_count, CUstream handle) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (!to || !from || !bytes || count == 0 || !attributes || !firsts || attribute_count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->kind() == Stream::Kind::legacy) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) return break_capture(*stream);
    for (std::size_t i = 0; i < count; ++i) {
        const auto status =
            copy_span(c, context, to[i], Expect::any, from[i], Expect::any, bytes[i], handle, Wait::no);
        if (status != CUDA_SUCCESS) return status;
    }
    return CUDA_SUCCESS;
}

SIM_ENTRY(queued, 13000)
cuMemcpy3DBatchAsync(Call& c, Context& context, std::size_t count, CUDA_MEMCPY3D_BATCH_OP* copies,
                     unsigned long long flags, CUstream handle) {
    if (!copies || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto who = copier(context.device);
    for (const auto* each = copies; each != copies + count; ++each) {
        const auto side = [&](const CUmemcpy3DOperand& operand) {
            return Side{operand.op.ptr.ptr, std::max(operand.op.ptr.rowLength, each->extent.width), who};
        };
        if (each->extent.depth != 1 || each->src.type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
            each->dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
            return CUDA_ERROR_NOT_SUPPORTED;
        const Request request{side(each->dst), side(each->src),    Expect::any,
                              Expect::any,     each->extent.width, each->extent.height};
        SIM_TRY(copy(c, context, handle, request, Wait::no));
    }
    return CUDA_SUCCESS;
}
