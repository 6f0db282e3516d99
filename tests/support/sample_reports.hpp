// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reports of a model server that sleeps and wakes, for tests of how they are shown.

#pragma once

#include "control/process_info.hpp"
#include "model/model.hpp"

namespace gpu_sleep::test {

/// The server's process.
inline control::Process sample_process() {
    control::Process process;
    process.pid = 4242;
    process.inner_pid = 7;
    process.command = "python3 serve.py";
    return process;
}

inline model::TagReport sample_weights() {
    model::TagReport tag;
    tag.tag = "weights";
    tag.policy = {model::Retention::offload, true};
    tag.ranges = 194;
    tag.bytes = tag.resident = 15 * k_gib;
    tag.allocated = 15 * k_gib - 4096;
    return tag;
}

inline model::TagReport sample_cache() {
    model::TagReport tag;
    tag.tag = "kv_cache";
    tag.device = 1;
    tag.policy.retention = model::Retention::discard;
    tag.ranges = 32;
    tag.bytes = tag.resident = tag.allocated = 24 * k_gib;
    return tag;
}

/// Awake for an hour, on two devices.
inline model::Report sample_status() {
    model::Report report;
    report.pid = 7;
    report.name = "llama";
    report.state_seconds = 3600;
    report.tags = {sample_weights(), sample_cache()};
    return report;
}

/// What a sleep at level 1 answered.
inline model::Report sample_sleep() {
    auto report = sample_status();
    report.operation = model::Operation::sleep;
    report.changed = true;
    report.state = model::State::asleep;
    report.state_seconds = 0;
    report.host_bytes = 15 * k_gib;
    report.times = {0.01, 0.02, 0.4, 0.03, 0.46};
    for (auto& tag : report.tags) {
        tag.state = model::State::asleep;
        tag.resident = 0;
    }
    report.tags[0].kept = 15 * k_gib;
    report.tags[1].dropped = 24 * k_gib;
    report.devices = {{0, "NVIDIA H200", 15 * k_gib, 15 * k_gib, 0, 100 * k_gib, 115 * k_gib, 140 * k_gib},
                      {1, "NVIDIA H200", 24 * k_gib, 0, 24 * k_gib, 0, 0, 0}};
    report.devices[0].uuid = "GPU-51302d51";
    report.devices[0].steps = {0.5, 0.25, 0.125, 0, 0.3, 0, 0, 0, 0.01, 0.02};
    report.dropped_without_refill = {"kv_cache"};
    report.notes = {"a sentence of the agent"};
    return report;
}

/// The same, with a third of what is kept in a file.
inline model::Report sample_sleep_in_files() {
    auto report = sample_sleep();
    report.host_bytes = 10 * k_gib;
    report.file_bytes = 3 * k_gib;
    report.directories = {"/fast/ann"};
    report.tags[0].in_files = 5 * k_gib;
    return report;
}

/// As sample_sleep(), of a program whose calls are intercepted and which has touched the gate meanwhile.
inline model::Report sample_intercepted_sleep() {
    auto report = sample_sleep();
    report.intercepts = true;
    report.idle_seconds = 840.5;
    report.inhibited = true;
    report.inhibited_seconds = 7200;
    report.gate = model::GateState::shut;
    report.on_touch = model::OnTouch::wake;
    report.waiting = 2;
    report.touches = 17;
    report.last_touch = "cuLaunchKernel";
    report.wakes_waiting = {{{"weights", "kv_cache"}, false, 12.5, "too little"},
                            {{}, true, 3, "too little"}};
    report.transitions = {{model::Transition::sleep, {0, 3, 0, 1}, 0.25, {{ErrorCode::timed_out, 2}}},
                          {model::Transition::wake, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 75, {}}};
    report.residual = {{"managed", 0, k_gib, 3, "the driver moves it by itself"}, {"array", 1, 4096, 1, ""}};
    report.deep_refusal = "it has managed memory";
    report.version = "7.8.9";
    report.features = {"pause"};
    return report;
}

} // namespace gpu_sleep::test
