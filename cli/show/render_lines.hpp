// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Words and lines about a process that several outputs share.

#pragma once

#include "control/process_info.hpp"
#include "model/report.hpp"
#include "model/request.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// The longest that a name or a command is shown.
inline constexpr std::size_t k_label_columns = 40;

[[nodiscard]] std::string_view state_words(model::State state) noexcept;
[[nodiscard]] std::string_view state_words(const model::Report& report) noexcept;
/// The name that it was given, or else its program's; see display_name().
[[nodiscard]] std::string label(const control::Process& process, const model::Report& report);
[[nodiscard]] std::string joined(const std::vector<std::string>& words);
/// Whether it is the dry run of a pause, or of the wake of one, that would not be in vain.
[[nodiscard]] bool rehearses_pause(const model::Report& report) noexcept;
/// Whether something was done, or would be.
[[nodiscard]] bool does_something(const model::Report& report) noexcept;
/// What its devices say is released, all together.
[[nodiscard]] Bytes released(const model::Report& report);

/// "gate shut: work on the GPU waits; 3 threads wait, the last in cuLaunchKernel; held 17 times so far".
/// Where `request` is of some tags, also what lets the rest of the program work.
[[nodiscard]] std::string gate_line(const model::Report& report,
                                    const model::SleepRequest* request = nullptr);
/// "sleeps are inhibited for another 3 h 59 min".
[[nodiscard]] std::string inhibition_line(const model::Report& report);
/// "stays on GPU 0: managed 1.00 GiB in 3 allocations (the driver moves it by itself)".
[[nodiscard]] std::string residual_line(const model::Residual& residual);
/// What the process keeps in files.
[[nodiscard]] Bytes in_files(const model::Report& report);
/// "13.0 GiB of host memory is retained for the next sleep".
[[nodiscard]] std::string retained_line(const model::Report& report);
/// "the driver has also removed the rest from the GPU: 524.0 MiB".
[[nodiscard]] std::string deep_line(const model::Report& report);

} // namespace gpu_sleep::cli
