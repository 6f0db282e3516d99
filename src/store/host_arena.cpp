// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reserving, populating and pinning host memory, and giving it back.

#include "store/host_arena.hpp"

#include "base/guard.hpp"
#include "base/log.hpp"
#include "base/quiet_thread.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

// The C library of older systems does not know it; the kernel has it since 5.14.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace gpu_sleep::store {
namespace {

constexpr Bytes k_huge_page_bytes = 2 * k_mib;

Bytes page_bytes() {
    static const auto bytes = static_cast<Bytes>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

/// Reserves `bytes`, whole pages, from the beginning of a huge page on. Returns null and sets errno on
/// failure. The mapping ends where the arena does: the kernel gives huge pages only within one mapping, so
/// the last 2 MiB come in small pages and not one byte is rounded up.
std::byte* reserve(Bytes bytes) {
    const auto longer = bytes + k_huge_page_bytes;
    void* const mapping =
        ::mmap(nullptr, longer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return nullptr;
    auto* const begin = static_cast<std::byte*>(mapping);
    const auto head =
        round_up(reinterpret_cast<Bytes>(mapping), k_huge_page_bytes) - reinterpret_cast<Bytes>(mapping);
    if (head > 0) ::munmap(begin, head);
    if (head + bytes < longer) ::munmap(begin + head + bytes, longer - head - bytes);
    return begin + head;
}

void unmap(std::byte* begin, std::byte* end) noexcept {
    if (begin != end) ::munmap(begin, static_cast<std::size_t>(end - begin));
}

/// Gives back the pages between the two; the addresses stay. Returns how much that was.
Bytes drop(std::byte* begin, std::byte* end) noexcept {
    const auto bytes = static_cast<Bytes>(end - begin);
    if (bytes == 0) return 0;
    if (::madvise(begin, bytes, MADV_DONTNEED) == 0) return bytes;
    // A program that locks all its memory (mlockall) has locked this, too.
    return ::munlock(begin, bytes) == 0 && ::madvise(begin, bytes, MADV_DONTNEED) == 0 ? bytes : 0;
}

/// `memory` begins on a page.
bool set_access(std::span<std::byte> memory, int access) noexcept {
    return ::mprotect(memory.data(), round_up(memory.size(), page_bytes()), access) == 0;
}

/// Gives `memory` pages by writing to each: for kernels that cannot do it at once.
void touch(std::span<std::byte> memory) {
    for (std::size_t at = 0; at < memory.size(); at += page_bytes())
        *const_cast<volatile std::byte*>(&memory[at]) = std::byte{0};
}

/// Gives `memory`, which was never written to, pages. Returns 0 or an errno: ENOMEM (none left), EFAULT (the
/// same, seen from within the fault), EHWPOISON (a broken one).
int populate(std::span<std::byte> memory) {
    constexpr int k_tries = 100; // each continues where the last was interrupted
    for (int i = 0; i < k_tries; ++i) {
        if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return 0;
        if (errno == EINVAL) {
            touch(memory);
            return 0;
        }
        if (errno != EINTR && errno != EAGAIN) return errno;
    }
    return errno;
}

} // namespace

HostArena::HostArena(Bytes bytes, Pinner* pinner, std::byte* data)
    : bytes_(bytes), pinner_(pinner), data_(data), pieces_((bytes + k_piece_bytes - 1) / k_piece_bytes) {
    for (std::size_t i = 0; i < piece_count(); ++i) pieces_[i].push_back({piece(i)});
}

Result<std::unique_ptr<HostArena>> HostArena::create(Bytes bytes, Pinner* pinner) {
    constexpr Bytes k_max_bytes = std::numeric_limits<Bytes>::max() / 2; // rounding up must not overflow
    if (bytes == 0) return make_error(ErrorCode::invalid_argument, "an arena of zero bytes");
    const auto whole = round_up(std::min(bytes, k_max_bytes), page_bytes());
    auto* const data = reserve(whole);
    if (data == nullptr)
        return errno_error(ErrorCode::out_of_host_memory, errno, "mmap",
                           fmt::format("cannot reserve {} of address space for contents (see ulimit -v)",
                                       format_bytes(bytes)));
    // Advice: it works without. Pinned pages would be copied for a child, and dumped into a core.
    ::madvise(data, whole, MADV_DONTFORK);
    ::madvise(data, whole, MADV_DONTDUMP);
    ::madvise(data, whole, MADV_HUGEPAGE);
    return std::unique_ptr<HostArena>(new HostArena(bytes, pinner, data));
}

HostArena::~HostArena() {
    // All pieces are unpinned before the first is returned: unmapping stops every thread of the program for a
    // moment, and this way it does so at the end only, not all along its first work after waking.
    while (unpin_next()) {
    }
    // If the driver still holds a part, whatever came to lie there would be taken for pinned: it must stay.
    Bytes stuck = 0;
    auto* at = data_;
    for (const auto& parts : pieces_) {
        for (const auto& part : parts) {
            if (!part.is_pinned) continue;
            unmap(at, part.memory.data());
            at = part.memory.data() + round_up(part.memory.size(), page_bytes());
            stuck += part.memory.size();
        }
    }
    unmap(at, data_ + round_up(bytes_, page_bytes()));
    if (stuck > 0)
        log::warning("{} of host memory could not be unpinned and stay in use", format_bytes(stuck));
}

bool HostArena::unpin_next() noexcept {
    while (unpinned_ < piece_count()) {
        bool was_pinned = false;
        for (auto& part : pieces_[unpinned_++]) {
            was_pinned |= part.is_pinned;
            unpin(part);
        }
        if (was_pinned) return true;
    }
    return false;
}

void HostArena::protect() noexcept {
    // What is out of reach does not count against a limit on data, and might not come within reach again.
    struct rlimit limit {};
    const bool is_limited = ::getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
    if (is_protected_ || is_limited) return;
    is_protected_ = set_access({data_, bytes_}, PROT_NONE);
}

Result<void> HostArena::unprotect() noexcept {
    if (!is_protected_) return {};
    if (!set_access({data_, bytes_}, PROT_READ | PROT_WRITE))
        return errno_error(ErrorCode::out_of_host_memory, errno, "mprotect", "cannot reach kept contents");
    is_protected_ = false;
    return {};
}

std::span<std::byte> HostArena::piece(std::size_t index) const noexcept {
    const auto offset = index * k_piece_bytes;
    return {data_ + offset, std::min(k_piece_bytes, bytes_ - offset)};
}

bool HostArena::is_pinned(std::size_t index) const noexcept {
    const auto& parts = pieces_[index];
    return std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.is_pinned; });
}

