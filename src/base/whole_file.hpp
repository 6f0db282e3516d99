// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Files that appear whole or not at all.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace gpu_sleep {

/// The error of a system call that failed with `number` on `file`. Errors: not_permitted, out_of_disk,
/// io_failed.
[[nodiscard]] Error file_error(int number, std::string_view call, const std::filesystem::path& file);

/// A file of mode 0600 that gets its name when it is complete. Until then it has no name, so that nothing is
/// left if the program ends. If the system or the file system does not support that, or another file is to be
/// replaced, it has a temporary name, and is removed when this is destroyed. Move-only.
class WholeFile {
public:
    /// Nothing may have the name `path`, not even a link. Errors: those of file_error().
    [[nodiscard]] static Result<WholeFile> create(const std::filesystem::path& path);
    /// One that takes the place of what has this name in `directory`, if anything; errors speak of `path`.
    /// The temporary name begins with a dot. Errors: those of file_error().
    [[nodiscard]] static Result<WholeFile> replace(UniqueFd directory, std::string name,
                                                   std::filesystem::path path);

    WholeFile(WholeFile&& other) noexcept = default;
    WholeFile& operator=(WholeFile&&) = delete;
    ~WholeFile();

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Errors: those of file_error().
    [[nodiscard]] Result<void> write(std::string_view text);
    /// Closes it and gives it its name. `lasts`: flushes it first, and its directory afterwards, as far as
    /// their file system can. Errors: those of file_error(), also if another file has the name of one to be
    /// created by now.
    [[nodiscard]] Result<void> commit(bool lasts = true);

private:
    WholeFile(UniqueFd directory, std::string name, std::filesystem::path path, bool replaces)
        : directory_(std::move(directory)), name_(std::move(name)), path_(std::move(path)),
          replaces_(replaces) {}
    [[nodiscard]] bool take_name();

    UniqueFd directory_;
    std::string name_;
    std::filesystem::path path_;
    bool replaces_;
    std::string removed_; ///< the name to be removed, in the directory: the temporary one, as a rule
    UniqueFd fd_;
};

/// Flushes and closes a descriptor, which may be a pipe's. Errors: those of file_error().
[[nodiscard]] Result<void> flush_and_close(UniqueFd fd, const std::filesystem::path& file);

} // namespace gpu_sleep
