// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Pins the host memory of contents through the driver.

#pragma once

#include "driver/api.hpp"
#include "store/host_arena.hpp"

namespace gpu_sleep::contents {

/// Pins in whatever context is there at the time: contexts may come and go while contents sleep.
/// Thread-safe; lives as long as the process.
class DriverPinner final : public store::Pinner {
public:
    explicit DriverPinner(const driver::Api& api) noexcept : api_(api) {}

    [[nodiscard]] Result<void> pin(std::span<std::byte> memory) override;
    [[nodiscard]] bool unpin(std::span<std::byte> memory) noexcept override;

private:
    const driver::Api& api_;
};

} // namespace gpu_sleep::contents
