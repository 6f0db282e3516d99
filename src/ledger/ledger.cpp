// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The record of memory.

#include "ledger/ledger.hpp"

#include "base/log.hpp"

namespace gpu_sleep::ledger {

using model::Residence;
using model::State;

namespace {

/// Adds up residences into one state.
class StateSum {
public:
    void add(const Backing& backing) noexcept {
        awake_ |= !backing.is_asleep();
        asleep_ |= backing.is_asleep();
        damaged_ |= backing.residence() == Residence::damaged;
    }
    [[nodiscard]] State state() const noexcept {
        if (damaged_) return State::damaged;
        if (!asleep_) return State::awake;
        return awake_ ? State::partial : State::asleep;
    }

private:
    bool awake_ = false;
    bool asleep_ = false;
    bool damaged_ = false;
};

void add_to(model::TagReport& row, const Backing& backing) {
    ++row.ranges;
    row.bytes += backing.bytes;
    row.allocated += backing.allocated;
    row.needs_refill |= backing.needs_refill && !backing.is_asleep();
    switch (backing.residence()) {
    case Residence::device: (backing.host_backed ? row.host_backed : row.resident) += backing.bytes; break;
    case Residence::kept: row.kept += backing.bytes; break;
    case Residence::dropped:
        row.kept += backing.kept.bytes;
        row.dropped += backing.bytes - backing.kept.bytes;
        break;
    case Residence::damaged:
        row.damaged += backing.kept.bytes;
        row.dropped += backing.bytes - backing.kept.bytes;
        break;
    }
}

} // namespace

bool Backing::is_wholly_preserved() const noexcept {
    const auto sum = sum_of(preserved, [this](const Span& span) { return bytes_of_program(span); });
    return sum > 0 && sum >= allocated;
}

Bytes Backing::bytes_of_program(const Span& span) const noexcept {
    // In a shared one nothing else is ever marked.
    const auto end = shared ? span.end() : std::min(span.end(), allocated);
    return end - std::min(span.offset, end);
}

bool may_move(Residence from, Residence to) noexcept {
    switch (from) {
    case Residence::device: return to == Residence::kept || to == Residence::dropped;
    case Residence::kept: return to != Residence::kept;
    case Residence::dropped: return to == Residence::device || to == Residence::damaged;
    case Residence::damaged: return to == Residence::device || to == Residence::dropped;
    }
    return false;
}

TagId Ledger::tag_id(std::string_view name) {
    const auto known = std::find_if(tags_.begin(), tags_.end(), [=](const Tag& t) { return t.name == name; });
    if (known != tags_.end()) return static_cast<TagId>(known - tags_.begin());
    tags_.push_back({std::string(name), {}});
    return static_cast<TagId>(tags_.size() - 1);
}

Result<TagId> Ledger::find_tag(std::string_view name) const {
    const auto known = std::find_if(tags_.begin(), tags_.end(), [=](const Tag& t) { return t.name == name; });
    if (known != tags_.end()) return static_cast<TagId>(known - tags_.begin());
    std::string names;
    for (const auto& tag : tags_) names += (names.empty() ? "" : ", ") + tag.name;
    return make_error(ErrorCode::unknown_tag, "there is no tag '{}'; the process has {}", name,
                      names.empty() ? "none (without gpu-run, only what is allocated under a tag has one)"
                                    : names);
}

void Ledger::forget_tags_from(std::size_t count) {
    for (const auto& [address, backing] : backings_) count = std::max<std::size_t>(count, backing.tag + 1);
    if (count < tags_.size()) tags_.erase(tags_.begin() + static_cast<std::ptrdiff_t>(count), tags_.end());
}

Backing& Ledger::add(Backing backing) {
    const auto address = backing.address;
    backing.number = ++last_number_;
    return backings_.emplace(address, std::move(backing)).first->second;
}

Backing Ledger::remove(std::uint64_t address) {
    auto node = backings_.extract(address);
    return std::move(node.mapped());
}

Backing* Ledger::find(std::uint64_t address) noexcept {
    auto after = backings_.upper_bound(address);
    if (after == backings_.begin()) return nullptr;
    auto& backing = std::prev(after)->second;
    return address < backing.end() ? &backing : nullptr;
}

bool Ledger::move(Backing& backing, Residence to) {
    if (!may_move(backing.residence_, to)) {
        log::error("bug: range {:#x} may not go from {} to {}", backing.address,
                   to_string(backing.residence_), to_string(to));
        return false;
    }
    backing.residence_ = to;
    if (to != Residence::kept) backing.holds_contents = false;
    if (!backing.is_asleep()) {
        backing.slept_by_program = false;
        backing.has_lost_contents_ = false;
    }
    // A dropped backing keeps only its preserved parts.
    if (to == Residence::dropped)
        backing.has_lost_contents_ = backing.kept.range == 0 || !backing.is_wholly_preserved();
    return true;
}

Bytes Ledger::host_backed(std::optional<TagId> tag) const noexcept {
    return sum_of(backings_, [=](const auto& each) {
        const auto& backing = each.second;
        return backing.host_backed && tag.value_or(backing.tag) == backing.tag ? backing.bytes : 0;
    });
}

Bytes Ledger::in_place() const noexcept {
    return sum_of(backings_, [](const auto& each) {
        const auto& backing = each.second;
        return backing.holds_contents && backing.host_backed ? backing.bytes : 0;
    });
}

void Ledger::note_own_sleep(const std::vector<std::string>& tags) noexcept {
    for (auto& [address, backing] : backings_)
        backing.slept_by_program |= backing.is_asleep() && model::means_tag(tags, tag(backing.tag).name);
}

void Ledger::preserve(Backing& backing, Span span) {
    auto& spans = backing.preserved;
    for (const auto& other : spans) {
        if (other.end() < span.offset || span.end() < other.offset) continue;
        const auto end = std::max(span.end(), other.end());
        span.offset = std::min(span.offset, other.offset);
        span.bytes = end - span.offset;
    }
    std::erase_if(spans, [=](const Span& s) { return s.offset >= span.offset && s.end() <= span.end(); });
    const auto after =
        std::find_if(spans.begin(), spans.end(), [=](const Span& s) { return s.offset > span.offset; });
    spans.insert(after, span);
}

void Ledger::forget_preserved(Backing& backing, Span span) {
    std::vector<Span> left;
    for (const auto& mark : backing.preserved) {
        if (mark.offset < span.offset)
            left.push_back({mark.offset, std::min(mark.end(), span.offset) - mark.offset});
        if (mark.end() > span.end()) {
            const auto from = std::max(mark.offset, span.end());
            left.push_back({from, mark.end() - from});
        }
    }
    backing.preserved = std::move(left);
}

State Ledger::state(const std::vector<std::string>& tags) const noexcept {
    StateSum all;
    StateSum some;
    bool is_any = false;
    for (const auto& [address, backing] : backings_) {
        if (backing.stay_reason) continue;
        all.add(backing);
        if (std::find(tags.begin(), tags.end(), tag(backing.tag).name) == tags.end()) continue;
        some.add(backing);
        is_any = true;
    }
    return is_any ? some.state() : all.state();
}

std::vector<model::TagReport>
Ledger::report(const std::function<Bytes(std::uint64_t range)>& in_files) const {
    std::map<std::pair<std::string_view, int>, std::pair<model::TagReport, StateSum>> rows;
    for (const auto& [address, backing] : backings_) {
        if (backing.stay_reason) continue;
        const auto& tag = tags_[backing.tag];
        auto& [row, sum] = rows[{tag.name, backing.device}];
        row.tag = tag.name;
        row.device = backing.device;
        row.policy = tag.policy;
        sum.add(backing);
        add_to(row, backing);
        const bool is_in_place =
            backing.is_asleep() ? backing.holds_contents && backing.host_backed : may_sleep_in_place(backing);
        row.in_place += is_in_place ? backing.bytes : 0;
        if (backing.kept.bytes != 0 && backing.residence() != Residence::damaged)
            row.in_files += in_files(backing.kept.range);
    }
    std::vector<model::TagReport> reports;
    reports.reserve(rows.size());
    for (auto& [key, row] : rows) {
        row.first.state = row.second.state();
        reports.push_back(std::move(row.first));
    }
    return reports;
}

} // namespace gpu_sleep::ledger
