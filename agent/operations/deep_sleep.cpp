// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Going deep, and coming back.

#include "operations/deep_sleep.hpp"

#include "common/interception.hpp"
#include "intercepted/memory.hpp"
#include "intercepted/objects.hpp"
#include "intercepted/pending_work.hpp"
#include "operations/joint.hpp"
#include "registry/registry.hpp"
#include "sleep/per_device.hpp"
#include "unseen/unseen.hpp"

namespace gpu_sleep::agent::operations {

namespace {

Error refusal(std::string_view why) {
    return make_error(ErrorCode::driver_failed, "it cannot sleep deeply: {}", why);
}

constexpr const char* k_shares_memory = "it shares memory with other processes, which the driver cannot "
                                        "bring back; if NCCL shares it, start all "
                                        "ranks with NCCL_P2P_DISABLE=1 and NCCL_CUMEM_HOST_ENABLE=0";

constexpr const char* k_shares_by_ipc = "it shares memory with other processes: put all of them to sleep "
                                        "together, with --tree or --group; if its owner has ended, close it "
                                        "in the others, or end them";

constexpr const char* k_comes_from_outside = "it has used memory or semaphores from outside CUDA, which the "
                                             "driver may be unable to restore";

/// Memory of these kinds, or that stays for these reasons, keeps the driver from a checkpoint of its process.
constexpr std::pair<std::string_view, const char*> k_against_memory[] = {
    {intercepted::k_ipc, k_shares_by_ipc},
    {intercepted::k_shared, k_shares_by_ipc},
    {"managed", "it has managed memory, which the driver cannot checkpoint"},
    {intercepted::k_in_multicast_group,
     "it has multicast memory, which the driver cannot checkpoint; if it is NCCL's, start the program with "
     "NCCL_NVLS_ENABLE=0"},
    {intercepted::k_of_another_process, k_shares_memory},
    {intercepted::k_exported, k_shares_memory},
    {intercepted::k_shared_by_ipc, k_shares_memory},
    {model::k_residual_of_host,
     "it uses host memory that must stay there, and the driver may be unable to restore it"},
};

/// So do these objects, which other processes share.
constexpr std::pair<intercepted::Object, const char*> k_against_objects[] = {
    {intercepted::Object::shared_pool, k_shares_memory},
    {intercepted::Object::shared_memory, k_shares_memory},
    {intercepted::Object::external_memory, k_comes_from_outside},
    {intercepted::Object::external_semaphore, k_comes_from_outside},
};

const OutsideGpu* find(const std::vector<OutsideGpu>& gpus, const std::string& uuid) {
    const auto found = std::ranges::find_if(gpus, [&](const auto& gpu) { return gpu.uuid == uuid; });
    return found == gpus.end() ? nullptr : &*found;
}

/// The error of a step after the sleep itself, which has succeeded: so it is never timed_out.
Error not_deeply(std::string_view why) {
    return make_error(ErrorCode::driver_failed, "it is asleep, but not deeply: {}", why);
}

} // namespace

KnownDevices::Device KnownDevices::find(int device) {
    {
        const MutexLock lock(mutex_);
        if (const auto known = devices_.find(device); known != devices_.end()) return known->second;
    }
    if (!memory_.may_call_driver()) return {};
    const auto& api = memory_.api();
    Device found{driver::device_name(api, device), driver::device_uuid(api, device), false,
                 driver::is_mps_client(api, device)};
    found.is_part = found.name.find(" MIG ") != std::string::npos;
    if (found.name.empty() || found.uuid.empty()) return found; // who comes next asks again
    const MutexLock lock(mutex_);
    devices_[device] = found;
    return found;
}

void DeepSleep::describe(model::Report& report) const {
    report.deep = is_deep();
    if (!report.deep) {
        Uses uses;
        for (const auto& row : report.residual) {
            uses.memory.emplace(row.kind, row.reason);
            uses.devices.insert(row.device);
        }
        for (const auto& tag : report.tags) uses.devices.insert(tag.device);
        report.deep_refusal = why_not(uses);
    }
    const MutexLock lock(mutex_);
    report.lost = lost_.has_value();
    if (lost_) report.notes.push_back(lost_->message);
    if (!report.deep) {
        if (report.deep_refusal.empty()) report.deep_refusal = found_;
        return;
    }
    for (const auto& [device, known] : devices_) {
        report.deep_bytes += known.rest.bytes;
        const auto is_it = [device = device](const auto& each) { return each.device == device; };
        const bool is_listed = std::ranges::any_of(report.devices, is_it);
        if (report.operation == model::Operation::status && !is_listed)
            report.devices.emplace_back().device = device;
    }
    for (auto& each : report.devices) {
        const auto found = devices_.find(each.device);
        if (found == devices_.end()) continue;
        each.name = found->second.name;
        if (each.uuid.empty()) each.uuid = found->second.uuid;
        // Of the sleep itself, whose figures are from before.
        if (report.operation == model::Operation::sleep && each.free_after != 0)
            each.free_after = std::min(each.free_after + found->second.rest.bytes, each.total);
    }
}

std::string DeepSleep::why_not(const Uses& uses) const {
    if (!intercepts()) return k_not_intercepted;
    if (!means_->checkpoint) return means_->checkpoint.error().message;
    if (!means_->outside) return means_->outside.error().message;
    for (const auto& [kind, reason] : uses.memory)
        for (const auto& [what, why] : k_against_memory)
            if (kind == what || reason == what) return why;
    for (const auto& [object, why] : k_against_objects)
        if (intercepted::has_any(object)) return why;
    for (const int device : uses.devices) {
        const auto known = known_devices_.find(device);
        if (known.is_part) return "it uses a part of a GPU (MIG), which the driver cannot checkpoint";
        if (known.is_mps_client) return "it is a client of MPS, which the driver cannot checkpoint";
    }
    return model::why_not_restored(uses.unseen);
}

Result<DeepSleep::Uses> DeepSleep::uses() const {
    Uses uses;
    uses.unseen = GPU_SLEEP_TRY(unseen::find_uses());
    memory_.with_lock([&](const LockedMemory& locked) {
        for (const auto& row : intercepted::residual(locked)) uses.memory.emplace(row.kind, row.reason);
    });
    const auto contexts = GPU_SLEEP_TRY(driver::active_contexts(memory_.api()));
    for (const auto& context : contexts) uses.devices.insert(context.device());
    for (int device = 0; device < driver::k_max_devices; ++device)
        if (!registry::books().contexts.made_on(device).empty()) uses.devices.insert(device);
    return uses;
}

Result<void> DeepSleep::check(bool is_joint) {
    auto uses = GPU_SLEEP_TRY(this->uses());
    if (is_joint) // that may sleep before
        std::erase_if(uses.memory, [](const auto& use) {
            return use.first == intercepted::k_ipc || use.first == intercepted::k_shared;
        });
    if (const auto why = why_not(uses); !why.empty()) return refusal(why);
    GPU_SLEEP_TRY(means_->checkpoint->state(::getpid()));
    const auto noted = note_devices(uses.devices);
    const MutexLock lock(mutex_);
    found_ = noted ? std::string() : noted.error().message;
    return noted ? Result<void>() : refusal(found_);
}

Result<void> DeepSleep::note_devices(const std::set<int>& used) {
    if (has_call_filter()) // it may have got one since the agent started
        return make_error(ErrorCode::driver_failed,
                          "a filter restricts its system calls, and may keep it from starting a process");
    looks_.emplace(*means_->outside);
    const auto gpus = GPU_SLEEP_TRY(looks_->look());
    std::map<int, Device> devices;
    for (const int device : used) {
        auto known = known_devices_.find(device);
        if (!find(gpus, known.uuid))
            return make_error(ErrorCode::driver_failed,
                              "it cannot be known whether there will be room to wake it: the driver's "
                              "management library does not know GPU {} ({})",
                              device, known.name);
        devices[device] = {std::move(known.name), std::move(known.uuid), 0, {}};
    }
    set_devices(std::move(devices));
    return {};
}

Result<void> DeepSleep::begin(const server::ProgressSink& asker, Clock::time_point deadline, bool is_own) {
    std::optional<log::Step> step("keep calls from the driver");
    const auto keep_going = [&] { return asker({model::Progress::Phase::drain, 0, 0}); };
    const auto ready = guarded([&]() -> Result<void> {
        GPU_SLEEP_TRY(gate::Gate::instance().go_deep(memory_.hold_rule(), deadline, keep_going));
        GPU_SLEEP_TRY(check_again());
        GPU_SLEEP_TRY(drain(deadline, keep_going));
        // What is allocated since the sleep may be placed there.
        return memory_.with_lock([](LockedMemory& locked) { return locked.engine().leave_host_memory(); });
    });
    if (!ready) {
        come_back();
        const auto& why = ready.error().message;
        return memory_.asleep_bytes() != 0 ? not_deeply(why) : refusal(why);
    }
    gate::Gate::set_deep_stage(gate::DeepStage::away);
    moved_.clear();
    step.emplace("have the driver checkpoint");
    auto done = guarded([&]() -> Result<void> {
        const auto gpus = looks_->look();
        if (!gpus) return not_deeply(gpus.error().message);
        auto devices = this->devices();
        for (auto& [device, known] : devices)
            if (const auto* const gpu = find(*gpus, known.uuid)) {
                known.free = gpu->free;
                known.rest = {gpu->used, 0};
            }
        set_devices(std::move(devices));
        return await_driver(asker, deadline, is_own);
    });
    step.emplace("look how deeply it sleeps");
    auto taken = guarded([&] { return take_stock(); });
    if (is_own && is_deep()) return {}; // whatever became of the process outside since
    GPU_SLEEP_TRY(std::move(taken));
    if (!is_own) return done;
    return done ? not_deeply("another process has restored it") : std::move(done).error();
}

Result<void> DeepSleep::check_again() {
    const auto uses = GPU_SLEEP_TRY(this->uses());
    if (const auto why = why_not(uses); !why.empty()) return make_error(ErrorCode::driver_failed, "{}", why);
    const auto noted = devices();
    const auto is_noted = [&](int device) { return noted.contains(device); };
    if (!std::ranges::all_of(uses.devices, is_noted))
        GPU_SLEEP_TRY(note_devices(uses.devices)); // it has begun to use one in the meantime
    return {};
}

Result<void> DeepSleep::drain(Clock::time_point deadline, const std::function<bool()>& keep_going) {
    const auto& api = memory_.api();
    const driver::RelaxedCaptureMode relaxed(api);
    const auto primary = GPU_SLEEP_TRY(driver::active_contexts(api));
    auto done = intercepted::note_what_is_done(api, intercepted::all_contexts(primary),
                                               {deadline, deadline, keep_going});
    if (!done && done.error().code == ErrorCode::context_lost)
        return make_error(ErrorCode::context_lost,
                          "its CUDA context has failed, which its next call must report: {}",
                          done.error().message);
    return done;
}

Result<void> DeepSleep::await_driver(const server::ProgressSink& asker, Clock::time_point deadline,
                                     bool is_own) {
    constexpr Milliseconds k_look_again{1};
    const auto goes_on = [&] { return asker({model::Progress::Phase::deep, 0, 0}); };
    if (is_own) {
        auto taken = means_->outside->checkpoint(deadline, [&] { return !memory_.is_ending() && goes_on(); });
        return taken ? Result<void>() : not_deeply(taken.error().message);
    }
    for (; goes_on(); std::this_thread::sleep_for(k_look_again))
        if (memory_.is_ending()) return process_is_ending();
    return {};
}

Result<void> DeepSleep::take_stock() {
    auto stands = means_->checkpoint->state(::getpid());
    if (!stands) { // who comes next asks again
        auto error = std::move(stands).error();
        error.message = "it is asleep, but it is not known whether deeply: " + error.message;
        return error;
    }
    const auto is_away = settle(*stands);
    if (!is_away)
        return is_away.error().code == ErrorCode::context_lost ? is_away.error()
                                                               : not_deeply(is_away.error().message);
    if (!*is_away) return {};
    const auto gpus = looks_->look();
    auto devices = this->devices();
    for (auto& [device, known] : devices) {
        // What others take and give back in this moment is in the difference, too.
        const auto* const gpu = gpus ? find(*gpus, known.uuid) : nullptr;
        const Bytes freed = gpu && gpu->free > known.free ? gpu->free - known.free : 0;
        known.rest = checkpoint::rest_of(known.rest.bytes, freed);
    }
    if (devices.size() == 1)
        if (const auto* const gpu = gpus ? find(*gpus, devices.begin()->second.uuid) : nullptr)
            intercepted::set_memory_while_deep(driver::MemoryInfo{gpu->free, gpu->total});
    set_devices(std::move(devices));
    return {};
}

void DeepSleep::come_back() noexcept {
    known_devices_.forget(); // they may be others
    if (is_deep()) ++times_back_;
    looks_.reset();
    gate::Gate::set_deep_stage(gate::DeepStage::shut); // who asks now is told of them by the driver
    intercepted::forget_what_is_done();
    intercepted::synchronize_as_answered(memory_.api());
    gate::Gate::instance().leave_deep();
    intercepted::set_memory_while_deep(std::nullopt);
    intercepted::free_what_was_put_off(memory_.api());
}

bool DeepSleep::is_locked() {
    if (!memory_.is_left() || !means_->checkpoint) return false;
    const auto stands = means_->checkpoint->state(::getpid());
    if (stands && *stands != checkpoint::State::running) return true;
    if (memory_.asleep_bytes() == 0) memory_.end_lock();
    return false;
}

Result<bool> DeepSleep::look() {
    if (gate::Gate::deep_stage() < gate::DeepStage::away) return false;
    const auto stands = means_->checkpoint->state(::getpid());
    return stands ? settle(*stands) : stands.error();
}

Result<bool> DeepSleep::settle(checkpoint::State found) {
    auto is_away = engine().settle(found);
    if (!is_away) return noting_loss(std::move(is_away).error());
    if (*is_away) {
        gate::Gate::set_deep_stage(gate::DeepStage::deep);
        was_deep_ = true;
    } else {
        come_back();
    }
    return is_away;
}

Error DeepSleep::noting_loss(Error error) {
    if (error.code != ErrorCode::context_lost) return error;
    const MutexLock lock(mutex_);
    lost_ = std::move(error); // before a copy takes memory
    return *lost_;
}

Result<std::vector<model::DeviceReport>> DeepSleep::needs(const model::WakeRequest& request) {
    if (!looks_) looks_.emplace(*means_->outside);
    const auto gpus = looks_->look();
    {
        const MutexLock lock(mutex_);
        if (lost_) return *lost_;
    }
    if (!gpus) return make_error(ErrorCode::driver_failed, "{}", gpus.error().message);
    model::Report planned;
    const auto done = memory_.with_lock([&](const LockedMemory& locked) {
        return guarded([&]() -> Result<void> {
            sleep::describe_plan(GPU_SLEEP_TRY(locked.engine().plan_wake(request)), planned);
            return {};
        });
    });
    if (!done) return done.error();
    std::vector<model::DeviceReport> needs;
    for (const auto& [device, known] : devices()) {
        const auto uuid = place_of(known.uuid, request.gpus);
        const auto* const gpu = find(*gpus, uuid);
        if (!gpu)
            return make_error(ErrorCode::driver_failed, "the GPU for its device {} is not there: {}", device,
                              uuid);
        auto& need = sleep::device_in(planned, device);
        need.name = known.name;
        need.uuid = uuid;
        need.released = checkpoint::need_of(known.rest, need.released);
        need.total = gpu->total;
        need.free_before = gpu->free;
        need.free_after = gpu->free - std::min(gpu->free, need.released);
        needs.push_back(std::move(need));
    }
    return needs;
}

Result<client::BytesByGpu> DeepSleep::find_room(const model::WakeRequest& request,
                                                const client::BytesByGpu& of_others) {
    const auto needs = GPU_SLEEP_TRY(this->needs(request));
    client::BytesByGpu room;
    for (const auto& need : needs) {
        const auto free = checkpoint::free_besides(of_others, need.uuid, need.free_before);
        if (free < need.released)
            return make_error(
                ErrorCode::out_of_device_memory, "needs {} on {}, {} free", format_bytes(need.released),
                request.gpus.empty() ? fmt::format("GPU {}", need.device) : need.uuid, format_bytes(free));
        room[need.uuid] += need.released;
    }
    return room;
}

Result<void> DeepSleep::end(const model::WakeRequest& request) {
    moved_ = request.gpus; // now, for afterwards memory may be short
    auto restored = engine().restore(request.gpus);
    if (!restored) moved_.clear();
    auto done = restored ? engine().unlock() : std::move(restored);
    if (!done) return noting_loss(std::move(done).error());
    come_back();
    return {};
}

} // namespace gpu_sleep::agent::operations
