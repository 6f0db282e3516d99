// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The work of a transaction on one device: a stream of its own, copies, zeroing and fingerprints.

#pragma once

#include "driver/block_coder.hpp"
#include "driver/context.hpp"
#include "driver/kernels/fingerprint.hpp"
#include "driver/memory.hpp"
#include "model/report.hpp"

namespace gpu_sleep::driver {

/// The resources of a transaction on one device, all of which its destructor gives back. For one thread at a
/// time, which must have entered the session's context (enter()).
class DeviceSession {
public:
    /// Errors: out_of_device_memory, driver_failed, context_lost.
    /// Without `makes_streams` it leaves the memory of streams to others: see has_own_stream().
    [[nodiscard]] static Result<std::unique_ptr<DeviceSession>> open(const Api& api, PrimaryContext context,
                                                                     bool makes_streams = true);
    DeviceSession(const DeviceSession&) = delete;
    DeviceSession& operator=(const DeviceSession&) = delete;
    ~DeviceSession();

    [[nodiscard]] int device() const noexcept { return context_.device(); }
    /// Whether its stream is its own. A GPU that is full may have no memory for one (2 MiB, measured on an
    /// H200); the session then works on the context's default stream, which must not be used beside the
    /// program's work.
    [[nodiscard]] bool has_own_stream() const noexcept { return stream_ != CU_STREAM_LEGACY; }
    [[nodiscard]] CUcontext context() const noexcept { return context_.get(); }
    [[nodiscard]] CurrentContext enter() const noexcept { return {api_, context_.get()}; }

    /// Each queues its work on the session's stream, in order, and returns; synchronize() waits. With host
    /// memory that is not page-locked a copy may take as long as the transfer. Errors: driver_failed,
    /// context_lost.
    [[nodiscard]] Result<void> copy_to_host(std::byte* to, DeviceAddress from, Bytes bytes);
    [[nodiscard]] Result<void> copy_to_device(DeviceAddress to, const std::byte* from, Bytes bytes);
    /// `from` and `to` may be host memory that device addresses show.
    [[nodiscard]] Result<void> copy_within(DeviceAddress to, DeviceAddress from, Bytes bytes);
    [[nodiscard]] Result<void> zero(AddressSpan span) { return zero(span, stream_); }
    /// The same on a second stream, in order with code() there, but not with the session's copies, for which
    /// it does not wait.
    [[nodiscard]] Result<void> zero_aside(AddressSpan span) { return zero(span, side_stream_); }

    /// Queues the fingerprinting of `blocks`, by the key of the process. The fingerprints, in their order,
    /// are valid once synchronize() has returned, and until the next call. If the first has a
    /// FingerprintBlock::copy, all have, to which they are copied: each is read once for both, and the
    /// fingerprints are of what was read. Then `address` may be host memory that device addresses show.
    /// Errors: out_of_host_memory, io_failed (no key), driver_failed, context_lost.
    [[nodiscard]] Result<std::span<const Fingerprint>> fingerprint(std::span<const FingerprintBlock> blocks);
    /// Makes ready what that needs for so many blocks at a time, for who cannot let it wait: the
    /// driver loads a kernel, and locks pages, once all of the context's work is done. Errors: as
    /// fingerprint().
    [[nodiscard]] Result<void> reserve_fingerprints(std::size_t blocks);
    /// Makes ready what fingerprint_aside() needs for `blocks` in all. Behind copies that are queued it would
    /// wait for them. Errors: as fingerprint().
    [[nodiscard]] Result<void> prepare_fingerprints(std::size_t blocks);
    /// The same behind all that is queued by now, on a stream of its own: what is queued later does not wait
    /// for it. The fingerprints are valid once synchronize() has returned, and as long as the session.
    [[nodiscard]] Result<std::span<const Fingerprint>>
    fingerprint_aside(std::span<const FingerprintBlock> blocks);

    /// Where blocks are coded, valid until the next prepare_coding() or end_coding().
    struct CodingSpace {
        std::span<BlockTask> tasks; ///< for code(), as its caller fills them
        AddressSpan scratch;        ///< device memory for coded blocks on their way; may be empty
    };
    /// Makes ready what code() needs for so many blocks at a time, and `scratch` bytes of device memory.
    /// Nothing that was queued may still use what the last call gave. Errors: out_of_host_memory,
    /// out_of_device_memory, driver_failed, context_lost.
    [[nodiscard]] Result<CodingSpace> prepare_coding(std::size_t blocks, Bytes scratch);
    /// Gives back what prepare_coding() gave, which nothing may use any more.
    void end_coding() noexcept;

    /// Waits for all queued work. Errors: driver_failed, context_lost.
    [[nodiscard]] Result<void> synchronize();

