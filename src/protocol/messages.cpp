// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// One writer and one reader for each message, in the order of PROTOCOL.md. What frames them is in frame.cpp.

#include "protocol/messages.hpp"

#include "protocol/wire.hpp"

#include <utility>

namespace gpu_sleep::protocol {
namespace {

using namespace model;

enum class Type : std::uint16_t {
    status_request = 1,
    sleep_request = 2,
    wake_request = 3,
    share_request = 4,
    progress = 16,
    report = 17,
    failure = 18,
    shared = 19,
};

// ---- Writing
// ----------------------------------------------------------------------------------------------------

Type write(Writer&, const StatusRequest&) {
    return Type::status_request;
}

Type write(Writer& out, const SleepRequest& request) {
    out.number(request.level);
    out.strings(request.tags);
    out.strings(request.keep);
    out.strings(request.discard);
    out.boolean(request.require_refill);
    out.boolean(request.dry_run);
    out.duration(request.timeout);
    out.boolean(request.bounds_all);
    out.optional(request.on_touch, [&](OnTouch on_touch) { out.number(on_touch); });
    out.optional(request.gate, [&](GateMode gate) { out.number(gate); });
    out.boolean(request.force);
    out.optional(request.touch_limit, [&](Milliseconds limit) { out.duration(limit); });
    out.number(request.store);
    out.list(request.stores, [&](const TagStore& each) {
        out.string(each.tag);
        out.number(each.store);
    });
    out.string(request.directory);
    out.boolean(request.spill);
    out.boolean(request.keep_files);
    return Type::sleep_request;
}

Type write(Writer& out, const WakeRequest& request) {
    out.strings(request.tags);
    out.boolean(request.dry_run);
    out.duration(request.timeout);
    out.boolean(request.bounds_all);
    out.duration(request.wait);
    return Type::wake_request;
}

Type write(Writer& out, const ShareRequest& request) {
    for (const auto value : {request.secret[0], request.secret[1], request.address, request.allocation})
        out.number(value);
    return Type::share_request;
}

Type write(Writer& out, const Shared& shared) {
    out.number(shared.bytes);
    out.number(shared.offset);
    return Type::shared;
}

Type write(Writer& out, const Progress& progress) {
    out.number(progress.phase);
    out.number(progress.done);
    out.number(progress.total);
    return Type::progress;
}

Type write(Writer& out, const Failure& failure) {
    out.number(failure.error.code);
    out.string(failure.error.message);
    out.string(failure.error.where);
    out.number(static_cast<std::int32_t>(failure.error.driver_status));
    out.number(failure.state);
    return Type::failure;
}

void write_tag(Writer& out, const TagReport& tag) {
    out.string(tag.tag);
    out.number(static_cast<std::int32_t>(tag.device));
    out.number(tag.policy.retention);
    out.boolean(tag.policy.refillable);
    out.number(tag.state);
    for (const auto value : {tag.ranges, tag.bytes, tag.resident, tag.kept, tag.in_files, tag.dropped,
                             tag.damaged, tag.allocated})
        out.number(value);
    out.boolean(tag.needs_refill);
}

void write_device(Writer& out, const DeviceReport& device) {
    out.number(static_cast<std::int32_t>(device.device));
    out.string(device.name);
    for (const auto value :
         {device.released, device.kept, device.dropped, device.free_before, device.free_after, device.total})
        out.number(value);
}

void write_residual(Writer& out, const Residual& residual) {
    out.string(residual.kind);
    out.number(static_cast<std::int32_t>(residual.device));
    out.number(residual.bytes);
    out.number(residual.count);
    out.string(residual.reason);
}

void write_waiting(Writer& out, const WaitingWake& wake) {
    out.strings(wake.tags);
    out.boolean(wake.by_touch);
    out.number(wake.seconds);
    out.string(wake.reason);
}

Type write(Writer& out, const Report& report) {
    out.number(report.operation);
    out.number(report.level);
    out.boolean(report.dry_run);
    out.boolean(report.changed);
    out.number(report.pid);
    out.string(report.name);
    out.number(report.state);
    out.number(report.host_bytes);
    out.number(report.file_bytes);
    const auto& times = report.times;
    for (const auto value :
         {report.state_seconds, times.callbacks, times.drain, times.transfer, times.release, times.total})
        out.number(value);
    out.list(report.tags, [&](const TagReport& tag) { write_tag(out, tag); });
    out.list(report.devices, [&](const DeviceReport& device) { write_device(out, device); });
    out.strings(report.dropped_without_refill);
    out.strings(report.notes);
    out.boolean(report.captures);
    out.number(report.gate);
    out.number(report.on_touch);
    out.number(report.waiting);
    out.number(report.touches);
    out.string(report.last_touch);
    out.list(report.residual, [&](const Residual& residual) { write_residual(out, residual); });
    out.list(report.wakes_waiting, [&](const WaitingWake& wake) { write_waiting(out, wake); });
    return Type::report;
}

template <class Message>
Result<std::vector<std::byte>> encode_any(const Message& message) {
    Writer payload;
    const auto type = std::visit([&](const auto& m) { return write(payload, m); }, message);
    return make_frame(static_cast<std::uint16_t>(type), payload.bytes());
}

// ---- Reading
// ----------------------------------------------------------------------------------------------------

SleepRequest read_sleep(Reader& in) {
    SleepRequest request;
    request.level = in.enumerator(Level::drop, Level::keep);
    request.tags = in.strings();
    request.keep = in.strings();
    request.discard = in.strings();
    request.require_refill = in.boolean();
    request.dry_run = in.boolean();
    request.timeout = in.duration();
    request.bounds_all = in.boolean();
    request.on_touch = in.optional<OnTouch>([&] { return in.enumerator(OnTouch::fail); });
    request.gate = in.optional<GateMode>([&] { return in.enumerator(GateMode::checked); });
    request.force = in.boolean();
    request.touch_limit = in.optional<Milliseconds>([&] { return in.duration(); });
    request.store = in.enumerator(Store::file);
    constexpr std::size_t k_least_store_bytes = 5;
    request.stores = in.list<TagStore>(k_least_store_bytes, [&] {
        TagStore each;
        each.tag = in.string();
        each.store = in.enumerator(Store::file);
        return each;
    });
    request.directory = in.string();
    request.spill = in.boolean();
    request.keep_files = in.boolean();
    return request;
}

WakeRequest read_wake(Reader& in) {
    WakeRequest request;
    request.tags = in.strings();
    request.dry_run = in.boolean();
    request.timeout = in.duration();
    request.bounds_all = in.boolean();
    request.wait = in.duration();
    return request;
}

ShareRequest read_share(Reader& in) {
    ShareRequest request;
    for (auto* value : {&request.secret[0], &request.secret[1], &request.address, &request.allocation})
        *value = in.number<std::uint64_t>();
    return request;
}

Shared read_shared(Reader& in) {
    Shared shared;
    shared.bytes = in.number<Bytes>();
    shared.offset = in.number<Bytes>();
    return shared;
}

Progress read_progress(Reader& in) {
    Progress progress;
    progress.phase = in.enumerator(Progress::Phase::waiting);
    progress.done = in.number<Bytes>();
    progress.total = in.number<Bytes>();
    return progress;
}

Failure read_failure(Reader& in) {
    Failure failure;
    failure.error.code =
        static_cast<ErrorCode>(in.number<std::uint16_t>()); // an unknown one is treated as internal
    failure.error.message = in.string();
    failure.error.where = in.string();
    failure.error.driver_status = in.number<std::int32_t>();
    failure.state = in.enumerator(State::damaged);
    return failure;
}

TagReport read_tag(Reader& in) {
    TagReport tag;
    tag.tag = in.string();
    tag.device = in.number<std::int32_t>();
    tag.policy.retention = in.enumerator(Retention::discard);
    tag.policy.refillable = in.boolean();
    tag.state = in.enumerator(State::damaged);
    for (auto* value : {&tag.ranges, &tag.bytes, &tag.resident, &tag.kept, &tag.in_files, &tag.dropped,
                        &tag.damaged, &tag.allocated})
        *value = in.number<std::uint64_t>();
    tag.needs_refill = in.boolean();
    return tag;
}

DeviceReport read_device(Reader& in) {
    DeviceReport device;
    device.device = in.number<std::int32_t>();
    device.name = in.string();
    for (auto* value : {&device.released, &device.kept, &device.dropped, &device.free_before,
                        &device.free_after, &device.total})
        *value = in.number<Bytes>();
    return device;
}

Residual read_residual(Reader& in) {
    Residual residual;
    residual.kind = in.string();
    residual.device = in.number<std::int32_t>();
    residual.bytes = in.number<Bytes>();
    residual.count = in.number<std::uint64_t>();
    residual.reason = in.string();
    return residual;
}

WaitingWake read_waiting(Reader& in) {
    WaitingWake wake;
    wake.tags = in.strings();
    wake.by_touch = in.boolean();
    wake.seconds = in.seconds();
    wake.reason = in.string();
    return wake;
}

Report read_report(Reader& in) {
    constexpr std::size_t k_least_tag_bytes = 76;
    constexpr std::size_t k_least_device_bytes = 56;
    constexpr std::size_t k_least_residual_bytes = 28;
    constexpr std::size_t k_least_waiting_bytes = 17;
    Report report;
    report.operation = in.enumerator(model::Operation::wake);
    report.level = in.enumerator(Level::drop, Level::keep);
    report.dry_run = in.boolean();
    report.changed = in.boolean();
    report.pid = in.number<std::int32_t>();
    report.name = in.string();
    report.state = in.enumerator(State::damaged);
    report.host_bytes = in.number<Bytes>();
    report.file_bytes = in.number<Bytes>();
    auto& times = report.times;
    for (auto* value : {&report.state_seconds, &times.callbacks, &times.drain, &times.transfer,
                        &times.release, &times.total})
        *value = in.seconds();
    report.tags = in.list<TagReport>(k_least_tag_bytes, [&] { return read_tag(in); });
    report.devices = in.list<DeviceReport>(k_least_device_bytes, [&] { return read_device(in); });
    report.dropped_without_refill = in.strings();
    report.notes = in.strings();
    report.captures = in.boolean();
    report.gate = in.enumerator(GateState::shut);
    report.on_touch = in.enumerator(OnTouch::fail);
    report.waiting = in.number<std::uint64_t>();
    report.touches = in.number<std::uint64_t>();
    report.last_touch = in.string();
    report.residual = in.list<Residual>(k_least_residual_bytes, [&] { return read_residual(in); });
    report.wakes_waiting = in.list<WaitingWake>(k_least_waiting_bytes, [&] { return read_waiting(in); });
    return report;
}

/// What `reader` read, unless it failed or left something over.
template <class Message, class T>
Result<Message> checked(const Reader& reader, T message) {
    if (!reader.ok() || !reader.at_end())
        return make_error(ErrorCode::protocol_mismatch, "a message could not be understood");
    return Message(std::move(message));
}

Error unknown_type(std::uint16_t type) {
    return make_error(ErrorCode::protocol_mismatch, "a message of unknown type {} was received", type);
}

} // namespace

Result<std::vector<std::byte>> encode(const Request& request) {
    return encode_any(request);
}

Result<std::vector<std::byte>> encode(const Reply& reply) {
    return encode_any(reply);
}

Result<Request> decode_request(const FrameReader::Frame& frame) {
    Reader in(frame.payload);
    switch (static_cast<Type>(frame.type)) {
    case Type::status_request: return checked<Request>(in, StatusRequest{});
    case Type::sleep_request: {
        auto request = read_sleep(in);
        return checked<Request>(in, std::move(request));
    }
    case Type::wake_request: {
        auto request = read_wake(in);
        return checked<Request>(in, std::move(request));
    }
    case Type::share_request: {
        const auto request = read_share(in);
        return checked<Request>(in, request);
    }
    default: return unknown_type(frame.type);
    }
}

Result<Reply> decode_reply(const FrameReader::Frame& frame) {
    Reader in(frame.payload);
    switch (static_cast<Type>(frame.type)) {
    case Type::progress: {
        auto progress = read_progress(in);
        return checked<Reply>(in, progress);
    }
    case Type::report: {
        auto report = read_report(in);
        return checked<Reply>(in, std::move(report));
    }
    case Type::failure: {
        auto failure = read_failure(in);
        return checked<Reply>(in, std::move(failure));
    }
    case Type::shared: {
        const auto shared = read_shared(in);
        return checked<Reply>(in, shared);
    }
    default: return unknown_type(frame.type);
    }
}

} // namespace gpu_sleep::protocol
