// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Rows, and their check.

#include "cli/http/options.hpp"

#include <cstdlib>

namespace gpu_sleep::cli::http {

std::vector<usage::Row> rows(Options& options) {
    return {usage::brief({"--http", usage::parsed("ADDRESS", parse_address, options.address),
                          "Answer requests by HTTP on this port of this machine, as in 8080, on a Unix "
                          "socket, unix:/PATH, or on an address and a port"}),
            {"--http-token", usage::path("FILE", options.token_file),
             "File with a token that opens the door to whoever sends it"},
            {"--http-open", usage::list("CIDR,...", options.open),
             "Networks whose every machine may call without a token, such as 10.1.2.3/32"}};
}

std::string problem(const Options& options) {
    if (!options.address)
        return options.token_file.empty() && options.open.empty()
                   ? ""
                   : "--http-token and --http-open can be used only with --http";
    for (const auto& each : options.open)
        if (const auto network = parse_network(each); !network)
            return "--http-open: " + network.error().message;
    const auto* const token = std::getenv(k_token_variable);
    const bool has_token = !options.token_file.empty() || (token && *token != '\0');
    if (options.address->is_local() || has_token || !options.open.empty()) return "";
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
