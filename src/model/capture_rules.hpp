// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Which of a program's own allocations are captured, and under which tag: rules, their text, and matching.
// gpu-run reads them from a file and writes the text; the agent reads the text. Nothing here acts.

#pragma once

#include "base/result.hpp"
#include "base/units.hpp"

#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_sleep::model {

/// What becomes of allocations of some sizes, made by some library.
struct CaptureRule {
    Bytes min_size = 0;                                 ///< the smallest that it is about
    Bytes max_size = std::numeric_limits<Bytes>::max(); ///< and the largest
    std::string library;                                ///< that asks for them; empty: any. See names_library
    bool capture = true;
    std::string tag; ///< empty: the process's own

    friend bool operator==(const CaptureRule&, const CaptureRule&) = default;
};

/// What the rules say about one allocation.
struct CaptureVerdict {
    bool capture = true;
    std::string_view tag; ///< lives as long as the rules; empty: the process's own
};

inline constexpr std::size_t k_max_capture_rules = 64;
inline constexpr std::size_t k_max_library_length = 100;

/// Whether `name`, in a rule, means the library whose file is `file`: its file name without directories is
/// `name`, or goes on with '.' or '-'. So libcublas means /usr/lib/libcublas.so.12, and not
/// libcublasLt.so.12.
[[nodiscard]] bool names_library(std::string_view name, std::string_view file) noexcept;

/// 1 to 100 letters, digits, '_', '-', '.' and '+'.
[[nodiscard]] bool is_valid_library(std::string_view name) noexcept;

/// What is wrong with `rule`, beginning with the field's name in a rules file, or nothing.
[[nodiscard]] std::string problem_with(const CaptureRule& rule);

/// Rules in their order: the first that is about an allocation decides. Immutable, thread-safe.
///
/// Their text, as in "min=67108864,lib=libtorch_cuda,tag=weights;lib=libcublas,capture=0":
///
///     rules   [ rule { ";" rule } ]
///     rule    "any" | field { "," field }       at least one field; "any" stands for a rule that says
///     nothing field   "min=" bytes | "max=" bytes | "lib=" library | "tag=" tag | "capture=0" bytes   a
///     decimal number without sign or leading zeros, below 2^64
///
/// Fields come in this order, each once at most, and none that says what holds without it: each list of rules
/// has exactly one text.
class CaptureRules {
public:
    CaptureRules() = default;

    /// Errors: invalid_argument (too many, or one that problem_with finds fault with; the rule is named by
    /// number).
    [[nodiscard]] static Result<CaptureRules> create(std::vector<CaptureRule> rules);

    /// Reads the text. Errors: invalid_argument (what it says where it is not exactly as above).
    [[nodiscard]] static Result<CaptureRules> parse(std::string_view text);

    [[nodiscard]] std::string text() const;

    /// What they say about `bytes` asked for by `libraries`: the files of the libraries on the way from the
    /// program to the driver, in any order. Without a rule that is about it, an allocation is captured under
    /// the process's tag.
    [[nodiscard]] CaptureVerdict match(Bytes bytes,
                                       std::span<const std::string_view> libraries) const noexcept;

    /// Whether any rule names a library, so that the libraries need to be found out at all.
    [[nodiscard]] bool name_libraries() const noexcept;

    [[nodiscard]] const std::vector<CaptureRule>& rules() const noexcept { return rules_; }

private:
    explicit CaptureRules(std::vector<CaptureRule> rules) : rules_(std::move(rules)) {}

    std::vector<CaptureRule> rules_;
};

} // namespace gpu_sleep::model
