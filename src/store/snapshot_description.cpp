// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Describing what is about to be written.

#include "store/snapshot_description.hpp"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>

namespace gpu_sleep::store {

Bytes SnapshotDescription::content_bytes() const noexcept {
    Bytes sum = 0;
    for (const auto& extent : extents) sum += extent.bytes;
    return sum;
}

std::vector<ChunkPlace> places_of(const std::vector<SnapshotExtent>& extents) {
    std::vector<ChunkPlace> places;
    for (std::size_t i = 0; i < extents.size(); ++i)
        for (Bytes at = 0; at < extents[i].bytes; at += codec::k_chunk_bytes)
            places.push_back({i, at,
                              static_cast<std::size_t>(std::min(codec::k_chunk_bytes, extents[i].bytes - at)),
                              places.size()});
    return places;
}

Result<SnapshotDescription> describe_own() {
    const auto started = own_start_time();
    if (!started) return started.error();
    SnapshotDescription description;
    description.owner = {::getpid(), *started};
    description.uid = ::geteuid();
    description.boot = boot_id();
    return description;
}

Result<std::string> make_snapshot_id() {
    std::array<std::uint8_t, 16> random{};
    if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
        return errno_error(ErrorCode::io_failed, errno, "getrandom", "cannot name a snapshot");
    std::string id;
    for (const auto byte : random) id += fmt::format("{:02x}", byte);
    return id;
}

std::string utc_now() {
    const auto now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                       parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

} // namespace gpu_sleep::store
