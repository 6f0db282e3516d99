// SPDX-License-Identifier: Apache-2.0
// Copyright the gpu-sleep authors.
// Levels and stores as typed.

#include "cli/sleep_options.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

namespace gpu_sleep::cli {
namespace {

/// Puts the directory into the request. Returns what is wrong with it, or nothing.
std::string read_directory(const TypedStores& typed, model::SleepRequest& request) {
    if (!typed.directory.empty() && typed.stores.empty() && typed.spill.empty()) {
        request.store = model::Store::file; // who names a directory means files
        request.store_is_named = true;
    }
    const bool needs_directory = model::uses_files(request);
    request.spill = !typed.spill.empty();
    if (request.spill && !typed.directory.empty() && typed.directory != typed.spill)
        return "--dir and --spill name different directories; a sleep uses only one";
    const auto& directory = typed.directory.empty() ? typed.spill : typed.directory;
    if (needs_directory && directory.empty()) return "--store file needs --dir";
    if (!needs_directory && !request.spill && !directory.empty())
        return "--dir can be used only with --store file";
    if (request.keep_files && directory.empty()) return "--keep-files can be used only with --dir or --spill";
    if (directory.empty()) return {};
    std::error_code failure;
    request.directory = std::filesystem::absolute(directory, failure).lexically_normal();
    if (!failure) return {};
    return fmt::format("the directory '{}' is relative to a working directory that is gone", directory);
}

} // namespace

usage::Row level_row(model::Level& level) {
    const auto assign = [&level](const std::string& word) {
        level = word == "1" ? model::Level::keep : model::Level::drop;
    };
    return {"--level", usage::choice("1|2", assign),
            "1 keeps contents (default), 2 drops them unless a tag's policy preserves them"};
}

usage::Row store_row(TypedStores& typed) {
    return {"--store", usage::list("STORE|TAG=STORE,...", typed.stores),
            "Where contents are kept: host (memory, the default) or file; or for some tags, as in "
            "weights=file,kv_cache=host"};
}

usage::Row dir_row(TypedStores& typed) {
    return {"--dir", usage::path("DIR", typed.directory), "Keep contents in compressed files in DIR"};
}

std::string read_stores(const TypedStores& typed, model::SleepRequest& request) {
    for (const auto& word : typed.stores)
        if (auto added = model::add_store(word, request); !added)
            return "--store: " + std::move(added).error().message;
    return read_directory(typed, request);
}

} // namespace gpu_sleep::cli
