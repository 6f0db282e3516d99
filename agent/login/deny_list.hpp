// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// The lists of programs into which the login environment does not load the agent: a pattern a line.

#pragma once

#include "freestanding/no_c_library.hpp"

#include <cstddef>

namespace gpu_sleep::login {

/// Whether all of `text` is as `pattern` says: '*' stands for any text and '?' for one byte.
inline bool matches(const char* pattern, const char* text) {
    const char* star = nullptr; // the last one, and where the text that it stands for ends so far
    const char* end = nullptr;
    while (*text != '\0') {
        if (*pattern == '*') {
            star = pattern++;
            end = text;
        } else if (*pattern == '?' || *pattern == *text) {
            ++pattern;
            ++text;
        } else if (star) {
            pattern = star + 1;
            text = ++end;
        } else {
            return false;
        }
    }
    while (*pattern == '*') ++pattern;
    return *pattern == '\0';
}

/// The names of a program; empty if not known.
struct Program {
    const char* path = "";   ///< of its file
    const char* called = ""; ///< the first word of its command line
    const char* script = ""; ///< the script that its interpreter runs
};

/// A pattern with a slash is for the path of the program's file, or of its script as it was typed. Others are
/// for the names of these files, and for the name by which the program was called.
inline bool is_meant(const char* pattern, const Program& program) {
    const auto* at = pattern;
    while (*at != '\0' && *at != '/') ++at;
    if (*at == '/') return matches(pattern, program.path) || matches(pattern, program.script);
    const auto has_name = [pattern](const char* path) {
        const auto* const name = freestanding::file_name(path);
        return *name != '\0' && matches(pattern, name);
    };
    return has_name(program.path) || has_name(program.called) || has_name(program.script);
}

/// The lines of a list, taken piece by piece. A line longer than any path is none.
class DenyList {
public:
    explicit DenyList(const Program& program) : program_(program) {}

    void add(const char* piece, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) {
            if (piece[i] == '\n')
                end_line();
            else if (length_ < sizeof line_)
                line_[length_++] = piece[i];
        }
    }
    /// Whether any line so far means the program; the last needs no end.
    bool denies() {
        end_line();
        return denies_;
    }

private:
    static bool is_blank(char byte) { return byte == ' ' || byte == '\t' || byte == '\r'; }

    void end_line() {
        const bool fits = length_ < sizeof line_;
        auto end = fits ? length_ : 0;
        length_ = 0;
        while (end > 0 && is_blank(line_[end - 1])) --end;
        line_[end] = '\0';
        const char* start = line_;
        while (is_blank(*start)) ++start;
        if (*start != '\0' && *start != '#' && is_meant(start, program_)) denies_ = true;
    }

    const Program& program_;
    char line_[4096];
    std::size_t length_ = 0;
    bool denies_ = false;
};

/// Whether the list in `file` means the program; not if it cannot be read.
inline bool is_denied_by(const char* file, const Program& program) {
    const int fd = freestanding::open_to_read(file);
    if (fd < 0) return false;
    DenyList list(program);
    char piece[1024];
    for (long size = 0; (size = freestanding::read_some(fd, piece, sizeof piece)) > 0;)
        list.add(piece, static_cast<std::size_t>(size));
    freestanding::close_file(fd);
    return list.denies();
}

} // namespace gpu_sleep::login
