// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Random messages of every kind, and whether two are the same in every field. Tests are in protocol_test.cpp.

#pragma once

#include "protocol/messages.hpp"

#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

namespace gpu_sleep::test {

/// Values that are random, valid for their field, and never zero.
class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}

    std::uint64_t number(std::uint64_t most = ~std::uint64_t{0}) {
        return std::uniform_int_distribution<std::uint64_t>(1, most)(engine_);
    }
    int small() { return static_cast<int>(number(1'000'000)); }
    double seconds() { return std::uniform_real_distribution<double>(0.001, 1e6)(engine_); }
    bool boolean() { return number(2) == 1; }
    template <class T>
    T enumerator(T last) {
        return static_cast<T>(number(static_cast<std::uint64_t>(last)));
    }
    std::string text() {
        std::string text(number(40), '\0');
        for (auto& c : text) c = static_cast<char>(number(255));
        return text;
    }
    std::vector<std::string> texts() {
        std::vector<std::string> texts(number(4));
        for (auto& item : texts) item = text();
        return texts;
    }

private:
    std::mt19937_64 engine_;
};

inline model::SleepRequest random_sleep(Dice& dice) {
    model::SleepRequest request;
    request.level = dice.enumerator(model::Level::drop);
    for (auto* tags : {&request.tags, &request.keep, &request.discard}) *tags = dice.texts();
    for (auto* flag : {&request.require_refill, &request.dry_run, &request.force, &request.bounds_all})
        *flag = dice.boolean();
    request.timeout = Milliseconds(dice.small());
    if (dice.boolean()) request.gate = dice.enumerator(model::GateMode::checked);
    request.store = dice.enumerator(model::Store::file);
    for (auto count = dice.number(4); count-- > 0;)
        request.stores.push_back({dice.text(), dice.enumerator(model::Store::file)});
    request.directory = dice.text();
    for (auto* flag : {&request.spill, &request.keep_files}) *flag = dice.boolean();
    if (dice.boolean()) request.on_touch = dice.enumerator(model::OnTouch::fail);
    if (dice.boolean()) request.touch_limit = Milliseconds(dice.small());
    return request;
}

inline model::WakeRequest random_wake(Dice& dice) {
    return {dice.texts(), dice.boolean(), Milliseconds(dice.small()), dice.boolean(),
            Milliseconds(dice.small())};
}

inline model::TagReport random_tag(Dice& dice) {
    model::TagReport tag;
    tag.tag = dice.text();
    tag.device = dice.small();
    tag.policy = {dice.enumerator(model::Retention::discard), dice.boolean()};
    tag.state = dice.enumerator(model::State::damaged);
    for (auto* value : {&tag.ranges, &tag.bytes, &tag.resident, &tag.kept, &tag.in_files, &tag.dropped,
                        &tag.damaged, &tag.allocated})
        *value = dice.number();
    tag.needs_refill = dice.boolean();
    return tag;
}

inline model::DeviceReport random_device(Dice& dice) {
    return {dice.small(),  dice.text(),   dice.number(), dice.number(),
            dice.number(), dice.number(), dice.number(), dice.number()};
}

inline model::Residual random_residual(Dice& dice) {
    return {dice.text(), dice.small(), dice.number(), dice.number(), dice.text()};
}

inline model::Report random_report(Dice& dice) {
    model::Report report;
    report.operation = dice.enumerator(model::Operation::wake);
    report.level = dice.enumerator(model::Level::drop);
    report.dry_run = dice.boolean();
    report.changed = dice.boolean();
    report.pid = dice.small();
    report.name = dice.text();
    report.state = dice.enumerator(model::State::damaged);
    report.host_bytes = dice.number();
    report.file_bytes = dice.number();
    report.state_seconds = dice.seconds();
    report.times = {dice.seconds(), dice.seconds(), dice.seconds(), dice.seconds(), dice.seconds()};
    for (auto count = dice.number(4); count-- > 0;) report.tags.push_back(random_tag(dice));
    for (auto count = dice.number(4); count-- > 0;) report.devices.push_back(random_device(dice));
    report.dropped_without_refill = dice.texts();
    report.notes = dice.texts();
    report.captures = dice.boolean();
    report.gate = dice.enumerator(model::GateState::shut);
    report.on_touch = dice.enumerator(model::OnTouch::fail);
    report.waiting = dice.number();
    report.touches = dice.number();
    report.last_touch = dice.text();
    for (auto count = dice.number(4); count-- > 0;) report.residual.push_back(random_residual(dice));
    for (auto count = dice.number(4); count-- > 0;)
        report.wakes_waiting.push_back({dice.texts(), dice.boolean(), dice.seconds(), dice.text()});
    return report;
}