    /// A point in the session's stream: it has passed when all work queued before it is done. Valid as long
    /// as the session.
    struct Point {
        CUevent event = nullptr;
    };
    /// Sets `point` after all work that is queued. A point can be set again.
    [[nodiscard]] Result<void> set(Point& point) { return set(point, stream_); }
    /// Has what is queued from now on wait until the point has passed, if it was set.
    [[nodiscard]] Result<void> stay_behind(const Point& point) { return stay_behind(point, stream_); }
    /// Queues work on blocks on a second stream, behind `after` if there is one and it was set, and sets
    /// `done` after it. What each task says of its block is valid once synchronize() has returned. A kernel
    /// behind copies in their own stream would hold the GPU's time, as if it computed, while it waits for
    /// them.
    [[nodiscard]] Result<void> code(BlockWork work, std::span<BlockTask> tasks, CodedSide side,
                                    const Point* after = nullptr, Point* done = nullptr);
    /// Sets `point` after all work on blocks that is queued.
    [[nodiscard]] Result<void> set_coded(Point& point) { return set(point, side_stream_); }
    /// Waits until the point has passed. Returns at once if it was never set.
    [[nodiscard]] Result<void> wait(const Point& point);
    /// The time between two points that were set, once the second has passed: waits for it.
    [[nodiscard]] Result<double> seconds_between(const Point& from, const Point& to);

    /// Records that copies of `bytes` were queued, or with `is_coded` work on blocks, so that wait_marks()
    /// can report progress.
    [[nodiscard]] Result<void> mark(Bytes bytes, bool is_coded = false);
    /// The bytes of marks that have passed since the last report. Does not wait. Errors: as synchronize().
    [[nodiscard]] Result<Bytes> look_at_marks();
    /// Waits until all marks have passed, and reports their bytes to `passed`.
    /// Errors: those of `passed`, which end the waiting; as synchronize().
    [[nodiscard]] Result<void> wait_marks(const std::function<Result<void>(Bytes)>& passed);

    /// Where the transaction's time goes on this device. The session counts what it queues and waits for
    /// itself; whoever does another step counts that. Any thread may.
    [[nodiscard]] model::StepClock& steps() noexcept { return steps_; }

    /// Errors: driver_failed, context_lost.
    [[nodiscard]] Result<MemoryInfo> memory_info() const { return driver::memory_info(api_); }

private:
    DeviceSession(const Api& api, PrimaryContext context) noexcept;
    /// Makes a stream, or has `other` stand for it where the GPU is full.
    [[nodiscard]] Result<void> make_stream(CUstream& stream, CUstream other);
    [[nodiscard]] Result<void> load_kernel();
    [[nodiscard]] Result<void> zero(AddressSpan span, CUstream stream);
    [[nodiscard]] Result<void> set(Point& point, CUstream stream);
    [[nodiscard]] Result<void> stay_behind(const Point& point, CUstream stream);
    /// Bytes that `blocks` and their fingerprints take.
    [[nodiscard]] static Bytes fingerprint_bytes(std::size_t blocks) noexcept;
    /// Queues it on `stream`; `memory` is the device's, too, and long enough.
    [[nodiscard]] Result<std::span<const Fingerprint>>
    launch_fingerprint(std::span<const FingerprintBlock> blocks, std::byte* memory, CUstream stream);

    const Api& api_;
    PrimaryContext context_;
    CUstream stream_ = nullptr;
    CUstream side_stream_ = nullptr;  ///< or the same, as the next
    CUstream check_stream_ = nullptr; ///< of fingerprint_aside()
    CUmodule module_ = nullptr;
    CUfunction fingerprint_kernel_ = nullptr;
    CUfunction copy_kernel_ = nullptr;
    struct Mark {
        CUevent event;
        Bytes bytes;
    };
    std::vector<Mark> marks_;
    std::size_t passed_ = 0; ///< of those, that have passed and were told
    std::vector<CUevent> points_;
    Bytes unmarked_ = 0;                               ///< queued since the last mark
    std::unique_ptr<MappedBuffer> buffer_;             ///< of fingerprint()
    std::vector<std::unique_ptr<MappedBuffer>> aside_; ///< of fingerprint_aside()
    Bytes aside_used_ = 0;                             ///< of the last of them
    Point copied_;                                     ///< what fingerprints are taken after, as the next
    Point coded_;
    std::unique_ptr<BlockCoder> coder_;
    std::unique_ptr<MappedBuffer> tasks_; ///< of code()
    std::unique_ptr<DeviceBuffer> scratch_;
    model::StepClock steps_;
    model::Step queued_ = model::Step::copy; ///< last on stream_: what synchronize() waits for
};

/// Makes host memory page-locked for every context, or ordinary again. The calling thread needs a current
/// context. Errors: driver_failed. Source: CUDA Driver API, cuMemHostRegister, cuMemHostUnregister.
[[nodiscard]] Result<void> pin_host_memory(const Api& api, std::span<std::byte> memory);
[[nodiscard]] Result<void> unpin_host_memory(const Api& api, std::span<std::byte> memory);

} // namespace gpu_sleep::driver
