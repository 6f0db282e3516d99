// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A file system as containers have it.

#pragma once

#include "support/catch.hpp"

#include <sys/mount.h>

namespace gpu_sleep::test {

/// An overlay over a directory of its own, mounted on it, if this user may.
class Overlay : NotCopied {
public:
    explicit Overlay(const std::filesystem::path& where) : where_(where) {
        for (const auto* each : {"lower", "upper", "work"})
            std::filesystem::create_directory(layers_.path() / each);
        const auto layers = layers_.path().string();
        const auto options =
            "lowerdir=" + layers + "/lower,upperdir=" + layers + "/upper,workdir=" + layers + "/work";
        is_mounted_ = ::mount("gpu-sleep-test", where.c_str(), "overlay", 0, options.c_str()) == 0 &&
                      ::chmod(where.c_str(), S_IRWXU) == 0;
    }
    ~Overlay() { ::umount2(where_.c_str(), MNT_DETACH); }
    explicit operator bool() const noexcept { return is_mounted_; }

private:
    Scratch layers_{"/dev/shm"};
    std::filesystem::path where_;
    bool is_mounted_ = false;
};

} // namespace gpu_sleep::test
