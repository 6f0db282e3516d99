// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Rows, and their check.

#include "cli/http/options.hpp"

#include "base/small_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace gpu_sleep::cli::http {
namespace {

/// The first line of the file into `token`. Returns what is wrong with it, or nothing.
std::string read_token(const std::string& file, std::string& token) {
    const auto text = read_small_file(file);
    if (!text) return fmt::format("{} cannot be read: {}", file, std::strerror(errno));
    std::string_view rest = *text;
    token = take_line(rest).value_or("");
    const auto problem = token_problem(token);
    return problem.empty() ? problem : fmt::format("{}: {}", file, problem);
}

} // namespace

std::string token_problem(std::string_view token) {
    constexpr std::size_t k_shortest = 16;
    if (token.size() < k_shortest)
        return fmt::format("a token has at least {} characters, such as those of: openssl rand -hex 32",
                           k_shortest);
    const bool is_plain = std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 0x7F; });
    return is_plain ? "" : "a token has no spaces and no other characters than those of ASCII";
}

std::vector<usage::Row> rows(Options& options) {
    const auto set_token = [&options](const std::string& file) {
        options.token_file = file;
        return read_token(file, options.token);
    };
    return {
        usage::brief({"--http", usage::parsed("ADDRESS", parse_address, options.address),
                      "Answer HTTP requests at a local port (8080), a Unix socket (unix:/PATH) or an address "
                      "with a port"}),
        {"--http-token", usage::text("FILE", set_token),
         "File that contains a token; callers may authenticate with it"},
        {"--http-open", usage::list("CIDR,...", options.open),
         "Networks whose every machine may call without a token, such as 10.1.2.3/32"}};
}

std::string complete(Options& options) {
    if (!options.address)
        return options.token_file.empty() && options.open.empty()
                   ? ""
                   : "--http-token and --http-open can be used only with --http";
    for (const auto& each : options.open)
        if (const auto network = parse_network(each); !network)
            return "--http-open: " + network.error().message;
    if (const auto* const token = std::getenv(k_token_variable); token && options.token.empty()) {
        options.token = token;
        const auto problem = options.token.empty() ? "" : token_problem(options.token);
        if (!problem.empty()) return fmt::format("{}: {}", k_token_variable, problem);
    }
    if (options.address->is_local() || !options.token.empty() || !options.open.empty()) return "";
    return "--http: others reach this address, too: give a token, by --http-token, or say by --http-open who "
           "needs none";
}

std::vector<std::string> words_of(const Options& options) {
    std::vector<std::string> words{"--http=" + to_string(*options.address)};
    if (!options.token_file.empty()) words.push_back("--http-token=" + options.token_file);
    for (const auto& each : options.open) words.push_back("--http-open=" + each);
    return words;
}

} // namespace gpu_sleep::cli::http
