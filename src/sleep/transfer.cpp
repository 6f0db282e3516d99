// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Copies, blocks, progress and threads.

#include "sleep/transfer.hpp"

namespace gpu_sleep::sleep {

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
    return {};
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
