// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Asking for headroom until it is there.

#include "store/host_claim.hpp"

#include "base/guard.hpp"

namespace gpu_sleep::store {

Result<HostClaim> HostClaims::make(Bytes bytes, const std::function<std::string()>& needed,
                                   const Pause& pause) const {
    constexpr Milliseconds k_pause{20};
    const auto deadline = Clock::now() + options_.patience;
    for (;;) {
        Result<Headroom> headroom = Headroom{};
        {
            // Claimed before asking: what another thread takes in between counts twice, never not at all.
            HostClaim claim(bytes);
            headroom = guarded([&]() -> Result<Headroom> { return options_.headroom(); });
            if (!headroom) return headroom.error();
            if (claim.others_ + bytes + options_.reserve <= headroom->bytes) return claim;
        }
        if (Clock::now() >= deadline) return shortage(needed(), *headroom);
        if (pause(k_pause)) return make_error(ErrorCode::cancelled, "host memory is no longer needed");
    }
}

Error HostClaims::shortage(const std::string& needed, const Headroom& headroom) const {
    auto error = make_error(
        ErrorCode::out_of_host_memory,
        "not enough host memory to keep the contents: {} more are needed and {} must stay free, but "
        "{} are available (limited by {})",
        needed, format_bytes(options_.reserve), format_bytes(headroom.bytes), headroom.limited_by);
    error.where = k_where;
    return error;
}

} // namespace gpu_sleep::store
