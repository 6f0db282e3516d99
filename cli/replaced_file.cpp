// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A temporary name, then the final one.

#include "cli/replaced_file.hpp"

#include "base/fd.hpp"
#include "cli/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace gpu_sleep::cli {
namespace {

/// Errors: those of file_error().
Result<void> fill(UniqueFd fd, std::string_view text, const std::filesystem::path& path) {
    while (!text.empty()) {
        const auto written = ::write(fd.get(), text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return file_error(errno, "write", path);
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    constexpr mode_t k_readable_by_all = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
    if (::fchmod(fd.get(), k_readable_by_all) != 0) return file_error(errno, "fchmod", path);
    // Network file systems and quotas speak up as late as here.
    if (::close(fd.release()) != 0 && errno != EINTR) return file_error(errno, "close", path);
    return {};
}

} // namespace

Result<void> replace_file(const std::filesystem::path& path, std::string_view text) {
    struct stat status = {};
    if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        return make_error(ErrorCode::invalid_argument, "{} exists and is not a regular file", path.string());
    // Collectors read what ends in .prom, and this does not.
    auto name = (path.parent_path() / ('.' + path.filename().string() + ".XXXXXX")).string();
    UniqueFd fd(::mkostemp(name.data(), O_CLOEXEC));
    if (!fd) return file_error(errno, "mkostemp", path);
    auto done = fill(std::move(fd), text, path);
    if (done && ::rename(name.c_str(), path.c_str()) != 0) done = file_error(errno, "rename", path);
    if (!done) ::unlink(name.c_str());
    return done;
}

} // namespace gpu_sleep::cli
