// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Failures, delays, corruption, counts and the trace.

#include "support/simulated_driver/faults.hpp"

#include "base/fd.hpp"
#include "support/simulated_driver/settings.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

namespace gpu_sleep::sim {
namespace {

constexpr std::string_view k_until = "until=";
constexpr auto k_entries = static_cast<std::size_t>(Entry::count);

bool matches(Entry entry, const std::string& name) {
    return name == "*" ? entry_point(entry).trait != Trait::early : name == entry_point(entry).name;
}

std::chrono::microseconds parse_time(const std::string& text) {
    std::uint64_t number = 0;
    const auto [unit, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{}) return {};
    const std::string name(unit, text.data() + text.size());
    const std::uint64_t factor = name == "us" ? 1 : name == "s" ? 1'000'000 : 1000;
    return std::chrono::microseconds(number * factor);
}

/// Counts down those of `items` that name `entry`; whether one of them reached its turn. Spent ones, of
/// which `due` is true, are taken out.
template <class Item, class Due>
bool count_down(std::vector<Item>& items, Entry entry, Due due) {
    bool reached = false;
    for (auto it = items.begin(); it != items.end();) {
        if (!matches(entry, it->name) || (it->remaining > 1 && --it->remaining > 0)) {
            ++it;
            continue;
        }
        reached = true;
        it = due(*it) ? items.erase(it) : std::next(it);
    }
    return reached;
}

} // namespace

int thread_id() noexcept {
    static thread_local const int id = static_cast<int>(::syscall(SYS_gettid));
    return id;
}

Faults& Faults::instance() {
    static Faults& faults = *new Faults;
    return faults;
}

Faults::Faults() {
    for (const auto& item : split(environment("GPU_SLEEP_SIM_FAIL"), ',')) {
        const auto parts = split(item, ':');
        if (parts.size() < 3) continue;
        const unsigned flags = parts.size() > 3 && parts[3] == "forever" ? SIM_FOREVER : SIM_ONCE;
        fail(parts[0], std::strtoull(parts[1].c_str(), nullptr, 10),
             static_cast<CUresult>(std::atoi(parts[2].c_str())), flags);
    }
    for (const auto& item : split(environment("GPU_SLEEP_SIM_DELAY"), ',')) {
        const auto parts = split(item, ':');
        if (parts.size() != 2) continue;
        if (parts[1].starts_with(k_until))
            awaited_files_.emplace_back(parts[0], parts[1].substr(k_until.size()));
        else
            delay(parts[0], parse_time(parts[1]));
    }
}

void Faults::fail(const std::string& name, std::uint64_t nth, CUresult status, unsigned flags) {
    const std::lock_guard lock(mutex_);
    failures_.push_back({name, std::max<std::uint64_t>(nth, 1), status, flags});
    any_failures_ = true;
}

void Faults::delay(const std::string& name, std::chrono::microseconds time) {
    for (std::size_t i = 0; i < k_entries; ++i)
        if (matches(static_cast<Entry>(i), name)) delays_us_[i] = time.count();
}

void Faults::await_file(Entry entry, const std::atomic<bool>& cancelled) const {
    constexpr std::chrono::milliseconds k_look{2};
    constexpr int k_looks = 30'000;
    for (const auto& [name, file] : awaited_files_)
        for (int i = 0; matches(entry, name) && !cancelled && i < k_looks; ++i) {
            if (::access(file.c_str(), F_OK) == 0) break;
            std::this_thread::sleep_for(k_look);
        }
}

void Faults::corrupt_copy(const std::string& name, std::uint64_t nth) {
    const std::lock_guard lock(mutex_);
    corruptions_.push_back({name, std::max<std::uint64_t>(nth, 1)});
    any_corruptions_ = true;
}

void Faults::clear() {
    const std::lock_guard lock(mutex_);
    failures_.clear();
    corruptions_.clear();
    any_failures_ = false;
    any_corruptions_ = false;
    for (auto& time : delays_us_) time = 0;
}

CUresult Faults::next_failure(Entry entry) {
    if (!any_failures_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
    const std::lock_guard lock(mutex_);
    CUresult status = CUDA_SUCCESS;
    bool counts = false;
    const auto due = [&](const Failure& failure) {
        status = failure.status;
        counts |= (failure.flags & SIM_UNCOUNTED) == 0;
        return (failure.flags & SIM_FOREVER) == 0;
    };
    if (count_down(failures_, entry, due) && counts) {
        ++Counts::instance().injected_failures;
        Counts::instance().last_failed = entry_point(entry).name;
    }
    return status;
}

std::chrono::microseconds Faults::delay_of(Entry entry) const noexcept {
    return std::chrono::microseconds(
        delays_us_[static_cast<std::size_t>(entry)].load(std::memory_order_relaxed));
}

bool Faults::next_corruption(Entry entry) {
    if (!any_corruptions_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    return count_down(corruptions_, entry, [](const Corruption&) { return true; });
}

Counts& Counts::instance() {
    static Counts& counts = *new Counts;
    return counts;
}

std::uint64_t Counts::calls_of(const std::string& name) const {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < k_entries; ++i)
        if (name == "*" || name == entry_points()[i].name) sum += calls[i];
    return sum;
}

sim_faults Counts::faults() const noexcept {
    return {illegal_accesses, broken_captures, corrupted_copies, injected_failures};
}

void Counts::reset() noexcept {
    for (auto& count : calls) count = 0;
    for (auto* count :
         {&nanoseconds_inside, &illegal_accesses, &broken_captures, &corrupted_copies, &injected_failures})
        *count = 0;
    last_failed = "";
}

CUresult illegal_access() {
    ++Counts::instance().illegal_accesses;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

void trace_call(Entry entry, CUresult status, std::chrono::nanoseconds time) {
    static const int file = [] {
        const auto name = environment("GPU_SLEEP_SIM_TRACE");
        return name.empty() ? -1 : ::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }();
    if (file < 0) return;
    std::array<char, 160> line{};
    const auto length =
        std::snprintf(line.data(), line.size(), "%d %s %d %lld\n", thread_id(), entry_point(entry).symbol,
                      static_cast<int>(status), static_cast<long long>(time.count()));
    // One write: lines of threads and processes do not mix. A trace that cannot be written has nobody to
    // tell.
    [[maybe_unused]] const auto written = ::write(file, line.data(), static_cast<std::size_t>(length));
}

} // namespace gpu_sleep::sim
