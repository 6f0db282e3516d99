// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Places and locks, by GPU.

#include "operations/gpu_lines.hpp"

#include "operations/joint.hpp"
#include "peers/neighbours.hpp"

#include <algorithm>
#include <thread>

namespace gpu_sleep::agent::operations {

GpuLines::Line* GpuLines::find(int directory, const std::string& gpu) {
    const auto known = lines_.find(gpu);
    // Closing the file would give up the lock, which those that have the same file open still heed.
    const bool is_good =
        known != lines_.end() && (known->second.locks > 0 || known->second.line.is_in_place(directory));
    if (is_good) return &known->second;
    if (known != lines_.end()) lines_.erase(known);
    auto line = peers::GpuLine::open(directory, gpu);
    return line ? &lines_.emplace(gpu, Line{*std::move(line)}).first->second : nullptr;
}

std::uint32_t GpuLines::stand(int directory, const std::vector<std::string>& gpus) {
    std::uint32_t before = 0;
    const MutexLock lock(mutex_);
    for (const auto& gpu : gpus)
        if (auto* const line = find(directory, gpu); line && line->line.stand())
            before = std::max(before, line->line.before());
    return before;
}

void GpuLines::leave() noexcept {
    const MutexLock lock(mutex_);
    for (auto& [gpu, line] : lines_) line.line.leave();
    std::erase_if(lines_, [](const auto& each) { return each.second.locks == 0; });
}

std::optional<GpuLines::Locks> GpuLines::lock(int directory, const std::vector<std::string>& gpus) {
    std::vector<std::string> locked;
    bool has_all = true;
    {
        const MutexLock lock(mutex_);
        for (const auto& gpu : gpus) {
            auto* const line = find(directory, gpu);
            if (!line) continue;
            has_all = line->locks > 0 || line->line.lock();
            if (!has_all) break;
            ++line->locks;
            locked.push_back(gpu);
        }
    }
    Locks locks(*this, std::move(locked));
    return has_all ? std::optional(std::move(locks)) : std::nullopt;
}

Result<GpuLines::Locks> GpuLines::wait_and_lock(const std::vector<std::string>& gpus,
                                                Clock::time_point deadline,
                                                const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_look{5};
    const auto neighbours = peers::Neighbours::open();
    if (!neighbours) return Locks();
    for (;;) {
        if (auto locks = lock(neighbours->directory(), gpus)) return *std::move(locks);
        if (Clock::now() >= deadline)
            return make_error(ErrorCode::out_of_device_memory,
                              "another process comes back on the same GPU, and has not had its room in time");
        if (!keep_going()) return withdrawn();
        std::this_thread::sleep_for(k_look);
    }
}

void GpuLines::unlock(const std::vector<std::string>& gpus) noexcept {
    const MutexLock lock(mutex_);
    for (const auto& gpu : gpus) {
        const auto line = lines_.find(gpu);
        if (line != lines_.end() && --line->second.locks == 0) line->second.line.unlock();
    }
}

} // namespace gpu_sleep::agent::operations
