// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Threads that give pages to pieces, and pin them.

#include "store/arena_preparer.hpp"

#include "base/guard.hpp"

namespace gpu_sleep::store {

ArenaPreparer::ArenaPreparer(std::vector<HostArena*> arenas, Options options)
    : options_(options), arenas_(std::move(arenas)) {
    for (auto* arena : arenas_)
        for (std::size_t i = 0; i < arena->piece_count(); ++i)
            if (!arena->is_ready(i)) tasks_.push_back({arena, i});
}

Result<std::unique_ptr<ArenaPreparer>> ArenaPreparer::start(std::vector<HostArena*> arenas, Options options) {
    std::unique_ptr<ArenaPreparer> preparer(new ArenaPreparer(std::move(arenas), options));
    const auto allowed = std::max(1U, std::min(options.threads, std::thread::hardware_concurrency()));
    const auto useful = std::min<std::size_t>(allowed, preparer->tasks_.size());
    preparer->pool_ = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-fill", static_cast<unsigned>(useful)));
    for (std::size_t i = 0; i < preparer->pool_->count(); ++i)
        preparer->pool_->post([raw = preparer.get()](std::size_t) { raw->work(); });
    return preparer;
}

void ArenaPreparer::cancel() noexcept {
    {
        const MutexLock lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
}

void ArenaPreparer::work() {
    std::optional<HostClaim> claim;
    while (!stopped_) {
        const auto index = next_++;
        if (index >= tasks_.size()) return;
        finish(tasks_[index], guarded([&] { return fill(tasks_[index], claim); }));
    }
}

Result<void> ArenaPreparer::fill(const Task& task, std::optional<HostClaim>& claim) {
    constexpr Bytes k_ahead = 7 * HostArena::k_piece_bytes;
    const auto memory = task.arena->piece(task.piece);
    const auto bytes = memory.size();
    if (!claim || claim->bytes() < bytes) {
        claim.reset();
        const auto look = [this]() -> Result<void> {
            const MutexLock lock(mutex_);
            return stopped_ ? ended() : Result<void>();
        };
        auto made = GPU_SLEEP_TRY(options_.budget->claim(
            bytes, options_, [this] { return missing(); }, look, k_ahead));
        claim.emplace(std::move(made));
    }
    {
        const model::StepClock::Timed timed(options_.steps, model::Step::populate);
        GPU_SLEEP_TRY(task.arena->give_pages(memory, true));
    }
    claim->note_taken(bytes);
    if (claim->bytes() == 0) claim.reset(); // it may be somebody else's turn
    const model::StepClock::Timed timed(options_.steps, model::Step::pin);
    task.arena->pin(task.piece);
    return {};
}

Error ArenaPreparer::ended() const {
    return failure_ ? *failure_ : make_error(ErrorCode::cancelled, "host memory is no longer needed");
}

std::string ArenaPreparer::missing() {
    const MutexLock lock(mutex_);
    return format_bytes(sum_of(tasks_, [](const Task& task) {
        return task.arena->is_ready(task.piece) ? 0 : task.arena->piece(task.piece).size();
    }));
}

void ArenaPreparer::finish(const Task& task, Result<void> result) {
    {
        const MutexLock lock(mutex_);
        if (result) {
            task.arena->pieces_[task.piece].is_ready = true;
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
    if (std::ranges::find(arenas_, &arena) == arenas_.end() || piece >= arena.piece_count())
        return make_error(ErrorCode::internal, "waiting for host memory that nobody prepares");
    const model::StepClock::Timed timed(options_.steps, model::Step::await_host);
    MutexLock lock(mutex_);
    const auto is_over = [&] { return arena.is_ready(piece) || stopped_; };
    while (!changed_.wait_for(mutex_, k_between, is_over)) {
        lock.unlock();
        GPU_SLEEP_TRY(listen());
        lock.lock();
    }
    return arena.is_ready(piece) ? Result<void>() : ended();
}

} // namespace gpu_sleep::store