Result<void> HostArena::populate(std::size_t index) {
    const auto memory = piece(index);
    if (const int failure = store::populate(memory); failure != 0)
        return errno_error(ErrorCode::out_of_host_memory, failure, "madvise",
                           fmt::format("cannot have {} of host memory for contents", format_bytes(bytes_)));
    populated_bytes_ += memory.size();
    return {};
}

void HostArena::pin(Part& part) {
    if (pinner_ == nullptr) return;
    const auto pinned = guarded([&] { return pinner_->pin(part.memory); });
    part.is_pinned = pinned.has_value();
    if (!pinned && !has_complained_.exchange(true))
        log::info("copies will be slower: host memory could not be pinned: {}", pinned.error().message);
}

bool HostArena::unpin(Part& part) noexcept {
    if (part.is_pinned) part.is_pinned = !pinner_->unpin(part.memory);
    return !part.is_pinned;
}

std::vector<HostArena::Part> HostArena::rest_of(const Part& part,
                                                std::span<const std::span<const std::byte>> needed) {
    const auto begin = reinterpret_cast<Bytes>(part.memory.data());
    const auto offset_of = [=](const std::byte* at) {
        return std::clamp(reinterpret_cast<Bytes>(at), begin, begin + part.memory.size()) - begin;
    };
    std::vector<Part> rest;
    for (const auto& span : needed) {
        const auto first = offset_of(span.data()) / k_huge_page_bytes * k_huge_page_bytes;
        const auto last = offset_of(span.data() + span.size());
        if (offset_of(span.data()) == last) continue; // it lies elsewhere
        const auto end = std::min(round_up(last, k_huge_page_bytes), part.memory.size());
        auto* const data = part.memory.data() + first;
        if (!rest.empty() && rest.back().memory.data() + rest.back().memory.size() >= data)
            rest.back().memory = {rest.back().memory.data(), part.memory.data() + end};
        else
            rest.push_back({part.memory.subspan(first, end - first)});
    }
    return rest;
}

Bytes HostArena::drop_but(const Part& part, std::span<const Part> rest) noexcept {
    Bytes dropped = 0;
    auto* at = part.memory.data();
    for (const auto& kept : rest) {
        dropped += drop(at, kept.memory.data());
        at = kept.memory.data() + kept.memory.size();
    }
    dropped += drop(at, part.memory.data() + part.memory.size());
    populated_bytes_ -= dropped;
    return dropped;
}

