// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Claims of host memory that is about to be taken: the kernel does not refuse what is too much, it kills.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"
#include "store/host_memory.hpp"

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep::store {

struct ClaimOptions {
    Bytes reserve = 256 * k_mib; ///< headroom that is left to everybody else
    /// Asked again for every claim, by several threads at once.
    std::function<Headroom()> headroom = [] { return host_headroom(); };
    /// How long a claim waits for headroom before it fails: virtual machines may grow while they are used.
    Milliseconds patience{2000};
};

/// Memory of which nobody else of the process takes himself to have it, until this is destroyed: by then it
/// has been taken, or is not wanted any more. Move-only.
class HostClaim {
public:
    HostClaim(HostClaim&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
    HostClaim& operator=(HostClaim&&) = delete;
    ~HostClaim() { under_way_ -= bytes_; }

private:
    friend class HostClaims;
    explicit HostClaim(Bytes bytes) noexcept : bytes_(bytes), others_(under_way_.fetch_add(bytes)) {}

    /// Claimed and not yet taken, by all of the process: devices are put to sleep side by side.
    static inline std::atomic<Bytes> under_way_{0};

    Bytes bytes_;
    Bytes others_ = 0; ///< what was under way before
};

/// Makes claims for one transaction. Thread-safe.
class HostClaims {
public:
    explicit HostClaims(ClaimOptions options) : options_(std::move(options)) {}

    /// Waits so long, or less, before headroom is looked at again; true ends the waiting.
    using Pause = std::function<bool(Milliseconds)>;
    /// Waits for headroom for `bytes` besides what all others of the process have under way. An error says
    /// that `needed()` are needed. Errors: out_of_host_memory (with k_where; says what limited it),
    /// cancelled.
    [[nodiscard]] Result<HostClaim> make(Bytes bytes, const std::function<std::string()>& needed,
                                         const Pause& pause) const;

    /// Error::where of claims that failed.
    static constexpr std::string_view k_where = "host headroom";

private:
    [[nodiscard]] Error shortage(const std::string& needed, const Headroom& headroom) const;

    const ClaimOptions options_;
};

} // namespace gpu_sleep::store
