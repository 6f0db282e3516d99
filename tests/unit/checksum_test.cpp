// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// XXH64 against values of the reference implementation.

#include "base/checksum.hpp"
#include "support/catch.hpp"

namespace gpu_sleep {
namespace {

std::uint64_t hash_of(std::string_view text) {
    return xxh64(std::as_bytes(std::span(text.data(), text.size())));
}

TEST_CASE("XXH64: values of the reference implementation", "[checksum]") {
    CHECK(hash_of("") == 0xEF46DB3751D8E999);
    CHECK(hash_of("a") == 0xD24EC4F1A98C6E5B);
    CHECK(hash_of("abc") == 0x44BC2CF5AD770999);
    CHECK(hash_of("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1);
}

} // namespace
} // namespace gpu_sleep
