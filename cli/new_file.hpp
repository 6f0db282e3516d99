// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A file that appears complete or not at all, and is accessible to its owner only.

#pragma once

#include "base/fd.hpp"
#include "base/result.hpp"

#include <filesystem>
#include <string>

namespace gpu_sleep::cli {

/// The error of a system call that failed with `number` on `file`. Errors: not_permitted, out_of_disk,
/// io_failed.
[[nodiscard]] Error file_error(int number, std::string_view call, const std::filesystem::path& file);

/// A file of mode 0600 that gets its name when it is complete. Until then it has no name, so that nothing is
/// left if the program ends. If the system or the file system does not support that, it has a temporary name,
/// and is removed when this is destroyed. Move-only.
class NewFile {
public:
    /// Nothing may have the name `path`, not even a link. Errors: those of file_error().
    [[nodiscard]] static Result<NewFile> create(const std::filesystem::path& path);

    NewFile(NewFile&& other) noexcept = default;
    NewFile& operator=(NewFile&&) = delete;
    ~NewFile();

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Flushes and closes it, and gives it its name. Errors: those of file_error(), also if another file has
    /// the name by now.
    [[nodiscard]] Result<void> commit();

private:
    [[nodiscard]] Result<void> commit_nameless();
    NewFile(std::filesystem::path path, std::string partial, UniqueFd fd)
        : path_(std::move(path)), partial_(std::move(partial)), fd_(std::move(fd)) {}

    std::filesystem::path path_;
    std::string partial_; ///< its temporary name; empty if it has none, and when it is complete
    UniqueFd fd_;
};

/// Flushes and closes a descriptor, which may be a pipe's. Errors: those of file_error().
[[nodiscard]] Result<void> flush_and_close(UniqueFd fd, const std::filesystem::path& file);

} // namespace gpu_sleep::cli
