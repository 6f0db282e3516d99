// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What each message is made of: its type number, its fields in the order of PROTOCOL.md, and the values that
// an enumeration may have. Writer and Reader (wire.hpp) go by this one description; how a value becomes bytes
// is theirs.

#pragma once

#include "model/model.hpp"
#include "model/share.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace gpu_sleep::protocol {

/// The number in the header of a frame that carries a `T`.
template <class T>
inline constexpr std::uint16_t k_type_number = 0;
template <>
inline constexpr std::uint16_t k_type_number<model::StatusRequest> = 1;
template <>
inline constexpr std::uint16_t k_type_number<model::SleepRequest> = 2;
template <>
inline constexpr std::uint16_t k_type_number<model::WakeRequest> = 3;
template <>
inline constexpr std::uint16_t k_type_number<model::ShareRequest> = 4;
template <>
inline constexpr std::uint16_t k_type_number<model::InhibitRequest> = 5;
template <>
inline constexpr std::uint16_t k_type_number<model::Directive> = 6;
template <>
inline constexpr std::uint16_t k_type_number<model::Progress> = 16;
template <>
inline constexpr std::uint16_t k_type_number<model::Report> = 17;
template <>
inline constexpr std::uint16_t k_type_number<model::Failure> = 18;
template <>
inline constexpr std::uint16_t k_type_number<model::Shared> = 19;

/// The values from `first` to `last`.
template <class E>
struct Range {
    E first;
    E last;
};
template <class E>
Range(E, E) -> Range<E>; // clang deduces it for aggregates from version 17 on only

/// The values of an enumeration that the reader accepts; it refuses any other.
constexpr auto accepted(model::Level) {
    return Range{model::Level::pause, model::Level::drop};
}
constexpr auto accepted(model::Retention) {
    return Range{model::Retention::offload, model::Retention::discard};
}
constexpr auto accepted(model::State) {
    return Range{model::State::awake, model::State::paused};
}
constexpr auto accepted(model::OnTouch) {
    return Range{model::OnTouch::wait, model::OnTouch::fail};
}
constexpr auto accepted(model::Store) {
    return Range{model::Store::host, model::Store::file};
}
constexpr auto accepted(model::GateMode) {
    return Range{model::GateMode::shut, model::GateMode::checked};
}
constexpr auto accepted(model::GateState) {
    return Range{model::GateState::open, model::GateState::shut};
}
constexpr auto accepted(model::Operation) {
    return Range{model::Operation::status, model::Operation::wake};
}
constexpr auto accepted(model::Transition) {
    return Range{model::Transition::sleep, model::Transition::move};
}
constexpr auto accepted(model::Progress::Phase) {
    return Range{model::Progress::Phase::callbacks, model::Progress::Phase::ready};
}
constexpr auto accepted(model::Directive::Kind) {
    return Range{model::Directive::Kind::hold_on, model::Directive::Kind::commit};
}
/// Any number: one that is not known counts as `internal`.
constexpr auto accepted(ErrorCode) {
    return Range{ErrorCode{0}, ErrorCode{std::numeric_limits<std::underlying_type_t<ErrorCode>>::max()}};
}

/// `T` is `Struct`, or a constant one.
template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

// fields() gives references to all members of a struct, in the order in which they are sent. A double is a
// time in seconds, a Milliseconds a time limit.

