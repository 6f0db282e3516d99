// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A disk that is soon full.

#pragma once

#include "support/catch.hpp"

#include <sys/mount.h>

namespace gpu_sleep::test {

/// A file system in memory, of these options, if this user may mount one.
class SmallDisk : NotCopied {
public:
    explicit SmallDisk(const std::string& options)
        : is_mounted_(
              ::mount("gpu-sleep-test", path().c_str(), "tmpfs", 0, (options + ",mode=0700").c_str()) == 0) {}
    ~SmallDisk() {
        if (is_mounted_) ::umount2(path().c_str(), MNT_DETACH);
    }
    explicit operator bool() const noexcept { return is_mounted_; }
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return directory_.path(); }
    [[nodiscard]] const Scratch& directory() const noexcept { return directory_; }
    [[nodiscard]] bool resize(unsigned long long bytes) const {
        const auto options = "size=" + std::to_string(bytes);
        return ::mount(nullptr, path().c_str(), nullptr, MS_REMOUNT, options.c_str()) == 0;
    }

private:
    Scratch directory_;
    bool is_mounted_;
};

} // namespace gpu_sleep::test
