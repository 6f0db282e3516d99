// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Contents of blocks that a code has to bear: what models and optimisers have, and what nobody has.

#pragma once

#include "support/weights.hpp"

#include <cstring>
#include <functional>
#include <string>

namespace gpu_sleep::test {

struct BlockContents {
    std::string name;
    std::function<ByteVector(std::size_t bytes)> make;
};

/// `bytes` bytes of values that `make(i)` makes.
template <class Make>
[[nodiscard]] ByteVector bytes_of(std::size_t bytes, Make&& make) {
    using Value = decltype(make(std::size_t{}));
    ByteVector found(bytes + sizeof(Value));
    for (std::size_t i = 0; i * sizeof(Value) < bytes; ++i) {
        const Value value = make(i);
        std::memcpy(&found[i * sizeof value], &value, sizeof value);
    }
    found.resize(bytes);
    return found;
}

[[nodiscard]] std::vector<BlockContents> block_contents();

} // namespace gpu_sleep::test
