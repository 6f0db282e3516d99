// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading small files of the kernel. Streams of the C++ library would leave their descriptors to whatever the
// program executes meanwhile.

#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace gpu_sleep {

/// All of the file, whose descriptor no other program inherits. Nothing, with errno set, if it cannot be
/// opened or read. May throw for want of memory. Thread-safe.
[[nodiscard]] std::optional<std::string> read_small_file(const std::filesystem::path& path);

/// What is left of an open file, up to `most` bytes. Nothing, with errno set, if it cannot be read: EFBIG
/// where it has more.
[[nodiscard]] std::optional<std::string> read_open_file(int file, std::size_t most);

/// Takes the first line, without its end, off `text`; nothing once `text` is empty.
[[nodiscard]] std::optional<std::string_view> take_line(std::string_view& text) noexcept;

} // namespace gpu_sleep
