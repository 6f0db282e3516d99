// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Best fit with joining.

#include "memory/span_allocator.hpp"

#include <iterator>

namespace gpu_sleep::memory {

SpanAllocator::SpanAllocator(Bytes bytes, Bytes step) : step_(step) {
    insert_free(0, bytes);
}

void SpanAllocator::insert_free(Bytes offset, Bytes bytes) {
    free_.emplace(offset, bytes);
    by_size_.emplace(bytes, offset);
}

void SpanAllocator::erase_free(std::map<Bytes, Bytes>::iterator at) {
    by_size_.erase({at->second, at->first});
    free_.erase(at);
}

std::optional<Bytes> SpanAllocator::allocate(Bytes bytes) {
    const auto rounded = round_up(bytes, step_);
    const auto fit = by_size_.lower_bound({rounded, 0});
    if (rounded == 0 || fit == by_size_.end()) return std::nullopt;
    const auto [length, offset] = *fit;
    allocated_.emplace(offset,
                       rounded); // takes all the memory that is needed: where there is none, nothing changes
    auto size = by_size_.extract(fit);
    auto span = free_.extract(offset);
    if (length == rounded) return offset;
    size.value() = {length - rounded, offset + rounded};
    by_size_.insert(std::move(size));
    span.key() = offset + rounded;
    span.mapped() = length - rounded;
    free_.insert(std::move(span));
    return offset;
}

std::optional<Bytes> SpanAllocator::free(Bytes offset) {
    const auto at = allocated_.find(offset);
    if (at == allocated_.end()) return std::nullopt;
    const auto length = at->second;
    // The memory first, so that nothing has changed where there is none.
    auto size = by_size_.extract(by_size_.emplace(length, offset).first);
    auto span = allocated_.extract(at);

    auto begin = offset;
    auto end = offset + length;
    const auto next = free_.lower_bound(offset);
    if (next != free_.begin()) {
        const auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
            begin = previous->first;
            erase_free(previous);
        }
    }
    if (const auto after = free_.find(end); after != free_.end()) {
        end += after->second;
        erase_free(after);
    }
    span.key() = begin;
    span.mapped() = end - begin;
    free_.insert(std::move(span));
    size.value() = {end - begin, begin};
    by_size_.insert(std::move(size));
    return length;
}

std::optional<Bytes> SpanAllocator::allocated_at(Bytes offset) const {
    const auto at = allocated_.find(offset);
    return at == allocated_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<Bytes> SpanAllocator::allocation_holding(Bytes offset) const {
    auto after = allocated_.upper_bound(offset);
    if (after == allocated_.begin()) return std::nullopt;
    --after;
    return offset < after->first + after->second ? std::optional(after->first) : std::nullopt;
}

} // namespace gpu_sleep::memory
