// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A file that others read while it is written again and again.

#pragma once

#include "base/result.hpp"

#include <filesystem>
#include <string_view>

namespace gpu_sleep::cli {

/// Makes `text` all that the file holds, with mode 0644. Whoever reads it finds the old text or the new one:
/// a new file, with another name in the same directory, takes its name. It is not flushed. Errors:
/// invalid_argument (the name is that of something else, such as a link or a device), not_permitted,
/// out_of_disk, io_failed: the old file is as it was.
[[nodiscard]] Result<void> replace_file(const std::filesystem::path& path, std::string_view text);

} // namespace gpu_sleep::cli