auto fields(Is<model::StatusRequest> auto&) {
    return std::tie();
}
auto fields(Is<model::SleepRequest> auto& r) {
    return std::tie(r.level, r.tags, r.keep, r.discard, r.require_refill, r.dry_run, r.timeout, r.bounds_all,
                    r.on_touch, r.gate, r.force, r.touch_limit, r.store, r.stores, r.directory, r.spill,
                    r.keep_files, r.copy_all, r.release_retained, r.only_if_idle, r.ignore_inhibitors,
                    r.check_copies, r.store_is_named, r.host_budget, r.deep, r.min_awake, r.joint);
}
auto fields(Is<model::TagStore> auto& s) {
    return std::tie(s.tag, s.store);
}
auto fields(Is<GpuPair> auto& p) {
    return std::tie(p.from, p.to);
}
auto fields(Is<model::WakeRequest> auto& r) {
    return std::tie(r.tags, r.dry_run, r.timeout, r.bounds_all, r.wait, r.order, r.make_room, r.min_awake,
                    r.joint, r.gpus);
}
auto fields(Is<model::Directive> auto& d) {
    return std::tie(d.kind, d.count);
}
auto fields(Is<model::InhibitRequest> auto& r) {
    return std::tie(r.release, r.time);
}
auto fields(Is<model::ShareRequest> auto& r) {
    return std::tie(r.secret, r.address, r.allocation);
}
auto fields(Is<model::Shared> auto& s) {
    return std::tie(s.bytes, s.offset);
}
auto fields(Is<model::Progress> auto& p) {
    return std::tie(p.phase, p.done, p.total, p.tag, p.held);
}
auto fields(Is<model::Failure> auto& f) {
    return std::tie(f.error, f.state);
}
auto fields(Is<Error> auto& e) {
    return std::tie(e.code, e.message, e.where, e.driver_status);
}
auto fields(Is<model::Report> auto& r) {
    return std::tie(r.operation, r.level, r.dry_run, r.changed, r.pid, r.name, r.state, r.host_bytes,
                    r.file_bytes, r.retained_bytes, r.state_seconds, r.times, r.tags, r.devices,
                    r.dropped_without_refill, r.notes, r.intercepts, r.gate, r.on_touch, r.waiting, r.touches,
                    r.last_touch, r.residual, r.wakes_waiting, r.idle_seconds, r.inhibited,
                    r.inhibited_seconds, r.woken_bytes, r.woken_seconds, r.transitions, r.deep, r.deep_bytes,
                    r.seconds_since_wake, r.group, r.deep_refusal);
}
auto fields(Is<model::PhaseTimes> auto& t) {
    return std::tie(t.callbacks, t.drain, t.transfer, t.release, t.total);
}
auto fields(Is<model::TagReport> auto& t) {
    return std::tie(t.tag, t.device, t.policy, t.state, t.ranges, t.bytes, t.resident, t.kept, t.in_files,
                    t.dropped, t.damaged, t.allocated, t.needs_refill);
}
auto fields(Is<model::Policy> auto& p) {
    return std::tie(p.retention, p.refillable);
}
auto fields(Is<model::DeviceReport> auto& d) {
    return std::tie(d.device, d.name, d.released, d.kept, d.dropped, d.free_before, d.free_after, d.total,
                    d.stored, d.copied, d.steps, d.relocated, d.uuid);
}
auto fields(Is<model::TransitionCounts> auto& t) {
    return std::tie(t.transition, t.done, t.done_seconds, t.failed);
}
auto fields(Is<model::FailureCount> auto& f) {
    return std::tie(f.code, f.count);
}
auto fields(Is<model::Residual> auto& r) {
    return std::tie(r.kind, r.device, r.bytes, r.count, r.reason);
}
auto fields(Is<model::WaitingWake> auto& w) {
    return std::tie(w.tags, w.by_touch, w.seconds, w.reason, w.place);
}

template <class T>
concept HasFields = requires(T& value) {
    fields(value);
};

/// The bytes that a `T` takes at least: with empty texts and lists, and without what is optional.
template <class T>
inline constexpr std::size_t k_min_bytes = sizeof(T);
template <>
inline constexpr std::size_t k_min_bytes<std::string> = sizeof(std::uint32_t);
template <class T>
inline constexpr std::size_t k_min_bytes<std::vector<T>> = sizeof(std::uint32_t);
template <class T>
inline constexpr std::size_t k_min_bytes<std::optional<T>> = 1;
template <class... T>
inline constexpr std::size_t k_min_bytes<std::tuple<T&...>> = (std::size_t{0} + ... + k_min_bytes<T>);
template <HasFields T>
inline constexpr std::size_t k_min_bytes<T> = k_min_bytes<decltype(fields(std::declval<T&>()))>;

namespace detail {

struct Anything {
    template <class T>
    operator T() const; // NOLINT(google-explicit-constructor): stands for any member
};

/// The members of the aggregate `T`: as many as it can be initialized with.
template <class T, class... Members>
consteval std::size_t member_count() {
    if constexpr (std::is_empty_v<T>)
        return 0;
    else if constexpr (requires { T{Members{}..., Anything{}}; })
        return member_count<T, Members..., Anything>();
    else
        return sizeof...(Members);
}

} // namespace detail

/// Whether fields() names as many members as `T` has: one that was added to the struct alone would not be
/// sent.
template <HasFields T>
inline constexpr bool k_names_all_members = std::tuple_size_v<decltype(fields(std::declval<T&>()))> ==
                                            detail::member_count<T>();

} // namespace gpu_sleep::protocol
