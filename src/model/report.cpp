// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Names of what reports tell, and sums of it.

#include "model/report.hpp"

#include "model/request.hpp"

#include <numeric>

namespace gpu_sleep::model {

std::string_view to_string(Operation operation) noexcept {
    return word_of(operation, {"status", "sleep", "wake"});
}

std::string_view to_string(Step step) noexcept {
    return word_of(step, {"populate", "pin", "await_host", "fingerprint", "copy", "create", "map", "access",
                          "unmap", "release"});
}

std::string_view to_string(Transition transition) noexcept {
    return word_of(transition, {"sleep", "wake", "move"});
}

std::string_view to_string(Progress::Phase phase) noexcept {
    return word_of(phase, {"callbacks", "drain", "transfer", "release", "verify", "waiting", "deep",
                           "drained", "ready"});
}

Bytes kept_in(const TagReport& tag, Store store) noexcept {
    return store == Store::file ? tag.in_files : tag.kept - tag.in_files;
}

std::uint64_t done_of(const TransitionCounts& counts) noexcept {
    return std::accumulate(counts.done.begin(), counts.done.end(), std::uint64_t{0});
}

Bytes& held_in(Holdings& holdings, Store store) noexcept {
    return store == Store::file ? holdings.file_bytes : holdings.host_bytes;
}

int exit_status_of(const Failure& failure, Operation asked) noexcept {
    const auto& row = traits(failure.error.code);
    const bool is_short =
        failure.error.code == ErrorCode::out_of_host_memory || failure.error.code == ErrorCode::out_of_disk;
    // The tags that were to sleep are awake, because of too little memory or disk; others still sleep as
    // before.
    if (is_short && failure.state == State::partial && asked == Operation::sleep) return row.exit_status;
    return is_resident(failure.state) ? row.exit_status : row.exit_status_asleep;
}

void refuse(Report& report, std::string why, std::optional<ErrorCode> code) {
    if (report.refusal.empty()) {
        report.refusal = why;
        report.refusal_code = code;
    }
    report.notes.push_back(std::move(why));
}

std::string not_yet(std::string_view so, double seconds, double wanted) {
    return fmt::format("it has been {} for only {}, and may sleep in {}", so, format_seconds(seconds),
                       format_seconds(wanted - seconds));
}

void note_short_devices(const WakeRequest& request, Report& report) {
    const bool may_get_room = request.make_room || request.wait > Milliseconds(0);
    for (const auto& device : report.devices) {
        if (device.total == 0 || device.released <= device.free_before) continue;
        auto note = fmt::format("GPU {} has {} free, and {} are needed", device.device,
                                format_bytes(device.free_before), format_bytes(device.released));
        if (may_get_room)
            report.notes.push_back(std::move(note));
        else
            refuse(report, std::move(note) + ": it would fail", ErrorCode::out_of_device_memory);
    }
}

} // namespace gpu_sleep::model
