// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Reading small files.

#include "base/files.hpp"

#include "base/units.hpp"
#include "support/catch.hpp"

using namespace gpu_sleep;

namespace {

std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> lines;
    while (const auto line = take_line(text)) lines.emplace_back(*line);
    return lines;
}

/// Whether the descriptor that reads `path` would go to what the process executes; nothing if there is none.
std::optional<bool> is_inherited(const std::filesystem::path& path) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        if (std::filesystem::read_symlink(entry.path(), gone) != path) continue;
        const int fd = std::stoi(entry.path().filename());
        if ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) return (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    }
    return {};
}

} // namespace

TEST_CASE("Small file: lines are taken one by one, the last with or without its end", "[small_file]") {
    using Lines = std::vector<std::string>;
    CHECK(lines_of("").empty());
    CHECK(lines_of("\n") == Lines{""});
    CHECK(lines_of("a") == Lines{"a"});
    CHECK(lines_of("a\nb\n") == Lines{"a", "b"});
    CHECK(lines_of("a\n\nb") == Lines{"a", "", "b"});
}

TEST_CASE("Small file: all of it is read, and what cannot be read is nothing", "[small_file]") {
    const test::Scratch scratch;
    const std::string text(10'000, 'x');
    std::ofstream(scratch.file("long")) << text;
    CHECK(read_small_file(scratch.file("long")) == text);
    CHECK_FALSE(read_small_file(scratch.file("missing")));
    CHECK_FALSE(read_small_file(std::filesystem::path(scratch.file("long")).parent_path()));
}

TEST_CASE("Small file: no program that is executed meanwhile inherits the descriptor", "[small_file]") {
    const test::Scratch scratch;
    const std::filesystem::path path = scratch.file("pipe");
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    auto text = std::async(std::launch::async, [&] { return read_small_file(path); });
    UniqueFd writer(::open(path.c_str(), O_WRONLY | O_CLOEXEC)); // once somebody reads
    REQUIRE(writer);
    std::optional<bool> inherits; // the reader's call may return a little later
    for (int tries = 1000; !(inherits = is_inherited(path)) && tries > 0; --tries)
        std::this_thread::sleep_for(Milliseconds(10));
    REQUIRE(inherits);
    CHECK_FALSE(*inherits);
    REQUIRE(::write(writer.get(), "some", 4) == 4);
    writer.reset();
    CHECK(text.get() == "some");
}
