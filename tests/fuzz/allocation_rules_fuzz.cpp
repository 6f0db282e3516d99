// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Feeds the reader of rules with anything. What it reads can be matched.

#include "model/allocation_rules.hpp"

#include <array>

using namespace gpu_sleep;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto rules = model::AllocationRules::parse(text);
    if (!rules) return 0;
    const std::array libraries{text, std::string_view("/usr/lib/libcublas.so.12")};
    static_cast<void>(rules->match(size, libraries));
    return 0;
}
