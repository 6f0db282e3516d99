// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What follows a sleep and comes before a wake where the driver takes the rest of the process from the GPUs:
// its context, its modules, and memory that the agent does not own. The driver locks and checkpoints no
// process that asks for it itself. So the command that asked for the sleep does that, and a process outside
// where the program itself asked; the way back is the agent's own. And what only a deep sleep changes of the
// process's devices.

#pragma once

#include "checkpoint/room.hpp"
#include "checkpoint/steps.hpp"
#include "client/room_plan.hpp"
#include "common/lock_order.hpp"
#include "driver/checkpoint.hpp"
#include "gate/gate.hpp"
#include "model/model.hpp"
#include "model/unseen_libraries.hpp"
#include "outside/outside.hpp"
#include "program_memory/program_memory.hpp"
#include "server/request_queue.hpp"

namespace gpu_sleep::agent::operations {

using outside::Outside;
using outside::OutsideGpu;
using outside::OutsideLooks;

/// The names and UUIDs of the process's GPUs, asked of the driver once until forget(): a deep sleep may end
/// on other GPUs. Thread-safe.
class KnownDevices {
public:
    struct Device {
        std::string name;           ///< empty where the driver could not be asked
        std::string uuid;           ///< likewise
        bool is_part = false;       ///< of a GPU (MIG)
        bool is_mps_client = false; ///< this process, there
    };

    explicit KnownDevices(const ProgramMemory& memory) noexcept : memory_(memory) {}

    [[nodiscard]] Device find(int device);
    /// The devices may be other GPUs from now on.
    void forget() noexcept {
        const MutexLock lock(mutex_);
        devices_.clear();
    }

private:
    const ProgramMemory& memory_;
    Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost);
    std::map<int, Device> devices_ GPU_SLEEP_GUARDED_BY(mutex_);
};

/// The driver's checkpoint of this process. One operation at a time uses it; is_deep() is thread-safe,
/// and describe(). How the process stands is asked of the driver wherever it may have changed: what others
/// did to it meanwhile is no surprise.
class DeepSleep {
public:
    /// The driver's checkpoint calls, and the process outside that makes those that this one cannot.
    struct Means {
        Result<driver::Checkpoint> checkpoint;
        Result<Outside> outside;
    };

    DeepSleep(ProgramMemory& memory, KnownDevices& devices) noexcept
        : memory_(memory), known_devices_(devices) {}

    /// Takes the loader's lock.
    [[nodiscard]] static Means find_means() { return {driver::Checkpoint::load(), Outside::open()}; }
    /// Before all else: later a thread that the gate holds may have the loader's lock, in a library's
    /// constructor. Only the first time counts.
    void set_means(Means means) {
        if (!means_) means_ = std::move(means);
    }

    /// Whether nothing of the process is on a GPU, as far as the agent knows.
    [[nodiscard]] static bool is_deep() noexcept { return gate::Gate::deep_stage() == gate::DeepStage::deep; }
    /// How often it has come back so far. Thread-safe.
    [[nodiscard]] unsigned times_back() const noexcept { return times_back_; }
    /// Whether it has been since the last sleep, as after-wake callbacks are told.
    [[nodiscard]] bool was_deep() const noexcept { return was_deep_; }
    /// It has fallen asleep, and is not deep yet.
    void note_sleep() noexcept { was_deep_ = false; }
    /// Writes whether it is, what that has freed, and of devices what cannot be asked meanwhile; or else why
    /// check() would refuse, as far as that is known without asking outside. `report` lists devices, tags and
    /// residual memory already. Thread-safe.
    void describe(model::Report& report) const;

