// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Specifications of Jupyter kernels (kernel.json) with the agent in their environment. Text to text.
// Source: jupyter_client, "Making kernels for Jupyter".

#pragma once

#include <optional>
#include <string>

namespace gpu_sleep::cli {

/// `text` with `library` in the environment of the kernel, and what it was before in its metadata. Nothing if
/// it is no specification of a Python kernel.
[[nodiscard]] std::optional<std::string> enabled_kernel(const std::string& text, const std::string& library);

/// What enabled_kernel() has changed, taken back: the very text that was there, or, if it has been edited
/// since, that without our members. Nothing if it was not changed by us.
[[nodiscard]] std::optional<std::string> disabled_kernel(const std::string& text);

} // namespace gpu_sleep::cli
