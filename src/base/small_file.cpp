// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading small files of the kernel.

#include "base/small_file.hpp"

#include "base/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace gpu_sleep {

std::optional<std::string> read_small_file(const std::filesystem::path& path) {
    const UniqueFd file(open_file(AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
    return file ? read_open_file(file.get(), std::string::npos) : std::nullopt;
}

std::optional<std::string> read_open_file(int file, std::size_t most) {
    std::string text;
    std::array<char, 4096> part{};
    while (text.size() <= most) {
        const auto got = ::read(file, part.data(), part.size());
        if (got == 0) return text;
        if (got > 0)
            text.append(part.data(), static_cast<std::size_t>(got));
        else if (errno != EINTR)
            return std::nullopt;
    }
    errno = EFBIG;
    return std::nullopt;
}

std::optional<std::string_view> take_line(std::string_view& text) noexcept {
    if (text.empty()) return std::nullopt;
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return line;
}

} // namespace gpu_sleep
