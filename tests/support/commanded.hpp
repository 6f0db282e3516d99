// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// A program that a test commands: it says "ready", then answers each line of standard input with one line,
// "ok ..." or "error ...".

#pragma once

#include "base/error.hpp"

#include <functional>
#include <iostream>
#include <map>
#include <sstream>

namespace gpu_sleep::test {

/// What a command answers: words, or none where all there is to say is that it was done.
class Answer : public Result<std::string> {
public:
    using Result::Result;
    Answer() : Result(std::string()) {}
    Answer(const char* words) : Result(std::string(words)) {}
    Answer(Result<std::string> said) : Result(std::move(said)) {}
    Answer(Result<void> done) : Result(done ? Result(std::string()) : Result(std::move(done).error())) {}
};
using Words = std::istringstream; ///< what follows the command on its line
using Commands = std::map<std::string, std::function<Answer(Words&)>>;

/// The next word, or `fallback` where there is none or it is no T.
template <class T>
T next(Words& words, T fallback = {}) {
    T value = fallback;
    return words >> value ? value : fallback;
}

/// A command that is about a thing, which `find` finds by the first word: what `act` does with it, given the
/// words that follow.
template <class Find, class Act>
auto about(Find find, Act act) {
    return [=](Words& words) -> Answer {
        const auto found = find(words);
        if (!found) return found.error();
        return act(**found, words);
    };
}

/// The same, about two things.
template <class Find, class Act>
auto about_two(Find find, Act act) {
    return about(find, [=](auto& first, Words& words) {
        return about(find, [&](auto& second, Words&) { return act(first, second); })(words);
    });
}

inline std::string answer(const Commands& commands, const std::string& line) {
    Words words(line);
    const auto command = commands.find(next<std::string>(words));
    if (command == commands.end()) return "error there is no such command";
    const auto result = command->second(words);
    return result ? "ok " + *result : "error " + result.error().message;
}

/// Answers until standard input ends.
inline void obey(const Commands& commands) {
    std::cout << "ready" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << answer(commands, line) << std::endl;
}

} // namespace gpu_sleep::test
