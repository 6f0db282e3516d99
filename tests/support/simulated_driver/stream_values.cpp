// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// cuStreamWriteValue* and cuStreamWaitValue*: a stream that sets a number in memory, or waits for one.

#include "support/simulated_driver/contexts.hpp"
#include "support/simulated_driver/faults.hpp"
#include "support/simulated_driver/guarded.hpp"
#include "support/simulated_driver/transfer.hpp"

#include <chrono>
#include <thread>

namespace gpu_sleep::sim {
namespace {

CUresult illegal_access() {
    ++Counts::instance().illegal_accesses;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

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

template <template <class> class Operation, class Number>
CUresult call_value(Entry entry, CUstream handle, CUdeviceptr address, Number value,
                    unsigned flags) noexcept {
    using Made = Operation<Number>;
    return call_in_context(entry, [&](Call& c, Context& context) {
        const auto stream = find_stream(c.driver, context, handle);
        if (!stream) return CUDA_ERROR_INVALID_HANDLE;
        if (address % sizeof(Number) != 0) return CUDA_ERROR_INVALID_VALUE;
        Side side{address, 0, context.accessor()};
        side.space = space_of(c.driver, side, sizeof(Number), 1);
        if (side.space == Space::pageable || !reachable(c.driver, side, sizeof(Number), 1, Made::k_access,
                                                        c.driver.space.now(), c.driver.host.now()))
            return CUDA_ERROR_INVALID_VALUE;
        return submit(c, *stream, std::make_shared<Made>(side, value, flags));
    });
}

} // namespace
} // namespace gpu_sleep::sim

using namespace gpu_sleep::sim;

CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                      unsigned flags) {
    return call_value<ValueWrite>(Entry::cuStreamWriteValue32, stream, address, value, flags);
}

CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                      unsigned flags) {
    return call_value<ValueWrite>(Entry::cuStreamWriteValue64, stream, address, value, flags);
}

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    return call_value<ValueWait>(Entry::cuStreamWaitValue32, stream, address, value, flags);
}

CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
    return call_value<ValueWait>(Entry::cuStreamWaitValue64, stream, address, value, flags);
}
