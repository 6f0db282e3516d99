// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What all kinds of places have in common.

#include "contents/keeper.hpp"

#include "base/guard.hpp"

namespace gpu_sleep::contents {

Transfer::~Transfer() {
    if (staging) ignoring_errors([this] { static_cast<void>(session.synchronize()); });
}

bool Block::is_in(model::Store store) const noexcept {
    return is_stored() && place.batch->keeper().store() == store;
}

Result<void> Transfer::queued(Bytes bytes) {
    GPU_SLEEP_TRY(session.mark(bytes));
    return look();
}

Result<void> Transfer::look() {
    const auto bytes = session.look_at_marks();
    return bytes ? progress.add(*bytes) : bytes.error();
}

Result<void> Transfer::wait() {
    return session.wait_marks([this](Bytes bytes) { return progress.add(bytes); });
}

Bytes Batch::add(driver::AddressSpan memory) {
    sources_.push_back({memory, 0});
    const auto at = reserve(memory.bytes);
    sources_.back().at = at;
    live_ += memory.bytes;
    return at;
}

Result<void> Keeper::replace(Transfer& /*transfer*/, std::span<const Move> /*blocks*/) {
    return make_error(ErrorCode::internal, "contents in {} cannot be replaced", where());
}

Result<void> Keeper::fetch(Handover& /*handover*/, std::span<const Fetched> /*parts*/,
                           const MakeReady& /*make_ready*/) {
    return make_error(ErrorCode::internal, "contents in {} are in memory", where());
}

Result<void> Batch::read(Span /*span*/, std::byte* /*to*/) const {
    return make_error(ErrorCode::refused, "the contents are in {}", keeper_.where());
}

bool Batch::forget(Span span) noexcept {
    live_ -= span.bytes;
    return false;
}

} // namespace gpu_sleep::contents
