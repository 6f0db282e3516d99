// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuStreamWriteValue* and cuStreamWaitValue*: a stream that sets a number in memory, or waits for one; and
// several of them at once, in a stream or a graph.

#include "support/simulated_driver/stream_values.hpp"

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/guarded.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <chrono>
#include <thread>

namespace gpu_sleep::sim {
namespace {

bool reachable_now(const Side& side, std::uint64_t bytes, Access access, const Execution& execution) {
    auto& driver = Driver::instance();
    const std::lock_guard lock(driver.mutex);
    return reachable(driver, side, bytes, 1, access, execution.space_as_of, execution.host_as_of);
}

template <class Number>
class ValueWrite : public Work {
public:
    ValueWrite(const Side& to, Number value, unsigned) : to_(to), value_(value) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUresult run(const Execution& execution) const override {
        auto write = [this] {
            __atomic_store_n(reinterpret_cast<Number*>(to_.address), value_, __ATOMIC_RELEASE);
        };
        const bool fine = reachable_now(to_, sizeof(Number), Access::write, execution) && run_guarded(write);
        return fine ? CUDA_SUCCESS : illegal_access();
    }
    static constexpr auto k_access = Access::write;

private:
    Side to_;
    Number value_;
};

template <class Number>
class ValueWait : public Work {
public:
    ValueWait(const Side& from, Number value, unsigned flags) : from_(from), value_(value), flags_(flags) {}
    [[nodiscard]] CUgraphNodeType type() const noexcept override { return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP; }
    CUresult run(const Execution& execution) const override {
        constexpr std::chrono::microseconds k_look{200};
        Number seen = 0;
        auto read = [&] {
            seen = __atomic_load_n(reinterpret_cast<const Number*>(from_.address), __ATOMIC_ACQUIRE);
        };
        while (!execution.cancelled) {
            if (!reachable_now(from_, sizeof(Number), Access::read, execution) || !run_guarded(read))
                return illegal_access();
            if (is_met(seen)) break;
            std::this_thread::sleep_for(k_look);
        }
        return CUDA_SUCCESS;
    }
    static constexpr auto k_access = Access::read;

private:
    [[nodiscard]] bool is_met(Number seen) const noexcept {
        switch (flags_ & 3U) {
        case CU_STREAM_WAIT_VALUE_EQ: return seen == value_;
        case CU_STREAM_WAIT_VALUE_AND: return (seen & value_) != 0;
        case CU_STREAM_WAIT_VALUE_NOR: return static_cast<Number>(~(seen | value_)) != 0;
        default: return static_cast<std::make_signed_t<Number>>(seen - value_) >= 0; // cyclically no less
        }
    }

    Side from_;
    Number value_;
    unsigned flags_;
};

/// Makes the work of one operation. Errors: INVALID_VALUE.
template <template <class> class Operation, class Number>
CUresult make_value(const Driver& driver, const Context& context, CUdeviceptr address, Number value,
                    unsigned flags, std::shared_ptr<const Work>& work) {
    using Made = Operation<Number>;
    if (address % sizeof(Number) != 0) return CUDA_ERROR_INVALID_VALUE;
    Side side{address, 0, context.accessor()};
    side.space = space_of(driver, side, sizeof(Number), 1);
    if (side.space == Space::pageable ||
        !reachable(driver, side, sizeof(Number), 1, Made::k_access, driver.space.now(), driver.host.now()))
        return CUDA_ERROR_INVALID_VALUE;
    work = std::make_shared<Made>(side, value, flags);
    return CUDA_SUCCESS;
}

template <template <class> class Operation, class Number>
CUresult operate(Call& c, Context& context, CUstream handle, CUdeviceptr address, Number value,
                 unsigned flags) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    std::shared_ptr<const Work> work;
    const auto status = make_value<Operation>(c.driver, context, address, value, flags, work);
    return status == CUDA_SUCCESS ? submit(c, *stream, std::move(work)) : status;
}

CUresult make_operation(const Driver& driver, const Context& context, const CUstreamBatchMemOpParams& one,
                        std::shared_ptr<const Work>& work) {
    const auto& wait = one.waitValue;
    const auto& write = one.writeValue;
    switch (one.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        return make_value<ValueWait>(driver, context, wait.address, wait.value, wait.flags, work);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        return make_value<ValueWait>(driver, context, wait.address, wait.value64, wait.flags, work);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        return make_value<ValueWrite>(driver, context, write.address, write.value, write.flags, work);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        return make_value<ValueWrite>(driver, context, write.address, write.value64, write.flags, work);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

} // namespace

CUresult ValueOperations::run(const Execution& execution) const {
    for (const auto& part : parts_) {
        if (execution.cancelled) break;
        SIM_TRY(part->run(execution));
    }
    return CUDA_SUCCESS;
}

CUresult make_operations(const Driver& driver, const Context& context,
                         std::span<const CUstreamBatchMemOpParams> operations,
                         std::shared_ptr<const Work>& work) {
    std::vector<std::shared_ptr<const Work>> parts;
    for (const auto& each : operations)
        if (const auto status = make_operation(driver, context, each, parts.emplace_back());
            status != CUDA_SUCCESS)
            return status;
    work = std::make_shared<ValueOperations>(context.handle, operations, std::move(parts));
    return CUDA_SUCCESS;
}

} // namespace gpu_sleep::sim

SIM_ENTRY(queued, 11070)
cuStreamWriteValue32(Call& c, Context& context, CUstream stream, CUdeviceptr address, cuuint32_t value,
                     unsigned flags) {
    return operate<ValueWrite>(c, context, stream, address, value, flags);
}

SIM_ENTRY(queued, 11070)
cuStreamWriteValue64(Call& c, Context& context, CUstream stream, CUdeviceptr address, cuuint64_t value,
                     unsigned flags) {
    return operate<ValueWrite>(c, context, stream, address, value, flags);
}

SIM_ENTRY(queued, 11070)
cuStreamWaitValue32(Call& c, Context& context, CUstream stream, CUdeviceptr address, cuuint32_t value,
                    unsigned flags) {
    return operate<ValueWait>(c, context, stream, address, value, flags);
}

SIM_ENTRY(queued, 11070)
cuStreamWaitValue64(Call& c, Context& context, CUstream stream, CUdeviceptr address, cuuint64_t value,
                    unsigned flags) {
    return operate<ValueWait>(c, context, stream, address, value, flags);
}

SIM_ENTRY(queued, 11070)
cuStreamBatchMemOp(Call& c, Context& context, CUstream handle, unsigned count,
                   CUstreamBatchMemOpParams* operations, unsigned flags) {
    SIM_FIND(stream, find_stream(c.driver, context, handle), CUDA_ERROR_INVALID_HANDLE);
    if (!operations || count == 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<const Work> work;
    const auto status = make_operations(c.driver, context, {operations, count}, work);
    return status == CUDA_SUCCESS ? submit(c, *stream, std::move(work)) : status;
}