Bytes HostArena::shrink(std::size_t index, std::span<const std::span<const std::byte>> needed) {
    auto& parts = pieces_[index];
    // What takes memory comes first: behind the first unpinning nothing may fail.
    std::vector<std::vector<Part>> rests;
    std::size_t most = 0;
    for (const auto& part : parts) {
        rests.push_back(rest_of(part, needed));
        most += std::max<std::size_t>(1, rests.back().size());
    }
    std::vector<Part> left;
    left.reserve(most);
    // What is out of reach cannot be pinned again.
    const bool pins_again =
        std::any_of(rests.begin(), rests.end(), [](const auto& rest) { return !rest.empty(); });
    const bool is_reached = is_protected_ && pins_again;
    if (is_reached && !set_access(piece(index), PROT_READ | PROT_WRITE)) return 0;
    Bytes dropped = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const bool is_whole =
            rests[i].size() == 1 && rests[i].front().memory.size() == parts[i].memory.size();
        if (is_whole || !unpin(parts[i])) {
            left.push_back(parts[i]);
            continue;
        }
        dropped += drop_but(parts[i], rests[i]);
        for (auto& part : rests[i]) pin(left.emplace_back(part));
    }
    parts = std::move(left);
    if (is_reached) static_cast<void>(set_access(piece(index), PROT_NONE));
    return dropped;
}

ArenaPreparer::ArenaPreparer(std::vector<HostArena*> arenas, Options options)
    : most_threads_(options.threads), steps_(options.steps), claims_(std::move(options)),
      arenas_(std::move(arenas)) {
    for (auto* arena : arenas_) {
        first_task_.emplace(arena, tasks_.size());
        for (std::size_t i = 0; i < arena->piece_count(); ++i) tasks_.push_back({arena, i});
    }
    ready_.resize(tasks_.size());
}

Result<std::unique_ptr<ArenaPreparer>> ArenaPreparer::start(std::vector<HostArena*> arenas, Options options) {
    std::unique_ptr<ArenaPreparer> preparer(new ArenaPreparer(std::move(arenas), std::move(options)));
    const auto allowed = std::min(preparer->most_threads_, std::thread::hardware_concurrency());
    const auto most = std::min<std::size_t>(std::max(1U, allowed), preparer->tasks_.size());
    preparer->threads_.reserve(most); // a thread that is started has a place
    for (std::size_t i = 0; i < most; ++i) {
        auto thread = start_quiet_thread("gpu-sleep-fill", [raw = preparer.get()] { raw->work(); });
        if (!thread && preparer->threads_.empty()) return std::move(thread).error();
        if (!thread) break; // fewer do the same work
        preparer->threads_.push_back(*std::move(thread));
    }
    return preparer;
}

ArenaPreparer::~ArenaPreparer() {
    cancel();
    for (auto& thread : threads_) thread.join();
}

void ArenaPreparer::cancel() noexcept {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
}

void ArenaPreparer::work() {
    while (!stopped_) {
        const auto index = next_++;
        if (index >= tasks_.size()) return;
        finish(index, guarded([&] { return fill(tasks_[index]); }));
    }
}

Result<void> ArenaPreparer::fill(const Task& task) {
    {
        const auto claim = claims_.make(
            task.arena->piece(task.piece).size(), [this] { return missing(); },
            [this](Milliseconds time) { return pause(time); });
        if (!claim) return claim.error();
        const model::StepClock::Timed timed(steps_, model::Step::populate);
        GPU_SLEEP_TRY(task.arena->populate(task.piece));
    }
    const model::StepClock::Timed timed(steps_, model::Step::pin);
    task.arena->pin(task.arena->pieces_[task.piece].front());
    return {};
}

bool ArenaPreparer::pause(Milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return stopped_.load(); });
}

std::string ArenaPreparer::missing() const {
    Bytes bytes = 0;
    for (const auto* arena : arenas_) bytes += arena->bytes() - arena->populated_bytes();
    return format_bytes(bytes);
}

void ArenaPreparer::finish(std::size_t task, Result<void> result) {
    {
        const std::lock_guard lock(mutex_);
        if (result) {
            ready_[task] = true;
        } else {
            if (!failure_) failure_ = std::move(result).error();
            stopped_ = true;
        }
    }
    changed_.notify_all();
}

Result<void> ArenaPreparer::wait(const HostArena& arena, std::size_t piece,
                                 const std::function<Result<void>()>& listen) {
    constexpr Milliseconds k_between{100};
    const auto first = first_task_.find(&arena);
    if (first == first_task_.end() || piece >= arena.piece_count())
        return make_error(ErrorCode::internal, "waiting for host memory that nobody prepares");
    const auto task = first->second + piece;
    const model::StepClock::Timed timed(steps_, model::Step::await_host);
    std::unique_lock lock(mutex_);
    const auto is_over = [&] { return ready_[task] || stopped_; };
    while (listen && !changed_.wait_for(lock, k_between, is_over)) {
        lock.unlock();
        GPU_SLEEP_TRY(listen());
        lock.lock();
    }
    changed_.wait(lock, is_over);
    if (ready_[task]) return {};
    if (failure_) return *failure_;
    return make_error(ErrorCode::cancelled, "host memory is no longer needed");
}

} // namespace gpu_sleep::store