    /// Before anything else of a request that asks for it. Errors: driver_failed (what the gate and the
    /// driver cannot hold together, in words).
    [[nodiscard]] Result<void> check(bool is_joint);
    /// After the process has fallen asleep, without its mutex: holds all calls of the program back, keeps the
    /// agent from the driver, tells `asker` (Progress::Phase::deep), and waits until that has locked and
    /// checkpointed this process, or not, and shut its side. Afterwards it is deep, or asleep as before.
    /// `is_own`: no command asked, so a process outside locks it by `deadline`, and checkpoints it, while
    /// `asker` goes on. Errors: driver_failed (a call of the driver did not return, its context has failed,
    /// or, if it `is_own`, it is asleep, but not deeply), context_lost (the driver failed with it).
    [[nodiscard]] Result<void> begin(const server::ProgressSink& asker, Clock::time_point deadline,
                                     bool is_own);
    /// The request that check() was for has ended. Who is deep, or may be, goes on looking by the same
    /// process: another might find no library where the program has changed its root, and no descriptor.
    void end_looks() noexcept {
        if (gate::Gate::deep_stage() < gate::DeepStage::away) looks_.reset();
    }
    /// Whether others have locked this process for whom it has left the driver (ProgramMemory::begin_lock());
    /// if they have no more, and nothing sleeps, the agent may call the driver again.
    [[nodiscard]] bool is_locked();
    /// Waits until `asker` has had the driver lock this process, and checkpoint it where it goes deep, and
    /// has shut its side. `is_own`: no command asked, so a process outside does that by `deadline`.
    [[nodiscard]] Result<void> await_driver(const server::ProgressSink& asker, Clock::time_point deadline,
                                            bool is_own);
    /// Asks the driver whether it still is deep, and returns that: a command that was killed, or another
    /// tool, may have changed it. If it is not, the agent may call the driver again. Errors: context_lost.
    [[nodiscard]] Result<bool> look();
    /// The GPUs that it comes back to by `request`, by their UUIDs.
    [[nodiscard]] std::vector<std::string> gpus(const model::WakeRequest& request) const {
        std::vector<std::string> uuids;
        const MutexLock lock(mutex_);
        for (const auto& [device, known] : devices_) uuids.push_back(place_of(known.uuid, request.gpus));
        return uuids;
    }
    /// What it needs of each of them to come back and to wake. Errors: out_of_device_memory (that is not free
    /// besides what others have set aside), driver_failed, context_lost (the driver has lost the process).
    [[nodiscard]] Result<client::BytesByGpu> find_room(const model::WakeRequest& request,
                                                       const client::BytesByGpu& of_others);
    /// It is deep: brings back what the driver has taken, before a wake by `request`. The caller has set the
    /// room for both aside, which find_room() says. Errors: driver_failed, invalid_argument (the driver does
    /// not restore it on these GPUs: deep as before); context_lost (the driver's restore has lost the
    /// process).
    [[nodiscard]] Result<void> end(const model::WakeRequest& request);
    /// Whether end() has restored it on `gpus` since the last deep sleep: the same request, tried again, goes
    /// on from there.
    [[nodiscard]] bool has_moved(const std::vector<GpuPair>& gpus) const { return gpus == moved_; }
    /// While deep: what a wake by `request` takes of each device, with what is free there. Errors:
    /// driver_failed, context_lost (the driver has lost the process).
    [[nodiscard]] Result<std::vector<model::DeviceReport>> needs(const model::WakeRequest& request);

private:
    /// The facts of the process that decide whether the driver can checkpoint it.
    struct Uses {
        std::set<std::pair<std::string_view, std::string_view>> memory; ///< that stays: its kind, and why
        std::set<int> devices;
        std::vector<model::UnseenUse> unseen;
    };
    struct Device {
        std::string name;
        std::string uuid;
        Bytes free = 0; ///< before the checkpoint
        checkpoint::Rest rest;
    };

    [[nodiscard]] checkpoint::Steps engine() const {
        return {*means_->checkpoint, ::getpid(), checkpoint::Kept::by_agent};
    }
    /// Why a process with these is refused; empty: it is not, as far as is known. Thread-safe.
    [[nodiscard]] std::string why_not(const Uses& uses) const;
    [[nodiscard]] Result<Uses> uses() const;
    /// Errors: driver_failed (nobody outside can be asked, or one is not known there).
    [[nodiscard]] Result<void> note_devices(const std::set<int>& used);
    [[nodiscard]] std::map<int, Device> devices() const {
        const MutexLock lock(mutex_);
        return devices_;
    }
    void set_devices(std::map<int, Device> devices) noexcept {
        const MutexLock lock(mutex_);
        devices_.swap(devices);
    }
    /// Once no call of the program passes the gate: whether what check() found still holds; devices that are
    /// new since then are noted. Errors: driver_failed.
    [[nodiscard]] Result<void> check_again();
    /// Then, too: has the work that is left be done, and notes that it is.
    /// Errors: context_lost (a context has failed), and others of driver::drain().
    [[nodiscard]] Result<void> drain(Clock::time_point deadline, const std::function<bool()>& keep_going);
    /// After the asker has done what it could.
    [[nodiscard]] Result<void> take_stock();
    /// As look(), of one that was found so.
    [[nodiscard]] Result<bool> settle(checkpoint::State found);
    /// Returns the error, by which the driver may have lost the process: then it is noted.
    [[nodiscard]] Error noting_loss(Error error);
    void come_back() noexcept;

    ProgramMemory& memory_;
    KnownDevices& known_devices_;
    std::optional<Means> means_;
    std::optional<OutsideLooks> looks_; ///< from check() until end_looks(), and while it is deep
    mutable Mutex mutex_ GPU_SLEEP_ACQUIRED_AFTER(lock_order::innermost); ///< held for moments only
    /// That the process uses.
    std::map<int, Device> devices_ GPU_SLEEP_GUARDED_BY(mutex_);
    /// Why not, as the last check found by what reports do not look at.
    std::string found_ GPU_SLEEP_GUARDED_BY(mutex_);
    std::optional<Error> lost_ GPU_SLEEP_GUARDED_BY(mutex_); ///< by the driver
    std::vector<GpuPair> moved_;                             ///< see has_moved()
    std::atomic<bool> was_deep_{false};
    std::atomic<unsigned> times_back_{0};
};

} // namespace gpu_sleep::agent::operations
