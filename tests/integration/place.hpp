// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A place for snapshots, and a host that fills some.

#pragma once

#include "support/host.hpp"

namespace gpu_sleep::test {

/// A directory for snapshots in a scratch directory; not made yet.
class Place {
public:
    Place() = default;
    explicit Place(const std::filesystem::path& parent) : scratch_(parent) {}
    [[nodiscard]] std::filesystem::path path() const { return scratch_.path() / "sleep"; }
    [[nodiscard]] Arguments store(Arguments more = {}) const {
        Arguments all{"--store", "file", "--dir", path()};
        return with(std::move(all), more);
    }
    /// The files in it, in order.
    [[nodiscard]] std::vector<std::filesystem::path> files() const {
        std::vector<std::filesystem::path> found;
        std::error_code ignored;
        for (const auto& entry : std::filesystem::directory_iterator(path(), ignored))
            found.push_back(entry.path());
        std::sort(found.begin(), found.end());
        return found;
    }

private:
    Scratch scratch_;
};

/// One with two tags; what they hold does not fit chunks.
class TwoTagHost : public Host {
public:
    explicit TwoTagHost(Arguments environment = {}) : Host(std::move(environment)) {
        tell("alloc weights 10485760 0");
        tell("alloc kv_cache 4194304 0");
        tell("alloc weights 5000 0");
    }
};

} // namespace gpu_sleep::test
