// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Allocation rules in JSON: what is read, and what is said of mistakes.

#include "cli/rules_file.hpp"

#include "support/catch.hpp"

using namespace gpu_sleep;
using namespace gpu_sleep::cli;

namespace {

std::string text_from(std::string_view json) {
    const auto rules = parse_rules(json, "r.json");
    INFO(json);
    REQUIRE(rules);
    return rules->text();
}

std::string complaint_about_file(std::string_view json) {
    const auto rules = parse_rules(json, "r.json");
    return rules ? "none" : rules.error().message;
}

} // namespace

TEST_CASE("Rules file: rules keep their order and their values", "[rules_file]") {
    CHECK(text_from(R"({"rules": [
        {"min_size": "64MiB", "max_size": "1GiB", "library": "libtorch_cuda", "tag": "weights"},
        {"library": "libcublas", "capture": false}, {"max_size": 4096}, {"capture": true}]})") ==
          "min=67108864,max=1073741824,lib=libtorch_cuda,tag=weights;lib=libcublas,capture=0;max=4096;any");
    CHECK(text_from(R"({"rules": []})").empty());
}

TEST_CASE("Rules file: a mistake is named with its rule and its member", "[rules_file]") {
    CHECK(complaint_about_file(R"({"rules": [{}, {"min_size": "64MIB"}]})") ==
          "r.json: rule 2, min_size: '64MIB' is not a size; write it as 512MiB, 40GiB or 1.5GB");
    CHECK(complaint_about_file(R"({"rules": [{"max_size": -1}]})") ==
          "r.json: rule 1, max_size: -1 is not a size; write it as \"64MiB\"");
    CHECK(complaint_about_file(R"({"rules": [{"size": 1}]})") ==
          "r.json: rule 1, size: there is no such member; the members are min_size, max_size, library, tag "
          "and capture");
    CHECK(complaint_about_file(R"({"rules": [{"capture": "no"}]})") ==
          "r.json: rule 1, capture: \"no\" is neither true nor false");
    CHECK(complaint_about_file(R"({"rules": [{"tag": ""}]})") ==
          "r.json: rule 1, tag: \"\" is not a name; write it as \"weights\"");
    CHECK(complaint_about_file(R"({"rules": [{"tag": "a b"}]})") ==
          "r.json: rule 1, tag: 'a b' is not a tag: 1 to 64 letters, digits, '_', '-', '.' and ':'");
    CHECK(complaint_about_file(R"({"rules": [{"tag": "a", "capture": false}]})") ==
          "r.json: rule 1, tag: allocations that are not intercepted have no tag");
    CHECK(complaint_about_file(R"({"rules": [{"min_size": "2GiB", "max_size": "1GiB"}]})") ==
          "r.json: rule 1, min_size: 2.00 GiB is more than max_size, 1.00 GiB");
    CHECK(complaint_about_file(R"({"rules": [7]})") == "r.json: rule 1 is not an object");
    CHECK(complaint_about_file(R"({"rules": [{"tag": "a", "tag": "b"}]})") ==
          "r.json: \"tag\" appears twice in one object");
}

TEST_CASE("Rules file: what is no rules file at all is told so", "[rules_file]") {
    CHECK_THAT(complaint_about_file("{\"rules\": [\n  {\"tag\": }\n]}"),
               Catch::Matchers::StartsWith("r.json: parse error at line 2"));
    const std::string form = "r.json: it should be an object with a list: {\"rules\": [...]}";
    for (const auto* other : {"[]", "7", "{}", R"({"rules": {}})", R"({"rule": []})"})
        CHECK(complaint_about_file(other) == form);
    CHECK(complaint_about_file(R"({"rules": [], "version": 1})") ==
          "r.json: there should be nothing besides \"rules\"");
    CHECK(complaint_about_file("") != "none");
    CHECK(complaint_about_file("{\"rules\": [{\"tag\": \"\xFF\"}]}") != "none");
    CHECK(read_rules_file("/nonexistent/r.json").error().code == ErrorCode::io_failed);
    CHECK_FALSE(read_rules_file("/"));
}
