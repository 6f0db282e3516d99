// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies, blocks, progress and threads.

#include "sleep/transfer.hpp"

namespace gpu_sleep::sleep {

Result<std::unique_ptr<driver::DeviceSession>> open_session(const driver::Api& api, int ordinal,
                                                            model::DeviceReport& report) {
    auto context = driver::PrimaryContext::retain(api, ordinal);
    if (!context) return std::move(context).error();
    auto session = driver::DeviceSession::open(api, *std::move(context));
    if (!session) return session;
    const auto current = (*session)->enter();
    const auto memory = (*session)->memory_info();
    if (!memory) return memory.error();
    report.device = ordinal;
    report.free_before = memory->free;
    report.total = memory->total;
    return session;
}

void add_copy(std::vector<Copy>& copies, Copy copy) {
    if (!copies.empty()) {
        auto& last = copies.back();
        const bool continues = last.arena == copy.arena && last.device.end() == copy.device.address &&
                               last.arena_offset + last.device.bytes == copy.arena_offset;
        if (continues) {
            last.device.bytes += copy.device.bytes;
            return;
        }
    }
    copies.push_back(copy);
}

void add_blocks(std::vector<driver::FingerprintBlock>& blocks, driver::AddressSpan span) {
    for (Bytes done = 0; done < span.bytes; done += driver::k_fingerprint_block_bytes)
        blocks.push_back(
            {span.address + done, std::min(driver::k_fingerprint_block_bytes, span.bytes - done)});
}

Result<void> ProgressCounter::add(Bytes bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (!stopped_ && !control_.progress({model::Progress::Phase::transfer, done_, total_})) stopped_ = true;
    if (stopped_) return make_error(ErrorCode::cancelled, "the request was withdrawn");
    if (Clock::now() < control_.deadline) return {};
    stopped_ = true;
    return make_error(ErrorCode::timed_out, "the time was over when {} of {} had been copied",
                      format_bytes(done_), format_bytes(total_));
}

Result<void> add_copied(driver::DeviceSession& session, ProgressCounter& progress) {
    const auto bytes = session.look_at_marks();
    return bytes ? progress.add(*bytes) : bytes.error();
}

Result<void> first_cause(std::vector<Result<void>>& results) {
    Result<void> cancelled;
    for (auto& result : results) {
        if (result) continue;
        if (result.error().code != ErrorCode::cancelled) return std::move(result);
        cancelled = std::move(result);
    }
    return cancelled;
}

} // namespace gpu_sleep::sleep
