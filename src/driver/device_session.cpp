// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies, zeroing and fingerprints on a stream of our own.

#include "driver/device_session.hpp"

#include "driver/fingerprint_key.hpp"

namespace gpu_sleep::driver {

using model::Step;
using model::StepClock;

DeviceSession::DeviceSession(const Api& api, PrimaryContext context) noexcept
    : api_(api), context_(std::move(context)) {}

Result<std::unique_ptr<DeviceSession>> DeviceSession::open(const Api& api, PrimaryContext context,
                                                           bool makes_streams) {
    std::unique_ptr<DeviceSession> session(new DeviceSession(api, std::move(context)));
    if (!makes_streams) {
        session->stream_ = session->side_stream_ = session->check_stream_ = CU_STREAM_LEGACY;
        return session;
    }
    const auto current = session->enter();
    GPU_SLEEP_TRY(current.check());
    GPU_SLEEP_TRY(session->make_stream(session->stream_, CU_STREAM_LEGACY));
    GPU_SLEEP_TRY(session->make_stream(session->side_stream_, session->stream_));
    return session;
}

Result<void> DeviceSession::make_stream(CUstream& stream, CUstream other) {
    const auto status = api_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (status != CUDA_SUCCESS) stream = status == CUDA_ERROR_OUT_OF_MEMORY ? other : nullptr;
    if (stream) return {};
    return to_error(api_, status, "cuStreamCreate", "cannot make a stream");
}

DeviceSession::~DeviceSession() {
    const auto current = enter();
    if (current.status() != CUDA_SUCCESS) { // everything went with the context
        if (scratch_) scratch_->forget();
        if (coder_) coder_->forget();
        return;
    }
    for (auto* stream : {stream_, side_stream_, check_stream_})
        if (stream) api_.cuStreamSynchronize(stream);
    buffer_.reset();
    aside_.clear();
    scratch_.reset();
    tasks_.reset();
    coder_.reset();
    for (const auto& mark : marks_) api_.cuEventDestroy(mark.event);
    for (auto* const event : points_) api_.cuEventDestroy(event);
    if (module_) api_.cuModuleUnload(module_);
    for (auto* stream : {side_stream_, check_stream_})
        if (stream && stream != stream_) api_.cuStreamDestroy(stream);
    if (stream_ && has_own_stream()) api_.cuStreamDestroy(stream_);
}

Result<void> DeviceSession::load_kernel() {
    if (fingerprint_kernel_) return {};
    GPU_SLEEP_DRIVER_TRY(api_, cuModuleLoadData, "cannot load the fingerprint kernel", &module_,
                         kernel_image());
    GPU_SLEEP_DRIVER_TRY(api_, cuModuleGetFunction, "cannot find the copying kernel", &copy_kernel_, module_,
                         k_copy_kernel);
    GPU_SLEEP_DRIVER_TRY(api_, cuModuleGetFunction, "cannot find the fingerprint kernel",
                         &fingerprint_kernel_, module_, k_fingerprint_kernel);
    return {};
}

Result<void> DeviceSession::copy_to_host(std::byte* to, DeviceAddress from, Bytes bytes) {
    const StepClock::Timed timed(&steps_, Step::copy);
    queued_ = Step::copy;
    GPU_SLEEP_DRIVER_TRY(api_, cuMemcpyDtoHAsync, "cannot copy to the host", to, from, bytes, stream_);
    return {};
}

Result<void> DeviceSession::copy_to_device(DeviceAddress to, const std::byte* from, Bytes bytes) {
    const StepClock::Timed timed(&steps_, Step::copy);
    queued_ = Step::copy;
    GPU_SLEEP_DRIVER_TRY(api_, cuMemcpyHtoDAsync, "cannot copy to the device", to, from, bytes, stream_);
    return {};
}

Result<void> DeviceSession::copy_within(DeviceAddress to, DeviceAddress from, Bytes bytes) {
    const StepClock::Timed timed(&steps_, Step::copy);
    queued_ = Step::copy;
    GPU_SLEEP_DRIVER_TRY(api_, cuMemcpyDtoDAsync, "cannot copy to another backing", to, from, bytes, stream_);
    return {};
}

Result<void> DeviceSession::zero(AddressSpan span, CUstream stream) {
    const StepClock::Timed timed(&steps_, Step::copy);
    GPU_SLEEP_DRIVER_TRY(api_, cuMemsetD8Async, "cannot set memory to zero", span.address, 0, span.bytes,
                         stream);
    if (stream == stream_) queued_ = Step::copy;
    return {};
}

Bytes DeviceSession::fingerprint_bytes(std::size_t blocks) noexcept {
    return blocks * (sizeof(FingerprintBlock) + sizeof(Fingerprint));
}

Result<std::span<const Fingerprint>>
DeviceSession::launch_fingerprint(std::span<const FingerprintBlock> blocks, std::byte* memory,
                                  CUstream stream) {
    const StepClock::Timed timed(&steps_, Step::fingerprint);
    const auto of_process = GPU_SLEEP_TRY(process_fingerprint_key());
    if (coder_) {
        GPU_SLEEP_TRY(set_coded(coded_));
        GPU_SLEEP_TRY(stay_behind(coded_, stream));
    }
    if (stream != stream_) {
        GPU_SLEEP_TRY(set(copied_));
        GPU_SLEEP_TRY(stay_behind(copied_, stream));
    }
    auto* input = reinterpret_cast<FingerprintBlock*>(memory);
    std::copy(blocks.begin(), blocks.end(), input);
    auto* output = reinterpret_cast<Fingerprint*>(memory + blocks.size_bytes());

    std::uint64_t count = blocks.size();
    FingerprintKey key = *of_process;
    void* arguments[] = {&input, &output, &count, &key};
    constexpr std::uint64_t k_max_blocks = 16'384; // several for each multiprocessor of any device
    const auto grid = static_cast<unsigned>(std::min(count, k_max_blocks));
    const bool copies = blocks.front().copy != 0;
    GPU_SLEEP_DRIVER_TRY(api_, cuLaunchKernel, "cannot launch the fingerprint kernel",
                         copies ? copy_kernel_ : fingerprint_kernel_, grid, 1, 1, k_fingerprint_threads, 1, 1,
                         0, stream, arguments, nullptr);
    if (stream == stream_) queued_ = copies ? Step::copy : Step::fingerprint;
    return std::span<const Fingerprint>(output, blocks.size());
}

Result<std::span<const Fingerprint>> DeviceSession::fingerprint(std::span<const FingerprintBlock> blocks) {
    if (blocks.empty()) return std::span<const Fingerprint>();
    GPU_SLEEP_TRY(reserve_fingerprints(blocks.size()));
    return launch_fingerprint(blocks, buffer_->data(), stream_);
}

Result<void> DeviceSession::reserve_fingerprints(std::size_t blocks) {
    GPU_SLEEP_TRY(load_kernel());
    const auto needed = fingerprint_bytes(blocks);
    if (buffer_ && buffer_->bytes() >= needed) return {};
    buffer_.reset();
    buffer_ = GPU_SLEEP_TRY(MappedBuffer::create(api_, needed));
    return {};
}

Result<void> DeviceSession::prepare_fingerprints(std::size_t blocks) {
    if (blocks == 0) return {};
    GPU_SLEEP_TRY(load_kernel());
    if (!check_stream_) GPU_SLEEP_TRY(make_stream(check_stream_, stream_));
    const auto needed = fingerprint_bytes(blocks);
    if (!aside_.empty() && aside_.back()->bytes() - aside_used_ >= needed) return {};
    auto buffer = GPU_SLEEP_TRY(MappedBuffer::create(api_, needed));
    aside_.push_back(std::move(buffer));
    aside_used_ = 0;
    return {};
}

Result<std::span<const Fingerprint>>
DeviceSession::fingerprint_aside(std::span<const FingerprintBlock> blocks) {
    if (blocks.empty()) return std::span<const Fingerprint>();
    GPU_SLEEP_TRY(prepare_fingerprints(blocks.size()));
    auto* const memory =
        aside_.back()->data() + std::exchange(aside_used_, aside_used_ + fingerprint_bytes(blocks.size()));
    return launch_fingerprint(blocks, memory, check_stream_);
}

Result<DeviceSession::CodingSpace> DeviceSession::prepare_coding(std::size_t blocks, Bytes scratch) {
    end_coding();
    if (!coder_) coder_ = GPU_SLEEP_TRY(BlockCoder::load(api_));
    tasks_ = GPU_SLEEP_TRY(MappedBuffer::create(api_, blocks * sizeof(BlockTask)));
    CodingSpace space{{reinterpret_cast<BlockTask*>(tasks_->data()), blocks}, {}};
    std::uninitialized_value_construct(space.tasks.begin(), space.tasks.end());
    if (scratch == 0) return space;
    scratch_ = std::make_unique<DeviceBuffer>(GPU_SLEEP_TRY(DeviceBuffer::create(api_, scratch)));
    space.scratch = scratch_->span();
    return space;
}

Result<void> DeviceSession::code(BlockWork work, std::span<BlockTask> tasks, CodedSide side,
                                 const Point* after, Point* done) {
    if (tasks.empty()) return {};
    const StepClock::Timed timed(&steps_, Step::copy);
    if (after) GPU_SLEEP_TRY(stay_behind(*after, side_stream_));
    GPU_SLEEP_TRY(coder_->run(work, tasks, side, side_stream_));
    return done ? set_coded(*done) : Result<void>();
}

void DeviceSession::end_coding() noexcept {
    if (scratch_ && !scratch_->free()) return; // the destructor tries once more
    scratch_.reset();
    tasks_.reset();
}

Result<void> DeviceSession::synchronize() {
    {
        const StepClock::Timed timed(&steps_, queued_);
        GPU_SLEEP_DRIVER_TRY(api_, cuStreamSynchronize, "a transfer failed", stream_);
    }
    {
        const StepClock::Timed zeroed(&steps_, Step::copy);
        GPU_SLEEP_DRIVER_TRY(api_, cuStreamSynchronize, "setting memory to zero failed", side_stream_);
    }
    if (check_stream_) {
        const StepClock::Timed checked(&steps_, Step::fingerprint);
        GPU_SLEEP_DRIVER_TRY(api_, cuStreamSynchronize, "taking fingerprints failed", check_stream_);
    }
    return {};
}

Result<void> DeviceSession::set(Point& point, CUstream stream) {
    if (!point.event) {
        GPU_SLEEP_DRIVER_TRY(api_, cuEventCreate, "cannot make an event", &point.event, CU_EVENT_DEFAULT);
        points_.push_back(point.event);
    }
    GPU_SLEEP_DRIVER_TRY(api_, cuEventRecord, "cannot record an event", point.event, stream);
    return {};
}

Result<void> DeviceSession::stay_behind(const Point& point, CUstream stream) {
    if (point.event)
        GPU_SLEEP_DRIVER_TRY(api_, cuStreamWaitEvent, "cannot wait for an event", stream, point.event, 0);
    return {};
}

Result<void> DeviceSession::wait(const Point& point) {
    const StepClock::Timed timed(&steps_, Step::copy);
    if (point.event) GPU_SLEEP_DRIVER_TRY(api_, cuEventSynchronize, "a transfer failed", point.event);
    return {};
}

Result<double> DeviceSession::seconds_between(const Point& from, const Point& to) {
    GPU_SLEEP_TRY(wait(to));
    float milliseconds = 0;
    GPU_SLEEP_DRIVER_TRY(api_, cuEventElapsedTime, "cannot time a transfer", &milliseconds, from.event,
                         to.event);
    return milliseconds / 1e3;
}

Result<void> DeviceSession::mark(Bytes bytes, bool is_coded) {
    // Many small copies share a mark: an event costs more than they do.
    constexpr Bytes k_mark_bytes = 64 * k_mib;
    unmarked_ += bytes;
    if (unmarked_ < k_mark_bytes) return {};
    CUevent event = nullptr;
    GPU_SLEEP_DRIVER_TRY(api_, cuEventCreate, "cannot make an event", &event, CU_EVENT_DISABLE_TIMING);
    marks_.push_back({event, std::exchange(unmarked_, 0)});
    GPU_SLEEP_DRIVER_TRY(api_, cuEventRecord, "cannot record an event", event,
                         is_coded ? side_stream_ : stream_);
    return {};
}

Result<Bytes> DeviceSession::look_at_marks() {
    Bytes bytes = 0;
    for (; passed_ < marks_.size(); ++passed_) {
        const auto status = api_.cuEventQuery(marks_[passed_].event);
        if (status == CUDA_ERROR_NOT_READY) break;
        if (status != CUDA_SUCCESS) return to_error(api_, status, "cuEventQuery", "a transfer failed");
        bytes += marks_[passed_].bytes;
    }
    return bytes;
}

Result<void> DeviceSession::wait_marks(const std::function<Result<void>(Bytes)>& passed) {
    const StepClock::Timed timed(&steps_, Step::copy);
    while (passed_ < marks_.size()) {
        GPU_SLEEP_DRIVER_TRY(api_, cuEventSynchronize, "a transfer failed", marks_[passed_].event);
        GPU_SLEEP_TRY(passed(marks_[passed_++].bytes));
    }
    return passed(std::exchange(unmarked_, 0));
}

Result<void> pin_host_memory(const Api& api, std::span<std::byte> memory) {
    GPU_SLEEP_DRIVER_TRY(api, cuMemHostRegister, "cannot pin host memory", memory.data(), memory.size(),
                         CU_MEMHOSTREGISTER_PORTABLE);
    return {};
}

Result<void> unpin_host_memory(const Api& api, std::span<std::byte> memory) {
    const auto status = api.cuMemHostUnregister(memory.data());
    // Registrations die with the context that made them; then there is nothing to take back.
    if (status == CUDA_SUCCESS || status == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) return {};
    return to_error(api, status, "cuMemHostUnregister", "cannot unpin host memory");
}

} // namespace gpu_sleep::driver
