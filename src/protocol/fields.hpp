// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The description of each message: its type number, its numbered fields with their names in JSON, and the
// values that an enumeration may have. Writer and Reader (wire.hpp) go by this one description, and so does
// the commands' JSON; how a value becomes bytes or text is theirs.

#pragma once

#include "model/history.hpp"
#include "model/request.hpp"

#include <concepts>
#include <tuple>

namespace gpu_sleep::protocol {

/// The number in the header of a frame that carries a `T`.
template <class T>
struct TypeNumber {
    std::uint16_t value;
};
inline constexpr std::tuple k_type_numbers{
    TypeNumber<model::StatusRequest>{1},    TypeNumber<model::SleepRequest>{2}, // a field tells the next four
    TypeNumber<model::IdleSleepRequest>{2}, TypeNumber<model::ReleaseRequest>{2},
    TypeNumber<model::LiveRequest>{2},      TypeNumber<model::CallRequest>{2},
    TypeNumber<model::WakeRequest>{3},      TypeNumber<model::SharedMemoryRequest>{4},
    TypeNumber<model::InhibitRequest>{5},   TypeNumber<model::Directive>{6},
    TypeNumber<model::TimerRequest>{7},     TypeNumber<model::Progress>{16},
    TypeNumber<model::Report>{17},          TypeNumber<model::Failure>{18},
    TypeNumber<model::SharedMemory>{19}};
template <class T>
inline constexpr auto k_type_number = std::get<TypeNumber<T>>(k_type_numbers).value;

/// The last value of each enumeration, of which the first is 0: the reader refuses any other. Of ErrorCode it
/// takes any number: one that is not known counts as `internal`.
inline constexpr std::tuple k_last_values{model::Level::drop,
                                          model::Retention::discard,
                                          model::State::paused,
                                          model::SharingQuestion::tells,
                                          model::OnTouch::fail,
                                          model::Store::file,
                                          model::GateMode::checked,
                                          model::GateState::shut,
                                          model::Operation::wake,
                                          model::Transition::move,
                                          model::Progress::Phase::ready,
                                          model::Directive::Kind::commit,
                                          ErrorCode{std::numeric_limits<std::uint16_t>::max()}};
template <class E>
inline constexpr auto k_last = static_cast<std::underlying_type_t<E>>(std::get<E>(k_last_values));

/// `T` is `Struct`, or a constant one.
template <class T, class Struct>
concept Is = std::same_as<std::remove_const_t<T>, Struct>;

/// How a receiver takes a field.
enum class Need {
    may,  ///< one that does not know it skips it
    must, ///< one that does not know it refuses the message
    tells ///< the same, and it is always sent: it tells the message from others of its type number
};

/// How JSON names a member: by its path in the object of the whole. One without a name is left out, or has
/// its own members in that object if it has any.
struct Key {
    std::string_view path{};
    bool is_null_unset = false; ///< null where it has its default
    constexpr Key() = default;
    constexpr Key(const char* its_path, bool null_unset = false) // NOLINT(google-explicit-constructor)
        : path(its_path), is_null_unset(null_unset) {}
};
constexpr Key or_null(const char* path) {
    return {path, true};
}

/// A member of a message, and how it is known on the wire. The number stays with the field for ever.
template <unsigned Number, Need Kind, class T>
struct Field {
    static_assert(Number > 0 && Number < 0x8000);
    static constexpr unsigned k_number = Number;
    static constexpr bool k_must_be_known = Kind != Need::may;
    static constexpr bool k_tells = Kind == Need::tells;
    T& value;
    Key key{};
};
template <unsigned Number, class T>
Field<Number, Need::must, T> must(T& value) {
    return {value};
}
template <unsigned Number, class T>
Field<Number, Need::may, T> may(T& value, Key key = {}) {
    return {value, key};
}
/// A constant tells by being there.
template <unsigned Number, class T>
Field<Number, Need::tells, T> tells(T& value) {
    return {value};
}

/// A message's fields, as a function that calls `use` with all of them. A tuple of forty would take a third
/// of the time to compile this module.
template <class... T>
auto all_fields(T... field) {
    return [field...](const auto& use) { return use(field...); };
}

// fields() gives all members of a struct, with ascending numbers. A double is a time in seconds, a
// Milliseconds a time limit. A field that has the value of a new struct is not sent.
//
// A request is carried out as it was asked for, or refused: who does not know one of its fields must not do
// something else. So all of them must be known, but for those that only permit something: without force,
// ignore_inhibitors, ignore_unknown_tags, spill or wait, what they permit is refused, with its own reason,
// and nothing has changed. A field of a reply may be skipped, unless the rest means something else without
// it.

auto fields(Is<model::StatusRequest> auto&) {
    return all_fields();
}
/// `idle` is what tells a sleep that is only for what is idle.
auto fields_of_sleep(auto& r, auto... idle) {
    return all_fields(must<1>(r.level), must<2>(r.tags), must<3>(r.keep), must<4>(r.discard),
                      must<5>(r.require_refill), must<6>(r.dry_run), must<7>(r.timeout),
                      must<8>(r.bounds_all), must<9>(r.on_touch), must<10>(r.gate), may<11>(r.force),
                      must<12>(r.touch_limit), must<13>(r.store), must<14>(r.stores), must<15>(r.directory),
                      may<16>(r.spill), must<17>(r.keep_files), must<18>(r.copy_all), idle...,
                      may<21>(r.ignore_inhibitors), must<22>(r.check_copies), must<23>(r.store_is_named),
                      must<24>(r.host_budget), must<25>(r.deep), must<26>(r.min_awake), must<27>(r.joint),
                      may<82>(r.ignore_unknown_tags), may<88>(r.asker), must<92>(r.raw), must<93>(r.party),
                      must<96>(r.for_lock));
}
auto fields(Is<model::SleepRequest> auto& r) {
    return fields_of_sleep(r);
}
auto fields(Is<model::IdleSleepRequest> auto& r) {
    return fields_of_sleep(r.sleep, tells<20>(r.only_if_idle));
}
auto fields(Is<model::ReleaseRequest> auto& r) {
    static constexpr bool k_retained = true;
    return all_fields(must<6>(r.dry_run), must<7>(r.timeout), must<8>(r.bounds_all), tells<19>(k_retained),
                      may<88>(r.asker));
}
auto fields(Is<model::LiveRequest> auto& r) {
    static constexpr bool k_runs_on = true;
    return all_fields(must<2>(r.tags), must<6>(r.dry_run), must<7>(r.timeout), must<8>(r.bounds_all),
                      may<11>(r.force), may<21>(r.ignore_inhibitors), tells<70>(k_runs_on), must<71>(r.bytes),
                      may<88>(r.asker));
}
auto fields(Is<model::CallRequest> auto& r) {
    return all_fields(must<6>(r.dry_run), must<7>(r.timeout), must<8>(r.bounds_all), tells<67>(r.name),
                      must<80>(r.argument), may<88>(r.asker));
}
auto fields(Is<model::TagStore> auto& s) {
    return all_fields(must<1>(s.tag), must<2>(s.store));
}
auto fields(Is<GpuPair> auto& p) {
    return all_fields(must<1>(p.from), must<2>(p.to));
}
auto fields(Is<model::WakeRequest> auto& r) {
    return all_fields(must<1>(r.tags), must<2>(r.dry_run), must<3>(r.timeout), must<4>(r.bounds_all),
                      may<5>(r.wait), must<7>(r.make_room), must<8>(r.min_awake), must<9>(r.joint),
                      must<10>(r.gpus), must<72>(r.live_bytes), may<82>(r.ignore_unknown_tags),
                      may<88>(r.asker), may<90>(r.minds_inhibitors), must<93>(r.party),
                      may<97>(r.with_sharers), may<101>(r.members));
}
auto fields(Is<model::Directive> auto& d) {
    return all_fields(must<1>(d.kind), must<2>(d.count));
}
auto fields(Is<model::InhibitRequest> auto& r) {
    return all_fields(must<1>(r.release), must<2>(r.time));
}
auto fields(Is<model::TimerRequest> auto& r) {
    return all_fields(must<1>(r.after), must<2>(r.deep), must<3>(r.on_touch), must<4>(r.store),
                      must<5>(r.stores), must<6>(r.store_is_named), must<7>(r.directory), must<8>(r.spill),
                      must<9>(r.keep_files));
}
auto fields(Is<model::SharedMemoryRequest> auto& r) {
    return all_fields(must<1>(r.secret), must<2>(r.address), must<3>(r.allocation), must<93>(r.party),
                      must<95>(r.question));
}
auto fields(Is<model::SharedMemory> auto& s) {
    return all_fields(must<1>(s.bytes), must<2>(s.offset), may<98>(s.number), may<99>(s.secret));
}
auto fields(Is<model::Progress> auto& p) {
    return all_fields(must<1>(p.phase), may<2>(p.done), may<3>(p.total), may<5>(p.held), may<87>(p.in_call));
}
auto fields(Is<model::Failure> auto& f) {
    return all_fields(may<1>(f.error), may<2>(f.state));
}
auto fields(Is<Error> auto& e) {
    return all_fields(may<1>(e.code), may<2>(e.message), may<3>(e.where), may<4>(e.driver_status),
                      may<86>(e.retry_seconds));
}
auto fields(Is<model::Report> auto& r) {
    return all_fields(
        may<1>(r.operation, "operation"), may<2>(r.level, "level"), may<3>(r.dry_run, "dry_run"),
        may<4>(r.changed, "changed"), may<5>(r.pid), may<6>(r.name), may<7>(r.state),
        may<8>(r.host_bytes, "host_bytes"), may<9>(r.file_bytes, "file_bytes"),
        may<10>(r.retained_bytes, "retained_bytes"), may<11>(r.state_seconds, "state_seconds"),
        may<12>(r.times, "times"), may<13>(r.tags, "tags"), may<14>(r.devices, "devices"),
        may<15>(r.dropped_without_refill, "dropped_without_refill"), may<16>(r.notes, "notes"),
        may<17>(r.intercepts, "captures"), may<18>(r.gate, "gate/state"),
        may<19>(r.on_touch, "gate/on_touch"), may<20>(r.waiting, "gate/waiting_threads"),
        may<21>(r.touches, "gate/touches"), may<22>(r.last_touch, "gate/last_touch"),
        may<23>(r.residual, "residual"), may<24>(r.wakes_waiting, "wakes_waiting"),
        may<25>(r.idle_seconds, "idle_seconds"), may<26>(r.inhibited, "inhibited"),
        may<27>(r.inhibited_seconds, "inhibited_seconds"), may<28>(r.woken_bytes, "woken_bytes"),
        may<29>(r.woken_seconds, "woken_seconds"), may<30>(r.transitions, "transitions"),
        may<31>(r.deep, "deep"), may<32>(r.deep_bytes, "deep_bytes"),
        may<33>(r.seconds_since_wake, "seconds_since_wake"), may<34>(r.group),
        may<35>(r.deep_refusal, or_null("deep_refusal")), may<64>(r.version, or_null("agent_version")),
        may<65>(r.features, "features"), may<66>(r.directories, "directories"),
        may<68>(r.unreleased_bytes, "unreleased_bytes"), may<74>(r.longest_pause, "longest_pause_seconds"),
        may<81>(r.reply), may<83>(r.refusal, or_null("refusal")), may<84>(r.lost, "lost"),
        may<85>(r.refusal_code, "refusal_code"), may<89>(r.steps), may<91>(r.asleep_byte_seconds),
        may<94>(r.lock_tags), may<100>(r.sharers, "sharers"));
}
auto fields(Is<model::PhaseTimes> auto& t) {
    return all_fields(may<1>(t.callbacks, "callbacks_seconds"), may<2>(t.drain, "drain_seconds"),
                      may<3>(t.transfer, "transfer_seconds"), may<4>(t.release, "release_seconds"),
                      may<5>(t.total, "total_seconds"));
}
auto fields(Is<model::TagReport> auto& t) {
    return all_fields(may<1>(t.tag, "tag"), may<2>(t.device, "device"), may<3>(t.policy),
                      may<4>(t.state, "state"), may<5>(t.ranges, "ranges"), may<6>(t.bytes, "bytes"),
                      may<7>(t.resident, "resident_bytes"), may<8>(t.kept, "kept_bytes"),
                      may<9>(t.in_files, "in_files_bytes"), may<10>(t.dropped, "dropped_bytes"),
                      may<11>(t.damaged, "damaged_bytes"), may<12>(t.allocated, "allocated_bytes"),
                      may<13>(t.needs_refill, "needs_refill"), may<73>(t.host_backed, "host_backed_bytes"),
                      may<75>(t.in_place, "in_place_bytes"));
}
auto fields(Is<model::TagPolicy> auto& p) {
    return all_fields(may<1>(p.retention, "policy"), may<2>(p.refillable, "refillable"));
}
auto fields(Is<model::DeviceReport> auto& d) {
    return all_fields(may<1>(d.device, "device"), may<2>(d.name, "name"), may<3>(d.released, "moved_bytes"),
                      may<4>(d.kept, "kept_bytes"), may<5>(d.dropped, "dropped_bytes"),
                      may<6>(d.free_before, "free_before_bytes"), may<7>(d.free_after, "free_after_bytes"),
                      may<8>(d.total, "total_bytes"), may<9>(d.stored, "stored_bytes"),
                      may<10>(d.copied, "copied_bytes"), may<11>(d.steps, "steps"),
                      may<12>(d.relocated, "relocated_bytes"), may<13>(d.uuid, "uuid"));
}
auto fields(Is<model::TransitionCounts> auto& t) {
    return all_fields(may<1>(t.transition, "operation"), may<2>(t.done, "durations"),
                      may<3>(t.done_seconds, "done_seconds"), may<4>(t.failed, "failures"));
}
auto fields(Is<model::FailureCount> auto& f) {
    return all_fields(may<1>(f.code, "code"), may<2>(f.count, "count"));
}
auto fields(Is<model::Residual> auto& r) {
    return all_fields(may<1>(r.kind, "kind"), may<2>(r.device, "device"), may<3>(r.bytes, "bytes"),
                      may<4>(r.count, "count"), may<5>(r.reason, "reason"));
}
auto fields(Is<model::WaitingWake> auto& w) {
    return all_fields(may<1>(w.tags, "tags"), may<2>(w.by_touch, "by_touch"), may<3>(w.seconds, "seconds"),
                      may<4>(w.reason, "reason"), may<5>(w.place, or_null("place")));
}

/// The history: a line has them in this order, and no numbers.
auto fields(Is<model::Event> auto& e) {
    return all_fields(may<1>(e.time, "time"), may<2>(e.uid, "uid"), may<3>(e.pid, "pid"),
                      may<4>(e.start_time, "start_time"), may<5>(e.name, "name"),
                      may<6>(e.notebook, or_null("notebook")), may<7>(e.job, or_null("job")),
                      may<8>(e.transition, "operation"), may<9>(e.state, "state"), may<10>(e.level, "level"),
                      may<11>(e.deep, "deep"), may<12>(e.place, "place"), may<13>(e.bytes, "moved_bytes"),
                      may<14>(e.asleep_seconds, "asleep_seconds"), may<15>(e.asked_by, "asked_by"),
                      may<16>(e.asker_uid, "asked_by_uid"));
}

template <class T>
concept HasFields = requires(T& value) {
    fields(value);
};

namespace detail {

/// Stands for any member of a `Whole`, but not for a base, nor for the sleep in an idle sleep, whose members
/// it stands for in turn.
template <class Whole>
struct Anything {
    template <class T>
    operator T() const // NOLINT(google-explicit-constructor)
        requires(!std::is_base_of_v<T, Whole> && !std::is_base_of_v<T, model::SleepRequest>);
};

/// The members of the aggregate `T` and of its bases: as many as it can be initialized with.
template <class T, class... Members>
consteval std::size_t member_count() {
    if constexpr (std::is_empty_v<T>)
        return 0;
    else if constexpr (requires { T{Members{}..., Anything<T>{}}; })
        return member_count<T, Members..., Anything<T>>();
    else
        return sizeof...(Members);
}

template <class... Fields>
struct Description;
template <unsigned... Number, Need... Kind, class... T>
struct Description<Field<Number, Kind, T>...> {
    /// Without constants.
    static constexpr std::size_t k_members = (std::size_t{0} + ... + (std::is_const_v<T> ? 0U : 1U));
    /// The field that tells the message from others of its type number; 0 without one.
    static constexpr unsigned k_teller = (0U + ... + (Kind == Need::tells ? Number : 0U));
    static consteval bool ascends() {
        [[maybe_unused]] unsigned last = 0; // not used of a struct without fields
        return ((std::exchange(last, Number) < Number) && ...);
    }
};

struct Describe {
    template <class... Fields>
    Description<Fields...> operator()(const Fields&...) const;
};
template <class T>
using DescriptionOf = decltype(fields(std::declval<T&>())(Describe{}));

} // namespace detail

/// Whether fields() names as many members as `T` has, each number once and in order: a member that was added
/// to the struct alone would not be sent.
template <HasFields T>
inline constexpr bool k_is_described =
    detail::DescriptionOf<T>::k_members == detail::member_count<T>() && detail::DescriptionOf<T>::ascends();

/// The number of the field that tells a `T` from other messages of its type number; 0 if none has to.
template <HasFields T>
inline constexpr unsigned k_teller = detail::DescriptionOf<T>::k_teller;

/// Calls `test` with each field of `value` in turn, and with the member of `initial` that corresponds, until
/// it gives true. Returns whether it did.
template <HasFields T, class Test>
bool any_field(T& value, const std::remove_const_t<T>& initial, const Test& test) {
    return fields(value)([&](const auto&... field) {
        return fields(initial)([&](const auto&... its) { return (test(field, its.value) || ...); });
    });
}

/// Whether `value` is what a new struct has there, which is `initial`.
template <class T>
bool is_default(const T& value, const T& initial) {
    return value == initial;
}
template <class T>
bool is_default(const std::vector<T>& value, const std::vector<T>&) {
    return value.empty();
}
template <HasFields T>
bool is_default(const T& value, const T& initial) {
    return !any_field(value, initial,
                      [](auto field, const auto& its) { return !is_default(field.value, its); });
}

} // namespace gpu_sleep::protocol
