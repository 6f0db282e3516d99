// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Rules for a program's own allocations: which of them are intercepted, and under which tag. A person writes
// them as text, which gpu-run checks and the agent reads.

#pragma once

#include "base/units.hpp"

#include <vector>

namespace gpu_sleep::model {

/// A rule for allocations of some sizes by some library.
struct AllocationRule {
    Bytes min_size = 0;                                 ///< smallest size that matches
    Bytes max_size = std::numeric_limits<Bytes>::max(); ///< largest size that matches
    std::string library;                                ///< that requests them; empty: any. See names_library
    bool intercept = true;                              ///< intercept them; false leaves them to the driver
    std::string tag;                                    ///< empty: the process's own
};

/// The result of the rules for one allocation.
struct AllocationVerdict {
    bool intercept = true;
    std::string_view tag; ///< lives as long as the rules; empty: the process's own
};

inline constexpr std::size_t k_max_allocation_rules = 64;
inline constexpr std::size_t k_max_library_length = 100;

/// Whether `name`, in a rule, means the library whose file is `file`: its file name without directories is
/// `name`, or goes on with '.' or '-'. So libcublas means /usr/lib/libcublas.so.12, and not
/// libcublasLt.so.12.
[[nodiscard]] bool names_library(std::string_view name, std::string_view file) noexcept;

/// Rules in order: the first that matches an allocation decides. Immutable, thread-safe.
///
/// Their text, as in "min=64MiB,lib=libtorch_cuda,tag=weights;lib=libcublas,capture=0":
///
///     rules   [ rule { ";" rule } ]
///     rule    "any" | field { "," field }
///     field   "min=" size | "max=" size | "lib=" library | "tag=" tag | "capture=0"
///     size    a size with its unit, or a number of bytes
///     library 1 to 100 letters, digits, '_', '-', '.' and '+'
///
/// Of a field that is there twice the last counts.
class AllocationRules {
public:
    /// Reads the text. Errors: invalid_argument (what is wrong with which rule, or there are too many).
    [[nodiscard]] static Result<AllocationRules> parse(std::string_view text);

    /// The result for an allocation of `bytes`. `libraries` are the files of the libraries on the call stack,
    /// in any order. An allocation that no rule matches is intercepted under the process's tag.
    [[nodiscard]] AllocationVerdict match(Bytes bytes,
                                          std::span<const std::string_view> libraries) const noexcept;

    /// Whether any rule names a library. If none does, match() needs no libraries.
    [[nodiscard]] bool name_libraries() const noexcept;

    [[nodiscard]] const std::vector<AllocationRule>& rules() const noexcept { return rules_; }

private:
    std::vector<AllocationRule> rules_;
};

} // namespace gpu_sleep::model
