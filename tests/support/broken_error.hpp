// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A pipe in the place of standard error, for tests of what is written there.

#pragma once

#include "base/fd.hpp"
#include "support/catch.hpp"

namespace gpu_sleep::test {

/// Until the end standard error is a pipe, which blocks those that write. Standard error is not written to
/// meanwhile but by what is tested.
class PipeAsError : NotCopied {
public:
    PipeAsError() : before_(::dup(STDERR_FILENO)) {
        std::array<int, 2> ends{};
        REQUIRE(::pipe(ends.data()) == 0);
        reader_ = UniqueFd(ends[0]);
        const UniqueFd writer(ends[1]);
        REQUIRE(::fcntl(reader_.get(), F_SETFL, O_NONBLOCK) == 0);
        REQUIRE(::dup2(writer.get(), STDERR_FILENO) == STDERR_FILENO);
    }
    ~PipeAsError() { ::dup2(before_.get(), STDERR_FILENO); }

    /// What is in it, taken out.
    [[nodiscard]] std::string read() const {
        std::string text;
        std::array<char, 4096> part{};
        for (ssize_t got = 0; (got = ::read(reader_.get(), part.data(), part.size())) > 0;)
            text.append(part.data(), static_cast<std::size_t>(got));
        return text;
    }
    /// Writes until there is no room for another byte.
    void fill() const {
        const int flags = ::fcntl(STDERR_FILENO, F_GETFL);
        REQUIRE(::fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK) == 0);
        for (const std::size_t size : {std::size_t{4096}, std::size_t{1}}) {
            const std::string piece(size, '.');
            while (::write(STDERR_FILENO, piece.data(), size) > 0) {
            }
        }
        REQUIRE(::fcntl(STDERR_FILENO, F_SETFL, flags) == 0);
    }
    void close_reader() { reader_.reset(); }

private:
    UniqueFd before_, reader_;
};

} // namespace gpu_sleep::test
