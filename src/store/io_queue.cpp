// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The two queues, and which of them to use.

#include "store/io_queue.hpp"

#include "base/guard.hpp"
#include "base/threads.hpp"

#include <poll.h>

#ifdef GPU_SLEEP_HAVE_LIBURING
#include <liburing.h>
#endif

namespace gpu_sleep::store {
namespace {

/// The error of a read or write that returned `moved`, or -errno; nothing if it may go on.
Result<void> check(IoRequest::Kind kind, long moved) {
    const bool writes = kind == IoRequest::Kind::write;
    if (moved > 0) return {};
    if (moved == 0 && !writes)
        return make_error(ErrorCode::damaged, "the snapshot is truncated: it ends before its contents do");
    const auto number = moved == 0 ? ENOSPC : static_cast<int>(-moved);
    if (writes && number == EFBIG)
        return Error{ErrorCode::out_of_disk,
                     "cannot write the snapshot: the file would be too long (RLIMIT_FSIZE)",
                     {},
                     EFBIG};
    if (writes && (number == ENOSPC || number == EDQUOT))
        return errno_error(ErrorCode::out_of_disk, number, "write", "cannot write the snapshot");
    return errno_error(ErrorCode::io_failed, number, writes ? "write" : "read",
                       writes ? "cannot write the snapshot" : "cannot read the snapshot");
}

/// Whether `fd` means that file; see IoRequest::file.
bool is_held(int fd, const FileIdentity& file) noexcept {
    const auto now = FileIdentity::of(fd);
    return file == FileIdentity() || (now ? now == file : errno != EBADF);
}

/// Has what follows go through the page cache: some file systems take O_DIRECT and refuse what comes then,
/// and all refuse the odd rest of what was moved in part.
void go_through_page_cache(int fd) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0) static_cast<void>(::fcntl(fd, F_SETFL, flags & ~O_DIRECT));
}

/// What `request` comes to at once, on this thread.
Result<void> move_now(const IoRequest& request) noexcept {
    return guarded([&] { return move_bytes(request); });
}

class ThreadQueue final : public IoQueue {
public:
    static Result<std::unique_ptr<IoQueue>> open(unsigned threads) {
        auto workers = GPU_SLEEP_TRY(ThreadPool::start("gpu-sleep-file", threads));
        return std::unique_ptr<IoQueue>(new ThreadQueue(std::move(workers)));
    }
    void submit(IoRequest request) override {
        workers_->post([request = std::move(request)](std::size_t) { request.done(move_now(request)); });
    }

private:
    explicit ThreadQueue(std::unique_ptr<ThreadPool> workers) : workers_(std::move(workers)) {}

    std::unique_ptr<ThreadPool> workers_;
};

#ifdef GPU_SLEEP_HAVE_LIBURING

class UringQueue final : public IoQueue {
public:
    /// Errors: io_failed (the kernel has no io_uring, or does not permit it), out_of_host_memory.
    static Result<std::unique_ptr<IoQueue>> open() {
        std::unique_ptr<UringQueue> queue(new UringQueue());
        int status = 0;
        queue->file_ = HeldFile::marked(opened([&] {
            status = ::io_uring_queue_init(k_depth, &queue->ring_, 0);
            return status < 0 ? -1 : queue->ring_.ring_fd;
        }));
        if (status < 0)
            return errno_error(ErrorCode::io_failed, -status, "io_uring_queue_init", "no io_uring");
        static_cast<void>(s_handed_over.load(std::memory_order_acquire));
        queue->is_open_ = true;
        if (queue->file_.get() != queue->ring_.ring_fd) // the library does not know where that was moved
            return make_error(ErrorCode::io_failed, "the program has just closed its standard streams");
        auto thread =
            GPU_SLEEP_TRY(start_quiet_thread("gpu-sleep-file", [raw = queue.get()] { raw->reap(); }));
        queue->reaper_ = std::move(thread);
        return std::unique_ptr<IoQueue>(std::move(queue));
    }
    ~UringQueue() override {
        if (reaper_.joinable()) {
            ends_ = true;
            while (!has_ended_ && !enqueue(nullptr)) std::this_thread::yield();
            reaper_.join();
        }
        s_handed_over.fetch_add(1, std::memory_order_release); // whoever gets the pages next
        ring_.ring_fd = -1; // which the library would close, though it may be the program's: file_ knows
        if (is_open_) ::io_uring_queue_exit(&ring_);
    }

    void submit(IoRequest request) override { pass_on(std::make_unique<IoRequest>(std::move(request))); }

private:
    UringQueue() = default;

    void pass_on(std::unique_ptr<IoRequest> request) noexcept {
        if (is_held(request->fd, request->file) && enqueue(request.get()))
            static_cast<void>(request.release()); // the reaper's now
        else
            request->done(move_now(*request));
    }

