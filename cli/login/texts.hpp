// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The texts that a login environment is made of: scripts, variables, and specifications of Jupyter kernels
// (kernel.json). Text to text. Source of the latter: jupyter_client, "Making kernels for Jupyter".

#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::cli {

/// What enabling has made and changed, noted in a script of ours so that disabling finds it again.
struct LoginRecords {
    std::vector<std::filesystem::path> made; ///< directories, and files of others, which are empty without us
    std::vector<std::filesystem::path> changed; ///< all other files
};

/// The script that POSIX shells read. Its variables are set where `library` can be read alone: a file system
/// without it stays without messages.
[[nodiscard]] std::string login_script(const std::string& library, const LoginRecords& records);
/// The same for csh.
[[nodiscard]] std::string login_csh_script(const std::string& library);
/// A generator of systemd's user environment. Source: systemd.environment-generator(7).
[[nodiscard]] std::string login_generator(const std::string& library);
/// A file of systemd's user environment, which cannot look whether `library` is there. Source:
/// environment.d(5).
[[nodiscard]] std::string login_variables(const std::string& library);

/// What login_script() has noted.
[[nodiscard]] LoginRecords read_records(std::string_view script);

/// Whether a file is one of the above, made by this or another version.
[[nodiscard]] bool is_login_file(std::string_view contents);

/// `profile` with a first line that reads `script`.
[[nodiscard]] std::string with_login_line(std::string_view profile, const std::filesystem::path& script);
/// `profile` without such lines, wherever they are now.
[[nodiscard]] std::string without_login_line(std::string_view profile);

/// `text` with `library` in the environment of the kernel, and what it was before in its metadata. Nothing if
/// it is no specification of a Python kernel.
[[nodiscard]] std::optional<std::string> enabled_kernel(const std::string& text, const std::string& library);

/// What enabled_kernel() has changed, taken back: the very text that was there, or, if it has been edited
/// since, that without our members. Nothing if it was not changed by us.
[[nodiscard]] std::optional<std::string> disabled_kernel(const std::string& text);

} // namespace gpu_sleep::cli
