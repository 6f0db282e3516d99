// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Places and locks, by GPU.

#include "operations/gpu_lines.hpp"

#include "base/guard.hpp"
#include "operations/joint.hpp"
#include "peers/client.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace gpu_sleep::agent::operations {

GpuLines::Line* GpuLines::find(int directory, const std::string& gpu) {
    const auto known = lines_.find(gpu);
    // Closing the file would give up what is locked, which those that have the same file open still heed.
    const bool is_good =
        known != lines_.end() && (known->second.line.holds() || known->second.line.is_in_place(directory));
    if (is_good) return &known->second;
    if (known != lines_.end()) lines_.erase(known);
    auto line = peers::GpuQueue::open(directory, gpu);
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
    std::erase_if(lines_, [](const auto& each) { return !each.second.line.holds(); });
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
    Locks locks(this, {std::move(locked)});
    return has_all ? std::optional(std::move(locks)) : std::nullopt;
}

bool GpuLines::are_shared(int directory, const std::vector<std::string>& gpus) {
    const MutexLock lock(mutex_);
    return std::any_of(gpus.begin(), gpus.end(), [&](const std::string& gpu) GPU_SLEEP_REQUIRES(mutex_) {
        const auto* const line = find(directory, gpu);
        return line && line->line.is_shared();
    });
}

Result<bool> GpuLines::try_for_room(int directory, const std::vector<std::string>& gpus,
                                    const CountRoom& count) {
    std::vector<peers::GpuQueue*> lines; // they stay while they count
    std::optional<peers::BytesByGpu> of_others;
    {
        const MutexLock lock(mutex_);
        for (const auto& gpu : gpus)
            if (auto* const line = find(directory, gpu)) lines.push_back(&line->line);
        of_others = peers::begin_counting(lines);
    }
    if (!of_others) return false;
    const auto room = guarded([&] { return count(*of_others); });
    const MutexLock lock(mutex_);
    return peers::end_counting(lines, *of_others, room);
}

Result<GpuLines::Room> GpuLines::wait_for_room(const std::vector<std::string>& gpus, const CountRoom& count,
                                               Clock::time_point deadline,
                                               const std::function<bool()>& keep_going) {
    constexpr Milliseconds k_look{5};
    const auto neighbours = peers::Neighbours::open();
    for (;;) {
        const auto is_done = try_for_room(neighbours ? neighbours->directory() : -1, gpus, count);
        if (!is_done) return is_done.error();
        if (*is_done) return Room(this);
        if (Clock::now() >= deadline)
            return make_error(
                ErrorCode::out_of_device_memory,
                "another process is coming back to the same GPU, and did not get its memory in time");
        if (!keep_going()) return withdrawn();
        std::this_thread::sleep_for(k_look);
    }
}

void GpuLines::give_room_back() noexcept {
    const MutexLock lock(mutex_);
    for (auto& [gpu, line] : lines_) line.line.give_room_back();
}

void GpuLines::unlock(const std::vector<std::string>& gpus) noexcept {
    const MutexLock lock(mutex_);
    for (const auto& gpu : gpus) {
        const auto line = lines_.find(gpu);
        if (line != lines_.end() && --line->second.locks == 0) line->second.line.unlock();
    }
}

} // namespace gpu_sleep::agent::operations
