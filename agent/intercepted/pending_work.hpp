// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Waiting for the work in contexts without keeping captures from beginning meanwhile, and whether the GPU
// works.

#pragma once

#include "registry/registry.hpp"

namespace gpu_sleep::agent::intercepted {

/// An event of the context, without timing, which Contexts::give_event() takes back; null if none can be had.
/// May throw for want of memory.
[[nodiscard]] CUevent take_event(const driver::Api& api, CUcontext context);

/// The unfinished GPU work of some contexts, as of when it was noted. For one thread. The contexts must
/// outlive it.
class PendingWork {
public:
    /// How it is noted: at best; while captures may be open, by what breaks none; or by what nobody ever
    /// waits for, and only looks at.
    enum class Way : int { best, amid_captures, to_look };
    explicit PendingWork(const driver::Api& api, Way way = Way::best) noexcept : api_(api), way_(way) {}
    PendingWork& operator=(PendingWork&&) = delete;
    ~PendingWork();

    /// Notes the work of one more context; nothing for null. Would break a capture, so captures.order is
    /// held and none is open. Waits at once where nothing can be had to note it by; amid captures it returns
    /// false instead, and needs neither; to look it returns false, too. So it does of a context that does not
    /// stay until this ends, of which nothing can be kept.
    bool note(CUcontext context, bool stays = true) noexcept;
    /// Waits for all of it. Breaks no capture, so captures.order is not held. Returns what went wrong with
    /// the work, as the driver's own free does; CUDA_SUCCESS otherwise.
    CUresult wait() noexcept;
    /// Whether all of what was noted to look is done by now, and nothing went wrong with it. Breaks no
    /// capture.
    [[nodiscard]] bool is_done() noexcept;

private:
    struct Noted {
        CUcontext context = nullptr;
        CUevent done = nullptr;
        CUdeviceptr block = 0; ///< where there is no event
    };
    [[nodiscard]] std::span<Noted> noted() noexcept { return std::span(noted_).first(count_); }
    /// Whether an event was recorded. The context is current.
    [[nodiscard]] bool record(CUcontext context) noexcept;
    /// The same for drivers that cannot record a context, and amid captures: whether there is a block of the
    /// driver's own, whose free waits for all work of the context. That breaks no capture of a thread whose
    /// mode is relaxed, as cuCtxSynchronize does. Seen with driver 13.0; captures of the same context begin
    /// when it is over.
    [[nodiscard]] bool take_block(CUcontext context) noexcept;
    /// Gives it back. The capture mode is relaxed.
    void free_block(Noted& noted) noexcept;

    /// Keeps the first status by which work failed.
    void look_at(CUresult status) noexcept {
        if (failure_ == CUDA_SUCCESS && driver::ends_context(status)) failure_ = status;
    }

    const driver::Api& api_;
    Way way_;
    CUresult failure_ = CUDA_SUCCESS;
    /// Of more contexts than anybody has; further ones are waited for at once.
    std::array<Noted, 16> noted_{};
    std::size_t count_ = 0;
};

/// Notes all work on the device. The caller holds captures.order, with no capture open, and contexts.alive
/// until it has waited. Amid captures it needs neither of the first two. False as PendingWork::note().
bool note_work_on(const driver::Api& api, int device, PendingWork& work);

/// The contexts that the program made, and these. May throw for want of memory.
[[nodiscard]] std::vector<CUcontext> all_contexts(const std::vector<driver::PrimaryContext>& primary);

enum class RunningWork : std::uint8_t {
    none,    ///< all that was given to the GPU is done
    some,    ///< not all of it, or that could not be asked just now
    unknown, ///< the driver cannot be asked (before 12.5)
};

/// Whether the GPU has done all that the program gave it, in all contexts. Breaks no capture and keeps none
/// from beginning; waits for nobody, and for the GPU for some milliseconds at most. May throw for want of
/// memory. Source: CUDA Driver API, cuCtxRecordEvent.
[[nodiscard]] RunningWork find_running_work(const driver::Api& api);

} // namespace gpu_sleep::agent::intercepted
