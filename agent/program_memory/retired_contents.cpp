// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Giving back, a little at a time.

#include "program_memory/retired_contents.hpp"

namespace gpu_sleep::agent {

void RetiredContents::collect() {
    memory_.with_lock([this](LockedMemory& locked) { retired_.add(locked.contents().reap()); });
}

bool RetiredContents::shrink_one() {
    const auto waste = memory_.with_lock([](LockedMemory& locked) { return locked.contents().find_waste(); });
    if (!waste) return false;
    // The driver may take its time. No operation runs beside this one, and nobody else reads the contents.
    const auto given_back = waste->give_back();
    memory_.with_lock([&](LockedMemory&) { contents::Contents::note_shrunk(*waste, given_back); });
    return true;
}

bool RetiredContents::give_back_some() {
    return retired_.give_back_some() || shrink_one();
}

bool RetiredContents::give_back_files() {
    return retired_.close_files();
}

bool RetiredContents::has_waste() {
    return has_any() || memory_.with_lock([](LockedMemory& locked) { return locked.contents().has_waste(); });
}

Bytes RetiredContents::host_bytes(const LockedMemory& locked) const noexcept {
    return locked.contents().retired_bytes() + retired_.held();
}

} // namespace gpu_sleep::agent
