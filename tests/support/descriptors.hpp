// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// What programs do to descriptors that they know nothing of: they close all, and use the numbers again.

#pragma once

#include "base/fd.hpp"
#include "support/catch.hpp"

#include <sys/mman.h>

namespace gpu_sleep::test {

/// The descriptors of this process that lie in `directory`, or are its own.
[[nodiscard]] inline std::vector<int> descriptors_in(const std::filesystem::path& directory) {
    std::vector<int> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone; // the iterator's own
        const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
        if (target.starts_with(directory.string())) found.push_back(std::stoi(entry.path().filename()));
    }
    return found;
}

/// A file of the program's, under numbers that were others' before.
class Usurper : NotCopied {
public:
    explicit Usurper(std::vector<int> numbers) : numbers_(std::move(numbers)) {
        file_ = UniqueFd(::memfd_create("a file of the program", MFD_CLOEXEC));
        REQUIRE(file_);
        REQUIRE(::write(file_.get(), "contents", k_bytes) == k_bytes);
        for (const int number : numbers_) REQUIRE(::dup2(file_.get(), number) == number);
    }
    ~Usurper() {
        for (const int number : numbers_) ::close(number);
    }
    /// Whether it is still there under all of them, as it was.
    [[nodiscard]] bool is_unharmed() const {
        struct stat own = {};
        if (::fstat(file_.get(), &own) != 0 || own.st_size != k_bytes) return false;
        for (const int number : numbers_) {
            struct stat status = {};
            if (::fstat(number, &status) != 0 || status.st_ino != own.st_ino) return false;
        }
        return true;
    }

private:
    static constexpr int k_bytes = 8;
    UniqueFd file_;
    std::vector<int> numbers_;
};

} // namespace gpu_sleep::test
