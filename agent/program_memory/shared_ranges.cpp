// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What is shared, as descriptors.

#include "program_memory/shared_ranges.hpp"

namespace gpu_sleep::agent {

void SharedRanges::add(driver::DeviceAddress address, const Range& range) {
    const MutexLock lock(mutex_);
    ranges_.insert_or_assign(address, range);
}

SharedRanges::Withdrawn SharedRanges::withdraw(driver::DeviceAddress address) noexcept {
    const MutexLock lock(mutex_);
    return {*this, ranges_.extract(address)};
}

SharedRanges::Withdrawn::~Withdrawn() {
    if (!node_) return;
    const MutexLock lock(owner_.mutex_);
    owner_.ranges_.insert(std::move(node_));
}

Result<SharedRanges::Exported> SharedRanges::open(const driver::Api& api, driver::DeviceAddress address,
                                                  std::uint64_t id,
                                                  const std::function<bool()>& is_allocated) {
    const MutexLock lock(mutex_);
    const auto found = ranges_.find(address);
    // Freed, it leaves the index of allocations first: it may yet be here.
    if (found == ranges_.end() || found->second.allocation != id || !is_allocated())
        return make_error(ErrorCode::not_owned, "there is no such shared memory");
    auto memory = driver::export_memory(api, found->second.handle);
    if (!memory) return std::move(memory).error();
    return Exported{found->second, *std::move(memory)};
}

} // namespace gpu_sleep::agent