inline std::vector<protocol::Request> random_requests(unsigned seed) {
    Dice dice(seed);
    return {model::StatusRequest{}, random_sleep(dice), random_wake(dice),
            model::ShareRequest{{dice.number(), dice.number()}, dice.number(), dice.number()}};
}

inline std::vector<protocol::Reply> random_replies(unsigned seed) {
    Dice dice(seed);
    return {
        model::Progress{dice.enumerator(model::Progress::Phase::waiting), dice.number(), dice.number()},
        random_report(dice),
        model::Failure{{dice.enumerator(ErrorCode::unseen_library), dice.text(), dice.text(), dice.small()},
                       dice.enumerator(model::State::damaged)},
        model::Shared{dice.number(), dice.number()}};
}

// Every field of every message, so that one that the codec forgot on both sides is missed here.
inline auto fields_of(const model::StatusRequest&) {
    return std::tuple();
}
inline auto fields_of(const model::SleepRequest& r) {
    return std::tuple(r.level, r.tags, r.keep, r.discard, r.require_refill, r.dry_run, r.timeout,
                      r.bounds_all, r.on_touch, r.gate, r.force, r.touch_limit, r.store, r.stores,
                      r.directory, r.spill, r.keep_files);
}
inline auto fields_of(const model::WakeRequest& r) {
    return std::tuple(r.tags, r.dry_run, r.timeout, r.bounds_all, r.wait);
}
inline auto fields_of(const model::ShareRequest& r) {
    return std::tuple(r.secret, r.address, r.allocation);
}
inline auto fields_of(const model::Shared& s) {
    return std::tuple(s.bytes, s.offset);
}
inline auto fields_of(const model::Progress& p) {
    return std::tuple(p.phase, p.done, p.total);
}
inline auto fields_of(const model::Failure& f) {
    return std::tuple(f.error.code, f.error.message, f.error.where, f.error.driver_status, f.state);
}
inline auto fields_of(const model::TagReport& t) {
    return std::tuple(t.tag, t.device, t.policy.retention, t.policy.refillable, t.state, t.ranges, t.bytes,
                      t.resident, t.kept, t.in_files, t.dropped, t.damaged, t.needs_refill, t.allocated);
}
inline auto fields_of(const model::DeviceReport& d) {
    return std::tuple(d.device, d.name, d.released, d.kept, d.dropped, d.free_before, d.free_after, d.total);
}
inline auto fields_of(const model::Residual& r) {
    return std::tuple(r.kind, r.device, r.bytes, r.count, r.reason);
}
inline auto fields_of(const model::WaitingWake& w) {
    return std::tuple(w.tags, w.by_touch, w.seconds, w.reason);
}
template <class T>
auto fields_of(const std::vector<T>& items) {
    std::vector<decltype(fields_of(items.front()))> all;
    for (const auto& item : items) all.push_back(fields_of(item));
    return all;
}
inline auto fields_of(const model::Report& r) {
    return std::tuple(r.operation, r.level, r.dry_run, r.changed, r.pid, r.name, r.state, r.host_bytes,
                      r.file_bytes, r.state_seconds, r.times.callbacks, r.times.drain, r.times.transfer,
                      r.times.release, r.times.total, fields_of(r.tags), fields_of(r.devices),
                      r.dropped_without_refill, r.notes, r.captures, r.gate, r.on_touch, r.waiting, r.touches,
                      r.last_touch, fields_of(r.residual), fields_of(r.wakes_waiting));
}

template <class Message>
bool same(const Message& left, const Message& right) {
    return left.index() == right.index() && std::visit(
                                                [&](const auto& value) {
                                                    using T = std::decay_t<decltype(value)>;
                                                    return fields_of(value) == fields_of(std::get<T>(right));
                                                },
                                                left);
}

} // namespace gpu_sleep::test
