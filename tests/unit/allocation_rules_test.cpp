// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocation rules: how they are written, and that the first which is about an allocation decides.

#include "model/allocation_rules.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::model;

namespace {

constexpr std::array<std::string_view, 0> k_nobody{};

AllocationVerdict match(const AllocationRules& rules, Bytes bytes, std::string_view library = "main") {
    const std::array<std::string_view, 2> libraries{"/usr/bin/python3", library};
    return rules.match(bytes, libraries);
}

std::string complaint(std::string_view text) {
    const auto rules = AllocationRules::parse(text);
    return rules ? "none" : rules.error().message;
}

} // namespace

TEST_CASE("Allocation rules: the first that is about an allocation decides", "[allocation_rules]") {
    const auto rules = *AllocationRules::parse(
        "max=4095,capture=0;min=64MiB,lib=libtorch_cuda,tag=weights;lib=libcublas,capture=0");
    CHECK_FALSE(match(rules, 4095, "/lib/libtorch_cuda.so").intercept);
    CHECK(match(rules, 4096).intercept);
    CHECK(match(rules, 4096).tag.empty());
    CHECK(match(rules, 64 * k_mib, "/opt/torch/lib/libtorch_cuda.so").tag == "weights");
    CHECK(match(rules, 64 * k_mib - 1, "/opt/torch/lib/libtorch_cuda.so").tag.empty());
    CHECK_FALSE(match(rules, k_gib, "libcublas.so.12").intercept);
    CHECK(rules.match(k_gib, k_nobody).intercept);
    CHECK(rules.name_libraries());
    CHECK_FALSE(AllocationRules::parse("min=1,tag=a")->name_libraries());
}

TEST_CASE("Allocation rules: without a rule, all is intercepted", "[allocation_rules]") {
    CHECK(match(AllocationRules(), 1).intercept);
    CHECK(match(*AllocationRules::parse(""), 1).tag.empty());
    CHECK(match(*AllocationRules::parse("lib=libx,tag=a;any;tag=b"), 1).tag.empty());
    CHECK(match(*AllocationRules::parse("min=1,max=18446744073709551614,tag=a"), ~Bytes{0}).tag.empty());
}

TEST_CASE("Allocation rules: a library is meant by its file name, up to dot or dash", "[allocation_rules]") {
    CHECK(names_library("libcublas", "/usr/local/cuda/lib64/libcublas.so.12"));
    CHECK(names_library("libcublas.so.12", "libcublas.so.12"));
    CHECK(names_library("libcublas", "/venv/nvidia.libs/libcublas-5a3c.so.12"));
    CHECK(names_library("python3", "/usr/bin/python3.11"));
    CHECK_FALSE(names_library("libcublas", "/usr/lib/libcublasLt.so.12"));
    CHECK_FALSE(names_library("libcublas", "/libcublas/libother.so"));
    CHECK_FALSE(names_library("libcublas", "libcubla"));
}

TEST_CASE("Allocation rules: what was written is read", "[allocation_rules]") {
    const auto read =
        *AllocationRules::parse("tag=a:1,min=1,max=1KiB,lib=lib-7.so+;any;capture=0;lib=b,lib=c");
    REQUIRE(read.rules().size() == 4);
    const auto& first = read.rules().front();
    CHECK(first.min_size == 1);
    CHECK(first.max_size == 1024);
    CHECK(first.library == "lib-7.so+");
    CHECK(first.tag == "a:1");
    CHECK(first.intercept);
    CHECK(read.rules()[1].max_size == ~Bytes{0});
    CHECK_FALSE(read.rules()[2].intercept);
    CHECK(read.rules()[3].library == "c");
}

TEST_CASE("Allocation rules: any other text is refused, and says where", "[allocation_rules]") {
    std::istringstream bad_texts(
        ";|tag=a;|;tag=a|tag=a,|,tag=a|tag|tag=|lib=|min=|min=-1|min=+1|min=1k|max|"
        "capture=1|capture=|capture=0,tag=a|tag=a,capture=0|any,tag=a|any;;any|size=1|"
        "tag=a b|lib=a/b|min=2,max=1| tag=a|tag=a\n");
    for (std::string bad; std::getline(bad_texts, bad, '|');) {
        INFO(bad);
        CHECK_FALSE(AllocationRules::parse(bad));
    }
    CHECK(complaint("tag=a;min=x") == "rule 2: 'x' is not a size; write it as 512MiB, 40GiB or 1.5GB");
    CHECK(complaint("min=2KiB,max=1024") == "rule 1: min, 2.00 KiB, is more than max, 1.00 KiB");
    CHECK(complaint("size=1") ==
          "rule 1: 'size=1' is none of min=SIZE, max=SIZE, lib=NAME, tag=TAG and capture=0");
    std::string many = "any";
    for (std::size_t i = 1; i < k_max_allocation_rules; ++i) many += ";any";
    CHECK(AllocationRules::parse(many));
    CHECK_FALSE(AllocationRules::parse(many + ";any"));
    CHECK_FALSE(AllocationRules::parse("tag=" + std::string(65, 'a')));
    CHECK_FALSE(AllocationRules::parse("lib=" + std::string(101, 'a')));
}