    /// Null asks the reaper to end. False if the kernel does not take it.
    bool enqueue(IoRequest* request) noexcept {
        constexpr int k_tries = 1000; // the kernel may lack memory, or wait for the reaper
        const std::lock_guard lock(mutex_);
        auto* entry = ::io_uring_get_sqe(&ring_);
        if (entry == nullptr) { // full of what the kernel did not take
            static_cast<void>(::io_uring_submit(&ring_));
            entry = ::io_uring_get_sqe(&ring_);
        }
        if (entry == nullptr) return false;
        if (request == nullptr)
            ::io_uring_prep_nop(entry);
        else if (request->kind == IoRequest::Kind::write)
            ::io_uring_prep_write(entry, request->fd, request->data, static_cast<unsigned>(request->bytes),
                                  request->offset);
        else
            ::io_uring_prep_read(entry, request->fd, request->data, static_cast<unsigned>(request->bytes),
                                 request->offset);
        ::io_uring_sqe_set_data(entry, request);
        s_handed_over.fetch_add(1, std::memory_order_release);
        for (int i = 0; i < k_tries; ++i) {
            const int status = ::io_uring_submit(&ring_);
            if (::io_uring_sq_ready(&ring_) == 0) return true; // the kernel takes them in order
            if (status == -EAGAIN || status == -EBUSY)
                std::this_thread::yield();
            else if (status < 0 && status != -EINTR)
                break;
        }
        // It stays in the ring, where the kernel may find it later: by then it asks for nothing.
        ::io_uring_prep_nop(entry);
        ::io_uring_sqe_set_data(entry, &s_nothing);
        return false;
    }

    void reap() {
        constexpr int k_look_ms = 100;
        for (;;) {
            io_uring_cqe* completion = nullptr;
            if (::io_uring_peek_cqe(&ring_, &completion) != 0) {
                if (ends_) break;
                // Not without a limit: where the program has closed the ring's number, what was submitted
                // completes all the same, but nothing can be submitted any more that would end a wait.
                pollfd polled{ring_.ring_fd, POLLIN, 0};
                if (::poll(&polled, 1, k_look_ms) != 0 && !file_.is_held())
                    std::this_thread::sleep_for(Milliseconds(1));
                continue;
            }
            static_cast<void>(s_handed_over.load(std::memory_order_acquire));
            auto* const data = ::io_uring_cqe_get_data(completion);
            const auto moved = completion->res;
            ::io_uring_cqe_seen(&ring_, completion);
            if (data == nullptr) break;
            if (data != &s_nothing) advance(std::unique_ptr<IoRequest>(static_cast<IoRequest*>(data)), moved);
        }
        has_ended_ = true;
    }

    void advance(std::unique_ptr<IoRequest> request, int moved) noexcept {
        if (moved == -EINTR || moved == -EAGAIN) return pass_on(std::move(request));
        if (moved == -EINVAL) return request->done(move_now(*request));
        auto checked = guarded([&] { return check(request->kind, moved); });
        if (!checked || static_cast<std::size_t>(moved) == request->bytes)
            return request->done(std::move(checked));
        request->data += moved;
        request->bytes -= static_cast<std::size_t>(moved);
        request->offset += static_cast<Bytes>(moved);
        pass_on(std::move(request));
    }

    inline static char s_nothing = 0; ///< stands for no request

    io_uring ring_{};
    HeldFile file_; ///< the ring's
    bool is_open_ = false;
    std::mutex mutex_; ///< guards the ring's submissions; completions are the reaper's
    std::thread reaper_;
    std::atomic<bool> ends_{false};      ///< there is nothing more to reap
    std::atomic<bool> has_ended_{false}; ///< the reaper
    /// Requests that went to the kernel, of all queues. They come back through it to another thread, and the
    /// pages of a queue that is gone may be the next one's, of which the language's memory model knows
    /// nothing: this says so.
    inline static std::atomic<std::uint64_t> s_handed_over{0};
};

#endif

} // namespace

Result<void> move_bytes(IoRequest request) {
    auto& [kind, fd, data, bytes, offset, done, file] = request;
    bool was_refused = false;
    while (bytes > 0) {
        if (!is_held(fd, file))
            return make_error(ErrorCode::io_failed, "the program has closed the snapshot's file");
        const auto at = static_cast<off_t>(offset);
        const auto moved =
            kind == IoRequest::Kind::write ? ::pwrite(fd, data, bytes, at) : ::pread(fd, data, bytes, at);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0 && errno == EINVAL && !std::exchange(was_refused, true)) {
            go_through_page_cache(fd);
            continue;
        }
        GPU_SLEEP_TRY(check(kind, moved < 0 ? -errno : moved));
        data += moved;
        bytes -= static_cast<std::size_t>(moved);
        offset += static_cast<Bytes>(moved);
    }
    return {};
}

Result<std::unique_ptr<IoQueue>> open_io_queue(IoKind kind, IoUse use) {
#ifdef GPU_SLEEP_HAVE_LIBURING
    if (kind == IoKind::automatic && use == IoUse::direct && !has_call_filter())
        if (auto queue = UringQueue::open()) return queue;
#else
    static_cast<void>(kind);
#endif
    constexpr unsigned k_threads = 8;
    return ThreadQueue::open(use == IoUse::cached_writes ? 1 : k_threads);
}

} // namespace gpu_sleep::store
